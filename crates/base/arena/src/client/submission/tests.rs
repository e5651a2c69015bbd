use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU32};

use samite_types::{DatasetId, PartitionId, Version};

use super::*;
use crate::client::view::tests::arena;
use crate::layout::ArenaLayout;
use crate::lookup::{
    ALIVE_OFFSET, HEAD_LEN, LookupHead, LookupSlot, MORE, NAME_SPACE_OFFSET, OWNED_OFFSET,
    VALID_ALWAYS, VALID_OFFSET, index_word, known_word,
};
use crate::mapping::SharedMapping;
use crate::submission::SlotContents;

const ID: RecordId<'_> = RecordId { dataset: DatasetId(1), partition: PartitionId(2), key: b"k" };

/// The queue of the client, and one of another.
const QUEUE: usize = 3;
const OTHER: usize = 9;

/// A node that has published one record, and whose table is open.
struct Node {
    mapping: SharedMapping,
    view: ArenaView,
    layout: ArenaLayout,
}

impl Node {
    fn new() -> Self {
        let (mapping, view, layout) = arena();
        let table = layout.lookup_offset() as usize;
        mapping.word(table + ALIVE_OFFSET).store(1, Ordering::SeqCst);
        mapping.long_word(table + VALID_OFFSET).store(VALID_ALWAYS, Ordering::SeqCst);
        let slot = LookupSlot::new(&ID, 0, Version(7), 500, &[9; HEAD_LEN]).unwrap();
        let at = layout.lookup_slot_offset(0, 5).unwrap();
        let raw = slot.as_bytes();
        // SAFETY: the layout says that a slot is there, which this test alone writes to.
        unsafe {
            std::ptr::copy_nonoverlapping(raw.as_ptr(), mapping.at(at, raw.len()), raw.len());
        }
        let node = Self { mapping, view, layout };
        node.show(true);
        node.word(OPEN_OFFSET).store(3, Ordering::SeqCst);
        let owned = node.mapping.long_word(table + OWNED_OFFSET);
        owned.store(1 << QUEUE | 1 << OTHER, Ordering::SeqCst);
        node
    }

    fn show(&self, is_shown: bool) {
        let word = self.mapping.long_word(self.layout.lookup_bucket_offset(0, ID.hash()));
        let shown = index_word(ID.hash(), 5).to_le();
        word.store(if is_shown { shown } else { 0 }, Ordering::SeqCst);
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        self.mapping.long_word(self.layout.submissions_offset(0) + offset)
    }

    fn flag(&self, offset: usize) -> &AtomicU32 {
        self.mapping.word(self.layout.submissions_offset(0) + offset)
    }

    fn state(&self, slot: SlotIndex) -> &AtomicU64 {
        self.word(slot.offset())
    }

    /// The slot of the client that is marked.
    fn marked(&self) -> Option<SlotIndex> {
        let bits = self.word(queue_offset(QUEUE)).load(SeqCst);
        assert!(bits.count_ones() < 2);
        (bits != 0).then(|| slot_at(QUEUE, bits.trailing_zeros() as usize))
    }

    /// Marks the record in a slot of another client.
    fn mark_elsewhere(&self, word: u64) {
        let slot = slot_at(OTHER, 5);
        self.flag(slot.tag_offset()).store(tag_of(ID.hash()), SeqCst);
        self.state(slot).store(word, SeqCst);
        self.word(queue_offset(OTHER)).store(slot.bit(), SeqCst);
    }

    fn submit(
        &self,
        change: &SubmittedChange<'_>,
        agrees: impl FnOnce(&[u8], &LookupHead) -> bool,
    ) -> bool {
        let call = || {};
        let submitted = self.view.submit(change, call, |view| {
            let mut shown = [0; HEAD_LEN];
            let head = view.head(&change.record, Epoch(5), &mut shown);
            head.is_some_and(|head| agrees(&shown[..head.len], &head))
        });
        let slots = (0..QUEUE_SLOTS).map(|at| self.state(slot_at(QUEUE, at)).load(SeqCst));
        let used = slots.filter(|word| *word != 0).count();
        assert_eq!(used, usize::from(submitted.is_some()), "no slot is lost");
        assert_eq!(self.marked().is_some(), submitted.is_some(), "nor a mark");
        submitted.is_some()
    }

