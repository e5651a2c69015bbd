//! Ways to the store's files.

pub mod agent;
pub mod library;
pub mod posix;

use crate::call::{
    CallAnswer, CallLockMode, DirEntrySeen, FileCall, LockKind, PathHandle, StatFacts,
};

/// An errno.
pub type Refused = i32;

/// One way to the files. The methods are calls with their answers taken apart.
pub trait AccessPath {
    /// Makes a call.
    fn call(&mut self, call: FileCall) -> CallAnswer;

    /// `open` with mode 0644.
    ///
    /// # Errors
    /// The errno, as of all methods here.
    fn open(&mut self, path: &str, flags: i32) -> Result<PathHandle, Refused> {
        match self.call(FileCall::Open { path: path.into(), flags, mode: 0o644 }) {
            CallAnswer::Opened(file) => Ok(file),
            other => refused(other),
        }
    }

    /// Makes or empties a file.
    fn create(&mut self, path: &str) -> Result<PathHandle, Refused> {
        self.open(path, libc::O_CREAT | libc::O_TRUNC | libc::O_RDWR)
    }

    /// `close`.
    fn close(&mut self, file: PathHandle) -> Result<(), Refused> {
        done(self.call(FileCall::Close { file }))
    }

    /// Up to `len` bytes from `offset`; fewer at the end only.
    fn read(&mut self, file: PathHandle, offset: u64, len: u32) -> Result<Vec<u8>, Refused> {
        bytes(self.call(FileCall::Read { file, offset, len }))
    }

    /// All of `data` to `offset`.
    fn write(&mut self, file: PathHandle, offset: u64, data: &[u8]) -> Result<(), Refused> {
        done(self.call(FileCall::Write { file, offset, data: data.into() }))
    }

    /// All of `data` to the end, in one call.
    fn append(&mut self, file: PathHandle, data: &[u8]) -> Result<(), Refused> {
        done(self.call(FileCall::Append { file, data: data.into() }))
    }

    /// A file with this content, made or replaced.
    fn put(&mut self, path: &str, data: &[u8]) -> Result<(), Refused> {
        let file = self.create(path)?;
        let written = self.write(file, 0, data);
        written.and(self.close(file))
    }

    /// The whole content.
    fn get(&mut self, path: &str) -> Result<Vec<u8>, Refused> {
        let file = self.open(path, libc::O_RDONLY)?;
        let read = self.read(file, 0, 64 << 20);
        self.close(file)?;
        read
    }

    /// `lstat`.
    fn facts(&mut self, path: &str) -> Result<StatFacts, Refused> {
        facts(self.call(FileCall::Facts { path: path.into() }))
    }

    /// `fstat`.
    fn file_facts(&mut self, file: PathHandle) -> Result<StatFacts, Refused> {
        facts(self.call(FileCall::FileFacts { file }))
    }

    /// `mkdir` with mode 0755.
    fn mkdir(&mut self, path: &str) -> Result<(), Refused> {
        done(self.call(FileCall::MakeDirectory { path: path.into(), mode: 0o755 }))
    }

    /// `rmdir`.
    fn rmdir(&mut self, path: &str) -> Result<(), Refused> {
        done(self.call(FileCall::RemoveDirectory { path: path.into() }))
    }

    /// `unlink`.
    fn unlink(&mut self, path: &str) -> Result<(), Refused> {
        done(self.call(FileCall::Unlink { path: path.into() }))
    }

    /// `rename`.
    fn rename(&mut self, from: &str, to: &str) -> Result<(), Refused> {
        done(self.call(FileCall::Rename { from: from.into(), to: to.into(), flags: 0 }))
    }

    /// `link`.
    fn link(&mut self, from: &str, to: &str) -> Result<(), Refused> {
        done(self.call(FileCall::Link { from: from.into(), to: to.into() }))
    }

    /// Names in a directory, sorted.
    fn list(&mut self, path: &str) -> Result<Vec<String>, Refused> {
        match self.call(FileCall::List { path: path.into() }) {
            CallAnswer::Names(names) => Ok(names),
            other => refused(other),
        }
    }

    /// The next entry of a directory stream.
    fn next_entry(&mut self, directory: PathHandle) -> Result<Option<DirEntrySeen>, Refused> {
        match self.call(FileCall::NextEntry { directory }) {
            CallAnswer::Entry(entry) => Ok(entry),
            other => refused(other),
        }
    }

    /// Takes or gives back a lock on the whole file, without waiting.
    fn lock(
        &mut self,
        file: PathHandle,
        kind: LockKind,
        mode: CallLockMode,
    ) -> Result<(), Refused> {
        done(self.call(FileCall::Lock { file, kind, mode, offset: 0, len: 0, wait: false }))
    }

    /// Takes an exclusive lock on the whole file, waiting for it.
    fn wait_lock(&mut self, file: PathHandle, kind: LockKind) -> Result<(), Refused> {
        let mode = CallLockMode::Exclusive;
        done(self.call(FileCall::Lock { file, kind, mode, offset: 0, len: 0, wait: true }))
    }

    /// A call that answers nothing.
    fn run(&mut self, call: FileCall) -> Result<(), Refused> {
        done(self.call(call))
    }

    /// `lseek` to data or a hole.
    fn seek(&mut self, file: PathHandle, offset: u64, whence: i32) -> Result<u64, Refused> {
        match self.call(FileCall::Seek { file, offset, whence }) {
            CallAnswer::Offset(offset) => Ok(offset),
            other => refused(other),
        }
    }
}

/// The answer of a call that answers bytes.
///
/// # Errors
/// The errno.
pub fn bytes(answer: CallAnswer) -> Result<Vec<u8>, Refused> {
    match answer {
        CallAnswer::Bytes(bytes) => Ok(bytes),
        other => refused(other),
    }
}

fn facts(answer: CallAnswer) -> Result<StatFacts, Refused> {
    match answer {
        CallAnswer::Facts(facts) => Ok(facts),
        other => refused(other),
    }
}

fn done(answer: CallAnswer) -> Result<(), Refused> {
    match answer {
        CallAnswer::Done => Ok(()),
        other => refused(other),
    }
}

fn refused<T>(answer: CallAnswer) -> Result<T, Refused> {
    match answer {
        CallAnswer::Failed(errno) => Err(errno),
        other => panic!("an access path gave the answer of another call: {other:?}"),
    }
}

/// Name of an errno, for messages.
#[must_use]
pub fn errno_text(errno: i32) -> String {
    std::io::Error::from_raw_os_error(errno).to_string()
}
