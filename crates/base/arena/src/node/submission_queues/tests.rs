use proptest::prelude::*;
use zerocopy::IntoBytes;

use super::*;
use crate::submission::{LOCK_WORDS, QUEUE_SLOTS, TABLE_LEN};

const CLIENT: ClientId = ClientId(7);

fn queues() -> SubmissionQueues {
    let layout = ArenaLayout::new(4, 2).unwrap();
    SubmissionQueues::new(Arc::new(ArenaMapping::create(&layout).unwrap()), &layout)
}

fn lookup_table(queues: &SubmissionQueues) -> LookupTable {
    LookupTable::new(Arc::clone(&queues.mapping), &queues.layout)
}

/// A hash whose record lock word is this one.
fn hash_of(lock_word: usize) -> u64 {
    (lock_word as u64) << 20
}

/// The steps of a client before it submits.
fn prepare(queues: &SubmissionQueues, part: u32, lock_word: usize, number: usize) {
    queues.word(part, owner_offset(number)).store(CLIENT.get(), Ordering::SeqCst);
    let word = LockWord::new(CLIENT, number).word();
    queues.word(part, lock_word_offset(lock_word)).store(word, Ordering::SeqCst);
    write(
        queues,
        part,
        slot_offset(number),
        RawSlotHeader::new(CLIENT, hash_of(lock_word), (2, 1)).as_bytes(),
    );
    write(queues, part, slot_offset(number) + REQUEST_OFFSET, b"abc");
    let bits = queues.bits(part, queue_of(number));
    bits.fetch_or(pending_bit(number), Ordering::SeqCst);
}

fn write(queues: &SubmissionQueues, part: u32, offset: usize, bytes: &[u8]) {
    let offset = queues.layout.submissions_offset(part) + offset;
    let dest = queues.mapping.at(offset as u64, bytes.len());
    // SAFETY: within the mapping, which this test alone uses.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), dest.as_ptr(), bytes.len()) };
}

fn submit(queues: &SubmissionQueues, part: u32, lock_word: usize, number: usize) {
    prepare(queues, part, lock_word, number);
    let word = LockWord::new(CLIENT, number).in_state(LockWordState::Posted).word();
    queues.word(part, lock_word_offset(lock_word)).store(word, Ordering::SeqCst);
}

fn state(queues: &SubmissionQueues, part: u32, lock_word: usize) -> Option<LockWordState> {
    let word = queues.word(part, lock_word_offset(lock_word)).load(Ordering::SeqCst);
    LockWord::read(word).map(|lock_word| lock_word.state)
}

fn take_all(queues: &SubmissionQueues, part: u32) -> Vec<SubmissionEntry> {
    let (mut all, mut seen) = (Vec::new(), Vec::new());
    queues.take_pending(part, &lookup_table(queues), |turn, entry| {
        let of = if turn == LockTurn::Now { &mut all } else { &mut seen };
        of.push(entry.clone());
        assert!(all.len() <= seen.len() && seen.len() <= all.len() + 2);
    });
    let slots =
        |entries: &[SubmissionEntry]| entries.iter().map(|entry| entry.number).collect::<Vec<_>>();
    assert_eq!(slots(&all), slots(&seen));
    all
}

#[test]
fn who_waits_on_another_core_comes_first() {
    let queues = queues();
    let slots = [0, 1, QUEUE_SLOTS, 2 * QUEUE_SLOTS];
    for (lock_word, number) in slots.into_iter().enumerate() {
        submit(&queues, 0, lock_word, number);
    }
    let wait = |queue: usize, core| {
        let word = QueueWaiter { number: queue * QUEUE_SLOTS, core }.word();
        queues.waiter_word(0, queue).store(word, Ordering::SeqCst);
    };
    let waits_at = |cores: [u16; 3]| {
        cores.into_iter().enumerate().for_each(|(queue, core)| wait(queue, core));
        queues.queues_in_order(0).into_vec()
    };
    // No thread is ever on this one.
    const ELSEWHERE: u16 = u16::MAX;
    assert_eq!(waits_at([ELSEWHERE; 3]), [0, 1, 2]);
    let cpus = rustix::thread::sched_getaffinity(None).unwrap();
    let mut one = rustix::thread::CpuSet::new();
    one.set((0..).find(|cpu| cpus.is_set(*cpu)).unwrap());
    rustix::thread::sched_setaffinity(None, &one).unwrap();
    let here = this_core();
    assert_eq!(waits_at([here, ELSEWHERE, here]), [1, 0, 2]);
    queues.waiter_word(0, 0).store(0, Ordering::SeqCst);
    queues.waiter_word(0, 1).store(0, Ordering::SeqCst);
    wait(2, ELSEWHERE);
    assert_eq!(queues.queues_in_order(0).into_vec(), [2, 0, 1]);
    let taken = take_all(&queues, 0);
    let taken = taken.iter().map(|entry| entry.number).collect::<Vec<_>>();
    assert_eq!(taken, [2 * QUEUE_SLOTS, 0, 1, QUEUE_SLOTS]);
    rustix::thread::sched_setaffinity(None, &cpus).unwrap();
}

