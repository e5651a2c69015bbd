//! The node's side of the [posts](samite_wire::submission): finds what clients have posted, and keeps them from posting.
//!
//! Each table is worked on by the thread of one shard. What is read from it is checked, and copied before it is used.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use rustix::thread::futex;
use samite_types::{ClientId, Epoch};
use samite_wire::arena::ArenaLayout;
use samite_wire::submission::{
    BOX_LEN, BOXES, HOLD_OFFSET, LANE_BOXES, LANES, LockWord, LockWordState, NODE_CORE_OFFSET,
    OPEN_OFFSET, QueueWaiter, REQUEST_OFFSET, RawSlotHeader, SlotContents, WHOM_OFFSET,
    lock_word_of, lock_word_offset, owner_offset, pending_bit, pending_offset, queue_of,
    queue_offset, slot_offset,
};
use smallvec::SmallVec;

use super::lookup_table::LookupTable;
use super::mapping::ArenaMapping;

/// How often the node tries to bar a claim that clients take and free meanwhile.
const BARS_TRIED: u32 = 64;

/// Bytes of a box that are mostly used.
const EXPECTED_LEN: usize = 320;

/// After so many posts the node looks whether somebody waits for one of their boxes: that look waits until all cores know that they are free.
const POSTS_PER_LOOK: u32 = 8;

/// So many posts in a lane can wait for those who share the node's core: about as many come meanwhile, and as many again can wait.
const PENDING_MOST: u32 = LANE_BOXES as u32 / 4;

/// The tables, as their node works on them.
pub(super) struct SubmissionQueues {
    mapping: Arc<ArenaMapping>,
    layout: ArenaLayout,
    /// The box of each lane, counted from its first, that comes after the one that was looked at last. Clients use them in turns, so that is the one that was posted
    /// first, and the one that a client waits for is soon free.
    next: Box<[AtomicU32]>,
    /// For each shard, one bit for each lane of which anything was looked at since a client was last woken on the core of the shard's thread.
    looked_at: Box<[AtomicU32]>,
}

/// Clients that were woken and wait on the core of this thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoreWaiters {
    /// None.
    Nobody,
    /// All that have posted anything lately.
    All,
    /// Some: others have posted, too.
    Some,
}

/// The first of these bits from `from` on, and around.
const fn first_from(bits: u64, from: u32) -> Option<u32> {
    let ahead = bits.rotate_right(from).trailing_zeros();
    if bits == 0 { None } else { Some((from + ahead) % u64::BITS) }
}

/// The core that this thread runs on at the moment, as a [`QueueWaiter`] counts it.
fn this_core() -> u16 {
    (rustix::thread::sched_getcpu() + 1) as u16
}

/// Something that was posted: a copy of its box.
#[derive(Clone, Debug)]
pub struct SubmissionEntry {
    raw: [u8; BOX_LEN],
    hash: u64,
    number: usize,
    /// Its claim stays barred when it was carried out: the node is about to change the record for somebody else.
    stays_barred: bool,
}

/// What keeps clients from posting about a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LockConflict {
    /// Its claim, which is to be [freed](SubmissionQueues::unlock_exclusive).
    Claim(usize),
    /// Its claim was barred before.
    Before,
    /// The whole table is closed, and is to be [opened](SubmissionQueues::open) again.
    Table,
}

/// Whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockTurn {
    /// That of the post before this one, if there is one: what this one takes can be fetched meanwhile.
    Before,
    /// That of this post.
    Now,
}

impl SubmissionEntry {
    const EMPTY: Self = Self { raw: [0; BOX_LEN], hash: 0, number: 0, stays_barred: false };

    /// What is in the box; `None`: it makes no sense.
    #[must_use]
    pub fn contents(&self) -> Option<SlotContents<'_>> {
        SlotContents::read(&self.raw)
    }
}

impl SubmissionQueues {
    pub(super) fn new(mapping: Arc<ArenaMapping>, layout: &ArenaLayout) -> Self {
        let zeros = |count| (0..count).map(|_| AtomicU32::new(0)).collect();
        let shards = layout.shards();
        Self { mapping, layout: *layout, next: zeros(shards * LANES), looked_at: zeros(shards) }
    }

