//! The tail of a file: reading what was appended there, cutting it, and spilling it into chunks.

use std::time::Duration;

use samite_client::{Op, OwnedResult};
use samite_types::{Deadline, ErrorKind, Result};
use samite_wire::op::{Action, Data, Guard, Operation};

use crate::file::Tried;
use crate::inode::{INODE_LEN, Inode, Layout, at, data_changed};
use crate::moving::pause;
use crate::store::{Node, malformed};
use crate::{FILE_LEN_MAX, OpenFile, Timestamp};

const SPILLING: &[u8] = &[Layout::Spilling as u8];
const CHUNKED: &[u8] = &[Layout::Chunked as u8];

/// How long a spilling file may stand still before others take over.
const PATIENCE: Duration = Duration::from_millis(500);

impl OpenFile {
    /// Moves the tail into chunks.
    ///
    /// # Errors
    /// `NoSpace`: the file stays as it is, to be read, and appended to by nobody.
    pub(crate) fn spill(&self) -> Result<()> {
        let tried = self.on_inode(Layout::Tailed, |home, guard| {
            let freeze =
                Action::Write { key: &home.key, offset: at::LAYOUT, data: Data::Inline(SPILLING) };
            let op = Operation::new(home.partition, [freeze]).guard(guard);
            self.fs.store().run(op.reveal(INODE_LEN as u32))
        })?;
        match tried {
            Tried::Done(_) => {
                self.set_layout(Layout::Spilling);
                self.finish_spill()
            }
            _ => Ok(()),
        }
    }

    /// Waits until somebody else has spilled the tail; does so itself when that stands still.
    pub(crate) fn await_spill(&self) -> Result<()> {
        let end = Deadline::after(PATIENCE);
        let started = self.node()?;
        if started.inode.layout != Layout::Spilling {
            return Ok(());
        }
        while end.remaining().is_some() {
            pause();
            let now = self.node()?;
            if now.inode.layout != Layout::Spilling || now.inode.size != started.inode.size {
                return Ok(());
            }
        }
        self.finish_spill()
    }

    fn finish_spill(&self) -> Result<()> {
        let mut is_dense = true;
        loop {
            let tried = self.on_inode(Layout::Spilling, |home, guard| {
                let all = Action::Get { key: &home.key, offset: 0, len: u32::MAX };
                let op = Operation::new(home.partition, [all]).guard(guard);
                self.fs.store().run(op.reveal(INODE_LEN as u32))
            })?;
            let Tried::Done(results) = tried else { return Ok(()) };
            let Some(OwnedResult::Value { data, .. }) = results.into_iter().next() else {
                return Err(malformed());
            };
            let start = Inode::decode(&data)?.size;
            let tail = data.get(INODE_LEN..).unwrap_or_default();
            let room = FILE_LEN_MAX.saturating_sub(start);
            let tail = &tail[..usize::try_from(room).unwrap_or(usize::MAX).min(tail.len())];
            if self.fs.store().found_chunks(self.ino(), tail, start, is_dense)? {
                return self.drop_tail(start, tail.len(), &[]).map(drop);
            }
            // It was cut since, which shows now; or there is a hole before the tail.
            is_dense = false;
        }
    }

    /// The tail of `len` bytes from `start` on is in chunks: moves the settled size over it and drops it; `next` is the tail
    /// after it, which spills at once, too. False: the file is another one now.
    pub(crate) fn drop_tail(&self, start: u64, len: usize, next: &[u8]) -> Result<bool> {
        let (settled, end) = (start.to_le_bytes(), (start + len as u64).to_le_bytes());
        let now = Timestamp::now();
        let tried = self.on_inode(Layout::Spilling, |home, guard| {
            let key = &home.key;
            let write = |offset, bytes| Action::Write { key, offset, data: Data::Inline(bytes) };
            let mut op = Operation::new(
                home.partition,
                [Action::Truncate { key, len: INODE_LEN as u32 }, write(at::SIZE, &end)],
            )
            .guard(guard)
            .guard(Guard::BytesAre { key, offset: at::SIZE, bytes: &settled })
            .reveal(INODE_LEN as u32);
            if next.is_empty() {
                op.actions.push(write(at::LAYOUT, CHUNKED));
            } else {
                op.actions.push(write(INODE_LEN as u32, next));
                op.actions.push(data_changed(key, now));
            }
            self.fs.store().run(op)
        })?;
        let is_done = matches!(tried, Tried::Done(_));
        if is_done && next.is_empty() {
            self.set_layout(Layout::Chunked);
        }
        Ok(is_done)
    }

