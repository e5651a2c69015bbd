//! From inline, or with a tail, to chunked: a file that outgrows its inode.
//!
//! An empty file needs one operation. Otherwise the inline data are frozen first, then copied into
//! chunk 0 unless it exists, then dropped. A client that meets a file half-way does the same steps
//! to the end: all copy the same frozen bytes, and the guard on chunk 0 keeps a slow copier from
//! overwriting later writes.

use samite_client::OwnedResult;
use samite_types::Result;
use samite_wire::op::{Action, Guard, Operation, ValueData};

use crate::OpenFile;
use crate::files::file::InodeTry;
use crate::records::inode::{DataLayout, INODE_LEN, Inode, at};
use crate::records::store::malformed;

const CHUNKED: &[u8] = &[DataLayout::Chunked as u8];
const CONVERTING: &[u8] = &[DataLayout::Converting as u8];

impl OpenFile {
    /// Takes one step or all towards [`DataLayout::Chunked`]; `marks`: it is for writing, so that
    /// an empty file gets its writing mark in the same operation.
    pub(crate) fn convert(&self, marks: bool) -> Result<()> {
        match self.layout() {
            DataLayout::Inline => {
                if !self.convert_empty(marks)? {
                    self.freeze_data()?;
                }
                Ok(())
            }
            DataLayout::Converting => self.finish_conversion(),
            DataLayout::Tailed => self.spill(),
            DataLayout::Spilling => self.await_spill(),
            _ => self.node().map(drop),
        }
    }

    fn convert_empty(&self, marks: bool) -> Result<bool> {
        let forks = self.fs.forks();
        let mut mark = self.writing.lock();
        let token = self.fs.token();
        let raw_token = token.to_le_bytes();
        let tried = self.on_inode(DataLayout::Inline, |location, guard| {
            let key = &location.key;
            let write =
                |offset, bytes| Action::Write { key, offset, data: ValueData::Inline(bytes) };
            let mut op = Operation::new(
                location.partition,
                [Action::Get { key, offset: 0, len: INODE_LEN as u32 }, write(at::LAYOUT, CHUNKED)],
            )
            .guard(guard)
            .guard(Guard::LenAtMost(key, INODE_LEN as u32))
            .reveal(INODE_LEN as u32);
            if marks {
                op.actions.push(write(at::MARK, &raw_token));
            }
            self.fs.store().run(op)
        })?;
        match tried {
            InodeTry::Done(results) => {
                self.set_layout(DataLayout::Chunked);
                if marks {
                    let Some(OwnedResult::Value { data, .. }) = results.first() else {
                        return Err(malformed());
                    };
                    self.note_marked(&mut mark, token, Inode::decode(data)?.cuts, forks);
                }
                Ok(true)
            }
            InodeTry::OtherLayout => Ok(true),
            _ => Ok(false),
        }
    }

    fn freeze_data(&self) -> Result<()> {
        let tried = self.on_inode(DataLayout::Inline, |location, guard| {
            let freeze = Action::Write {
                key: &location.key,
                offset: at::LAYOUT,
                data: ValueData::Inline(CONVERTING),
            };
            let op = Operation::new(location.partition, [freeze]).guard(guard);
            self.fs.store().run(op.reveal(INODE_LEN as u32))
        })?;
        if matches!(tried, InodeTry::Done(_)) {
            self.set_layout(DataLayout::Converting);
            self.finish_conversion()?;
        }
        Ok(())
    }

    fn finish_conversion(&self) -> Result<()> {
        let tried = self.on_inode(DataLayout::Converting, |location, guard| {
            let all = Action::Get { key: &location.key, offset: INODE_LEN as u32, len: u32::MAX };
            let op = Operation::new(location.partition, [all]).guard(guard);
            self.fs.store().run(op.reveal(INODE_LEN as u32))
        })?;
        let InodeTry::Done(results) = tried else { return Ok(()) };
        let Some(OwnedResult::Value { data, .. }) = results.into_iter().next() else {
            return Err(malformed());
        };
        self.fs.store().found_chunk(self.ino(), &data)?;
        let size = (data.len() as u64).to_le_bytes();
        let tried = self.on_inode(DataLayout::Converting, |location, guard| {
            let key = &location.key;
            let write =
                |offset, bytes| Action::Write { key, offset, data: ValueData::Inline(bytes) };
            let op = Operation::new(
                location.partition,
                [
                    write(at::LAYOUT, CHUNKED),
                    write(at::SIZE, &size),
                    Action::Truncate { key, len: INODE_LEN as u32 },
                ],
            );
            self.fs.store().run(op.guard(guard).reveal(INODE_LEN as u32))
        })?;
        if matches!(tried, InodeTry::Done(_)) {
            self.set_layout(DataLayout::Chunked);
        }
        Ok(())
    }
}