    fn word(&self, part: u32, offset: usize) -> &AtomicU64 {
        self.mapping.long_word(self.layout.submissions_offset(part) + offset)
    }

    /// The pending bits of a lane.
    fn bits(&self, part: u32, lane: usize) -> &AtomicU64 {
        self.word(part, pending_offset(lane))
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
        (0..LANES).any(|lane| self.bits(part, lane).load(Ordering::Acquire) != 0)
    }

    /// Whether more is pending in some lane than its client can go on with while others have their turn.
    pub(super) fn is_behind(&self, part: u32) -> bool {
        let pending = |lane: usize| self.bits(part, lane).load(Ordering::Relaxed).count_ones();
        (0..LANES).any(|lane| pending(lane) > PENDING_MOST)
    }

    /// Gives `visit` all that was posted before this call, each twice: before the one before it is carried out, and when it is to be carried out itself, and
    /// then [`SubmissionQueues::done`].
    ///
    /// What it takes to take the records that they are about off the board, or to show them, is fetched before.
    pub(super) fn take_pending(
        &self,
        part: u32,
        board: &LookupTable,
        mut visit: impl FnMut(LockTurn, &SubmissionEntry),
    ) {
        let mut posts = [SubmissionEntry::EMPTY; 2];
        let (mut last, mut is_waiting) = (0, false);
        let mut carried_out = 0;
        let lanes = self.lanes_in_order(part);
        for lane in &lanes {
            // First the bits: a client that claims a box anew sets its bit again.
            let mut bits = self.bits(part, *lane).swap(0, Ordering::SeqCst);
            let next = &self.next[part as usize * LANES + lane];
            while let Some(within) = first_from(bits, next.load(Ordering::Relaxed)) {
                let number = lane * LANE_BOXES + within as usize;
                bits &= !pending_bit(number);
                next.store((within + 1) % u64::BITS, Ordering::Relaxed);
                self.expect(part, board, *lane, (bits, within));
                let next = &mut posts[1 - last];
                if self.pending(part, number, next) {
                    board.expect_slot(part, next.hash);
                    visit(LockTurn::Before, next);
                    if is_waiting {
                        visit(LockTurn::Now, &posts[last]);
                        carried_out += 1;
                        if carried_out % POSTS_PER_LOOK == 0 {
                            self.wake_elsewhere(part, queue_of(posts[last].number));
                        }
                    }
                    (last, is_waiting) = (1 - last, true);
                }
            }
        }
        if is_waiting {
            visit(LockTurn::Now, &posts[last]);
        }
        for lane in lanes {
            self.wake_elsewhere(part, lane);
        }
    }

    /// Lanes in which anything may be pending. First those whose clients wait on another core, where they can go on beside this thread; last those whose clients
    /// can go on when it has nothing more to do.
    fn lanes_in_order(&self, part: u32) -> SmallVec<[usize; LANES]> {
        let bits = |lane: usize| self.bits(part, lane).load(Ordering::Acquire);
        let mut lanes: SmallVec<_> = (0..LANES).filter(|lane| bits(*lane) != 0).collect();
        let all = lanes.iter().fold(0, |all, lane| all | 1_u32 << lane);
        self.looked_at[part as usize].fetch_or(all, Ordering::Relaxed);
        let here = this_core();
        self.say_core(part, here);
        if lanes.len() > 1 {
            lanes.sort_by_key(|lane| match self.waiter(part, *lane) {
                Some(waiter) if waiter.core == here => 2,
                Some(_) => 0,
                None => 1,
            });
        }
        lanes
    }

    /// Says on which core posts are carried out.
    fn say_core(&self, part: u32, core: u16) {
        let word = self.mapping.word(self.layout.submissions_offset(part) + NODE_CORE_OFFSET);
        // Every client reads the word: it is changed no more often than it has to be.
        if word.load(Ordering::Relaxed) != u32::from(core) {
            word.store(u32::from(core), Ordering::Relaxed);
        }
    }

