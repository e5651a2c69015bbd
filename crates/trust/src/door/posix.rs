//! Through the C library: what a program does, preloaded or on a mount.

use std::collections::HashMap;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, FileTypeExt, MetadataExt, PermissionsExt};

use crate::call::{Answer, Call, Entry, Facts, Handle, Kind, LockKind, LockMode, On};
use crate::door::Door;

/// Files below a directory, by calls of the C library. They must not be rustix's: those make system calls themselves, which the
/// preloaded library does not see.
pub struct Posix {
    root: String,
    files: HashMap<Handle, File>,
    streams: HashMap<Handle, Stream>,
    next: u32,
}

/// A directory stream.
struct Stream(*mut libc::DIR);

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the stream came from opendir and is closed only here.
        unsafe { libc::closedir(self.0) };
    }
}

impl Posix {
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

    fn file(&self, file: Handle) -> io::Result<&File> {
        self.files.get(&file).ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }

    fn stream(&self, stream: Handle) -> io::Result<*mut libc::DIR> {
        let stream = self.streams.get(&stream);
        stream.map(|stream| stream.0).ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }

    fn handle(&mut self) -> Handle {
        self.next += 1;
        Handle(self.next)
    }

    fn open_path(&mut self, path: &str, flags: i32, mode: u32) -> io::Result<Answer> {
        let path = self.c_path(path)?;
        // SAFETY: the path is a C string that lives through the call.
        let fd = unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC, mode) };
        check(fd.into())?;
        // SAFETY: the descriptor is fresh, and nobody else's.
        let file = unsafe { File::from_raw_fd(fd) };
        let handle = self.handle();
        self.files.insert(handle, file);
        Ok(Answer::Opened(handle))
    }

    fn on_file(&mut self, call: Call) -> io::Result<Answer> {
        match call {
            Call::Close { file } => {
                let file = self.files.remove(&file).map(drop);
                let stream = self.streams.remove(&handle_of(&call)).map(drop);
                file.or(stream).ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))?;
            }
            Call::Read { file, offset, len } => {
                return read_all(self.file(file)?, offset, len).map(Answer::Bytes);
            }
            Call::Write { file, offset, data } => self.file(file)?.write_all_at(&data, offset)?,
            Call::Append { file, data } => {
                let written = self.file(file)?.write(&data)?;
                if written != data.len() {
                    return Err(io::Error::from_raw_os_error(libc::EIO));
                }
            }
            Call::FileFacts { file } => {
                return Ok(Answer::Facts(facts_of(&self.file(file)?.metadata()?)));
            }
            Call::FileTruncate { file, len } => self.file(file)?.set_len(len)?,
            Call::Sync { file } => self.file(file)?.sync_all()?,
            Call::Allocate { file, mode, offset, len } => {
                let fd = self.file(file)?.as_raw_fd();
                // SAFETY: numbers only.
                check(unsafe { libc::fallocate(fd, mode, offset as i64, len as i64) }.into())?;
            }
            Call::Seek { file, offset, whence } => {
                let fd = self.file(file)?.as_raw_fd();
                // SAFETY: numbers only.
                let at = unsafe { libc::lseek(fd, offset as i64, whence) };
                return Ok(Answer::Offset(check(at)? as u64));
            }
            Call::Lock { file, kind, mode, offset, len, wait } => {
                lock(self.file(file)?.as_raw_fd(), (kind, mode), (offset, len), wait)?;
            }
            _ => return Err(io::Error::from_raw_os_error(libc::ENOSYS)),
        }
        Ok(Answer::Done)
    }

    fn on_path(&mut self, call: Call) -> io::Result<Answer> {
        match call {
            Call::Open { path, flags, mode } => return self.open_path(&path, flags, mode),
            Call::Facts { path } => {
                return Ok(Answer::Facts(facts_of(&fs::symlink_metadata(self.path(&path))?)));
            }
            Call::Truncate { path, len } => {
                let path = self.c_path(&path)?;
                // SAFETY: the path is a C string that lives through the call.
                check(unsafe { libc::truncate(path.as_ptr(), len as i64) }.into())?;
            }
            Call::MakeDirectory { path, mode } => {
                fs::DirBuilder::new().mode(mode).create(self.path(&path))?;
            }
            Call::RemoveDirectory { path } => fs::remove_dir(self.path(&path))?,
            Call::Unlink { path } => fs::remove_file(self.path(&path))?,
            Call::Rename { from, to, flags } => {
                let (from, to) = (self.c_path(&from)?, self.c_path(&to)?);
                let cwd = libc::AT_FDCWD;
                // SAFETY: the paths are C strings that live through the call.
                let result =
                    unsafe { libc::renameat2(cwd, from.as_ptr(), cwd, to.as_ptr(), flags) };
                check(result.into())?;
            }
            Call::Link { from, to } => fs::hard_link(self.path(&from), self.path(&to))?,
            Call::Symlink { target, path } => {
                std::os::unix::fs::symlink(target, self.path(&path))?;
            }
            Call::ReadLink { path } => {
                let target = fs::read_link(self.path(&path))?;
                return Ok(Answer::Bytes(target.into_os_string().into_encoded_bytes()));
            }
            Call::Chmod { path, mode } => {
                fs::set_permissions(self.path(&path), fs::Permissions::from_mode(mode))?;
            }
            Call::SetTimes { path, nanoseconds } => {
                let (path, time) = (self.c_path(&path)?, timespec(nanoseconds));
                let times = [time, time];
                let flags = libc::AT_SYMLINK_NOFOLLOW;
                // SAFETY: the path is a C string and `times` an array of two; both live through the call.
                let result = unsafe {
                    libc::utimensat(libc::AT_FDCWD, path.as_ptr(), times.as_ptr(), flags)
                };
                check(result.into())?;
            }
            Call::SetAttribute { path, name, value } => {
                let (path, name) = (self.c_path(&path)?, c_name(&name)?);
                let value = (value.as_ptr().cast(), value.len());
                // SAFETY: path and name are C strings, and the value is as long as said; all live through the call.
                let result =
                    unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), value.0, value.1, 0) };
                check(result.into())?;
            }
            Call::GetAttribute { path, name } => {
                let (path, name) = (self.c_path(&path)?, c_name(&name)?);
                let mut value = vec![0u8; 64 << 10];
                let room = (value.as_mut_ptr().cast(), value.len());
                // SAFETY: path and name are C strings, and the room is as long as said; all live through the call.
                let len = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), room.0, room.1) };
                value.truncate(check(len as i64)? as usize);
                return Ok(Answer::Bytes(value));
            }
            _ => return Err(io::Error::from_raw_os_error(libc::ENOSYS)),
        }
        Ok(Answer::Done)
    }

    fn on_directory(&mut self, call: Call) -> io::Result<Answer> {
        match call {
            Call::List { path } => {
                let entries = fs::read_dir(self.path(&path))?;
                let names = entries.map(|entry| Ok(lossy(entry?.file_name().as_encoded_bytes())));
                let mut names = names.collect::<io::Result<Vec<_>>>()?;
                names.sort_unstable();
                Ok(Answer::Names(names))
            }
            Call::OpenDirectory { path } => {
                let path = self.c_path(&path)?;
                // SAFETY: the path is a C string that lives through the call.
                let stream = unsafe { libc::opendir(path.as_ptr()) };
                if stream.is_null() {
                    return Err(io::Error::last_os_error());
                }
                let handle = self.handle();
                self.streams.insert(handle, Stream(stream));
                Ok(Answer::Opened(handle))
            }
            Call::NextEntry { directory } => next_entry(self.stream(directory)?).map(Answer::Entry),
            Call::SeekDirectory { directory, position } => {
                // SAFETY: the stream is open.
                unsafe { libc::seekdir(self.stream(directory)?, position) };
                Ok(Answer::Done)
            }
            _ => Err(io::Error::from_raw_os_error(libc::ENOSYS)),
        }
    }
}

