//! The node's side of the [posts](samite_wire::posts): finds what clients have posted, and keeps them from posting.
//!
//! Each table is worked on by the thread of one shard. What is read from it is checked, and copied before it is used.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use rustix::thread::futex;
use samite_types::{ClientId, Epoch};
use samite_wire::arena::ArenaLayout;
use samite_wire::posts::{
    BOX_LEN, BOXES, BoxHeader, Claim, Contents, LANE_BOXES, LANES, OPEN_OFFSET, PENDING_OFFSET,
    PENDING_WORDS, State, WHOM_OFFSET, Waiter, box_offset, claim_of, claim_offset, lane_of,
    lane_offset, owner_offset,
};
use smallvec::SmallVec;

use super::mapping::Mapping;

// A word of pending bits is that of a lane.
const _: () = assert!(PENDING_WORDS == LANES && LANE_BOXES == u64::BITS as usize);

/// How often the node tries to bar a claim that clients take and post meanwhile.
const BARS_TRIED: u32 = 64;

/// Bytes of a box that are mostly used.
const EXPECTED_LEN: usize = 320;

/// After so many posts the node looks whether somebody waits for one of their boxes: that look waits until all cores know that they are free.
const POSTS_PER_LOOK: u32 = 8;

/// The tables, as their node works on them.
pub(super) struct Posts {
    mapping: Arc<Mapping>,
    layout: ArenaLayout,
}

/// The core that this thread runs on at the moment, as a [`Waiter`] counts it.
fn this_core() -> u16 {
    (rustix::thread::sched_getcpu() + 1) as u16
}

/// Something that was posted: a copy of its box.
#[derive(Clone, Debug)]
pub struct Post {
    raw: [u8; BOX_LEN],
    claim: usize,
    number: usize,
}

/// Whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// That of the post before this one, if there is one: what this one takes can be fetched meanwhile.
    Before,
    /// That of this post.
    Now,
}

impl Post {
    const EMPTY: Self = Self { raw: [0; BOX_LEN], claim: 0, number: 0 };

    /// What is in the box; `None`: it makes no sense.
    #[must_use]
    pub fn contents(&self) -> Option<Contents<'_>> {
        Contents::read(&self.raw)
    }
}

impl Posts {
    pub(super) fn new(mapping: Arc<Mapping>, layout: &ArenaLayout) -> Self {
        Self { mapping, layout: *layout }
    }

    fn word(&self, part: u32, offset: usize) -> &AtomicU64 {
        self.mapping.long_word(self.layout.posts_offset(part) + offset)
    }

    /// Clients that serve by this map may post from now on, or only one of them. Until now nobody might, or the same.
    pub(super) fn open(&self, part: u32, epoch: Epoch, only: Option<ClientId>) {
        self.word(part, WHOM_OFFSET).store(only.map_or(0, ClientId::get), Ordering::SeqCst);
        self.word(part, OPEN_OFFSET).store(epoch.get(), Ordering::SeqCst);
    }

    /// No client may post from now on. What was posted before is pending.
    pub(super) fn close(&self, part: u32) {
        self.word(part, OPEN_OFFSET).store(0, Ordering::SeqCst);
        // Whoever takes a box after this sees that.
        fence(Ordering::SeqCst);
        self.revoke(part, |owner| owner != 0);
    }

    /// Whether anything may be pending.
    pub(super) fn is_pending(&self, part: u32) -> bool {
        let bits = |at: usize| self.word(part, PENDING_OFFSET + at * 8).load(Ordering::Acquire);
        (0..PENDING_WORDS).any(|at| bits(at) != 0)
    }

