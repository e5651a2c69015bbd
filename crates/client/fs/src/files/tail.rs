//! The tail of a file: reading what was appended there, cutting it, and spilling it into chunks.
//!
//! A tail is spilled by the handle that froze it, or by the handle that has taken that over last
//! and left a token in the inode. No other handle ends the spilling, and bytes of it that others
//! still write into chunks are refused there ([`Store::fence`](crate::records::store::RecordStoreView)).

use std::time::Duration;

use samite_client::{ClientOperation, OwnedResult};
use samite_types::{Deadline, ErrorKind, Result};
use samite_wire::op::{Action, Guard, List, Operation, ValueData};

use crate::files::file::InodeTry;
use crate::records::inode::{DataLayout, INODE_LEN, Inode, at, data_changed};
use crate::records::moving::pause;
use crate::records::store::{FoundInode, malformed, only};
use crate::{FILE_LEN_MAX, OpenFile, Timestamp};

const SPILLING: &[u8] = &[DataLayout::Spilling as u8];
const CHUNKED: &[u8] = &[DataLayout::Chunked as u8];

/// How long a spilling file may stand still before others take over.
const PATIENCE: Duration = Duration::from_millis(500);

/// A tail, as found by the handle that is to spill or cut it.
pub struct TailSpill {
    /// Where it begins in the file.
    pub start: u64,
    pub cuts: u64,
    /// The handle that has taken over its spilling, 0 for none: then it is for the handle that
    /// froze it.
    pub spiller: u64,
    pub tail: Vec<u8>,
}

impl OpenFile {
    /// Moves the tail into chunks.
    ///
    /// # Errors
    /// `NoSpace`: the file stays as it is, to be read, and appended to by nobody.
    pub(crate) fn spill(&self) -> Result<()> {
        match self.freeze()? {
            Some(spill) => self.finish_spill(&spill),
            None => Ok(()),
        }
    }

    /// Freezes the tail; it is for this handle to spill. `None`: it is for another handle, or there
    /// is none.
    pub(crate) fn freeze(&self) -> Result<Option<TailSpill>> {
        let tried = self.on_inode(DataLayout::Tailed, |location, guard| {
            let key = &location.key;
            let freeze =
                Action::Write { key, offset: at::LAYOUT, data: ValueData::Inline(SPILLING) };
            let tell = Action::Get { key, offset: 0, len: INODE_LEN as u32 };
            let op = Operation::new(location.partition, [tell, freeze]).guard(guard);
            self.fs.store().run(op.reveal(INODE_LEN as u32))
        })?;
        let InodeTry::Done(results) = tried else { return Ok(None) };
        self.set_layout(DataLayout::Spilling);
        let (inode, _) = told(&results)?;
        if inode.spiller == 0 { self.frozen(0) } else { self.seize(inode.spiller) }
    }

    /// The frozen tail, while its spiller is this one.
    fn frozen(&self, spiller: u64) -> Result<Option<TailSpill>> {
        let token = spiller.to_le_bytes();
        let tried = self.on_inode(DataLayout::Spilling, |location, guard| {
            let key = &location.key;
            let op =
                Operation::new(location.partition, [Action::Get { key, offset: 0, len: u32::MAX }])
                    .guard(guard)
                    .guard(Guard::BytesAre { key, offset: at::SPILLER, bytes: &token });
            self.fs.store().run(op.reveal(INODE_LEN as u32))
        })?;
        let InodeTry::Done(results) = tried else { return Ok(None) };
        let Some(OwnedResult::Value { data: mut tail, .. }) = results.into_iter().next() else {
            return Err(malformed());
        };
        let inode = Inode::decode(&tail)?;
        tail.drain(..INODE_LEN);
        tail.truncate(within_file(inode.size, tail.len()));
        Ok(Some(TailSpill { start: inode.size, cuts: inode.cuts, spiller, tail }))
    }

