//! A client's side of [early completion](crate::submission).

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::time::Duration;

use rustix::thread::futex;
use samite_cpu::{poll_for, this_core, timespec};
use samite_types::{ClientId, Epoch, PartitionId};
use samite_wire::access::DatasetAccess;
use zerocopy::IntoBytes;

use super::view::ArenaView;
use crate::lookup::RecordId;
use crate::submission::{
    CONTENTS_LEN_MAX, HEADER_OFFSET, NODE_CORE_OFFSET, NODE_LOCKS, OPEN_OFFSET, QUEUE_SLOTS,
    QueueSlotState, QueueWaiter, REFERENCE_OFFSET, REQUEST_LEN_MAX, RawSlotHeader,
    SOLE_CLIENT_OFFSET, SlotIndex, node_lock_offset, pending_offset, queue_offset, tag_of,
    waiter_offset,
};

/// After so many changes that were submitted, a node that sleeps is woken.
const SUBMISSIONS_PER_CALL: usize = 16;
/// After so many changes a client that runs on the node's core lets it go on with those of others.
/// A client on another core has not filled its queue by then.
const SUBMISSIONS_PER_TURN: usize = QUEUE_SLOTS / 4;
/// Slots that a client tries before it waits.
const SLOTS_TRIED: usize = 4;
/// So many slots are free before a client that waits goes on. The node has the others to go on with
/// while it wakes up.
const FREE_SLOTS: usize = QUEUE_SLOTS / 4;
/// A client that waits for a node on another core polls so long before it sleeps: about as long as
/// it takes to wake up.
const POLLED: Duration = Duration::from_micros(50);
/// How often a client waits for a slot, and how long each time: then it asks, which says what is
/// wrong with the node.
const WAITS: u32 = 10;
const WAIT: Duration = Duration::from_millis(2);

/// The slot that a client fills next, and for which user.
#[derive(Debug)]
pub(super) struct NextSubmission {
    /// The queue of the connection; `None`: it has none, and submits nothing.
    pub(super) queue: Option<usize>,
    /// Counts the slots of its queue.
    next: AtomicUsize,
    uid: u32,
}

impl NextSubmission {
    /// For the user that the node knows for the connection.
    pub(super) fn new(queue: Option<usize>) -> Self {
        let uid = rustix::process::geteuid().as_raw();
        Self { queue, next: AtomicUsize::new(0), uid }
    }
}

/// A change of one record, to be submitted.
#[derive(Clone, Copy, Debug)]
pub struct SubmittedChange<'p> {
    /// The record. Its state in the look-up table makes the outcome certain.
    pub record: RecordId<'p>,
    /// Permissions of its dataset.
    pub access: DatasetAccess,
    /// Epoch of its cluster map.
    pub map_epoch: Epoch,
    /// The client.
    pub client: ClientId,
    /// It counts on delegations that the change asks for: its client has to be the sole delegation
    /// holder.
    pub takes_delegation: bool,
    /// Token of the open reference that the change takes, which may [end](ArenaView::end_reference)
    /// before that; 0 for none.
    pub token: u64,
    /// The change, as a [request](samite_wire::op::OperationRequest).
    pub body: &'p [u8],
    /// Its payload, in pieces.
    pub payload: &'p [&'p [u8]],
}

/// A slot of a queue, which are used in turns.
const fn slot_at(queue: usize, turn: usize) -> SlotIndex {
    SlotIndex { queue, within: turn % QUEUE_SLOTS }
}

/// A submission-queue entry: the slot in which it was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubmittedEntry {
    within: u16,
}

/// A slot that is claimed, and perhaps marked; freed when dropped unless it was submitted.
struct ClaimedSlot<'v> {
    slot: SlotIndex,
    active: &'v AtomicU64,
    state: &'v AtomicU64,
    /// The state as long as the node has not revoked it.
    word: u64,
}