    /// Gives `visit` all that was posted before this call, each twice: before the one before it is carried out, and when it is to be carried out itself, and
    /// then [`Posts::done`].
    pub(super) fn take_pending(&self, part: u32, mut visit: impl FnMut(Turn, &Post)) {
        let mut posts = [Post::EMPTY; 2];
        let (mut last, mut is_waiting) = (0, false);
        let mut carried_out = 0;
        let lanes = self.lanes_in_order(part);
        for lane in &lanes {
            // First the bits: a client that claims a box anew sets its bit again.
            let pending = self.word(part, PENDING_OFFSET + lane * 8);
            let mut bits = pending.swap(0, Ordering::SeqCst);
            while bits != 0 {
                let number = lane * LANE_BOXES + bits.trailing_zeros() as usize;
                let bit = bits & bits.wrapping_neg();
                bits &= !bit;
                self.expect(part, *lane, bits);
                if self.pending(part, number, bit, &mut posts[1 - last]) {
                    visit(Turn::Before, &posts[1 - last]);
                    if is_waiting {
                        visit(Turn::Now, &posts[last]);
                        carried_out += 1;
                        if carried_out % POSTS_PER_LOOK == 0 {
                            self.wake_elsewhere(part, lane_of(posts[last].number));
                        }
                    }
                    (last, is_waiting) = (1 - last, true);
                }
            }
        }
        if is_waiting {
            visit(Turn::Now, &posts[last]);
        }
        for lane in lanes {
            self.wake_elsewhere(part, lane);
        }
    }

    /// Lanes in which anything may be pending, first those whose clients wait on another core: they go on beside this thread.
    fn lanes_in_order(&self, part: u32) -> SmallVec<[usize; LANES]> {
        let bits = |lane: usize| self.word(part, PENDING_OFFSET + lane * 8).load(Ordering::Acquire);
        let mut lanes: SmallVec<_> = (0..LANES).filter(|lane| bits(*lane) != 0).collect();
        if lanes.len() > 1 {
            let here = this_core();
            let is_elsewhere = |waiter: Waiter| waiter.core != here;
            lanes.sort_by_key(|lane| !self.waiter(part, *lane).is_some_and(is_elsewhere));
        }
        lanes
    }

    /// The first boxes of these bits will be looked at next. A client has written to them, and to what they are claims on, on another core.
    fn expect(&self, part: u32, lane: usize, bits: u64) {
        let start = self.layout.posts_offset(part);
        let box_of =
            |bits: u64| (bits != 0).then(|| lane * LANE_BOXES + bits.trailing_zeros() as usize);
        if let Some(next) = box_of(bits)
            && let Some(label) = self.header(part, next).checked()
        {
            self.mapping.prefetch(start + claim_offset(label.claim), size_of::<u64>());
        }
        if let Some(next_but_one) = box_of(bits & bits.wrapping_sub(1)) {
            self.mapping.prefetch(start + box_offset(next_but_one), EXPECTED_LEN);
            self.mapping.prefetch(start + owner_offset(next_but_one), size_of::<u64>());
        }
    }

    /// Copies what is posted in a box whose bit was taken, if there is anything.
    fn pending(&self, part: u32, number: usize, bit: u64, post: &mut Post) -> bool {
        let Some(label) = self.header(part, number).checked() else { return false };
        let claim = self.word(part, claim_offset(label.claim)).load(Ordering::SeqCst);
        let Some(found) = Claim::read(claim) else { return false };
        match found.state {
            _ if found.number != number => false,
            // Only now it is known that nobody was writing to the box.
            State::Posted => {
                (post.claim, post.number) = (label.claim, number);
                self.copy(part, number, &mut post.raw);
                true
            }
            State::Claimed => {
                // It is about to be posted, or was a moment ago: to be looked at the next time.
                let at = number / u64::BITS as usize;
                self.word(part, PENDING_OFFSET + at * 8).fetch_or(bit, Ordering::SeqCst);
                false
            }
            State::Barred => false,
        }
    }

    fn header(&self, part: u32, number: usize) -> BoxHeader {
        let mut raw = [0; size_of::<BoxHeader>()];
        self.copy_out(part, box_offset(number), &mut raw);
        zerocopy::transmute!(raw)
    }

    /// Copies a box that is posted.
    fn copy(&self, part: u32, number: usize, raw: &mut [u8; BOX_LEN]) {
        let len = self.header(part, number).checked().map_or(0, |label| label.len());
        self.copy_out(part, box_offset(number), &mut raw[..size_of::<BoxHeader>() + len]);
    }