    /// As the node does when a change is carried out.
    fn clear(&self) {
        let slot = self.marked().unwrap();
        self.word(queue_offset(QUEUE)).store(0, SeqCst);
        self.state(slot).store(0, SeqCst);
    }
}

fn change(body: &[u8]) -> SubmittedChange<'_> {
    SubmittedChange {
        record: ID,
        access: DatasetAccess { owner: rustix::process::geteuid().as_raw(), mode: 0o700 },
        map_epoch: Epoch(3),
        client: ClientId(77),
        takes_delegation: false,
        token: 0,
        body,
        payload: &[b"de", b"f"],
    }
}

#[test]
fn a_change_is_submitted_with_all_that_the_node_needs() {
    let node = Node::new();
    assert!(node.submit(&change(b"abc"), |value, head| {
        assert_eq!((value, head.version), (&[9; HEAD_LEN][..], Version(7)));
        let slot = node.marked().unwrap();
        assert_eq!(QueueSlotState::of(node.state(slot).load(SeqCst)), QueueSlotState::Claimed);
        true
    }));
    let slot = node.marked().unwrap();
    assert_eq!(node.flag(slot.tag_offset()).load(SeqCst), tag_of(ID.hash()));
    assert_eq!(node.word(pending_offset(QUEUE)).load(SeqCst), slot.bit());
    let mut raw = [0; CONTENTS_LEN_MAX];
    let source = node.view.queue_at(0, slot.offset() + HEADER_OFFSET, CONTENTS_LEN_MAX);
    // SAFETY: in bounds, and nobody writes there now.
    unsafe { std::ptr::copy_nonoverlapping(source, raw.as_mut_ptr(), CONTENTS_LEN_MAX) };
    let contents = SlotContents::read(&raw).unwrap();
    assert_eq!(contents.label.hash, ID.hash());
    assert_eq!((contents.body, contents.payload), (&b"abc"[..], &b"def"[..]));
    let submitted = QueueSlotState::submitted(ClientId(77), slot, &raw[..contents.label.len()]);
    assert_eq!(node.state(slot).load(SeqCst), submitted);
    // Until it is carried out the look-up table may be behind, and nobody else can submit.
    assert!(node.view.head(&ID, Epoch(5), &mut [0; HEAD_LEN]).is_none());
    assert_eq!(node.view.submit(&change(b"abc"), || {}, |_| true), None);
}

#[test]
fn an_open_reference_ends_once_in_its_slot() {
    let node = Node::new();
    let holding = |token| {
        let change = SubmittedChange { token, ..change(b"abc") };
        node.view.submit(&change, || {}, |_| true).unwrap()
    };
    let ends = |submitted, token| node.view.end_reference(ID.partition, submitted, token);
    let first = holding(11);
    assert!(!ends(first, 12) && ends(first, 11) && !ends(first, 11));
    node.clear();
    // The same slot, a round of the queue later: the entry that was there before is nothing to it.
    let later = (1..QUEUE_SLOTS).fold(first, |_, _| {
        let submitted = holding(12);
        node.clear();
        submitted
    });
    assert_ne!(later, first);
    assert_eq!(holding(13), first);
    assert!(!ends(first, 11) && !ends(first, 0) && ends(first, 13));
    node.clear();
    let without = holding(0);
    assert!(!ends(without, 0) && !ends(without, 14));
}

