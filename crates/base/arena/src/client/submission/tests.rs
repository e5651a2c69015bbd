use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU32};

use samite_types::{DatasetId, PartitionId, Version};

use super::*;
use crate::client::view::tests::arena;
use crate::layout::ArenaLayout;
use crate::lookup::{
    ALIVE_OFFSET, HEAD_LEN, LookupHead, LookupSlot, MORE, NAME_SPACE_OFFSET, VALID_ALWAYS,
    VALID_OFFSET, index_word, known_word,
};
use crate::mapping::SharedMapping;
use crate::submission::{QUEUE_SLOT_LEN, SlotContents, TABLE_SLOTS};

const ID: RecordId<'_> = RecordId { dataset: DatasetId(1), partition: PartitionId(2), key: b"k" };

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

    fn lock_word(&self) -> Option<LockWord> {
        LockWord::read(self.word(lock_word_offset(lock_word_of(ID.hash()))).load(Ordering::SeqCst))
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
        let owned = (0..TABLE_SLOTS)
            .filter(|number| self.word(owner_offset(*number)).load(Ordering::SeqCst) != 0);
        assert_eq!(owned.count(), usize::from(submitted.is_some()), "no slot is lost");
        submitted.is_some()
    }

    fn clear(&self) {
        let lock_word = self.lock_word().unwrap();
        self.word(owner_offset(lock_word.number)).store(0, Ordering::SeqCst);
        self.word(lock_word_offset(lock_word_of(ID.hash()))).store(0, Ordering::SeqCst);
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
        assert_eq!(node.lock_word().unwrap().state, LockWordState::Claimed);
        true
    }));
    let lock_word = node.lock_word().unwrap();
    assert!(lock_word.state == LockWordState::Posted && lock_word.is_of(ClientId(77)));
    let bits = node.word(pending_offset(queue_of(lock_word.number))).load(Ordering::SeqCst);
    assert_eq!(bits, pending_bit(lock_word.number));
    let mut raw = [0; QUEUE_SLOT_LEN];
    let source = node.view.queue_at(0, slot_offset(lock_word.number), QUEUE_SLOT_LEN);
    // SAFETY: in bounds, and nobody writes there now.
    unsafe { std::ptr::copy_nonoverlapping(source, raw.as_mut_ptr(), QUEUE_SLOT_LEN) };
    let contents = SlotContents::read(&raw).unwrap();
    assert_eq!(contents.label.hash, ID.hash());
    assert_eq!((contents.body, contents.payload), (&b"abc"[..], &b"def"[..]));
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
        assert_eq!(node.lock_word(), None);
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
    assert_eq!(node.lock_word(), None);
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
    let word = node.word(lock_word_offset(lock_word_of(ID.hash())));
    assert!(!node.submit(&change(b"abc"), |_, _| {
        assert_eq!(node.lock_word().unwrap().state, LockWordState::Claimed);
        word.store(LockWord::LOCKED.word(), Ordering::SeqCst);
        true
    }));
    assert_eq!(node.lock_word(), Some(LockWord::LOCKED), "a locked word is not the client's");
    let other = LockWord::new(ClientId(5), 200).word();
    word.store(other, Ordering::SeqCst);
    assert!(!node.submit(&change(b"abc"), |_, _| true));
    assert_eq!(word.load(Ordering::SeqCst), other, "another's claim stays");
}

/// Fills the queue of the client.
fn fill_queue(node: &Node) {
    for number in 0..TABLE_SLOTS {
        if queue_of(number) == change(b"").client.get() as usize % QUEUES {
            node.word(owner_offset(number)).store(77, Ordering::SeqCst);
        }
    }
}

fn queue(node: &Node) -> &AtomicU32 {
    let queue = change(b"").client.get() as usize % QUEUES;
    node.mapping.word(node.layout.submissions_offset(0) + queue_offset(queue))
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
                let turn = (waiter.number + QUEUE_SLOTS - FREE_SLOTS) % QUEUE_SLOTS;
                assert!(turn < node.view.turn.next.load(SeqCst));
                node.word(owner_offset(waiter.number)).store(0, SeqCst);
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
    let first = change(b"").client.get() as usize % QUEUES * QUEUE_SLOTS;
    let take = |at: usize, owner| node.word(owner_offset(first + at)).store(owner, SeqCst);
    let submit = || {
        let submitted = node.view.submit(&change(b"abc"), || {}, |_| true).unwrap();
        node.clear();
        usize::from(submitted.number) - first
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

#[test]
fn clients_that_meet_change_queues_now_and_then() {
    let node = Node::new();
    let id = ClientId(0o4321);
    let submit = || {
        let submitted =
            node.view.submit(&SubmittedChange { client: id, ..change(b"abc") }, || {}, |_| true);
        node.clear();
        queue_of(usize::from(submitted.unwrap().number))
    };
    let meet = |queue: usize, at: usize| {
        let number = queue * QUEUE_SLOTS + at % QUEUE_SLOTS;
        node.word(owner_offset(number)).store(5, SeqCst);
    };
    // It has just come to the first one.
    meet(1, 0);
    assert_eq!([submit(), submit()], [1, 1]);
    node.view.turn.next.store(QUEUE_SLOTS, SeqCst);
    meet(1, QUEUE_SLOTS);
    assert_eq!([submit(), submit()], [1, 2], "from the next entry on");
    node.view.turn.next.store(2 * QUEUE_SLOTS, SeqCst);
    (0..QUEUE_SLOTS).for_each(|at| meet(2, at));
    assert_eq!([submit(), submit()], [3, 3], "at once, if there is no room");
    // None of its own are in the way of anybody.
    node.view.turn.next.store(4 * QUEUE_SLOTS, SeqCst);
    node.word(owner_offset(3 * QUEUE_SLOTS)).store(id.get(), SeqCst);
    assert_eq!([submit(), submit()], [3, 3]);
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
    let own = change(b"").client.get() as usize % QUEUES;
    on_one_core(|core| {
        // Submits a quarter of a queue, of which the last is not carried out, and says for which
        // slot it waited after that.
        let waited_for = |node_core: u32, others_submit: bool| {
            node.mapping
                .word(node.layout.submissions_offset(0) + NODE_CORE_OFFSET)
                .store(node_core, SeqCst);
            let bit = u64::from(others_submit);
            node.word(pending_offset((own + 1) % QUEUES)).store(bit, SeqCst);
            let mut last = None;
            while last.is_none()
                || !node.view.turn.next.load(SeqCst).is_multiple_of(SUBMISSIONS_PER_TURN)
            {
                last = node.view.submit(&change(b"abc"), || {}, |_| true);
                node.clear();
            }
            let last = usize::from(last.unwrap().number);
            node.word(owner_offset(last)).store(77, SeqCst);
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
            node.word(owner_offset(last)).store(0, SeqCst);
            seen.map(|waiter| waiter.number == last)
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
        assert_eq!(node.lock_word(), None);
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
    let first = change(b"").client.get() as usize % QUEUES * QUEUE_SLOTS;
    node.word(owner_offset(first + turn % QUEUE_SLOTS)).store(5, SeqCst);
    let call = || {
        calls.fetch_add(1, SeqCst);
    };
    assert!(node.view.submit(&change(b"abc"), call, |_| true).is_some());
    assert_eq!(calls.load(SeqCst), 4);
}
