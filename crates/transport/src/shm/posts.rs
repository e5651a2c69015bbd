//! A client's side of the [posts](samite_wire::posts).

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::time::Duration;

use rustix::thread::futex;
use samite_types::{ClientId, Epoch, PartitionId};
use samite_wire::access::Access;
use samite_wire::heads::RecordId;
use samite_wire::posts::{
    BoxHeader, Claim, HOLD_OFFSET, LANE_BOXES, LANES, OPEN_OFFSET, PENDING_OFFSET, REQUEST_LEN_MAX,
    REQUEST_OFFSET, State, WHOM_OFFSET, Waiter, box_offset, claim_of, claim_offset, lane_of,
    lane_offset, owner_offset,
};
use zerocopy::IntoBytes;

use super::arena_view::ArenaView;
use super::cores::this_core;
use crate::socket::timespec;

/// After so many changes that were posted, a node that sleeps is woken.
const POSTS_PER_CALL: usize = 16;
/// Boxes that a client tries before it waits.
const BOXES_TRIED: usize = 4;
/// So many boxes are free before a client that waits goes on. The node has the others to go on with while it wakes up.
const FREE_BOXES: usize = LANE_BOXES / 4;
/// How often a client waits for a box, and how long each time: then it asks, which says what is wrong with the node.
const WAITS: u32 = 10;
const WAIT: Duration = Duration::from_millis(2);

/// Where a client posts next, and as whom.
#[derive(Debug)]
pub(super) struct Turn {
    /// Counts the boxes of its lane.
    next: AtomicUsize,
    uid: u32,
}

impl Turn {
    /// For the user whom the node knows the connection to be of.
    pub(super) fn new() -> Self {
        Self { next: AtomicUsize::new(0), uid: rustix::process::geteuid().as_raw() }
    }
}

/// A change of one record, to be posted.
#[derive(Clone, Copy, Debug)]
pub struct Change<'p> {
    /// The record. It is what the board says of it that makes the outcome certain.
    pub record: RecordId<'p>,
    /// Who may change its dataset.
    pub access: Access,
    /// Epoch of its cluster map.
    pub map_epoch: Epoch,
    /// The client.
    pub client: ClientId,
    /// It counts on leases that the change asks for: it has to be the only one that may post.
    pub borrows: bool,
    /// Token of the hold that the change takes, which may [end](ArenaView::end_hold) before that; 0 for none.
    pub hold: u64,
    /// The change, as a [request](samite_wire::op::Request).
    pub body: &'p [u8],
    /// Its payload, in pieces.
    pub payload: &'p [&'p [u8]],
}

/// Something was posted: the box in which it was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posted {
    number: u16,
}

/// A box and perhaps a claim, freed when dropped unless they were posted.
struct Claimed<'v> {
    owner: &'v AtomicU64,
    claim: Option<(&'v AtomicU64, Claim)>,
}

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        if let Some((word, claim)) = self.claim {
            // If it is not ours any more, the node has taken it.
            let _ = word.compare_exchange(claim.word(), 0, Ordering::Release, Ordering::Relaxed);
        }
        self.owner.store(0, Ordering::Release);
    }
}

impl ArenaView {
    /// Whether something was posted that may have changed records of this hash, and that the node has yet to carry out.
    pub(super) fn is_posted(&self, part: u32, hash: u64) -> bool {
        let word = self.post_word(part, claim_offset(claim_of(hash))).load(Ordering::Acquire);
        Claim::read(word).is_some_and(|claim| claim.state == State::Posted)
    }

    /// Whether `who` may post, who serves by this map and may count on leases.
    fn is_open(&self, part: u32, map_epoch: Epoch, (who, borrows): (ClientId, bool)) -> bool {
        let open = self.post_word(part, OPEN_OFFSET).load(Ordering::Acquire);
        if open != map_epoch.get() || open == 0 {
            return false;
        }
        let whom = self.post_word(part, WHOM_OFFSET).load(Ordering::Acquire);
        whom == who.get() || whom == 0 && !borrows
    }

    /// Whether a client that serves by this map may post changes of `record` now, and with `borrows` count on leases. It may end at any time. What
    /// [`ArenaView::post`] looks at is fetched meanwhile.
    #[must_use]
    pub fn may_post(&self, record: &RecordId<'_>, map_epoch: Epoch, who: (ClientId, bool)) -> bool {
        let part = self.part_of(record.partition);
        let is_open = self.is_open(part, map_epoch, who);
        if is_open {
            self.expect(part, record.hash());
        }
        is_open
    }

