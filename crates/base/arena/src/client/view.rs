//! A client's view of the node's arena.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

use samite_types::{Clock, Epoch, Error, ErrorKind, PartitionId, Result, SystemClock};
use samite_wire::limits::BLOCK_LEN;
use samite_wire::op::{BlockRef, List};
use zerocopy::FromBytes;

use super::submission::NextSubmission;
use super::{BlockGrant, WritableBlock};
use crate::layout::{ArenaLayout, HEADER_LEN};
use crate::lookup::{
    ALIVE_MASK, ALIVE_OFFSET, BUCKET_LEN, BUCKET_WORDS, GENERATION_OFFSET, HEAD_LEN as SHOWN_LEN,
    LookupHead, LookupSlot, NAME_SPACE_OFFSET, OWNED_OFFSET, RecordId, SEQUENCE_OFFSET, SLOT_LEN,
    VALID_ALWAYS, VALID_OFFSET, indexed_slot, may_know,
};
use crate::mapping::{SharedMapping, file_len};
use crate::submission::{QUEUE_LEN, QUEUES, queue_offset};

/// Most bytes that are fetched ahead of a copy: the page's address and the first lines, after which
/// the processor sees by itself what comes next. Fetching all of 4 KiB made copies slower.
const PREFETCH_LEN_MAX: usize = 256;

/// The node's arena, mapped into the client. References into it are checked, so a wrong one is refused, never followed.
#[derive(Debug)]
pub struct ArenaView {
    mapping: SharedMapping,
    layout: ArenaLayout,
    pub(super) turn: NextSubmission,
}

impl ArenaView {
    /// Maps the arena in `fd`, with the submission queue that the node has given to the connection,
    /// if it has.
    ///
    /// # Errors
    /// `Corrupt`: it is no arena, or has no such queue; `Io`: the operating system refused.
    pub fn map(fd: &OwnedFd, queue: Option<u16>) -> Result<Self> {
        let failed = |errno| Error::io("map the node's arena", errno);
        let len = file_len(fd.as_fd()).map_err(failed)?;
        let mapped_len = usize::try_from(len)
            .ok()
            .filter(|len| *len >= HEADER_LEN)
            .ok_or_else(|| Error::new(ErrorKind::Corrupt, "arena is too short or too long"))?;
        let mapping = SharedMapping::read_only(fd, mapped_len).map_err(failed)?;
        let mut header = [0; HEADER_LEN];
        // SAFETY: the mapping is at least that long; the node wrote the header before it shared the file.
        unsafe {
            std::ptr::copy_nonoverlapping(
                mapping.at(0, HEADER_LEN),
                header.as_mut_ptr(),
                HEADER_LEN,
            );
        }
        let layout = ArenaLayout::read(&header, len)?;
        let queue = queue.map(usize::from);
        if queue.is_some_and(|queue| queue >= QUEUES) {
            return Err(Error::new(ErrorKind::Corrupt, "the node gave a queue that is not there"));
        }
        for (part, queue) in (0..layout.shards() as u32).flat_map(|part| Some(part).zip(queue)) {
            let offset = layout.submissions_offset(part) + queue_offset(queue);
            mapping.set_writable(offset, QUEUE_LEN, true).map_err(failed)?;
        }
        Ok(Self { mapping, layout, turn: NextSubmission::new(queue) })
    }

    /// Makes all of the arena read-only to this process: the connection is about to be closed, and
    /// others may get its queue and the blocks that were granted to it. From then on nothing may be
    /// submitted or filled with this view, and no open reference ended.
    pub fn give_back(&self) {
        // It makes one mapping of several, which no limit forbids.
        let _ = self.mapping.set_writable(0, self.layout.total_len() as usize, false);
    }

