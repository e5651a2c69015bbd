//! Keeps `fork` away from calls in progress.
//!
//! A child gets a copy of every lock as it stood. Were another thread inside the file system at
//! that time, its locks would stay taken in the child for ever. So `fork` closes the fork lock,
//! waits until the calls in progress are through, and opens it again on both sides. Where one of
//! the calls does not end in time, the child is [told](reset_in_child) that it has no store any
//! more.
//!
//! A signal handler may fork while its own thread is inside: that call goes on in parent and child.
//! The fork lock counts the generations of forks, so that its end in the child is not taken for
//! that of a call which began there.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::thread::{NanosleepRelativeResult, nanosleep};
use rustix::time::{ClockId, Timespec, clock_gettime};

/// Threads that are about to fork, counted above the calls.
const CLOSER: u64 = 1 << 24;
const CLOSERS: u64 = (CLOSER << 16) - CLOSER;
/// The generation, counted above those.
const GENERATION: u64 = CLOSER << 16;
const GENERATIONS: u64 = !(GENERATION - 1);
/// Calls in progress. They are counted from here, so that one that ends where it is not counted takes nothing from the other parts.
const CALLS: u64 = CLOSER - 1;
const NO_CALL: u64 = 1 << 23;

static GATE: AtomicU64 = AtomicU64::new(NO_CALL);
/// This process was forked off while a thread of its parent was inside: its locks are taken for ever.
static IS_LOST: AtomicBool = AtomicBool::new(false);

/// A call on a dead node ends at its deadline; a fork does not wait longer than this for it. Where another node takes over, it
/// has by then.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// The same for a fork by a signal handler whose own thread is inside: others may wait there for what that one has.
const INSIDE_WAIT_MAX: Duration = Duration::from_millis(500);
const STEP: Duration = Duration::from_micros(50);

thread_local! {
    /// How often this thread has closed the fork lock: once, unless a signal handler forks within
    /// its fork. Plain memory.
    static CLOSED: Cell<u32> = const { Cell::new(0) };
    /// Whether others were still inside when it last did.
    static IS_LATE: Cell<bool> = const { Cell::new(false) };
}

/// A call in progress: the generation in which it began.
#[derive(Clone, Copy)]
pub struct GatedCall(u64);

/// A call begins; `None`: this process has no store.
#[inline]
pub fn begin_call() -> Option<GatedCall> {
    let before = GATE.fetch_add(1, Ordering::Acquire);
    let call = GatedCall(before & GENERATIONS);
    if before & CLOSERS != 0 { wait_to_enter(call) } else { Some(call) }
}

#[cold]
fn wait_to_enter(call: GatedCall) -> Option<GatedCall> {
    end_call(call);
    wait_while(WAIT_MAX, || !is_lost() && GATE.load(Ordering::Acquire) & CLOSERS != 0);
    if is_lost() {
        return None;
    }
    Some(GatedCall(GATE.fetch_add(1, Ordering::Acquire) & GENERATIONS))
}

/// A call ends.
#[inline]
pub fn end_call(call: GatedCall) {
    let before = GATE.fetch_sub(1, Ordering::Release);
    if before & GENERATIONS != call.0 {
        put_back(before & GENERATIONS);
    }
}

/// A call that began in the parent has ended here, where nobody counts it.
#[cold]
fn put_back(generation: u64) {
    change(|gate| (gate & GENERATIONS == generation).then_some(gate + 1));
}

fn change(to: impl FnMut(u64) -> Option<u64>) {
    // `None` where there is nothing to change.
    let _ = GATE.fetch_update(Ordering::AcqRel, Ordering::Acquire, to);
}

/// Waits until no call is in progress, but for that of the calling thread if it `is_inside`, and
/// lets no new one begin.
pub fn close(is_inside: bool) {
    GATE.fetch_add(CLOSER, Ordering::AcqRel);
    CLOSED.set(CLOSED.get() + 1);
    let (most, wait_max) = match is_inside {
        true => (NO_CALL + 1, INSIDE_WAIT_MAX),
        false => (NO_CALL, WAIT_MAX),
    };
    let is_busy = || GATE.load(Ordering::Acquire) & CALLS > most;
    wait_while(wait_max, is_busy);
    IS_LATE.set(is_busy());
}

/// After a fork that closed it: lets calls through again, unless another thread is about to fork.
pub fn open() {
    if CLOSED.get() > 0 {
        CLOSED.set(CLOSED.get() - 1);
        change(|gate| (gate & CLOSERS != 0).then(|| gate - CLOSER));
    }
}

/// In the child of a fork: the threads whose calls were counted are not here, nor those that were
/// about to fork. If one of them was inside, its locks are taken for ever: the fork lock stays
/// closed, and each call fails at once.
pub fn reset_in_child() {
    if IS_LATE.replace(false) {
        IS_LOST.store(true, Ordering::Relaxed);
    }
    CLOSED.set(0);
    let closers = if is_lost() { CLOSER } else { 0 };
    let generation = (GATE.load(Ordering::Relaxed) & GENERATIONS).wrapping_add(GENERATION);
    GATE.store(generation | closers | NO_CALL, Ordering::Release);
}

/// Whether this process can use the store no more.
pub fn is_lost() -> bool {
    IS_LOST.load(Ordering::Relaxed)
}

fn wait_while(most: Duration, is_so: impl Fn() -> bool) {
    let step = Timespec { tv_sec: 0, tv_nsec: i64::from(STEP.subsec_nanos()) };
    let now = || clock_gettime(ClockId::Monotonic).try_into().unwrap_or(Duration::MAX);
    let mut until = None;
    while is_so() && now() < *until.get_or_insert_with(|| now().saturating_add(most)) {
        // An interrupted sleep is a shorter step.
        let _: NanosleepRelativeResult = nanosleep(&step);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The process has one fork lock: all of it in one test.
    #[test]
    fn calls_are_counted_where_they_began() {
        let calls = || GATE.load(Ordering::Relaxed) & CALLS;
        let (first, second) = (begin_call().unwrap(), begin_call().unwrap());
        end_call(first);
        assert_eq!(calls(), NO_CALL + 1);
        close(true);
        assert!(!IS_LATE.get());
        reset_in_child();
        assert_eq!(calls(), NO_CALL, "nobody is inside here");
        let third = begin_call().unwrap();
        end_call(second);
        assert_eq!(calls(), NO_CALL + 1, "the call of before is not this one");
        end_call(third);
        assert_eq!(GATE.load(Ordering::Relaxed) & !GENERATIONS, NO_CALL, "open, and nobody inside");
        // In a parent: the thread that opens it has closed it.
        GATE.fetch_add(CLOSER, Ordering::Relaxed);
        open();
        assert_eq!(GATE.load(Ordering::Relaxed) & CLOSERS, CLOSER, "another thread's");
        close(false);
        open();
        assert_eq!(GATE.load(Ordering::Relaxed) & CLOSERS, CLOSER);
        GATE.fetch_sub(CLOSER, Ordering::Relaxed);
        // Another thread stays inside: nothing can be had in the child, nor in its own.
        let (_own, _others) = (begin_call().unwrap(), begin_call().unwrap());
        close(true);
        open();
        assert!(
            begin_call().is_some_and(|call| {
                end_call(call);
                true
            }),
            "the parent goes on"
        );
        close(true);
        reset_in_child();
        assert!(begin_call().is_none() && is_lost());
        close(false);
        reset_in_child();
        assert!(begin_call().is_none());
    }
}