impl Door for Posix {
    fn call(&mut self, call: Call) -> Answer {
        let answer = match call.on() {
            On::Directory => self.on_directory(call),
            On::File => self.on_file(call),
            On::Path => self.on_path(call),
        };
        answer.unwrap_or_else(|error| Answer::Failed(error.raw_os_error().unwrap_or(libc::EIO)))
    }
}

fn next_entry(stream: *mut libc::DIR) -> io::Result<Option<Entry>> {
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
        return Ok(Some(Entry { name: lossy(name.to_bytes()), position }));
    }
}

fn handle_of(call: &Call) -> Handle {
    match call {
        Call::Close { file } => *file,
        _ => Handle(0),
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
    (kind, mode): (LockKind, LockMode),
    (offset, len): (u64, u64),
    wait: bool,
) -> io::Result<()> {
    if kind == LockKind::Flock {
        let operation = match mode {
            LockMode::Shared => libc::LOCK_SH,
            LockMode::Exclusive => libc::LOCK_EX,
            LockMode::Unlock => libc::LOCK_UN,
        };
        let operation = if wait { operation } else { operation | libc::LOCK_NB };
        // SAFETY: numbers only.
        check(unsafe { libc::flock(fd, operation) }.into())?;
        return Ok(());
    }
    let l_type = match mode {
        LockMode::Shared => libc::F_RDLCK,
        LockMode::Exclusive => libc::F_WRLCK,
        LockMode::Unlock => libc::F_UNLCK,
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

fn facts_of(metadata: &fs::Metadata) -> Facts {
    let kind = metadata.file_type();
    Facts {
        ino: metadata.ino(),
        kind: if kind.is_file() {
            Kind::File
        } else if kind.is_dir() {
            Kind::Directory
        } else if kind.is_symlink() {
            Kind::Symlink
        } else {
            debug_assert!(kind.is_fifo() || kind.is_socket() || kind.is_char_device());
            Kind::Other
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
