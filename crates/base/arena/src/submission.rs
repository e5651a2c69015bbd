//! Early completion: changes that a client leaves in a submission queue in the
//! [arena](crate::layout) of its node, instead of asking for them and waiting.
//!
//! ```text
//! 0            64         4 KiB                    40 KiB
//! ┌────────────┬──────────┬────────────────────────┬─────────┬── …      each shard has a table
//! │ open,      │ node     │ queue 0                │ queue 1 │
//! │ client,    │ locks    │ active, pending, waiter│         │
//! │ core       │ u32 tags │ tags, 64 slots of 512 B│         │
//! └────────────┴──────────┴────────────────────────┴─────────┴── …
//! ```
//!
//! A client that finds a record in the [shared look-up table](crate::lookup), or that there is
//! none, knows the result of a change of it, for as long as that stays so. So it *claims* a slot of
//! its submission queue, *marks* there which record it is about to change, looks at the look-up
//! table once more, puts the change into the slot, and *submits* it; from then on the change counts
//! as done. The node carries out what is submitted before it serves the next request, and before it
//! changes the record for another client, so that nobody can tell the difference.
//!
//! **Who writes what.** The first page of a table is the node's. Each queue is that of one
//! connection, which the node has [given](crate::lookup::OWNED_OFFSET) it and of which it keeps the
//! owner in memory of its own; the client maps that queue for writing and all else for reading. So
//! nothing is writable to two clients, and a stray pointer of one of them destroys its own changes
//! at most: the others read its queue to ask the node where they need not, and to keep off its
//! records.
//!
//! **Mark.** The bit of a slot in the `active` word of its queue, and the tag of the record
//! ([`tag_of`] its hash) in the tag word of the slot.
//!
//! State of a slot, a word:
//!
//! ```text
//!           client             client, with a checksum of all that is in the slot
//! free (0) ────────▶ claimed ──────────────────────────────▶ submitted
//!  ▲ ▲                │   │                                      │
//!  │ └──── client ────┘   └─ node ─▶ revoked ── client ─▶ free   │
//!  └──────────── node, when it has carried it out ───────────────┘
//! ```
//!
//! The steps of each side, in this order:
//!
//! - A client claims a slot and sets its mark. It finds no mark for the record in any other slot of
//!   any queue that has an owner, no [node lock](node_lock_offset) for it, [`OPEN_OFFSET`] to be
//!   the epoch of its map, [`SOLE_CLIENT_OFFSET`] to name no other client as sole delegation
//!   holder, and the record in the look-up table as it has to be; fills the slot, sets its pending
//!   bit, and changes its state to submitted. If anything fails, nothing was submitted: it takes
//!   the mark away, frees the slot, and asks the node. Of two clients that mark one record, one at
//!   least sees the other.
//! - A reader of the look-up table looks at all queues before. If there is a mark for the record
//!   and its slot is submitted, the look-up table may be behind: ask the node.
//! - The node carries out what is pending before it serves anything. It sets a node lock for the
//!   record; finds that the state is still the same and the mark is there; carries the change out,
//!   so that the look-up table shows it; takes the mark away, frees the slot, and takes the lock
//!   away. A client whose mark was overwritten is not carried out: another one may not have seen
//!   it.
//! - Before the node changes a record, it sets a node lock for it, until the record is changed and
//!   retracted from the look-up table, and looks for marks in all queues: it revokes what is
//!   claimed, and carries out what is submitted. A client that marks the record later sees the
//!   lock.
//! - The node closes the table, and revokes all that is claimed after that. One of the two sees
//!   the other: the client claims before it looks. While the table is closed the node makes changes
//!   that forbid others for records which they do not name: the tombstone of a directory that takes
//!   no entries any more, or a new name-space generation.
//! - While clients hold delegations, only a sole delegation holder, a client that holds all of
//!   them, may submit: its own changes concern no other client. Its changes may also ask for
//!   delegations, which it gets for certain. So before the node checks whether delegations stand
//!   against a change by another client, grants one to that, or lets others submit, it closes the
//!   table and carries out what was submitted.
//! - A queue is given to another connection when the one that had it is closed by the client, which
//!   can only read the queue from before that on, and when every shard has carried out what was
//!   submitted there and has cleared it.
//!
//! What the node takes from a queue it checks in a copy: the checksum, which counts the owner and
//! the slot in, lengths, that the tag and the hash are those of the record that is changed, and
//! that the change is one that may be submitted. What fails is thrown away.
//!
//! A new record is often open for a very short time only: a program makes a file and closes it. So
//! a change that takes an open reference has its token in the slot, in a word that both sides
//! change from the token to 0 by compare-and-swap: the client, when the open reference ends, and
//! the node, when it carries out the change. The side that is first has settled it: the node takes
//! no open reference that has ended, and a client that comes too late ends the open reference as
//! any other. The word may be that of another entry by then; tokens are never the same.
//!
//! The threads of a client use the slots of its queue in turns. When it is ahead of the node by all
//! of them, it says in the queue's word for which slot it waits (a quarter of a queue ahead), looks
//! at the slot again, and sleeps there for a short time; the node, when it has freed some slots,
//! looks at that word. Nothing depends on it: a client that sleeps in vain wakes up soon. The node
//! says on which core it is ([`NODE_CORE_OFFSET`]). On another core a client polls first, which is
//! over sooner than a sleep. A client on the node's core waits after a quarter of a queue already,
//! until all of it is carried out, if others have submitted too: else they would be ahead by all
//! their slots before the node gets its core back, and all cores but that one would have nothing to
//! do. The node does not make it wait until nothing is pending: entries that the others have
//! submitted by then, and submit meanwhile, can wait in their slots.
//!
//! The node takes no length or offset from a slot before it has checked its own copy.

