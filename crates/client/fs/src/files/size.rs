//! The size of a file: asked for, settled, set.

use samite_client::OwnedResult;
use samite_types::{ErrorKind, Result};
use samite_wire::op::{Action, Guard, List, Operation, ValueData};

use crate::files::file::InodeTry;
use crate::files::io::in_chunks;
use crate::files::writing::{DISTRUST, HandleStamp, SeenSize, WriteState};
use crate::names::at::{RelativePath, named};
use crate::records::change_stamps::ChangeStamps;
use crate::records::inode::{
    DataLayout, INODE_LEN, Inode, MARK_SHARED, at, cuts_and_mark, data_changed, data_written,
};
use crate::records::key;
use crate::records::store::{FoundInode, fail, malformed, only};
use crate::{
    CallerContext, FILE_LEN_MAX, FileAttributes, FileKind, FileSystem, INLINE_LEN_MAX, OpenFile,
    OpenFlags, STAT_BLOCK_LEN, Timestamp,
};

/// The size of a directory for `stat`.
pub const DIRECTORY_SIZE: u64 = 4096;

/// How often settling may meet a change of the writing mark before it gives up.
const SETTLE_TRIES_MAX: u32 = 100;

impl FileSystem {
    /// Attributes of an inode. `own`: the writes of this handle itself.
    pub(crate) fn attr_of(
        &self,
        node: &FoundInode,
        own: Option<&WriteState>,
    ) -> Result<FileAttributes> {
        let (size, written) = self.data_state(node, own)?;
        let mut attr = node.inode.attr(size);
        if let Some(written) = written {
            attr.mtime = attr.mtime.max(written);
            attr.ctime = attr.ctime.max(written);
        }
        if node.is_chunked() && node.inode.sparse {
            let tail = node.tail();
            let in_tail = (tail.end - tail.start).div_ceil(STAT_BLOCK_LEN);
            attr.blocks = self.store().blocks(node.inode.ino)?.saturating_add(in_tail);
        }
        if node.inode.is_directory() && key::is_orphan(&node.location.key) {
            attr.blocks = 0;
        } else if node.inode.is_directory() {
            attr = Self::attr_of_directory(node, &self.store().change_stamps(node.inode.ino)?);
        }
        Ok(attr)
    }

    /// Attributes of a directory with these change stamps.
    pub(crate) fn attr_of_directory(node: &FoundInode, stamps: &ChangeStamps) -> FileAttributes {
        let mut attr = node.inode.attr(DIRECTORY_SIZE);
        attr.mtime = attr.mtime.max(stamps.changed);
        attr.ctime = attr.ctime.max(stamps.changed);
        attr.nlink = u32::try_from(stamps.directories().saturating_add(2)).unwrap_or(u32::MAX);
        attr.blocks = 0;
        attr
    }

    /// Size of an inode. Costs nothing unless a handle is writing to a chunked file.
    pub(crate) fn size_of(&self, node: &FoundInode, own: Option<&WriteState>) -> Result<u64> {
        self.data_state(node, own).map(|(size, _)| size)
    }

    /// Size of an inode, and when its data changed after what the inode says. Costs nothing unless
    /// a handle is writing to a chunked file.
    pub(crate) fn data_state(
        &self,
        node: &FoundInode,
        own: Option<&WriteState>,
    ) -> Result<(u64, Option<Timestamp>)> {
        let inode = &node.inode;
        if inode.is_directory() {
            return Ok((DIRECTORY_SIZE, None));
        }
        if !node.is_chunked() {
            return Ok((node.data_len, None));
        }
        let settled = node.tail().end;
        if inode.mark == 0 {
            return Ok((settled, None));
        }
        if let Some(own) = own
            && own.is_marked(self.forks())
        {
            let mark = *own.lock();
            if mark.token == inode.mark && mark.token != MARK_SHARED && mark.cuts == inode.cuts {
                return Ok((settled.max(own.end()), Some(own.told())));
            }
        }
        let (end, written) = self.store().data_state(inode.ino)?;
        Ok((settled.max(end), written))
    }