    /// Takes the spilling of a tail over from `was`, 0 for the handle that froze it. The handle
    /// that had it before may have read the tail, and may write it into chunks at any later time:
    /// therefore a fence is put before these first. It stays, as the file may be cut and grow again
    /// before that. `None`: another handle has taken over, or is done.
    pub(crate) fn seize(&self, was: u64) -> Result<Option<TailSpill>> {
        let spiller = self.fs.token();
        let (was, token) = (was.to_le_bytes(), spiller.to_le_bytes());
        let tried = self.on_inode(DataLayout::Spilling, |location, guard| {
            let key = &location.key;
            let tell = Action::Get { key, offset: 0, len: INODE_LEN as u32 };
            let seize = Action::Write { key, offset: at::SPILLER, data: ValueData::Inline(&token) };
            let op = Operation::new(location.partition, [tell, seize])
                .guard(guard)
                .guard(Guard::BytesAre { key, offset: at::SPILLER, bytes: &was });
            self.fs.store().run(op.reveal(INODE_LEN as u32))
        })?;
        let InodeTry::Done(results) = tried else { return Ok(None) };
        let (inode, len) = told(&results)?;
        self.fs.store().fence(self.ino(), inode.size, within_file(inode.size, len), spiller)?;
        // The fence may have come late itself.
        self.frozen(spiller)
    }

    /// Waits until another handle has spilled the tail; does so itself when that stands still.
    pub(crate) fn await_spill(&self) -> Result<()> {
        let end = Deadline::after(PATIENCE);
        let started = self.node()?.inode;
        if started.layout != DataLayout::Spilling {
            return Ok(());
        }
        let state = |inode: &Inode| (inode.layout, inode.size, inode.cuts, inode.spiller);
        while end.remaining().is_some() {
            pause();
            if state(&self.node()?.inode) != state(&started) {
                return Ok(());
            }
        }
        match self.seize(started.spiller)? {
            Some(spill) => self.finish_spill(&spill),
            None => Ok(()),
        }
    }

    /// Writes a frozen tail into chunks and drops it, unless another handle has taken over.
    pub(crate) fn finish_spill(&self, spill: &TailSpill) -> Result<()> {
        let TailSpill { start, spiller, tail, .. } = spill;
        if self.fs.store().spill_chunks(self.ino(), tail, *start, *spiller, false)? {
            self.drop_tail(*spiller, *start, tail.len(), &[])?;
        }
        Ok(())
    }

    /// The tail of `len` bytes from `start` on is in chunks: moves the settled size over it and
    /// drops it; `next` is the tail after it, which spills at once, too. False: another handle than
    /// `spiller` has taken over.
    pub(crate) fn drop_tail(
        &self,
        spiller: u64,
        start: u64,
        len: usize,
        next: &[u8],
    ) -> Result<bool> {
        let (settled, end) = (start.to_le_bytes(), (start + len as u64).to_le_bytes());
        let (now, token) = (Timestamp::now(), spiller.to_le_bytes());
        let tried = self.on_inode(DataLayout::Spilling, |location, guard| {
            let key = &location.key;
            let write =
                |offset, bytes| Action::Write { key, offset, data: ValueData::Inline(bytes) };
            let mut op = Operation::new(
                location.partition,
                [Action::Truncate { key, len: INODE_LEN as u32 }, write(at::SIZE, &end)],
            )
            .guard(guard)
            .guard(Guard::BytesAre { key, offset: at::SIZE, bytes: &settled })
            .guard(Guard::BytesAre { key, offset: at::SPILLER, bytes: &token })
            .reveal(INODE_LEN as u32);
            if next.is_empty() {
                op.actions.push(write(at::LAYOUT, CHUNKED));
            } else {
                op.actions.push(write(INODE_LEN as u32, next));
                op.actions.push(data_changed(key, now));
            }
            self.fs.store().run(op)
        })?;
        let is_done = matches!(tried, InodeTry::Done(_));
        if is_done && next.is_empty() {
            self.set_layout(DataLayout::Chunked);
        }
        Ok(is_done)
    }

    /// Reads from the tail that `node` has, of which `[offset, offset + buf.len())` is a part. False: the file is another one
    /// now.
    pub(crate) fn read_tail(&self, buf: &mut [u8], offset: u64, node: &FoundInode) -> Result<bool> {
        let settled = node.inode.size.to_le_bytes();
        // Within a record.
        let start = (offset - node.inode.size) as u32 + INODE_LEN as u32;
        let wanted = buf.len();
        let tried = self.on_inode(node.inode.layout, |location, guard| {
            let key = &location.key;
            let get = Action::Get { key, offset: start, len: wanted as u32 };
            let op = Operation::new(location.partition, [get])
                .guard(guard)
                .guard(Guard::BytesAre { key, offset: at::SIZE, bytes: &settled })
                .reveal(INODE_LEN as u32);
            self.fs.store().run(ClientOperation::new(op).into_dest(&mut *buf))
        })?;
        match tried {
            InodeTry::Done(results) => {
                let (_, _, len) = results.first().ok_or_else(malformed)?.value()?;
                Ok(len == wanted)
            }
            _ => Ok(false),
        }
    }