use samite_types::ClientId;
use xxhash_rust::xxh3::xxh3_64_with_seed;
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
const NODE_LOCKS_OFFSET: usize = 64;
/// Records that the node can have locked at once in a shard, in one cache line. The first lock is
/// that of the entry that is carried out; where an operation changes more records than there are
/// others, the table is closed.
pub const NODE_LOCKS: usize = 16;
const QUEUES_OFFSET: usize = 4096;
/// Submission queues of a shard: so many connections can have one.
pub const QUEUES: usize = 64;
/// Slots of a submission queue, used in turns: one for each bit of a word.
pub const QUEUE_SLOTS: usize = u64::BITS as usize;
/// Bytes of a slot.
pub const QUEUE_SLOT_LEN: usize = 512;
const PENDING_OFFSET: usize = 8;
const WAITER_OFFSET: usize = 64;
const TAGS_OFFSET: usize = 128;
const SLOTS_OFFSET: usize = 512;
/// Bytes of a queue: whole pages.
pub const QUEUE_LEN: usize = (SLOTS_OFFSET + QUEUE_SLOTS * QUEUE_SLOT_LEN).next_multiple_of(4096);
/// Bytes of a table.
pub const TABLE_LEN: usize = QUEUES_OFFSET + QUEUES * QUEUE_LEN;
/// Offset in a slot of the token of the open reference that the change takes, a `u64`; 0, or
/// another token: that has ended.
pub const REFERENCE_OFFSET: usize = 8;
/// Offset in a slot of its [header](RawSlotHeader).
pub const HEADER_OFFSET: usize = 16;
/// Offset in a slot of the request.
pub const REQUEST_OFFSET: usize = HEADER_OFFSET + size_of::<RawSlotHeader>();
/// Longest request in a slot, in bytes.
pub const REQUEST_LEN_MAX: usize = QUEUE_SLOT_LEN - REQUEST_OFFSET;

/// A slot of one of the queues of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotIndex {
    /// The queue.
    pub queue: usize,
    /// The slot, counted from the first of the queue.
    pub within: usize,
}

impl SlotIndex {
    /// Its bit in the words of its queue.
    #[must_use]
    pub const fn bit(self) -> u64 {
        1 << (self.within % QUEUE_SLOTS)
    }

    /// Offset in a table of the tag of the record that it is about, a `u32`.
    #[must_use]
    pub const fn tag_offset(self) -> usize {
        queue_offset(self.queue) + TAGS_OFFSET + self.within % QUEUE_SLOTS * size_of::<u32>()
    }

    /// Offset in a table of the slot, which begins with its [state](QueueSlotState), a `u64`.
    #[must_use]
    pub const fn offset(self) -> usize {
        queue_offset(self.queue) + SLOTS_OFFSET + self.within % QUEUE_SLOTS * QUEUE_SLOT_LEN
    }
}

/// Offset in a table of a queue, a multiple of 4 KiB. It begins with its active bits, a `u64`: one
/// for each slot that is claimed or submitted.
#[must_use]
pub const fn queue_offset(queue: usize) -> usize {
    QUEUES_OFFSET + queue % QUEUES * QUEUE_LEN
}

/// Offset in a table of the pending bits of a queue, a `u64`: one for each slot at which the node
/// has yet to look.
#[must_use]
pub const fn pending_offset(queue: usize) -> usize {
    queue_offset(queue) + PENDING_OFFSET
}

