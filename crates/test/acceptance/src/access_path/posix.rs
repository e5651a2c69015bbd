//! Through the C library: the calls of a program, preloaded or on a mount.

use std::collections::HashMap;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, FileTypeExt, MetadataExt, PermissionsExt};

use crate::access_path::AccessPath;
use crate::call::{
    CallAnswer, CallLockMode, CallSubject, DirEntrySeen, FileCall, FileKindSeen, LockKind,
    PathHandle, StatFacts,
};

/// Files below a directory, by calls of the C library. They must not be rustix's: those make system calls themselves, which the
/// preloaded library does not see.
pub struct PosixPath {
    root: String,
    files: HashMap<PathHandle, File>,
    streams: HashMap<PathHandle, PosixStream>,
    next: u32,
}

/// A directory stream.
struct PosixStream(*mut libc::DIR);

impl Drop for PosixStream {
    fn drop(&mut self) {
        // SAFETY: the stream came from opendir and is closed only here.
        unsafe { libc::closedir(self.0) };
    }
}

impl PosixPath {
    /// The files below `root`.
    #[must_use]
    pub fn new(root: &str) -> Self {
        let root = root.trim_end_matches('/').to_owned();
        Self { root, files: HashMap::new(), streams: HashMap::new(), next: 0 }
    }

    fn path(&self, path: &str) -> String {
        format!("{}{path}", self.root)
    }

    fn c_path(&self, path: &str) -> io::Result<CString> {
        CString::new(self.path(path)).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
    }

    fn file(&self, file: PathHandle) -> io::Result<&File> {
        self.files.get(&file).ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }

    fn stream(&self, stream: PathHandle) -> io::Result<*mut libc::DIR> {
        let stream = self.streams.get(&stream);
        stream.map(|stream| stream.0).ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }

    fn handle(&mut self) -> PathHandle {
        self.next += 1;
        PathHandle(self.next)
    }

