//! Reading and writing.

use std::ops::Range;

use samite_client::ClientOperation;
use samite_types::{Error, ErrorKind, Result};
use samite_wire::op::{Action, Operation, ValueData};

use crate::files::file::InodeTry;
use crate::records::chunks::{ChunkPart, IO_LEN_MAX};
use crate::records::inode::{DataLayout, INODE_LEN, data_changed};
use crate::records::store::{fail, malformed};
use crate::{FILE_LEN_MAX, FileKind, INLINE_LEN_MAX, OpenFile, Timestamp};

/// How often a read may meet a tail that has gone into chunks since it was looked for.
const READ_TRIES_MAX: u32 = 100;

impl OpenFile {
    /// Reads at `offset`; fewer bytes than asked only at the end of the file.
    ///
    /// # Errors
    /// `BadDescriptor`: not open for reading; `IsDirectory`; `StaleHandle`.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.context("read", || {
            self.check_data(self.flags().read)?;
            if let Some(len) = self.read_deferred(buf, offset)? {
                return Ok(len);
            }
            if buf.is_empty() || offset >= FILE_LEN_MAX {
                return Ok(0);
            }
            if let Some(len) = self.read_snapshot(buf, offset) {
                return Ok(len);
            }
            loop {
                match self.layout() {
                    DataLayout::Chunked | DataLayout::Tailed | DataLayout::Spilling => {
                        return self.read_chunked(buf, offset);
                    }
                    layout => {
                        if let Some(len) = self.read_inline(layout, buf, offset)? {
                            return Ok(len);
                        }
                    }
                }
            }
        })
    }

    /// Writes at `offset`, whatever the append flag: all of `buf`, or as much as there was space for.
    ///
    /// # Errors
    /// `BadDescriptor`: not open for writing; `FileTooLarge`; `NoSpace`: nothing was written; `StaleHandle`.
    pub fn write_at(&self, buf: &[u8], offset: u64) -> Result<usize> {
        self.context("write", || {
            self.check_data(self.flags().write)?;
            let end = offset.saturating_add(buf.len() as u64);
            if end > FILE_LEN_MAX {
                return Err(fail(ErrorKind::FileTooLarge));
            }
            if buf.is_empty() {
                return Ok(0);
            }
            self.strip_known_set_id()?;
            if self.write_deferred(buf, Some(offset))?.is_some() {
                return Ok(buf.len());
            }
            let written = self.write_known(buf, offset)?;
            self.strip_set_id()?;
            Ok(written)
        })
    }

    /// Writes to a file that its node knows.
    fn write_known(&self, buf: &[u8], offset: u64) -> Result<usize> {
        let end = offset.saturating_add(buf.len() as u64);
        loop {
            match self.layout() {
                DataLayout::Chunked => {
                    if self.ensure_marked()? {
                        if self.writing.may_leave_hole(offset) {
                            self.tell_of_hole(offset)?;
                        }
                        return self.write_chunked(buf, offset);
                    }
                }
                DataLayout::Inline if end <= INLINE_LEN_MAX => {
                    if self.write_inline(buf, offset as u32)? {
                        self.writing.see_end(end);
                        return Ok(buf.len());
                    }
                }
                _ => self.convert(true)?,
            }
        }
    }

    pub(crate) fn check_data(&self, is_open_for: bool) -> Result<()> {
        match self.kind() {
            FileKind::Directory if is_open_for => Err(fail(ErrorKind::IsDirectory)),
            FileKind::File if is_open_for => Ok(()),
            _ => Err(fail(ErrorKind::BadDescriptor)),
        }
    }

    /// `None`: the layout is another one.
    fn read_inline(
        &self,
        layout: DataLayout,
        buf: &mut [u8],
        offset: u64,
    ) -> Result<Option<usize>> {
        // Beyond the limit there is nothing, but whether the file is still inline has to be asked.
        let start = offset.min(INLINE_LEN_MAX) as u32;
        let len = buf.len().min(INLINE_LEN_MAX as usize);
        let tried = self.on_inode(layout, |location, guard| {
            let get = Action::Get {
                key: &location.key,
                offset: INODE_LEN as u32 + start,
                len: len as u32,
            };
            let op =
                Operation::new(location.partition, [get]).guard(guard).reveal(INODE_LEN as u32);
            self.fs.store().run(ClientOperation::new(op).into_dest(&mut buf[..len]))
        })?;
        match tried {
            InodeTry::Done(results) => {
                let (_, _, len) = results.first().ok_or_else(malformed)?.value()?;
                Ok(Some(len))
            }
            _ => Ok(None),
        }
    }

    /// False: the layout is another one.
    fn write_inline(&self, buf: &[u8], offset: u32) -> Result<bool> {
        let now = Timestamp::now();
        let tried = self.on_inode(DataLayout::Inline, |location, guard| {
            let key = &location.key;
            let write =
                |offset, bytes| Action::Write { key, offset, data: ValueData::Inline(bytes) };
            let op = Operation::new(
                location.partition,
                [write(INODE_LEN as u32 + offset, buf), data_changed(key, now)],
            );
            self.fs.store().run(op.guard(guard).reveal(INODE_LEN as u32))
        })?;
        Ok(matches!(tried, InodeTry::Done(_)))
    }

    fn write_chunked(&self, buf: &[u8], offset: u64) -> Result<usize> {
        let mut written = 0;
        let mut failed: Option<Error> = None;
        let time = self.writing.begin(Timestamp::now());
        for piece in buf.chunks(IO_LEN_MAX) {
            let at = offset + written as u64;
            match self.fs.store().write_chunks(self.ino(), piece, at, time) {
                Ok((len, kind)) => {
                    written += len;
                    failed = kind.map(fail);
                }
                Err(error) => failed = Some(error),
            }
            if failed.is_some() {
                self.distrust_end();
                break;
            }
        }
        self.writing.reached(offset + written as u64);
        // Another thread may have settled the file in the meantime: then these bytes need a writing
        // mark of their own.
        self.ensure_marked()?;
        match failed {
            Some(error) if written == 0 => Err(error),
            _ => Ok(written),
        }
    }

    fn read_chunked(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let mut done = 0;
        for piece in buf.chunks_mut(IO_LEN_MAX) {
            let wanted = piece.len();
            let len = self.read_piece(piece, offset + done as u64)?;
            done += len;
            if len < wanted {
                break;
            }
        }
        Ok(done)
    }

    /// Reads at most [`IO_LEN_MAX`] bytes. Only when some are missing it asks for the size: they are a hole, in the tail, or
    /// beyond the end.
    fn read_piece(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        for _ in 0..READ_TRIES_MAX {
            let before = self.writing.seen();
            let mut parts = self.fs.store().read_chunks(self.ino(), buf, offset)?;
            let Some(missing_from) = first_missing(&parts) else { return Ok(buf.len()) };
            let (size, node) = self.size_now()?;
            let left = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
            let (len, tail) = (buf.len().min(left), node.tail());
            let end = offset + len as u64;
            let in_tail = offset.max(tail.start)..end.min(tail.end);
            if missing_from >= len && in_tail.is_empty() {
                return Ok(len);
            }
            // Bytes that lay beyond the end when it was read, and lie within it now, may have been
            // written in between.
            if before.cuts != node.inode.cuts || before.size < end.min(in_chunks(size, &tail)) {
                parts = self.fs.store().read_chunks(self.ino(), &mut buf[..len], offset)?;
            }
            fill_holes(&mut buf[..len], &parts);
            if in_tail.is_empty() {
                return Ok(len);
            }
            let within = (in_tail.start - offset) as usize..(in_tail.end - offset) as usize;
            if self.read_tail(&mut buf[within], in_tail.start, &node)? {
                return Ok(len);
            }
        }
        Err(fail(ErrorKind::Busy))
    }
}

/// Up to where the data of a file of this size are in chunks, but for its tail.
pub fn in_chunks(size: u64, tail: &Range<u64>) -> u64 {
    if tail.is_empty() || size > tail.end { size } else { tail.start }
}

/// Offset in the buffer of the first byte that was not there.
fn first_missing(parts: &[(ChunkPart, usize)]) -> Option<usize> {
    let mut start = 0;
    for (part, got) in parts {
        if *got < part.len {
            return Some(start + got);
        }
        start += part.len;
    }
    None
}

/// Zeros what was not there, up to the end of `buf`.
fn fill_holes(buf: &mut [u8], parts: &[(ChunkPart, usize)]) {
    let mut start = 0;
    for (part, got) in parts {
        let end = (start + part.len).min(buf.len());
        buf[(start + got).min(end)..end].fill(0);
        start = end;
    }
}
