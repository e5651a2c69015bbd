//! Requests that were sent without waiting, with all it takes to send them again.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use samite_transport::client::{LinkReply, OutgoingRequest};
use samite_types::{Deadline, Epoch, Error, ErrorKind, Result, Seq};
use samite_wire::frame::FrameKind;
use samite_wire::limits::{BODY_LEN_MAX, OPERATIONS_MAX, PAYLOAD_LEN_MAX};
use samite_wire::op::{Operation, OperationRequest, RequestEncoder, RequestHeader};

use crate::changes::{Mask, mask_of_change};
use crate::exec::{CollectReceiver, OperationRun, ResendReason, SentRequest, is_absence, judge};
use crate::frame::INLINE_LEN_MAX;
use crate::members::MemberTarget;
use crate::reply::read;
use crate::retry::RetryTiming;
use crate::session::{ClientSession, MapView};
use crate::stats::count;
use crate::thread_pool::ThreadPool;
use crate::timer::TimerEntry;
use crate::{ClientOperation, Dataset, OwnedOutcome};

/// Requests under way.
pub(crate) struct RequestsInFlight {
    dataset: Dataset,
    /// Address of the session that sent them: a forked child has another one.
    session: usize,
    deadline: Deadline,
    /// Until when answers are only waited for.
    patience: Deadline,
    /// See [`ClientOperation::name_space_generation`].
    name_space_generation: Epoch,
    /// All operations as one request, with their data: an operation that is sent again is decoded
    /// from here.
    body: Vec<u8>,
    payload: Vec<u8>,
    name: &'static str,
    /// Numbers in use: the first, and how many.
    numbers: (Seq, u64),
    /// See [`Changes`](crate::changes::ChangeCounters).
    changing: Mask,
    under_way: Vec<SentRequest>,
    outcomes: Vec<Option<OwnedOutcome>>,
    again: Option<ResendReason>,
    target: MemberTarget,
    /// See [`OperationRun::behind`].
    behind: Vec<u32>,
}