#[test]
fn an_entry_is_taken_once_and_frees_its_slot_when_done() {
    let queues = queues();
    for (lock_word, number) in [(5, 0), (9, 63), (1023, 64), (0, TABLE_SLOTS - 1)] {
        submit(&queues, 1, lock_word, number);
    }
    assert!(queues.is_pending(1) && !queues.is_pending(0));
    let all = take_all(&queues, 1);
    assert_eq!(
        all.iter().map(|entry| lock_word_of(entry.hash)).collect::<Vec<_>>(),
        [5, 9, 1023, 0]
    );
    assert!(take_all(&queues, 1).is_empty() && !queues.is_pending(1));
    for entry in &all {
        let contents = entry.contents().unwrap();
        assert_eq!(contents.label.client, CLIENT);
        assert_eq!((contents.body, contents.payload), (&b"ab"[..], &b"c"[..]));
        assert_eq!(
            state(&queues, 1, lock_word_of(entry.hash)),
            Some(LockWordState::Posted),
            "until it is done"
        );
        queues.done(1, entry);
        assert_eq!(state(&queues, 1, lock_word_of(entry.hash)), None);
        assert_eq!(queues.word(1, owner_offset(entry.number)).load(Ordering::SeqCst), 0);
    }
}

#[test]
fn a_queue_is_drained_in_the_order_in_which_it_was_filled() {
    let queues = queues();
    let taken = |slots: &[usize]| {
        slots.iter().for_each(|number| submit(&queues, 1, 100 + number, *number));
        let all = take_all(&queues, 1);
        all.iter().for_each(|entry| queues.done(1, entry));
        all.iter().map(|entry| entry.number).collect::<Vec<_>>()
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
    let word = queues.word(0, slot_offset(70) + REFERENCE_OFFSET);
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

#[test]
fn a_claim_on_a_record_that_changes_cannot_be_submitted() {
    let queues = queues();
    prepare(&queues, 0, 3, 1);
    prepare(&queues, 0, 4, 2);
    let lock = |lock_word: usize| {
        let mut found = Vec::new();
        let locked = queues.lock_exclusive(0, hash_of(lock_word), |entry| {
            found.push(lock_word_of(entry.hash));
            queues.done(0, entry);
        });
        (locked, found)
    };
    assert_eq!(lock(3), (LockConflict::Word(3), vec![]));
    assert_eq!(lock(8), (LockConflict::Word(8), vec![]));
    assert_eq!(lock(3), (LockConflict::Before, vec![]), "it is locked already");
    let states = [3, 8, 4].map(|lock_word| state(&queues, 0, lock_word));
    assert_eq!(
        states,
        [Some(LockWordState::Barred), Some(LockWordState::Barred), Some(LockWordState::Claimed)]
    );
    submit(&queues, 0, 4, 2);
    assert_eq!(lock(4), (LockConflict::Word(4), vec![4]));
    // Nothing of it is pending, though the bit of its slot is set.
    assert!(take_all(&queues, 0).is_empty());
    for lock_word in [3, 4, 8] {
        queues.unlock_exclusive(0, lock_word);
        assert_eq!(state(&queues, 0, lock_word), None);
    }
}

/// Each change that a client could submit counts as done, however often it submits again.
#[test]
fn an_entry_submitted_while_its_word_is_locked_is_carried_out() {
    let queues = queues();
    submit(&queues, 0, 3, 1);
    let word = queues.word(0, lock_word_offset(3));
    let submitted = word.load(Ordering::SeqCst);
    let (mut submitted_count, mut carried_out) = (1, 0);
    let locked = queues.lock_exclusive(0, hash_of(3), |entry| {
        carried_out += 1;
        assert_eq!(
            state(&queues, 0, 3),
            Some(LockWordState::Posted),
            "readers ask until it is done"
        );
        queues.done(0, entry);
        let again = word.compare_exchange(0, submitted, Ordering::SeqCst, Ordering::SeqCst);
        submitted_count += usize::from(again.is_ok());
    });
    assert_eq!(
        (locked, state(&queues, 0, 3)),
        (LockConflict::Word(3), Some(LockWordState::Barred))
    );
    assert_eq!(carried_out, submitted_count);
    queues.unlock_exclusive(0, 3);
    assert_eq!(state(&queues, 0, 3), None);
}

/// Lock words that change hands between each look at them and the exchange, and a change that is
/// submitted at the last of these times.
#[test]
fn readers_ask_while_an_entry_under_a_word_that_cannot_be_locked_is_carried_out() {
    for submits_at in [Some(LOCK_TRIES_MAX), None] {
        let queues = queues();
        queues.open(0, Epoch(9), None);
        // Without a change that is submitted, the last of them leaves it claimed.
        if submits_at.is_none() {
            prepare(&queues, 0, 3, 1);
        }
        let word = queues.word(0, lock_word_offset(3));
        let is_open = || queues.word(0, OPEN_OFFSET).load(Ordering::SeqCst) != 0;
        let (mut moments, mut carried_out) = (0, 0);
        let locked = queues.lock_beside(
            0,
            hash_of(3),
            |entry| {
                assert_eq!(
                    state(&queues, 0, 3),
                    Some(LockWordState::Posted),
                    "readers ask until it is done"
                );
                assert!(!is_open(), "nobody submits meanwhile");
                assert_eq!(
                    entry.contents().map(|all| (all.body, all.payload)),
                    Some((&b"ab"[..], &b"c"[..]))
                );
                queues.done(0, entry);
                carried_out += 1;
            },
            || {
                moments += 1;
                assert!(is_open());
                match word.load(Ordering::SeqCst) {
                    _ if submits_at == Some(moments) => submit(&queues, 0, 3, 1),
                    0 => prepare(&queues, 0, 3, 1),
                    _ => word.store(0, Ordering::SeqCst),
                }
            },
        );
        assert_eq!((locked, moments), (LockConflict::Table, LOCK_TRIES_MAX));
        assert_eq!(carried_out, usize::from(submits_at.is_some()));
        assert_eq!(state(&queues, 0, 3), None, "carried out, or revoked");
        assert!(!is_open(), "until the record is changed");
        // Nothing of it is carried out twice.
        assert!(take_all(&queues, 0).is_empty());
        queues.open(0, Epoch(9), None);
        let again = queues.lock_exclusive(0, hash_of(3), |_| panic!("nothing is submitted"));
        assert_eq!(again, LockConflict::Word(3));
    }
}

#[test]
fn a_table_that_is_closed_takes_nothing_more() {
    let queues = queues();
    queues.open(0, Epoch(9), None);
    assert_eq!(queues.word(0, OPEN_OFFSET).load(Ordering::SeqCst), 9);
    prepare(&queues, 0, 3, 1);
    submit(&queues, 0, 4, 2);
    queues.close(0);
    assert_eq!(queues.word(0, OPEN_OFFSET).load(Ordering::SeqCst), 0);
    assert_eq!(state(&queues, 0, 3), None);
    assert_eq!(take_all(&queues, 0).len(), 1, "submitted entries stay");
}

#[test]
fn a_waiter_is_woken_by_a_free_slot_and_on_this_core_when_asked() {
    let queues = queues();
    let (near, far) = (this_core(), this_core().wrapping_add(1));
    for (lock_word, number, core) in [(3, 5, far), (4, QUEUE_SLOTS, near)] {
        submit(&queues, 0, lock_word, number);
        let waiter = QueueWaiter { number, core };
        queues.waiter_word(0, queue_of(number)).store(waiter.word(), Ordering::SeqCst);
    }
    assert_eq!(queues.wake_core_waiters(0), CoreWaiters::Nobody, "neither slot is free");
    let is_waiting = || [0, 1].map(|queue| queues.waiter(0, queue).is_some());
    assert_eq!(is_waiting(), [true, true]);
    take_all(&queues, 0).iter().for_each(|entry| queues.done(0, entry));
    (0..QUEUES).for_each(|queue| queues.wake_elsewhere(0, queue));
    // The scheduler may have moved this thread.
    if this_core() == near {
        assert_eq!(is_waiting(), [false, true], "who is near waits for its turn");
        assert_eq!(queues.wake_core_waiters(0), CoreWaiters::Some);
    }
    let _ = queues.wake_core_waiters(0);
    assert_eq!(is_waiting(), [false, false]);
    // From here on only one of them submits.
    submit(&queues, 0, 4, QUEUE_SLOTS);
    take_all(&queues, 0).iter().for_each(|entry| queues.done(0, entry));
    let core = this_core();
    queues
        .waiter_word(0, 1)
        .store(QueueWaiter { number: QUEUE_SLOTS, core }.word(), Ordering::SeqCst);
    let woken = queues.wake_core_waiters(0);
    if this_core() == core {
        assert_eq!(woken, CoreWaiters::All);
    }
}

#[test]
fn a_table_is_behind_with_a_full_queue_and_not_with_a_few_entries_in_each() {
    let queues = queues();
    let most = PENDING_MOST as usize;
    for queue in 0..QUEUES {
        (0..most).for_each(|at| submit(&queues, 1, queue * most + at, queue * QUEUE_SLOTS + at));
    }
    assert!(!queues.is_behind(1));
    submit(&queues, 1, QUEUES * most, 3 * QUEUE_SLOTS + most);
    assert!(queues.is_behind(1) && !queues.is_behind(0));
    take_all(&queues, 1).iter().for_each(|entry| queues.done(1, entry));
    assert!(!queues.is_behind(1));
}

#[test]
fn who_waits_on_another_core_is_woken_as_soon_as_there_is_room() {
    let queues = queues();
    (0..3).for_each(|number| submit(&queues, 0, number, number));
    let waiter = QueueWaiter { number: 2, core: u16::MAX };
    queues.waiter_word(0, 0).store(waiter.word(), Ordering::SeqCst);
    queues.take_pending(0, &lookup_table(&queues), |turn, entry| {
        assert_eq!(queues.waiter(0, 0), Some(waiter), "its slot is not free yet");
        if turn == LockTurn::Now {
            queues.done(0, entry);
        }
    });
    assert_eq!(queues.waiter(0, 0), None);
}

#[test]
fn what_a_client_leaves_behind_is_free_again() {
    let queues = queues();
    prepare(&queues, 0, 3, 1);
    let other = LockWord::new(ClientId(8), 5).word();
    queues.word(0, lock_word_offset(6)).store(other, Ordering::SeqCst);
    queues.word(0, owner_offset(5)).store(8, Ordering::SeqCst);
    queues.drop_client(0, CLIENT);
    assert_eq!((state(&queues, 0, 3), state(&queues, 0, 6)), (None, Some(LockWordState::Claimed)));
    assert_eq!(queues.word(0, owner_offset(1)).load(Ordering::SeqCst), 0);
    assert_eq!(queues.word(0, owner_offset(5)).load(Ordering::SeqCst), 8);
    // Its bit says nothing any more.
    assert!(take_all(&queues, 0).is_empty() && !queues.is_pending(0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Anything that a client may leave in a table.
    #[test]
    fn garbage_does_no_harm(seed in any::<u64>(), sparse in any::<bool>()) {
        let queues = queues();
        let mut state = seed | 1;
        let mut bytes = vec![0; TABLE_LEN];
        for byte in &mut bytes {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            // Small numbers are more often valid.
            *byte = if sparse && state % 3 > 0 { 0 } else { state as u8 };
        }
        write(&queues, 0, 0, &bytes);
        for entry in take_all(&queues, 0) {
            if let Some(contents) = entry.contents() {
                prop_assert!(contents.label.len() <= QUEUE_SLOT_LEN);
            }
            queues.done(0, &entry);
        }
        queues.close(0);
        queues.drop_client(0, ClientId(seed));
        for lock_word in 0..LOCK_WORDS {
            queues.lock_exclusive(0, hash_of(lock_word), |entry| queues.done(0, entry));
            prop_assert_eq!(self::state(&queues, 0, lock_word), Some(LockWordState::Barred));
            queues.unlock_exclusive(0, lock_word);
            prop_assert_eq!(self::state(&queues, 0, lock_word), None);
        }
    }
}