impl Drop for ClaimedSlot<'_> {
    fn drop(&mut self) {
        // The mark first: the next thread that claims the slot sets its own.
        self.active.fetch_and(!self.slot.bit(), Ordering::Release);
        self.state.store(0, Ordering::Release);
    }
}

impl ArenaView {
    /// Whether an entry was submitted that may have changed records of this hash, and that the node
    /// has yet to carry out.
    pub(super) fn is_submitted(&self, part: u32, hash: u64) -> bool {
        self.find_mark(part, tag_of(hash), |slot| {
            let word = self.queue_word(part, slot.offset()).load(Ordering::Acquire);
            QueueSlotState::of(word) == QueueSlotState::Submitted
        })
    }

    /// Whether a slot of any queue has a mark for records of this tag, and is one that is `meant`.
    fn find_mark(&self, part: u32, tag: u32, meant: impl Fn(SlotIndex) -> bool) -> bool {
        let mut queues = self.owned_queues();
        while let Some(queue) = take_lowest(&mut queues) {
            let active = self.queue_word(part, queue_offset(queue)).load(Ordering::SeqCst);
            if active == 0 {
                continue;
            }
            let mut bits = active & self.equal_tags(part, queue, tag);
            while let Some(within) = take_lowest(&mut bits) {
                if meant(SlotIndex { queue, within }) {
                    return true;
                }
            }
        }
        false
    }

    /// The slots of a queue with this tag, as bits. Those of slots that are active stand still.
    fn equal_tags(&self, part: u32, queue: usize, tag: u32) -> u64 {
        let mut tags = [0_u32; QUEUE_SLOTS];
        let first = SlotIndex { queue, within: 0 };
        let source = self.queue_at(part, first.tag_offset(), size_of_val(&tags));
        // SAFETY: a queue has a tag for each slot, as the layout says. Others may change some of
        // them meanwhile: of slots that were not active when this was called.
        unsafe {
            std::ptr::copy_nonoverlapping(
                source.cast_const().cast(),
                tags.as_mut_ptr(),
                tags.len(),
            );
        }
        let bits = tags.iter().enumerate().map(|(at, has)| u64::from(*has == tag) << at);
        bits.fold(0, |all, bit| all | bit)
    }

    /// Whether the node changes a record of this tag.
    fn is_locked(&self, part: u32, tag: u32) -> bool {
        (0..NODE_LOCKS)
            .any(|lock| self.queue_flag(part, node_lock_offset(lock)).load(Ordering::SeqCst) == tag)
    }

    /// Whether `who` may submit, who serves by this map and may count on delegations.
    fn is_open(
        &self,
        part: u32,
        map_epoch: Epoch,
        (who, takes_delegation): (ClientId, bool),
    ) -> bool {
        let open = self.queue_word(part, OPEN_OFFSET).load(Ordering::Acquire);
        if open != map_epoch.get() || open == 0 {
            return false;
        }
        let sole = self.queue_word(part, SOLE_CLIENT_OFFSET).load(Ordering::Acquire);
        sole == who.get() || sole == 0 && !takes_delegation
    }

    /// Whether a client that serves by this map may submit changes of `record` now, and with
    /// `takes_delegation` count on delegations. It may end at any time. Memory that
    /// [`ArenaView::submit`] reads is prefetched meanwhile.
    #[must_use]
    pub fn may_submit(
        &self,
        record: &RecordId<'_>,
        map_epoch: Epoch,
        who: (ClientId, bool),
    ) -> bool {
        let part = self.part_of(record.partition);
        let is_open = self.is_open(part, map_epoch, who);
        if is_open {
            self.expect(part, record.hash());
        }
        is_open
    }