#[test]
fn only_certain_changes_are_submitted() {
    let node = Node::new();
    let refused = |change: &SubmittedChange<'_>| {
        assert!(!node.submit(change, |_, _| true));
        assert_eq!(node.marked(), None);
    };
    refused(&SubmittedChange { map_epoch: Epoch(2), ..change(b"abc") });
    refused(&change(&[0; REQUEST_LEN_MAX - 2]));
    refused(&SubmittedChange { record: RecordId { key: b"other", ..ID }, ..change(b"abc") });
    node.word(OPEN_OFFSET).store(0, Ordering::SeqCst);
    refused(&SubmittedChange { map_epoch: Epoch(0), ..change(b"abc") });
    node.word(OPEN_OFFSET).store(3, Ordering::SeqCst);
    node.show(false);
    refused(&change(b"abc"));
    node.show(true);
    assert!(!node.submit(&change(b"abc"), |_, _| false));
    assert_eq!(node.marked(), None);
    assert!(node.submit(&change(&[0; REQUEST_LEN_MAX - 3]), |_, _| true));
}

#[test]
fn what_no_word_speaks_of_is_not_there() {
    let node = Node::new();
    let new = RecordId { key: b"new", ..ID };
    let bucket = node.layout.lookup_bucket_offset(0, new.hash());
    let word = node.mapping.long_word(bucket + 5 * size_of::<u64>());
    assert!(node.view.has_none(&[new], Epoch(5)));
    assert!(!node.view.has_none(&[new, ID], Epoch(5)), "one of them is there");
    for says in [known_word(new.hash()), index_word(new.hash(), 3), MORE] {
        word.store(says.to_le(), Ordering::SeqCst);
        assert!(!node.view.has_none(&[new], Epoch(5)));
    }
    word.store(known_word(!new.hash()).to_le(), Ordering::SeqCst);
    assert!(node.view.has_none(&[new], Epoch(5)), "the word of another one");
    let table = node.layout.lookup_offset() as usize;
    node.mapping.long_word(table + NAME_SPACE_OFFSET).store(6, Ordering::SeqCst);
    assert!(!node.view.has_none(&[new], Epoch(5)) && node.view.has_none(&[new], Epoch(6)));
    node.mapping.word(table + ALIVE_OFFSET).store(0, Ordering::SeqCst);
    assert!(!node.view.has_none(&[new], Epoch(6)), "the node is dead");
}

#[test]
fn strangers_to_a_dataset_do_not_submit() {
    let mut node = Node::new();
    node.view.turn.uid = 1000;
    let with = |access| SubmittedChange { access, ..change(b"abc") };
    for (owner, mode) in [(1000, 0o577), (1001, 0o755)] {
        assert!(!node.submit(&with(DatasetAccess { owner, mode }), |_, _| true));
    }
    assert!(node.submit(&with(DatasetAccess { owner: 1000, mode: 0o700 }), |_, _| true));
}

#[test]
fn a_revoked_or_closed_out_client_does_not_submit() {
    let node = Node::new();
    assert!(!node.submit(&change(b"abc"), |_, _| {
        node.state(node.marked().unwrap()).store(QueueSlotState::Revoked as u64, SeqCst);
        true
    }));
    assert!(!node.submit(&change(b"abc"), |_, _| {
        node.word(OPEN_OFFSET).store(0, SeqCst);
        node.state(node.marked().unwrap()).store(QueueSlotState::Revoked as u64, SeqCst);
        true
    }));
    node.word(OPEN_OFFSET).store(3, SeqCst);
    let lock = node.flag(node_lock_offset(NODE_LOCKS - 1));
    lock.store(tag_of(ID.hash()), SeqCst);
    assert!(!node.submit(&change(b"abc"), |_, _| true), "the node changes the record");
    lock.store(tag_of(ID.hash()) ^ 2, SeqCst);
    assert!(node.submit(&change(b"abc"), |_, _| true), "it changes another one");
}