    /// Copies the bytes that `block` names to the front of `dest`, which is at least that long.
    ///
    /// `false`: the node has used the block for something else since it made the reference (or the reference
    /// is out of bounds); what is in `dest` is worthless, and the caller asks again.
    #[must_use]
    pub fn copy_out(&self, block: &BlockRef, dest: &mut [u8]) -> bool {
        let Some(index) = self.layout.block_of(block.offset, block.len) else { return false };
        let Some(generation_offset) = self.layout.generation_offset(index) else { return false };
        let len = block.len as usize;
        let Some(dest) = dest.get_mut(..len) else { return false };
        let generation = self.mapping.word(generation_offset);
        if generation.load(Ordering::Acquire) != block.generation {
            return false;
        }
        let source = self.mapping.at(block.offset as usize, len);
        // SAFETY: both ranges are in bounds and of different memory. The node may change the bytes meanwhile;
        // then the copy is thrown away, as the generation tells.
        unsafe { std::ptr::copy_nonoverlapping(source, dest.as_mut_ptr(), len) };
        fence(Ordering::Acquire);
        generation.load(Ordering::Relaxed) == block.generation
    }

    /// Prefetch: the first bytes that `block` names will be copied out soon.
    pub fn expect_copy(&self, block: &BlockRef) {
        if self.layout.block_of(block.offset, block.len).is_some() {
            let len = (block.len as usize).min(PREFETCH_LEN_MAX);
            self.mapping.prefetch(block.offset as usize, len);
        }
    }

    /// Makes granted blocks that follow each other writable to this process. `false`: one lies
    /// outside of the arena, or the process has too many mappings; none of them is writable.
    pub(super) fn open_blocks(&self, run: &[BlockGrant]) -> bool {
        let is_inside =
            |grant: &BlockGrant| self.layout.block_of(grant.offset, BLOCK_LEN as u32).is_some();
        if !run.iter().all(is_inside) || !run.windows(2).all(|two| two[0].is_before(&two[1])) {
            return false;
        }
        let (offset, len) = (run[0].offset as usize, run.len() * BLOCK_LEN);
        let opened = self.mapping.set_writable(offset, len, true).is_ok();
        if !opened {
            // Some of the pages may be.
            let _ = self.mapping.set_writable(offset, len, false);
        }
        opened
    }

    /// Copies `bytes` into granted blocks, in this order and from the start of each, and makes the
    /// references to send with a request. From then on this process can only read the blocks.
    ///
    /// `None`: there are more bytes than the blocks hold, or the process has too many mappings. The
    /// blocks are to be used for something else, or not at all.
    #[must_use]
    pub fn fill(&self, blocks: &[WritableBlock], bytes: &[u8]) -> Option<List<BlockRef, 16>> {
        let pieces = bytes.chunks(BLOCK_LEN);
        if pieces.len() > blocks.len() {
            return None;
        }
        let refer = |(block, piece): (&WritableBlock, &[u8])| {
            let BlockGrant { offset, generation } = BlockGrant::from(*block);
            BlockRef { offset, len: piece.len() as u32, generation }
        };
        let filled: List<_, 16> = blocks.iter().zip(pieces).map(refer).collect();
        let mut rest = bytes;
        let follows = |a: &BlockRef, b: &BlockRef| a.offset + BLOCK_LEN as u64 == b.offset;
        for run in filled.chunk_by(follows) {
            let piece;
            (piece, rest) = rest.split_at(rest.len().min(run.len() * BLOCK_LEN));
            let offset = run[0].offset as usize;
            self.copy_to(offset, piece);
            self.mapping.set_writable(offset, run.len() * BLOCK_LEN, false).ok()?;
        }
        Some(filled)
    }

    /// Copies `bytes` to the start of writable blocks that lie at `offset`.
    fn copy_to(&self, offset: usize, bytes: &[u8]) {
        (offset..offset + bytes.len()).step_by(BLOCK_LEN).for_each(|at| self.touch(at));
        let dest = self.mapping.at(offset, bytes.len());
        // SAFETY: in bounds, as `at` checks, and writable, as the blocks' type says; they are granted
        // to this connection, so that the node does not touch them until they come back in a request.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), dest, bytes.len()) };
    }

