//! Requests in flight, and the role of the reader of the connection.
//!
//! At most one thread at a time has the *role* of the reader. A thread that waits for a reply takes
//! the role if it is free; otherwise it sleeps until its reply has been filed, or the role is
//! handed to it. A reader that has got its own reply hands the role to a sleeping thread before it
//! goes, so that while any thread waits, one reads. All of it changes under one lock, and a
//! sleeper's word is set under that lock as well: no wake-up is lost between a look and a sleep.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use rustix::thread::futex;
use samite_cpu::timespec;
use samite_types::{Deadline, Error, ErrorKind, RequestId};
use samite_wire::frame::FrameKind;
use samite_wire::limits::IN_FLIGHT_MAX;

/// A driver thread without work goes after this time.
const DRIVER_IDLE: Duration = Duration::from_secs(1);
const INDEX_BITS: u32 = IN_FLIGHT_MAX.ilog2();

/// A reply that another thread has read.
#[derive(Debug)]
pub(super) struct FiledReply {
    pub(super) kind: FrameKind,
    pub(super) body_len: usize,
    /// Body and payload.
    pub(super) bytes: Vec<u8>,
}

#[derive(Debug)]
enum RequestPhase {
    Free,
    /// No reply yet.
    Pending,
    /// No reply yet, and a thread sleeps on it.
    Waiting,
    /// The role of the reader was handed to the thread that sleeps on it.
    Promoted,
    Arrived(FiledReply),
    /// Nobody wants the reply any more; the slot is free when it has come.
    GivenUp,
}

#[derive(Debug)]
struct RequestSlot {
    id: u64,
    phase: RequestPhase,
    waker: Option<Waker>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FutureDriver {
    Absent,
    /// Nothing to do.
    Idle,
    /// Sleeps until the role is free.
    Asking,
    Promoted,
    Reading,
}

#[derive(Debug)]
struct TableState {
    slots: Vec<RequestSlot>,
    free: Vec<u32>,
    serial: u64,
    reading: bool,
    waiting: Vec<u32>,
    /// Slots that a future watches.
    watched: usize,
    driver: FutureDriver,
    dead: Option<Error>,
}

/// The next step of a waiting thread.
#[derive(Debug)]
pub(super) enum WaitTurn {
    /// Its reply.
    Filed(FiledReply),
    /// Read the connection; the role is its own.
    Read,
    /// The deadline has passed; the reply may still come.
    TimedOut,
    Dead(Error),
}

/// How a reader treats a frame that is not its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyClaim {
    File,
    /// The owner has been woken and reads it; the role has gone with it.
    HandedOver,
    Discard,
    /// It has been answered already: the request or the reply came twice.
    Again,
    /// Nobody asked for it.
    Unknown,
}

/// Requests in flight.
#[derive(Debug)]
pub(super) struct RequestTable {
    state: Mutex<TableState>,
    /// Words on which sleeping threads wait: one per slot.
    signals: Box<[AtomicU32]>,
    driver_signal: AtomicU32,
}

fn sleep(signal: &AtomicU32, timeout: Duration) {
    let _ = futex::wait(signal, futex::Flags::PRIVATE, 0, Some(&timespec(timeout)));
}

fn wake(signal: &AtomicU32) {
    signal.store(1, Ordering::Release);
    let _ = futex::wake(signal, futex::Flags::PRIVATE, 1);
}

const fn index(id: u64) -> usize {
    (id & (IN_FLIGHT_MAX as u64 - 1)) as usize
}

impl TableState {
    fn slot(&mut self, id: u64) -> Option<&mut RequestSlot> {
        self.slots
            .get_mut(index(id))
            .filter(|slot| slot.id == id && !matches!(slot.phase, RequestPhase::Free))
    }

    fn release_slot(&mut self, id: u64) -> RequestPhase {
        let slot = &mut self.slots[index(id)];
        let phase = std::mem::replace(&mut slot.phase, RequestPhase::Free);
        if slot.waker.take().is_some() {
            self.watched -= 1;
        }
        self.free.push(index(id) as u32);
        phase
    }

    /// The next step of the owner of a slot; `None`: sleep.
    fn wait_turn(&mut self, id: u64) -> Option<WaitTurn> {
        let dead = self.dead.clone();
        let reading = self.reading;
        let Some(slot) = self.slot(id) else {
            let error = dead.unwrap_or_else(|| ErrorKind::Internal.into());
            return Some(WaitTurn::Dead(error));
        };
        if matches!(slot.phase, RequestPhase::Arrived(_)) {
            let RequestPhase::Arrived(filed) = self.release_slot(id) else { return None };
            return Some(WaitTurn::Filed(filed));
        }
        if let Some(error) = dead {
            self.stop_waiting(id);
            self.release_slot(id);
            return Some(WaitTurn::Dead(error));
        }
        if matches!(slot.phase, RequestPhase::Promoted) || !reading {
            slot.phase = RequestPhase::Pending;
            self.stop_waiting(id);
            self.reading = true;
            return Some(WaitTurn::Read);
        }
        None
    }