    fn open_path(&mut self, path: &str, flags: i32, mode: u32) -> io::Result<CallAnswer> {
        let path = self.c_path(path)?;
        // SAFETY: the path is a C string that lives through the call.
        let fd = unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC, mode) };
        check(fd.into())?;
        // SAFETY: the descriptor is fresh, and nobody else's.
        let file = unsafe { File::from_raw_fd(fd) };
        let handle = self.handle();
        self.files.insert(handle, file);
        Ok(CallAnswer::Opened(handle))
    }

    fn on_file(&mut self, call: FileCall) -> io::Result<CallAnswer> {
        match call {
            FileCall::Close { file } => {
                let file = self.files.remove(&file).map(drop);
                let stream = self.streams.remove(&handle_of(&call)).map(drop);
                file.or(stream).ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))?;
            }
            FileCall::Read { file, offset, len } => {
                return read_all(self.file(file)?, offset, len).map(CallAnswer::Bytes);
            }
            FileCall::Write { file, offset, data } => {
                self.file(file)?.write_all_at(&data, offset)?
            }
            FileCall::Append { file, data } => {
                let written = self.file(file)?.write(&data)?;
                if written != data.len() {
                    return Err(io::Error::from_raw_os_error(libc::EIO));
                }
            }
            FileCall::FileFacts { file } => {
                return Ok(CallAnswer::Facts(facts_of(&self.file(file)?.metadata()?)));
            }
            FileCall::FileTruncate { file, len } => self.file(file)?.set_len(len)?,
            FileCall::Sync { file } => self.file(file)?.sync_all()?,
            FileCall::Allocate { file, mode, offset, len } => {
                let fd = self.file(file)?.as_raw_fd();
                // SAFETY: numbers only.
                check(unsafe { libc::fallocate(fd, mode, offset as i64, len as i64) }.into())?;
            }
            FileCall::Seek { file, offset, whence } => {
                let fd = self.file(file)?.as_raw_fd();
                // SAFETY: numbers only.
                let at = unsafe { libc::lseek(fd, offset as i64, whence) };
                return Ok(CallAnswer::Offset(check(at)? as u64));
            }
            FileCall::Lock { file, kind, mode, offset, len, wait } => {
                lock(self.file(file)?.as_raw_fd(), (kind, mode), (offset, len), wait)?;
            }
            _ => return Err(io::Error::from_raw_os_error(libc::ENOSYS)),
        }
        Ok(CallAnswer::Done)
    }

    fn on_path(&mut self, call: FileCall) -> io::Result<CallAnswer> {
        match call {
            FileCall::Open { path, flags, mode } => return self.open_path(&path, flags, mode),
            FileCall::Facts { path } => {
                return Ok(CallAnswer::Facts(facts_of(&fs::symlink_metadata(self.path(&path))?)));
            }
            FileCall::Truncate { path, len } => {
                let path = self.c_path(&path)?;
                // SAFETY: the path is a C string that lives through the call.
                check(unsafe { libc::truncate(path.as_ptr(), len as i64) }.into())?;
            }
            FileCall::MakeDirectory { path, mode } => {
                fs::DirBuilder::new().mode(mode).create(self.path(&path))?;
            }
            FileCall::RemoveDirectory { path } => fs::remove_dir(self.path(&path))?,
            FileCall::Unlink { path } => fs::remove_file(self.path(&path))?,
            FileCall::Rename { from, to, flags } => {
                let (from, to) = (self.c_path(&from)?, self.c_path(&to)?);
                let cwd = libc::AT_FDCWD;
                // SAFETY: the paths are C strings that live through the call.
                let result =
                    unsafe { libc::renameat2(cwd, from.as_ptr(), cwd, to.as_ptr(), flags) };
                check(result.into())?;
            }
            FileCall::Link { from, to } => fs::hard_link(self.path(&from), self.path(&to))?,
            FileCall::Symlink { target, path } => {
                std::os::unix::fs::symlink(target, self.path(&path))?;
            }
            FileCall::ReadLink { path } => {
                let target = fs::read_link(self.path(&path))?;
                return Ok(CallAnswer::Bytes(target.into_os_string().into_encoded_bytes()));
            }
            FileCall::Chmod { path, mode } => {
                fs::set_permissions(self.path(&path), fs::Permissions::from_mode(mode))?;
            }
            FileCall::SetTimes { path, nanoseconds } => {
                let (path, time) = (self.c_path(&path)?, timespec(nanoseconds));
                let times = [time, time];
                let flags = libc::AT_SYMLINK_NOFOLLOW;
                // SAFETY: the path is a C string and `times` an array of two; both live through the call.
                let result = unsafe {
                    libc::utimensat(libc::AT_FDCWD, path.as_ptr(), times.as_ptr(), flags)
                };
                check(result.into())?;
            }
            FileCall::SetAttribute { path, name, value } => {
                let (path, name) = (self.c_path(&path)?, c_name(&name)?);
                let value = (value.as_ptr().cast(), value.len());
                // SAFETY: path and name are C strings, and the value is as long as said; all live through the call.
                let result =
                    unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), value.0, value.1, 0) };
                check(result.into())?;
            }
            FileCall::GetAttribute { path, name } => {
                let (path, name) = (self.c_path(&path)?, c_name(&name)?);
                let mut value = vec![0u8; 64 << 10];
                let room = (value.as_mut_ptr().cast(), value.len());
                // SAFETY: path and name are C strings, and the room is as long as said; all live through the call.
                let len = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), room.0, room.1) };
                value.truncate(check(len as i64)? as usize);
                return Ok(CallAnswer::Bytes(value));
            }
            _ => return Err(io::Error::from_raw_os_error(libc::ENOSYS)),
        }
        Ok(CallAnswer::Done)
    }

    fn on_directory(&mut self, call: FileCall) -> io::Result<CallAnswer> {
        match call {
            FileCall::List { path } => {
                let entries = fs::read_dir(self.path(&path))?;
                let names = entries.map(|entry| Ok(lossy(entry?.file_name().as_encoded_bytes())));
                let mut names = names.collect::<io::Result<Vec<_>>>()?;
                names.sort_unstable();
                Ok(CallAnswer::Names(names))
            }
            FileCall::OpenDirectory { path } => {
                let path = self.c_path(&path)?;
                // SAFETY: the path is a C string that lives through the call.
                let stream = unsafe { libc::opendir(path.as_ptr()) };
                if stream.is_null() {
                    return Err(io::Error::last_os_error());
                }
                let handle = self.handle();
                self.streams.insert(handle, PosixStream(stream));
                Ok(CallAnswer::Opened(handle))
            }
            FileCall::NextEntry { directory } => {
                next_entry(self.stream(directory)?).map(CallAnswer::Entry)
            }
            FileCall::SeekDirectory { directory, position } => {
                // SAFETY: the stream is open.
                unsafe { libc::seekdir(self.stream(directory)?, position) };
                Ok(CallAnswer::Done)
            }
            _ => Err(io::Error::from_raw_os_error(libc::ENOSYS)),
        }
    }
}

