//! How many workers wait for the kernel's next request.
//!
//! The kernel wakes the worker that has waited for longest. So requests that come one by one go
//! round all workers: each is woken, with cold caches and maybe on another core, while the one that
//! has just answered could have taken the next without a sleep. Therefore, where answers come soon,
//! a worker that has answered and sees that another one waits already goes into standby. It is
//! woken when a request takes long while nobody waits, and comes back by itself where no request
//! has begun for a short time, so that none is delayed for longer by others. While requests go on
//! it comes back only to a machine that has cores for it: workers beyond those take them from the
//! programs that wait.
//!
//! The last one that is awake looks for the next request for a while before it sleeps. A program
//! that has its answer mostly asks again within microseconds, and to wake a worker on a core that
//! has gone idle takes longer than to serve.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use samite_cpu::{AffinityFollower, PollCost, SpinTime, leave};

/// Time between two checks whether a worker in standby is missed: it is for two of them at most.
const STANDBY_TICK: Duration = Duration::from_millis(20);

/// Looking for the next request before sleeping, at most.
const LOOK_MAX: Duration = Duration::from_micros(200);

/// The same without offering the core to others.
const GLANCE: Duration = Duration::from_micros(5);

/// The states of the workers: idle, in standby, or polling.
#[derive(Debug)]
pub struct ReaderPool {
    /// Where requests come from, once they do.
    device: OnceLock<OwnedFd>,
    /// Locked by the worker that polls for the next request.
    polling: Mutex<PollGuard>,
    /// It has looked in vain, and sleeps.
    sleeps: AtomicBool,
    /// Workers that wait for a request, or are on their way to.
    waiting: AtomicUsize,
    /// Requests that were begun, ever.
    begun: AtomicU64,
    workers: usize,
    /// So many workers awake are enough for requests that go on.
    enough: usize,
    period: Mutex<StandbyPeriod>,
    wake_up: Condvar,
}

#[derive(Debug)]
struct PollGuard {
    spin: SpinTime,
    affinity: AffinityFollower,
}

#[derive(Debug)]
struct StandbyPeriod {
    /// Workers in standby.
    standing_by: usize,
    /// How many of them have been woken, and count among the idle ones.
    called: usize,
}

/// The request that is likely to come when one has been answered.
#[derive(Clone, Copy, Debug)]
pub enum ExpectedRequest {
    /// Another one of the same program.
    More,
    /// Maybe nothing: the kernel has been given answers that it keeps.
    Unknown,
}

/// A request is being served. Ends when it has been answered, maybe with a time of standby.
#[must_use]
pub struct ServedRequest<'r, S: Fn() -> bool> {
    pool: &'r ReaderPool,
    is_soon: S,
    next: ExpectedRequest,
    /// The thread that asks.
    who: u32,
}

impl ReaderPool {
    /// For so many workers, all of which wait, on a machine with so many cores: half of them are for who asks.
    pub const fn new(workers: usize, cores: usize) -> Self {
        Self {
            device: OnceLock::new(),
            polling: Mutex::new(PollGuard {
                spin: SpinTime::new(LOOK_MAX),
                affinity: AffinityFollower::new(),
            }),
            sleeps: AtomicBool::new(false),
            waiting: AtomicUsize::new(workers),
            begun: AtomicU64::new(0),
            workers,
            enough: if cores < 4 { 1 } else { cores / 2 },
            period: Mutex::new(StandbyPeriod { standing_by: 0, called: 0 }),
            wake_up: Condvar::new(),
        }
    }

    /// Requests come from this device, which workers may poll.
    pub fn look_at(&self, device: OwnedFd) {
        self.device.get_or_init(|| device);
    }

