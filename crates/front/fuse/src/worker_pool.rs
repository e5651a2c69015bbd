//! How many workers wait for the kernel's next request.
//!
//! The kernel wakes the worker that has waited for longest. So requests that come one by one go
//! round all workers: each is woken, with cold caches and maybe on another core, while the one that
//! has just answered could have taken the next without a sleep. Therefore, where answers come soon,
//! a worker that has answered and sees that another one waits already goes into standby. It is
//! woken when a request takes long while nobody waits, and comes back by itself where no request
//! has begun for a short time, so that none is delayed for longer by others. While requests go on
//! it comes back only to a machine that has cores for it: workers beyond those take them from the
//! programs that wait. One of the workers in standby is the sentinel: it sees soon when a request
//! finds no worker, because the workers that are awake serve slow requests, or have lost their core
//! to a program that computes.
//!
//! A program that has its answer from a worker on its own core takes that core at once, for as long
//! as it computes. Where another request is there already, whose program waits on a core that has
//! nothing else to do, that one is served first.
//!
//! The last one that is awake looks for the next request for a while before it sleeps. A program that has its answer mostly asks again within
//! microseconds, and to wake a worker on a core that has gone idle takes longer than to serve.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use samite_transport::{PollCost, SpinTime};

use crate::affinity::{AffinityFollower, leave};
use crate::delayed_answer::DelayedAnswer;

/// Time between two checks whether a worker in standby is missed: it is for two of them at most.
const STANDBY_TICK: Duration = Duration::from_millis(20);

/// The same for the sentinel.
const SENTINEL_TICK: Duration = Duration::from_micros(500);

/// For so long no request begins before the sentinel comes back.
const SENTINEL_PATIENCE: Duration = Duration::from_millis(1);

/// A request that is there for so long, while no other one is begun, has found nobody.
const BEGUN_AFTER: Duration = Duration::from_micros(20);

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
    /// An answer that leaves when the next request has been served, or when the sentinel looks.
    delayed: DelayedAnswer,
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
    /// One of them is the sentinel.
    has_sentinel: bool,
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
    /// Its answer has not left: there is another request.
    delays: bool,
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
            delayed: DelayedAnswer::new(),
            period: Mutex::new(StandbyPeriod { has_sentinel: false, standing_by: 0, called: 0 }),
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
        if self.delayed.is_there() && !is_soon() {
            self.delayed.send();
        }
        ServedRequest { pool: self, is_soon, next, who, delays: false }
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
        let mut standby = StandbyWait::default();
        let mut seen = self.begun.load(Ordering::Relaxed);
        loop {
            // Beside one that may have lost its core, another one waits already.
            let needs_sentinel = self.waiting.load(Ordering::SeqCst) < 2;
            standby.is_sentinel |=
                needs_sentinel && !std::mem::replace(&mut period.has_sentinel, true);
            let waited = self
                .wake_up
                .wait_timeout_while(period, standby.tick(), |period| period.called == 0);
            period = waited.unwrap_or_else(PoisonError::into_inner).0;
            let mut finds_nobody = false;
            if standby.is_sentinel && period.called == 0 {
                drop(period);
                self.delayed.send();
                finds_nobody = self.finds_nobody();
                period = self.lock();
            }
            if period.called > 0 {
                period.called -= 1;
                break;
            }
            let begun = self.begun.load(Ordering::Relaxed);
            let goes_on = std::mem::replace(&mut seen, begun) != begun;
            let has_cores = self.workers - period.standing_by < self.enough;
            if standby.is_over(goes_on, has_cores, finds_nobody) {
                self.waiting.fetch_add(1, Ordering::SeqCst);
                break;
            }
        }
        period.standing_by -= 1;
        period.has_sentinel &= !standby.is_sentinel;
        drop(period);
        self.delayed.send();
    }

    /// Whether a request waits, and no worker begins it: the worker that is awake has lost its
    /// core.
    fn finds_nobody(&self) -> bool {
        let Some(device) = self.device.get() else { return false };
        let begun = self.begun.load(Ordering::Relaxed);
        let end = Instant::now() + BEGUN_AFTER;
        while has_request(device) && self.begun.load(Ordering::Relaxed) == begun {
            if Instant::now() >= end {
                return true;
            }
            std::hint::spin_loop();
        }
        false
    }

    fn lock(&self) -> MutexGuard<'_, StandbyPeriod> {
        self.period.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A standby period in which nobody has woken the worker.