    /// The record `id` as the node publishes it to clients of its host ([`crate::lookup`]),
    /// for a caller with name-space generation `name_space`; its first bytes are put to the front
    /// of `dest`. `None`: ask the node.
    #[must_use]
    pub fn head(
        &self,
        id: &RecordId<'_>,
        name_space: Epoch,
        dest: &mut [u8; SHOWN_LEN],
    ) -> Option<LookupHead> {
        let table = self.layout.lookup_offset() as usize;
        let generation = self.mapping.word(table + GENERATION_OFFSET).load(Ordering::Acquire);
        let (hash, part) = (id.hash(), self.part_of(id.partition));
        // Before the slot: an entry that was submitted before this call began, and carried out
        // since, is seen there.
        if self.is_submitted(part, hash) {
            return None;
        }
        let head = self.slots_of(part, hash).find_map(|slot| {
            self.slot(self.layout.lookup_slot_offset(part, slot)?)?.publish(id, generation, dest)
        })?;
        self.speaks_for(name_space).then_some(head)
    }

    /// Whether the node has none of these records, for a caller with name-space generation
    /// `name_space` that has marked them in its queue, or knows otherwise that they do not come
    /// into being. `false`: it may have.
    #[must_use]
    pub fn has_none(&self, ids: &[RecordId<'_>], name_space: Epoch) -> bool {
        let is_absent = |id: &RecordId<'_>| {
            let hash = id.hash();
            let bucket = self.layout.lookup_bucket_offset(self.part_of(id.partition), hash);
            (0..BUCKET_WORDS).all(|at| {
                let word = self.mapping.long_word(bucket + at * size_of::<u64>());
                !may_know(u64::from_le(word.load(Ordering::Acquire)), hash)
            })
        };
        ids.iter().all(is_absent) && self.speaks_for(name_space)
    }

    /// Prefetch: a record's bucket of the look-up table will be needed soon.
    pub(super) fn expect(&self, part: u32, hash: u64) {
        let bucket = self.layout.lookup_bucket_offset(part, hash);
        self.mapping.prefetch(bucket, BUCKET_LEN);
    }

    /// Prefetch: a record's slot of the look-up table will be needed next.
    pub(super) fn expect_slot(&self, part: u32, hash: u64) {
        let slot = self.slots_of(part, hash).next();
        if let Some(offset) = slot.and_then(|slot| self.layout.lookup_slot_offset(part, slot)) {
            self.mapping.prefetch(offset, SLOT_LEN);
        }
    }

    /// Slots in which the look-up table may have a record of this hash.
    fn slots_of(&self, part: u32, hash: u64) -> impl Iterator<Item = u32> {
        let bucket = self.layout.lookup_bucket_offset(part, hash);
        (0..BUCKET_WORDS).filter_map(move |at| {
            let word = self.mapping.long_word(bucket + at * size_of::<u64>());
            indexed_slot(u64::from_le(word.load(Ordering::Acquire)), hash)
        })
    }

    /// Whether what was read of the look-up table before this call was right for a caller with this
    /// name-space generation. A generation that was raised, or a node that was stopped, before the
    /// call that asks began is seen.
    fn speaks_for(&self, name_space: Epoch) -> bool {
        let table = self.layout.lookup_offset() as usize;
        let required = self.mapping.long_word(table + NAME_SPACE_OFFSET).load(Ordering::Acquire);
        let alive = self.mapping.word(table + ALIVE_OFFSET).load(Ordering::Acquire);
        name_space.get() >= required && alive & ALIVE_MASK != 0 && self.is_table_valid()
    }

    /// The part of the look-up table, and of the submission queues, for the records of a partition.
    pub(super) const fn part_of(&self, partition: PartitionId) -> u32 {
        self.layout.lookup_part(partition)
    }

    /// The queues that have an owner, as bits.
    pub(super) fn owned_queues(&self) -> u64 {
        let offset = self.layout.lookup_offset() as usize + OWNED_OFFSET;
        self.mapping.long_word(offset).load(Ordering::SeqCst)
    }

    /// A word of a shard's submission queues.
    pub(super) fn queue_word(&self, part: u32, offset: usize) -> &AtomicU64 {
        self.mapping.long_word(self.layout.submissions_offset(part) + offset)
    }

    /// A short word of a shard's submission queues.
    pub(super) fn queue_flag(&self, part: u32, offset: usize) -> &AtomicU32 {
        self.mapping.word(self.layout.submissions_offset(part) + offset)
    }

    /// Address of something in a shard's submission queues.
    pub(super) fn queue_at(&self, part: u32, offset: usize, len: usize) -> *mut u8 {
        self.mapping.at(self.layout.submissions_offset(part) + offset, len)
    }

