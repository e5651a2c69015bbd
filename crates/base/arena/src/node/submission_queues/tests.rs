use proptest::prelude::*;
use zerocopy::IntoBytes;

use super::*;
use crate::submission::{QUEUE_LEN, TABLE_LEN};

/// The client of queue 0; the next queue has the next one.
const CLIENT: ClientId = ClientId(7);
/// Queues with an owner.
const GIVEN: usize = 8;

/// Open tables of two shards.
fn queues() -> SubmissionQueues {
    let layout = ArenaLayout::new(4, 2).unwrap();
    let queues = SubmissionQueues::new(Arc::new(ArenaMapping::create(&layout).unwrap()), &layout);
    for queue in 0..GIVEN {
        assert_eq!(queues.give(ClientId(CLIENT.get() + queue as u64)), Some(queue));
    }
    (0..2).for_each(|part| queues.open(part, Epoch(9), None));
    queues
}

fn lookup_table(queues: &SubmissionQueues) -> LookupTable {
    LookupTable::new(Arc::clone(&queues.mapping), &queues.layout)
}

/// The slot of this number, counted over all queues.
const fn slot(number: usize) -> SlotIndex {
    SlotIndex { queue: number / QUEUE_SLOTS, within: number % QUEUE_SLOTS }
}

/// The hash of a record of its own.
const fn hash_of(record: usize) -> u64 {
    (record as u64) << 21
}

/// The steps of a client before it submits; returns the state with which it does.
fn prepare(queues: &SubmissionQueues, part: u32, record: usize, number: usize) -> u64 {
    let slot = slot(number);
    queues
        .word(part, slot.offset())
        .store(QueueSlotState::claimed(CLIENT, number), Ordering::SeqCst);
    queues.flag(part, slot.tag_offset()).store(tag_of(hash_of(record)), Ordering::SeqCst);
    queues.active(part, slot.queue).fetch_or(slot.bit(), Ordering::SeqCst);
    let header = RawSlotHeader::new(hash_of(record), (2, 1));
    let contents = [header.as_bytes(), b"abc"].concat();
    write(queues, part, slot.offset() + HEADER_OFFSET, &contents);
    queues.pending(part, slot.queue).fetch_or(slot.bit(), Ordering::SeqCst);
    QueueSlotState::submitted(queues.owners.owner(slot.queue), slot, &contents)
}

fn write(queues: &SubmissionQueues, part: u32, offset: usize, bytes: &[u8]) {
    let offset = queues.layout.submissions_offset(part) + offset;
    let dest = queues.mapping.at(offset as u64, bytes.len());
    // SAFETY: within the mapping, which this test alone uses.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), dest.as_ptr(), bytes.len()) };
}

fn submit(queues: &SubmissionQueues, part: u32, record: usize, number: usize) {
    let submitted = prepare(queues, part, record, number);
    queues.word(part, slot(number).offset()).store(submitted, Ordering::SeqCst);
}

fn state(queues: &SubmissionQueues, part: u32, number: usize) -> QueueSlotState {
    QueueSlotState::of(queues.word(part, slot(number).offset()).load(Ordering::SeqCst))
}

/// Whether there is a mark in a slot.
fn has_mark(queues: &SubmissionQueues, part: u32, number: usize) -> bool {
    queues.active(part, slot(number).queue).load(Ordering::SeqCst) & slot(number).bit() != 0
}

fn node_locks(queues: &SubmissionQueues, part: u32) -> Vec<u32> {
    let locks = (0..NODE_LOCKS).map(|lock| queues.flag(part, node_lock_offset(lock)));
    locks.map(|lock| lock.load(Ordering::SeqCst)).filter(|tag| *tag != 0).collect()
}

