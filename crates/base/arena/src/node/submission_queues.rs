//! The node's side of [early completion](crate::submission): finds the entries that clients
//! have submitted, and locks records against more of them.
//!
//! Each table is worked on by the thread of one shard. Values read from it are checked, and copied
//! before they are used.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use rustix::thread::futex;
use samite_types::{ClientId, Epoch};
use smallvec::SmallVec;

use super::lookup_table::LookupTable;
use super::mapping::ArenaMapping;
use crate::layout::ArenaLayout;
use crate::submission::{
    LockWord, LockWordState, NODE_CORE_OFFSET, OPEN_OFFSET, QUEUE_SLOT_LEN, QUEUE_SLOTS, QUEUES,
    QueueWaiter, REFERENCE_OFFSET, REQUEST_OFFSET, RawSlotHeader, SOLE_CLIENT_OFFSET, SlotContents,
    TABLE_SLOTS, lock_word_of, lock_word_offset, owner_offset, pending_bit, pending_offset,
    queue_of, queue_offset, slot_offset,
};

/// How often the node tries to lock a record lock word that clients claim and free meanwhile.
const LOCK_TRIES_MAX: u32 = 64;

/// Bytes of a slot that are mostly used.
const EXPECTED_LEN: usize = 320;

/// After so many entries the node looks whether a client waits for one of their slots: that look
/// waits until all cores know that they are free.
const SUBMISSIONS_PER_LOOK: u32 = 8;

/// So many entries of a queue can wait for the waiters on the node's core: about as many come
/// meanwhile, and as many again can wait.
const PENDING_MOST: u32 = QUEUE_SLOTS as u32 / 4;

/// The tables, as their node works on them.
pub(super) struct SubmissionQueues {
    mapping: Arc<ArenaMapping>,
    layout: ArenaLayout,
    /// The slot of each queue, counted from its first, that comes after the one that was looked at
    /// last. Clients use them in turns, so that is the slot that was filled first, and the one that
    /// a client waits for is soon free.
    next: Box<[AtomicU32]>,
    /// For each shard, one bit for each queue of which anything was looked at since a client was
    /// last woken on the core of the shard's thread.
    looked_at: Box<[AtomicU32]>,
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
fn this_core() -> u16 {
    (rustix::thread::sched_getcpu() + 1) as u16
}

/// A submission-queue entry: a copy of its slot.
#[derive(Clone, Debug)]
pub struct SubmissionEntry {
    raw: [u8; QUEUE_SLOT_LEN],
    hash: u64,
    number: usize,
    /// Its record lock word stays locked when it was carried out: the node is about to change the
    /// record for another client.
    stays_locked: bool,
}

/// Why clients cannot submit changes of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LockConflict {
    /// Its record lock word is locked, and is to be [freed](SubmissionQueues::unlock_exclusive).
    Word(usize),
    /// Its record lock word was locked before.
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
    const EMPTY: Self = Self { raw: [0; QUEUE_SLOT_LEN], hash: 0, number: 0, stays_locked: false };

    /// The content of the slot; `None`: it makes no sense.
    #[must_use]
    pub fn contents(&self) -> Option<SlotContents<'_>> {
        SlotContents::read(&self.raw)
    }
}

impl SubmissionQueues {
    pub(super) fn new(mapping: Arc<ArenaMapping>, layout: &ArenaLayout) -> Self {
        let zeros = |count| (0..count).map(|_| AtomicU32::new(0)).collect();
        let shards = layout.shards();
        Self { mapping, layout: *layout, next: zeros(shards * QUEUES), looked_at: zeros(shards) }
    }

    fn word(&self, part: u32, offset: usize) -> &AtomicU64 {
        self.mapping.long_word(self.layout.submissions_offset(part) + offset)
    }

    /// The pending bits of a queue.
    fn bits(&self, part: u32, queue: usize) -> &AtomicU64 {
        self.word(part, pending_offset(queue))
    }

    /// Clients that serve by this map may submit from now on, or only one of them. Until now nobody
    /// might, or the same.
    pub(super) fn open(&self, part: u32, epoch: Epoch, only: Option<ClientId>) {
        self.word(part, SOLE_CLIENT_OFFSET).store(only.map_or(0, ClientId::get), Ordering::SeqCst);
        self.word(part, OPEN_OFFSET).store(epoch.get(), Ordering::SeqCst);
    }

