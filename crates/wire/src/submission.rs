//! Posts: changes that a client leaves in the [arena](crate::arena) for its node, instead of asking for them and waiting.
//!
//! ```text
//! 0        128           1152          4 KiB           8 KiB                   2056 KiB
//! ┌────────┬─────────────┬─────────────┬───────────────┬───────────────────────┬──────────────────────────┐
//! │ open…  │ pending     │ who waits   │ boxes' owners │ claims                │ boxes of 512 bytes       │
//! │ words  │ u64 per lane│ u32 per lane│ u64 per box   │ u64 per hash of a key │ header, hold, request    │
//! └────────┴─────────────┴─────────────┴───────────────┴───────────────────────┴──────────────────────────┘
//! ```
//!
//! Each shard of the node has a table. A client that finds a record on the [board](crate::lookup), or that there is none, knows what a change of it
//! would be answered, for as long as that stays so. So it *claims* the record, looks at the board once more, puts the change into a
//! *box*, and *posts* it; from then on the change counts as done. The node carries out what is posted before whatever it is asked
//! next, and before it changes the record for somebody else, so that nobody can tell the difference.
//!
//! A claim is one word. Both sides change it by compare-and-swap alone, but for the node that frees what is its own:
//!
//! ```text
//!            client            client
//! free (0) ────────▶ claimed ────────▶ posted
//!  ▲ ▲ │              │  │  │          │  │
//!  │ │ │◀── client ───┘  │  └──┐       │  │
//!  │ │ │◀─ node, revokes ┘     │ node  │  │
//!  │ │ └──────── node ────────▶▼◀──────┘  │ node, when it has carried it out and goes on to change the record
//!  │ └────────── node ─────── barred      │
//!  └──────────── node, when it has carried it out
//! ```
//!
//! What each side does, in this order:
//!
//! - A client takes a box (its owner: 0 → client), says in it of which hash the record is, and takes the claim for that; finds [`OPEN_OFFSET`] to be the epoch of its
//!   map, [`WHOM_OFFSET`] to name nobody else, and the record on the board as it has to be; fills the box, sets its pending bit, and changes the claim to posted. If that fails, nothing was
//!   posted: it frees claim and box, and asks the node.
//! - Who reads the board looks at the claim before. If something is posted there, the board may be behind: ask the node.
//! - The node, before it serves anything, carries out what is pending. Before it changes a record, it bars the claim, until the record
//!   is changed and what was on the board is not: it takes the claim from a client that has not posted yet, and carries out what is posted, whose claim is barred
//!   with that: nothing is posted in between. Where clients claim and free it again and again, so that none of some tries to bar it comes in between, it closes the table
//!   until the record is changed.
//! - It closes the table, and revokes all claims after that. One of the two sees the other: the client claims before it looks. While the table is
//!   closed it makes changes that forbid others for records which they do not name: that of a directory that takes no entries any more, or of
//!   the lease epoch that clients stand on.
//! - While clients hold leases on records, only a client that holds all of them may post: its own changes concern nobody else's. What it posts may also ask for
//!   leases, which it gets for certain. So before the node looks whether leases stand against a change by another client, gives one to that, or lets others post, it closes
//!   the table and carries out what was posted.
//!
//! What is made is often held for a moment only: a program makes a file and closes it. So a change that takes a hold has its token in the box, in a word that both
//! sides change from the token to 0 by compare-and-swap: the client, when the hold ends, and the node, when it carries out the change. Whoever
//! is first has settled it: the node takes no hold that has ended, and a client that comes too late ends the hold as any other. The word may be that of another post by
//! then; tokens are never the same.
//!
//! Each client uses the boxes of a *lane* in turns, and another lane when it meets somebody else in its own. When it is ahead of the node by all of them, it says in the lane's word for which box it waits (a quarter of a lane
//! ahead), looks at the box again, and sleeps there for a moment; the node, when it has freed some boxes, looks at that word. Nothing depends on it: who sleeps in vain, wakes up
//! soon. The node says on which core it is ([`NODE_CORE_OFFSET`]). Elsewhere a client polls first, which is over sooner than a sleep. A client on that core waits after a quarter of a lane
//! already, until all of it is carried out, if others have posted too: else they would be ahead by all their boxes before the node gets its core back, and all cores but
//! that one would have nothing to do. The node does not make it wait until nothing is pending: what the others have posted by then, and post meanwhile, can wait in their boxes.
//!
//! The node takes no length or offset from a box before it has checked its own copy.

