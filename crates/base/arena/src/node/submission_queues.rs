//! The node's side of [early completion](crate::submission): finds the entries that clients
//! have submitted, and locks records against more of them.
//!
//! Each table is worked on by the thread of one shard. Values read from it are checked, and copied
//! before they are used.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

use rustix::thread::futex;
use samite_cpu::this_core;
use samite_types::{ClientId, Epoch};
use smallvec::SmallVec;

use super::lookup_table::LookupTable;
use super::mapping::ArenaMapping;
use super::queue_owners::QueueOwners;
use crate::layout::ArenaLayout;
use crate::submission::{
    CONTENTS_LEN_MAX, HEADER_OFFSET, NODE_CORE_OFFSET, NODE_LOCKS, OPEN_OFFSET, QUEUE_SLOT_LEN,
    QUEUE_SLOTS, QUEUES, QueueSlotState, QueueWaiter, REFERENCE_OFFSET, RawSlotHeader,
    SOLE_CLIENT_OFFSET, SlotContents, SlotIndex, node_lock_offset, pending_offset, queue_offset,
    tag_of, waiter_offset,
};

/// Bytes of a slot that are mostly used.
const EXPECTED_LEN: usize = 320;

/// After so many entries the node looks whether a client waits for one of their slots: that look
/// waits until all cores know that they are free.
const SUBMISSIONS_PER_LOOK: u32 = 8;

/// So many entries of a queue can wait for the waiters on the node's core: about as many come
/// meanwhile, and as many again can wait.
const PENDING_MOST: u32 = QUEUE_SLOTS as u32 / 4;

/// The node lock of the entry that is carried out.
const OWN_LOCK: usize = 0;

/// The tables, as their node works on them.
pub(super) struct SubmissionQueues {
    mapping: Arc<ArenaMapping>,
    layout: ArenaLayout,
    owners: QueueOwners,
    /// The slot of each queue, counted from its first, that comes after the one that was looked at
    /// last. Clients use them in turns, so that is the slot that was filled first, and the one that
    /// a client waits for is soon free.
    next: Box<[AtomicU32]>,
    shards: Box<[ShardQueues]>,
}

/// What the node knows of a shard's table.
#[derive(Default)]
struct ShardQueues {
    /// One bit for each queue of which anything was looked at since a client was last woken on the
    /// core of the shard's thread.
    looked_at: AtomicU64,
    /// Clients may not submit.
    is_closed: AtomicBool,
    /// And all that was submitted until then is carried out.
    is_quiet: AtomicBool,
    /// Node locks in use, without that of the entry that is carried out.
    locks: AtomicU32,
}

/// Clients that were woken and wait on the core of this thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoreWaiters {
    /// None.
    Nobody,
    /// All that have submitted anything lately.
    All,
    /// Some: others have submitted, too.
    Some,
}

/// The first of these bits from `from` on, and around.
const fn first_from(bits: u64, from: u32) -> Option<u32> {
    let ahead = bits.rotate_right(from).trailing_zeros();
    if bits == 0 { None } else { Some((from + ahead) % u64::BITS) }
}

/// The core that this thread runs on now, as a [`QueueWaiter`] counts it.
fn own_core() -> u16 {
    this_core() as u16
}

/// A submission-queue entry: a copy of its slot.
#[derive(Clone, Debug)]
pub struct SubmissionEntry {
    raw: [u8; CONTENTS_LEN_MAX],
    len: usize,
    client: ClientId,
    slot: SlotIndex,
    /// The state word of the slot.
    word: u64,
    tag: u32,
    /// It has the node lock of the entry that is carried out, and no other.
    has_own_lock: bool,
}

/// Whether clients are kept from submitting changes of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LockConflict {
    /// By this node lock, to be [freed](SubmissionQueues::unlock_exclusive).
    Lock(usize),
    /// The table was closed before, and nothing is in it.
    Before,
    /// The whole table is closed, and is to be [opened](SubmissionQueues::open) again.
    Table,
}