    /// No client may submit from now on. Entries that were submitted before are pending.
    pub(super) fn close(&self, part: u32) {
        self.word(part, OPEN_OFFSET).store(0, Ordering::SeqCst);
        // A client that takes a slot after this sees that.
        fence(Ordering::SeqCst);
        self.revoke(part, |owner| owner != 0);
    }

    /// Whether anything may be pending.
    pub(super) fn is_pending(&self, part: u32) -> bool {
        (0..QUEUES).any(|queue| self.bits(part, queue).load(Ordering::Acquire) != 0)
    }

    /// Whether more is pending in some queue than its client can go on with while others have their
    /// turn.
    pub(super) fn is_behind(&self, part: u32) -> bool {
        let pending = |queue: usize| self.bits(part, queue).load(Ordering::Relaxed).count_ones();
        (0..QUEUES).any(|queue| pending(queue) > PENDING_MOST)
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
        let mut entries = [SubmissionEntry::EMPTY; 2];
        let (mut last, mut is_waiting) = (0, false);
        let mut carried_out = 0;
        let queues = self.queues_in_order(part);
        for queue in &queues {
            // First the bits: a client that claims a slot anew sets its bit again.
            let mut bits = self.bits(part, *queue).swap(0, Ordering::SeqCst);
            let next = &self.next[part as usize * QUEUES + queue];
            while let Some(within) = first_from(bits, next.load(Ordering::Relaxed)) {
                let number = queue * QUEUE_SLOTS + within as usize;
                bits &= !pending_bit(number);
                next.store((within + 1) % u64::BITS, Ordering::Relaxed);
                self.expect(part, table, *queue, (bits, within));
                let next = &mut entries[1 - last];
                if self.pending(part, number, next) {
                    table.expect_slot(part, next.hash);
                    visit(LockTurn::Before, next);
                    if is_waiting {
                        visit(LockTurn::Now, &entries[last]);
                        carried_out += 1;
                        if carried_out % SUBMISSIONS_PER_LOOK == 0 {
                            self.wake_elsewhere(part, queue_of(entries[last].number));
                        }
                    }
                    (last, is_waiting) = (1 - last, true);
                }
            }
        }
        if is_waiting {
            visit(LockTurn::Now, &entries[last]);
        }
        for queue in queues {
            self.wake_elsewhere(part, queue);
        }
    }

    /// Queues in which anything may be pending. First those whose clients wait on another core,
    /// where they can go on beside this thread; last those whose clients can go on when it has
    /// nothing more to do.
    fn queues_in_order(&self, part: u32) -> SmallVec<[usize; QUEUES]> {
        let bits = |queue: usize| self.bits(part, queue).load(Ordering::Acquire);
        let mut queues: SmallVec<_> = (0..QUEUES).filter(|queue| bits(*queue) != 0).collect();
        let all = queues.iter().fold(0, |all, queue| all | 1_u32 << queue);
        self.looked_at[part as usize].fetch_or(all, Ordering::Relaxed);
        let here = this_core();
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
        let word = self.mapping.word(self.layout.submissions_offset(part) + NODE_CORE_OFFSET);
        // Every client reads the word: it is changed no more often than it has to be.
        if word.load(Ordering::Relaxed) != u32::from(core) {
            word.store(u32::from(core), Ordering::Relaxed);
        }
    }

    /// Prefetch: the first slots of these bits after the one at `within` will be looked at next. A
    /// client has written to them, and to their record lock words, on another core.
    fn expect(&self, part: u32, table: &LookupTable, queue: usize, (bits, within): (u64, u32)) {
        let start = self.layout.submissions_offset(part);
        let Some(next) = first_from(bits, within) else { return };
        let slot_of = |within: u32| queue * QUEUE_SLOTS + within as usize;
        if let Some(label) = self.header(part, slot_of(next)).checked() {
            self.mapping
                .prefetch_to_write(start + lock_word_offset(label.lock_word()), size_of::<u64>());
            table.expect(part, label.hash);
        }
        if let Some(next_but_one) = first_from(bits & !(1 << next), next).map(slot_of) {
            self.mapping.prefetch(start + slot_offset(next_but_one), EXPECTED_LEN);
            self.mapping.prefetch_to_write(start + owner_offset(next_but_one), size_of::<u64>());
        }
    }