    /// Posts a change of a record, if what is seen of it then makes the outcome certain. Where the node is behind it waits a little. `call` wakes the
    /// node if it sleeps. `None`: nothing was done, ask the node.
    #[must_use]
    pub fn post(
        &self,
        change: &Change<'_>,
        call: impl Fn(),
        is_certain: impl FnOnce(&Self) -> bool,
    ) -> Option<Posted> {
        let lens = (change.body.len(), change.payload.iter().map(|piece| piece.len()).sum());
        if lens.0 + lens.1 > REQUEST_LEN_MAX || !change.access.allows(self.turn.uid, true) {
            return None;
        }
        let (hash, part) = (change.record.hash(), self.part_of(change.record.partition));
        self.expect_slot(part, hash);
        let number = self.take_box(part, change, call)?;
        let owner = self.post_word(part, owner_offset(number));
        let mut claimed = Claimed { owner, claim: None };
        let place = claim_of(hash);
        self.label(part, number, &BoxHeader::new(change.client, place, lens));
        let word = self.post_word(part, claim_offset(place));
        let claim = Claim::new(change.client, number);
        let orders = (Ordering::SeqCst, Ordering::Relaxed);
        if word.compare_exchange(0, claim.word(), orders.0, orders.1).is_err() {
            return None;
        }
        claimed.claim = Some((word, claim));
        // Who closes the table, or takes the record off the board, after what is seen from here on, sees the claim.
        fence(Ordering::SeqCst);
        if !self.is_open_for(part, change) || !is_certain(self) {
            return None;
        }
        self.fill(part, number, change);
        let bits = self.post_word(part, PENDING_OFFSET + number / 64 * 8);
        bits.fetch_or(1 << (number % 64), Ordering::SeqCst);
        let posted = claim.in_state(State::Posted).word();
        if word.compare_exchange(claim.word(), posted, orders.0, orders.1).is_err() {
            return None;
        }
        // The node frees them.
        std::mem::forget(claimed);
        Some(Posted { number: number as u16 })
    }