#[test]
fn a_record_that_another_client_has_marked_is_left_alone() {
    let node = Node::new();
    let looks = || node.view.head(&ID, Epoch(5), &mut [0; HEAD_LEN]).is_some();
    for word in [QueueSlotState::claimed(ClientId(8), 5), QueueSlotState::Revoked as u64] {
        node.mark_elsewhere(word);
        assert!(!node.submit(&change(b"abc"), |_, _| true));
        assert!(looks(), "nothing has changed yet");
    }
    node.mark_elsewhere(QueueSlotState::submitted(ClientId(8), slot_at(OTHER, 5), b"any"));
    assert!(!node.submit(&change(b"abc"), |_, _| true) && !looks());
    let owned = node.mapping.long_word(node.layout.lookup_offset() as usize + OWNED_OFFSET);
    owned.store(1 << QUEUE, SeqCst);
    assert!(looks() && node.submit(&change(b"abc"), |_, _| true), "nobody has that queue");
    assert_eq!(node.state(slot_at(OTHER, 5)).load(SeqCst) & 3, 2, "it stays as it was");
}

#[test]
fn a_connection_without_a_queue_submits_nothing() {
    let mut node = Node::new();
    let submitted = node.view.submit(&change(b"abc"), || {}, |_| true).unwrap();
    node.view.turn.queue = None;
    assert!(!node.view.end_reference(ID.partition, submitted, 7));
    node.clear();
    assert!(!node.submit(&change(b"abc"), |_, _| true));
}

/// Fills the queue of the client.
fn fill_queue(node: &Node) {
    (0..QUEUE_SLOTS).for_each(|at| node.state(slot_at(QUEUE, at)).store(1, SeqCst));
}

fn queue(node: &Node) -> &AtomicU32 {
    node.flag(waiter_offset(QUEUE))
}

#[test]
fn a_client_with_a_full_queue_waits_for_free_slots() {
    let node = Node::new();
    fill_queue(&node);
    let (calls, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let is_submitted = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(SeqCst) {
                let Some(waiter) = QueueWaiter::read(queue(&node).load(SeqCst)) else { continue };
                // So far ahead of the first entry, or of one that was tried since.
                let turn = (waiter.within + QUEUE_SLOTS - FREE_SLOTS) % QUEUE_SLOTS;
                assert!(turn < node.view.turn.next.load(SeqCst));
                node.state(slot_at(QUEUE, waiter.within)).store(0, SeqCst);
                queue(&node).store(0, SeqCst);
                let _ = futex::wake(queue(&node), futex::Flags::empty(), 1);
                return;
            }
        });
        let call = || {
            calls.fetch_add(1, SeqCst);
        };
        // On a machine with others at work the one that frees may come too late for the first.
        let is_submitted =
            (0..1000).any(|_| node.view.submit(&change(b"abc"), call, |_| true).is_some());
        is_over.store(true, SeqCst);
        is_submitted
    });
    assert!(is_submitted);
    assert!(calls.load(SeqCst) > 1, "a node that sleeps carries nothing out");
}

#[test]
fn submissions_go_on_behind_the_slots_that_are_taken() {
    let node = Node::new();
    let take = |at: usize, word| node.state(slot_at(QUEUE, at)).store(word, SeqCst);
    let submit = || {
        let submitted = node.view.submit(&change(b"abc"), || {}, |_| true).unwrap();
        node.clear();
        usize::from(submitted.within)
    };
    take(0, 5);
    assert_eq!([submit(), submit()], [1, 2]);
    // From the next one on all are taken, but for the one that is waited for.
    fill_queue(&node);
    take(3 + FREE_SLOTS, 0);
    assert_eq!(submit(), 3 + FREE_SLOTS);
    (0..QUEUE_SLOTS).for_each(|at| take(at, 0));
    assert_eq!(submit(), 4 + FREE_SLOTS);
}