#[derive(Debug, Default)]
struct StandbyWait {
    is_sentinel: bool,
    waited: Duration,
    /// For how long no request has begun.
    quiet: Duration,
}

impl StandbyWait {
    /// Time between two looks.
    const fn tick(&self) -> Duration {
        if self.is_sentinel { SENTINEL_TICK } else { STANDBY_TICK }
    }

    /// For how long no request has begun when it is missed.
    const fn patience(&self) -> Duration {
        if self.is_sentinel { SENTINEL_PATIENCE } else { STANDBY_TICK }
    }

    /// A tick has passed, in which requests went on or did not. `has_cores`: the machine has cores
    /// for one more worker than those that are awake. `finds_nobody`: a request waits, as the
    /// sentinel has seen.
    fn is_over(&mut self, goes_on: bool, has_cores: bool, finds_nobody: bool) -> bool {
        self.waited += self.tick();
        self.quiet = if goes_on { Duration::ZERO } else { self.quiet + self.tick() };
        self.quiet >= self.patience()
            || has_cores && self.waited >= STANDBY_TICK
            || self.is_sentinel && finds_nobody
    }
}

impl<S: Fn() -> bool> ServedRequest<'_, S> {
    /// Sends the answer, maybe only when a request that is there already has been served.
    pub fn answer(&mut self, send: impl FnOnce() + Send + 'static) {
        let pool = self.pool;
        let is_alone = pool.waiting.load(Ordering::SeqCst) == 0;
        if is_alone && (self.is_soon)() && pool.device.get().is_some_and(has_request) {
            match pool.delayed.keep(send) {
                // The sentinel sends it if that request is gone.
                Ok(()) if pool.lock().has_sentinel => self.delays = true,
                Ok(()) => pool.delayed.send(),
                Err(send) => send(),
            }
        } else {
            send();
        }
    }
}