    /// Copies the entry of a slot whose bit was taken, if there is one.
    fn pending(&self, part: u32, number: usize, entry: &mut SubmissionEntry) -> bool {
        let Some(label) = self.header(part, number).checked() else { return false };
        let lock_word = self.word(part, lock_word_offset(label.lock_word())).load(Ordering::SeqCst);
        let Some(found) = LockWord::read(lock_word) else { return false };
        match found.state {
            _ if found.number != number => false,
            // Only now it is known that no client was writing to the slot.
            LockWordState::Posted => {
                (entry.hash, entry.number) = (label.hash, number);
                self.copy(part, number, &mut entry.raw);
                true
            }
            LockWordState::Claimed => {
                // It is about to be submitted, or just was: to be looked at the next time.
                let bits = self.bits(part, queue_of(number));
                bits.fetch_or(pending_bit(number), Ordering::SeqCst);
                false
            }
            LockWordState::Barred => false,
        }
    }

    fn header(&self, part: u32, number: usize) -> RawSlotHeader {
        let mut raw = [0; size_of::<RawSlotHeader>()];
        self.copy_out(part, slot_offset(number), &mut raw);
        zerocopy::transmute!(raw)
    }

    /// Copies a slot that is submitted.
    fn copy(&self, part: u32, number: usize, raw: &mut [u8; QUEUE_SLOT_LEN]) {
        let len = self.header(part, number).checked().map_or(0, |label| label.len());
        self.copy_out(part, slot_offset(number), &mut raw[..REQUEST_OFFSET + len]);
    }

    fn copy_out(&self, part: u32, offset: usize, dest: &mut [u8]) {
        let source =
            self.mapping.at((self.layout.submissions_offset(part) + offset) as u64, dest.len());
        // SAFETY: slots lie within the mapping, as the layout says. Under a lock word that says
        // submitted nobody writes to them; whatever a client that keeps to no rule leaves there is
        // checked in the copy.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), dest.as_mut_ptr(), dest.len()) };
    }