/// Which entry's turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockTurn {
    /// That of the entry before this one, if there is one: memory that this one takes can be
    /// prefetched meanwhile.
    Before,
    /// That of this entry.
    Now,
}

impl SubmissionEntry {
    const EMPTY: Self = Self {
        raw: [0; CONTENTS_LEN_MAX],
        len: 0,
        client: ClientId(0),
        slot: SlotIndex { queue: 0, within: 0 },
        word: 0,
        tag: 0,
        has_own_lock: false,
    };

    /// The content of the slot; `None`: it makes no sense.
    #[must_use]
    pub fn contents(&self) -> Option<SlotContents<'_>> {
        SlotContents::read(&self.raw[..self.len])
    }

    /// The client that has the queue.
    #[must_use]
    pub const fn client(&self) -> ClientId {
        self.client
    }
}

impl SubmissionQueues {
    pub(super) fn new(mapping: Arc<ArenaMapping>, layout: &ArenaLayout) -> Self {
        let shards = layout.shards();
        let shard = |_| ShardQueues {
            is_closed: AtomicBool::new(true),
            is_quiet: AtomicBool::new(true),
            ..ShardQueues::default()
        };
        Self {
            owners: QueueOwners::new(Arc::clone(&mapping), layout),
            mapping,
            layout: *layout,
            next: (0..shards * QUEUES).map(|_| AtomicU32::new(0)).collect(),
            shards: (0..shards).map(shard).collect(),
        }
    }

    /// Gives a queue of each shard, the same in all, to a connection of this client; `None`: there
    /// is none left.
    pub(super) fn give(&self, client: ClientId) -> Option<usize> {
        self.owners.give(client)
    }

    /// The client of a queue has closed its connection, and what it submitted to this shard is
    /// carried out: frees what it was about to submit. When all shards have, another gets the
    /// queue.
    pub(super) fn clear(&self, part: u32, queue: usize) {
        for within in 0..QUEUE_SLOTS {
            let slot = SlotIndex { queue, within };
            self.word(part, slot.offset()).store(0, Ordering::Relaxed);
            self.flag(part, slot.tag_offset()).store(0, Ordering::Relaxed);
        }
        self.flag(part, waiter_offset(queue)).store(0, Ordering::Relaxed);
        self.pending(part, queue).store(0, Ordering::Relaxed);
        self.next(part, queue).store(0, Ordering::Relaxed);
        self.active(part, queue).store(0, Ordering::SeqCst);
        self.owners.cleared(queue);
    }

    /// Bytes that the changes in all slots of all queues take at most, about.
    pub(super) fn charge(&self) -> u64 {
        let queues = self.layout.shards() * (self.owners.count() + 1);
        (queues * QUEUE_SLOTS * 2 * QUEUE_SLOT_LEN) as u64
    }

    fn word(&self, part: u32, offset: usize) -> &AtomicU64 {
        self.mapping.long_word(self.layout.submissions_offset(part) + offset)
    }

    fn flag(&self, part: u32, offset: usize) -> &AtomicU32 {
        self.mapping.word(self.layout.submissions_offset(part) + offset)
    }

    /// The active bits of a queue.
    fn active(&self, part: u32, queue: usize) -> &AtomicU64 {
        self.word(part, queue_offset(queue))
    }

    /// The pending bits of a queue.
    fn pending(&self, part: u32, queue: usize) -> &AtomicU64 {
        self.word(part, pending_offset(queue))
    }

    /// The slot of a queue that is looked at next.
    fn next(&self, part: u32, queue: usize) -> &AtomicU32 {
        &self.next[part as usize * QUEUES + queue]
    }

    fn shard(&self, part: u32) -> &ShardQueues {
        &self.shards[part as usize]
    }

