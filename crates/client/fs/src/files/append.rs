//! Appending: place and data in one operation, so that an append is there whole or not at all,
//! whichever process dies.
//!
//! Bytes that are appended to a chunked file go into its *tail*: the bytes after the inode, in the
//! same record. Its place is where the tail ends, and the file is longer by it at the same instant.
//! A tail that has no room for more *spills* (`tail.rs`): it is frozen, written into chunks, and
//! dropped as the settled size moves over it. A large tail spills as soon as it is in; the rest of
//! an append that is larger than a record follows in pieces, while the file stays frozen for
//! others.
//!
//! While a handle writes elsewhere in the file, it does so without asking the inode (the writing mark): a tail that is
//! begun then spills before the append returns.

use samite_client::OwnedResult;
use samite_types::{ErrorKind, Result};
use samite_wire::limits::RECORD_LEN_MAX;
use samite_wire::op::{Action, Guard, List, Operation, ValueData};

use crate::files::file::InodeTry;
use crate::records::inode::{
    DataLayout, INODE_LEN, Inode, MARK_SHARED, at, cuts_and_mark, data_changed,
};
use crate::records::store::{fail, malformed};
use crate::{FILE_LEN_MAX, INLINE_LEN_MAX, OpenFile, Timestamp};

/// Most bytes that a tail is left with, to grow on.
const TAIL_LEN_MAX: usize = 256 << 10;

/// Most bytes that one operation appends: those of a record but for the inode.
const APPEND_LEN_MAX: usize = RECORD_LEN_MAX - INODE_LEN;

impl OpenFile {
    /// Writes at the end, atomically; returns the offset at which the bytes went, and how many did: all of `buf`. Of more than a
    /// record holds (1 MiB less 128 bytes) it may be a beginning: when there is no space for the rest, or when this writer stood
    /// still half-way and others have appended meanwhile. A process that is killed leaves all or nothing of up to that length,
    /// and perhaps a beginning of more.
    ///
    /// # Errors
    /// As of [`OpenFile::write_at`].
    pub fn append(&self, buf: &[u8]) -> Result<(u64, usize)> {
        self.context("append", || {
            self.check_data(self.flags().write)?;
            if buf.is_empty() {
                return Ok((self.size_now()?.0, 0));
            }
            self.strip_known_set_id()?;
            if let Some(offset) = self.write_deferred(buf, None)? {
                return Ok((offset, buf.len()));
            }
            let appended = self.append_known(buf)?;
            self.strip_set_id()?;
            Ok(appended)
        })
    }

    /// Appends to a file that its node knows.
    fn append_known(&self, buf: &[u8]) -> Result<(u64, usize)> {
        loop {
            let appended = match self.layout() {
                DataLayout::Chunked => self.append_first(buf)?,
                DataLayout::Tailed => self.append_to_tail(buf)?,
                DataLayout::Inline if buf.len() as u64 <= INLINE_LEN_MAX => {
                    self.append_inline(buf)?
                }
                _ => {
                    self.convert(false)?;
                    None
                }
            };
            if let Some(appended) = appended {
                return Ok(appended);
            }
        }
    }

    /// `None`: the layout is another one (now).
    fn append_inline(&self, buf: &[u8]) -> Result<Option<(u64, usize)>> {
        let now = Timestamp::now();
        let len_max = INODE_LEN as u32 + INLINE_LEN_MAX as u32;
        let tried = self.on_inode(DataLayout::Inline, |location, guard| {
            let key = &location.key;
            let op = Operation::new(
                location.partition,
                [
                    Action::Append { key, data: ValueData::Inline(buf), len_max },
                    data_changed(key, now),
                ],
            );
            self.fs.store().run(op.guard(guard).reveal(INODE_LEN as u32))
        })?;
        match tried {
            InodeTry::Done(results) => {
                let (_, _, offset) = results.first().ok_or_else(malformed)?.written()?;
                Ok(Some((u64::from(offset).saturating_sub(INODE_LEN as u64), buf.len())))
            }
            InodeTry::TooLarge => self.convert(false).map(|()| None),
            InodeTry::OtherLayout | InodeTry::Refused(_) => Ok(None),
        }
    }

    /// Appends to what a tail holds already. `None`: there is no room for more, or the layout is another one (now).
    fn append_to_tail(&self, buf: &[u8]) -> Result<Option<(u64, usize)>> {
        if buf.len() > TAIL_LEN_MAX {
            return self.spill().map(|()| None);
        }
        let now = Timestamp::now();
        let len_max = (INODE_LEN + TAIL_LEN_MAX) as u32;
        let tried = self.on_inode(DataLayout::Tailed, |location, guard| {
            let key = &location.key;
            let op = Operation::new(
                location.partition,
                [
                    // Raises nothing: tells where the tail begins.
                    Action::Max { key, offset: at::SIZE, value: 0 },
                    Action::Append { key, data: ValueData::Inline(buf), len_max },
                    data_changed(key, now),
                ],
            )
            .guard(guard)
            .guard(Guard::BytesAre { key, offset: at::MARK, bytes: &[0; 8] });
            self.fs.store().run(op.reveal(INODE_LEN as u32))
        })?;
        match tried {
            InodeTry::Done(results) => {
                let (offset, len) = self.appended(&results, 0, buf.len())?;
                if len < buf.len() {
                    // Bytes beyond the limit go as the tail does.
                    self.spill()?;
                }
                Ok(Some((offset, len)))
            }
            InodeTry::TooLarge | InodeTry::Refused(_) => self.spill().map(|()| None),
            InodeTry::OtherLayout => Ok(None),
        }
    }