    /// Submits a change of a record, if the state that is seen then makes the outcome certain.
    /// Where the node is behind it waits a little. `call` wakes the node if it sleeps. `None`:
    /// nothing was done, ask the node.
    #[must_use]
    pub fn submit(
        &self,
        change: &SubmittedChange<'_>,
        call: impl Fn(),
        is_certain: impl FnOnce(&Self) -> bool,
    ) -> Option<SubmittedEntry> {
        let lens = (change.body.len(), change.payload.iter().map(|piece| piece.len()).sum());
        if lens.0 + lens.1 > REQUEST_LEN_MAX || !change.access.allows(self.turn.uid, true) {
            return None;
        }
        let queue = self.turn.queue?;
        let (hash, part) = (change.record.hash(), self.part_of(change.record.partition));
        self.expect_slot(part, hash);
        let claimed = self.take_slot(part, (queue, change), call)?;
        let (slot, tag) = (claimed.slot, tag_of(hash));
        self.queue_flag(part, slot.tag_offset()).store(tag, Ordering::Relaxed);
        claimed.active.fetch_or(slot.bit(), Ordering::SeqCst);
        // A client that marks the record, and a node that locks it, closes the table or retracts
        // the record, after what is seen from here on, sees the mark.
        fence(Ordering::SeqCst);
        if self.find_mark(part, tag, |other| other != slot)
            || self.is_locked(part, tag)
            || !self.is_open_for(part, change)
            || !is_certain(self)
        {
            return None;
        }
        let submitted = self.fill_slot(part, slot, change, RawSlotHeader::new(hash, lens));
        let pending = self.queue_word(part, pending_offset(queue));
        pending.fetch_or(slot.bit(), Ordering::SeqCst);
        let orders = (Ordering::SeqCst, Ordering::Relaxed);
        if claimed.state.compare_exchange(claimed.word, submitted, orders.0, orders.1).is_err() {
            return None;
        }
        // The node frees it.
        std::mem::forget(claimed);
        Some(SubmittedEntry { within: slot.within as u16 })
    }

