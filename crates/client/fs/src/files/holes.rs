//! Holes: making and finding them, and space for ranges of a file (`fallocate`, `SEEK_HOLE`, `SEEK_DATA`).
//!
//! Space is never set aside ahead of writes. A hole frees blocks of 64 KiB within it, and chunks as
//! a whole.

use rustix::fs::FallocateFlags;
use samite_client::ClientOperation;
use samite_types::{Error, ErrorKind, Result};
use samite_wire::op::{Action, Guard, Operation, ValueData};

use crate::files::file::InodeTry;
use crate::records::chunks::parts;
use crate::records::inode::{DataLayout, INODE_LEN, at, data_changed};
use crate::records::store::{FoundInode, RecordLocation, RecordStoreView, fail};
use crate::{FILE_LEN_MAX, FileKind, OpenFile, Timestamp};

/// Chunks up to which a hole names each; for more, it asks first which there are.
const NAMED_MAX: u64 = 64;

/// Ranges longer than this are checked against the free space, in bytes.
const CHECKED_LEN: u64 = 1 << 20;

/// The new state of the range that [`OpenFile::allocate`] is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocateMode {
    /// It is within the file after: a shorter file grows.
    Extend,
    /// There is space for it; the length of the file stays (`FALLOC_FL_KEEP_SIZE`).
    KeepSize,
    /// It is a hole, and its space is free; the length stays (`FALLOC_FL_PUNCH_HOLE`).
    PunchHole,
    /// It reads as zeros (`FALLOC_FL_ZERO_RANGE`).
    ZeroRange {
        /// The length of the file stays.
        keep_size: bool,
    },
}

impl AllocateMode {
    /// From the mode of fallocate(2).
    ///
    /// # Errors
    /// `Unsupported`: any other mode, such as `FALLOC_FL_COLLAPSE_RANGE`.
    pub fn from_raw(mode: u32) -> Result<Self> {
        const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);
        const ZERO_KEEPING: FallocateFlags =
            FallocateFlags::ZERO_RANGE.union(FallocateFlags::KEEP_SIZE);
        Ok(match FallocateFlags::from_bits_retain(mode) {
            FallocateFlags::KEEP_SIZE => Self::KeepSize,
            PUNCH => Self::PunchHole,
            FallocateFlags::ZERO_RANGE => Self::ZeroRange { keep_size: false },
            ZERO_KEEPING => Self::ZeroRange { keep_size: true },
            flags if flags.is_empty() => Self::Extend,
            _ => return Err(fail(ErrorKind::Unsupported).context("fallocate")),
        })
    }
}

impl OpenFile {
    /// Does to `[offset, offset + len)` what `mode` says.
    ///
    /// # Errors
    /// `BadDescriptor`: not open for writing; `Invalid`: `len` is 0, or no regular file; `FileTooLarge`; `NoSpace`: more than is
    /// free now (nothing is set aside, so that a later write can still find the store full); `StaleHandle`.
    pub fn allocate(&self, mode: AllocateMode, offset: u64, len: u64) -> Result<()> {
        self.context("fallocate", || {
            if !self.flags().write {
                return Err(fail(ErrorKind::BadDescriptor));
            }
            if len == 0 || self.kind() != FileKind::File {
                return Err(fail(ErrorKind::Invalid));
            }
            let end = offset.checked_add(len).filter(|end| *end <= FILE_LEN_MAX);
            let end = end.ok_or_else(|| fail(ErrorKind::FileTooLarge))?;
            match mode {
                AllocateMode::Extend => {
                    self.check_space(len)?;
                    self.set_len(end, true)?;
                }
                AllocateMode::KeepSize => self.check_space(len)?,
                AllocateMode::PunchHole => self.punch(offset, end)?,
                AllocateMode::ZeroRange { keep_size } => {
                    self.punch(offset, end)?;
                    if !keep_size {
                        self.set_len(end, true)?;
                    }
                }
            }
            self.strip_set_id()
        })
    }

    /// Offset of the first data at or after `offset` (`SEEK_DATA`); `None`: there are none before the end of the file.
    ///
    /// # Errors
    /// `BadDescriptor`: no regular file; `StaleHandle`.
    pub fn seek_data(&self, offset: u64) -> Result<Option<u64>> {
        self.context("seek", || {
            let Some((size, node)) = self.size_beyond(offset)? else { return Ok(None) };
            if !node.is_chunked() {
                return Ok(Some(offset));
            }
            let (found, tail) = (self.fs.store().next_data(self.ino(), offset)?, node.tail());
            let in_tail = (offset < tail.end && !tail.is_empty()).then(|| offset.max(tail.start));
            let first = found.into_iter().chain(in_tail).min();
            Ok(first.filter(|first| *first < size))
        })
    }

    /// Offset of the first hole at or after `offset` (`SEEK_HOLE`), with one at the end of every file; `None`: `offset` is not
    /// within the file.
    ///
    /// # Errors
    /// `BadDescriptor`: no regular file; `StaleHandle`.
    pub fn seek_hole(&self, offset: u64) -> Result<Option<u64>> {
        self.context("seek", || {
            let Some((size, node)) = self.size_beyond(offset)? else { return Ok(None) };
            if !node.is_chunked() {
                return Ok(Some(size));
            }
            let (first, tail) = (self.fs.store().next_hole(self.ino(), offset)?, node.tail());
            // Its data go on in the tail.
            Ok(Some(if tail.contains(&first) { tail.end } else { first }.min(size)))
        })
    }