    fn copy_out(&self, part: u32, offset: usize, dest: &mut [u8]) {
        let source = self.mapping.at((self.layout.posts_offset(part) + offset) as u64, dest.len());
        // SAFETY: boxes lie within the mapping, as the layout says. Under a claim that is posted nobody writes to them; whatever a client that
        // keeps to no rule leaves there is checked in the copy.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), dest.as_mut_ptr(), dest.len()) };
    }

    /// It was carried out.
    pub(super) fn done(&self, part: u32, post: &Post) {
        self.word(part, claim_offset(post.claim)).store(0, Ordering::Release);
        self.word(part, owner_offset(post.number)).store(0, Ordering::Release);
    }

    /// Wakes who waits on another core for a box of a lane that is free now.
    fn wake_elsewhere(&self, part: u32, lane: usize) {
        // Who waits says so before it looks at the box again.
        fence(Ordering::SeqCst);
        if let Some(waiter) = self.waiter(part, lane)
            && waiter.core != this_core()
            && self.is_free(part, waiter.number)
        {
            self.wake(part, lane);
        }
    }

    fn is_free(&self, part: u32, number: usize) -> bool {
        self.word(part, owner_offset(number)).load(Ordering::SeqCst) == 0
    }

    fn lane(&self, part: u32, lane: usize) -> &AtomicU32 {
        self.mapping.word(self.layout.posts_offset(part) + lane_offset(lane))
    }

    fn waiter(&self, part: u32, lane: usize) -> Option<Waiter> {
        Waiter::read(self.lane(part, lane).load(Ordering::SeqCst))
    }

    fn wake(&self, part: u32, lane: usize) {
        let word = self.lane(part, lane);
        word.store(0, Ordering::Relaxed);
        let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
    }

    /// Nothing is pending: wakes those who wait for a box that is free. Returns whether any of them sleeps on this thread's core.
    pub(super) fn wake_near(&self, part: u32) -> bool {
        let mut near = false;
        for lane in 0..LANES {
            let Some(waiter) = self.waiter(part, lane) else { continue };
            if self.is_free(part, waiter.number) {
                near |= waiter.core == this_core();
                self.wake(part, lane);
            }
        }
        near
    }

    /// A record of this hash is to be changed: bars claims on it, and takes what was posted, which is to be carried out before, and
    /// [done](Self::done). Returns the claim, unless it was barred already.
    pub(super) fn bar(&self, part: u32, hash: u64, mut visit: impl FnMut(&Post)) -> Option<usize> {
        let claim = claim_of(hash);
        let word = self.word(part, claim_offset(claim));
        for _ in 0..BARS_TRIED {
            let raw = word.load(Ordering::SeqCst);
            match Claim::read(raw) {
                Some(Claim { state: State::Barred, .. }) => return None,
                Some(Claim { state: State::Posted, number, .. }) => {
                    let mut post = Post { claim, number, ..Post::EMPTY };
                    self.copy(part, number, &mut post.raw);
                    visit(&post);
                    self.wake_elsewhere(part, lane_of(number));
                }
                None | Some(Claim { state: State::Claimed, .. }) => {
                    // Whoever claims it after that looks at the board after the record was changed.
                    let (success, failure) = (Ordering::SeqCst, Ordering::SeqCst);
                    let barred = Claim::BARRED.word();
                    if word.compare_exchange(raw, barred, success, failure).is_ok() {
                        return Some(claim);
                    }
                }
            }
        }
        // No client that keeps to the rules claims it again and again.
        word.store(Claim::BARRED.word(), Ordering::SeqCst);
        Some(claim)
    }

    /// Frees a claim that was barred: the record is changed.
    pub(super) fn admit(&self, part: u32, claim: usize) {
        self.word(part, claim_offset(claim)).store(0, Ordering::Release);
    }