    /// Whether the node speaks for its records now, at a time after this call has begun.
    fn is_table_valid(&self) -> bool {
        let offset = self.layout.lookup_offset() as usize + VALID_OFFSET;
        let until = self.mapping.long_word(offset).load(Ordering::Acquire);
        until == VALID_ALWAYS || SystemClock.monotonic() < Duration::from_nanos(until)
    }

    /// A slot of the look-up table, unless it is being written.
    fn slot(&self, offset: usize) -> Option<LookupSlot> {
        let sequence = self.mapping.word(offset + SEQUENCE_OFFSET);
        let before = sequence.load(Ordering::Acquire);
        let mut raw = [0; SLOT_LEN];
        let source = self.mapping.at(offset, SLOT_LEN);
        // SAFETY: in bounds, as the layout says. The node may change the bytes meanwhile; then the copy is thrown away,
        // as the sequence number tells.
        unsafe { std::ptr::copy_nonoverlapping(source, raw.as_mut_ptr(), SLOT_LEN) };
        fence(Ordering::Acquire);
        let is_whole = before.is_multiple_of(2) && sequence.load(Ordering::Relaxed) == before;
        LookupSlot::read_from_bytes(&raw).ok().filter(|_| is_whole)
    }

    /// Reads a byte of a block that is to be written. A page that is missing in this process's
    /// page table brings its neighbours along when it is read, sixteen at a time, which are
    /// writable from then on; when it is written it comes alone.
    fn touch(&self, offset: usize) {
        // SAFETY: the mapping says that the byte is in bounds. Others may change it meanwhile;
        // nobody looks at what was read.
        unsafe { self.mapping.at(offset, 1).read_volatile() };
    }

    /// In a forked child: lets go of the node's memory. What still looks there reads zeros.
    pub fn detach(&self) {
        self.mapping.detach();
    }
}

#[cfg(test)]
pub(super) mod tests {
    use crate::lookup::index_word;
    use samite_types::{DatasetId, Version};
    use zerocopy::IntoBytes;

    use super::*;
    use crate::GrantPool;
    use crate::mapping::memory_file;

    pub(in crate::client) fn arena() -> (SharedMapping, ArenaView, ArenaLayout) {
        let layout = ArenaLayout::new(4, 1).unwrap();
        let len = layout.total_len() as usize;
        let file = memory_file("test-arena", len).unwrap();
        let node = SharedMapping::new(&file, len).unwrap();
        let header = layout.header();
        // SAFETY: the mapping is longer than a header.
        unsafe {
            std::ptr::copy_nonoverlapping(
                header.as_bytes().as_ptr(),
                node.at(0, HEADER_LEN),
                HEADER_LEN,
            );
        }
        (node, ArenaView::map(&file, Some(3)).unwrap(), layout)
    }

    #[test]
    fn what_is_copied_in_is_copied_out() {
        let (node, view, layout) = arena();
        for (block, len) in [(0, 1), (1, 5000), (3, BLOCK_LEN)] {
            node.word(layout.generation_offset(block).unwrap()).store(7, Ordering::SeqCst);
            let grant = BlockGrant { offset: layout.block_offset(block).unwrap(), generation: 7 };
            let bytes: Vec<u8> = (0..len).map(|at| at as u8).collect();
            let reference = view.fill(&writable_blocks(&view, &[grant]), &bytes).unwrap()[0];
            let mut dest = vec![0xff; len + 3];
            assert!(view.copy_out(&reference, &mut dest));
            assert_eq!(dest[..len], bytes);
            assert_eq!(dest[len..], [0xff; 3]);
        }
    }

    fn writable_blocks(view: &ArenaView, grants: &[BlockGrant]) -> List<WritableBlock, 16> {
        let pool = GrantPool::default();
        pool.add(grants.iter().copied());
        pool.take(view, grants.len()).unwrap()
    }