/// Offset in a table of the word on which the threads of a queue's client wait, a `u32`: a
/// [`QueueWaiter`], or 0.
#[must_use]
pub const fn waiter_offset(queue: usize) -> usize {
    queue_offset(queue) + WAITER_OFFSET
}

/// Offset in a table of a node lock, a `u32`: the tag of a record that the node changes, or 0.
#[must_use]
pub const fn node_lock_offset(lock: usize) -> usize {
    NODE_LOCKS_OFFSET + lock % NODE_LOCKS * size_of::<u32>()
}

/// The tag of records of this [hash](crate::lookup::RecordId::hash); never 0.
#[must_use]
pub const fn tag_of(hash: u64) -> u32 {
    // Not the bits that choose the bucket of the look-up table's index, where that is small.
    (hash >> 20) as u32 | 1
}

/// A client that waits in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueWaiter {
    /// It waits for this slot of the queue to be free.
    pub within: usize,
    /// The low bits of the number, counted from 1, of the core that it went to sleep on.
    pub core: u16,
}

impl QueueWaiter {
    /// As the word of a queue; never 0.
    #[must_use]
    pub const fn word(self) -> u32 {
        (self.core as u32) << 16 | (self.within % QUEUE_SLOTS + 1) as u32
    }

    /// Decodes such a word; `None`: nobody waits.
    #[must_use]
    pub const fn read(word: u32) -> Option<Self> {
        match (word as u16 as usize).checked_sub(1) {
            Some(within) if within < QUEUE_SLOTS => {
                Some(Self { within, core: (word >> 16) as u16 })
            }
            _ => None,
        }
    }
}

const STATE_MASK: u64 = 3;

/// State of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum QueueSlotState {
    /// Nobody uses it.
    Free = 0,
    /// Its client prepares a change.
    Claimed = 1,
    /// The change counts as done; the node has yet to carry it out.
    Submitted = 2,
    /// The node has taken it from the client, which has yet to free it.
    Revoked = 3,
}

impl QueueSlotState {
    /// State by the word at the start of a slot.
    #[must_use]
    pub const fn of(word: u64) -> Self {
        match word & STATE_MASK {
            0 => Self::Free,
            1 => Self::Claimed,
            2 => Self::Submitted,
            _ => Self::Revoked,
        }
    }

    /// The word of a slot that is claimed for the `turn`-th change of a client: one that no stray
    /// write restores when the node has revoked it.
    #[must_use]
    pub const fn claimed(client: ClientId, turn: usize) -> u64 {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        let word = (client.get() ^ turn as u64).wrapping_mul(ODD).rotate_left(32);
        word & !STATE_MASK | Self::Claimed as u64
    }

    /// The word of a slot that is submitted: a checksum of `bytes`, header and request, for this
    /// owner of the queue. So no stray write brings it about, nor does a change that was carried
    /// out or never submitted come back.
    #[must_use]
    pub fn submitted(owner: ClientId, slot: SlotIndex, bytes: &[u8]) -> u64 {
        let seed = owner.get().rotate_left(32) ^ slot.offset() as u64;
        xxh3_64_with_seed(bytes, seed) & !STATE_MASK | Self::Submitted as u64
    }
}

/// The header of a slot.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct RawSlotHeader {
    hash: U64,
    body_len: U32,
    payload_len: U32,
}

impl RawSlotHeader {
    /// Of a request of so many bytes of body and payload, about a record of this [hash](crate::lookup::RecordId::hash).
    #[must_use]
    pub fn new(hash: u64, (body_len, payload_len): (usize, usize)) -> Self {
        Self {
            hash: hash.into(),
            body_len: (body_len as u32).into(),
            payload_len: (payload_len as u32).into(),
        }
    }

    /// Decodes the header; `None`: it makes no sense.
    #[must_use]
    pub fn checked(&self) -> Option<SlotHeader> {
        let lens = (self.body_len.get() as usize, self.payload_len.get() as usize);
        let is_right = lens.0 <= REQUEST_LEN_MAX && lens.1 <= REQUEST_LEN_MAX - lens.0;
        is_right.then_some(SlotHeader { hash: self.hash.get(), lens })
    }
}

/// A header of a slot, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotHeader {
    /// The hash of the record that the change is about.
    pub hash: u64,
    /// Bytes of the request: body and payload.
    pub lens: (usize, usize),
}

impl SlotHeader {
    /// Bytes of header and request.
    #[must_use]
    pub const fn len(&self) -> usize {
        size_of::<RawSlotHeader>() + self.lens.0 + self.lens.1
    }

    /// Never: there is a header.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        false
    }
}