    /// The first boxes of these bits after the one at `within` will be looked at next. A client has written to them, and to what they are claims on, on another core.
    fn expect(&self, part: u32, board: &LookupTable, lane: usize, (bits, within): (u64, u32)) {
        let start = self.layout.submissions_offset(part);
        let Some(next) = first_from(bits, within) else { return };
        let box_of = |within: u32| lane * LANE_BOXES + within as usize;
        if let Some(label) = self.header(part, box_of(next)).checked() {
            self.mapping
                .prefetch_to_write(start + lock_word_offset(label.lock_word()), size_of::<u64>());
            board.expect(part, label.hash);
        }
        if let Some(next_but_one) = first_from(bits & !(1 << next), next).map(box_of) {
            self.mapping.prefetch(start + slot_offset(next_but_one), EXPECTED_LEN);
            self.mapping.prefetch_to_write(start + owner_offset(next_but_one), size_of::<u64>());
        }
    }

    /// Copies what is posted in a box whose bit was taken, if there is anything.
    fn pending(&self, part: u32, number: usize, post: &mut SubmissionEntry) -> bool {
        let Some(label) = self.header(part, number).checked() else { return false };
        let claim = self.word(part, lock_word_offset(label.lock_word())).load(Ordering::SeqCst);
        let Some(found) = LockWord::read(claim) else { return false };
        match found.state {
            _ if found.number != number => false,
            // Only now it is known that nobody was writing to the box.
            LockWordState::Posted => {
                (post.hash, post.number) = (label.hash, number);
                self.copy(part, number, &mut post.raw);
                true
            }
            LockWordState::Claimed => {
                // It is about to be posted, or was a moment ago: to be looked at the next time.
                let bits = self.bits(part, queue_of(number));
                bits.fetch_or(pending_bit(number), Ordering::SeqCst);
                false
            }
            LockWordState::Barred => false,
        }
    }

    fn header(&self, part: u32, number: usize) -> RawSlotHeader {
        let mut raw = [0; size_of::<RawSlotHeader>()];
        self.copy_out(part, slot_offset(number), &mut raw);
        zerocopy::transmute!(raw)
    }

    /// Copies a box that is posted.
    fn copy(&self, part: u32, number: usize, raw: &mut [u8; BOX_LEN]) {
        let len = self.header(part, number).checked().map_or(0, |label| label.len());
        self.copy_out(part, slot_offset(number), &mut raw[..REQUEST_OFFSET + len]);
    }

    fn copy_out(&self, part: u32, offset: usize, dest: &mut [u8]) {
        let source =
            self.mapping.at((self.layout.submissions_offset(part) + offset) as u64, dest.len());
        // SAFETY: boxes lie within the mapping, as the layout says. Under a claim that is posted nobody writes to them; whatever a client that
        // keeps to no rule leaves there is checked in the copy.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), dest.as_mut_ptr(), dest.len()) };
    }

