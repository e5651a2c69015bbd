//! Through the library `samite-fs`, in this process.

use std::collections::HashMap;

use samite_client::Client;
use samite_fs::{
    AllocateMode, CallerContext, DirHandle, FileAttributes, FileKind, FileLocks, FileSystem,
    LOCK_LAST, LockPlace, LockRange, LockSpace, OpenFile, OpenFlags, RelativePath, RenameFlags,
    SetTime, Timestamp, WantedLock, XattrFlags, XattrSubject,
};
use samite_types::{Error, ErrorKind, Result};

use crate::access_path::AccessPath;
use crate::call::{
    CallAnswer, CallLockMode, CallSubject, DirEntrySeen, FileCall, FileKindSeen, LockKind,
    PathHandle, StatFacts,
};

/// Name of the dataset that the store's files are in.
pub const DATASET: &str = "files";

/// The store's files, as root.
pub struct LibraryPath {
    fs: FileSystem,
    ctx: CallerContext,
    files: HashMap<PathHandle, OpenFile>,
    streams: HashMap<PathHandle, DirHandle>,
    /// Locks of this process, and of each open file.
    locks: FileLocks,
    /// Where any were asked for.
    locked: Vec<LockPlace>,
    next: u32,
}

impl LibraryPath {
    /// Opens them.
    ///
    /// # Errors
    /// As of [`FileSystem::open`].
    pub fn open(client: &Client) -> Result<Self> {
        let fs = FileSystem::open(client, DATASET)?;
        Ok(Self {
            locks: fs.locks(),
            locked: Vec::new(),
            fs,
            ctx: CallerContext { umask: 0o022, ..CallerContext::root() },
            files: HashMap::new(),
            streams: HashMap::new(),
            next: 0,
        })
    }

    fn file(&self, file: PathHandle) -> Result<&OpenFile> {
        self.files.get(&file).ok_or_else(bad_handle)
    }

    fn stream(&mut self, stream: PathHandle) -> Result<&mut DirHandle> {
        self.streams.get_mut(&stream).ok_or_else(bad_handle)
    }

    fn handle(&mut self) -> PathHandle {
        self.next += 1;
        PathHandle(self.next)
    }

    fn on_file(&mut self, call: FileCall) -> Result<CallAnswer> {
        match call {
            FileCall::Close { file } => {
                if self.streams.remove(&file).is_some() {
                    return Ok(CallAnswer::Done);
                }
                let open = self.files.remove(&file).ok_or_else(bad_handle)?;
                self.release(file, &open)?;
                open.close()?;
            }
            FileCall::Read { file, offset, len } => {
                return read_all(self.file(file)?, offset, len).map(CallAnswer::Bytes);
            }
            FileCall::Write { file, offset, data } => write_all(self.file(file)?, offset, &data)?,
            FileCall::Append { file, data } => {
                let (_, len) = self.file(file)?.append(&data)?;
                if len < data.len() {
                    return Err(ErrorKind::NoSpace.into());
                }
            }
            FileCall::FileFacts { file } => {
                return Ok(CallAnswer::Facts(facts_of(&self.file(file)?.attr()?)));
            }
            FileCall::FileTruncate { file, len } => self.file(file)?.truncate(len)?,
            FileCall::Sync { file } => self.file(file)?.fsync()?,
            FileCall::Allocate { file, mode, offset, len } => {
                let mode = AllocateMode::from_raw(mode.cast_unsigned())?;
                self.file(file)?.allocate(mode, offset, len)?;
            }
            FileCall::Seek { file, offset, whence } => {
                let file = self.file(file)?;
                let found = match whence {
                    libc::SEEK_DATA => file.seek_data(offset)?,
                    _ => file.seek_hole(offset)?,
                };
                // The only kind whose errno is ENXIO is not among ours: a number says it.
                return Ok(found.map_or(CallAnswer::Failed(libc::ENXIO), CallAnswer::Offset));
            }
            FileCall::Lock { file, kind, mode, offset, len, wait } => {
                let last = offset + len;
                let last = if len == 0 { LOCK_LAST } else { last - 1 };
                return self.lock_range(
                    file,
                    (kind, mode),
                    LockRange { start: offset, last },
                    wait,
                );
            }
            _ => return Err(Error::new(ErrorKind::Unsupported, "no call on a file")),
        }
        Ok(CallAnswer::Done)
    }

