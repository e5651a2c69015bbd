use proptest::prelude::*;
use samite_wire::submission::{CLAIMS, LANE_BOXES, TABLE_LEN};
use zerocopy::IntoBytes;

use super::*;

const CLIENT: ClientId = ClientId(7);

fn posts() -> SubmissionQueues {
    let layout = ArenaLayout::new(4, 2).unwrap();
    SubmissionQueues::new(Arc::new(ArenaMapping::create(&layout).unwrap()), &layout)
}

fn board(posts: &SubmissionQueues) -> LookupTable {
    LookupTable::new(Arc::clone(&posts.mapping), &posts.layout)
}

/// A hash whose record lock word is this one.
fn hash_of(claim: usize) -> u64 {
    (claim as u64) << 20
}

/// The steps of a client before it submits.
fn prepare(posts: &SubmissionQueues, part: u32, claim: usize, number: usize) {
    posts.word(part, owner_offset(number)).store(CLIENT.get(), Ordering::SeqCst);
    let word = LockWord::new(CLIENT, number).word();
    posts.word(part, lock_word_offset(claim)).store(word, Ordering::SeqCst);
    write(
        posts,
        part,
        slot_offset(number),
        RawSlotHeader::new(CLIENT, hash_of(claim), (2, 1)).as_bytes(),
    );
    write(posts, part, slot_offset(number) + REQUEST_OFFSET, b"abc");
    let bits = posts.bits(part, queue_of(number));
    bits.fetch_or(pending_bit(number), Ordering::SeqCst);
}

fn write(posts: &SubmissionQueues, part: u32, offset: usize, bytes: &[u8]) {
    let offset = posts.layout.submissions_offset(part) + offset;
    let dest = posts.mapping.at(offset as u64, bytes.len());
    // SAFETY: within the mapping, which this test alone uses.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), dest.as_ptr(), bytes.len()) };
}

fn post(posts: &SubmissionQueues, part: u32, claim: usize, number: usize) {
    prepare(posts, part, claim, number);
    let word = LockWord::new(CLIENT, number).in_state(LockWordState::Posted).word();
    posts.word(part, lock_word_offset(claim)).store(word, Ordering::SeqCst);
}

fn state(posts: &SubmissionQueues, part: u32, claim: usize) -> Option<LockWordState> {
    let word = posts.word(part, lock_word_offset(claim)).load(Ordering::SeqCst);
    LockWord::read(word).map(|claim| claim.state)
}

fn take_all(posts: &SubmissionQueues, part: u32) -> Vec<SubmissionEntry> {
    let (mut all, mut seen) = (Vec::new(), Vec::new());
    posts.take_pending(part, &board(posts), |turn, post| {
        let of = if turn == LockTurn::Now { &mut all } else { &mut seen };
        of.push(post.clone());
        assert!(all.len() <= seen.len() && seen.len() <= all.len() + 2);
    });
    let boxes =
        |posts: &[SubmissionEntry]| posts.iter().map(|post| post.number).collect::<Vec<_>>();
    assert_eq!(boxes(&all), boxes(&seen));
    all
}