    /// Revokes the claims for boxes of these owners.
    fn revoke(&self, part: u32, is_meant: impl Fn(u64) -> bool) {
        for number in 0..BOXES {
            if !is_meant(self.word(part, owner_offset(number)).load(Ordering::Acquire)) {
                continue;
            }
            let Some(label) = self.header(part, number).checked() else { continue };
            let word = self.word(part, claim_offset(label.claim));
            let raw = word.load(Ordering::SeqCst);
            if let Some(Claim { state: State::Claimed, number: of, .. }) = Claim::read(raw)
                && of == number
            {
                // If it has been posted meanwhile, it is pending; if it is free, it was not.
                let _ = word.compare_exchange(raw, 0, Ordering::SeqCst, Ordering::Relaxed);
            }
        }
    }

    /// Frees what a client that is gone has claimed, and not posted.
    pub(super) fn drop_client(&self, part: u32, client: ClientId) {
        self.revoke(part, |owner| owner == client.get());
        for number in 0..BOXES {
            let word = self.word(part, owner_offset(number));
            if word.load(Ordering::Acquire) == client.get() {
                word.store(0, Ordering::Release);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use samite_wire::posts::{CLAIMS, LANE_BOXES, TABLE_LEN};
    use zerocopy::IntoBytes;

    use super::*;

    const CLIENT: ClientId = ClientId(7);

    fn posts() -> Posts {
        let layout = ArenaLayout::new(4, 2).unwrap();
        Posts::new(Arc::new(Mapping::create(&layout).unwrap()), &layout)
    }

    /// A hash whose claim is this one.
    fn hash_of(claim: usize) -> u64 {
        (claim as u64) << 20
    }

    /// What a client does before it posts.
    fn prepare(posts: &Posts, part: u32, claim: usize, number: usize) {
        posts.word(part, owner_offset(number)).store(CLIENT.get(), Ordering::SeqCst);
        let word = Claim::new(CLIENT, number).word();
        posts.word(part, claim_offset(claim)).store(word, Ordering::SeqCst);
        write(posts, part, box_offset(number), BoxHeader::new(CLIENT, claim, (2, 1)).as_bytes());
        write(posts, part, box_offset(number) + size_of::<BoxHeader>(), b"abc");
        let bits = posts.word(part, PENDING_OFFSET + number / 64 * 8);
        bits.fetch_or(1 << (number % 64), Ordering::SeqCst);
    }

    fn write(posts: &Posts, part: u32, offset: usize, bytes: &[u8]) {
        let offset = posts.layout.posts_offset(part) + offset;
        let dest = posts.mapping.at(offset as u64, bytes.len());
        // SAFETY: within the mapping, which this test alone uses.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), dest.as_ptr(), bytes.len()) };
    }

    fn post(posts: &Posts, part: u32, claim: usize, number: usize) {
        prepare(posts, part, claim, number);
        let word = Claim::new(CLIENT, number).in_state(State::Posted).word();
        posts.word(part, claim_offset(claim)).store(word, Ordering::SeqCst);
    }

    fn state(posts: &Posts, part: u32, claim: usize) -> Option<State> {
        let word = posts.word(part, claim_offset(claim)).load(Ordering::SeqCst);
        Claim::read(word).map(|claim| claim.state)
    }

    fn take_all(posts: &Posts, part: u32) -> Vec<Post> {
        let (mut all, mut seen) = (Vec::new(), Vec::new());
        posts.take_pending(part, |turn, post| {
            let of = if turn == Turn::Now { &mut all } else { &mut seen };
            of.push(post.clone());
            assert!(all.len() <= seen.len() && seen.len() <= all.len() + 2);
        });
        let boxes = |posts: &[Post]| posts.iter().map(|post| post.number).collect::<Vec<_>>();
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
            let word = Waiter { number: lane * LANE_BOXES, core }.word();
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
        assert_eq!(all.iter().map(|post| post.claim).collect::<Vec<_>>(), [5, 9, 1023, 0]);
        assert!(take_all(&posts, 1).is_empty() && !posts.is_pending(1));
        for post in &all {
            let contents = post.contents().unwrap();
            assert_eq!(contents.label.client, CLIENT);
            assert_eq!((contents.body, contents.payload), (&b"ab"[..], &b"c"[..]));
            assert_eq!(state(&posts, 1, post.claim), Some(State::Posted), "until it is done");
            posts.done(1, post);
            assert_eq!(state(&posts, 1, post.claim), None);
            assert_eq!(posts.word(1, owner_offset(post.number)).load(Ordering::SeqCst), 0);
        }
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
            let barred = posts.bar(0, hash_of(claim), |post| {
                found.push(post.claim);
                posts.done(0, post);
            });
            (barred, found)
        };
        assert_eq!(bar(3), (Some(3), vec![]));
        assert_eq!(bar(8), (Some(8), vec![]));
        assert_eq!(bar(3), (None, vec![]), "that is barred already");
        let states = [3, 8, 4].map(|claim| state(&posts, 0, claim));
        assert_eq!(states, [Some(State::Barred), Some(State::Barred), Some(State::Claimed)]);
        post(&posts, 0, 4, 2);
        assert_eq!(bar(4), (Some(4), vec![4]));
        // Nothing of it is pending, though the bit of its box is set.
        assert!(take_all(&posts, 0).is_empty());
        for claim in [3, 4, 8] {
            posts.admit(0, claim);
            assert_eq!(state(&posts, 0, claim), None);
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
    fn who_waits_for_a_box_is_woken_when_it_is_free_and_on_this_core_when_nothing_is_pending() {
        let posts = posts();
        let (near, far) = (this_core(), this_core().wrapping_add(1));
        for (claim, number, core) in [(3, 5, far), (4, LANE_BOXES, near)] {
            post(&posts, 0, claim, number);
            let waiter = Waiter { number, core };
            posts.lane(0, lane_of(number)).store(waiter.word(), Ordering::SeqCst);
        }
        assert!(!posts.wake_near(0), "neither box is free");
        let is_waiting = || [0, 1].map(|lane| posts.waiter(0, lane).is_some());
        assert_eq!(is_waiting(), [true, true]);
        take_all(&posts, 0).iter().for_each(|post| posts.done(0, post));
        (0..LANES).for_each(|lane| posts.wake_elsewhere(0, lane));
        // The scheduler may have moved this thread.
        if this_core() == near {
            assert_eq!(is_waiting(), [false, true], "who is near waits until nothing is pending");
            assert!(posts.wake_near(0));
        }
        let _ = posts.wake_near(0);
        assert_eq!(is_waiting(), [false, false]);
    }

    #[test]
    fn who_waits_on_another_core_is_woken_as_soon_as_there_is_room() {
        let posts = posts();
        (0..3).for_each(|number| post(&posts, 0, number, number));
        let waiter = Waiter { number: 2, core: u16::MAX };
        posts.lane(0, 0).store(waiter.word(), Ordering::SeqCst);
        posts.take_pending(0, |turn, post| {
            assert_eq!(posts.waiter(0, 0), Some(waiter), "its box is not free yet");
            if turn == Turn::Now {
                posts.done(0, post);
            }
        });
        assert_eq!(posts.waiter(0, 0), None);
    }

    #[test]
    fn what_a_client_leaves_behind_is_free_again() {
        let posts = posts();
        prepare(&posts, 0, 3, 1);
        let other = Claim::new(ClientId(8), 5).word();
        posts.word(0, claim_offset(6)).store(other, Ordering::SeqCst);
        posts.word(0, owner_offset(5)).store(8, Ordering::SeqCst);
        posts.drop_client(0, CLIENT);
        assert_eq!((state(&posts, 0, 3), state(&posts, 0, 6)), (None, Some(State::Claimed)));
        assert_eq!(posts.word(0, owner_offset(1)).load(Ordering::SeqCst), 0);
        assert_eq!(posts.word(0, owner_offset(5)).load(Ordering::SeqCst), 8);
        // Its bit says nothing any more.
        assert!(take_all(&posts, 0).is_empty() && !posts.is_pending(0));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Whatever a client leaves in a table.
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
                posts.bar(0, hash_of(claim), |post| posts.done(0, post));
                prop_assert_eq!(self::state(&posts, 0, claim), Some(State::Barred));
                posts.admit(0, claim);
                prop_assert_eq!(self::state(&posts, 0, claim), None);
            }
        }
    }
}