    /// It is about to be carried out, and takes an open reference under `token`. Returns whether
    /// that is still wanted: from then on it ends as any other.
    pub(super) fn keeps_reference(&self, part: u32, entry: &SubmissionEntry, token: u64) -> bool {
        let word = self.word(part, slot_offset(entry.number) + REFERENCE_OFFSET);
        token != 0 && word.compare_exchange(token, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// It was carried out.
    pub(super) fn done(&self, part: u32, entry: &SubmissionEntry) {
        // Only the node changes a lock word that says submitted.
        let lock_word = if entry.stays_locked { LockWord::LOCKED.word() } else { 0 };
        self.word(part, lock_word_offset(lock_word_of(entry.hash)))
            .store(lock_word, Ordering::Release);
        self.word(part, owner_offset(entry.number)).store(0, Ordering::Release);
    }

    /// Wakes the client that waits on another core for a slot of a queue that is free now.
    fn wake_elsewhere(&self, part: u32, queue: usize) {
        // A waiter says so before it looks at the slot again.
        fence(Ordering::SeqCst);
        if let Some(waiter) = self.waiter(part, queue)
            && waiter.core != this_core()
            && self.is_free(part, waiter.number)
        {
            self.wake(part, queue);
        }
    }

    fn is_free(&self, part: u32, number: usize) -> bool {
        self.word(part, owner_offset(number)).load(Ordering::SeqCst) == 0
    }

    fn waiter_word(&self, part: u32, queue: usize) -> &AtomicU32 {
        self.mapping.word(self.layout.submissions_offset(part) + queue_offset(queue))
    }

    fn waiter(&self, part: u32, queue: usize) -> Option<QueueWaiter> {
        QueueWaiter::read(self.waiter_word(part, queue).load(Ordering::SeqCst))
    }

    fn wake(&self, part: u32, queue: usize) {
        let word = self.waiter_word(part, queue);
        word.store(0, Ordering::Relaxed);
        let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
    }

    /// Wakes clients that wait for a slot that is free. Returns which of them sleep on this
    /// thread's core.
    pub(super) fn wake_core_waiters(&self, part: u32) -> CoreWaiters {
        let mut near = 0;
        for queue in 0..QUEUES {
            let Some(waiter) = self.waiter(part, queue) else { continue };
            if self.is_free(part, waiter.number) {
                near |= u32::from(waiter.core == this_core()) << queue;
                self.wake(part, queue);
            }
        }
        if near == 0 {
            return CoreWaiters::Nobody;
        }
        let others = self.looked_at[part as usize].swap(0, Ordering::Relaxed) & !near;
        if others == 0 { CoreWaiters::All } else { CoreWaiters::Some }
    }

    /// A record of this hash is to be changed: locks its record lock word for exclusive change, and
    /// takes the entry that was submitted, which is to be carried out before, and
    /// [done](Self::done).
    pub(super) fn lock_exclusive(
        &self,
        part: u32,
        hash: u64,
        visit: impl FnMut(&SubmissionEntry),
    ) -> LockConflict {
        self.lock_beside(part, hash, visit, || {})
    }

    /// Prefetch: [`SubmissionQueues::lock_exclusive`] comes soon.
    pub(super) fn expect_lock(&self, part: u32, hash: u64) {
        let word = lock_word_offset(lock_word_of(hash));
        let start = self.layout.submissions_offset(part);
        self.mapping.prefetch_to_write(start + word, size_of::<u64>());
    }

    /// As [`SubmissionQueues::lock_exclusive`]; `beside` is what others do between each look at the
    /// lock word and the exchange.
    fn lock_beside(
        &self,
        part: u32,
        hash: u64,
        mut visit: impl FnMut(&SubmissionEntry),
        mut beside: impl FnMut(),
    ) -> LockConflict {
        let lock_word = lock_word_of(hash);
        let word = self.word(part, lock_word_offset(lock_word));
        for _ in 0..LOCK_TRIES_MAX {
            let raw = word.load(Ordering::SeqCst);
            match LockWord::read(raw) {
                Some(LockWord { state: LockWordState::Barred, .. }) => return LockConflict::Before,
                Some(LockWord { state: LockWordState::Posted, number, .. }) => {
                    self.take_submitted(part, (hash, number), true, &mut visit);
                    return LockConflict::Word(lock_word);
                }
                None | Some(LockWord { state: LockWordState::Claimed, .. }) => {
                    beside();
                    // A client that claims it after that looks at the look-up table after the
                    // record was changed.
                    let (success, failure) = (Ordering::SeqCst, Ordering::SeqCst);
                    let locked = LockWord::LOCKED.word();
                    if word.compare_exchange(raw, locked, success, failure).is_ok() {
                        return LockConflict::Word(lock_word);
                    }
                }
            }
        }
        // Clients claim it and free it again and again. No client submits to a closed table, so an
        // entry that is submitted now is all there is; its lock word says so to readers until it
        // was carried out.
        self.close(part);
        let found = LockWord::read(word.load(Ordering::SeqCst));
        if let Some(LockWord { state: LockWordState::Posted, number, .. }) = found {
            self.take_submitted(part, (hash, number), false, &mut visit);
        }
        LockConflict::Table
    }

    /// Has the entry in a slot carried out, and its lock word locked from then on, or free.
    fn take_submitted(
        &self,
        part: u32,
        (hash, number): (u64, usize),
        stays_locked: bool,
        visit: &mut impl FnMut(&SubmissionEntry),
    ) {
        let mut entry = SubmissionEntry { hash, number, stays_locked, ..SubmissionEntry::EMPTY };
        self.copy(part, number, &mut entry.raw);
        visit(&entry);
        self.wake_elsewhere(part, queue_of(number));
    }

    /// Frees a record lock word that was locked: the record is changed.
    pub(super) fn unlock_exclusive(&self, part: u32, lock_word: usize) {
        self.word(part, lock_word_offset(lock_word)).store(0, Ordering::Release);
    }

    /// Revokes the claimed lock words for slots of these owners.
    fn revoke(&self, part: u32, is_meant: impl Fn(u64) -> bool) {
        for number in 0..TABLE_SLOTS {
            if !is_meant(self.word(part, owner_offset(number)).load(Ordering::Acquire)) {
                continue;
            }
            let Some(label) = self.header(part, number).checked() else { continue };
            let word = self.word(part, lock_word_offset(label.lock_word()));
            let raw = word.load(Ordering::SeqCst);
            if let Some(LockWord { state: LockWordState::Claimed, number: of, .. }) =
                LockWord::read(raw)
                && of == number
            {
                // If it has been submitted meanwhile, it is pending; if it is free, it was not.
                let _ = word.compare_exchange(raw, 0, Ordering::SeqCst, Ordering::Relaxed);
            }
        }
    }

    /// Frees slots and lock words that a client that is gone has claimed, and not submitted.
    pub(super) fn drop_client(&self, part: u32, client: ClientId) {
        self.revoke(part, |owner| owner == client.get());
        for number in 0..TABLE_SLOTS {
            let word = self.word(part, owner_offset(number));
            if word.load(Ordering::Acquire) == client.get() {
                word.store(0, Ordering::Release);
            }
        }
    }
}

#[cfg(test)]
mod tests;