    /// Clients that serve by this map may submit from now on, or only one of them. Until now nobody
    /// might, or the same.
    pub(super) fn open(&self, part: u32, epoch: Epoch, only: Option<ClientId>) {
        let shard = self.shard(part);
        shard.is_closed.store(false, Ordering::Relaxed);
        shard.is_quiet.store(false, Ordering::Release);
        self.word(part, SOLE_CLIENT_OFFSET).store(only.map_or(0, ClientId::get), Ordering::SeqCst);
        self.word(part, OPEN_OFFSET).store(epoch.get(), Ordering::SeqCst);
    }

    /// No client may submit from now on. Entries that were submitted before are pending.
    pub(super) fn close(&self, part: u32) {
        self.word(part, OPEN_OFFSET).store(0, Ordering::SeqCst);
        // A client that takes a slot after this sees that.
        fence(Ordering::SeqCst);
        self.shard(part).is_closed.store(true, Ordering::Relaxed);
        for queue in self.owners.owned() {
            let mut bits = self.active(part, queue).load(Ordering::SeqCst);
            while let Some(within) = first_from(bits, 0) {
                bits &= bits - 1;
                self.revoke(part, SlotIndex { queue, within: within as usize });
            }
        }
    }

    /// Takes a slot from a client that has not submitted it. Returns its word then.
    fn revoke(&self, part: u32, slot: SlotIndex) -> u64 {
        let state = self.word(part, slot.offset());
        let word = state.load(Ordering::SeqCst);
        if QueueSlotState::of(word) != QueueSlotState::Claimed {
            return word;
        }
        let revoked = QueueSlotState::Revoked as u64;
        // If another thread was faster it is submitted now, or the client frees it: a slot that it
        // claims after this call began it cannot submit.
        match state.compare_exchange(word, revoked, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => revoked,
            Err(word) => word,
        }
    }

    /// Whether anything may be pending.
    pub(super) fn is_pending(&self, part: u32) -> bool {
        let has = |queue: usize| self.pending(part, queue).load(Ordering::Acquire) != 0;
        !self.shard(part).is_quiet.load(Ordering::Acquire) && self.owners.owned().any(has)
    }

    /// Whether more is pending in some queue than its client can go on with while others have their
    /// turn.
    pub(super) fn is_behind(&self, part: u32) -> bool {
        let count = |queue: usize| self.pending(part, queue).load(Ordering::Relaxed).count_ones();
        self.owners.owned().any(|queue| count(queue) > PENDING_MOST)
    }

    /// Gives `visit` all entries that were submitted before this call, each twice: before the one
    /// before it is carried out, and when it is to be carried out itself, and then
    /// [`SubmissionQueues::done`].
    ///
    /// Memory that is needed to retract or publish their records is prefetched before.
    pub(super) fn take_pending(
        &self,
        part: u32,
        table: &LookupTable,
        mut visit: impl FnMut(LockTurn, &SubmissionEntry),
    ) {
        let shard = self.shard(part);
        let is_closed = shard.is_closed.load(Ordering::Relaxed);
        let mut entries = [SubmissionEntry::EMPTY; 2];
        let (mut last, mut is_waiting) = (0, false);
        let mut carried_out = 0;
        let queues = self.queues_in_order(part, is_closed);
        for queue in &queues {
            // First the bits: a client that claims a slot anew sets its bit again.
            let mut bits = self.pending(part, *queue).swap(0, Ordering::SeqCst);
            if is_closed {
                // Nothing more comes: what is here is all there is, whatever was overwritten.
                bits |= self.active(part, *queue).load(Ordering::SeqCst);
            }
            let next = self.next(part, *queue);
            while let Some(within) = first_from(bits, next.load(Ordering::Relaxed)) {
                let slot = SlotIndex { queue: *queue, within: within as usize };
                bits &= !slot.bit();
                next.store((within + 1) % u64::BITS, Ordering::Relaxed);
                self.expect(part, table, *queue, (bits, within));
                let next = &mut entries[1 - last];
                if self.find(part, slot, next) {
                    table.expect_slot(part, next.hash());
                    visit(LockTurn::Before, next);
                    if is_waiting {
                        self.carry_out(part, &mut entries[last], &mut visit);
                        carried_out += 1;
                        if carried_out % SUBMISSIONS_PER_LOOK == 0 {
                            self.wake_elsewhere(part, entries[last].slot.queue);
                        }
                    }
                    (last, is_waiting) = (1 - last, true);
                }
            }
        }
        if is_waiting {
            self.carry_out(part, &mut entries[last], &mut visit);
        }
        for queue in queues {
            self.wake_elsewhere(part, queue);
        }
        shard.is_quiet.store(is_closed, Ordering::Release);
    }

