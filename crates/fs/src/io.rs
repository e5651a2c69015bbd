//! Reading and writing.

use samite_client::Op;
use samite_types::{Error, ErrorKind, Result};
use samite_wire::op::{Action, Data, Guard, Operation};

use crate::chunks::{IO_LEN_MAX, Part, parts};
use crate::file::Tried;
use crate::inode::{INODE_LEN, Inode, Layout, at, data_changed};
use crate::store::{fail, malformed, words};
use crate::{FILE_LEN_MAX, FileKind, INLINE_LEN_MAX, OpenFile, Timestamp};

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
            if let Some(len) = self.read_kept(buf, offset) {
                return Ok(len);
            }
            loop {
                match self.layout() {
                    Layout::Chunked => return self.read_chunked(buf, offset),
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
            self.strip_set_id()?;
            if self.write_deferred(buf, Some(offset))?.is_some() {
                return Ok(buf.len());
            }
            loop {
                match self.layout() {
                    Layout::Chunked => {
                        if self.ensure_marked()? {
                            if self.writing.may_leave_hole(offset) {
                                self.tell_of_hole(offset)?;
                            }
                            return self.write_chunked(buf, offset);
                        }
                    }
                    Layout::Inline if end <= INLINE_LEN_MAX => {
                        if self.write_inline(buf, offset as u32)? {
                            self.writing.see_end(end);
                            return Ok(buf.len());
                        }
                    }
                    _ => self.convert(true)?,
                }
            }
        })
    }

    /// Writes at the end, atomically; returns the offset at which the bytes went.
    ///
    /// # Errors
    /// As of [`OpenFile::write_at`].
    pub fn append(&self, buf: &[u8]) -> Result<u64> {
        self.context("append", || {
            self.check_data(self.flags().write)?;
            if buf.is_empty() {
                return Ok(self.size_now()?.0);
            }
            self.strip_set_id()?;
            if let Some(offset) = self.write_deferred(buf, None)? {
                return Ok(offset);
            }
            loop {
                let offset = match self.layout() {
                    Layout::Chunked => self.append_chunked(buf)?,
                    Layout::Inline if buf.len() as u64 <= INLINE_LEN_MAX => {
                        self.append_inline(buf)?
                    }
                    _ => {
                        self.convert(false)?;
                        None
                    }
                };
                if let Some(offset) = offset {
                    return Ok(offset);
                }
            }
        })
    }

    fn check_data(&self, is_open_for: bool) -> Result<()> {
        match self.kind() {
            FileKind::Directory if is_open_for => Err(fail(ErrorKind::IsDirectory)),
            FileKind::File if is_open_for => Ok(()),
            _ => Err(fail(ErrorKind::BadDescriptor)),
        }
    }

    /// `None`: the layout is another one.
    fn read_inline(&self, layout: Layout, buf: &mut [u8], offset: u64) -> Result<Option<usize>> {
        // Beyond the limit there is nothing, but whether the file is still inline has to be asked.
        let start = offset.min(INLINE_LEN_MAX) as u32;
        let len = buf.len().min(INLINE_LEN_MAX as usize);
        let tried = self.on_inode(layout, |home, guard| {
            let get =
                Action::Get { key: &home.key, offset: INODE_LEN as u32 + start, len: len as u32 };
            let op = Operation::new(home.partition, [get]).guard(guard).reveal(INODE_LEN as u32);
            self.fs.store().run(Op::new(op).into_dest(&mut buf[..len]))
        })?;
        match tried {
            Tried::Done(results) => {
                let (_, _, len) = results.first().ok_or_else(malformed)?.value()?;
                Ok(Some(len))
            }
            _ => Ok(None),
        }
    }

    /// False: the layout is another one.
    fn write_inline(&self, buf: &[u8], offset: u32) -> Result<bool> {
        let now = Timestamp::now();
        let tried = self.on_inode(Layout::Inline, |home, guard| {
            let key = &home.key;
            let write = |offset, bytes| Action::Write { key, offset, data: Data::Inline(bytes) };
            let op = Operation::new(
                home.partition,
                [write(INODE_LEN as u32 + offset, buf), data_changed(key, now)],
            );
            self.fs.store().run(op.guard(guard).reveal(INODE_LEN as u32))
        })?;
        Ok(matches!(tried, Tried::Done(_)))
    }

    /// `None`: the layout is another one (now).
    fn append_inline(&self, buf: &[u8]) -> Result<Option<u64>> {
        let now = Timestamp::now();
        let len_max = INODE_LEN as u32 + INLINE_LEN_MAX as u32;
        let tried = self.on_inode(Layout::Inline, |home, guard| {
            let key = &home.key;
            let op = Operation::new(
                home.partition,
                [Action::Append { key, data: Data::Inline(buf), len_max }, data_changed(key, now)],
            );
            self.fs.store().run(op.guard(guard).reveal(INODE_LEN as u32))
        })?;
        match tried {
            Tried::Done(results) => {
                let (_, _, offset) = results.first().ok_or_else(malformed)?.written()?;
                Ok(Some(u64::from(offset).saturating_sub(INODE_LEN as u64)))
            }
            Tried::TooLarge => self.convert(false).map(|()| None),
            Tried::OtherLayout | Tried::Refused(_) => Ok(None),
        }
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
        // Another thread may have settled the file in the meantime: then these bytes need a mark of their own.
        self.ensure_marked()?;
        match failed {
            Some(error) if written == 0 => Err(error),
            _ => Ok(written),
        }
    }

    /// Takes the offset from the inode, atomically, then writes there.
    fn append_chunked(&self, buf: &[u8]) -> Result<Option<u64>> {
        let Some(offset) = self.take_end(buf.len() as u64)? else { return Ok(None) };
        if offset.saturating_add(buf.len() as u64) > FILE_LEN_MAX {
            self.give_back_end(offset, buf.len() as u64)?;
            return Err(fail(ErrorKind::FileTooLarge));
        }
        // One chunk after the other: a reader that finds bytes in one can count on those before.
        for part in parts(self.fs.store().chunk_len(), offset, buf.len()) {
            let start = part.start(self.fs.store().chunk_len());
            let from = (start - offset) as usize;
            let bytes = &buf[from..from + part.len];
            let (_, failed) = self.fs.store().write_chunks(self.ino(), bytes, start, None)?;
            if let Some(kind) = failed {
                self.give_back_end(offset, buf.len() as u64)?;
                return Err(Error::new(kind, words(kind)));
            }
        }
        Ok(Some(offset))
    }

    /// Moves the settled size on by `len`; returns what it was. `None`: the file is not chunked.
    fn take_end(&self, len: u64) -> Result<Option<u64>> {
        // While others write without appending, the settled size may lag behind: then it is raised first.
        let mut behind: Option<(u64, [u8; 16])> = None;
        loop {
            let now = Timestamp::now();
            let tried = self.on_inode(Layout::Chunked, |home, guard| {
                let key = &home.key;
                let mut op = Operation::new(
                    home.partition,
                    [Action::Add { key, offset: at::SIZE, delta: len }],
                )
                .guard(guard)
                .reveal(INODE_LEN as u32);
                match &behind {
                    None => {
                        op.guards.push(Guard::BytesAre { key, offset: at::MARK, bytes: &[0; 8] });
                    }
                    Some((end, state)) => {
                        op.guards.push(Guard::BytesAre { key, offset: at::CUTS, bytes: state });
                        let raise = Action::Max { key, offset: at::SIZE, value: *end };
                        op.actions.insert(0, raise);
                    }
                }
                op.actions.push(data_changed(key, now));
                self.fs.store().run(op)
            })?;
            match tried {
                Tried::Done(results) => {
                    let before = results.get(usize::from(behind.is_some()));
                    return before.ok_or_else(malformed)?.number().map(Some);
                }
                Tried::Refused(inode) => behind = self.catch_up(&inode)?,
                Tried::OtherLayout | Tried::TooLarge => return Ok(None),
            }
        }
    }

    /// What [`OpenFile::take_end`] needs to know of a file with a writing mark; `None` when the mark was this
    /// handle's, and is off now.
    fn catch_up(&self, inode: &Inode) -> Result<Option<(u64, [u8; 16])>> {
        if inode.mark == 0 {
            return Ok(None);
        }
        if self.writing.is_marked(self.fs.forks()) && self.writing.lock().token == inode.mark {
            self.settle()?;
            if inode.mark != crate::inode::MARK_SHARED {
                return Ok(None);
            }
        }
        let end = self.fs.store().data_end(self.ino())?;
        Ok(Some((end, crate::inode::cuts_and_mark(inode.cuts, inode.mark))))
    }

    /// An append failed: makes the file end where it ended, unless somebody has gone on from there.
    fn give_back_end(&self, offset: u64, len: u64) -> Result<()> {
        let (taken, before) = (offset.wrapping_add(len).to_le_bytes(), offset.to_le_bytes());
        self.on_inode(Layout::Chunked, |home, guard| {
            let key = &home.key;
            let op = Operation::new(
                home.partition,
                [Action::Write { key, offset: at::SIZE, data: Data::Inline(&before) }],
            )
            .guard(guard)
            .guard(Guard::BytesAre { key, offset: at::SIZE, bytes: &taken })
            .reveal(INODE_LEN as u32);
            self.fs.store().run(op)
        })
        .map(drop)
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

    /// Reads at most [`IO_LEN_MAX`] bytes. Only when some are missing it asks for the size: they are a hole, or beyond
    /// the end.
    fn read_piece(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let before = self.writing.seen();
        let mut parts = self.fs.store().read_chunks(self.ino(), buf, offset)?;
        let Some(missing_from) = first_missing(&parts) else { return Ok(buf.len()) };
        let (size, inode) = self.size_now()?;
        let len = buf.len().min(usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX));
        if missing_from >= len {
            return Ok(len);
        }
        // What lay beyond the end when it was read, and within it now, may have been written in between.
        if before.cuts != inode.cuts || before.size < offset + len as u64 {
            parts = self.fs.store().read_chunks(self.ino(), &mut buf[..len], offset)?;
            if has_gap(&parts) {
                // The earlier chunk may have been read before an append came, and the later one after.
                parts = self.fs.store().read_chunks(self.ino(), &mut buf[..len], offset)?;
            }
        }
        let clip = !inode.ends_open;
        let last_chunk = (size - 1) / self.fs.store().chunk_len();
        if clip
            && !inode.sparse
            && let Some(from) = first_missing(&parts).map(|from| offset + from as u64)
            && from / self.fs.store().chunk_len() < last_chunk
        {
            // No hole: an append over the end of a chunk has taken its place, and perhaps written nothing yet.
            if self.fs.store().data_end(self.ino())? <= from {
                return Ok((from - offset) as usize);
            }
            parts = self.fs.store().read_chunks(self.ino(), &mut buf[..len], offset)?;
        }
        Ok(fill_holes(&mut buf[..len], &parts, |part| {
            clip && u64::from(part.chunk_no) == last_chunk
        }))
    }
}

/// Offset in the buffer of the first byte that was not there.
fn first_missing(parts: &[(Part, usize)]) -> Option<usize> {
    let mut start = 0;
    for (part, got) in parts {
        if *got < part.len {
            return Some(start + got);
        }
        start += part.len;
    }
    None
}

/// Whether bytes are missing before some that are there.
fn has_gap(parts: &[(Part, usize)]) -> bool {
    let first_short = parts.iter().position(|(part, got)| *got < part.len);
    first_short.is_some_and(|index| parts[index + 1..].iter().any(|(_, got)| *got > 0))
}

/// Zeros what was not there, up to the end of `buf`. Returns the length of what counts: in a part that
/// `ends_with_data`, the file ends
/// where its data do (an append has taken its place, and its bytes are on their way).
fn fill_holes(
    buf: &mut [u8],
    parts: &[(Part, usize)],
    ends_with_data: impl Fn(&Part) -> bool,
) -> usize {
    let mut start = 0;
    for (part, got) in parts {
        let end = (start + part.len).min(buf.len());
        let there = (start + got).min(end);
        if there < end {
            if ends_with_data(part) {
                return there;
            }
            buf[there..end].fill(0);
        }
        start = end;
    }
    buf.len()
}