    /// Sets the length of a file; added bytes read as zeros.
    ///
    /// # Errors
    /// As of opening for writing; `Invalid`: no regular file; `FileTooLarge`.
    pub fn truncate<'a>(
        &self,
        ctx: &CallerContext,
        at: impl Into<RelativePath<'a>>,
        len: u64,
    ) -> Result<()> {
        let flags = OpenFlags { write: true, ..OpenFlags::default() };
        named("truncate", at, |at: RelativePath<'_>| {
            let file = self.open_file(ctx, at, flags, 0)?;
            file.truncate(len)?;
            file.close()
        })
    }

    pub(crate) fn forks(&self) -> u32 {
        self.inner.numbers.forks()
    }
}

impl OpenFile {
    /// Sets the length; added bytes read as zeros.
    ///
    /// # Errors
    /// `BadDescriptor`: not open for writing; `Invalid`: no regular file; `FileTooLarge`; `StaleHandle`.
    pub fn truncate(&self, len: u64) -> Result<()> {
        self.context("ftruncate", || {
            if self.kind() != FileKind::File {
                return Err(fail(ErrorKind::Invalid));
            }
            if !self.flags().write {
                return Err(fail(ErrorKind::BadDescriptor));
            }
            self.cut(len)?;
            self.strip_set_id()
        })
    }

    /// Settles size and times of a file that was written to.
    ///
    /// # Errors
    /// As of the nodes.
    pub fn fsync(&self) -> Result<()> {
        self.context("fsync", || {
            self.make_known()?;
            self.settle()
        })
    }

    /// Sets the length, without a check of how the file was opened.
    pub(crate) fn cut(&self, len: u64) -> Result<()> {
        self.set_len(len, false)
    }

    /// Sets the length, or only makes sure that the file is that long.
    pub(crate) fn set_len(&self, len: u64, only_grows: bool) -> Result<()> {
        if len > FILE_LEN_MAX {
            return Err(fail(ErrorKind::FileTooLarge));
        }
        loop {
            let done = match self.layout() {
                DataLayout::Chunked | DataLayout::Tailed | DataLayout::Spilling => {
                    self.cut_chunked(len, only_grows)?
                }
                DataLayout::Inline if len <= INLINE_LEN_MAX => {
                    self.cut_inline(len as u32, only_grows)?
                }
                _ => {
                    self.convert(false)?;
                    false
                }
            };
            if done {
                if !only_grows {
                    self.writing.cut(len);
                }
                return Ok(());
            }
        }
    }

    fn cut_inline(&self, len: u32, only_grows: bool) -> Result<bool> {
        let now = Timestamp::now();
        let tried = self.on_inode(DataLayout::Inline, |location, guard| {
            let mut op = Operation::new(
                location.partition,
                [
                    Action::Truncate { key: &location.key, len: INODE_LEN as u32 + len },
                    data_changed(&location.key, now),
                ],
            )
            .guard(guard);
            if only_grows {
                op.guards.push(Guard::LenAtMost(&location.key, INODE_LEN as u32 + len));
            }
            self.fs.store().run(op.reveal(INODE_LEN as u32))
        })?;
        // The guard that refuses says that it is longer already.
        Ok(matches!(tried, InodeTry::Done(_) | InodeTry::Refused(_)))
    }

    fn cut_chunked(&self, len: u64, only_grows: bool) -> Result<bool> {
        let node = self.node()?;
        if !node.is_chunked() {
            return Ok(false);
        }
        let size = self.fs.size_of(&node, Some(&self.writing))?;
        if only_grows && len <= size {
            return Ok(true);
        }
        if node.has_tail() {
            if len > size {
                self.convert(false)?;
                return Ok(false);
            }
            return self.cut_tailed(&node, len, size);
        }
        self.cut_found(&node, len, size)
    }

