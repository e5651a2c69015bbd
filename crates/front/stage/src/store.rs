//! The store as a [`FileTree`].

use std::sync::Arc;

use samite_fs::{
    CallerContext, FileAttributes, FileKind, FileLocks, FileSystem, LockMode, LockPlace, LockRange,
    LockSpace, NewFile, OpenFile, OpenFlags, RenameFlags, SetTime, WantedLock,
};
use samite_types::{Error, Result};

use crate::tree::{ByteRange, Entry, FileMeta, FileTree, SmallFile, Whole};

/// A store's file system, as one user. Errors of calls that take a path name it themselves.
#[derive(Clone)]
pub struct StoreTree {
    fs: FileSystem,
    context: CallerContext,
    locks: Arc<FileLocks>,
}

impl StoreTree {
    /// The file system as `context`'s user. Its umask is set aside: modes are kept as they are.
    #[must_use]
    pub fn new(fs: FileSystem, context: CallerContext) -> Self {
        let locks = Arc::new(fs.locks());
        Self { fs, context: CallerContext { umask: 0, ..context }, locks }
    }

    fn needs_chown(&self, meta: &FileMeta, with_owner: bool) -> bool {
        with_owner && (meta.uid, meta.gid) != (self.context.uid, self.context.gid)
    }
}

fn meta_of(attr: &FileAttributes) -> FileMeta {
    FileMeta {
        kind: attr.kind,
        perm: attr.perm,
        uid: attr.uid,
        gid: attr.gid,
        size: attr.size,
        rdev: attr.rdev,
        nlink: attr.nlink,
        id: (0, attr.ino),
        atime: attr.atime,
        mtime: attr.mtime,
    }
}

/// Where a whole file is locked. No tree has two owners of one file: each path is copied once.
fn place_of(file: &OpenFile) -> LockPlace {
    LockPlace { ino: file.ino(), space: LockSpace::Whole, token: file.ino() }
}

fn times_of(meta: &FileMeta) -> (SetTime, SetTime) {
    (SetTime::To(meta.atime), SetTime::To(meta.mtime))
}

impl FileTree for StoreTree {
    type File = OpenFile;

    fn show(&self, path: &[u8]) -> String {
        format!("{:?}", String::from_utf8_lossy(path))
    }

    fn meta(&self, path: &[u8]) -> Result<FileMeta> {
        self.fs
            .stat(&self.context, path, false)
            .map(|attr| meta_of(&attr))
            .map_err(|error| error.context(format_args!("stat {}", self.show(path))))
    }

    fn list(&self, path: &[u8], entries: &mut Vec<Entry>) -> Result<()> {
        let failed = |error: Error| error.context(format_args!("list {}", self.show(path)));
        let mut listing = self.fs.read_dir(&self.context, path).map_err(failed)?;
        while let Some(entry) = listing.next_entry().map_err(failed)? {
            if !matches!(&*entry.name, b"." | b"..") {
                entries.push((entry.name.into_vec(), entry.attr.as_ref().map(meta_of)));
            }
        }
        Ok(())
    }

    fn read_small(&self, paths: &[&[u8]]) -> Vec<Result<Option<Whole>>> {
        match self.fs.get_files(&self.context, paths) {
            Ok(files) => files
                .into_iter()
                .map(|file| Ok(file?.map(|file| (meta_of(&file.attr), file.data))))
                .collect(),
            Err(error) => vec![Err(error); paths.len()],
        }
    }