    /// Access of this process to each page of its mapping of the arena, as the kernel tells.
    fn writable(view: &ArenaView) -> Vec<std::ops::Range<usize>> {
        let len = view.layout.total_len() as usize;
        let start = view.mapping.at(0, len) as usize;
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let hex = |word: &str| usize::from_str_radix(word, 16).unwrap();
        let lines = maps.lines().filter_map(|line| line.split_once(' '));
        let ranges = lines.filter(|(_, rest)| rest.starts_with("rw")).filter_map(|(range, _)| {
            let (from, to) = range.split_once('-')?;
            let (from, to) = (hex(from).max(start), hex(to).min(start + len));
            (from < to).then(|| from - start..to - start)
        });
        ranges.collect()
    }

    #[test]
    fn only_the_own_queue_and_grants_are_writable_to_a_client() {
        let (_node, view, layout) = arena();
        let queue = layout.submissions_offset(0) + queue_offset(3);
        let own = queue..queue + QUEUE_LEN;
        assert_eq!(writable(&view), std::slice::from_ref(&own));
        let at = |block| layout.block_offset(block).unwrap();
        let grants = [2, 0, 3].map(|block| BlockGrant { offset: at(block), generation: 1 });
        let bytes: Vec<u8> = (0..2 * BLOCK_LEN + 7).map(|at| (at / 3) as u8).collect();
        let open = writable_blocks(&view, &grants);
        let range = |block, count| at(block) as usize..at(block) as usize + count * BLOCK_LEN;
        assert_eq!(writable(&view), [own.clone(), range(0, 1), range(2, 2)]);
        let blocks = view.fill(&open, &bytes).unwrap();
        assert_eq!(blocks.iter().map(|block| block.len).collect::<Vec<_>>(), [65536, 65536, 7]);
        assert_eq!(writable(&view), std::slice::from_ref(&own), "no block after it was filled");
        let mut dest = vec![0; bytes.len()];
        for (block, piece) in blocks.iter().zip(dest.chunks_mut(BLOCK_LEN)) {
            let from = view.mapping.at(block.offset as usize, piece.len());
            // SAFETY: in bounds, and nobody writes to it.
            unsafe { std::ptr::copy_nonoverlapping(from, piece.as_mut_ptr(), piece.len()) };
        }
        assert!(dest == bytes);
        view.give_back();
        assert_eq!(writable(&view), []);
    }

    #[test]
    fn grants_are_made_writable_together_and_closed_one_by_one() {
        let (_node, view, layout) = arena();
        let at = |block| layout.block_offset(block).unwrap() as usize;
        let range = |first, last| Some(at(first)..at(last) + BLOCK_LEN);
        // One range behind the queue, if any.
        let open = || {
            let mut ranges = writable(&view).into_iter().skip(1);
            let first = ranges.next();
            assert_eq!(ranges.next(), None);
            first
        };
        let grant =
            |block| BlockGrant { offset: layout.block_offset(block).unwrap(), generation: 1 };
        let pool = GrantPool::default();
        assert!(pool.take(&view, 1).is_none() && pool.is_empty());
        pool.add([3, 1, 2].map(grant));
        assert!(pool.take(&view, 4).is_none() && open().is_none(), "nothing is opened in vain");
        let first = pool.take(&view, 1).unwrap();
        assert_eq!((open(), pool.len()), (range(1, 3), 2));
        assert_eq!(view.fill(&first, &[7; 10]).unwrap()[0].offset, grant(1).offset);
        assert_eq!(open(), range(2, 3));
        pool.add([grant(0)]);
        let next = pool.take(&view, 2).unwrap();
        assert_eq!(open(), range(2, 3), "there were enough");
        assert!(view.fill(&next, &vec![0; 2 * BLOCK_LEN + 1]).is_none());
        assert_eq!(view.fill(&next, &vec![8; 2 * BLOCK_LEN]).unwrap().len(), 2);
        assert_eq!(open(), None);
        // One that lies outside is never taken.
        pool.add([BlockGrant { offset: layout.total_len(), generation: 1 }]);
        assert!(pool.take(&view, 2).is_none());
        assert_eq!(BlockGrant::from(pool.take(&view, 1).unwrap()[0]), grant(0));
    }

    #[test]
    fn a_block_that_was_used_again_is_noticed() {
        let (node, view, layout) = arena();
        let offset = layout.block_offset(2).unwrap();
        let reference = BlockRef { offset, len: 10, generation: 2 };
        assert!(!view.copy_out(&reference, &mut [0; 10]));
        node.word(layout.generation_offset(2).unwrap()).store(2, Ordering::SeqCst);
        assert!(view.copy_out(&reference, &mut [0; 10]));
        node.word(layout.generation_offset(2).unwrap()).store(3, Ordering::SeqCst);
        assert!(!view.copy_out(&reference, &mut [0; 10]));
    }