    /// Sets the length of a chunked file without a tail that was found with `size` bytes. False: it is another one now.
    pub(crate) fn cut_found(&self, node: &FoundInode, len: u64, size: u64) -> Result<bool> {
        // Data first: were it the other way round, a crash in between would leave bytes beyond the end that a longer
        // file shows again.
        if len < size {
            self.fs.store().cut_chunks(self.ino(), len, size)?;
        }
        let (now, raw_len) = (Timestamp::now(), len.to_le_bytes());
        let (cuts, settled) = (node.inode.cuts.to_le_bytes(), node.inode.size.to_le_bytes());
        let ends_open = [u8::from(len > 0)];
        let tried = self.on_inode(DataLayout::Chunked, |location, guard| {
            let key = &location.key;
            let write =
                |offset, bytes| Action::Write { key, offset, data: ValueData::Inline(bytes) };
            let mut op = Operation::new(location.partition, [data_changed(key, now)])
                .guard(guard)
                .guard(Guard::BytesAre { key, offset: at::CUTS, bytes: &cuts })
                // Bytes that were appended or settled since then may have chunks that are not cut
                // yet.
                .guard(Guard::BytesAre { key, offset: at::SIZE, bytes: &settled })
                .reveal(INODE_LEN as u32);
            if len < size {
                op.actions.push(write(at::SIZE, &raw_len));
                op.actions.push(Action::Add { key, offset: at::CUTS, delta: 1 });
            } else {
                op.actions.push(Action::Max { key, offset: at::SIZE, value: len });
            }
            if len != size {
                op.actions.push(write(at::ENDS_OPEN, &ends_open));
            }
            if len > size || len == 0 {
                op.actions.push(write(at::SPARSE, &ends_open));
            }
            self.fs.store().run(op)
        })?;
        Ok(matches!(tried, InodeTry::Done(_)))
    }