/// Carries out all that is pending.
fn take_all(queues: &SubmissionQueues, part: u32) -> Vec<SubmissionEntry> {
    let (mut all, mut seen) = (Vec::new(), Vec::new());
    queues.take_pending(part, &lookup_table(queues), |turn, entry| {
        let of = if turn == LockTurn::Now { &mut all } else { &mut seen };
        of.push(entry.clone());
        assert!(all.len() <= seen.len() && seen.len() <= all.len() + 2);
        if turn == LockTurn::Now {
            assert_eq!(node_locks(queues, part), [entry.tag], "clients keep off meanwhile");
            queues.done(part, entry);
        }
    });
    // Those of them whose marks stand.
    let mut seen = seen.iter().map(number);
    assert!(all.iter().map(number).all(|taken| seen.any(|number| number == taken)));
    assert!(node_locks(queues, part).is_empty());
    all
}

fn number(entry: &SubmissionEntry) -> usize {
    entry.slot.queue * QUEUE_SLOTS + entry.slot.within
}

fn numbers_taken(queues: &SubmissionQueues, part: u32) -> Vec<usize> {
    take_all(queues, part).iter().map(number).collect()
}

#[test]
fn who_waits_on_another_core_comes_first() {
    let queues = queues();
    let slots = [0, 1, QUEUE_SLOTS, 2 * QUEUE_SLOTS];
    for (record, number) in slots.into_iter().enumerate() {
        submit(&queues, 0, record, number);
    }
    let wait = |queue: usize, core| {
        let word = QueueWaiter { within: 0, core }.word();
        queues.flag(0, waiter_offset(queue)).store(word, Ordering::SeqCst);
    };
    let waits_at = |cores: [u16; 3]| {
        cores.into_iter().enumerate().for_each(|(queue, core)| wait(queue, core));
        queues.queues_in_order(0, false).into_vec()
    };
    // No thread is ever on this one.
    const ELSEWHERE: u16 = u16::MAX;
    assert_eq!(waits_at([ELSEWHERE; 3]), [0, 1, 2]);
    let cpus = rustix::thread::sched_getaffinity(None).unwrap();
    let mut one = rustix::thread::CpuSet::new();
    one.set((0..).find(|cpu| cpus.is_set(*cpu)).unwrap());
    rustix::thread::sched_setaffinity(None, &one).unwrap();
    let here = own_core();
    assert_eq!(waits_at([here, ELSEWHERE, here]), [1, 0, 2]);
    queues.flag(0, waiter_offset(0)).store(0, Ordering::SeqCst);
    queues.flag(0, waiter_offset(1)).store(0, Ordering::SeqCst);
    wait(2, ELSEWHERE);
    assert_eq!(queues.queues_in_order(0, false).into_vec(), [2, 0, 1]);
    assert_eq!(numbers_taken(&queues, 0), [2 * QUEUE_SLOTS, 0, 1, QUEUE_SLOTS]);
    rustix::thread::sched_setaffinity(None, &cpus).unwrap();
}

#[test]
fn an_entry_is_taken_once_and_frees_its_slot_when_done() {
    let queues = queues();
    let all = [(5, 0), (9, 63), (1023, 64), (0, GIVEN * QUEUE_SLOTS - 1)];
    for (record, number) in all {
        submit(&queues, 1, record, number);
    }
    assert!(queues.is_pending(1) && !queues.is_pending(0));
    let mut taken = Vec::new();
    queues.take_pending(1, &lookup_table(&queues), |turn, entry| {
        if turn == LockTurn::Before {
            return;
        }
        let contents = entry.contents().unwrap();
        assert_eq!((contents.body, contents.payload), (&b"ab"[..], &b"c"[..]));
        assert_eq!(entry.client().get(), CLIENT.get() + entry.slot.queue as u64);
        let at = number(entry);
        assert_eq!(state(&queues, 1, at), QueueSlotState::Submitted, "until it is done");
        assert!(has_mark(&queues, 1, at));
        queues.done(1, entry);
        assert_eq!(state(&queues, 1, at), QueueSlotState::Free);
        assert!(!has_mark(&queues, 1, at));
        taken.push((entry.hash(), at));
    });
    assert_eq!(taken, all.map(|(record, number)| (hash_of(record), number)));
    assert!(take_all(&queues, 1).is_empty() && !queues.is_pending(1));
}