impl<S: Fn() -> bool> Drop for ServedRequest<'_, S> {
    fn drop(&mut self) {
        if self.delays {
            // Somebody else may take the request that is there, and then this one sleeps.
            leave();
            self.pool.waiting.fetch_add(1, Ordering::SeqCst);
            return;
        }
        self.pool.delayed.send();
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
    use std::sync::Arc;
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
        let nobody_asks = false;
        assert!(StandbyWait::default().is_over(false, false, nobody_asks));
        assert!(StandbyWait::default().is_over(true, true, nobody_asks));
        assert!(!StandbyWait::default().is_over(true, false, true));
        let enough = |cores| ReaderPool::new(8, cores).enough;
        assert_eq!([1, 2, 3, 4, 64].map(enough), [1, 1, 1, 2, 32]);
    }

    #[test]
    fn the_sentinel_sees_soon_that_a_request_finds_nobody() {
        let sentinel = || StandbyWait { is_sentinel: true, ..StandbyWait::default() };
        assert!(sentinel().is_over(false, false, true));
        assert!(sentinel().is_over(true, false, true));
        // There is nothing to serve.
        assert!(!sentinel().is_over(false, true, false));
        let mut standby = sentinel();
        let ticks = (1..).find(|_| standby.is_over(false, false, false));
        assert_eq!(ticks.map(|ticks| ticks * SENTINEL_TICK), Some(SENTINEL_PATIENCE));
    }

    /// With a request that is there and stays.
    fn with_request(workers: usize) -> (ReaderPool, OwnedFd) {
        let pool = ReaderPool::new(workers, 2);
        let (device, kernel) = rustix::pipe::pipe().unwrap();
        pool.look_at(device);
        assert!(!pool.finds_nobody());
        rustix::io::write(&kernel, b"?").unwrap();
        assert!(pool.finds_nobody());
        (pool, kernel)
    }

    /// Puts a worker into standby, and has it come back, while `body` runs.
    fn beside_one_in_standby(pool: &ReaderPool, body: impl FnOnce()) {
        struct Over<'o>(&'o AtomicBool);
        impl Drop for Over<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::SeqCst);
            }
        }
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::SeqCst) {
                    drop(pool.begin(0, ExpectedRequest::More, || true));
                }
            });
            let _over = Over(&is_over);
            body();
        });
    }

    /// Until an answer of a turn has not left at once. It is given the turn, and whether the answer has left by then.
    fn delay_answer(pool: &ReaderPool, then: impl Fn(&AtomicBool)) {
        for _ in 0..10_000 {
            while standing_by(pool) == 0 {
                std::thread::yield_now();
            }
            let sent = Arc::new(AtomicBool::new(false));
            let mut turn = pool.begin(7, ExpectedRequest::Unknown, || true);
            let is_sent = Arc::clone(&sent);
            turn.answer(move || is_sent.store(true, Ordering::SeqCst));
            let is_held = turn.delays;
            drop(turn);
            then(&sent);
            assert!(sent.load(Ordering::SeqCst));
            if is_held {
                return;
            }
        }
        panic!("no answer was ever held");
    }

    #[test]
    fn an_answer_is_sent_when_the_request_that_was_there_has_been_served() {
        let (pool, _kernel) = with_request(2);
        beside_one_in_standby(&pool, || {
            delay_answer(&pool, |_| drop(pool.begin(8, ExpectedRequest::More, || true)));
        });
        assert_eq!((waiting(&pool), standing_by(&pool)), (2, 0));
    }

    #[test]
    fn an_answer_is_sent_before_a_request_that_takes_long() {
        let (pool, _kernel) = with_request(2);
        beside_one_in_standby(&pool, || {
            delay_answer(&pool, |sent| {
                let _turn = pool.begin(8, ExpectedRequest::More, || false);
                assert!(sent.load(Ordering::SeqCst));
            });
        });
    }

    #[test]
    fn the_sentinel_sends_an_answer_when_the_request_that_was_there_is_gone() {
        let (pool, _kernel) = with_request(2);
        beside_one_in_standby(&pool, || {
            delay_answer(&pool, |sent| {
                let end = Instant::now() + Duration::from_secs(30);
                while !sent.load(Ordering::SeqCst) && Instant::now() < end {
                    std::thread::yield_now();
                }
            });
        });
    }

    #[test]
    fn a_sentinel_that_is_called_while_it_polls_has_heard() {
        let (pool, _kernel) = with_request(2);
        beside_one_in_standby(&pool, || {
            for late in 0..500 {
                while standing_by(&pool) == 0 {
                    std::thread::yield_now();
                }
                let began = Instant::now();
                let turn = pool.begin(7, ExpectedRequest::More, || false);
                // About when the sentinel looks, which comes to its tick a little late.
                let tick = SENTINEL_TICK + Duration::from_micros(late % 250);
                while standing_by(&pool) > 0 && began.elapsed() < tick {
                    std::hint::spin_loop();
                }
                pool.call();
                // No worker is woken that is not in standby, at any time.
                while began.elapsed() < tick + 2 * BEGUN_AFTER {
                    let period = pool.lock();
                    assert!(period.called <= period.standing_by);
                }
                drop(turn);
            }
        });
        assert_eq!((waiting(&pool), standing_by(&pool)), (2, 0));
    }

    #[test]
    fn an_answer_is_sent_at_once_where_there_is_no_sentinel() {
        let (pool, _kernel) = with_request(1);
        let sent = Arc::new(AtomicBool::new(false));
        let mut turn = pool.begin(7, ExpectedRequest::Unknown, || true);
        let is_sent = Arc::clone(&sent);
        turn.answer(move || is_sent.store(true, Ordering::SeqCst));
        assert!(sent.load(Ordering::SeqCst));
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