    /// It is about to be carried out, and takes a hold under `token`. Returns whether that is still wanted: from then on it ends as any other.
    pub(super) fn keeps_reference(&self, part: u32, post: &SubmissionEntry, token: u64) -> bool {
        let word = self.word(part, slot_offset(post.number) + HOLD_OFFSET);
        token != 0 && word.compare_exchange(token, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// It was carried out.
    pub(super) fn done(&self, part: u32, post: &SubmissionEntry) {
        // Nobody but the node changes the word of a claim that is posted.
        let claim = if post.stays_barred { LockWord::BARRED.word() } else { 0 };
        self.word(part, lock_word_offset(lock_word_of(post.hash))).store(claim, Ordering::Release);
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
        self.mapping.word(self.layout.submissions_offset(part) + queue_offset(lane))
    }

    fn waiter(&self, part: u32, lane: usize) -> Option<QueueWaiter> {
        QueueWaiter::read(self.lane(part, lane).load(Ordering::SeqCst))
    }

    fn wake(&self, part: u32, lane: usize) {
        let word = self.lane(part, lane);
        word.store(0, Ordering::Relaxed);
        let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
    }

    /// Wakes those who wait for a box that is free. Returns who of them sleeps on this thread's core.
    pub(super) fn wake_core_waiters(&self, part: u32) -> CoreWaiters {
        let mut near = 0;
        for lane in 0..LANES {
            let Some(waiter) = self.waiter(part, lane) else { continue };
            if self.is_free(part, waiter.number) {
                near |= u32::from(waiter.core == this_core()) << lane;
                self.wake(part, lane);
            }
        }
        if near == 0 {
            return CoreWaiters::Nobody;
        }
        let others = self.looked_at[part as usize].swap(0, Ordering::Relaxed) & !near;
        if others == 0 { CoreWaiters::All } else { CoreWaiters::Some }
    }

    /// A record of this hash is to be changed: bars claims on it, and takes what was posted, which is to be carried out before, and
    /// [done](Self::done).
    pub(super) fn lock_exclusive(
        &self,
        part: u32,
        hash: u64,
        visit: impl FnMut(&SubmissionEntry),
    ) -> LockConflict {
        self.bar_beside(part, hash, visit, || {})
    }

    /// As [`SubmissionQueues::lock_exclusive`]; `beside` is what others do between each look at the claim and the exchange.
    fn bar_beside(
        &self,
        part: u32,
        hash: u64,
        mut visit: impl FnMut(&SubmissionEntry),
        mut beside: impl FnMut(),
    ) -> LockConflict {
        let claim = lock_word_of(hash);
        let word = self.word(part, lock_word_offset(claim));
        for _ in 0..BARS_TRIED {
            let raw = word.load(Ordering::SeqCst);
            match LockWord::read(raw) {
                Some(LockWord { state: LockWordState::Barred, .. }) => return LockConflict::Before,
                Some(LockWord { state: LockWordState::Posted, number, .. }) => {
                    self.take_posted(part, (hash, number), true, &mut visit);
                    return LockConflict::Claim(claim);
                }
                None | Some(LockWord { state: LockWordState::Claimed, .. }) => {
                    beside();
                    // Whoever claims it after that looks at the board after the record was changed.
                    let (success, failure) = (Ordering::SeqCst, Ordering::SeqCst);
                    let barred = LockWord::BARRED.word();
                    if word.compare_exchange(raw, barred, success, failure).is_ok() {
                        return LockConflict::Claim(claim);
                    }
                }
            }
        }
        // Clients claim it and free it again and again. Nobody posts to a closed table, so what is
        // posted now is all there is; its claim says so to readers until it was carried out.
        self.close(part);
        let found = LockWord::read(word.load(Ordering::SeqCst));
        if let Some(LockWord { state: LockWordState::Posted, number, .. }) = found {
            self.take_posted(part, (hash, number), false, &mut visit);
        }
        LockConflict::Table
    }

    /// Has what is posted in a box carried out, and its claim barred from then on, or free.
    fn take_posted(
        &self,
        part: u32,
        (hash, number): (u64, usize),
        stays_barred: bool,
        visit: &mut impl FnMut(&SubmissionEntry),
    ) {
        let mut post = SubmissionEntry { hash, number, stays_barred, ..SubmissionEntry::EMPTY };
        self.copy(part, number, &mut post.raw);
        visit(&post);
        self.wake_elsewhere(part, queue_of(number));
    }

    /// Frees a claim that was barred: the record is changed.
    pub(super) fn unlock_exclusive(&self, part: u32, claim: usize) {
        self.word(part, lock_word_offset(claim)).store(0, Ordering::Release);
    }

    /// Revokes the claims for boxes of these owners.
    fn revoke(&self, part: u32, is_meant: impl Fn(u64) -> bool) {
        for number in 0..BOXES {
            if !is_meant(self.word(part, owner_offset(number)).load(Ordering::Acquire)) {
                continue;
            }
            let Some(label) = self.header(part, number).checked() else { continue };
            let word = self.word(part, lock_word_offset(label.lock_word()));
            let raw = word.load(Ordering::SeqCst);
            if let Some(LockWord { state: LockWordState::Claimed, number: of, .. }) =
                LockWord::read(raw)
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
mod tests;