    /// The hold that a change takes which was posted about a record of this partition ends. `false`: the node has taken it already, ask for that.
    #[must_use]
    pub fn end_hold(&self, partition: PartitionId, posted: Posted, token: u64) -> bool {
        let offset = box_offset(usize::from(posted.number)) + HOLD_OFFSET;
        let word = self.post_word(self.part_of(partition), offset);
        // In a table of another life of the node, or after others have used the box, there is another token.
        token != 0 && word.compare_exchange(token, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn is_open_for(&self, part: u32, change: &Change<'_>) -> bool {
        self.is_open(part, change.map_epoch, (change.client, change.borrows))
    }

    /// Takes a box of the client's lane that nobody has, and waits for one if need be.
    fn take_box(&self, part: u32, change: &Change<'_>, call: impl Fn()) -> Option<usize> {
        let client = change.client.get();
        let first = client as usize % LANES * LANE_BOXES;
        let turn = self.turn.next.fetch_add(1, Ordering::Relaxed);
        if turn.is_multiple_of(POSTS_PER_CALL) {
            call();
        }
        let box_at = |turn: usize| first + turn % LANE_BOXES;
        let try_box = |turn: usize| {
            let owner = self.post_word(part, owner_offset(box_at(turn)));
            let taken = owner.compare_exchange(0, client, Ordering::Acquire, Ordering::Relaxed);
            taken.is_ok().then_some(box_at(turn))
        };
        if let Some(number) = (turn..turn + BOXES_TRIED).find_map(try_box) {
            return Some(number);
        }
        let later = turn + FREE_BOXES;
        for _ in 0..WAITS {
            call();
            self.await_box(part, box_at(later));
            if !self.is_open_for(part, change) {
                return None;
            }
            if let Some(number) = [turn, later].into_iter().find_map(try_box) {
                return Some(number);
            }
        }
        None
    }

    /// Waits a little until a box is free.
    fn await_box(&self, part: u32, number: usize) {
        let word = self.post_flag(part, lane_offset(lane_of(number)));
        let waits = Waiter { number, core: this_core() as u16 }.word();
        word.store(waits, Ordering::SeqCst);
        // The node frees the box before it looks at the word.
        if self.post_word(part, owner_offset(number)).load(Ordering::SeqCst) != 0 {
            // Not private: the node wakes us from its own process. Whatever comes of it is seen at the box.
            let _ = futex::wait(word, futex::Flags::empty(), waits, Some(&timespec(WAIT)));
        }
        // Another client of the lane may wait there now.
        let _ = word.compare_exchange(waits, 0, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Says in a box what it is for.
    fn label(&self, part: u32, number: usize, header: &BoxHeader) {
        let dest = self.posts_at(part, box_offset(number), size_of::<BoxHeader>());
        let source = header.as_bytes();
        // SAFETY: the box begins with a header; it is this client's until it is posted or freed, and the node checks what it reads of it.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), dest, source.len()) };
    }

    /// Puts a change into a box.
    fn fill(&self, part: u32, number: usize, change: &Change<'_>) {
        if change.hold != 0 {
            let word = self.post_word(part, box_offset(number) + HOLD_OFFSET);
            word.store(change.hold, Ordering::Relaxed);
        }
        let start = box_offset(number) + REQUEST_OFFSET;
        let mut dest = self.posts_at(part, start, REQUEST_LEN_MAX);
        for piece in std::iter::once(&change.body).chain(change.payload) {
            // SAFETY: a box has room for the longest request, and the caller has checked that this one is no longer; it is this client's until
            // it is posted or freed, and the node uses no copy that it made before.
            unsafe {
                std::ptr::copy_nonoverlapping(piece.as_ptr(), dest, piece.len());
                dest = dest.add(piece.len());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::SeqCst;
    use std::sync::atomic::{AtomicBool, AtomicU32};

    use samite_types::{DatasetId, PartitionId, Version};
    use samite_wire::arena::ArenaLayout;
    use samite_wire::heads::{
        ALIVE_OFFSET, HEAD_LEN, Head, LEASE_OFFSET, MORE, Slot, VALID_ALWAYS, VALID_OFFSET,
        index_word, known_word,
    };
    use samite_wire::posts::{BOX_LEN, BOXES, Contents};

    use super::*;
    use crate::shm::arena_view::tests::arena;
    use crate::shm::mapping::Mapping;

    const ID: RecordId<'_> =
        RecordId { dataset: DatasetId(1), partition: PartitionId(2), key: b"k" };

    /// A node that shows one record, and whose table is open.
    struct Node {
        mapping: Mapping,
        view: ArenaView,
        layout: ArenaLayout,
    }

    impl Node {
        fn new() -> Self {
            let (mapping, view, layout) = arena();
            let board = layout.board_offset() as usize;
            mapping.word(board + ALIVE_OFFSET).store(1, Ordering::SeqCst);
            mapping.long_word(board + VALID_OFFSET).store(VALID_ALWAYS, Ordering::SeqCst);
            let slot = Slot::new(&ID, 0, Version(7), 500, &[9; HEAD_LEN]).unwrap();
            let at = layout.board_slot_offset(0, 5).unwrap();
            let raw = slot.as_bytes();
            // SAFETY: the layout says that a slot is there, which this test alone writes to.
            unsafe {
                std::ptr::copy_nonoverlapping(raw.as_ptr(), mapping.at(at, raw.len()), raw.len());
            }
            let node = Self { mapping, view, layout };
            node.show(true);
            node.word(OPEN_OFFSET).store(3, Ordering::SeqCst);
            node
        }

        fn show(&self, is_shown: bool) {
            let word = self.mapping.long_word(self.layout.board_bucket_offset(0, ID.hash()));
            let shown = index_word(ID.hash(), 5).to_le();
            word.store(if is_shown { shown } else { 0 }, Ordering::SeqCst);
        }

        fn word(&self, offset: usize) -> &AtomicU64 {
            self.mapping.long_word(self.layout.posts_offset(0) + offset)
        }

        fn claim(&self) -> Option<Claim> {
            Claim::read(self.word(claim_offset(claim_of(ID.hash()))).load(Ordering::SeqCst))
        }

        fn post(&self, change: &Change<'_>, agrees: impl FnOnce(&[u8], &Head) -> bool) -> bool {
            let call = || {};
            let posted = self.view.post(change, call, |view| {
                let mut shown = [0; HEAD_LEN];
                let head = view.head(&change.record, Epoch(5), &mut shown);
                head.is_some_and(|head| agrees(&shown[..head.len], &head))
            });
            let owned = (0..BOXES)
                .filter(|number| self.word(owner_offset(*number)).load(Ordering::SeqCst) != 0);
            assert_eq!(owned.count(), usize::from(posted.is_some()), "no box is lost");
            posted.is_some()
        }

        fn clear(&self) {
            let claim = self.claim().unwrap();
            self.word(owner_offset(claim.number)).store(0, Ordering::SeqCst);
            self.word(claim_offset(claim_of(ID.hash()))).store(0, Ordering::SeqCst);
        }
    }

    fn change(body: &[u8]) -> Change<'_> {
        Change {
            record: ID,
            access: Access { owner: rustix::process::geteuid().as_raw(), mode: 0o700 },
            map_epoch: Epoch(3),
            client: ClientId(77),
            borrows: false,
            hold: 0,
            body,
            payload: &[b"de", b"f"],
        }
    }

    #[test]
    fn a_change_is_posted_with_all_that_the_node_needs() {
        let node = Node::new();
        assert!(node.post(&change(b"abc"), |value, head| {
            assert_eq!((value, head.version), (&[9; HEAD_LEN][..], Version(7)));
            assert_eq!(node.claim().unwrap().state, State::Claimed);
            true
        }));
        let claim = node.claim().unwrap();
        assert!(claim.state == State::Posted && claim.is_of(ClientId(77)));
        let bits = node.word(PENDING_OFFSET + claim.number / 64 * 8).load(Ordering::SeqCst);
        assert_eq!(bits, 1 << (claim.number % 64));
        let mut raw = [0; BOX_LEN];
        let source = node.view.posts_at(0, box_offset(claim.number), BOX_LEN);
        // SAFETY: in bounds, and nobody writes there now.
        unsafe { std::ptr::copy_nonoverlapping(source, raw.as_mut_ptr(), BOX_LEN) };
        let contents = Contents::read(&raw).unwrap();
        assert_eq!(contents.label.claim, claim_of(ID.hash()));
        assert_eq!((contents.body, contents.payload), (&b"abc"[..], &b"def"[..]));
        // Until it is carried out the board may be behind, and nobody else can post.
        assert!(node.view.head(&ID, Epoch(5), &mut [0; HEAD_LEN]).is_none());
        assert_eq!(node.view.post(&change(b"abc"), || {}, |_| true), None);
    }

    #[test]
    fn a_hold_ends_where_it_was_posted_once() {
        let node = Node::new();
        let holding = |hold| {
            let change = Change { hold, ..change(b"abc") };
            node.view.post(&change, || {}, |_| true).unwrap()
        };
        let ends = |posted, token| node.view.end_hold(ID.partition, posted, token);
        let first = holding(11);
        assert!(!ends(first, 12) && ends(first, 11) && !ends(first, 11));
        node.clear();
        // The same box, a lane later: what was posted there before is nothing to it.
        let later = (1..LANE_BOXES).fold(first, |_, _| {
            let posted = holding(12);
            node.clear();
            posted
        });
        assert_ne!(later, first);
        assert_eq!(holding(13), first);
        assert!(!ends(first, 11) && !ends(first, 0) && ends(first, 13));
        node.clear();
        let without = holding(0);
        assert!(!ends(without, 0) && !ends(without, 14));
    }

    #[test]
    fn nothing_is_posted_that_is_not_certain() {
        let node = Node::new();
        let refused = |change: &Change<'_>| {
            assert!(!node.post(change, |_, _| true));
            assert_eq!(node.claim(), None);
        };
        refused(&Change { map_epoch: Epoch(2), ..change(b"abc") });
        refused(&change(&[0; REQUEST_LEN_MAX - 2]));
        refused(&Change { record: RecordId { key: b"other", ..ID }, ..change(b"abc") });
        node.word(OPEN_OFFSET).store(0, Ordering::SeqCst);
        refused(&Change { map_epoch: Epoch(0), ..change(b"abc") });
        node.word(OPEN_OFFSET).store(3, Ordering::SeqCst);
        node.show(false);
        refused(&change(b"abc"));
        node.show(true);
        assert!(!node.post(&change(b"abc"), |_, _| false));
        assert_eq!(node.claim(), None);
        assert!(node.post(&change(&[0; REQUEST_LEN_MAX - 3]), |_, _| true));
    }

    #[test]
    fn what_no_word_speaks_of_is_not_there() {
        let node = Node::new();
        let new = RecordId { key: b"new", ..ID };
        let bucket = node.layout.board_bucket_offset(0, new.hash());
        let word = node.mapping.long_word(bucket + 5 * size_of::<u64>());
        assert!(node.view.has_none(&[new], Epoch(5)));
        assert!(!node.view.has_none(&[new, ID], Epoch(5)), "one of them is there");
        for says in [known_word(new.hash()), index_word(new.hash(), 3), MORE] {
            word.store(says.to_le(), Ordering::SeqCst);
            assert!(!node.view.has_none(&[new], Epoch(5)));
        }
        word.store(known_word(!new.hash()).to_le(), Ordering::SeqCst);
        assert!(node.view.has_none(&[new], Epoch(5)), "the word of another one");
        let board = node.layout.board_offset() as usize;
        node.mapping.long_word(board + LEASE_OFFSET).store(6, Ordering::SeqCst);
        assert!(!node.view.has_none(&[new], Epoch(5)) && node.view.has_none(&[new], Epoch(6)));
        node.mapping.word(board + ALIVE_OFFSET).store(0, Ordering::SeqCst);
        assert!(!node.view.has_none(&[new], Epoch(6)), "the node is dead");
    }

    #[test]
    fn who_may_not_change_a_dataset_does_not_post() {
        let mut node = Node::new();
        node.view.turn.uid = 1000;
        let with = |access| Change { access, ..change(b"abc") };
        for (owner, mode) in [(1000, 0o577), (1001, 0o755)] {
            assert!(!node.post(&with(Access { owner, mode }), |_, _| true));
        }
        assert!(node.post(&with(Access { owner: 1000, mode: 0o700 }), |_, _| true));
    }

    #[test]
    fn who_is_revoked_or_closed_out_meanwhile_does_not_post() {
        let node = Node::new();
        let word = node.word(claim_offset(claim_of(ID.hash())));
        assert!(!node.post(&change(b"abc"), |_, _| {
            assert_eq!(node.claim().unwrap().state, State::Claimed);
            word.store(Claim::BARRED.word(), Ordering::SeqCst);
            true
        }));
        assert_eq!(node.claim(), Some(Claim::BARRED), "what is barred is not the client's");
        let other = Claim::new(ClientId(5), 200).word();
        word.store(other, Ordering::SeqCst);
        assert!(!node.post(&change(b"abc"), |_, _| true));
        assert_eq!(word.load(Ordering::SeqCst), other, "another's claim stays");
    }

    /// Fills the lane of the client.
    fn fill_lane(node: &Node) {
        for number in 0..BOXES {
            if lane_of(number) == change(b"").client.get() as usize % LANES {
                node.word(owner_offset(number)).store(77, Ordering::SeqCst);
            }
        }
    }

    fn lane(node: &Node) -> &AtomicU32 {
        let lane = change(b"").client.get() as usize % LANES;
        node.mapping.word(node.layout.posts_offset(0) + lane_offset(lane))
    }

    #[test]
    fn who_finds_its_lane_full_waits_until_some_of_it_is_free() {
        let node = Node::new();
        fill_lane(&node);
        let (calls, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
        let is_posted = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(SeqCst) {
                    let Some(waiter) = Waiter::read(lane(&node).load(SeqCst)) else { continue };
                    // So far ahead of the first post, or of one that was tried since.
                    let turn = (waiter.number + LANE_BOXES - FREE_BOXES) % LANE_BOXES;
                    assert!(turn < node.view.turn.next.load(SeqCst));
                    node.word(owner_offset(waiter.number)).store(0, SeqCst);
                    lane(&node).store(0, SeqCst);
                    let _ = futex::wake(lane(&node), futex::Flags::empty(), 1);
                    return;
                }
            });
            let call = || {
                calls.fetch_add(1, SeqCst);
            };
            // On a machine with others at work the one that frees may come too late for the first.
            let is_posted =
                (0..1000).any(|_| node.view.post(&change(b"abc"), call, |_| true).is_some());
            is_over.store(true, SeqCst);
            is_posted
        });
        assert!(is_posted);
        assert!(calls.load(SeqCst) > 1, "a node that sleeps carries nothing out");
    }

    #[test]
    fn nobody_waits_for_ever_or_for_a_table_that_is_closed() {
        let node = Node::new();
        fill_lane(&node);
        let waited = || {
            let calls = AtomicUsize::new(0);
            let call = || {
                calls.fetch_add(1, SeqCst);
            };
            assert_eq!(node.view.post(&change(b"abc"), call, |_| true), None);
            assert_eq!(node.claim(), None);
            calls.load(SeqCst)
        };
        // The first of all posts calls, and each time that it waits.
        assert_eq!(waited(), 1 + WAITS as usize);
        node.word(OPEN_OFFSET).store(0, SeqCst);
        assert_eq!(waited(), 1);
    }

    #[test]
    fn a_node_that_sleeps_is_called_now_and_then() {
        let node = Node::new();
        let calls = AtomicUsize::new(0);
        for _ in 0..3 * POSTS_PER_CALL {
            let call = || {
                calls.fetch_add(1, SeqCst);
            };
            assert!(node.view.post(&change(b"abc"), call, |_| true).is_some());
            node.clear();
        }
        assert_eq!(calls.load(SeqCst), 3);
    }
}