    fn stop_waiting(&mut self, id: u64) {
        self.waiting.retain(|waiting| *waiting as usize != index(id));
    }
}

impl RequestTable {
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::new(TableState {
                slots: Vec::new(),
                free: Vec::new(),
                serial: 0,
                reading: false,
                waiting: Vec::new(),
                watched: 0,
                driver: FutureDriver::Absent,
                dead: None,
            }),
            signals: (0..IN_FLIGHT_MAX).map(|_| AtomicU32::new(0)).collect(),
            driver_signal: AtomicU32::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, TableState> {
        // Nothing in this file panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A slot for a request to send. `Ok(None)`: too many are in flight.
    pub(super) fn open(&self) -> Result<Option<RequestId>, Error> {
        let mut state = self.lock();
        if let Some(error) = &state.dead {
            return Err(error.clone());
        }
        let index = match state.free.pop() {
            Some(index) => index,
            None if state.slots.len() < IN_FLIGHT_MAX => {
                state.slots.push(RequestSlot { id: 0, phase: RequestPhase::Free, waker: None });
                state.slots.len() as u32 - 1
            }
            None => return Ok(None),
        };
        state.serial += 1;
        let id = state.serial << INDEX_BITS | u64::from(index);
        let slot = &mut state.slots[index as usize];
        (slot.id, slot.phase) = (id, RequestPhase::Pending);
        Ok(Some(RequestId(id)))
    }

    /// Nobody will wait for this reply. `is_sent`: it may still come.
    pub(super) fn give_up(&self, id: RequestId, is_sent: bool) {
        let mut state = self.lock();
        let is_dead = state.dead.is_some();
        let Some(slot) = state.slot(id.get()) else { return };
        if matches!(slot.phase, RequestPhase::Arrived(_)) || !is_sent || is_dead {
            state.release_slot(id.get());
        } else {
            slot.phase = RequestPhase::GivenUp;
            if slot.waker.take().is_some() {
                state.watched -= 1;
            }
        }
    }

    /// Waits for a turn: the reply, or the role.
    pub(super) fn turn(&self, id: RequestId, deadline: Deadline) -> WaitTurn {
        let signal = &self.signals[index(id.get())];
        let mut has_slept = false;
        loop {
            let mut state = self.lock();
            if let Some(turn) = state.wait_turn(id.get()) {
                return turn;
            }
            // A thread that has just come sleeps, or looks at a deadline that has passed, in the next round.
            let left = deadline.remaining();
            if has_slept && left.is_none() {
                state.stop_waiting(id.get());
                if let Some(slot) = state.slot(id.get()) {
                    slot.phase = RequestPhase::Pending;
                }
                return WaitTurn::TimedOut;
            }
            if let Some(slot) = state.slot(id.get())
                && !matches!(slot.phase, RequestPhase::Waiting)
            {
                slot.phase = RequestPhase::Waiting;
                state.waiting.push(index(id.get()) as u32);
            }
            signal.store(0, Ordering::Relaxed);
            drop(state);
            sleep(signal, left.unwrap_or(Duration::ZERO));
            has_slept = true;
        }
    }

    /// Takes the role if it is free, for a thread that waits for no reply of its own.
    pub(super) fn try_read(&self) -> bool {
        let mut state = self.lock();
        let free = !state.reading && state.dead.is_none();
        state.reading |= free;
        free
    }

    /// Some thread has the role.
    pub(super) fn is_being_read(&self) -> bool {
        self.lock().reading
    }

    /// Gives the role to a thread that waits for it, or leaves it free. `done`: the reader's own reply has come, and its
    /// slot is free now.
    pub(super) fn release(&self, done: Option<RequestId>) {
        let mut state = self.lock();
        if let Some(id) = done
            && state.slot(id.get()).is_some()
        {
            state.release_slot(id.get());
        }
        state.reading = false;
        if state.driver == FutureDriver::Reading {
            state.driver = FutureDriver::Idle;
        }
        if let Some(index) = state.waiting.pop() {
            state.slots[index as usize].phase = RequestPhase::Promoted;
            state.reading = true;
            drop(state);
            wake(&self.signals[index as usize]);
        } else if state.driver == FutureDriver::Asking {
            state.driver = FutureDriver::Promoted;
            state.reading = true;
            drop(state);
            wake(&self.driver_signal);
        }
    }

    /// How to treat a frame that is not the reader's own. `is_long`: it is worth waking its owner
    /// to receive it.
    pub(super) fn claim_reply(&self, id: RequestId, is_long: bool) -> ReplyClaim {
        let mut state = self.lock();
        let was_asked = (1..=state.serial).contains(&(id.get() >> INDEX_BITS));
        let Some(slot) = state.slot(id.get()) else {
            return if was_asked { ReplyClaim::Again } else { ReplyClaim::Unknown };
        };
        match slot.phase {
            RequestPhase::GivenUp => ReplyClaim::Discard,
            RequestPhase::Waiting if is_long => {
                slot.phase = RequestPhase::Promoted;
                state.stop_waiting(id.get());
                if state.driver == FutureDriver::Reading {
                    state.driver = FutureDriver::Idle;
                }
                drop(state);
                wake(&self.signals[index(id.get())]);
                ReplyClaim::HandedOver
            }
            RequestPhase::Pending | RequestPhase::Waiting => ReplyClaim::File,
            RequestPhase::Free | RequestPhase::Promoted | RequestPhase::Arrived(_) => {
                ReplyClaim::Again
            }
        }
    }

    /// Files a reply and wakes the thread that waits for it.
    pub(super) fn file(&self, id: RequestId, filed: FiledReply) {
        let mut state = self.lock();
        let Some(slot) = state.slot(id.get()) else { return };
        match slot.phase {
            RequestPhase::GivenUp => {
                state.release_slot(id.get());
            }
            RequestPhase::Waiting => {
                slot.phase = RequestPhase::Arrived(filed);
                state.stop_waiting(id.get());
                drop(state);
                wake(&self.signals[index(id.get())]);
            }
            _ => {
                slot.phase = RequestPhase::Arrived(filed);
                if let Some(waker) = slot.waker.take() {
                    state.watched -= 1;
                    drop(state);
                    waker.wake();
                }
            }
        }
    }

    /// A reply has been thrown away: nobody wanted it.
    pub(super) fn discarded(&self, id: RequestId) {
        let mut state = self.lock();
        if state.slot(id.get()).is_some() {
            state.release_slot(id.get());
        }
    }

    /// Ends everything: each waiting thread is woken and gets `error`. The first error stays.
    pub(super) fn kill(&self, error: Error) {
        let mut state = self.lock();
        state.dead.get_or_insert(error);
        let waiting = std::mem::take(&mut state.waiting);
        let wakers: Vec<Waker> =
            state.slots.iter_mut().filter_map(|slot| slot.waker.take()).collect();
        state.watched = 0;
        drop(state);
        for index in waiting {
            wake(&self.signals[index as usize]);
        }
        for waker in wakers {
            waker.wake();
        }
        wake(&self.driver_signal);
    }

    pub(super) fn is_dead(&self) -> bool {
        self.lock().dead.is_some()
    }

    pub(super) fn death(&self) -> Option<Error> {
        self.lock().dead.clone()
    }

    /// Whether a reply is there to be taken. If not, `waker` is told when it is. The second value: a driver thread is to be started.
    pub(super) fn watch(&self, id: RequestId, waker: &Waker) -> (bool, bool) {
        let mut state = self.lock();
        if state.dead.is_some() {
            return (true, false);
        }
        let Some(slot) = state.slot(id.get()) else { return (true, false) };
        if matches!(slot.phase, RequestPhase::Arrived(_)) {
            return (true, false);
        }
        if slot.waker.replace(waker.clone()).is_none() {
            state.watched += 1;
        }
        match state.driver {
            FutureDriver::Absent => {
                state.driver = FutureDriver::Idle;
                (false, true)
            }
            FutureDriver::Idle => {
                drop(state);
                wake(&self.driver_signal);
                (false, false)
            }
            _ => (false, false),
        }
    }

    /// The driver thread could not be started.
    pub(super) fn no_driver(&self) {
        self.lock().driver = FutureDriver::Absent;
    }

    /// Futures wait for replies.
    pub(super) fn is_watched(&self) -> bool {
        self.lock().watched > 0
    }

    /// Waits until the driver thread has the role. `false`: it has nothing to do any more and ends.
    pub(super) fn driver_turn(&self) -> bool {
        let mut slept = false;
        loop {
            {
                let mut state = self.lock();
                if state.dead.is_some() {
                    state.driver = FutureDriver::Absent;
                    return false;
                }
                if state.driver == FutureDriver::Promoted || (state.watched > 0 && !state.reading) {
                    state.driver = FutureDriver::Reading;
                    state.reading = true;
                    return true;
                }
                if state.watched == 0 && slept && self.driver_signal.load(Ordering::Relaxed) == 0 {
                    state.driver = FutureDriver::Absent;
                    return false;
                }
                state.driver =
                    if state.watched > 0 { FutureDriver::Asking } else { FutureDriver::Idle };
                self.driver_signal.store(0, Ordering::Relaxed);
            }
            sleep(&self.driver_signal, DRIVER_IDLE);
            slept = true;
        }
    }
}