    /// Cuts a file of `size` bytes with a tail to `len`, which is no more. False: it is another one now, perhaps because its tail
    /// was spilled for that.
    pub(crate) fn cut_tailed(&self, node: &FoundInode, len: u64, size: u64) -> Result<bool> {
        let (layout, start) = (node.inode.layout, node.inode.size);
        if layout == DataLayout::Spilling || node.inode.mark != 0 {
            return match self.convert(false) {
                // A removal needs no space.
                Err(error) if error.kind() == ErrorKind::NoSpace && len <= start => {
                    self.cut_frozen(len, size)
                }
                spilled => spilled.map(|()| false),
            };
        }
        if len < start {
            // Data first, as where there is no tail.
            self.fs.store().cut_chunks(self.ino(), len, size)?;
        }
        let Inode { cuts, spiller, .. } = node.inode;
        self.cut_record(layout, &TailSpill { start, cuts, spiller, tail: Vec::new() }, len)
    }

    /// Cuts a file whose tail is frozen to where that begins, or less. False: it is another one now.
    pub(crate) fn cut_frozen(&self, len: u64, size: u64) -> Result<bool> {
        let inode = self.node()?.inode;
        if inode.layout != DataLayout::Spilling {
            return Ok(false);
        }
        let Some(spill) = self.seize(inode.spiller)? else { return Ok(false) };
        if len > spill.start {
            return Ok(false);
        }
        // Some of the tail may be there.
        let end = spill.start + spill.tail.len() as u64;
        self.fs.store().cut_chunks(self.ino(), len, size.max(end))?;
        self.cut_record(DataLayout::Spilling, &spill, len)
    }

    /// Cuts what is in the inode's record of a file with a tail, unless that has been spilled or cut since it was found.
    fn cut_record(&self, layout: DataLayout, found: &TailSpill, len: u64) -> Result<bool> {
        let now = Timestamp::now();
        let [start, cuts, spiller] = [found.start, found.cuts, found.spiller].map(u64::to_le_bytes);
        let (size, ends_open) = (len.min(found.start).to_le_bytes(), [u8::from(len > 0)]);
        let tried = self.on_inode(layout, |location, guard| {
            let key = &location.key;
            let write =
                |offset, bytes| Action::Write { key, offset, data: ValueData::Inline(bytes) };
            // The rest of the tail is within a record.
            let left = INODE_LEN as u32 + len.saturating_sub(found.start) as u32;
            let mut op = Operation::new(
                location.partition,
                [data_changed(key, now), Action::Truncate { key, len: left }],
            )
            .guard(guard)
            .guard(Guard::BytesAre { key, offset: at::CUTS, bytes: &cuts })
            .guard(Guard::BytesAre { key, offset: at::SIZE, bytes: &start })
            .guard(Guard::BytesAre { key, offset: at::SPILLER, bytes: &spiller })
            .reveal(INODE_LEN as u32);
            op.actions.push(Action::Add { key, offset: at::CUTS, delta: 1 });
            op.actions.push(write(at::ENDS_OPEN, &ends_open));
            if len <= found.start {
                op.actions.push(write(at::SIZE, &size));
                op.actions.push(write(at::LAYOUT, CHUNKED));
            }
            if len == 0 {
                op.actions.push(write(at::SPARSE, &ends_open));
            }
            self.fs.store().run(op)
        })?;
        Ok(matches!(tried, InodeTry::Done(_)))
    }
}

/// The inode that the first result tells, and how many bytes follow it in its record.
fn told(results: &List<OwnedResult, 2>) -> Result<(Inode, usize)> {
    match only(results)? {
        OwnedResult::Value { total_len, data, .. } => {
            Ok((Inode::decode(data)?, (*total_len as usize).saturating_sub(INODE_LEN)))
        }
        _ => Err(malformed()),
    }
}

/// How many of `len` bytes from `start` on can be in a file.
fn within_file(start: u64, len: usize) -> usize {
    FILE_LEN_MAX.saturating_sub(start).min(len as u64) as usize
}
