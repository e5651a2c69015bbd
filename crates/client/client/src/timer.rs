//! Wakes futures whose deadline passes. The thread behind it starts when the first future is polled.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use samite_types::{Clock, Deadline, SystemClock};

/// Wakers by the time at which they are to be used. One per session.
#[derive(Debug, Default)]
pub(crate) struct WakeTimer {
    shared: Arc<TimerShared>,
}

#[derive(Debug, Default)]
struct TimerShared {
    state: Mutex<TimerState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct TimerState {
    wakers: BTreeMap<(Duration, u64), Waker>,
    next_id: u64,
    is_running: bool,
    is_closed: bool,
}

impl TimerShared {
    fn lock(&self) -> MutexGuard<'_, TimerState> {
        // Nothing inside panics half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place in the timer; given up when dropped.
#[derive(Debug)]
pub(crate) struct TimerEntry {
    shared: Arc<TimerShared>,
    at: (Duration, u64),
}

impl WakeTimer {
    /// Has `waker` woken at `deadline`.
    pub(crate) fn set(&self, deadline: Deadline, waker: &Waker) -> TimerEntry {
        let mut state = self.shared.lock();
        state.next_id += 1;
        let at = (deadline.at(), state.next_id);
        let is_first = state.wakers.first_key_value().is_none_or(|(first, _)| at < *first);
        state.wakers.insert(at, waker.clone());
        if !state.is_running {
            let shared = Arc::clone(&self.shared);
            let spawned =
                std::thread::Builder::new().name("samite-timer".into()).spawn(move || run(&shared));
            state.is_running = spawned.is_ok();
        } else if is_first {
            self.shared.changed.notify_one();
        }
        TimerEntry { shared: Arc::clone(&self.shared), at }
    }
}

impl Drop for WakeTimer {
    fn drop(&mut self) {
        self.shared.lock().is_closed = true;
        self.shared.changed.notify_one();
    }
}

impl TimerEntry {
    /// Another waker in place of the one that was set.
    pub(crate) fn renew(&self, waker: &Waker) {
        if let Some(set) = self.shared.lock().wakers.get_mut(&self.at) {
            set.clone_from(waker);
        }
    }
}

impl Drop for TimerEntry {
    fn drop(&mut self) {
        self.shared.lock().wakers.remove(&self.at);
    }
}

fn run(shared: &TimerShared) {
    let mut state = shared.lock();
    while !state.is_closed {
        let now = SystemClock.monotonic();
        let due = state.wakers.first_key_value().map(|((at, _), _)| *at);
        state = match due {
            Some(at) if at <= now => {
                let waker = state.wakers.pop_first().map(|(_, waker)| waker);
                drop(state);
                if let Some(waker) = waker {
                    waker.wake();
                }
                shared.lock()
            }
            Some(at) => {
                let waited = shared.changed.wait_timeout(state, at - now);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
            None => shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
        };
    }
}