    /// Begins a tail. `None`: the layout is another one (now).
    fn append_first(&self, buf: &[u8]) -> Result<Option<(u64, usize)>> {
        let piece = &buf[..buf.len().min(APPEND_LEN_MAX)];
        // While others write without appending, the settled size may lag behind: then it is raised first.
        let mut behind: Option<(u64, [u8; 16])> = None;
        loop {
            let (end, is_marked) = (behind.map_or(0, |(end, _)| end), behind.is_some());
            let spills = is_marked || piece.len() > TAIL_LEN_MAX;
            let layout = [if spills { DataLayout::Spilling } else { DataLayout::Tailed } as u8];
            let now = Timestamp::now();
            let tried = self.on_inode(DataLayout::Chunked, |location, guard| {
                let key = &location.key;
                let (offset, bytes): (u32, &[u8]) = match &behind {
                    None => (at::MARK, &[0; 8]),
                    Some((_, state)) => (at::CUTS, state),
                };
                let len_max = RECORD_LEN_MAX as u32;
                let mut op = Operation::new(
                    location.partition,
                    [
                        Action::Max { key, offset: at::SIZE, value: end },
                        Action::Append { key, data: ValueData::Inline(piece), len_max },
                        Action::Write { key, offset: at::LAYOUT, data: ValueData::Inline(&layout) },
                        data_changed(key, now),
                    ],
                )
                .guard(guard)
                .guard(Guard::BytesAre { key, offset, bytes });
                if spills {
                    // Raises nothing: tells whether somebody has taken over a spill before.
                    op.actions.push(Action::Max { key, offset: at::SPILLER, value: 0 });
                }
                self.fs.store().run(op.reveal(INODE_LEN as u32))
            })?;
            match tried {
                InodeTry::Done(results) => {
                    self.set_layout(if spills { DataLayout::Spilling } else { DataLayout::Tailed });
                    let (offset, len) = self.appended(&results, end, piece.len())?;
                    if !spills {
                        return Ok(Some((offset, len)));
                    }
                    let buf = if len < piece.len() { &buf[..len] } else { buf };
                    let spiller = results.get(4).ok_or_else(malformed)?.number()?;
                    let spilled = self.spill_own(buf, len, offset, (spiller, is_marked));
                    return Ok(Some((offset, spilled)));
                }
                InodeTry::Refused(inode) => behind = self.catch_up(&inode)?,
                InodeTry::OtherLayout | InodeTry::TooLarge => return Ok(None),
            }
        }
    }

    /// Where in the file `len` bytes are that went into the tail, and how many of them, by the results of the operation: the
    /// settled size, which is at least `end`, and the append.
    ///
    /// # Errors
    /// `FileTooLarge`: none; the tail goes to where there is space in the file.
    fn appended(
        &self,
        results: &List<OwnedResult, 2>,
        end: u64,
        len: usize,
    ) -> Result<(u64, usize)> {
        let settled = results.first().ok_or_else(malformed)?.number()?.max(end);
        let (_, _, at) = results.get(1).ok_or_else(malformed)?.written()?;
        let offset = settled.saturating_add(u64::from(at).saturating_sub(INODE_LEN as u64));
        let len = FILE_LEN_MAX.saturating_sub(offset).min(len as u64) as usize;
        if len == 0 {
            self.convert(false)?;
            return Err(fail(ErrorKind::FileTooLarge));
        }
        Ok((offset, len))
    }

    /// The facts that [`OpenFile::append_first`] needs of a file with a writing mark: where its
    /// data end, and the bytes at [`at::CUTS`]. `None` when the mark was this handle's, and is off
    /// now.
    fn catch_up(&self, inode: &Inode) -> Result<Option<(u64, [u8; 16])>> {
        if inode.mark == 0 {
            return Ok(None);
        }
        if self.writing.is_marked(self.fs.forks()) && self.writing.lock().token == inode.mark {
            self.settle()?;
            if inode.mark != MARK_SHARED {
                return Ok(None);
            }
        }
        let end = self.fs.store().data_end(self.ino())?;
        Ok(Some((end, cuts_and_mark(inode.cuts, inode.mark))))
    }

    /// Spills the first `in_tail` bytes of `buf`, which are all that is in the tail, from `offset` on; then those that follow, piece
    /// by piece. Returns how many bytes of `buf` are in the file.
    fn spill_own(
        &self,
        buf: &[u8],
        in_tail: usize,
        offset: u64,
        (mut spiller, is_marked): (u64, bool),
    ) -> usize {
        let store = self.fs.store();
        let (mut from, mut end) = (0, in_tail);
        loop {
            if spiller != 0 {
                let Ok(Some(spill)) = self.seize(spiller) else { return end };
                spiller = spill.spiller;
            }
            let (piece, start) = (&buf[from..end], offset + from as u64);
            // With a mark others may have written behind it meanwhile, which says nothing of this place.
            let placed = store.spill_chunks(self.ino(), piece, start, spiller, is_marked);
            // The bytes in the tail have been appended, also while there is no space for it in
            // chunks.
            if !matches!(placed, Ok(true)) {
                return end;
            }
            let next = &buf[end..buf.len().min(end + APPEND_LEN_MAX)];
            match self.drop_tail(spiller, start, end - from, next) {
                Ok(true) if !next.is_empty() => (from, end) = (end, end + next.len()),
                Err(error) if error.kind() == ErrorKind::NoSpace && !next.is_empty() => {
                    // A failure shows in the next use of the file.
                    let _ = self.drop_tail(spiller, start, end - from, &[]);
                    return end;
                }
                // Somebody else has gone on, after the file stood still for long.
                _ => return end,
            }
        }
    }
}