use samite_types::ClientId;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Offset of the epoch of the cluster map by which clients may post, a `u64`; 0: they may not.
pub const OPEN_OFFSET: usize = 0;
/// Offset of the only client that may post, a `u64`; 0: all clients of the host. Changed while nobody may.
pub const WHOM_OFFSET: usize = 8;
/// Offset of the low bits of the number, counted from 1, of the core on which the node last carried out what was posted, a `u32`.
pub const NODE_CORE_OFFSET: usize = 16;
const PENDING_OFFSET: usize = 128;
const LANES_OFFSET: usize = PENDING_OFFSET + LANES * LANE_STRIDE;
/// Two cache lines for each lane, which processors fetch together: clients of one lane do not wait for those of another.
const LANE_STRIDE: usize = 128;
const OWNERS_OFFSET: usize = 4096;
const CLAIMS_OFFSET: usize = 8192;
/// Claims of a table. Who finds that of another record taken has to ask, and wait for all that was posted: of those that wait in two full lanes, hardly any do.
pub const CLAIMS: usize = 1 << 18;
const BOXES_OFFSET: usize = CLAIMS_OFFSET + CLAIMS * size_of::<u64>();
/// Lanes of boxes. A client has one, perhaps with others.
pub const LANES: usize = 8;
/// Boxes of a lane, used in turns: one for each bit of a word.
pub const LANE_BOXES: usize = u64::BITS as usize;
/// Boxes of a table: so many posts can wait.
pub const BOXES: usize = LANES * LANE_BOXES;
/// Bytes of a box.
pub const BOX_LEN: usize = 512;
/// Bytes of a table.
pub const TABLE_LEN: usize = BOXES_OFFSET + BOXES * BOX_LEN;
/// Offset in a box of the token of the hold that the change takes, a `u64`; 0, or another token: that has ended.
pub const HOLD_OFFSET: usize = size_of::<RawSlotHeader>();
/// Offset in a box of the request.
pub const REQUEST_OFFSET: usize = HOLD_OFFSET + size_of::<u64>();
/// Longest request in a box, in bytes.
pub const REQUEST_LEN_MAX: usize = BOX_LEN - REQUEST_OFFSET;

const STATE_BITS: u32 = 2;
const BOX_BITS: u32 = BOXES.trailing_zeros();

/// Offset in a table of the word that names the owner of a box, a `u64`: the client's id, or 0.
#[must_use]
pub const fn owner_offset(number: usize) -> usize {
    OWNERS_OFFSET + number % BOXES * size_of::<u64>()
}

/// Lane of a box.
#[must_use]
pub const fn queue_of(number: usize) -> usize {
    number % BOXES / LANE_BOXES
}

/// Offset in a table of the pending bits of a lane, one for each of its boxes, a `u64`.
#[must_use]
pub const fn pending_offset(lane: usize) -> usize {
    PENDING_OFFSET + lane % LANES * LANE_STRIDE
}

/// The pending bit of a box, in the word of its lane.
#[must_use]
pub const fn pending_bit(number: usize) -> u64 {
    1 << (number % LANE_BOXES)
}

/// Offset in a table of the word on which the clients of a lane wait, a `u32`: a [`QueueWaiter`], or 0.
#[must_use]
pub const fn queue_offset(lane: usize) -> usize {
    LANES_OFFSET + lane % LANES * LANE_STRIDE
}

/// Who waits in a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueWaiter {
    /// For this box to be free.
    pub number: usize,
    /// The low bits of the number, counted from 1, of the core that it went to sleep on.
    pub core: u16,
}

impl QueueWaiter {
    /// As the word of a lane; never 0.
    #[must_use]
    pub const fn word(self) -> u32 {
        (self.core as u32) << 16 | (self.number % BOXES + 1) as u32
    }

    /// What such a word says; `None`: nobody waits.
    #[must_use]
    pub const fn read(word: u32) -> Option<Self> {
        match (word as u16 as usize).checked_sub(1) {
            Some(number) if number < BOXES => Some(Self { number, core: (word >> 16) as u16 }),
            _ => None,
        }
    }
}

/// Offset in a table of a box.
#[must_use]
pub const fn slot_offset(number: usize) -> usize {
    BOXES_OFFSET + number % BOXES * BOX_LEN
}

/// Offset in a table of a claim.
#[must_use]
pub const fn lock_word_offset(claim: usize) -> usize {
    CLAIMS_OFFSET + claim % CLAIMS * size_of::<u64>()
}

/// The claim for records of this [hash](crate::lookup::RecordId::hash).
#[must_use]
pub const fn lock_word_of(hash: u64) -> usize {
    // Not the bits that choose the bucket of the board's index, nor those that its words have.
    (hash >> 20) as usize % CLAIMS
}

/// How far a claim has come.
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

/// A claim that is not free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockWord {
    /// How far it has come.
    pub state: LockWordState,
    /// The box of the change.
    pub number: usize,
    /// Who has it: the low bits of its id.
    client: u64,
}

