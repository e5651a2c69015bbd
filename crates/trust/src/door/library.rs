//! Through the library `samite-fs`, in this process.

use std::collections::HashMap;

use samite_client::Client;
use samite_fs::{
    AllocateMode, At, Attr, Context, DirHandle, FileKind, FileLocks, FileSystem, LOCK_LAST,
    LockPlace, LockRange, LockSpace, OpenFile, OpenFlags, RenameFlags, SetTime, Subject, Timestamp,
    WantedLock, XattrFlags,
};
use samite_types::{Error, ErrorKind, Result};

use crate::call::{Answer, Call, Entry, Facts, Handle, Kind, LockKind, LockMode, On};
use crate::door::Door;

/// Name of the dataset that the store's files are in.
pub const DATASET: &str = "files";

/// The store's files, as root.
pub struct Library {
    fs: FileSystem,
    ctx: Context,
    files: HashMap<Handle, OpenFile>,
    streams: HashMap<Handle, DirHandle>,
    /// Locks of this process, and of each open file.
    locks: FileLocks,
    /// Where any were asked for.
    locked: Vec<LockPlace>,
    next: u32,
}

impl Library {
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
            ctx: Context { umask: 0o022, ..Context::root() },
            files: HashMap::new(),
            streams: HashMap::new(),
            next: 0,
        })
    }

    fn file(&self, file: Handle) -> Result<&OpenFile> {
        self.files.get(&file).ok_or_else(bad_handle)
    }

    fn stream(&mut self, stream: Handle) -> Result<&mut DirHandle> {
        self.streams.get_mut(&stream).ok_or_else(bad_handle)
    }

    fn handle(&mut self) -> Handle {
        self.next += 1;
        Handle(self.next)
    }

    fn on_file(&mut self, call: Call) -> Result<Answer> {
        match call {
            Call::Close { file } => {
                if self.streams.remove(&file).is_some() {
                    return Ok(Answer::Done);
                }
                let open = self.files.remove(&file).ok_or_else(bad_handle)?;
                self.release(file, &open)?;
                open.close()?;
            }
            Call::Read { file, offset, len } => {
                return read_all(self.file(file)?, offset, len).map(Answer::Bytes);
            }
            Call::Write { file, offset, data } => write_all(self.file(file)?, offset, &data)?,
            Call::Append { file, data } => {
                let (_, len) = self.file(file)?.append(&data)?;
                if len < data.len() {
                    return Err(ErrorKind::NoSpace.into());
                }
            }
            Call::FileFacts { file } => {
                return Ok(Answer::Facts(facts_of(&self.file(file)?.attr()?)));
            }
            Call::FileTruncate { file, len } => self.file(file)?.truncate(len)?,
            Call::Sync { file } => self.file(file)?.fsync()?,
            Call::Allocate { file, mode, offset, len } => {
                let mode = AllocateMode::from_raw(mode.cast_unsigned())?;
                self.file(file)?.allocate(mode, offset, len)?;
            }
            Call::Seek { file, offset, whence } => {
                let file = self.file(file)?;
                let found = match whence {
                    libc::SEEK_DATA => file.seek_data(offset)?,
                    _ => file.seek_hole(offset)?,
                };
                // The only kind whose errno is ENXIO is not among ours: a number says it.
                return Ok(found.map_or(Answer::Failed(libc::ENXIO), Answer::Offset));
            }
            Call::Lock { file, kind, mode, offset, len, wait } => {
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
        Ok(Answer::Done)
    }

    fn lock_range(
        &mut self,
        file: Handle,
        (kind, mode): (LockKind, LockMode),
        range: LockRange,
        wait: bool,
    ) -> Result<Answer> {
        let place = place(file, self.file(file)?, kind);
        let mode = match mode {
            LockMode::Unlock => {
                self.locks.unlock(place, range)?;
                return Ok(Answer::Done);
            }
            LockMode::Shared => samite_fs::LockMode::Shared,
            LockMode::Exclusive => samite_fs::LockMode::Exclusive,
        };
        let wanted = WantedLock { range, mode, pid: 0, detects_deadlock: false };
        if !self.locked.contains(&place) {
            self.locked.push(place);
        }
        if wait {
            self.locks.lock(place, wanted, &|| false)?;
            return Ok(Answer::Done);
        }
        let found = self.locks.try_lock(place, wanted)?;
        Ok(if found.is_some() { Answer::Failed(libc::EAGAIN) } else { Answer::Done })
    }

    /// What a close does to locks.
    fn release(&mut self, file: Handle, open: &OpenFile) -> Result<()> {
        let kinds = [LockKind::Flock, LockKind::Process, LockKind::OpenFile];
        let ends = kinds.map(|kind| place(file, open, kind));
        let (ended, left): (Vec<_>, Vec<_>) =
            self.locked.drain(..).partition(|place| ends.contains(place));
        self.locked = left;
        ended.into_iter().try_for_each(|place| self.locks.unlock(place, LockRange::WHOLE))
    }

    fn on_path(&mut self, call: Call) -> Result<Answer> {
        let (fs, ctx) = (&self.fs, &self.ctx);
        match call {
            Call::Open { path, flags, mode } => {
                let flags = OpenFlags::from_oflags(flags.cast_unsigned());
                let file = fs.open_file(ctx, &*path, flags, mode)?;
                let handle = self.handle();
                self.files.insert(handle, file);
                return Ok(Answer::Opened(handle));
            }
            Call::Facts { path } => {
                return Ok(Answer::Facts(facts_of(&fs.stat(ctx, &*path, false)?)));
            }
            Call::Truncate { path, len } => fs.truncate(ctx, &*path, len)?,
            Call::MakeDirectory { path, mode } => fs.mkdir(ctx, &*path, mode)?,
            Call::RemoveDirectory { path } => fs.rmdir(ctx, &*path)?,
            Call::Unlink { path } => fs.unlink(ctx, &*path)?,
            Call::Rename { from, to, flags } => {
                let flags = RenameFlags {
                    no_replace: flags & libc::RENAME_NOREPLACE != 0,
                    exchange: flags & libc::RENAME_EXCHANGE != 0,
                    whiteout: flags & libc::RENAME_WHITEOUT != 0,
                };
                fs.rename(ctx, &*from, &*to, flags)?;
            }
            Call::Link { from, to } => drop(fs.link(ctx, &*from, &*to, false)?),
            Call::Symlink { target, path } => fs.symlink(ctx, target.as_bytes(), &*path)?,
            Call::ReadLink { path } => return fs.readlink(ctx, &*path).map(Answer::Bytes),
            Call::Chmod { path, mode } => fs.chmod(ctx, &*path, mode, false)?,
            Call::SetTimes { path, nanoseconds } => {
                let time = SetTime::To(Timestamp(nanoseconds));
                fs.utimens(ctx, &*path, time, time, false)?;
            }
            Call::SetAttribute { path, name, value } => {
                let file = Subject::Path(At::from(&*path), true);
                fs.set_xattr(ctx, &file, name.as_bytes(), &value, XattrFlags::default())?;
            }
            Call::GetAttribute { path, name } => {
                let file = Subject::Path(At::from(&*path), true);
                return fs.get_xattr(ctx, &file, name.as_bytes()).map(Answer::Bytes);
            }
            _ => return Err(Error::new(ErrorKind::Unsupported, "no call on a path")),
        }
        Ok(Answer::Done)
    }

    fn on_directory(&mut self, call: Call) -> Result<Answer> {
        match call {
            Call::List { path } => {
                let mut listing = self.fs.read_dir(&self.ctx, &*path)?;
                let mut names = Vec::new();
                while let Some(entry) = next_entry(&mut listing)? {
                    names.push(entry.name);
                }
                names.sort_unstable();
                Ok(Answer::Names(names))
            }
            Call::OpenDirectory { path } => {
                let listing = self.fs.read_dir(&self.ctx, &*path)?;
                let handle = self.handle();
                self.streams.insert(handle, listing);
                Ok(Answer::Opened(handle))
            }
            Call::NextEntry { directory } => next_entry(self.stream(directory)?).map(Answer::Entry),
            Call::SeekDirectory { directory, position } => {
                self.stream(directory)?.seek(position.cast_unsigned())?;
                Ok(Answer::Done)
            }
            _ => Err(Error::new(ErrorKind::Unsupported, "no call on a directory")),
        }
    }
}

impl Door for Library {
    fn call(&mut self, call: Call) -> Answer {
        let answer = match call.on() {
            On::Directory => self.on_directory(call),
            On::File => self.on_file(call),
            On::Path => self.on_path(call),
        };
        answer.unwrap_or_else(|error| Answer::Failed(error.kind().errno().raw_os_error()))
    }
}

/// Locks of the process have one owner; others one for each open file. Owner 0 is the process.
fn place(file: Handle, open: &OpenFile, kind: LockKind) -> LockPlace {
    let space = if kind == LockKind::Flock { LockSpace::Whole } else { LockSpace::Ranges };
    let token = if kind == LockKind::Process { 0 } else { file.0.into() };
    LockPlace { ino: open.ino(), space, token }
}

fn next_entry(listing: &mut DirHandle) -> Result<Option<Entry>> {
    while let Some(entry) = listing.next_entry()? {
        if !matches!(&*entry.name, b"." | b"..") {
            return Ok(Some(Entry {
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

fn facts_of(attr: &Attr) -> Facts {
    Facts {
        ino: attr.ino,
        kind: match attr.kind {
            FileKind::File => Kind::File,
            FileKind::Directory => Kind::Directory,
            FileKind::Symlink => Kind::Symlink,
            _ => Kind::Other,
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
