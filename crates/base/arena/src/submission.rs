//! Early completion: changes that a client leaves in a submission queue in the
//! [arena](crate::layout) of its node, instead of asking for them and waiting.
//!
//! ```text
//! 0        128         1152        4 KiB         8 KiB                2056 KiB
//! ┌────────┬───────────┬───────────┬─────────────┬────────────────────┬─────────────────────────┐
//! │ open…  │ pending   │ waiter    │ slot owners │ record lock words  │ slots of 512 bytes      │
//! │ words  │ u64/queue │ u32/queue │ u64/slot    │ u64 per key hash   │ header, token, request  │
//! └────────┴───────────┴───────────┴─────────────┴────────────────────┴─────────────────────────┘
//! ```
//!
//! Each shard of the node has a table with these parts. A client that finds a record in the [shared
//! look-up table](crate::lookup), or that there is none, knows the result of a change of it, for as
//! long as that stays so. So it *claims* the record lock word, looks at the look-up table once
//! more, puts the change into a *slot* of a submission queue, and *submits* it; from then on the
//! change counts as done. The node carries out what is submitted before it serves the next request,
//! and before it changes the record for another client, so that nobody can tell the difference.
//!
//! A record lock word is changed by compare-and-swap alone, by both sides, but for the node that
//! frees a word that it has locked:
//!
//! ```text
//!            client            client
//! free (0) ────────▶ claimed ────────▶ submitted
//!  ▲ ▲ │              │  │  │          │  │
//!  │ │ │◀── client ───┘  │  └──┐       │  │
//!  │ │ │◀─ node, revokes ┘     │ node  │  │
//!  │ │ └──────── node ────────▶▼◀──────┘  │ node, when it has carried it out and goes on to change the record
//!  │ └────────── node ─────── locked      │
//!  └──────────── node, when it has carried it out
//! ```
//!
//! The steps of each side, in this order:
//!
//! - A client takes a slot (its owner: 0 → client), says in it of which hash the record is, and
//!   claims the lock word for that; finds [`OPEN_OFFSET`] to be the epoch of its map,
//!   [`SOLE_CLIENT_OFFSET`] to name no other client as sole delegation holder, and the record in
//!   the look-up table as it has to be; fills the slot, sets its pending bit, and changes the lock
//!   word to submitted. If that fails, nothing was submitted: it frees lock word and slot, and asks
//!   the node.
//! - A reader of the look-up table looks at the lock word before. If something is submitted there,
//!   the look-up table may be behind: ask the node.
//! - The node carries out what is pending before it serves anything. Before it changes a record, it
//!   locks the lock word for exclusive change, until the record is changed and retracted from the
//!   look-up table: it takes the word from a client that has not submitted yet, and carries out
//!   what is submitted, whose word becomes locked with that: nothing is submitted in between. Where
//!   clients claim and free the word again and again, so that none of the node's tries succeeds, it
//!   closes the table until the record is changed.
//! - The node closes the table, and revokes all claimed lock words after that. One of the two sees
//!   the other: the client claims before it looks. While the table is closed the node makes changes
//!   that forbid others for records which they do not name: the tombstone of a directory that takes
//!   no entries any more, or a new name-space generation.
//! - While clients hold delegations, only a sole delegation holder, a client that holds all of
//!   them, may submit: its own changes concern no other client. Its changes may also ask for
//!   delegations, which it gets for certain. So before the node checks whether delegations stand
//!   against a change by another client, grants one to that, or lets others submit, it closes the
//!   table and carries out what was submitted.
//!
//! A new record is often open for a very short time only: a program makes a file and closes it. So
//! a change that takes an open reference has its token in the slot, in a word that both sides
//! change from the token to 0 by compare-and-swap: the client, when the open reference ends, and
//! the node, when it carries out the change. The side that is first has settled it: the node takes
//! no open reference that has ended, and a client that comes too late ends the open reference as
//! any other. The word may be that of another entry by then; tokens are never the same.
//!
//! Each client uses the slots of a *submission queue* in turns, and another queue when it meets
//! another client in its own. When it is ahead of the node by all of them, it says in the queue's
//! word for which slot it waits (a quarter of a queue ahead), looks at the slot again, and sleeps
//! there for a short time; the node, when it has freed some slots, looks at that word. Nothing
//! depends on it: a client that sleeps in vain wakes up soon. The node says on which core it is
//! ([`NODE_CORE_OFFSET`]). On another core a client polls first, which is over sooner than a sleep.
//! A client on the node's core waits after a quarter of a queue already, until all of it is carried
//! out, if others have submitted too: else they would be ahead by all their slots before the node
//! gets its core back, and all cores but that one would have nothing to do. The node does not make
//! it wait until nothing is pending: entries that the others have submitted by then, and submit
//! meanwhile, can wait in their slots.
//!
//! The node takes no length or offset from a slot before it has checked its own copy.

