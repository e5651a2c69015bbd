//! Files with numbers as names.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{self, AtFlags, Dir, Mode, OFlags};
use rustix::io::{self, Errno};
use samite_backend_lmdb::TargetRoot;
use samite_types::{Error, Result};

/// Name of the directory below the root.
const PARTS_NAME: &str = "parts";
/// Files in one directory: as many as the last digits count.
const DIR_BITS: u32 = 12;
/// Files that are open to be synced together.
const UNSYNCED_MAX: usize = 128;

const DIR_FLAGS: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The files of a target.
#[derive(Debug)]
pub(crate) struct PartFiles {
    dir: OwnedFd,
}

fn dir_name(number: u64) -> String {
    format!("{:x}", number >> DIR_BITS)
}

fn file_name(number: u64) -> String {
    format!("{:03x}", number & ((1 << DIR_BITS) - 1))
}

fn told(number: u64) -> impl FnOnce(Errno) -> Error {
    move |errno| {
        let (dir, file) = (dir_name(number), file_name(number));
        Error::io(format_args!("file {PARTS_NAME}/{dir}/{file}"), errno)
    }
}

/// The number that a name stands for, if it is one of ours.
fn number_of(name: &std::ffi::CStr) -> Option<u64> {
    u64::from_str_radix(name.to_str().ok()?, 16).ok()
}

impl PartFiles {
    /// Opens the directory below `root`; makes it, if it is not there.
    pub(crate) fn open(root: &TargetRoot) -> Result<Self> {
        let told = |errno| Error::io(format_args!("directory {PARTS_NAME}"), errno);
        match fs::mkdirat(root.dir(), PARTS_NAME, Mode::RWXU) {
            Ok(()) => root.sync()?,
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(told(errno)),
        }
        let dir = fs::openat(root.dir(), PARTS_NAME, DIR_FLAGS, Mode::empty()).map_err(told)?;
        Ok(Self { dir })
    }

    fn subdir(&self, number: u64) -> io::Result<OwnedFd> {
        fs::openat(&self.dir, dir_name(number), DIR_FLAGS, Mode::empty())
    }

    /// The bytes of a file; `None`: there is none.
    pub(crate) fn read(&self, number: u64, len: usize) -> io::Result<Option<Vec<u8>>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = |dir: OwnedFd| fs::openat(dir, file_name(number), flags, Mode::empty());
        let file = match self.subdir(number).and_then(open) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        let (mut bytes, mut done) = (vec![0; len], 0);
        while done < len {
            match io::pread(&file, &mut bytes[done..], done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        bytes.truncate(done);
        Ok(Some(bytes))
    }

    /// Removes a file, if it is there.
    pub(crate) fn remove(&self, number: u64) -> Result<()> {
        let unlink = |dir: OwnedFd| fs::unlinkat(dir, file_name(number), AtFlags::empty());
        match self.subdir(number).and_then(unlink) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(told(number)(errno)),
        }
    }

    /// Removes the files from `next` on: a commit that was not finished made them. Directories
    /// that have none left go.
    pub(crate) fn sweep(&self, next: u64) -> Result<u64> {
        let told = |errno| Error::io(format_args!("reading directory {PARTS_NAME}"), errno);
        let mut swept = 0;
        for entry in Dir::read_from(&self.dir).map_err(told)? {
            let entry = entry.map_err(told)?;
            let name = entry.file_name();
            // Names that are no numbers are not ours.
            let Some(dir) = number_of(name).filter(|dir| *dir <= u64::MAX >> DIR_BITS) else {
                continue;
            };
            if dir >= next >> DIR_BITS {
                let sub = fs::openat(&self.dir, name, DIR_FLAGS, Mode::empty()).map_err(told)?;
                for file in Dir::read_from(&sub).map_err(told)? {
                    let file = file.map_err(told)?;
                    let number = number_of(file.file_name()).filter(|low| *low < 1 << DIR_BITS);
                    let number = number.map(|low| dir << DIR_BITS | low);
                    if let Some(number) = number.filter(|number| *number >= next) {
                        self.remove(number)?;
                        swept += 1;
                    }
                }
            }
            // Those that still have some stay.
            let _ = fs::unlinkat(&self.dir, name, AtFlags::REMOVEDIR);
        }
        Ok(swept)
    }
}

/// New files, until they are synced.
#[derive(Debug)]
pub(crate) struct NewFiles<'f> {
    files: &'f PartFiles,
    unsynced: Vec<(u64, OwnedFd)>,
    dirs: BTreeSet<u64>,
    /// All that were begun.
    numbers: Vec<u64>,
}

impl<'f> NewFiles<'f> {
    pub(crate) const fn new(files: &'f PartFiles) -> Self {
        Self { files, unsynced: Vec::new(), dirs: BTreeSet::new(), numbers: Vec::new() }
    }

    /// Makes a file.
    ///
    /// # Errors
    /// `NoSpace`: there is nothing of it. Errors of the disk.
    pub(crate) fn write(&mut self, number: u64, bytes: &[u8]) -> Result<()> {
        let written = self.try_write(number, bytes).map_err(told(number));
        if written.is_err() {
            self.files.remove(number)?;
        }
        written
    }

    fn try_write(&mut self, number: u64, bytes: &[u8]) -> io::Result<()> {
        match fs::mkdirat(&self.files.dir, dir_name(number), Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
        let flags =
            OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = fs::openat(self.files.subdir(number)?, file_name(number), flags, mode)?;
        self.numbers.push(number);
        self.dirs.insert(number >> DIR_BITS);
        let mut done = 0;
        while done < bytes.len() {
            match io::pwrite(&file, &bytes[done..], done as u64) {
                Ok(0) => return Err(Errno::NOSPC),
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        self.unsynced.push((number, file));
        if self.unsynced.len() >= UNSYNCED_MAX { self.sync_files() } else { Ok(()) }
    }

    fn sync_files(&mut self) -> io::Result<()> {
        self.unsynced.drain(..).try_for_each(|(_, file)| fs::fdatasync(file))
    }

    /// The names of these files, which were removed, are to be gone from the disk as well.
    pub(crate) fn note_removed(&mut self, numbers: &[u64]) {
        self.dirs.extend(numbers.iter().map(|number| number >> DIR_BITS));
    }

    /// Has all files and their names on disk.
    ///
    /// # Errors
    /// Errors of the disk.
    pub(crate) fn sync(&mut self) -> Result<()> {
        let told = |errno| Error::io("syncing new files", errno);
        self.sync_files().map_err(told)?;
        for dir in &self.dirs {
            match self.files.subdir(dir << DIR_BITS).and_then(fs::fsync) {
                // The last file in it was removed, and it was, too.
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(told(errno)),
            }
        }
        if !self.dirs.is_empty() {
            fs::fsync(self.files.dir.as_fd()).map_err(told)?;
        }
        Ok(())
    }

    /// Removes them: nothing names them.
    ///
    /// # Errors
    /// Errors of the disk.
    pub(crate) fn discard(self) -> Result<()> {
        self.numbers.iter().try_for_each(|number| self.files.remove(*number))
    }
}