    fn lock_range(
        &mut self,
        file: PathHandle,
        (kind, mode): (LockKind, CallLockMode),
        range: LockRange,
        wait: bool,
    ) -> Result<CallAnswer> {
        let place = place(file, self.file(file)?, kind);
        let mode = match mode {
            CallLockMode::Unlock => {
                self.locks.unlock(place, range)?;
                return Ok(CallAnswer::Done);
            }
            CallLockMode::Shared => samite_fs::LockMode::Shared,
            CallLockMode::Exclusive => samite_fs::LockMode::Exclusive,
        };
        let wanted = WantedLock { range, mode, pid: 0, detects_deadlock: false };
        if !self.locked.contains(&place) {
            self.locked.push(place);
        }
        if wait {
            self.locks.lock(place, wanted, &|| false)?;
            return Ok(CallAnswer::Done);
        }
        let found = self.locks.try_lock(place, wanted)?;
        Ok(if found.is_some() { CallAnswer::Failed(libc::EAGAIN) } else { CallAnswer::Done })
    }

    /// The effect of a close on locks.
    fn release(&mut self, file: PathHandle, open: &OpenFile) -> Result<()> {
        let kinds = [LockKind::Flock, LockKind::Process, LockKind::OpenFile];
        let ends = kinds.map(|kind| place(file, open, kind));
        let (ended, left): (Vec<_>, Vec<_>) =
            self.locked.drain(..).partition(|place| ends.contains(place));
        self.locked = left;
        ended.into_iter().try_for_each(|place| self.locks.unlock(place, LockRange::WHOLE))
    }

    fn on_path(&mut self, call: FileCall) -> Result<CallAnswer> {
        let (fs, ctx) = (&self.fs, &self.ctx);
        match call {
            FileCall::Open { path, flags, mode } => {
                let flags = OpenFlags::from_oflags(flags.cast_unsigned());
                let file = fs.open_file(ctx, &*path, flags, mode)?;
                let handle = self.handle();
                self.files.insert(handle, file);
                return Ok(CallAnswer::Opened(handle));
            }
            FileCall::Facts { path } => {
                return Ok(CallAnswer::Facts(facts_of(&fs.stat(ctx, &*path, false)?)));
            }
            FileCall::Truncate { path, len } => fs.truncate(ctx, &*path, len)?,
            FileCall::MakeDirectory { path, mode } => fs.mkdir(ctx, &*path, mode)?,
            FileCall::RemoveDirectory { path } => fs.rmdir(ctx, &*path)?,
            FileCall::Unlink { path } => fs.unlink(ctx, &*path)?,
            FileCall::Rename { from, to, flags } => {
                let flags = RenameFlags {
                    no_replace: flags & libc::RENAME_NOREPLACE != 0,
                    exchange: flags & libc::RENAME_EXCHANGE != 0,
                    whiteout: flags & libc::RENAME_WHITEOUT != 0,
                };
                fs.rename(ctx, &*from, &*to, flags)?;
            }
            FileCall::Link { from, to } => drop(fs.link(ctx, &*from, &*to, false)?),
            FileCall::Symlink { target, path } => fs.symlink(ctx, target.as_bytes(), &*path)?,
            FileCall::ReadLink { path } => return fs.readlink(ctx, &*path).map(CallAnswer::Bytes),
            FileCall::Chmod { path, mode } => fs.chmod(ctx, &*path, mode, false)?,
            FileCall::SetTimes { path, nanoseconds } => {
                let time = SetTime::To(Timestamp(nanoseconds));
                fs.utimens(ctx, &*path, time, time, false)?;
            }
            FileCall::SetAttribute { path, name, value } => {
                let file = XattrSubject::Path(RelativePath::from(&*path), true);
                fs.set_xattr(ctx, &file, name.as_bytes(), &value, XattrFlags::default())?;
            }
            FileCall::GetAttribute { path, name } => {
                let file = XattrSubject::Path(RelativePath::from(&*path), true);
                return fs.get_xattr(ctx, &file, name.as_bytes()).map(CallAnswer::Bytes);
            }
            _ => return Err(Error::new(ErrorKind::Unsupported, "no call on a path")),
        }
        Ok(CallAnswer::Done)
    }