    #[test]
    fn references_that_lead_outside_are_refused() {
        let (_node, view, layout) = arena();
        let offset = layout.block_offset(0).unwrap();
        let mut dest = vec![0; 2 * BLOCK_LEN];
        for (offset, len) in [
            (0, 10),
            (offset - 1, 10),
            (offset + 1, BLOCK_LEN as u32),
            (layout.total_len(), 1),
            (u64::MAX, 1),
            (offset, u32::MAX),
        ] {
            let generation = 0;
            assert!(!view.copy_out(&BlockRef { offset, len, generation }, &mut dest), "{offset}");
        }
        assert!(!view.copy_out(&BlockRef { offset, len: 10, generation: 0 }, &mut dest[..9]));
        for offset in [layout.total_len(), offset + 1, 0, u64::MAX - BLOCK_LEN as u64 + 1] {
            assert!(!view.open_blocks(&[BlockGrant { offset, generation: 0 }]), "{offset}");
        }
    }

    #[test]
    fn a_record_is_shown_for_as_long_as_its_node_speaks_for_it() {
        let (node, view, layout) = arena();
        let id = RecordId { dataset: DatasetId(1), partition: PartitionId(2), key: b"k" };
        let slot = LookupSlot::new(&id, 0, Version(7), 500, &[9; SHOWN_LEN]).unwrap();
        let part = layout.lookup_part(id.partition);
        let at = layout.lookup_slot_offset(part, 5).unwrap();
        let word = node.long_word(layout.lookup_bucket_offset(part, id.hash()));
        word.store(index_word(id.hash(), 5).to_le(), Ordering::SeqCst);
        // SAFETY: the layout says that a slot is there.
        unsafe {
            let raw = slot.as_bytes();
            std::ptr::copy_nonoverlapping(raw.as_ptr(), node.at(at, SLOT_LEN), SLOT_LEN);
        }
        let table = layout.lookup_offset() as usize;
        node.word(table + ALIVE_OFFSET).store(1, Ordering::SeqCst);
        let shown = |until: u64| {
            node.long_word(table + VALID_OFFSET).store(until, Ordering::SeqCst);
            view.head(&id, Epoch(0), &mut [0; SHOWN_LEN]).map(|head| head.version)
        };
        let now = SystemClock.monotonic().as_nanos() as u64;
        assert_eq!(shown(VALID_ALWAYS), Some(Version(7)));
        assert_eq!(shown(now + 3_600_000_000_000), Some(Version(7)));
        assert_eq!(shown(now), None, "the time is over");
        assert_eq!(shown(0), None);
        // A word that leads nowhere.
        let astray = index_word(id.hash(), layout.lookup_part_slots());
        word.store(astray.to_le(), Ordering::SeqCst);
        assert_eq!(shown(VALID_ALWAYS), None);
    }

    #[test]
    fn memory_that_is_no_arena_and_queues_that_are_not_there_are_refused() {
        let file = memory_file("test-arena", 1 << 20).unwrap();
        assert_eq!(ArenaView::map(&file, None).unwrap_err().kind(), ErrorKind::Corrupt);
        let (node, _, layout) = arena();
        let file = memory_file("test-arena", layout.total_len() as usize).unwrap();
        let header = SharedMapping::new(&file, HEADER_LEN).unwrap();
        // SAFETY: both are as long as a header.
        unsafe {
            std::ptr::copy_nonoverlapping(
                node.at(0, HEADER_LEN),
                header.at(0, HEADER_LEN),
                HEADER_LEN,
            );
        }
        let astray = ArenaView::map(&file, Some(QUEUES as u16));
        assert_eq!(astray.unwrap_err().kind(), ErrorKind::Corrupt, "there is no such queue");
        let file = memory_file("test-arena", 8).unwrap();
        assert_eq!(ArenaView::map(&file, None).unwrap_err().kind(), ErrorKind::Corrupt);
    }
}