    /// Has an entry carried out, if its mark stands: a client that did not see the mark, because it
    /// was overwritten, sees the node lock.
    fn carry_out(
        &self,
        part: u32,
        entry: &mut SubmissionEntry,
        visit: &mut impl FnMut(LockTurn, &SubmissionEntry),
    ) {
        self.flag(part, node_lock_offset(OWN_LOCK)).store(entry.tag, Ordering::SeqCst);
        entry.has_own_lock = true;
        if self.is_marked(part, entry) {
            visit(LockTurn::Now, entry);
        } else {
            // Its client cannot have submitted it: something has overwritten the queue.
            self.done(part, entry);
        }
    }

    /// Whether the slot of an entry is as it was, and says of which record it is.
    fn is_marked(&self, part: u32, entry: &SubmissionEntry) -> bool {
        let SubmissionEntry { slot, word, tag, .. } = *entry;
        self.word(part, slot.offset()).load(Ordering::SeqCst) == word
            && self.active(part, slot.queue).load(Ordering::SeqCst) & slot.bit() != 0
            && self.flag(part, slot.tag_offset()).load(Ordering::SeqCst) == tag
    }

    /// Queues in which anything may be pending. First those whose clients wait on another core,
    /// where they can go on beside this thread; last those whose clients can go on when it has
    /// nothing more to do.
    fn queues_in_order(&self, part: u32, is_closed: bool) -> SmallVec<[usize; QUEUES]> {
        let has_any = |queue: &usize| {
            self.pending(part, *queue).load(Ordering::Acquire) != 0
                || is_closed && self.active(part, *queue).load(Ordering::SeqCst) != 0
        };
        let mut queues: SmallVec<_> = self.owners.owned().filter(has_any).collect();
        let all = queues.iter().fold(0, |all, queue| all | 1_u64 << queue);
        self.shard(part).looked_at.fetch_or(all, Ordering::Relaxed);
        let here = own_core();
        self.say_core(part, here);
        if queues.len() > 1 {
            queues.sort_by_key(|queue| match self.waiter(part, *queue) {
                Some(waiter) if waiter.core == here => 2,
                Some(_) => 0,
                None => 1,
            });
        }
        queues
    }

    /// Says on which core entries are carried out.
    fn say_core(&self, part: u32, core: u16) {
        let word = self.flag(part, NODE_CORE_OFFSET);
        // Every client reads the word: it is changed no more often than it has to be.
        if word.load(Ordering::Relaxed) != u32::from(core) {
            word.store(u32::from(core), Ordering::Relaxed);
        }
    }

    /// Prefetch: the first slots of these bits after the one at `within` will be looked at next. A
    /// client has written to them on another core.
    fn expect(&self, part: u32, table: &LookupTable, queue: usize, (bits, within): (u64, u32)) {
        let start = self.layout.submissions_offset(part);
        let Some(next) = first_from(bits, within) else { return };
        let slot_of = |within: u32| SlotIndex { queue, within: within as usize };
        if let Some(label) = self.header(part, slot_of(next)).checked() {
            table.expect(part, label.hash);
        }
        if let Some(next_but_one) = first_from(bits & !(1 << next), next).map(slot_of) {
            self.mapping.prefetch(start + next_but_one.offset(), EXPECTED_LEN);
        }
    }