/// Header and request of a slot, as long as they can be.
pub const CONTENTS_LEN_MAX: usize = QUEUE_SLOT_LEN - HEADER_OFFSET;

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
    /// Reads a copy of header and request; `None`: it makes no sense.
    #[must_use]
    pub fn read(raw: &'b [u8]) -> Option<Self> {
        let (header, request) = RawSlotHeader::read_from_prefix(raw).ok()?;
        let label = header.checked()?;
        let (body, rest) = request.split_at_checked(label.lens.0)?;
        Some(Self { label, body, payload: rest.get(..label.lens.1)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_read_back() {
        assert_eq!(QueueSlotState::of(0), QueueSlotState::Free);
        assert_eq!(QueueSlotState::of(QueueSlotState::Revoked as u64), QueueSlotState::Revoked);
        let slot = |within| SlotIndex { queue: 3, within };
        for turn in [0, 1, usize::MAX >> 2] {
            let word = QueueSlotState::claimed(ClientId(7), turn);
            assert_eq!(QueueSlotState::of(word), QueueSlotState::Claimed);
            assert_ne!(word, QueueSlotState::claimed(ClientId(7), turn ^ 1));
            assert_ne!(word, QueueSlotState::claimed(ClientId(8), turn));
        }
        let word = QueueSlotState::submitted(ClientId(7), slot(1), b"abc");
        assert_eq!(QueueSlotState::of(word), QueueSlotState::Submitted);
        let others = [(8, 1, &b"abc"[..]), (7, 2, b"abc"), (7, 1, b"abd"), (7, 1, b"ab")];
        for (owner, within, bytes) in others {
            assert_ne!(QueueSlotState::submitted(ClientId(owner), slot(within), bytes), word);
        }
    }

    #[test]
    fn words_of_queues_read_back() {
        for within in [0, 1, QUEUE_SLOTS - 1] {
            for core in [0, 7, u16::MAX] {
                let waiter = QueueWaiter { within, core };
                assert_eq!(QueueWaiter::read(waiter.word()), Some(waiter));
                assert_ne!(waiter.word(), 0);
            }
        }
        assert_eq!(QueueWaiter::read(0), None);
        assert_eq!(QueueWaiter::read(u32::MAX), None, "there is no such slot");
    }

    #[test]
    fn parts_of_a_table_lie_side_by_side() {
        const { assert!(OPEN_OFFSET + 8 <= SOLE_CLIENT_OFFSET) };
        const { assert!(SOLE_CLIENT_OFFSET + 8 <= NODE_CORE_OFFSET) };
        assert!(NODE_CORE_OFFSET + 4 <= node_lock_offset(0));
        assert_eq!(node_lock_offset(0) % 64, 0);
        assert!(node_lock_offset(NODE_LOCKS - 1) + 4 <= queue_offset(0));
        for queue in [0, 1, QUEUES - 1] {
            let (start, slot) = (queue_offset(queue), |within| SlotIndex { queue, within });
            assert_eq!(start % 4096, 0);
            assert!(start + 8 <= pending_offset(queue));
            assert!(pending_offset(queue) + 8 <= waiter_offset(queue));
            assert!(waiter_offset(queue) + 4 <= slot(0).tag_offset());
            assert!(slot(QUEUE_SLOTS - 1).tag_offset() + 4 <= slot(0).offset());
            assert!(slot(QUEUE_SLOTS - 1).offset() + QUEUE_SLOT_LEN <= start + QUEUE_LEN);
        }
        assert_eq!(queue_offset(QUEUES - 1) + QUEUE_LEN, TABLE_LEN);
        assert_ne!(tag_of(0), 0);
    }

    #[test]
    fn slots_that_make_no_sense_are_refused() {
        let filled = |lens| {
            let mut raw = [7; CONTENTS_LEN_MAX];
            let header = RawSlotHeader::new(77, lens);
            raw[..size_of::<RawSlotHeader>()].copy_from_slice(header.as_bytes());
            raw
        };
        let raw = filled((REQUEST_LEN_MAX - 9, 9));
        let contents = SlotContents::read(&raw).unwrap();
        assert_eq!((contents.label.hash, contents.label.len()), (77, CONTENTS_LEN_MAX));
        assert_eq!((contents.body.len(), contents.payload), (REQUEST_LEN_MAX - 9, &[7; 9][..]));
        assert_eq!(SlotContents::read(&raw[..CONTENTS_LEN_MAX - 1]), None, "cut short");
        assert_eq!(SlotContents::read(&filled((REQUEST_LEN_MAX, 1))), None);
        assert_eq!(SlotContents::read(&filled((1, REQUEST_LEN_MAX))), None);
        let longest = u32::MAX as usize;
        assert_eq!(SlotContents::read(&filled((longest, longest))), None);
    }
}