/// Runs `run` on a thread that stays on its core, whose number it is given.
fn on_one_core<T: Send>(run: impl FnOnce(u32) -> T + Send) -> T {
    let pinned = || {
        let core = rustix::thread::sched_getcpu();
        let mut one = rustix::thread::CpuSet::new();
        one.set(core);
        rustix::thread::sched_setaffinity(None, &one).unwrap();
        run(core as u32 + 1)
    };
    std::thread::scope(|scope| scope.spawn(pinned).join().unwrap())
}

#[test]
fn a_client_on_the_core_of_the_node_lets_it_go_on_with_others() {
    let node = Node::new();
    on_one_core(|core| {
        // Submits a quarter of a queue, of which the last is not carried out, and says for which
        // slot it waited after that.
        let waited_for = |node_core: u32, others_submit: bool| {
            node.flag(NODE_CORE_OFFSET).store(node_core, SeqCst);
            let bit = u64::from(others_submit);
            node.word(pending_offset(OTHER)).store(bit, SeqCst);
            let mut last = None;
            while last.is_none()
                || !node.view.turn.next.load(SeqCst).is_multiple_of(SUBMISSIONS_PER_TURN)
            {
                last = node.view.submit(&change(b"abc"), || {}, |_| true);
                node.clear();
            }
            let last = usize::from(last.unwrap().within);
            node.state(slot_at(QUEUE, last)).store(1, SeqCst);
            let is_over = AtomicBool::new(false);
            let seen = std::thread::scope(|scope| {
                let watch = scope.spawn(|| {
                    let mut seen = None;
                    while !is_over.load(SeqCst) {
                        seen = seen.or(QueueWaiter::read(queue(&node).load(SeqCst)));
                    }
                    seen
                });
                assert!(node.view.submit(&change(b"abc"), || {}, |_| true).is_some());
                is_over.store(true, SeqCst);
                watch.join().unwrap()
            });
            node.clear();
            node.state(slot_at(QUEUE, last)).store(0, SeqCst);
            seen.map(|waiter| waiter.within == last)
        };
        assert_eq!(waited_for(core + 1, true), None, "the node has a core of its own");
        assert_eq!(waited_for(core, false), None, "nobody else has submitted");
        // The other thread may have been prevented from looking while it waited.
        assert!((0..1000).any(|_| waited_for(core, true) == Some(true)));
    });
}

#[test]
fn nobody_waits_for_ever_or_for_a_table_that_is_closed() {
    let node = Node::new();
    fill_queue(&node);
    let waited = || {
        let calls = AtomicUsize::new(0);
        let call = || {
            calls.fetch_add(1, SeqCst);
        };
        assert_eq!(node.view.submit(&change(b"abc"), call, |_| true), None);
        assert_eq!(node.marked(), None);
        calls.load(SeqCst)
    };
    // The first of all entries calls, and each time that it waits.
    assert_eq!(waited(), 1 + WAITS as usize);
    node.word(OPEN_OFFSET).store(0, SeqCst);
    assert_eq!(waited(), 1);
}

#[test]
fn a_node_that_sleeps_is_called_now_and_then() {
    let node = Node::new();
    let calls = AtomicUsize::new(0);
    for _ in 0..3 * SUBMISSIONS_PER_CALL {
        let call = || {
            calls.fetch_add(1, SeqCst);
        };
        assert!(node.view.submit(&change(b"abc"), call, |_| true).is_some());
        node.clear();
    }
    assert_eq!(calls.load(SeqCst), 3);
    // The slot whose turn it is to call is found behind one that is taken.
    let turn = 4 * SUBMISSIONS_PER_CALL - 1;
    node.view.turn.next.store(turn, SeqCst);
    node.state(slot_at(QUEUE, turn)).store(1, SeqCst);
    let call = || {
        calls.fetch_add(1, SeqCst);
    };
    assert!(node.view.submit(&change(b"abc"), call, |_| true).is_some());
    assert_eq!(calls.load(SeqCst), 4);
}