#[test]
fn a_queue_is_drained_in_the_order_in_which_it_was_filled() {
    let queues = queues();
    let taken = |slots: &[usize]| {
        slots.iter().for_each(|number| submit(&queues, 1, 100 + number, *number));
        numbers_taken(&queues, 1)
    };
    assert_eq!(taken(&[60, 61]), [60, 61]);
    // It goes on where it was, and around.
    assert_eq!(taken(&[0, 1, 62, 63]), [62, 63, 0, 1]);
    let (rest, all) = (2..QUEUE_SLOTS, [0, 1]);
    let full: Vec<usize> = rest.chain(all).collect();
    assert_eq!(taken(&full), full);
    assert_eq!(taken(&[1, 5, 64]), [5, 1, 64], "each queue for itself");
}

#[test]
fn an_open_reference_that_has_ended_is_not_taken() {
    let queues = queues();
    submit(&queues, 0, 3, 70);
    let all = take_all(&queues, 0);
    let word = queues.word(0, slot(70).offset() + REFERENCE_OFFSET);
    word.store(11, Ordering::SeqCst);
    assert!(!queues.keeps_reference(0, &all[0], 12) && !queues.keeps_reference(0, &all[0], 0));
    assert!(queues.keeps_reference(0, &all[0], 11), "nobody has ended it");
    assert_eq!(word.load(Ordering::SeqCst), 0, "who ends it now has to ask");
    assert!(!queues.keeps_reference(0, &all[0], 11));
}

#[test]
fn an_entry_that_is_not_submitted_yet_stays_pending() {
    let queues = queues();
    prepare(&queues, 0, 3, 70);
    assert!(take_all(&queues, 0).is_empty() && queues.is_pending(0));
    submit(&queues, 0, 3, 70);
    assert_eq!(take_all(&queues, 0).len(), 1);
}

/// Locks a record; returns what was carried out before.
fn lock(queues: &SubmissionQueues, record: usize) -> (LockConflict, Vec<usize>) {
    let mut found = Vec::new();
    let locked = queues.lock_exclusive(0, hash_of(record), |entry| {
        assert!(node_locks(queues, 0).contains(&entry.tag) || !is_open(queues));
        found.push(number(entry));
        queues.done(0, entry);
    });
    (locked, found)
}

fn is_open(queues: &SubmissionQueues) -> bool {
    queues.word(0, OPEN_OFFSET).load(Ordering::SeqCst) != 0
}

#[test]
fn a_record_that_changes_is_revoked_or_carried_out_before() {
    let queues = queues();
    prepare(&queues, 0, 3, 1);
    prepare(&queues, 0, 4, 2);
    submit(&queues, 0, 5, 3 * QUEUE_SLOTS);
    assert_eq!(lock(&queues, 3), (LockConflict::Lock(1), vec![]));
    assert_eq!(lock(&queues, 8), (LockConflict::Lock(2), vec![]));
    assert_eq!(lock(&queues, 5), (LockConflict::Lock(3), vec![3 * QUEUE_SLOTS]));
    assert_eq!(node_locks(&queues, 0), [3, 8, 5].map(|record| tag_of(hash_of(record))));
    assert_eq!(state(&queues, 0, 1), QueueSlotState::Revoked);
    assert_eq!(state(&queues, 0, 2), QueueSlotState::Claimed, "another record");
    // Nothing of it is pending, though the bit of its slot is set.
    assert!(take_all_but_locks(&queues).is_empty());
    (1..4).for_each(|lock| queues.unlock_exclusive(0, lock));
    assert!(node_locks(&queues, 0).is_empty());
    assert_eq!(lock(&queues, 4), (LockConflict::Lock(1), vec![]));
}