    /// The size and the inode, if `offset` is within the file.
    fn size_beyond(&self, offset: u64) -> Result<Option<(u64, FoundInode)>> {
        if self.kind() != FileKind::File {
            return Err(fail(ErrorKind::BadDescriptor));
        }
        Ok(Some(self.size_now()?).filter(|(size, _)| offset < *size))
    }

    fn check_space(&self, len: u64) -> Result<()> {
        if len > CHECKED_LEN {
            let space = self.fs.statfs()?;
            if len > space.blocks_free.saturating_mul(space.block_len) {
                return Err(Error::new(ErrorKind::NoSpace, "not so much space is free"));
            }
        }
        Ok(())
    }

    /// Makes a hole of what lies in `[start, end)`; the length stays.
    pub(crate) fn punch(&self, start: u64, end: u64) -> Result<()> {
        loop {
            let done = match self.layout() {
                DataLayout::Chunked => self.punch_chunked(start, end)?,
                DataLayout::Inline => self.punch_inline(start, end)?,
                _ => {
                    self.convert(false)?;
                    false
                }
            };
            if done {
                return Ok(());
            }
        }
    }

    fn punch_inline(&self, start: u64, end: u64) -> Result<bool> {
        let first = u32::try_from(start).unwrap_or(u32::MAX).saturating_add(INODE_LEN as u32);
        let len = u32::try_from(end - start).unwrap_or(u32::MAX);
        let now = Timestamp::now();
        let tried = self.on_inode(DataLayout::Inline, |location, guard| {
            let key = &location.key;
            let op = Operation::new(
                location.partition,
                [Action::Punch { key, offset: first, len }, data_changed(key, now)],
            );
            self.fs.store().run(op.guard(guard).reveal(INODE_LEN as u32))
        })?;
        Ok(matches!(tried, InodeTry::Done(_)))
    }

    /// False: the file was cut in the meantime, or has another layout.
    fn punch_chunked(&self, start: u64, end: u64) -> Result<bool> {
        let (size, FoundInode { inode, .. }) = self.size_now()?;
        if inode.layout != DataLayout::Chunked {
            return Ok(false);
        }
        let end = end.min(size);
        if start >= end {
            return Ok(true);
        }
        // The length may stand on chunks that go now: it is settled first.
        if !self.note_holes(Some(size), inode.cuts)? {
            return Ok(false);
        }
        self.fs.store().punch_chunks(self.ino(), start, end)?;
        Ok(true)
    }

    /// Before a write that leaves a hole before it: makes the inode tell of holes, if it does so.
    pub(crate) fn tell_of_hole(&self, offset: u64) -> Result<()> {
        let (size, FoundInode { inode, .. }) = self.size_now()?;
        if inode.sparse {
            self.writing.set_sparse();
        } else if offset > size {
            self.note_holes(None, inode.cuts)?;
        }
        Ok(())
    }

    /// Makes the inode tell of holes; with a settled length and a new time when data go. False: the
    /// file was cut, or has another layout.
    fn note_holes(&self, size: Option<u64>, cuts: u64) -> Result<bool> {
        let (now, cuts) = (Timestamp::now(), cuts.to_le_bytes());
        let tried = self.on_inode(DataLayout::Chunked, |location, guard| {
            let key = &location.key;
            let write =
                |offset, bytes| Action::Write { key, offset, data: ValueData::Inline(bytes) };
            let mut op = Operation::new(location.partition, [write(at::SPARSE, &[1])])
                .guard(guard)
                .guard(Guard::BytesAre { key, offset: at::CUTS, bytes: &cuts })
                .reveal(INODE_LEN as u32);
            if let Some(size) = size {
                op.actions.extend([
                    Action::Max { key, offset: at::SIZE, value: size },
                    data_changed(key, now),
                    write(at::ENDS_OPEN, &[1]),
                ]);
            }
            self.fs.store().run(op)
        })?;
        let done = matches!(tried, InodeTry::Done(_));
        if done {
            self.writing.set_sparse();
        }
        Ok(done)
    }
}

impl RecordStoreView {
    /// Removes the data in `[start, end)`. Chunk 0 stays, if only empty: it says that inline data were moved already.
    fn punch_chunks(&self, ino: u64, start: u64, end: u64) -> Result<()> {
        let chunk_len = self.chunk_len();
        let ranges = if end.div_ceil(chunk_len) - start / chunk_len <= NAMED_MAX {
            vec![(start, end)]
        } else {
            // Whole chunks of what there is: a short one is removed for its few bytes, too.
            let found = self.data_within(ino, start, end)?;
            let whole = |at: u64| at.next_multiple_of(chunk_len).min(end);
            found
                .into_iter()
                .map(|(from, to)| ((from / chunk_len * chunk_len).max(start), whole(to)))
                .collect()
        };
        let all: Vec<_> = ranges
            .into_iter()
            .flat_map(|(from, to)| parts(chunk_len, from, (to - from) as usize))
            .map(|part| (self.chunk(ino, part.chunk_no), part))
            .collect();
        let mut ops: Vec<ClientOperation<'_>> = all
            .iter()
            .map(|(RecordLocation { key, partition }, part)| {
                let is_whole = part.len as u64 == chunk_len && part.chunk_no > 0;
                let punch = Action::Punch { key, offset: part.offset, len: part.len as u32 };
                let action = if is_whole { Action::Delete { key } } else { punch };
                Operation::new(*partition, [action]).into()
            })
            .collect();
        if ops.is_empty() { Ok(()) } else { self.run_all(&mut ops).map(drop) }
    }
}