    fn create_small(&self, files: &[SmallFile<'_>], with_owner: bool) -> Vec<Result<()>> {
        let new: Vec<NewFile<'_>> = files
            .iter()
            .map(|small| NewFile {
                path: small.path,
                perm: small.meta.perm,
                owner: with_owner.then_some((small.meta.uid, small.meta.gid)),
                atime: small.meta.atime,
                mtime: small.meta.mtime,
                data: &small.data,
            })
            .collect();
        let made = self.fs.put_files(&self.context, &new);
        made.unwrap_or_else(|error| vec![Err(error); files.len()])
    }

    fn open(&self, path: &[u8]) -> Result<OpenFile> {
        let flags = OpenFlags { nofollow: true, ..OpenFlags::reading() };
        self.fs.open_file(&self.context, path, flags, 0)
    }

    fn create(&self, path: &[u8], perm: u32) -> Result<OpenFile> {
        let flags = OpenFlags { excl: true, ..OpenFlags::creating() };
        self.fs.open_file(&self.context, path, flags, perm)
    }

    fn file_meta(&self, file: &OpenFile, path: &[u8]) -> Result<FileMeta> {
        file.attr()
            .map(|attr| meta_of(&attr))
            .map_err(|error| error.context(format_args!("stat {}", self.show(path))))
    }

    fn next_data(
        &self,
        _file: &OpenFile,
        _path: &[u8],
        within: ByteRange,
    ) -> Result<Option<ByteRange>> {
        // Holes are found by their zeros: reading them moves no data.
        Ok(Some(within))
    }

    fn read_at(&self, file: &OpenFile, path: &[u8], buf: &mut [u8], offset: u64) -> Result<usize> {
        file.read_at(buf, offset)
            .map_err(|error| error.context(format_args!("read {}", self.show(path))))
    }

    fn write_at(&self, file: &OpenFile, path: &[u8], bytes: &[u8], offset: u64) -> Result<()> {
        let (mut rest, mut at) = (bytes, offset);
        while !rest.is_empty() {
            // Less than all when space ran out on the way; then the next call says so.
            let len = file
                .write_at(rest, at)
                .map_err(|error| error.context(format_args!("write {}", self.show(path))))?;
            rest = &rest[len..];
            at += len as u64;
        }
        Ok(())
    }

    fn set_len(&self, file: &OpenFile, path: &[u8], len: u64) -> Result<()> {
        file.truncate(len)
            .map_err(|error| error.context(format_args!("set the length of {}", self.show(path))))
    }

    fn finish(
        &self,
        file: &OpenFile,
        path: &[u8],
        meta: &FileMeta,
        with_owner: bool,
    ) -> Result<()> {
        let settle = || {
            if self.needs_chown(meta, with_owner) {
                file.chown(&self.context, Some(meta.uid), Some(meta.gid))?;
            }
            if meta.perm & 0o7000 != 0 {
                // Not given when the file was made, for writing and a change of owner take them away.
                file.chmod(&self.context, meta.perm)?;
            }
            // Last, for every write sets the time; this settles what was written, too.
            let (atime, mtime) = times_of(meta);
            file.utimens(&self.context, atime, mtime)?;
            file.close()
        };
        settle().map_err(|error| error.context(format_args!("finish {}", self.show(path))))
    }

    fn close(&self, file: &OpenFile) {
        // Read-only, or given up because of an earlier error that was told.
        let _ = file.close();
    }

    fn set_meta(&self, path: &[u8], meta: &FileMeta, with_owner: bool) -> Result<()> {
        if self.needs_chown(meta, with_owner) {
            self.fs.chown(&self.context, path, Some(meta.uid), Some(meta.gid), false)?;
        }
        if meta.kind != FileKind::Symlink {
            self.fs.chmod(&self.context, path, meta.perm, false)?;
        }
        let (atime, mtime) = times_of(meta);
        self.fs.utimens(&self.context, path, atime, mtime, false)
    }

    fn mkdir(&self, path: &[u8], perm: u32) -> Result<()> {
        self.fs.mkdir(&self.context, path, perm)
    }

    fn readlink(&self, path: &[u8]) -> Result<Vec<u8>> {
        self.fs.readlink(&self.context, path)
    }

    fn symlink(&self, target: &[u8], path: &[u8]) -> Result<()> {
        self.fs.symlink(&self.context, target, path)
    }

    fn link(&self, existing: &[u8], path: &[u8]) -> Result<()> {
        self.fs.link(&self.context, existing, path, false)
    }

    fn mknod(&self, path: &[u8], meta: &FileMeta) -> Result<()> {
        self.fs.mknod(&self.context, path, meta.kind.mode_bits() | meta.perm, meta.rdev)
    }

    fn unlink(&self, path: &[u8]) -> Result<()> {
        self.fs.unlink(&self.context, path)
    }

    fn rename(&self, from: &[u8], to: &[u8]) -> Result<()> {
        self.fs.rename(&self.context, from, to, RenameFlags::default())
    }

    fn hold(&self, file: &OpenFile) -> Result<bool> {
        let (range, mode) = (LockRange::WHOLE, LockMode::Exclusive);
        let pid = std::process::id();
        let wanted = WantedLock { range, mode, pid, detects_deadlock: false };
        self.locks.try_lock(place_of(file), wanted).map(|found| found.is_none())
    }

    fn release(&self, file: &OpenFile) {
        // The lock goes with this process, at the latest.
        let _ = self.locks.unlock(place_of(file), LockRange::WHOLE);
    }

    fn free_removed(&self) {
        // Open references that cannot be ended now are ended by others later.
        let _ = self.fs.sweep_orphans();
    }
}