use samite_types::ClientId;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Offset of the epoch of the cluster map by which clients may submit, a `u64`; 0: they may not.
pub const OPEN_OFFSET: usize = 0;
/// Offset of the sole delegation holder, the only client that may submit, a `u64`; 0: all clients
/// of the host. Changed while nobody may.
pub const SOLE_CLIENT_OFFSET: usize = 8;
/// Offset of the low bits of the number, counted from 1, of the core on which the node last carried
/// out what was submitted, a `u32`.
pub const NODE_CORE_OFFSET: usize = 16;
const PENDING_OFFSET: usize = 128;
const QUEUES_OFFSET: usize = PENDING_OFFSET + QUEUES * QUEUE_STRIDE;
/// Two cache lines for each submission queue, which processors fetch together: clients of one queue
/// do not wait for those of another.
const QUEUE_STRIDE: usize = 128;
const OWNERS_OFFSET: usize = 4096;
const LOCK_WORDS_OFFSET: usize = 8192;
/// Record lock words of a table. A client that finds its word taken for another record has to ask,
/// and wait for all that was submitted: of the entries of two full queues, hardly any collide.
pub const LOCK_WORDS: usize = 1 << 18;
const SLOTS_OFFSET: usize = LOCK_WORDS_OFFSET + LOCK_WORDS * size_of::<u64>();
/// Submission queues of a shard. A client has one, perhaps with others.
pub const QUEUES: usize = 8;
/// Slots of a submission queue, used in turns: one for each bit of a word.
pub const QUEUE_SLOTS: usize = u64::BITS as usize;
/// Slots of a table: so many entries can wait.
pub const TABLE_SLOTS: usize = QUEUES * QUEUE_SLOTS;
/// Bytes of a slot.
pub const QUEUE_SLOT_LEN: usize = 512;
/// Bytes of a table.
pub const TABLE_LEN: usize = SLOTS_OFFSET + TABLE_SLOTS * QUEUE_SLOT_LEN;
/// Offset in a slot of the token of the open reference that the change takes, a `u64`; 0, or
/// another token: that has ended.
pub const REFERENCE_OFFSET: usize = size_of::<RawSlotHeader>();
/// Offset in a slot of the request.
pub const REQUEST_OFFSET: usize = REFERENCE_OFFSET + size_of::<u64>();
/// Longest request in a slot, in bytes.
pub const REQUEST_LEN_MAX: usize = QUEUE_SLOT_LEN - REQUEST_OFFSET;

const STATE_BITS: u32 = 2;
const SLOT_BITS: u32 = TABLE_SLOTS.trailing_zeros();

/// Offset in a table of the word that names the owner of a slot, a `u64`: the client's id, or 0.
#[must_use]
pub const fn owner_offset(number: usize) -> usize {
    OWNERS_OFFSET + number % TABLE_SLOTS * size_of::<u64>()
}

/// Submission queue of a slot.
#[must_use]
pub const fn queue_of(number: usize) -> usize {
    number % TABLE_SLOTS / QUEUE_SLOTS
}

/// Offset in a table of the pending bits of a queue, one for each of its slots, a `u64`.
#[must_use]
pub const fn pending_offset(queue: usize) -> usize {
    PENDING_OFFSET + queue % QUEUES * QUEUE_STRIDE
}

/// The pending bit of a slot, in the word of its queue.
#[must_use]
pub const fn pending_bit(number: usize) -> u64 {
    1 << (number % QUEUE_SLOTS)
}

/// Offset in a table of the word on which the clients of a queue wait, a `u32`: a [`QueueWaiter`],
/// or 0.
#[must_use]
pub const fn queue_offset(queue: usize) -> usize {
    QUEUES_OFFSET + queue % QUEUES * QUEUE_STRIDE
}

/// A client that waits in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueWaiter {
    /// It waits for this slot to be free.
    pub number: usize,
    /// The low bits of the number, counted from 1, of the core that it went to sleep on.
    pub core: u16,
}

impl QueueWaiter {
    /// As the word of a queue; never 0.
    #[must_use]
    pub const fn word(self) -> u32 {
        (self.core as u32) << 16 | (self.number % TABLE_SLOTS + 1) as u32
    }

