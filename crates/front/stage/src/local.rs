//! The local file system as a [`FileTree`].

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FlockOperation, Gid, Mode, RawMode, SeekFrom, Stat, Timespec, Timestamps, Uid,
};
use rustix::io::Errno;
use samite_fs::{FileKind, Timestamp};
use samite_types::{Error, ErrorKind, Result};

use crate::beside::DraftFile;
use crate::tree::{ByteRange, Entry, FileMeta, FileTree, SMALL_LEN, SmallFile, Whole};

/// The local file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct LocalTree;

fn as_path(path: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(path))
}

fn failed<'a>(doing: &'a str, path: &'a [u8]) -> impl Fn(Errno) -> Error + 'a {
    move |errno| {
        let what = format!("{doing} {}", LocalTree.show(path));
        match errno {
            Errno::NOTDIR => Error::new(ErrorKind::NotDirectory, format!("{what}: {errno}")),
            Errno::ISDIR => Error::new(ErrorKind::IsDirectory, format!("{what}: {errno}")),
            errno => Error::io(what, errno),
        }
    }
}

fn io_failed<'a>(doing: &'a str, path: &'a [u8]) -> impl Fn(std::io::Error) -> Error + 'a {
    move |error| failed(doing, path)(Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

fn kind_of(mode: RawMode) -> FileKind {
    match rustix::fs::FileType::from_raw_mode(mode) {
        rustix::fs::FileType::Directory => FileKind::Directory,
        rustix::fs::FileType::Symlink => FileKind::Symlink,
        rustix::fs::FileType::Fifo => FileKind::Fifo,
        rustix::fs::FileType::Socket => FileKind::Socket,
        rustix::fs::FileType::CharacterDevice => FileKind::CharDevice,
        rustix::fs::FileType::BlockDevice => FileKind::BlockDevice,
        _ => FileKind::File,
    }
}

#[expect(clippy::unnecessary_cast, reason = "widths of the fields differ between architectures")]
fn meta_of(stat: &Stat) -> FileMeta {
    let time = |seconds, nanoseconds| {
        Timestamp::new(seconds, u32::try_from(nanoseconds).unwrap_or_default())
    };
    FileMeta {
        kind: kind_of(stat.st_mode),
        perm: stat.st_mode as u32 & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        size: u64::try_from(stat.st_size).unwrap_or_default(),
        rdev: stat.st_rdev,
        nlink: u32::try_from(stat.st_nlink).unwrap_or(u32::MAX),
        id: (stat.st_dev, stat.st_ino),
        atime: time(stat.st_atime as i64, stat.st_atime_nsec),
        mtime: time(stat.st_mtime as i64, stat.st_mtime_nsec),
    }
}

fn times_of(meta: &FileMeta) -> Timestamps {
    let spec =
        |time: Timestamp| Timespec { tv_sec: time.seconds(), tv_nsec: time.nanoseconds().into() };
    Timestamps { last_access: spec(meta.atime), last_modification: spec(meta.mtime) }
}

fn mode_of(perm: u32) -> Mode {
    Mode::from_raw_mode(perm & 0o7777)
}

impl LocalTree {
    fn read_whole(self, path: &[u8]) -> Result<Option<Whole>> {
        let file = self.open(path)?;
        let meta = self.file_meta(&file, path)?;
        if meta.kind != FileKind::File || meta.size > SMALL_LEN {
            return Ok(None);
        }
        // One byte more than there should be, to see that nothing was added.
        let mut data = vec![0; usize::try_from(meta.size).unwrap_or_default() + 1];
        let mut len = 0;
        while len < data.len() {
            match self.read_at(&file, path, &mut data[len..], len as u64)? {
                0 => break,
                more => len += more,
            }
        }
        data.truncate(len);
        let is_whole = len as u64 == meta.size && meta.is_copied_as(&self.file_meta(&file, path)?);
        Ok(is_whole.then_some((meta, data)))
    }
}

impl FileTree for LocalTree {
    type File = File;

    fn show(&self, path: &[u8]) -> String {
        as_path(path).display().to_string()
    }

    fn meta(&self, path: &[u8]) -> Result<FileMeta> {
        rustix::fs::lstat(as_path(path)).map(|stat| meta_of(&stat)).map_err(failed("stat", path))
    }

    fn list(&self, path: &[u8], entries: &mut Vec<Entry>) -> Result<()> {
        for entry in std::fs::read_dir(as_path(path)).map_err(io_failed("read", path))? {
            let entry = entry.map_err(io_failed("read", path))?;
            entries.push((entry.file_name().into_vec(), None));
        }
        Ok(())
    }

    fn read_small(&self, paths: &[&[u8]]) -> Vec<Result<Option<Whole>>> {
        paths.iter().map(|path| self.read_whole(path)).collect()
    }

    fn create_small(&self, files: &[SmallFile<'_>], with_owner: bool) -> Vec<Result<()>> {
        let create = |small: &SmallFile<'_>| {
            if self.meta(small.path).is_ok() {
                return Err(failed("create", small.path)(Errno::EXIST));
            }
            let new = DraftFile::create(self, small.path, small.meta.perm & 0o777)?;
            self.write_at(&new.file, small.path, &small.data, 0)
                .and_then(|()| self.finish(&new.file, small.path, &small.meta, with_owner))
                // Nothing half-made stays; the first error is the one to tell.
                .inspect_err(|_| new.give_up(self))?;
            new.place(self)
        };
        files.iter().map(create).collect()
    }

    fn open(&self, path: &[u8]) -> Result<File> {
        // Without waiting: an entry that was a file when it was listed may be a fifo by now.
        let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
        File::options()
            .read(true)
            .custom_flags(flags.bits().cast_signed())
            .open(as_path(path))
            .map_err(io_failed("open", path))
    }

    fn create(&self, path: &[u8], perm: u32) -> Result<File> {
        File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(perm & 0o777)
            .open(as_path(path))
            .map_err(io_failed("create", path))
    }

    fn file_meta(&self, file: &File, path: &[u8]) -> Result<FileMeta> {
        rustix::fs::fstat(file).map(|stat| meta_of(&stat)).map_err(failed("stat", path))
    }

    fn next_data(&self, file: &File, path: &[u8], within: ByteRange) -> Result<Option<ByteRange>> {
        let start = match rustix::fs::seek(file, SeekFrom::Data(within.start)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return Ok(None),
            // File systems that know no holes.
            Err(Errno::INVAL) => return Ok(Some(within)),
            Err(errno) => return Err(failed("seek in", path)(errno)),
        };
        if start >= within.end {
            return Ok(None);
        }
        let end = rustix::fs::seek(file, SeekFrom::Hole(start)).map_err(failed("seek in", path))?;
        Ok(Some(ByteRange { start, end: end.min(within.end) }))
    }

    fn read_at(&self, file: &File, path: &[u8], buf: &mut [u8], offset: u64) -> Result<usize> {
        loop {
            match file.read_at(buf, offset) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                result => return result.map_err(io_failed("read", path)),
            }
        }
    }

    fn write_at(&self, file: &File, path: &[u8], bytes: &[u8], offset: u64) -> Result<()> {
        file.write_all_at(bytes, offset).map_err(io_failed("write", path))
    }

    fn set_len(&self, file: &File, path: &[u8], len: u64) -> Result<()> {
        file.set_len(len).map_err(io_failed("set the length of", path))
    }

    fn finish(&self, file: &File, path: &[u8], meta: &FileMeta, with_owner: bool) -> Result<()> {
        // Looking is much cheaper than changing, and most files are made as they should be.
        let made = self.file_meta(file, path)?;
        let mut perm = made.perm;
        if with_owner && (made.uid, made.gid) != (meta.uid, meta.gid) {
            let (uid, gid) = (Uid::from_raw(meta.uid), Gid::from_raw(meta.gid));
            rustix::fs::fchown(file, Some(uid), Some(gid)).map_err(failed("chown", path))?;
            // A change of owner may take set-id bits away.
            perm &= 0o777;
        }
        if perm != meta.perm {
            rustix::fs::fchmod(file, mode_of(meta.perm)).map_err(failed("chmod", path))?;
        }
        rustix::fs::futimens(file, &times_of(meta)).map_err(failed("set the times of", path))
    }

    fn close(&self, _file: &File) {}

    fn set_meta(&self, path: &[u8], meta: &FileMeta, with_owner: bool) -> Result<()> {
        let at = as_path(path);
        if with_owner {
            let (uid, gid) = (Uid::from_raw(meta.uid), Gid::from_raw(meta.gid));
            rustix::fs::chownat(CWD, at, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
                .map_err(failed("chown", path))?;
        }
        if meta.kind != FileKind::Symlink {
            rustix::fs::chmod(at, mode_of(meta.perm)).map_err(failed("chmod", path))?;
        }
        rustix::fs::utimensat(CWD, at, &times_of(meta), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(failed("set the times of", path))
    }

    fn mkdir(&self, path: &[u8], perm: u32) -> Result<()> {
        rustix::fs::mkdir(as_path(path), mode_of(perm)).map_err(failed("make directory", path))
    }

    fn readlink(&self, path: &[u8]) -> Result<Vec<u8>> {
        rustix::fs::readlink(as_path(path), Vec::new())
            .map(std::ffi::CString::into_bytes)
            .map_err(failed("read link", path))
    }

    fn symlink(&self, target: &[u8], path: &[u8]) -> Result<()> {
        rustix::fs::symlink(as_path(target), as_path(path)).map_err(failed("make link", path))
    }

    fn link(&self, existing: &[u8], path: &[u8]) -> Result<()> {
        rustix::fs::link(as_path(existing), as_path(path)).map_err(failed("make hard link", path))
    }

    fn mknod(&self, path: &[u8], meta: &FileMeta) -> Result<()> {
        let kind = rustix::fs::FileType::from_raw_mode(meta.kind.mode_bits());
        rustix::fs::mknodat(CWD, as_path(path), kind, mode_of(meta.perm), meta.rdev)
            .map_err(failed("make special file", path))
    }

    fn unlink(&self, path: &[u8]) -> Result<()> {
        rustix::fs::unlink(as_path(path)).map_err(failed("remove", path))
    }

    fn rename(&self, from: &[u8], to: &[u8]) -> Result<()> {
        rustix::fs::rename(as_path(from), as_path(to)).map_err(failed("put in place", to))
    }

    fn hold(&self, file: &File) -> Result<bool> {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(errno) => Err(Error::io("lock", errno)),
        }
    }

    fn release(&self, file: &File) {
        // The lock goes with the file, at the latest.
        let _ = rustix::fs::flock(file, FlockOperation::Unlock);
    }
}