impl LockWord {
    /// Of this client, with this box.
    #[must_use]
    pub const fn new(client: ClientId, number: usize) -> Self {
        let client = client.get() & (u64::MAX >> (STATE_BITS + BOX_BITS));
        Self { state: LockWordState::Claimed, number: number % BOXES, client }
    }

    /// The same claim in another state.
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
    pub const BARRED: Self = Self { state: LockWordState::Barred, number: 0, client: 0 };

    /// As a word; never 0.
    #[must_use]
    pub const fn word(self) -> u64 {
        self.client << (STATE_BITS + BOX_BITS)
            | (self.number as u64) << STATE_BITS
            | self.state as u64
    }

    /// What a word says; `None`: it is free.
    #[must_use]
    pub const fn read(word: u64) -> Option<Self> {
        let state = match word & ((1 << STATE_BITS) - 1) {
            1 => LockWordState::Claimed,
            2 => LockWordState::Posted,
            3 => LockWordState::Barred,
            _ => return None,
        };
        let number = (word >> STATE_BITS) as usize % BOXES;
        Some(Self { state, number, client: word >> (STATE_BITS + BOX_BITS) })
    }
}

/// What a box begins with.
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

    /// What it says; `None`: it makes no sense.
    #[must_use]
    pub fn checked(&self) -> Option<SlotHeader> {
        let lens = (self.body_len.get() as usize, self.payload_len.get() as usize);
        let (client, hash) = (ClientId(self.client.get()), self.hash.get());
        let is_right = lens.0 <= REQUEST_LEN_MAX && lens.1 <= REQUEST_LEN_MAX - lens.0;
        is_right.then_some(SlotHeader { client, hash, lens })
    }
}

/// What a header says, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotHeader {
    /// Who posted what is in the box.
    pub client: ClientId,
    /// The hash of the record that it is about, and by which it is claimed.
    pub hash: u64,
    /// Bytes of the request: body and payload.
    pub lens: (usize, usize),
}

impl SlotHeader {
    /// The claim that it is posted under.
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

/// What is in a box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotContents<'b> {
    /// What it says of itself.
    pub label: SlotHeader,
    /// Body of the [request](crate::op::OperationRequest).
    pub body: &'b [u8],
    /// Its payload.
    pub payload: &'b [u8],
}

impl<'b> SlotContents<'b> {
    /// Reads a copy of a box; `None`: what it says makes no sense.
    #[must_use]
    pub fn read(raw: &'b [u8; BOX_LEN]) -> Option<Self> {
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
            for number in [0, 1, BOXES - 1] {
                for state in [LockWordState::Claimed, LockWordState::Posted, LockWordState::Barred]
                {
                    let claim = LockWord::new(client, number).in_state(state);
                    assert_eq!(LockWord::read(claim.word()), Some(claim));
                    assert!(claim.is_of(client) && !claim.is_of(ClientId(5)));
                    assert_ne!(claim.word(), 0);
                }
            }
        }
        assert_eq!(LockWord::read(0), None);
    }

    #[test]
    fn words_of_lanes_read_back() {
        for number in [0, 1, BOXES - 1] {
            for core in [0, 7, u16::MAX] {
                let waiter = QueueWaiter { number, core };
                assert_eq!(QueueWaiter::read(waiter.word()), Some(waiter));
                assert_ne!(waiter.word(), 0);
            }
        }
        assert_eq!(QueueWaiter::read(0), None);
        assert_eq!(QueueWaiter::read(u32::MAX), None, "there is no such box");
    }

    #[test]
    fn parts_of_a_table_lie_side_by_side() {
        assert_eq!((OPEN_OFFSET + 8, WHOM_OFFSET + 8 <= pending_offset(0)), (WHOM_OFFSET, true));
        assert_eq!(
            (WHOM_OFFSET + 8, NODE_CORE_OFFSET + 4 <= pending_offset(0)),
            (NODE_CORE_OFFSET, true)
        );
        assert!(pending_offset(LANES - 1) + 8 <= queue_offset(0));
        assert!(queue_offset(LANES - 1) + 4 <= owner_offset(0));
        assert_eq!((queue_of(0), queue_of(LANE_BOXES), queue_of(BOXES - 1)), (0, 1, LANES - 1));
        assert!(owner_offset(BOXES - 1) + 8 <= lock_word_offset(0));
        assert_eq!(lock_word_offset(CLAIMS - 1) + 8, slot_offset(0));
        assert_eq!(slot_offset(BOXES - 1) + BOX_LEN, TABLE_LEN);
        assert_eq!(TABLE_LEN % 64, 0);
    }

    #[test]
    fn boxes_that_make_no_sense_are_refused() {
        let hash = 3 << 20;
        let filled = |lens| {
            let mut raw = [7; BOX_LEN];
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