impl AccessPath for PosixPath {
    fn call(&mut self, call: FileCall) -> CallAnswer {
        let answer = match call.on() {
            CallSubject::Directory => self.on_directory(call),
            CallSubject::File => self.on_file(call),
            CallSubject::Path => self.on_path(call),
        };
        answer.unwrap_or_else(|error| CallAnswer::Failed(error.raw_os_error().unwrap_or(libc::EIO)))
    }
}

fn next_entry(stream: *mut libc::DIR) -> io::Result<Option<DirEntrySeen>> {
    loop {
        // SAFETY: errno is this thread's own, and the stream is open and used by this thread only.
        let entry = unsafe {
            *libc::__errno_location() = 0;
            libc::readdir(stream)
        };
        if entry.is_null() {
            let error = io::Error::last_os_error();
            return if error.raw_os_error() == Some(0) { Ok(None) } else { Err(error) };
        }
        // SAFETY: the entry is valid until the next call on the stream, and its name ends with a zero.
        let name = unsafe { std::ffi::CStr::from_ptr((&raw const (*entry).d_name).cast()) };
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        // SAFETY: the stream is open.
        let position = unsafe { libc::telldir(stream) };
        return Ok(Some(DirEntrySeen { name: lossy(name.to_bytes()), position }));
    }
}

fn handle_of(call: &FileCall) -> PathHandle {
    match call {
        FileCall::Close { file } => *file,
        _ => PathHandle(0),
    }
}

fn read_all(file: &File, offset: u64, len: u32) -> io::Result<Vec<u8>> {
    // Not more room than the file can fill.
    let rest = file.metadata()?.len().saturating_sub(offset);
    let mut data = vec![0; rest.clamp(1 << 16, 1 << 26).min(len.into()) as usize];
    let mut filled = 0;
    while filled < data.len() {
        match file.read_at(&mut data[filled..], offset + filled as u64)? {
            0 => break,
            read => filled += read,
        }
    }
    data.truncate(filled);
    Ok(data)
}

fn lock(
    fd: i32,
    (kind, mode): (LockKind, CallLockMode),
    (offset, len): (u64, u64),
    wait: bool,
) -> io::Result<()> {
    if kind == LockKind::Flock {
        let operation = match mode {
            CallLockMode::Shared => libc::LOCK_SH,
            CallLockMode::Exclusive => libc::LOCK_EX,
            CallLockMode::Unlock => libc::LOCK_UN,
        };
        let operation = if wait { operation } else { operation | libc::LOCK_NB };
        // SAFETY: numbers only.
        check(unsafe { libc::flock(fd, operation) }.into())?;
        return Ok(());
    }
    let l_type = match mode {
        CallLockMode::Shared => libc::F_RDLCK,
        CallLockMode::Exclusive => libc::F_WRLCK,
        CallLockMode::Unlock => libc::F_UNLCK,
    };
    let range = libc::flock {
        l_type: l_type as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: offset as i64,
        l_len: len as i64,
        l_pid: 0,
    };
    let command = match (kind, wait) {
        (LockKind::Process, false) => libc::F_SETLK,
        (LockKind::Process, true) => libc::F_SETLKW,
        (_, false) => libc::F_OFD_SETLK,
        (_, true) => libc::F_OFD_SETLKW,
    };
    // SAFETY: the range lives through the call.
    check(unsafe { libc::fcntl(fd, command, &raw const range) }.into())?;
    Ok(())
}

fn facts_of(metadata: &fs::Metadata) -> StatFacts {
    let kind = metadata.file_type();
    StatFacts {
        ino: metadata.ino(),
        kind: if kind.is_file() {
            FileKindSeen::File
        } else if kind.is_dir() {
            FileKindSeen::Directory
        } else if kind.is_symlink() {
            FileKindSeen::Symlink
        } else {
            debug_assert!(kind.is_fifo() || kind.is_socket() || kind.is_char_device());
            FileKindSeen::Other
        },
        mode: metadata.mode() & 0o7777,
        links: metadata.nlink(),
        size: metadata.len(),
        blocks: metadata.blocks(),
        changed: metadata.mtime() * 1_000_000_000 + metadata.mtime_nsec(),
    }
}

fn timespec(nanoseconds: i64) -> libc::timespec {
    libc::timespec {
        tv_sec: nanoseconds.div_euclid(1_000_000_000),
        tv_nsec: nanoseconds.rem_euclid(1_000_000_000),
    }
}

fn c_name(name: &str) -> io::Result<CString> {
    CString::new(name).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

fn lossy(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

fn check(result: i64) -> io::Result<i64> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
