//! Operations under way, for callers that have other things to do meanwhile.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use samite_types::{Deadline, Epoch, Error, ErrorKind, Result};
use samite_wire::op::Operation;

use crate::flight::RequestsInFlight;
use crate::thread_pool::ThreadPool;
use crate::timer::TimerEntry;
use crate::{Dataset, OwnedOutcome};

/// Operations that were sent. A future of their outcomes, which a plain thread can also
/// [`wait`](Self::wait) for.
///
/// Polling starts threads of the client's own, once: one that reads connections, one that watches
/// deadlines. Rare work that would block (connecting anew, a value that lies in chunks) runs on a
/// thread of its own then.
///
/// Dropping it gives up the answer; the operations may have taken effect.
#[must_use = "whether the operations took effect is known only when this has been waited for"]
pub struct PendingOperations<T = Vec<OwnedOutcome>> {
    stage: PendingStage<T>,
    timer: Option<TimerEntry>,
}

enum PendingStage<T> {
    /// Requests are at the nodes.
    Flight(Box<RequestsInFlight>, Finish<T>),
    /// A thread does the rest.
    Work(Arc<ResultSlot<T>>),
    /// Answered.
    Over,
}

/// Name-space generation of operations that rely on nothing cached.
const ANY_NAME_SPACE: Epoch = Epoch(u64::MAX);

/// Makes a result of the outcomes.
pub(crate) type Finish<T> = Box<dyn FnOnce(Vec<OwnedOutcome>) -> FinishStep<T> + Send>;

/// What the caller of [`Dataset::submit_then`] makes of the outcomes of its operations.
pub enum FinishStep<T> {
    /// The result.
    Ready(Result<T>),
    /// More has to be asked for, in calls that block: whoever waits makes them, or, for a future, a
    /// thread of the client.
    Follow(Box<dyn FnOnce() -> Result<T> + Send>),
}

impl<T> FinishStep<T> {
    fn finish(self) -> Result<T> {
        match self {
            Self::Ready(result) => result,
            Self::Follow(rest) => rest(),
        }
    }
}

/// Where a working thread leaves its result.
struct ResultSlot<T> {
    state: Mutex<SlotState<T>>,
}

struct SlotState<T> {
    result: Option<Result<T>>,
    waker: Option<Waker>,
}