#[test]
fn who_waits_on_another_core_comes_first() {
    let posts = posts();
    let boxes = [0, 1, LANE_BOXES, 2 * LANE_BOXES];
    for (claim, number) in boxes.into_iter().enumerate() {
        post(&posts, 0, claim, number);
    }
    let wait = |lane: usize, core| {
        let word = QueueWaiter { number: lane * LANE_BOXES, core }.word();
        posts.lane(0, lane).store(word, Ordering::SeqCst);
    };
    let waits_at = |cores: [u16; 3]| {
        cores.into_iter().enumerate().for_each(|(lane, core)| wait(lane, core));
        posts.lanes_in_order(0).into_vec()
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
    posts.lane(0, 0).store(0, Ordering::SeqCst);
    posts.lane(0, 1).store(0, Ordering::SeqCst);
    wait(2, ELSEWHERE);
    assert_eq!(posts.lanes_in_order(0).into_vec(), [2, 0, 1]);
    let taken = take_all(&posts, 0);
    let taken = taken.iter().map(|post| post.number).collect::<Vec<_>>();
    assert_eq!(taken, [2 * LANE_BOXES, 0, 1, LANE_BOXES]);
    rustix::thread::sched_setaffinity(None, &cpus).unwrap();
}

#[test]
fn what_was_posted_is_taken_once_and_frees_its_box_when_done() {
    let posts = posts();
    for (claim, number) in [(5, 0), (9, 63), (1023, 64), (0, BOXES - 1)] {
        post(&posts, 1, claim, number);
    }
    assert!(posts.is_pending(1) && !posts.is_pending(0));
    let all = take_all(&posts, 1);
    assert_eq!(all.iter().map(|post| lock_word_of(post.hash)).collect::<Vec<_>>(), [5, 9, 1023, 0]);
    assert!(take_all(&posts, 1).is_empty() && !posts.is_pending(1));
    for post in &all {
        let contents = post.contents().unwrap();
        assert_eq!(contents.label.client, CLIENT);
        assert_eq!((contents.body, contents.payload), (&b"ab"[..], &b"c"[..]));
        assert_eq!(
            state(&posts, 1, lock_word_of(post.hash)),
            Some(LockWordState::Posted),
            "until it is done"
        );
        posts.done(1, post);
        assert_eq!(state(&posts, 1, lock_word_of(post.hash)), None);
        assert_eq!(posts.word(1, owner_offset(post.number)).load(Ordering::SeqCst), 0);
    }
}

#[test]
fn a_lane_is_gone_through_in_the_order_in_which_it_was_filled() {
    let posts = posts();
    let taken = |boxes: &[usize]| {
        boxes.iter().for_each(|number| post(&posts, 1, 100 + number, *number));
        let all = take_all(&posts, 1);
        all.iter().for_each(|post| posts.done(1, post));
        all.iter().map(|post| post.number).collect::<Vec<_>>()
    };
    assert_eq!(taken(&[60, 61]), [60, 61]);
    // It goes on where it was, and around.
    assert_eq!(taken(&[0, 1, 62, 63]), [62, 63, 0, 1]);
    let (rest, all) = (2..LANE_BOXES, [0, 1]);
    let full: Vec<usize> = rest.chain(all).collect();
    assert_eq!(taken(&full), full);
    assert_eq!(taken(&[1, 5, 64]), [5, 1, 64], "each lane for itself");
}

#[test]
fn a_hold_that_has_ended_before_is_not_taken() {
    let posts = posts();
    post(&posts, 0, 3, 70);
    let all = take_all(&posts, 0);
    let word = posts.word(0, slot_offset(70) + HOLD_OFFSET);
    word.store(11, Ordering::SeqCst);
    assert!(!posts.keeps_reference(0, &all[0], 12) && !posts.keeps_reference(0, &all[0], 0));
    assert!(posts.keeps_reference(0, &all[0], 11), "nobody has ended it");
    assert_eq!(word.load(Ordering::SeqCst), 0, "who ends it now has to ask");
    assert!(!posts.keeps_reference(0, &all[0], 11));
}

#[test]
fn what_is_about_to_be_posted_is_looked_at_again() {
    let posts = posts();
    prepare(&posts, 0, 3, 70);
    assert!(take_all(&posts, 0).is_empty() && posts.is_pending(0));
    post(&posts, 0, 3, 70);
    assert_eq!(take_all(&posts, 0).len(), 1);
}

#[test]
fn who_has_claimed_a_record_that_changes_cannot_post() {
    let posts = posts();
    prepare(&posts, 0, 3, 1);
    prepare(&posts, 0, 4, 2);
    let bar = |claim: usize| {
        let mut found = Vec::new();
        let barred = posts.lock_exclusive(0, hash_of(claim), |post| {
            found.push(lock_word_of(post.hash));
            posts.done(0, post);
        });
        (barred, found)
    };
    assert_eq!(bar(3), (LockConflict::Claim(3), vec![]));
    assert_eq!(bar(8), (LockConflict::Claim(8), vec![]));
    assert_eq!(bar(3), (LockConflict::Before, vec![]), "that is barred already");
    let states = [3, 8, 4].map(|claim| state(&posts, 0, claim));
    assert_eq!(
        states,
        [Some(LockWordState::Barred), Some(LockWordState::Barred), Some(LockWordState::Claimed)]
    );
    post(&posts, 0, 4, 2);
    assert_eq!(bar(4), (LockConflict::Claim(4), vec![4]));
    // Nothing of it is pending, though the bit of its slot is set.
    assert!(take_all(&posts, 0).is_empty());
    for claim in [3, 4, 8] {
        posts.unlock_exclusive(0, claim);
        assert_eq!(state(&posts, 0, claim), None);
    }
}

/// Each change that a client could submit counts as done, however often it submits again.
#[test]
fn what_is_posted_while_a_claim_is_barred_is_carried_out() {
    let posts = posts();
    post(&posts, 0, 3, 1);
    let word = posts.word(0, lock_word_offset(3));
    let posted = word.load(Ordering::SeqCst);
    let (mut posted_count, mut carried_out) = (1, 0);
    let barred = posts.lock_exclusive(0, hash_of(3), |post| {
        carried_out += 1;
        assert_eq!(
            state(&posts, 0, 3),
            Some(LockWordState::Posted),
            "readers ask until it is done"
        );
        posts.done(0, post);
        let again = word.compare_exchange(0, posted, Ordering::SeqCst, Ordering::SeqCst);
        posted_count += usize::from(again.is_ok());
    });
    assert_eq!(
        (barred, state(&posts, 0, 3)),
        (LockConflict::Claim(3), Some(LockWordState::Barred))
    );
    assert_eq!(carried_out, posted_count);
    posts.unlock_exclusive(0, 3);
    assert_eq!(state(&posts, 0, 3), None);
}

/// Lock words that change hands between each look at them and the exchange, and a change that is
/// submitted at the last of these times.
#[test]
fn what_is_posted_where_the_claim_cannot_be_barred_is_told_to_readers_until_it_is_done() {
    for posts_at in [Some(BARS_TRIED), None] {
        let posts = posts();
        posts.open(0, Epoch(9), None);
        // Without a change that is submitted, the last of them leaves it claimed.
        if posts_at.is_none() {
            prepare(&posts, 0, 3, 1);
        }
        let word = posts.word(0, lock_word_offset(3));
        let is_open = || posts.word(0, OPEN_OFFSET).load(Ordering::SeqCst) != 0;
        let (mut moments, mut carried_out) = (0, 0);
        let barred = posts.bar_beside(
            0,
            hash_of(3),
            |post| {
                assert_eq!(
                    state(&posts, 0, 3),
                    Some(LockWordState::Posted),
                    "readers ask until it is done"
                );
                assert!(!is_open(), "nobody posts meanwhile");
                assert_eq!(
                    post.contents().map(|all| (all.body, all.payload)),
                    Some((&b"ab"[..], &b"c"[..]))
                );
                posts.done(0, post);
                carried_out += 1;
            },
            || {
                moments += 1;
                assert!(is_open());
                match word.load(Ordering::SeqCst) {
                    _ if posts_at == Some(moments) => post(&posts, 0, 3, 1),
                    0 => prepare(&posts, 0, 3, 1),
                    _ => word.store(0, Ordering::SeqCst),
                }
            },
        );
        assert_eq!((barred, moments), (LockConflict::Table, BARS_TRIED));
        assert_eq!(carried_out, usize::from(posts_at.is_some()));
        assert_eq!(state(&posts, 0, 3), None, "carried out, or revoked");
        assert!(!is_open(), "until the record is changed");
        // Nothing of it is carried out twice.
        assert!(take_all(&posts, 0).is_empty());
        posts.open(0, Epoch(9), None);
        let again = posts.lock_exclusive(0, hash_of(3), |_| panic!("nothing is posted"));
        assert_eq!(again, LockConflict::Claim(3));
    }
}

#[test]
fn a_table_that_is_closed_takes_nothing_more() {
    let posts = posts();
    posts.open(0, Epoch(9), None);
    assert_eq!(posts.word(0, OPEN_OFFSET).load(Ordering::SeqCst), 9);
    prepare(&posts, 0, 3, 1);
    post(&posts, 0, 4, 2);
    posts.close(0);
    assert_eq!(posts.word(0, OPEN_OFFSET).load(Ordering::SeqCst), 0);
    assert_eq!(state(&posts, 0, 3), None);
    assert_eq!(take_all(&posts, 0).len(), 1, "what was posted stays");
}

#[test]
fn who_waits_for_a_box_is_woken_when_it_is_free_and_on_this_core_when_asked() {
    let posts = posts();
    let (near, far) = (this_core(), this_core().wrapping_add(1));
    for (claim, number, core) in [(3, 5, far), (4, LANE_BOXES, near)] {
        post(&posts, 0, claim, number);
        let waiter = QueueWaiter { number, core };
        posts.lane(0, queue_of(number)).store(waiter.word(), Ordering::SeqCst);
    }
    assert_eq!(posts.wake_core_waiters(0), CoreWaiters::Nobody, "neither box is free");
    let is_waiting = || [0, 1].map(|lane| posts.waiter(0, lane).is_some());
    assert_eq!(is_waiting(), [true, true]);
    take_all(&posts, 0).iter().for_each(|post| posts.done(0, post));
    (0..LANES).for_each(|lane| posts.wake_elsewhere(0, lane));
    // The scheduler may have moved this thread.
    if this_core() == near {
        assert_eq!(is_waiting(), [false, true], "who is near waits for its turn");
        assert_eq!(posts.wake_core_waiters(0), CoreWaiters::Some);
    }
    let _ = posts.wake_core_waiters(0);
    assert_eq!(is_waiting(), [false, false]);
    // From here on only one of them submits.
    post(&posts, 0, 4, LANE_BOXES);
    take_all(&posts, 0).iter().for_each(|post| posts.done(0, post));
    let core = this_core();
    posts.lane(0, 1).store(QueueWaiter { number: LANE_BOXES, core }.word(), Ordering::SeqCst);
    let woken = posts.wake_core_waiters(0);
    if this_core() == core {
        assert_eq!(woken, CoreWaiters::All);
    }
}

#[test]
fn a_table_is_behind_with_a_lane_and_not_with_a_few_posts_in_each() {
    let posts = posts();
    let most = PENDING_MOST as usize;
    for lane in 0..LANES {
        (0..most).for_each(|at| post(&posts, 1, lane * most + at, lane * LANE_BOXES + at));
    }
    assert!(!posts.is_behind(1));
    post(&posts, 1, LANES * most, 3 * LANE_BOXES + most);
    assert!(posts.is_behind(1) && !posts.is_behind(0));
    take_all(&posts, 1).iter().for_each(|post| posts.done(1, post));
    assert!(!posts.is_behind(1));
}

#[test]
fn who_waits_on_another_core_is_woken_as_soon_as_there_is_room() {
    let posts = posts();
    (0..3).for_each(|number| post(&posts, 0, number, number));
    let waiter = QueueWaiter { number: 2, core: u16::MAX };
    posts.lane(0, 0).store(waiter.word(), Ordering::SeqCst);
    posts.take_pending(0, &board(&posts), |turn, post| {
        assert_eq!(posts.waiter(0, 0), Some(waiter), "its box is not free yet");
        if turn == LockTurn::Now {
            posts.done(0, post);
        }
    });
    assert_eq!(posts.waiter(0, 0), None);
}

#[test]
fn what_a_client_leaves_behind_is_free_again() {
    let posts = posts();
    prepare(&posts, 0, 3, 1);
    let other = LockWord::new(ClientId(8), 5).word();
    posts.word(0, lock_word_offset(6)).store(other, Ordering::SeqCst);
    posts.word(0, owner_offset(5)).store(8, Ordering::SeqCst);
    posts.drop_client(0, CLIENT);
    assert_eq!((state(&posts, 0, 3), state(&posts, 0, 6)), (None, Some(LockWordState::Claimed)));
    assert_eq!(posts.word(0, owner_offset(1)).load(Ordering::SeqCst), 0);
    assert_eq!(posts.word(0, owner_offset(5)).load(Ordering::SeqCst), 8);
    // Its bit says nothing any more.
    assert!(take_all(&posts, 0).is_empty() && !posts.is_pending(0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Anything that a client may leave in a table.
    #[test]
    fn garbage_does_no_harm(seed in any::<u64>(), sparse in any::<bool>()) {
        let posts = posts();
        let mut state = seed | 1;
        let mut bytes = vec![0; TABLE_LEN];
        for byte in &mut bytes {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            // Small numbers are more often valid.
            *byte = if sparse && state % 3 > 0 { 0 } else { state as u8 };
        }
        write(&posts, 0, 0, &bytes);
        for post in take_all(&posts, 0) {
            if let Some(contents) = post.contents() {
                prop_assert!(contents.label.len() <= BOX_LEN);
            }
            posts.done(0, &post);
        }
        posts.close(0);
        posts.drop_client(0, ClientId(seed));
        for claim in 0..CLAIMS {
            posts.lock_exclusive(0, hash_of(claim), |post| posts.done(0, post));
            prop_assert_eq!(self::state(&posts, 0, claim), Some(LockWordState::Barred));
            posts.unlock_exclusive(0, claim);
            prop_assert_eq!(self::state(&posts, 0, claim), None);
        }
    }
}