impl RequestsInFlight {
    /// Sends operations, one request per node.
    pub(crate) fn send(
        dataset: &Dataset,
        operations: &[Operation<'_>],
        name_space_generation: Epoch,
        deadline: Deadline,
    ) -> Result<Self> {
        if operations.len() > OPERATIONS_MAX {
            let cause =
                format!("{} operations; at most {OPERATIONS_MAX} go together", operations.len());
            return Err(Error::new(ErrorKind::TooLarge, cause));
        }
        operations.iter().try_for_each(crate::op::check)?;
        let client = dataset.client();
        let view = client.view(deadline)?;
        let session = client.session();
        let mutations = operations.iter().filter(|operation| operation.is_mutation()).count();
        let numbers = session.seqs.try_take(mutations as u64).ok_or_else(|| {
            let cause = "too many operations wait for their answers; let some finish first";
            Error::new(ErrorKind::Busy, cause)
        })?;
        let target = MemberTarget::of(dataset, operations.iter());
        let changes = operations.iter().filter(|operation| operation.is_mutation());
        let mask = changes.fold(0, |mask, operation| mask | mask_of_change(operation));
        let changing = session.changes.begin(mask).end_change();
        let header = RequestHeader {
            dataset: dataset.id(),
            map_epoch: view.map.epoch(),
            name_space_generation,
            answered_below: session.seqs.answered_below(),
            is_retry: false,
        };
        let (body, payload) = encode(operations, &header, numbers.first());
        let mut flight = Self {
            dataset: dataset.clone(),
            session: address_of(session),
            deadline,
            patience: patience_of(dataset, deadline),
            name_space_generation,
            body,
            payload,
            name: operations.first().map_or("nothing", crate::op::name),
            numbers: numbers.leak(),
            changing,
            under_way: Vec::new(),
            outcomes: vec![None; operations.len()],
            again: None,
            target,
            behind: Vec::new(),
        };
        flight.depart(&view, operations)?;
        Ok(flight)
    }

    fn depart(&mut self, view: &MapView, operations: &[Operation<'_>]) -> Result<()> {
        let Some(first) = operations.first() else { return Ok(()) };
        let redundancy = self.dataset.redundancy();
        let peer = self.target.index(view, redundancy, first.partition)?;
        let mut same_node = |operation: &Operation<'_>| {
            let other = self.target.index(view, redundancy, operation.partition);
            other.is_ok_and(|other| other == peer)
        };
        let is_small = self.payload.len() <= INLINE_LEN_MAX && self.body.len() < BODY_LEN_MAX;
        if !is_small || !operations.iter().all(&mut same_node) {
            return self.with_run(|run, under_way| run.send(view, under_way));
        }
        // All fit one frame, and it is encoded already.
        let peer = view.peer_at(peer);
        let client = self.dataset.client();
        let link = match peer.link(&client.credentials(), self.leaves_by()) {
            Ok(link) => link,
            Err(error) if self.dataset.is_mirrored() && is_absence(&error) => {
                self.again = Some(ResendReason::Unreachable(peer.node, error));
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        self.check_session()?;
        let counters = client.counters();
        count(&counters.requests, 1);
        count(&counters.operations, operations.len() as u64);
        count(&counters.sent_bytes, self.payload.len() as u64);
        let payload: &[&[u8]] = if self.payload.is_empty() { &[] } else { &[&self.payload] };
        // A single operation may wait a little for others, to leave together with them.
        let sent = if operations.len() == 1 {
            let request = OutgoingRequest { kind: FrameKind::Request, body: &self.body, payload };
            client.session().has_left.store(true, Ordering::Relaxed);
            link.enqueue(request, self.leaves_by())
        } else {
            link.submit(FrameKind::Request, &self.body, payload, self.leaves_by())
        };
        match sent {
            Ok(ticket) => {
                let ops = (0..operations.len() as u32).collect();
                self.under_way.push(SentRequest::new(peer, link, ticket, ops));
                Ok(())
            }
            Err(error) => {
                self.again = judge(&self.dataset, peer.node, self.name, Err(error))?;
                Ok(())
            }
        }
    }

    /// Gives the operations to a [`OperationRun`] that goes on from here.
    fn with_run(
        &mut self,
        step: impl FnOnce(&mut OperationRun<'_, '_>, &mut Vec<SentRequest>) -> Result<()>,
    ) -> Result<()> {
        self.check_session()?;
        let request = OperationRequest::decode(&self.body, &self.payload)?;
        let under_lease =
            |operation| ClientOperation::new(operation).under_lease(self.name_space_generation);
        let mut ops: Vec<ClientOperation<'_>> =
            request.operations.into_iter().map(under_lease).collect();
        let mut run = OperationRun::new(&self.dataset, &mut ops, self.deadline);
        run.outcomes = std::mem::take(&mut self.outcomes);
        run.again = self.again.take();
        run.behind = std::mem::take(&mut self.behind);
        run.target = self.target;
        run.is_retry = run.again.is_some();
        let result = step(&mut run, &mut self.under_way);
        self.target = run.target;
        self.outcomes = run.outcomes;
        self.again = run.again;
        self.behind = run.behind;
        result
    }

    /// By when requests must have left.
    fn leaves_by(&self) -> Deadline {
        if self.dataset.is_mirrored() { self.patience } else { self.deadline }
    }

    fn check_session(&self) -> Result<()> {
        if address_of(self.dataset.client().session()) == self.session {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Unavailable, "the operation was sent before the fork"))
    }

    /// The threads that finish work that would block.
    pub(crate) fn thread_pool(&self) -> ThreadPool {
        self.dataset.client().session().thread_pool.clone()
    }

    /// Has everything leave that was sent, and waits for others to leave together with.
    pub(crate) fn flush(&self) {
        for sent in &self.under_way {
            // Who waits for a reply of that link is told its error.
            let _ = sent.link.flush();
        }
    }

    /// Sends the requests that were left to be sent later to other nodes than this flight's, whose
    /// links see to theirs when they are read.
    fn send_left(&self) {
        let session = self.dataset.client().session();
        if !session.has_left.load(Ordering::Relaxed)
            || !session.has_left.swap(false, Ordering::Relaxed)
        {
            return;
        }
        let Some(view) = session.view() else { return };
        for peer in view.peers() {
            if self.under_way.iter().all(|sent| sent.peer.node != peer.node)
                && let Some(link) = peer.live_link()
            {
                // A thread that waits for a reply of that link is told its error.
                let _ = link.flush();
            }
        }
    }

    /// Whether every reply is there, or it is time to see to the missing ones.
    pub(crate) fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        if self.check_session().is_ok() {
            self.send_left();
        }
        if self.patience.remaining().is_none() {
            return Poll::Ready(());
        }
        // All are polled, so that each wakes the task.
        let pending = self
            .under_way
            .iter()
            .filter(|sent| sent.link.poll(&sent.ticket, context).is_pending())
            .count();
        if pending == 0 { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Has `waker` woken when that time has come.
    pub(crate) fn set_timer(&self, waker: &Waker) -> Option<TimerEntry> {
        self.check_session().ok()?;
        Some(self.dataset.client().session().timer.set(self.patience, waker))
    }

    /// Takes the replies in that are there in time; whether every operation has its outcome.
    pub(crate) fn land(&mut self) -> Result<bool> {
        self.check_session()?;
        self.send_left();
        for sent in std::mem::take(&mut self.under_way) {
            let SentRequest { peer, link, mut ticket, ops, .. } = sent;
            let mut collected = CollectReceiver {
                node: peer.node,
                indices: &ops,
                outcomes: &mut self.outcomes,
                behind: &mut self.behind,
                again: None,
            };
            let reading = if self.dataset.is_mirrored() {
                Deadline::after(RetryTiming::default().resend).min(self.deadline)
            } else {
                self.deadline
            };
            let receive = |reply: &mut LinkReply<'_>| read(reply, &link, &mut collected);
            let summary = match link.wait_until(&mut ticket, self.patience, reading, receive) {
                Ok(None) => {
                    let sent = SentRequest::new(&peer, Arc::clone(&link), ticket, ops);
                    self.under_way.push(sent);
                    continue;
                }
                summary => summary,
            };
            let left_over = collected.again;
            let is_broken = summary.is_err();
            let again = judge(&self.dataset, peer.node, self.name, summary)?.or(left_over);
            self.again = again.or(self.again.take());
            if is_broken {
                ops.iter().for_each(|index| self.outcomes[*index as usize] = None);
            }
        }
        Ok(self.again.is_none() && self.under_way.is_empty())
    }

    /// The same, to be over by another time.
    pub(crate) fn by(mut self, deadline: Deadline) -> Self {
        self.deadline = deadline;
        self.patience = patience_of(&self.dataset, deadline);
        self
    }

    /// Waits for everything, sending operations again that need it.
    pub(crate) fn wait(mut self) -> Result<Vec<OwnedOutcome>> {
        if !self.land()? {
            let left_at = self.patience.at().saturating_sub(silence(&self.dataset));
            self.with_run(|run, under_way| {
                run.is_retry = true;
                run.retry.sent(left_at);
                for sent in std::mem::take(under_way) {
                    run.settle(sent)?;
                }
                run.rounds()
            })?;
        }
        Ok(self.into_outcomes())
    }

    /// The outcomes, once all are there.
    pub(crate) fn into_outcomes(mut self) -> Vec<OwnedOutcome> {
        if self.check_session().is_ok() {
            self.dataset.client().session().changes.end(self.changing);
        }
        std::mem::take(&mut self.outcomes).into_iter().flatten().collect()
    }
}

impl Drop for RequestsInFlight {
    fn drop(&mut self) {
        if self.check_session().is_ok() {
            self.dataset.client().session().seqs.give_back(self.numbers.0, self.numbers.1);
        } else {
            // In a forked child: their links' locks may have been held by threads of the parent.
            std::mem::forget(std::mem::take(&mut self.under_way));
        }
    }
}

/// Until when to wait for answers before asking again, or whether another node gives them.
fn patience_of(dataset: &Dataset, deadline: Deadline) -> Deadline {
    Deadline::after(silence(dataset)).min(deadline)
}

fn silence(dataset: &Dataset) -> Duration {
    let RetryTiming { patience, resend_max, .. } = RetryTiming::default();
    if dataset.is_mirrored() { patience } else { resend_max }
}

fn address_of(session: &ClientSession) -> usize {
    std::ptr::from_ref(session) as usize
}

/// All operations as one request, numbered from `first` on, and their data.
fn encode(operations: &[Operation<'_>], header: &RequestHeader, first: Seq) -> (Vec<u8>, Vec<u8>) {
    let mut encoder = RequestEncoder::new(Vec::new(), header);
    let mut next = first.get();
    for operation in operations {
        let seq = if operation.is_mutation() { next } else { 0 };
        next += u64::from(operation.is_mutation());
        encoder.operation_placed(operation, Seq(seq), &mut |_| None);
    }
    let (body, pieces) = encoder.finish();
    (body, pieces.concat())
}

const _: () = assert!(INLINE_LEN_MAX <= PAYLOAD_LEN_MAX);