    /// Decodes such a word; `None`: nobody waits.
    #[must_use]
    pub const fn read(word: u32) -> Option<Self> {
        match (word as u16 as usize).checked_sub(1) {
            Some(number) if number < TABLE_SLOTS => {
                Some(Self { number, core: (word >> 16) as u16 })
            }
            _ => None,
        }
    }
}

/// Offset in a table of a slot.
#[must_use]
pub const fn slot_offset(number: usize) -> usize {
    SLOTS_OFFSET + number % TABLE_SLOTS * QUEUE_SLOT_LEN
}

/// Offset in a table of a record lock word.
#[must_use]
pub const fn lock_word_offset(lock_word: usize) -> usize {
    LOCK_WORDS_OFFSET + lock_word % LOCK_WORDS * size_of::<u64>()
}

/// The record lock word for records of this [hash](crate::lookup::RecordId::hash).
#[must_use]
pub const fn lock_word_of(hash: u64) -> usize {
    // Not the bits that choose the bucket of the look-up table's index, nor those that its words
    // have.
    (hash >> 20) as usize % LOCK_WORDS
}

/// State of a record lock word that is not free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum LockWordState {
    /// A client prepares a change.
    Claimed = 1,
    /// It counts as done; the node has yet to carry it out.
    Posted = 2,
    /// The node changes the record: clients are to ask.
    Barred = 3,
}

/// A record lock word that is not free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockWord {
    /// How far it has come.
    pub state: LockWordState,
    /// The slot of the change.
    pub number: usize,
    /// The client that has claimed it: the low bits of its id.
    client: u64,
}

impl LockWord {
    /// Claimed by this client, for this slot.
    #[must_use]
    pub const fn new(client: ClientId, number: usize) -> Self {
        let client = client.get() & (u64::MAX >> (STATE_BITS + SLOT_BITS));
        Self { state: LockWordState::Claimed, number: number % TABLE_SLOTS, client }
    }

    /// The same lock word in another state.
    #[must_use]
    pub const fn in_state(self, state: LockWordState) -> Self {
        Self { state, ..self }
    }

    /// Whether it may be that of this client.
    #[must_use]
    pub const fn is_of(&self, client: ClientId) -> bool {
        self.client == Self::new(client, 0).client
    }

    /// That of the node.
    pub const LOCKED: Self = Self { state: LockWordState::Barred, number: 0, client: 0 };

    /// As a word; never 0.
    #[must_use]
    pub const fn word(self) -> u64 {
        self.client << (STATE_BITS + SLOT_BITS)
            | (self.number as u64) << STATE_BITS
            | self.state as u64
    }

    /// Decodes a word; `None`: it is free.
    #[must_use]
    pub const fn read(word: u64) -> Option<Self> {
        let state = match word & ((1 << STATE_BITS) - 1) {
            1 => LockWordState::Claimed,
            2 => LockWordState::Posted,
            3 => LockWordState::Barred,
            _ => return None,
        };
        let number = (word >> STATE_BITS) as usize % TABLE_SLOTS;
        Some(Self { state, number, client: word >> (STATE_BITS + SLOT_BITS) })
    }
}

/// The head of a slot.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct RawSlotHeader {
    client: U64,
    hash: U64,
    body_len: U32,
    payload_len: U32,
}

impl RawSlotHeader {
    /// Of a request of so many bytes of body and payload, about a record of this [hash](crate::lookup::RecordId::hash).
    #[must_use]
    pub fn new(client: ClientId, hash: u64, (body_len, payload_len): (usize, usize)) -> Self {
        Self {
            client: client.get().into(),
            hash: hash.into(),
            body_len: (body_len as u32).into(),
            payload_len: (payload_len as u32).into(),
        }
    }

    /// Decodes the header; `None`: it makes no sense.
    #[must_use]
    pub fn checked(&self) -> Option<SlotHeader> {
        let lens = (self.body_len.get() as usize, self.payload_len.get() as usize);
        let (client, hash) = (ClientId(self.client.get()), self.hash.get());
        let is_right = lens.0 <= REQUEST_LEN_MAX && lens.1 <= REQUEST_LEN_MAX - lens.0;
        is_right.then_some(SlotHeader { client, hash, lens })
    }
}

/// A header of a slot, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotHeader {
    /// The client that submitted what is in the slot.
    pub client: ClientId,
    /// The hash of the record that it is about, and by which it is claimed.
    pub hash: u64,
    /// Bytes of the request: body and payload.
    pub lens: (usize, usize),
}