    /// Reads from the tail that `node` has, of which `[offset, offset + buf.len())` is a part. False: the file is another one
    /// now.
    pub(crate) fn read_tail(&self, buf: &mut [u8], offset: u64, node: &Node) -> Result<bool> {
        let settled = node.inode.size.to_le_bytes();
        // Within a record.
        let start = (offset - node.inode.size) as u32 + INODE_LEN as u32;
        let wanted = buf.len();
        let tried = self.on_inode(node.inode.layout, |home, guard| {
            let key = &home.key;
            let get = Action::Get { key, offset: start, len: wanted as u32 };
            let op = Operation::new(home.partition, [get])
                .guard(guard)
                .guard(Guard::BytesAre { key, offset: at::SIZE, bytes: &settled })
                .reveal(INODE_LEN as u32);
            self.fs.store().run(Op::new(op).into_dest(&mut *buf))
        })?;
        match tried {
            Tried::Done(results) => {
                let (_, _, len) = results.first().ok_or_else(malformed)?.value()?;
                Ok(len == wanted)
            }
            _ => Ok(false),
        }
    }

    /// Cuts a file of `size` bytes with a tail to `len`, which is no more. False: it is another one now, perhaps because its tail
    /// was spilled for that.
    pub(crate) fn cut_tailed(&self, node: &Node, len: u64, size: u64) -> Result<bool> {
        let (layout, tail) = (node.inode.layout, node.tail());
        if layout == Layout::Spilling || node.inode.mark != 0 {
            match self.convert(false) {
                // What is removed needs no space.
                Err(error) if error.kind() == ErrorKind::NoSpace && len <= tail.start => {}
                spilled => return spilled.map(|()| false),
            }
        }
        if len < tail.start || layout == Layout::Spilling {
            // Data first, as where there is no tail.
            self.fs.store().cut_chunks(self.ino(), len, size)?;
        }
        let (now, settled) = (Timestamp::now(), tail.start.to_le_bytes());
        let (cuts, size) = (node.inode.cuts.to_le_bytes(), len.min(tail.start).to_le_bytes());
        let ends_open = [u8::from(len > 0)];
        let tried = self.on_inode(layout, |home, guard| {
            let key = &home.key;
            let write = |offset, bytes| Action::Write { key, offset, data: Data::Inline(bytes) };
            // What is left of the tail is within a record.
            let left = INODE_LEN as u32 + len.saturating_sub(tail.start) as u32;
            let mut op = Operation::new(
                home.partition,
                [data_changed(key, now), Action::Truncate { key, len: left }],
            )
            .guard(guard)
            .guard(Guard::BytesAre { key, offset: at::CUTS, bytes: &cuts })
            .guard(Guard::BytesAre { key, offset: at::SIZE, bytes: &settled })
            .reveal(INODE_LEN as u32);
            op.actions.push(Action::Add { key, offset: at::CUTS, delta: 1 });
            op.actions.push(write(at::ENDS_OPEN, &ends_open));
            if len <= tail.start {
                op.actions.push(write(at::SIZE, &size));
                op.actions.push(write(at::LAYOUT, CHUNKED));
            }
            if len == 0 {
                op.actions.push(write(at::SPARSE, &ends_open));
            }
            self.fs.store().run(op)
        })?;
        Ok(matches!(tried, Tried::Done(_)))
    }
}
