//! Opening, reading and writing.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fuser::{Errno, WriteFlags};
use samite_fs::{AllocateMode, CallerContext, OpenFlags};

use super::{FuseOperations, failed};
use crate::kernel::Answer;

const O_APPEND: i32 = 0o2000;
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;
const SET_ID_BITS: u32 = 0o6000;
/// Most bytes copied in one request, so that the caller can be interrupted between two.
const COPY_LEN_MAX: u64 = 64 << 20;

thread_local! {
    /// Where a worker reads to: touched once, used for every request.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Calls `run` with this thread's buffer, with room for `len` bytes.
pub fn read_into<T>(len: usize, run: impl FnOnce(&mut [u8]) -> T) -> T {
    BUFFER.with_borrow_mut(|buffer| {
        if buffer.len() < len {
            buffer.resize(len, 0);
        }
        run(&mut buffer[..len])
    })
}

impl FuseOperations {
    /// Opens a file or directory.
    pub fn open(&self, context: &CallerContext, ino: u64, flags: i32) -> Answer<u64> {
        let flags = OpenFlags::from_oflags(flags.cast_unsigned());
        let file = self.nodes.get(ino)?.open_again(context, flags).map_err(failed)?;
        let file = Arc::new(file);
        let handle = self.handles.add(file.clone());
        self.nodes.opened(handle, &file);
        Ok(handle)
    }

    /// Reads; fewer bytes than there is room for only at the end of the file.
    pub fn read(&self, handle: u64, buffer: &mut [u8], offset: u64) -> Answer<usize> {
        let handle = self.file(handle)?;
        let mut len = 0;
        while len < buffer.len() {
            match handle.file.read_at(&mut buffer[len..], offset + len as u64) {
                Ok(0) => break,
                Ok(more) => len += more,
                Err(_) if len > 0 => break,
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(len)
    }

    /// Writes at `offset`, or at the end of a file that is open for appending.
    pub fn write(
        &self,
        handle: u64,
        data: &[u8],
        offset: u64,
        (flags, write_flags): (i32, WriteFlags),
    ) -> Answer<usize> {
        let handle = self.file(handle)?;
        if write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID)
            && !handle.has_no_set_id.load(Ordering::Acquire)
        {
            let attr = handle.file.attr().map_err(failed)?;
            if attr.perm & SET_ID_BITS != 0 {
                // A group bit without execution is a lock mode of old, and stays.
                let kept = if attr.perm & 0o010 != 0 { 0 } else { 0o2000 };
                let perm = attr.perm & !(SET_ID_BITS & !kept);
                let context = CallerContext { is_checked: true, ..CallerContext::root() };
                handle.file.chmod(&context, perm).map_err(failed)?;
            }
            handle.has_no_set_id.store(true, Ordering::Release);
        }
        // Data from a mapping have their place.
        if flags & O_APPEND != 0 && !write_flags.contains(WriteFlags::FUSE_WRITE_CACHE) {
            return handle.file.append(data).map(|(_, len)| len).map_err(failed);
        }
        handle.file.write_at(data, offset).map_err(failed)
    }

    /// Close of one descriptor by `owner`.
    pub fn flush(&self, handle: u64, owner: u64) -> Answer<()> {
        let settled = self.settle(handle);
        let ino = self.file(handle)?.file.ino();
        self.locks.on_flush(ino, owner).and(settled)
    }

    /// The length of the written data is settled (`fsync`).
    pub fn settle(&self, handle: u64) -> Answer<()> {
        let handle = self.file(handle)?;
        if handle.file.flags().write { handle.file.fsync().map_err(failed) } else { Ok(()) }
    }

    /// Last close.
    pub fn release(&self, number: u64) -> Answer<()> {
        let handle = self.handles.remove(number)?;
        self.nodes.closed(number, handle.file.ino());
        let closed = handle.file.close().map_err(failed);
        self.locks.on_release(handle.file.ino(), number).and(closed)
    }

    /// Space, holes and zeros for a range.
    pub fn allocate(&self, handle: u64, offset: u64, len: u64, mode: i32) -> Answer<()> {
        let mode = AllocateMode::from_raw(mode.cast_unsigned()).map_err(failed)?;
        self.file(handle)?.file.allocate(mode, offset, len).map_err(failed)
    }

    /// The next data or hole at or after `offset`.
    pub fn seek(&self, handle: u64, offset: i64, whence: i32) -> Answer<i64> {
        let offset = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
        let file = &self.file(handle)?.file;
        let found = match whence {
            SEEK_DATA => file.seek_data(offset),
            SEEK_HOLE => file.seek_hole(offset),
            _ => return Err(Errno::EINVAL),
        };
        let found = found.map_err(failed)?.ok_or(Errno::ENXIO)?;
        i64::try_from(found).map_err(|_| Errno::EOVERFLOW)
    }

    /// Copies a range of one file to another; how much of it.
    pub fn copy(&self, from: (u64, u64), to: (u64, u64), len: u64) -> Answer<usize> {
        let (source, target) = (self.file(from.0)?, self.file(to.0)?);
        let len = len.min(COPY_LEN_MAX);
        let copied = self.fs.copy_range(&source.file, from.1, &target.file, to.1, len);
        Ok(copied.map_err(failed)? as usize)
    }
}