impl<T> ResultSlot<T> {
    fn lock(&self) -> MutexGuard<'_, SlotState<T>> {
        // Nothing inside panics half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PendingOperations {
    pub(crate) fn send(
        dataset: &Dataset,
        operations: &[Operation<'_>],
        deadline: Deadline,
    ) -> Result<Self> {
        Self::send_then(dataset, operations, deadline, |outcomes| FinishStep::Ready(Ok(outcomes)))
    }

    /// Sends operations that stand on name-space generation `name_space_generation`.
    pub(crate) fn send_under(
        dataset: &Dataset,
        operations: &[Operation<'_>],
        name_space_generation: Epoch,
        deadline: Deadline,
    ) -> Result<Self> {
        let flight = RequestsInFlight::send(dataset, operations, name_space_generation, deadline)?;
        let finish = Box::new(|outcomes| FinishStep::Ready(Ok(outcomes)));
        Ok(Self { stage: PendingStage::Flight(Box::new(flight), finish), timer: None })
    }
}

impl<T> PendingOperations<T> {
    /// Sends operations; `finish` makes a result of their outcomes.
    pub(crate) fn send_then(
        dataset: &Dataset,
        operations: &[Operation<'_>],
        deadline: Deadline,
        finish: impl FnOnce(Vec<OwnedOutcome>) -> FinishStep<T> + Send + 'static,
    ) -> Result<Self> {
        let flight = RequestsInFlight::send(dataset, operations, ANY_NAME_SPACE, deadline)?;
        Ok(Self { stage: PendingStage::Flight(Box::new(flight), Box::new(finish)), timer: None })
    }

    /// Has requests leave now that wait for others to leave together with.
    pub(crate) fn flush(&self) {
        if let PendingStage::Flight(flight, _) = &self.stage {
            flight.flush();
        }
    }

    /// Waits for the result in this thread.
    ///
    /// # Errors
    /// As [`Dataset::execute`].
    pub fn wait(self) -> Result<T> {
        self.wait_until(None)
    }

    /// The same, by `deadline` in place of the one at the time of sending: for callers that let
    /// answers lie.
    ///
    /// # Errors
    /// As [`Dataset::execute`].
    pub fn wait_by(self, deadline: Deadline) -> Result<T> {
        self.wait_until(Some(deadline))
    }

    fn wait_until(mut self, deadline: Option<Deadline>) -> Result<T> {
        match std::mem::replace(&mut self.stage, PendingStage::Over) {
            PendingStage::Flight(flight, finish) => {
                let flight = match deadline {
                    Some(deadline) => flight.by(deadline),
                    None => *flight,
                };
                finish(flight.wait()?).finish()
            }
            // A task polled it before: the thread that works for it wakes the thread that parks
            // here.
            PendingStage::Work(slot) => wait_for(&slot),
            PendingStage::Over => Err(over()),
        }
    }
}

fn over() -> Error {
    Error::new(ErrorKind::Invalid, "a pending operation was polled after it had ended")
}

fn wait_for<T>(slot: &ResultSlot<T>) -> Result<T> {
    loop {
        let mut state = slot.lock();
        if let Some(result) = state.result.take() {
            return result;
        }
        state.waker = Some(Waker::from(Arc::new(UnparkWaker(std::thread::current()))));
        drop(state);
        std::thread::park();
    }
}

struct UnparkWaker(std::thread::Thread);

impl std::task::Wake for UnparkWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl<T: Send + 'static> PendingOperations<T> {
    /// Leaves the rest to a thread of `pool`.
    fn work(
        &mut self,
        pool: &ThreadPool,
        rest: impl FnOnce() -> Result<T> + Send + 'static,
        waker: &Waker,
    ) {
        let state = SlotState { result: None, waker: Some(waker.clone()) };
        let slot = Arc::new(ResultSlot { state: Mutex::new(state) });
        let filled = Arc::clone(&slot);
        let put = pool.put(Box::new(move || {
            let result = rest();
            let mut state = filled.lock();
            state.result = Some(result);
            let waker = state.waker.take();
            drop(state);
            if let Some(waker) = waker {
                waker.wake();
            }
        }));
        if let Err(error) = put {
            slot.lock().result = Some(Err(error));
            waker.wake_by_ref();
        }
        self.stage = PendingStage::Work(slot);
    }

    /// The requests have been answered, or their time is up.
    fn land(&mut self, waker: &Waker) {
        self.timer = None;
        let PendingStage::Flight(mut flight, finish) =
            std::mem::replace(&mut self.stage, PendingStage::Over)
        else {
            return;
        };
        let pool = flight.thread_pool();
        let step = match flight.land() {
            Err(error) => FinishStep::Ready(Err(error)),
            Ok(true) => finish(flight.into_outcomes()),
            Ok(false) => FinishStep::Follow(Box::new(move || finish(flight.wait()?).finish())),
        };
        match step {
            FinishStep::Follow(rest) => self.work(&pool, rest, waker),
            FinishStep::Ready(result) => {
                let state = SlotState { result: Some(result), waker: None };
                self.stage = PendingStage::Work(Arc::new(ResultSlot { state: Mutex::new(state) }));
            }
        }
    }
}

// Nothing in it is ever pinned in place.
impl<T> Unpin for PendingOperations<T> {}

impl<T: Send + 'static> Future for PendingOperations<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let PendingStage::Flight(flight, _) = &this.stage {
            if flight.poll(context).is_pending() {
                match &this.timer {
                    Some(timer) => timer.renew(context.waker()),
                    None => this.timer = flight.set_timer(context.waker()),
                }
                return Poll::Pending;
            }
            this.land(context.waker());
        }
        match &this.stage {
            PendingStage::Work(slot) => {
                let mut state = slot.lock();
                match state.result.take() {
                    None => {
                        state.waker = Some(context.waker().clone());
                        Poll::Pending
                    }
                    Some(result) => {
                        drop(state);
                        this.stage = PendingStage::Over;
                        Poll::Ready(result)
                    }
                }
            }
            PendingStage::Flight(..) | PendingStage::Over => Poll::Ready(Err(over())),
        }
    }
}
