//! A client's side of [early completion](crate::submission).

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use std::time::Duration;

use rustix::thread::futex;
use samite_cpu::{poll_for, this_core, timespec};
use samite_types::{ClientId, Epoch, PartitionId};
use samite_wire::access::DatasetAccess;
use zerocopy::IntoBytes;

use super::view::ArenaView;
use crate::lookup::RecordId;
use crate::submission::{
    LockWord, LockWordState, NODE_CORE_OFFSET, OPEN_OFFSET, QUEUE_SLOTS, QUEUES, QueueWaiter,
    REFERENCE_OFFSET, REQUEST_LEN_MAX, REQUEST_OFFSET, RawSlotHeader, SOLE_CLIENT_OFFSET,
    lock_word_of, lock_word_offset, owner_offset, pending_bit, pending_offset, queue_of,
    queue_offset, slot_offset,
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
    /// Counts the slots of its queue.
    next: AtomicUsize,
    /// How often it has gone to another queue, and at which count it last did.
    moves: AtomicU32,
    moved_at: AtomicUsize,
    uid: u32,
}

impl NextSubmission {
    /// For the user that the node knows for the connection.
    pub(super) fn new() -> Self {
        let uid = rustix::process::geteuid().as_raw();
        let (next, moved_at) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { next, moves: AtomicU32::new(0), moved_at, uid }
    }

    /// The submission queue of this client. Its id is random: so is the queue, and the next one.
    fn queue(&self, client: u64) -> usize {
        let moves = self.moves.load(Ordering::Relaxed);
        client.rotate_right(moves % u64::BITS * QUEUES.ilog2()) as usize % QUEUES
    }

    /// At `turn` another client was met in the queue: goes to another one, unless it has just come
    /// to this one. More clients than queues do not change places all the time. Returns whether it
    /// went.
    fn change_queue(&self, turn: usize) -> bool {
        let moved_at = self.moved_at.load(Ordering::Relaxed);
        let goes = turn.saturating_sub(moved_at) >= QUEUE_SLOTS
            && self
                .moved_at
                .compare_exchange(moved_at, turn, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if goes {
            self.moves.fetch_add(1, Ordering::Relaxed);
        }
        goes
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

/// Why no slot was free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueFull {
    /// The node is behind with the entries of this client.
    BySelf,
    /// Other clients have some.
    ByOthers,
}

/// A slot of a queue, which are used in turns.
const fn slot_at(queue: usize, turn: usize) -> usize {
    queue * QUEUE_SLOTS + turn % QUEUE_SLOTS
}

/// A submission-queue entry: the slot in which it was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubmittedEntry {
    number: u16,
}

/// A slot and perhaps a record lock word, freed when dropped unless they were submitted.
struct ClaimedSlot<'v> {
    owner: &'v AtomicU64,
    lock_word: Option<(&'v AtomicU64, LockWord)>,
}

impl Drop for ClaimedSlot<'_> {
    fn drop(&mut self) {
        if let Some((word, lock_word)) = self.lock_word {
            // If it is not ours any more, the node has taken it.
            let _ =
                word.compare_exchange(lock_word.word(), 0, Ordering::Release, Ordering::Relaxed);
        }
        self.owner.store(0, Ordering::Release);
    }
}