fn take_all_but_locks(queues: &SubmissionQueues) -> Vec<usize> {
    let mut taken = Vec::new();
    queues.take_pending(0, &lookup_table(queues), |turn, entry| {
        if turn == LockTurn::Now {
            taken.push(number(entry));
            queues.done(0, entry);
        }
    });
    taken
}

#[test]
fn where_there_are_not_enough_locks_the_table_is_closed() {
    let queues = queues();
    for record in 1..NODE_LOCKS {
        assert_eq!(lock(&queues, record), (LockConflict::Lock(record), vec![]));
    }
    submit(&queues, 0, 100, 5);
    prepare(&queues, 0, 101, 6);
    assert!(is_open(&queues));
    assert_eq!(lock(&queues, 100), (LockConflict::Table, vec![5]));
    assert!(!is_open(&queues), "until the records are changed");
    assert_eq!(state(&queues, 0, 6), QueueSlotState::Revoked);
    assert_eq!(lock(&queues, 101), (LockConflict::Table, vec![]));
    (1..NODE_LOCKS).for_each(|lock| queues.unlock_exclusive(0, lock));
    assert!(node_locks(&queues, 0).is_empty() && take_all(&queues, 0).is_empty());
}

#[test]
fn a_table_that_is_closed_takes_nothing_more() {
    let queues = queues();
    assert_eq!(queues.word(0, OPEN_OFFSET).load(Ordering::SeqCst), 9);
    prepare(&queues, 0, 3, 1);
    submit(&queues, 0, 4, 2);
    // Its pending bit was overwritten.
    submit(&queues, 0, 5, 3);
    queues.pending(0, 0).fetch_and(!slot(3).bit(), Ordering::SeqCst);
    queues.close(0);
    assert!(!is_open(&queues));
    assert_eq!(state(&queues, 0, 1), QueueSlotState::Revoked);
    assert_eq!(numbers_taken(&queues, 0), [2, 3], "submitted entries stay");
    // Whatever comes now was not submitted.
    submit(&queues, 0, 6, 4);
    assert!(!queues.is_pending(0));
    assert_eq!(lock(&queues, 6), (LockConflict::Before, vec![]));
    queues.open(0, Epoch(10), Some(CLIENT));
    assert_eq!(queues.word(0, SOLE_CLIENT_OFFSET).load(Ordering::SeqCst), CLIENT.get());
    assert_eq!(lock(&queues, 7), (LockConflict::Lock(1), vec![]));
}

/// What a stray pointer of the client does to one of its slots.
#[test]
fn an_entry_that_was_overwritten_is_thrown_away() {
    let strays: [fn(&SubmissionQueues); 6] = [
        |queues| write(queues, 0, slot(1).offset() + HEADER_OFFSET + 17, &[0]),
        |queues| write(queues, 0, slot(1).offset() + HEADER_OFFSET, &[77]),
        |queues| write(queues, 0, slot(1).offset() + 5, &[0xff]),
        |queues| queues.flag(0, slot(1).tag_offset()).store(0, Ordering::SeqCst),
        |queues| queues.active(0, 0).store(0, Ordering::SeqCst),
        |queues| write(queues, 0, slot(1).offset() + HEADER_OFFSET + 8, &[0xff; 8]),
    ];
    for (stray, by_lock) in strays.into_iter().flat_map(|stray| [(stray, false), (stray, true)]) {
        let queues = queues();
        submit(&queues, 0, 3, 1);
        submit(&queues, 0, 4, QUEUE_SLOTS);
        stray(&queues);
        if by_lock {
            assert_eq!(lock(&queues, 3), (LockConflict::Lock(1), vec![]));
            queues.unlock_exclusive(0, 1);
        }
        assert_eq!(numbers_taken(&queues, 0), [QUEUE_SLOTS], "another client's stays");
        assert!(!queues.is_pending(0));
    }
}