    /// Copies the entry of a slot whose bit was taken, if there is one. What says that it is
    /// submitted, and is not what its client has submitted, is thrown away.
    fn find(&self, part: u32, slot: SlotIndex, entry: &mut SubmissionEntry) -> bool {
        let word = self.word(part, slot.offset()).load(Ordering::SeqCst);
        match QueueSlotState::of(word) {
            QueueSlotState::Submitted => self.copy(part, (slot, word), entry),
            QueueSlotState::Claimed => {
                // It is about to be submitted, or just was: to be looked at the next time.
                self.pending(part, slot.queue).fetch_or(slot.bit(), Ordering::SeqCst);
                false
            }
            QueueSlotState::Free | QueueSlotState::Revoked => false,
        }
    }

    /// Copies a slot with this word, which says that it is submitted, and checks the copy.
    fn copy(&self, part: u32, (slot, word): (SlotIndex, u64), entry: &mut SubmissionEntry) -> bool {
        (entry.slot, entry.word, entry.has_own_lock) = (slot, word, false);
        entry.client = self.owners.owner(slot.queue);
        entry.len = self.header(part, slot).checked().map_or(0, |label| label.len());
        self.copy_out(part, slot.offset() + HEADER_OFFSET, &mut entry.raw[..entry.len]);
        entry.tag = tag_of(entry.hash());
        let is_right = entry.contents().is_some()
            && QueueSlotState::submitted(entry.client, slot, &entry.raw[..entry.len]) == word;
        if !is_right {
            // Its client cannot have submitted that.
            self.done(part, entry);
        }
        is_right
    }

    fn header(&self, part: u32, slot: SlotIndex) -> RawSlotHeader {
        let mut raw = [0; size_of::<RawSlotHeader>()];
        self.copy_out(part, slot.offset() + HEADER_OFFSET, &mut raw);
        zerocopy::transmute!(raw)
    }

    fn copy_out(&self, part: u32, offset: usize, dest: &mut [u8]) {
        let source =
            self.mapping.at((self.layout.submissions_offset(part) + offset) as u64, dest.len());
        // SAFETY: slots lie within the mapping, as the layout says. Nobody writes to one that is
        // submitted; whatever a client that keeps to no rule leaves there is checked in the copy.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), dest.as_mut_ptr(), dest.len()) };
    }

