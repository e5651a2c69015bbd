//! How many workers wait for the kernel's next request.
//!
//! The kernel wakes the worker that has waited for longest. So requests that come one by one go round all workers: each is woken, with cold caches
//! and maybe on another core, while the one that has just answered could have taken the next without a sleep. Therefore, where answers come
//! soon, a worker that has answered and sees that another one waits already takes a rest. It is called when a request takes
//! long while nobody waits, and comes back by itself after a moment, so that no request is held up for longer by others.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Longest rest, and so the longest time for which a worker that rests is missed.
const REST: Duration = Duration::from_millis(20);

/// Who waits, and who rests.
#[derive(Debug)]
pub struct Readers {
    /// Workers that wait for a request, or are on their way to.
    waiting: AtomicUsize,
    rest: Mutex<Rest>,
    bell: Condvar,
}

#[derive(Debug)]
struct Rest {
    /// Workers that rest.
    resting: usize,
    /// How many of them are called, and counted among those who wait.
    called: usize,
}

/// A request is being served. Ends when it has been answered, maybe with a rest.
#[must_use]
pub struct Turn<'r, S: Fn() -> bool> {
    readers: &'r Readers,
    is_soon: S,
}

impl Readers {
    /// For so many workers, all of which wait.
    pub const fn new(workers: usize) -> Self {
        Self {
            waiting: AtomicUsize::new(workers),
            rest: Mutex::new(Rest { resting: 0, called: 0 }),
            bell: Condvar::new(),
        }
    }

    /// The calling worker begins to serve a request. `is_soon`: answers come so soon that few workers are better.
    pub fn begin<S: Fn() -> bool>(&self, is_soon: S) -> Turn<'_, S> {
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        Turn { readers: self, is_soon }
    }

    /// The request that is being served takes long: somebody is to wait for the next.
    pub fn call(&self) {
        if self.waiting.load(Ordering::SeqCst) == 0 {
            let mut rest = self.rest.lock().unwrap_or_else(PoisonError::into_inner);
            if rest.resting > rest.called {
                rest.called += 1;
                self.waiting.fetch_add(1, Ordering::SeqCst);
                self.bell.notify_one();
            }
        }
    }

    /// Until it is called, or for a moment; not if nobody else waits by now.
    fn rest(&self) {
        let mut rest = self.rest.lock().unwrap_or_else(PoisonError::into_inner);
        let leaves = |waiting: usize| (waiting > 1).then(|| waiting - 1);
        if self.waiting.fetch_update(Ordering::SeqCst, Ordering::SeqCst, leaves).is_err() {
            return;
        }
        rest.resting += 1;
        let waited = self.bell.wait_timeout_while(rest, REST, |rest| rest.called == 0);
        let (mut rest, _) = waited.unwrap_or_else(PoisonError::into_inner);
        rest.resting -= 1;
        if rest.called > 0 {
            rest.called -= 1;
        } else {
            self.waiting.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl<S: Fn() -> bool> Drop for Turn<'_, S> {
    fn drop(&mut self) {
        if self.readers.waiting.fetch_add(1, Ordering::SeqCst) > 0 && (self.is_soon)() {
            self.readers.rest();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    fn waiting(readers: &Readers) -> usize {
        readers.waiting.load(Ordering::SeqCst)
    }

    fn resting(readers: &Readers) -> usize {
        readers.rest.lock().unwrap().resting
    }

    #[test]
    fn who_finds_another_waiting_rests_and_comes_back() {
        let readers = Readers::new(2);
        let (turn, other) = (readers.begin(|| true), readers.begin(|| true));
        drop(turn);
        assert_eq!(waiting(&readers), 1);
        drop(other);
        assert_eq!((waiting(&readers), resting(&readers)), (2, 0));
    }

    #[test]
    fn who_rests_is_called_while_nobody_waits() {
        let readers = Readers::new(2);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::SeqCst) {
                    drop(readers.begin(|| true));
                }
            });
            for _ in 0..20 {
                while resting(&readers) == 0 {
                    std::thread::yield_now();
                }
                // The second worker has a request that takes long.
                let turn = readers.begin(|| false);
                readers.call();
                assert!(waiting(&readers) <= 1);
                drop(turn);
            }
            is_over.store(true, Ordering::SeqCst);
        });
        assert_eq!((waiting(&readers), resting(&readers)), (2, 0));
    }

    #[test]
    fn nobody_rests_where_answers_take_their_time() {
        let readers = Readers::new(3);
        let is_soon = || false;
        drop(readers.begin(is_soon));
        assert_eq!(waiting(&readers), 3);
        // Nobody is there to be called.
        let _turns = [readers.begin(is_soon), readers.begin(is_soon), readers.begin(is_soon)];
        readers.call();
        assert_eq!(waiting(&readers), 0);
    }
}
