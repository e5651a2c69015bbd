//! Keeps `fork` away from calls in progress.
//!
//! A child gets a copy of every lock as it stood. Were another thread inside the file system at that moment, its locks would stay
//! taken in the child for ever. So `fork` closes this gate, waits until the calls in progress are through, and opens it again
//! on both sides.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::thread::{NanosleepRelativeResult, nanosleep};
use rustix::time::Timespec;

const CLOSED: u32 = 1 << 31;

/// Calls in progress, and [`CLOSED`].
static GATE: AtomicU32 = AtomicU32::new(0);

/// A call on a dead node ends at its deadline; a fork does not wait longer than this for it.
const WAIT_MAX: Duration = Duration::from_secs(5);
const STEP: Duration = Duration::from_micros(50);

/// A call begins.
#[inline]
pub fn enter() {
    if GATE.fetch_add(1, Ordering::Acquire) & CLOSED != 0 {
        wait_to_enter();
    }
}

#[cold]
fn wait_to_enter() {
    let mut waited = Duration::ZERO;
    GATE.fetch_sub(1, Ordering::Release);
    while waited < WAIT_MAX && GATE.load(Ordering::Acquire) & CLOSED != 0 {
        pause();
        waited += STEP;
    }
    GATE.fetch_add(1, Ordering::Acquire);
}

/// A call ends.
#[inline]
pub fn leave() {
    GATE.fetch_sub(1, Ordering::Release);
}

/// Waits until no call is in progress, and holds new ones back.
pub fn close() {
    GATE.fetch_or(CLOSED, Ordering::Acquire);
    let mut waited = Duration::ZERO;
    while waited < WAIT_MAX && GATE.load(Ordering::Acquire) != CLOSED {
        pause();
        waited += STEP;
    }
}

/// Lets calls through again.
pub fn open() {
    GATE.fetch_and(!CLOSED, Ordering::Release);
}

/// In the child of a fork: the threads whose calls were counted are not here.
pub fn reset_in_child() {
    GATE.store(0, Ordering::Release);
}

fn pause() {
    let step = Timespec { tv_sec: 0, tv_nsec: i64::from(STEP.subsec_nanos()) };
    // An interrupted sleep is a shorter step.
    let _: NanosleepRelativeResult = nanosleep(&step);
}