    /// It is about to be carried out, and takes an open reference under `token`. Returns whether
    /// that is still wanted: from then on it ends as any other.
    pub(super) fn keeps_reference(&self, part: u32, entry: &SubmissionEntry, token: u64) -> bool {
        let word = self.word(part, entry.slot.offset() + REFERENCE_OFFSET);
        token != 0 && word.compare_exchange(token, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// It was carried out, and the look-up table shows that; or it is thrown away.
    pub(super) fn done(&self, part: u32, entry: &SubmissionEntry) {
        let slot = entry.slot;
        // The mark first: the next one who claims the slot sets its own.
        self.active(part, slot.queue).fetch_and(!slot.bit(), Ordering::Release);
        self.word(part, slot.offset()).store(0, Ordering::Release);
        if entry.has_own_lock {
            self.flag(part, node_lock_offset(OWN_LOCK)).store(0, Ordering::Release);
        }
    }

    /// Wakes the client that waits on another core for a slot of a queue that is free now.
    fn wake_elsewhere(&self, part: u32, queue: usize) {
        // A waiter says so before it looks at the slot again.
        fence(Ordering::SeqCst);
        if let Some(waiter) = self.waiter(part, queue)
            && waiter.core != own_core()
            && self.is_free(part, SlotIndex { queue, within: waiter.within })
        {
            self.wake(part, queue);
        }
    }

    fn is_free(&self, part: u32, slot: SlotIndex) -> bool {
        self.word(part, slot.offset()).load(Ordering::SeqCst) == 0
    }

    fn waiter(&self, part: u32, queue: usize) -> Option<QueueWaiter> {
        QueueWaiter::read(self.flag(part, waiter_offset(queue)).load(Ordering::SeqCst))
    }

    fn wake(&self, part: u32, queue: usize) {
        let word = self.flag(part, waiter_offset(queue));
        word.store(0, Ordering::Relaxed);
        let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
    }

    /// Wakes clients that wait for a slot that is free. Returns which of them sleep on this
    /// thread's core.
    pub(super) fn wake_core_waiters(&self, part: u32) -> CoreWaiters {
        let (here, mut near) = (own_core(), 0);
        for queue in self.owners.owned() {
            let Some(waiter) = self.waiter(part, queue) else { continue };
            if self.is_free(part, SlotIndex { queue, within: waiter.within }) {
                near |= u64::from(waiter.core == here) << queue;
                self.wake(part, queue);
            }
        }
        if near == 0 {
            return CoreWaiters::Nobody;
        }
        let others = self.shard(part).looked_at.swap(0, Ordering::Relaxed) & !near;
        if others == 0 { CoreWaiters::All } else { CoreWaiters::Some }
    }

    /// A record of this hash is to be changed: keeps clients from submitting changes of it, and
    /// takes the entry that was submitted, which is to be carried out before, and
    /// [done](Self::done).
    pub(super) fn lock_exclusive(
        &self,
        part: u32,
        hash: u64,
        mut visit: impl FnMut(&SubmissionEntry),
    ) -> LockConflict {
        let (shard, tag) = (self.shard(part), tag_of(hash));
        if shard.is_quiet.load(Ordering::Relaxed) {
            return LockConflict::Before;
        }
        let lock = 1 + shard.locks.load(Ordering::Relaxed) as usize;
        let conflict = if lock < NODE_LOCKS {
            shard.locks.fetch_add(1, Ordering::Relaxed);
            self.flag(part, node_lock_offset(lock)).store(tag, Ordering::SeqCst);
            LockConflict::Lock(lock)
        } else {
            self.close(part);
            LockConflict::Table
        };
        // A client that marks the record after that sees it.
        fence(Ordering::SeqCst);
        for queue in self.owners.owned() {
            let mut bits = self.active(part, queue).load(Ordering::SeqCst);
            while let Some(within) = first_from(bits, 0) {
                bits &= bits - 1;
                let slot = SlotIndex { queue, within: within as usize };
                if self.flag(part, slot.tag_offset()).load(Ordering::SeqCst) == tag {
                    self.take_over(part, slot, tag, &mut visit);
                }
            }
        }
        conflict
    }

    /// Revokes a slot with this tag, or has the entry in it carried out.
    fn take_over(
        &self,
        part: u32,
        slot: SlotIndex,
        tag: u32,
        visit: &mut impl FnMut(&SubmissionEntry),
    ) {
        let word = self.revoke(part, slot);
        if QueueSlotState::of(word) != QueueSlotState::Submitted {
            return;
        }
        let mut entry = SubmissionEntry::EMPTY;
        if self.copy(part, (slot, word), &mut entry) {
            if entry.tag == tag && self.is_marked(part, &entry) {
                visit(&entry);
            } else {
                self.done(part, &entry);
            }
        }
        self.wake_elsewhere(part, slot.queue);
    }

    /// Frees a node lock: the record is changed. All locks of a shard are freed before it takes one
    /// again.
    pub(super) fn unlock_exclusive(&self, part: u32, lock: usize) {
        self.flag(part, node_lock_offset(lock)).store(0, Ordering::Release);
        self.shard(part).locks.fetch_sub(1, Ordering::Relaxed);
    }
}

impl SubmissionEntry {
    /// Hash of the record that it is about, as its header says; 0: it has none.
    pub(super) fn hash(&self) -> u64 {
        self.contents().map_or(0, |contents| contents.label.hash)
    }
}

#[cfg(test)]
mod tests;