    fn on_directory(&mut self, call: FileCall) -> Result<CallAnswer> {
        match call {
            FileCall::List { path } => {
                let mut listing = self.fs.read_dir(&self.ctx, &*path)?;
                let mut names = Vec::new();
                while let Some(entry) = next_entry(&mut listing)? {
                    names.push(entry.name);
                }
                names.sort_unstable();
                Ok(CallAnswer::Names(names))
            }
            FileCall::OpenDirectory { path } => {
                let listing = self.fs.read_dir(&self.ctx, &*path)?;
                let handle = self.handle();
                self.streams.insert(handle, listing);
                Ok(CallAnswer::Opened(handle))
            }
            FileCall::NextEntry { directory } => {
                next_entry(self.stream(directory)?).map(CallAnswer::Entry)
            }
            FileCall::SeekDirectory { directory, position } => {
                self.stream(directory)?.seek(position.cast_unsigned())?;
                Ok(CallAnswer::Done)
            }
            _ => Err(Error::new(ErrorKind::Unsupported, "no call on a directory")),
        }
    }
}

impl AccessPath for LibraryPath {
    fn call(&mut self, call: FileCall) -> CallAnswer {
        let answer = match call.on() {
            CallSubject::Directory => self.on_directory(call),
            CallSubject::File => self.on_file(call),
            CallSubject::Path => self.on_path(call),
        };
        answer.unwrap_or_else(|error| CallAnswer::Failed(error.kind().errno().raw_os_error()))
    }
}

/// Locks of the process have one owner; others one for each open file. Owner 0 is the process.
fn place(file: PathHandle, open: &OpenFile, kind: LockKind) -> LockPlace {
    let space = if kind == LockKind::Flock { LockSpace::Whole } else { LockSpace::Ranges };
    let token = if kind == LockKind::Process { 0 } else { file.0.into() };
    LockPlace { ino: open.ino(), space, token }
}

fn next_entry(listing: &mut DirHandle) -> Result<Option<DirEntrySeen>> {
    while let Some(entry) = listing.next_entry()? {
        if !matches!(&*entry.name, b"." | b"..") {
            return Ok(Some(DirEntrySeen {
                name: String::from_utf8_lossy(&entry.name).into_owned(),
                position: entry.cookie.cast_signed(),
            }));
        }
    }
    Ok(None)
}

fn read_all(file: &OpenFile, offset: u64, len: u32) -> Result<Vec<u8>> {
    let rest = file.attr()?.size.saturating_sub(offset);
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

fn write_all(file: &OpenFile, offset: u64, data: &[u8]) -> Result<()> {
    let mut written = 0;
    while written < data.len() {
        written += file.write_at(&data[written..], offset + written as u64)?;
    }
    Ok(())
}

fn facts_of(attr: &FileAttributes) -> StatFacts {
    StatFacts {
        ino: attr.ino,
        kind: match attr.kind {
            FileKind::File => FileKindSeen::File,
            FileKind::Directory => FileKindSeen::Directory,
            FileKind::Symlink => FileKindSeen::Symlink,
            _ => FileKindSeen::Other,
        },
        mode: attr.perm,
        links: attr.nlink.into(),
        size: attr.size,
        blocks: attr.blocks,
        changed: attr.mtime.0,
    }
}

fn bad_handle() -> Error {
    Error::new(ErrorKind::BadDescriptor, "no such handle")
}