impl SlotHeader {
    /// The record lock word under which it is submitted.
    #[must_use]
    pub const fn lock_word(&self) -> usize {
        lock_word_of(self.hash)
    }

    /// Bytes of the request together.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.lens.0 + self.lens.1
    }

    /// Whether there is no request.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The content of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotContents<'b> {
    /// The header of the slot.
    pub label: SlotHeader,
    /// Body of the [request](samite_wire::op::OperationRequest).
    pub body: &'b [u8],
    /// Its payload.
    pub payload: &'b [u8],
}

impl<'b> SlotContents<'b> {
    /// Reads a copy of a slot; `None`: its content makes no sense.
    #[must_use]
    pub fn read(raw: &'b [u8; QUEUE_SLOT_LEN]) -> Option<Self> {
        let (header, _) = RawSlotHeader::read_from_prefix(raw).ok()?;
        let label = header.checked()?;
        let request = raw[REQUEST_OFFSET..].get(..label.len())?;
        let (body, payload) = request.split_at_checked(label.lens.0)?;
        Some(Self { label, body, payload })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_read_back() {
        for client in [ClientId(0), ClientId(77), ClientId(u64::MAX)] {
            for number in [0, 1, TABLE_SLOTS - 1] {
                for state in [LockWordState::Claimed, LockWordState::Posted, LockWordState::Barred]
                {
                    let lock_word = LockWord::new(client, number).in_state(state);
                    assert_eq!(LockWord::read(lock_word.word()), Some(lock_word));
                    assert!(lock_word.is_of(client) && !lock_word.is_of(ClientId(5)));
                    assert_ne!(lock_word.word(), 0);
                }
            }
        }
        assert_eq!(LockWord::read(0), None);
    }

    #[test]
    fn words_of_queues_read_back() {
        for number in [0, 1, TABLE_SLOTS - 1] {
            for core in [0, 7, u16::MAX] {
                let waiter = QueueWaiter { number, core };
                assert_eq!(QueueWaiter::read(waiter.word()), Some(waiter));
                assert_ne!(waiter.word(), 0);
            }
        }
        assert_eq!(QueueWaiter::read(0), None);
        assert_eq!(QueueWaiter::read(u32::MAX), None, "there is no such slot");
    }

    #[test]
    fn parts_of_a_table_lie_side_by_side() {
        assert_eq!(
            (OPEN_OFFSET + 8, SOLE_CLIENT_OFFSET + 8 <= pending_offset(0)),
            (SOLE_CLIENT_OFFSET, true)
        );
        assert_eq!(
            (SOLE_CLIENT_OFFSET + 8, NODE_CORE_OFFSET + 4 <= pending_offset(0)),
            (NODE_CORE_OFFSET, true)
        );
        assert!(pending_offset(QUEUES - 1) + 8 <= queue_offset(0));
        assert!(queue_offset(QUEUES - 1) + 4 <= owner_offset(0));
        assert_eq!(
            (queue_of(0), queue_of(QUEUE_SLOTS), queue_of(TABLE_SLOTS - 1)),
            (0, 1, QUEUES - 1)
        );
        assert!(owner_offset(TABLE_SLOTS - 1) + 8 <= lock_word_offset(0));
        assert_eq!(lock_word_offset(LOCK_WORDS - 1) + 8, slot_offset(0));
        assert_eq!(slot_offset(TABLE_SLOTS - 1) + QUEUE_SLOT_LEN, TABLE_LEN);
        assert_eq!(TABLE_LEN % 64, 0);
    }

    #[test]
    fn slots_that_make_no_sense_are_refused() {
        let hash = 3 << 20;
        let filled = |lens| {
            let mut raw = [7; QUEUE_SLOT_LEN];
            let header = RawSlotHeader::new(ClientId(9), hash, lens);
            raw[..size_of::<RawSlotHeader>()].copy_from_slice(header.as_bytes());
            raw
        };
        let raw = filled((REQUEST_LEN_MAX - 9, 9));
        let contents = SlotContents::read(&raw).unwrap();
        assert_eq!((contents.label.client, contents.label.hash), (ClientId(9), hash));
        assert_eq!(contents.label.lock_word(), 3);
        assert_eq!((contents.body.len(), contents.payload), (REQUEST_LEN_MAX - 9, &[7; 9][..]));
        assert_eq!(SlotContents::read(&filled((REQUEST_LEN_MAX, 1))), None);
        assert_eq!(SlotContents::read(&filled((1, REQUEST_LEN_MAX))), None);
        let longest = u32::MAX as usize;
        assert_eq!(SlotContents::read(&filled((longest, longest))), None);
    }
}