    /// Ends the open reference of a change that was submitted about a record of this partition.
    /// `false`: the node has taken it already, ask for that.
    #[must_use]
    pub fn end_reference(
        &self,
        partition: PartitionId,
        submitted: SubmittedEntry,
        token: u64,
    ) -> bool {
        let Some(queue) = self.turn.queue.filter(|_| token != 0) else { return false };
        let slot = SlotIndex { queue, within: usize::from(submitted.within) };
        let word = self.queue_word(self.part_of(partition), slot.offset() + REFERENCE_OFFSET);
        // In a queue of another run of the node, or after the slot was used again, there is another
        // token.
        word.compare_exchange(token, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn is_open_for(&self, part: u32, change: &SubmittedChange<'_>) -> bool {
        self.is_open(part, change.map_epoch, (change.client, change.takes_delegation))
    }

    /// Claims a slot of the client's queue that no thread has, and waits for one if need be.
    fn take_slot(
        &self,
        part: u32,
        (queue, change): (usize, &SubmittedChange<'_>),
        call: impl Fn(),
    ) -> Option<ClaimedSlot<'_>> {
        let turn = self.turn.next.fetch_add(1, Ordering::Relaxed);
        if turn.is_multiple_of(SUBMISSIONS_PER_CALL) {
            call();
        }
        if turn.is_multiple_of(SUBMISSIONS_PER_TURN) && self.holds_up(part, queue) {
            // Until all that it has submitted is carried out.
            self.await_slot(part, slot_at(queue, turn + QUEUE_SLOTS - 1));
        }
        if let Some(claimed) =
            self.try_slots(part, change.client, (queue, turn), turn..turn + SLOTS_TRIED)
        {
            if claimed.slot.within % SUBMISSIONS_PER_CALL < turn % SUBMISSIONS_PER_CALL {
                // It has passed over the slot with which a node that sleeps is called.
                call();
            }
            return Some(claimed);
        }
        let later = turn + FREE_SLOTS;
        for _ in 0..WAITS {
            call();
            self.await_slot(part, slot_at(queue, later));
            if !self.is_open_for(part, change) {
                return None;
            }
            if let Some(claimed) = self.try_slots(part, change.client, (queue, turn), [turn, later])
            {
                return Some(claimed);
            }
        }
        None
    }

    /// Claims the first free slot of those at `places` in a queue.
    fn try_slots(
        &self,
        part: u32,
        client: ClientId,
        (queue, turn): (usize, usize),
        places: impl IntoIterator<Item = usize>,
    ) -> Option<ClaimedSlot<'_>> {
        for at in places {
            let slot = slot_at(queue, at);
            let state = self.queue_word(part, slot.offset());
            let word = QueueSlotState::claimed(client, at);
            if state.compare_exchange(0, word, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                if at != turn {
                    // The next ones follow this slot: else each of them would try those that were
                    // taken before it, until nothing is left to be carried out.
                    self.turn.next.fetch_max(at + 1, Ordering::Relaxed);
                }
                let active = self.queue_word(part, queue_offset(queue));
                return Some(ClaimedSlot { slot, active, state, word });
            }
        }
        None
    }

    /// Whether the node would carry out entries on the core of this thread.
    fn shares_core(&self, part: u32) -> bool {
        let node_core = self.queue_flag(part, NODE_CORE_OFFSET).load(Ordering::Relaxed);
        node_core == u32::from(this_core() as u16)
    }

    /// Whether this thread runs where the node would go on with entries of other queues.
    fn holds_up(&self, part: u32, queue: usize) -> bool {
        let has_pending = |queue: usize| {
            self.queue_word(part, pending_offset(queue)).load(Ordering::Relaxed) != 0
        };
        let mut others = self.owned_queues() & !(1 << queue);
        self.shares_core(part) && std::iter::from_fn(|| take_lowest(&mut others)).any(has_pending)
    }

    /// Waits a little until a slot is free.
    fn await_slot(&self, part: u32, slot: SlotIndex) {
        let state = self.queue_word(part, slot.offset());
        let is_free = || state.load(Ordering::Acquire) == 0;
        if !self.shares_core(part) && poll_for(POLLED, is_free) {
            return;
        }
        let word = self.queue_flag(part, waiter_offset(slot.queue));
        let waits = QueueWaiter { within: slot.within, core: this_core() as u16 }.word();
        word.store(waits, Ordering::SeqCst);
        // The node frees the slot before it looks at the word.
        if state.load(Ordering::SeqCst) != 0 {
            // Not private: the node wakes us from its own process. The result is seen at the slot.
            let _ = futex::wait(word, futex::Flags::empty(), waits, Some(&timespec(WAIT)));
        }
        // Another thread may wait there now.
        let _ = word.compare_exchange(waits, 0, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Puts a change into a slot that is claimed. Returns the state of the slot to submit it.
    fn fill_slot(
        &self,
        part: u32,
        slot: SlotIndex,
        change: &SubmittedChange<'_>,
        header: RawSlotHeader,
    ) -> u64 {
        let reference = self.queue_word(part, slot.offset() + REFERENCE_OFFSET);
        reference.store(change.token, Ordering::Relaxed);
        let mut contents = [0; CONTENTS_LEN_MAX];
        let mut len = 0;
        for piece in [header.as_bytes(), change.body].iter().chain(change.payload) {
            // The caller has checked that there is room.
            contents[len..len + piece.len()].copy_from_slice(piece);
            len += piece.len();
        }
        let dest = self.queue_at(part, slot.offset() + HEADER_OFFSET, len);
        // SAFETY: a slot has room for the longest contents; it is this thread's until it is
        // submitted or freed, and the node uses no copy that it made before.
        unsafe { std::ptr::copy_nonoverlapping(contents.as_ptr(), dest, len) };
        QueueSlotState::submitted(change.client, slot, &contents[..len])
    }
}

/// Takes the lowest bit away, and says which it was.
const fn take_lowest(bits: &mut u64) -> Option<usize> {
    if *bits == 0 {
        return None;
    }
    let lowest = bits.trailing_zeros() as usize;
    *bits &= *bits - 1;
    Some(lowest)
}

#[cfg(test)]
mod tests;