    /// Sets the writing mark, once. False: the file is not chunked after all.
    pub(crate) fn ensure_marked(&self) -> Result<bool> {
        let forks = self.fs.forks();
        if self.writing.is_marked(forks) {
            return Ok(true);
        }
        let mut mark = self.writing.lock();
        let token = self.fs.token();
        let mut expected = 0u64;
        while !self.writing.is_marked(forks) {
            let (set, was) = if expected == 0 { (token, 0) } else { (MARK_SHARED, expected) };
            match self.try_mark(was, set)? {
                InodeTry::Done(results) => {
                    let inode = inode_of(&results)?;
                    self.note_marked(&mut mark, set, inode.cuts, forks);
                }
                InodeTry::Refused(inode) if inode.mark == MARK_SHARED => {
                    self.note_marked(&mut mark, MARK_SHARED, inode.cuts, forks);
                }
                InodeTry::Refused(inode) => expected = inode.mark,
                InodeTry::OtherLayout | InodeTry::TooLarge => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Notes that the writing mark is set. Writes under an earlier mark count only if the file was
    /// not cut since.
    pub(crate) fn note_marked(&self, mark: &mut HandleStamp, token: u64, cuts: u64, forks: u32) {
        let trusted = self.writing.end() == 0 || mark.cuts == cuts;
        *mark = HandleStamp { token, cuts: if trusted { cuts } else { DISTRUST } };
        self.writing.set_marked(forks);
    }

    fn try_mark(&self, was: u64, set: u64) -> Result<InodeTry> {
        let (was, set) = (was.to_le_bytes(), set.to_le_bytes());
        self.on_inode(DataLayout::Chunked, |location, guard| {
            let key = &location.key;
            let op = Operation::new(
                location.partition,
                [
                    Action::Get { key, offset: 0, len: INODE_LEN as u32 },
                    Action::Write { key, offset: at::MARK, data: ValueData::Inline(&set) },
                ],
            )
            .guard(guard)
            .guard(Guard::BytesAre { key, offset: at::MARK, bytes: &was })
            .reveal(INODE_LEN as u32);
            self.fs.store().run(op)
        })
    }

    /// After a write that failed half-way: how far this handle has written says nothing about the size any more.
    pub(crate) fn distrust_end(&self) {
        self.writing.lock().cuts = DISTRUST;
    }

    /// Raises the settled size to the end of the writes, and takes the writing mark off.
    pub(crate) fn settle(&self) -> Result<()> {
        let forks = self.fs.forks();
        if !self.writing.is_marked(forks) {
            return Ok(());
        }
        let mark = self.writing.lock();
        if !self.writing.is_marked(forks) {
            return Ok(());
        }
        self.writing.clear_marked();
        let (mut cuts, mut found) = (mark.cuts, mark.token);
        let mut written = Some(self.writing.written());
        for _ in 0..SETTLE_TRIES_MAX {
            let end = if cuts == mark.cuts && cuts != DISTRUST {
                self.writing.end()
            } else {
                // Sizes that others have been told stay true, whatever has happened to the inode
                // since this handle wrote.
                let (end, told) = self.fs.store().data_state(self.ino())?;
                written = written.max(told);
                end
            };
            let takes_off = found == mark.token && found != MARK_SHARED;
            match self.try_settle((cuts, found), end, written, takes_off) {
                Ok(InodeTry::OtherLayout)
                    if matches!(self.layout(), DataLayout::Tailed | DataLayout::Spilling) =>
                {
                    self.convert(false).inspect_err(|_| self.writing.set_marked(forks))?;
                }
                Ok(InodeTry::Refused(inode)) => {
                    (cuts, found) = (inode.cuts, inode.mark);
                    // Cut, or its times were set, after this handle wrote.
                    written = written.filter(|written| *written > inode.ctime);
                }
                // Removed by another process: there is no size to settle.
                Err(error) if error.kind() != ErrorKind::StaleHandle => {
                    self.writing.set_marked(forks);
                    return Err(error);
                }
                _ => return Ok(()),
            }
        }
        Err(fail(ErrorKind::Busy))
    }

    fn try_settle(
        &self,
        (cuts, found): (u64, u64),
        end: u64,
        written: Option<Timestamp>,
        takes_off: bool,
    ) -> Result<InodeTry> {
        let expected = cuts_and_mark(cuts, found);
        self.on_inode(DataLayout::Chunked, |location, guard| {
            let key = &location.key;
            let write =
                |offset, bytes| Action::Write { key, offset, data: ValueData::Inline(bytes) };
            let max = |offset, value| Action::Max { key, offset, value };
            let mut op = Operation::new(location.partition, [max(at::SIZE, end)])
                .guard(guard)
                .guard(Guard::BytesAre { key, offset: at::CUTS, bytes: &expected })
                .reveal(INODE_LEN as u32);
            if let Some(written) = written {
                op.actions.push(data_written(key, written));
            }
            if takes_off {
                op.actions.push(write(at::MARK, &[0; 8]));
            }
            self.fs.store().run(op)
        })
    }

    /// The size now, and the inode by which it is that; notes it.
    pub(crate) fn size_now(&self) -> Result<(u64, FoundInode)> {
        let node = match self.snapshot_inode() {
            Some(node) => node,
            None => self.node()?,
        };
        let size = self.fs.size_of(&node, Some(&self.writing))?;
        let in_chunks = in_chunks(size, &node.tail());
        self.writing.see(SeenSize { size: in_chunks, cuts: node.inode.cuts });
        Ok((size, node))
    }
}

fn inode_of(results: &List<OwnedResult, 2>) -> Result<Inode> {
    match only(results)? {
        OwnedResult::Value { data, .. } => Inode::decode(data),
        _ => Err(malformed()),
    }
}