    /// The calling worker begins to serve a request of the thread `who`. `is_soon`: answers come so soon that few workers are better.
    pub fn begin<S: Fn() -> bool>(
        &self,
        who: u32,
        next: ExpectedRequest,
        is_soon: S,
    ) -> ServedRequest<'_, S> {
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        self.begun.fetch_add(1, Ordering::Relaxed);
        if self.sleeps.load(Ordering::Relaxed)
            && self.sleeps.swap(false, Ordering::Relaxed)
            && let Ok(mut polling) = self.polling.try_lock()
        {
            polling.spin.woke();
        }
        ServedRequest { pool: self, is_soon, next, who }
    }

    /// The request that is being served takes long: another worker is to wait for the next.
    pub fn call(&self) {
        if self.waiting.load(Ordering::SeqCst) == 0 {
            let mut period = self.lock();
            if period.standing_by > period.called {
                period.called += 1;
                self.waiting.fetch_add(1, Ordering::SeqCst);
                self.wake_up.notify_one();
            }
        }
    }

    /// Until there is a request, or a sleep is better: it has not come for long, or another thread
    /// has work for this core, maybe a program that is about to ask. Returns whether there is one.
    fn poll_device(&self, who: u32) -> bool {
        let (Some(device), Ok(mut polling)) = (self.device.get(), self.polling.try_lock()) else {
            return false;
        };
        let PollGuard { spin, affinity } = &mut *polling;
        affinity.answered(who);
        let began = Instant::now();
        while !has_request(device) {
            if !spin.pass(PollCost::Kernel, false) || spin.is_shared() {
                spin.sleeps();
                self.sleeps.store(true, Ordering::Relaxed);
                return false;
            }
        }
        spin.found();
        let now = Instant::now();
        affinity.asked_again(now - began, now);
        true
    }

    /// The same without offering the core to the program that was answered: it may compute on it
    /// for milliseconds, for which others would wait.
    fn glance(&self) -> bool {
        let Some(device) = self.device.get() else { return false };
        let end = Instant::now() + GLANCE;
        while Instant::now() < end {
            if has_request(device) {
                return true;
            }
            std::hint::spin_loop();
        }
        false
    }

    /// Until it is called or missed; not if nobody else waits by now.
    fn stand_by(&self) {
        let mut period = self.lock();
        let leaves = |waiting: usize| (waiting > 1).then(|| waiting - 1);
        if self.waiting.fetch_update(Ordering::SeqCst, Ordering::SeqCst, leaves).is_err() {
            return;
        }
        period.standing_by += 1;
        let mut seen = self.begun.load(Ordering::Relaxed);
        loop {
            let waited =
                self.wake_up.wait_timeout_while(period, STANDBY_TICK, |period| period.called == 0);
            period = waited.unwrap_or_else(PoisonError::into_inner).0;
            if period.called > 0 {
                period.called -= 1;
                break;
            }
            let begun = self.begun.load(Ordering::Relaxed);
            let goes_on = std::mem::replace(&mut seen, begun) != begun;
            if self.misses(period.standing_by, goes_on) {
                self.waiting.fetch_add(1, Ordering::SeqCst);
                break;
            }
        }
        period.standing_by -= 1;
    }

    /// Whether one of so many workers in standby is to come back. `goes_on`: a request has begun
    /// since the last check.
    const fn misses(&self, standing_by: usize, goes_on: bool) -> bool {
        !goes_on || self.workers - standing_by < self.enough
    }

    fn lock(&self) -> MutexGuard<'_, StandbyPeriod> {
        self.period.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: Fn() -> bool> Drop for ServedRequest<'_, S> {
    fn drop(&mut self) {
        let waits_another = self.pool.waiting.fetch_add(1, Ordering::SeqCst) > 0;
        let (is_soon, is_last) = ((self.is_soon)(), !waits_another);
        let has_next = match self.next {
            _ if !is_soon || !is_last => false,
            ExpectedRequest::More => self.pool.poll_device(self.who),
            ExpectedRequest::Unknown => self.pool.glance(),
        };
        if !has_next {
            // A thread that sleeps on one core could not be woken while a program computes there.
            leave();
        }
        if is_soon && !is_last {
            self.pool.stand_by();
        }
    }
}

/// Whether the next read of the device ends at once.
fn has_request(device: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(device, PollFlags::IN)];
    !matches!(poll(&mut polled, Some(&Timespec::default())), Ok(0))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    fn waiting(pool: &ReaderPool) -> usize {
        pool.waiting.load(Ordering::SeqCst)
    }

    fn standing_by(pool: &ReaderPool) -> usize {
        pool.period.lock().unwrap().standing_by
    }

    #[test]
    fn a_worker_beside_a_waiting_one_stands_by_and_comes_back() {
        let pool = ReaderPool::new(2, 2);
        let (turn, other) = (
            pool.begin(0, ExpectedRequest::More, || true),
            pool.begin(0, ExpectedRequest::More, || true),
        );
        drop(turn);
        assert_eq!(waiting(&pool), 1);
        drop(other);
        assert_eq!((waiting(&pool), standing_by(&pool)), (2, 0));
    }

    #[test]
    fn a_standby_worker_is_called_while_nobody_waits() {
        let pool = ReaderPool::new(2, 2);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::SeqCst) {
                    drop(pool.begin(0, ExpectedRequest::More, || true));
                }
            });
            for _ in 0..20 {
                while standing_by(&pool) == 0 {
                    std::thread::yield_now();
                }
                // The second worker has a request that takes long.
                let turn = pool.begin(0, ExpectedRequest::More, || false);
                pool.call();
                assert!(waiting(&pool) <= 1);
                drop(turn);
            }
            is_over.store(true, Ordering::SeqCst);
        });
        assert_eq!((waiting(&pool), standing_by(&pool)), (2, 0));
    }

    #[test]
    fn a_standby_worker_is_missed_when_no_request_begins_or_there_are_cores() {
        let missed =
            |cores, standing_by, goes_on| ReaderPool::new(8, cores).misses(standing_by, goes_on);
        for cores in [1, 2, 3, 4, 64] {
            assert!(missed(cores, 7, false));
        }
        assert!(!missed(2, 7, true));
        assert!(missed(4, 7, true) && !missed(4, 6, true));
        assert!(missed(64, 1, true));
        let enough = |cores| ReaderPool::new(8, cores).enough;
        assert_eq!([1, 2, 3, 4, 64].map(enough), [1, 1, 1, 2, 32]);
    }

    #[test]
    fn a_standby_worker_comes_back_to_requests_that_go_on_where_there_are_cores() {
        let pool = ReaderPool::new(2, 8);
        let is_back = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_back.load(Ordering::SeqCst) {
                    drop(pool.begin(0, ExpectedRequest::More, || false));
                }
            });
            drop(pool.begin(0, ExpectedRequest::More, || true));
            is_back.store(true, Ordering::SeqCst);
        });
        assert_eq!((waiting(&pool), standing_by(&pool)), (2, 0));
    }

    #[test]
    fn nobody_stands_by_where_answers_take_their_time() {
        let pool = ReaderPool::new(3, 2);
        let is_soon = || false;
        drop(pool.begin(0, ExpectedRequest::More, is_soon));
        assert_eq!(waiting(&pool), 3);
        // Nobody is there to be called.
        let _turns = [
            pool.begin(0, ExpectedRequest::More, is_soon),
            pool.begin(0, ExpectedRequest::More, is_soon),
            pool.begin(0, ExpectedRequest::More, is_soon),
        ];
        pool.call();
        assert_eq!(waiting(&pool), 0);
    }
}