/// A mark that is overwritten between the look at the entry and its turn.
#[test]
fn an_entry_whose_mark_went_is_not_carried_out() {
    let queues = queues();
    submit(&queues, 0, 3, 1);
    let mut taken = 0;
    queues.take_pending(0, &lookup_table(&queues), |turn, _| {
        if turn == LockTurn::Before {
            queues.active(0, 0).store(0, Ordering::SeqCst);
        } else {
            taken += 1;
        }
    });
    assert_eq!((taken, state(&queues, 0, 1)), (0, QueueSlotState::Free));
    assert!(node_locks(&queues, 0).is_empty());
}

#[test]
fn an_entry_of_a_queue_that_nobody_has_is_not_seen() {
    let queues = queues();
    submit(&queues, 0, 3, GIVEN * QUEUE_SLOTS);
    assert!(!queues.is_pending(0) && take_all(&queues, 0).is_empty());
    assert_eq!(lock(&queues, 3), (LockConflict::Lock(1), vec![]));
}

#[test]
fn a_waiter_is_woken_by_a_free_slot_and_on_this_core_when_asked() {
    let queues = queues();
    let (near, far) = (own_core(), own_core().wrapping_add(1));
    for (record, number, core) in [(3, 5, far), (4, QUEUE_SLOTS, near)] {
        submit(&queues, 0, record, number);
        let waiter = QueueWaiter { within: number % QUEUE_SLOTS, core };
        let word = queues.flag(0, waiter_offset(slot(number).queue));
        word.store(waiter.word(), Ordering::SeqCst);
    }
    assert_eq!(queues.wake_core_waiters(0), CoreWaiters::Nobody, "neither slot is free");
    let is_waiting = || [0, 1].map(|queue| queues.waiter(0, queue).is_some());
    assert_eq!(is_waiting(), [true, true]);
    assert_eq!(take_all(&queues, 0).len(), 2);
    // The scheduler may have moved this thread.
    if own_core() == near {
        assert_eq!(is_waiting(), [false, true], "who is near waits for its turn");
        assert_eq!(queues.wake_core_waiters(0), CoreWaiters::Some);
    }
    let _ = queues.wake_core_waiters(0);
    assert_eq!(is_waiting(), [false, false]);
    // From here on only one of them submits.
    submit(&queues, 0, 4, QUEUE_SLOTS);
    assert_eq!(take_all(&queues, 0).len(), 1);
    let core = own_core();
    let word = queues.flag(0, waiter_offset(1));
    word.store(QueueWaiter { within: 0, core }.word(), Ordering::SeqCst);
    let woken = queues.wake_core_waiters(0);
    if own_core() == core {
        assert_eq!(woken, CoreWaiters::All);
    }
}

#[test]
fn a_table_is_behind_with_a_full_queue_and_not_with_a_few_entries_in_each() {
    let queues = queues();
    let most = PENDING_MOST as usize;
    for queue in 0..GIVEN {
        (0..most).for_each(|at| submit(&queues, 1, queue * most + at, queue * QUEUE_SLOTS + at));
    }
    assert!(!queues.is_behind(1));
    submit(&queues, 1, GIVEN * most, 3 * QUEUE_SLOTS + most);
    assert!(queues.is_behind(1) && !queues.is_behind(0));
    assert_eq!(take_all(&queues, 1).len(), GIVEN * most + 1);
    assert!(!queues.is_behind(1));
}

#[test]
fn who_waits_on_another_core_is_woken_as_soon_as_there_is_room() {
    let queues = queues();
    (0..3).for_each(|number| submit(&queues, 0, number, number));
    let waiter = QueueWaiter { within: 2, core: u16::MAX };
    queues.flag(0, waiter_offset(0)).store(waiter.word(), Ordering::SeqCst);
    queues.take_pending(0, &lookup_table(&queues), |turn, entry| {
        assert_eq!(queues.waiter(0, 0), Some(waiter), "its slot is not free yet");
        if turn == LockTurn::Now {
            queues.done(0, entry);
        }
    });
    assert_eq!(queues.waiter(0, 0), None);
}