impl ArenaView {
    /// Whether an entry was submitted that may have changed records of this hash, and that the node
    /// has yet to carry out.
    pub(super) fn is_submitted(&self, part: u32, hash: u64) -> bool {
        let word =
            self.queue_word(part, lock_word_offset(lock_word_of(hash))).load(Ordering::Acquire);
        LockWord::read(word).is_some_and(|lock_word| lock_word.state == LockWordState::Posted)
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
        let (hash, part) = (change.record.hash(), self.part_of(change.record.partition));
        self.expect_slot(part, hash);
        let number = self.take_slot(part, change, call)?;
        let owner = self.queue_word(part, owner_offset(number));
        let mut claimed = ClaimedSlot { owner, lock_word: None };
        let place = lock_word_of(hash);
        self.label(part, number, &RawSlotHeader::new(change.client, hash, lens));
        let word = self.queue_word(part, lock_word_offset(place));
        let lock_word = LockWord::new(change.client, number);
        let orders = (Ordering::SeqCst, Ordering::Relaxed);
        if word.compare_exchange(0, lock_word.word(), orders.0, orders.1).is_err() {
            return None;
        }
        claimed.lock_word = Some((word, lock_word));
        // A node that closes the table, or retracts the record, after what is seen from here on,
        // sees the claimed lock word.
        fence(Ordering::SeqCst);
        if !self.is_open_for(part, change) || !is_certain(self) {
            return None;
        }
        self.fill_slot(part, number, change);
        let bits = self.queue_word(part, pending_offset(queue_of(number)));
        bits.fetch_or(pending_bit(number), Ordering::SeqCst);
        let submitted = lock_word.in_state(LockWordState::Posted).word();
        if word.compare_exchange(lock_word.word(), submitted, orders.0, orders.1).is_err() {
            return None;
        }
        // The node frees them.
        std::mem::forget(claimed);
        Some(SubmittedEntry { number: number as u16 })
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
        let offset = slot_offset(usize::from(submitted.number)) + REFERENCE_OFFSET;
        let word = self.queue_word(self.part_of(partition), offset);
        // In a table of another run of the node, or after others have used the slot, there is
        // another token.
        token != 0 && word.compare_exchange(token, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn is_open_for(&self, part: u32, change: &SubmittedChange<'_>) -> bool {
        self.is_open(part, change.map_epoch, (change.client, change.takes_delegation))
    }

    /// Takes a slot of the client's queue that nobody has, and waits for one if need be.
    fn take_slot(&self, part: u32, change: &SubmittedChange<'_>, call: impl Fn()) -> Option<usize> {
        let client = change.client.get();
        let turn = self.turn.next.fetch_add(1, Ordering::Relaxed);
        if turn.is_multiple_of(SUBMISSIONS_PER_CALL) {
            call();
        }
        let mut queue = self.turn.queue(client);
        if turn.is_multiple_of(SUBMISSIONS_PER_TURN) && self.holds_up(part, queue) {
            // Until all that it has submitted is carried out.
            self.await_slot(part, slot_at(queue, turn + QUEUE_SLOTS - 1));
        }
        let mut tried = self.try_slots(part, client, (queue, turn), turn..turn + SLOTS_TRIED);
        if tried == Err(QueueFull::ByOthers) && self.turn.change_queue(turn) {
            queue = self.turn.queue(client);
            tried = self.try_slots(part, client, (queue, turn), turn..turn + SLOTS_TRIED);
        }
        if let Ok(number) = tried {
            if number % SUBMISSIONS_PER_CALL < turn % SUBMISSIONS_PER_CALL {
                // It has passed over the slot with which a node that sleeps is called.
                call();
            }
            return Some(number);
        }
        let later = turn + FREE_SLOTS;
        for _ in 0..WAITS {
            call();
            self.await_slot(part, slot_at(queue, later));
            if !self.is_open_for(part, change) {
                return None;
            }
            let tried = self.try_slots(part, client, (queue, turn), [turn, later]);
            if let Ok(number) = tried {
                return Some(number);
            }
        }
        None
    }

    /// Takes the first slot that nobody has of those at `places` in a queue.
    fn try_slots(
        &self,
        part: u32,
        client: u64,
        (queue, turn): (usize, usize),
        places: impl IntoIterator<Item = usize>,
    ) -> Result<usize, QueueFull> {
        let mut taken = QueueFull::BySelf;
        for at in places {
            let number = slot_at(queue, at);
            let owner = self.queue_word(part, owner_offset(number));
            match owner.compare_exchange(0, client, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => {
                    if at != turn {
                        // The next ones follow this slot: else each of them would try those that
                        // were taken before it, until nothing is left to be carried out.
                        self.turn.next.fetch_max(at + 1, Ordering::Relaxed);
                    }
                    if taken == QueueFull::ByOthers {
                        self.turn.change_queue(turn);
                    }
                    return Ok(number);
                }
                Err(other) if other != client => taken = QueueFull::ByOthers,
                Err(_) => {}
            }
        }
        Err(taken)
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
        self.shares_core(part) && (0..QUEUES).any(|other| other != queue && has_pending(other))
    }

    /// Waits a little until a slot is free.
    fn await_slot(&self, part: u32, number: usize) {
        let owner = self.queue_word(part, owner_offset(number));
        let is_free = || owner.load(Ordering::Acquire) == 0;
        if !self.shares_core(part) && poll_for(POLLED, is_free) {
            return;
        }
        let word = self.queue_flag(part, queue_offset(queue_of(number)));
        let waits = QueueWaiter { number, core: this_core() as u16 }.word();
        word.store(waits, Ordering::SeqCst);
        // The node frees the slot before it looks at the word.
        if owner.load(Ordering::SeqCst) != 0 {
            // Not private: the node wakes us from its own process. The result is seen at the slot.
            let _ = futex::wait(word, futex::Flags::empty(), waits, Some(&timespec(WAIT)));
        }
        // Another client of the queue may wait there now.
        let _ = word.compare_exchange(waits, 0, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Writes the header of a slot.
    fn label(&self, part: u32, number: usize, header: &RawSlotHeader) {
        let dest = self.queue_at(part, slot_offset(number), size_of::<RawSlotHeader>());
        let source = header.as_bytes();
        // SAFETY: the slot begins with a header; it is this client's until it is submitted or
        // freed, and the node checks what it reads of it.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), dest, source.len()) };
    }

    /// Puts a change into a slot.
    fn fill_slot(&self, part: u32, number: usize, change: &SubmittedChange<'_>) {
        if change.token != 0 {
            let word = self.queue_word(part, slot_offset(number) + REFERENCE_OFFSET);
            word.store(change.token, Ordering::Relaxed);
        }
        let start = slot_offset(number) + REQUEST_OFFSET;
        let mut dest = self.queue_at(part, start, REQUEST_LEN_MAX);
        for piece in std::iter::once(&change.body).chain(change.payload) {
            // SAFETY: a slot has room for the longest request, and the caller has checked that this
            // one is no longer; it is this client's until it is submitted or freed, and the node
            // uses no copy that it made before.
            unsafe {
                std::ptr::copy_nonoverlapping(piece.as_ptr(), dest, piece.len());
                dest = dest.add(piece.len());
            }
        }
    }
}

#[cfg(test)]
mod tests;