#[test]
fn a_queue_is_given_again_when_all_shards_have_cleared_it() {
    let queues = queues();
    prepare(&queues, 0, 3, 1);
    prepare(&queues, 1, 3, 1);
    prepare(&queues, 0, 4, QUEUE_SLOTS);
    queues.clear(0, 0);
    let owned = queues.layout.lookup_offset() as usize + crate::lookup::OWNED_OFFSET;
    let owned = || queues.mapping.long_word(owned).load(Ordering::SeqCst);
    assert_eq!(owned(), (1 << GIVEN) - 1, "the other shard may have entries of it");
    queues.clear(1, 0);
    assert_eq!(owned(), (1 << GIVEN) - 2);
    assert_eq!(queues.give(ClientId(99)), Some(0));
    for part in 0..2 {
        assert_eq!(state(&queues, part, 1), QueueSlotState::Free);
        assert!(!has_mark(&queues, part, 1));
    }
    assert_eq!(state(&queues, 0, QUEUE_SLOTS), QueueSlotState::Claimed, "that of another one");
    submit(&queues, 0, 3, 1);
    assert_eq!(take_all(&queues, 0)[0].client(), ClientId(99));
    (GIVEN..QUEUES).for_each(|queue| assert_eq!(queues.give(CLIENT), Some(queue)));
    assert_eq!(queues.give(CLIENT), None, "all have an owner");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Anything that a client may leave in its queue, beside one that keeps to the rules.
    #[test]
    fn garbage_in_a_queue_does_no_harm_to_another(seed in any::<u64>(), sparse in any::<bool>()) {
        let queues = queues();
        let mut state = seed | 1;
        let mut bytes = vec![0; QUEUE_LEN];
        for byte in &mut bytes {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            // Small numbers are more often valid.
            *byte = if sparse && state % 3 > 0 { 0 } else { state as u8 };
        }
        for record in 0..QUEUE_SLOTS {
            submit(&queues, 0, record, record);
            submit(&queues, 0, 100 + record, QUEUE_SLOTS + record);
        }
        write(&queues, 0, queue_offset(0), &bytes);
        let locked = lock(&queues, 100 + (seed % 64) as usize);
        prop_assert_eq!(locked.1, [QUEUE_SLOTS + (seed % 64) as usize]);
        queues.unlock_exclusive(0, 1);
        let taken = numbers_taken(&queues, 0);
        prop_assert!(taken.iter().all(|number| *number >= QUEUE_SLOTS));
        prop_assert_eq!(taken.len(), QUEUE_SLOTS - 1);
        queues.close(0);
        prop_assert!(take_all(&queues, 0).is_empty());
        queues.open(0, Epoch(9), None);
        prop_assert_eq!(lock(&queues, 5), (LockConflict::Lock(1), vec![]));
    }

    /// Anything at all in a table: the node reads no offset from it.
    #[test]
    fn garbage_in_a_table_is_not_followed(seed in any::<u64>()) {
        let queues = queues();
        let mut state = seed | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        };
        let bytes: Vec<u8> = (0..TABLE_LEN).map(|_| next()).collect();
        write(&queues, 0, 0, &bytes);
        let mut taken = 0;
        queues.take_pending(0, &lookup_table(&queues), |_, _| taken += 1);
        prop_assert_eq!(taken, 0);
        queues.close(0);
        (0..QUEUES).for_each(|queue| queues.clear(0, queue));
    }
}

#[test]
fn the_next_client_of_a_queue_begins_at_its_first_slot() {
    let queues = queues();
    (0..3).for_each(|number| submit(&queues, 0, number, number));
    assert_eq!(numbers_taken(&queues, 0), [0, 1, 2]);
    (0..2).for_each(|part| queues.clear(part, 0));
    assert_eq!(queues.give(ClientId(99)), Some(0));
    [3, 0].into_iter().for_each(|number| submit(&queues, 0, number, number));
    assert_eq!(numbers_taken(&queues, 0), [0, 3], "in the order of the new client");
}
