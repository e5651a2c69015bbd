//! Carrying out operations: grouped by node, sent together, waited for, and repeated where that helps.
//!
//! A [`OperationRun`] goes in rounds. A round sends one request to each node that has operations
//! left (to all nodes first), then waits for the replies. The operations left after it go into the
//! next: those whose node knows a newer cluster map (which is fetched), whose connection broke
//! (which is made again), whose node was busy or silent, or whose value changed during the copy.
//! Mutations keep their sequence numbers through all rounds, so that a partition applies each once.
//! [`RetryState`] decides on the next step.

mod receivers;

use std::sync::Arc;
use std::time::Duration;

use samite_transport::client::{NodeLink, RequestTicket};
use samite_types::{Clock, Deadline, Epoch, Error, ErrorKind, NodeId, Result, Seq, SystemClock};

use samite_wire::access::DatasetAccess;

use crate::changes::{ChangeInProgress, mask_of_change};
use crate::members::MemberTarget;
use crate::op::FrameFootprint;
use crate::outcome::{OwnedFailure, OwnedOutcome};
use crate::peer::NodePeer;
use crate::reply::{OperationAnswer, ReplySummary};
use crate::retry::{RetryEvent, RetryState, RetryStep, RetryTiming};
use crate::seq::SeqRange;
use crate::session::{ClientSession, MapView};
use crate::stats::count;
use crate::wait::await_reply;
use crate::{ClientOperation, Dataset, frame, inconsistent_read, op};
pub(crate) use receivers::CollectReceiver;
use receivers::{ScatterReceiver, SingleReceiver};

/// Longest time for making one connection to a node whose place another may take.
const CONNECT_TIME: Duration = Duration::from_millis(500);

/// Rounds in which a value changed during the copy, after which it is asked for inside the frame.
const INCONSISTENT_MAX: u32 = 3;

/// Bytes of requests and expected replies that one call has under way before it waits for the first of them.
const UNDER_WAY_MAX: usize = 32 << 20;

/// Why operations are to be sent again.
#[derive(Debug)]
pub(crate) enum ResendReason {
    /// The node knows a newer cluster map.
    Stale(NodeId),
    /// The node could not take them all.
    Busy(NodeId),
    /// The connection broke.
    Broken(NodeId, Error),
    /// No connection could be made, or the request could not be sent.
    Unreachable(NodeId, Error),
    /// No answer came, and it is not worth waiting for one.
    Silent,
    /// A value changed during the copy.
    Inconsistent(NodeId),
}

/// Operations that are carried out together.
pub(crate) struct OperationRun<'r, 'a> {
    pub(crate) dataset: &'r Dataset,
    pub(crate) session: &'r ClientSession,
    pub(crate) ops: &'r mut [ClientOperation<'a>],
    pub(crate) outcomes: Vec<Option<OwnedOutcome>>,
    pub(crate) deadline: Deadline,
    /// Some of the operations were sent before.
    pub(crate) is_retry: bool,
    /// Why operations were left after the last round.
    pub(crate) again: Option<ResendReason>,
    /// Operations whose node had no room for them. Mutations among them came so late that their numbers are of no use any more.
    pub(crate) behind: Vec<u32>,
    /// Numbers taken in place of those.
    renumbered: Vec<SeqRange<'r>>,
    pub(crate) retry: RetryState,
    pub(crate) target: MemberTarget,
    /// Epoch of the map by which operations were sent last.
    epoch: Epoch,
    inconsistent: u32,
}

/// A request under way, and which operations it carries.
pub(crate) struct SentRequest {
    pub(crate) peer: Arc<NodePeer>,
    pub(crate) link: Arc<NodeLink>,
    pub(crate) ticket: RequestTicket,
    pub(crate) ops: Vec<u32>,
    /// Bytes of it and of its reply, as far as known.
    len: usize,
}

impl SentRequest {
    pub(crate) fn new(
        peer: &Arc<NodePeer>,
        link: Arc<NodeLink>,
        ticket: RequestTicket,
        ops: Vec<u32>,
    ) -> Self {
        Self { peer: Arc::clone(peer), link, ticket, ops, len: 0 }
    }
}

impl<'r, 'a> OperationRun<'r, 'a> {
    pub(crate) fn new(
        dataset: &'r Dataset,
        ops: &'r mut [ClientOperation<'a>],
        deadline: Deadline,
    ) -> Self {
        let target = MemberTarget::of(dataset, ops.iter().map(|op| &op.operation));
        let retry = RetryState::new(RetryTiming::default(), dataset.is_mirrored(), deadline.at());
        let len = ops.iter().map(|op| op.footprint().sum()).sum();
        Self {
            dataset,
            session: dataset.client().session(),
            ops,
            outcomes: Vec::new(),
            deadline,
            is_retry: false,
            again: None,
            behind: Vec::new(),
            renumbered: Vec::new(),
            retry: retry.of_len(len),
            target,
            epoch: Epoch(0),
            inconsistent: 0,
        }
    }

    /// Numbers the mutations, and readies all operations for sending.
    fn begin(&mut self) -> Result<SeqRange<'r>> {
        let mutations = self.ops.iter().filter(|op| op.operation.is_mutation()).count();
        let range = self.session.seqs.take(mutations as u64, self.deadline)?;
        number(self.ops, range.first());
        Ok(range)
    }

    /// Carries all out; appends their outcomes.
    pub(crate) fn finish(mut self, outcomes: &mut Vec<OwnedOutcome>) -> Result<()> {
        let _numbers = self.begin()?;
        let changing = self.changing();
        self.rounds()?;
        changing.end();
        let done = self.outcomes.into_iter().flatten();
        if outcomes.is_empty() {
            // In the memory where they are.
            *outcomes = done.collect();
        } else {
            outcomes.extend(done);
        }
        Ok(())
    }

    /// Carries the only operation out.
    pub(crate) fn finish_one(mut self) -> Result<OwnedOutcome> {
        let _number = self.begin()?;
        let changing = self.changing();
        if let Some(outcome) = self.first_try()? {
            changing.end();
            return Ok(outcome);
        }
        self.rounds()?;
        changing.end();
        self.outcomes.pop().flatten().ok_or_else(|| ErrorKind::Internal.into())
    }

    /// Counts the changes that are about to be made.
    fn changing(&self) -> ChangeInProgress<'r> {
        let changes = self.ops.iter().filter(|op| op.operation.is_mutation());
        let mask = changes.fold(0, |mask, op| mask | mask_of_change(&op.operation));
        self.session.changes.begin(mask)
    }

    /// The short way for one operation: nothing is collected that only several need.
    fn first_try(&mut self) -> Result<Option<OwnedOutcome>> {
        let view = self.dataset.client().view(self.deadline)?;
        let partition = self.ops[0].operation.partition;
        let peer = view.peer_at(self.target.index(&view, self.dataset.redundancy(), partition)?);
        let link = match self.link(peer)? {
            Ok(link) => link,
            Err(again) => {
                self.again = Some(again);
                return Ok(None);
            }
        };
        let shared = self.shared(&view);
        let client = self.dataset.client();
        let by = self.leaves();
        let sent = frame::send(client, peer, &link, shared, self.ops.iter(), by);
        let mut one = SingleReceiver { op: &mut self.ops[0], answer: None };
        let summary = sent.and_then(|ticket| {
            let sent = (&**peer, &*link, ticket);
            await_reply(self.dataset, &mut self.retry, sent, &mut one, self.deadline)
        });
        let answer = one.answer;
        self.is_retry = true;
        match judge(self.dataset, peer.node, self.what(), summary)? {
            Some(again) => self.again = Some(again),
            None => match answer {
                Some(OperationAnswer::Outcome(outcome)) => {
                    match retry_reason(&outcome, peer.node) {
                        None => return Ok(Some(outcome)),
                        again => {
                            if is_behind(&outcome) {
                                self.behind.push(0);
                            }
                            self.again = again;
                        }
                    }
                }
                Some(OperationAnswer::Inconsistent) => {
                    self.again = Some(ResendReason::Inconsistent(peer.node))
                }
                None => return Err(ErrorKind::Internal.into()),
            },
        }
        Ok(None)
    }

    /// Round after round, until every operation has its outcome.
    pub(crate) fn rounds(&mut self) -> Result<()> {
        self.outcomes.resize(self.ops.len(), None);
        loop {
            if let Some(again) = self.again.take() {
                self.session.check(self.dataset.client()).and_then(|()| self.prepare(again))?;
            }
            let view = self.dataset.client().view(self.deadline)?;
            let mut under_way = Vec::new();
            self.send(&view, &mut under_way)?;
            for sent in under_way {
                self.settle(sent)?;
            }
            if self.again.is_none() {
                return Ok(());
            }
        }
    }

    /// Sends every operation without outcome, one request per node (more where limits ask for it).
    pub(crate) fn send(&mut self, view: &MapView, under_way: &mut Vec<SentRequest>) -> Result<()> {
        self.renumber()?;
        let shared = self.shared(view);
        let mut groups: Vec<Vec<u32>> = vec![Vec::new(); view.peers().len()];
        for (index, op) in (0u32..).zip(self.ops.iter()) {
            if self.outcomes[index as usize].is_none() {
                let redundancy = self.dataset.redundancy();
                groups[self.target.index(view, redundancy, op.operation.partition)?].push(index);
            }
        }
        let mut len_under_way = 0;
        let by = self.leaves();
        for (peer, group) in view.peers().iter().zip(groups) {
            let mut rest = group.as_slice();
            while !rest.is_empty() {
                let (count, len) = self.frame_of(rest);
                let (part, after) = rest.split_at(count);
                rest = after;
                let link = match self.link(peer)? {
                    Ok(link) => link,
                    Err(again) => {
                        self.again = Some(again);
                        break;
                    }
                };
                let ops = part.iter().map(|index| &self.ops[*index as usize]);
                let client = self.dataset.client();
                match frame::send(client, peer, &link, shared, ops, by) {
                    Ok(ticket) => {
                        let sent = SentRequest::new(peer, link, ticket, part.to_vec());
                        under_way.push(SentRequest { len, ..sent });
                        len_under_way += len;
                    }
                    Err(error) => {
                        self.again = judge(self.dataset, peer.node, self.what(), Err(error))?;
                        break;
                    }
                }
                while len_under_way > UNDER_WAY_MAX && !under_way.is_empty() {
                    let oldest = under_way.remove(0);
                    len_under_way -= oldest.len;
                    self.settle(oldest)?;
                }
            }
        }
        self.is_retry = true;
        Ok(())
    }

    /// Gives new numbers to mutations that a partition has not done, and will not do under their old ones.
    fn renumber(&mut self) -> Result<()> {
        for index in std::mem::take(&mut self.behind) {
            let operation = &mut self.ops[index as usize].operation;
            if operation.is_mutation() {
                let number = self.session.seqs.take(1, self.deadline)?;
                operation.seq = number.first();
                self.renumbered.push(number);
            }
        }
        Ok(())
    }

    /// How many of the next operations go into one frame, and the bytes of it and its reply.
    fn frame_of(&self, rest: &[u32]) -> (usize, usize) {
        let mut sum = FrameFootprint::default();
        let mut count = 0;
        for index in rest {
            if !frame::fits(&mut sum, count, self.ops[*index as usize].footprint()) {
                break;
            }
            count += 1;
        }
        (count, sum.sum())
    }

    /// Waits for one reply.
    pub(crate) fn settle(&mut self, sent: SentRequest) -> Result<()> {
        let SentRequest { peer, link, ticket, ops, .. } = sent;
        let outcomes = &mut self.outcomes;
        let behind = &mut self.behind;
        let collected =
            CollectReceiver { node: peer.node, indices: &ops, outcomes, behind, again: None };
        let mut several = ScatterReceiver { ops: self.ops, collected };
        let sent = (&*peer, &*link, ticket);
        let summary = await_reply(self.dataset, &mut self.retry, sent, &mut several, self.deadline);
        let left_over = several.collected.again;
        let is_broken = !matches!(summary, Ok(Some(_)));
        if let Some(again) = judge(self.dataset, peer.node, self.what(), summary)?.or(left_over) {
            self.again = Some(again);
        }
        if is_broken {
            // Nothing counts that was read before the connection broke.
            for index in &ops {
                self.outcomes[*index as usize] = None;
            }
        }
        Ok(())
    }

    /// A request is about to leave. By when it must have left.
    fn leaves(&mut self) -> Deadline {
        self.retry.sent(SystemClock.monotonic());
        if self.retry.is_mirrored() {
            Deadline::at_time(self.retry.wait_until())
        } else {
            self.deadline
        }
    }

    fn shared(&mut self, view: &MapView) -> frame::FrameShared {
        self.epoch = view.map.epoch();
        frame::FrameShared {
            dataset: self.dataset.id(),
            map_epoch: view.map.epoch(),
            answered_below: self.session.seqs.answered_below(),
            is_retry: self.is_retry,
        }
    }

    /// A link to a node; or why there is none now, where another node may take its place.
    fn link(&self, peer: &NodePeer) -> Result<Result<Arc<NodeLink>, ResendReason>> {
        if let Some(link) = peer.live_link() {
            let credential = || self.dataset.client().credentials().credential;
            peer.renew_ticket(&link, credential, self.deadline);
            return self.session.check(self.dataset.client()).map(|()| Ok(link));
        }
        let by = if self.retry.is_mirrored() {
            self.deadline.min(Deadline::after(CONNECT_TIME))
        } else {
            self.deadline
        };
        match peer.link(&self.dataset.client().credentials(), by) {
            Ok(link) => self.session.check(self.dataset.client()).map(|()| Ok(link)),
            Err(error) if self.retry.is_mirrored() && is_absence(&error) => {
                Ok(Err(ResendReason::Unreachable(peer.node, error)))
            }
            Err(error) => Err(self.name(error, peer.node)),
        }
    }

    /// Makes another round worth while: or the error that ends the call.
    fn prepare(&mut self, again: ResendReason) -> Result<()> {
        let is_silent = matches!(
            again,
            ResendReason::Silent | ResendReason::Broken(..) | ResendReason::Unreachable(..)
        );
        let view = self.session.view();
        if self.target.turns_to_primary(view.as_deref(), is_silent) {
            return Ok(());
        }
        let (event, node, cause) = match again {
            ResendReason::Silent => return Ok(()),
            ResendReason::Inconsistent(node) => return self.inconsistent(node),
            ResendReason::Stale(node) => {
                let cause = "its cluster map and ours do not meet";
                (RetryEvent::Stale, node, Error::new(ErrorKind::Timeout, cause))
            }
            ResendReason::Busy(node) => {
                (RetryEvent::Busy, node, Error::new(ErrorKind::Timeout, "the node is busy"))
            }
            ResendReason::Broken(node, error) => (RetryEvent::Broken, node, error),
            ResendReason::Unreachable(node, error) => (RetryEvent::Unreachable, node, error),
        };
        let mut next = self.retry.happened(event, SystemClock.monotonic());
        if next == RetryStep::Look {
            let is_newer = self.look(event, node)?;
            next = self.retry.looked(is_newer, SystemClock.monotonic());
        }
        match next {
            RetryStep::Fail(_) => return Err(self.name(cause, node)),
            RetryStep::Pause(pause) => std::thread::sleep(pause),
            RetryStep::Send | RetryStep::Wait | RetryStep::Look => {}
        }
        Ok(())
    }

    /// Asks for a newer map than the one by which operations were sent; whether there is one.
    fn look(&self, event: RetryEvent, node: NodeId) -> Result<bool> {
        let client = self.dataset.client();
        match event {
            RetryEvent::Stale => client
                .refresh_from(self.epoch, Some(node), self.deadline)
                .or_else(|error| if self.retry.is_mirrored() { Ok(false) } else { Err(error) })
                .map_err(|error| self.name(error, node)),
            _ => Ok(client.look(self.epoch, node)),
        }
    }

    /// A value changed during the copy.
    fn inconsistent(&mut self, node: NodeId) -> Result<()> {
        self.inconsistent += 1;
        if self.inconsistent >= INCONSISTENT_MAX {
            return self.read_inline();
        }
        if self.deadline.remaining().is_none() {
            let cause = Error::new(ErrorKind::Timeout, "the value keeps changing");
            return Err(self.name(cause, node));
        }
        Ok(())
    }

    /// Asks for the values of pure reads inside frames, where nothing can change them under way.
    fn read_inline(&mut self) -> Result<()> {
        for (op, outcome) in self.ops.iter_mut().zip(&mut self.outcomes) {
            if outcome.is_none() && inconsistent_read::is_plain_read(&op.operation) {
                *outcome =
                    Some(inconsistent_read::read_in_pieces(self.dataset, op, self.deadline)?);
            }
        }
        Ok(())
    }

    /// The first operation in words, for messages.
    fn what(&self) -> &'static str {
        self.ops.first().map_or("nothing", |op| op::name(&op.operation))
    }

    fn name(&self, error: Error, node: NodeId) -> Error {
        locate(error, self.dataset, node, self.what())
    }
}

/// The meaning of a reply, or of its absence, for a request as a whole.
pub(crate) fn judge(
    dataset: &Dataset,
    node: NodeId,
    name: &str,
    summary: Result<Option<Result<ReplySummary>>>,
) -> Result<Option<ResendReason>> {
    let summary = match summary.and_then(Option::transpose) {
        Ok(Some(summary)) => summary,
        Ok(None) => return Ok(Some(ResendReason::Silent)),
        Err(error) if error.kind() == ErrorKind::Unavailable => {
            return Ok(Some(ResendReason::Broken(node, error)));
        }
        Err(error) if error.kind() == ErrorKind::Timeout && dataset.is_mirrored() => {
            return Ok(Some(ResendReason::Unreachable(node, error)));
        }
        Err(error) => return Err(locate(error, dataset, node, name)),
    };
    dataset.saw_name_space_generation(summary.name_space_generation);
    count(&dataset.client().counters().received_bytes, summary.received_len as u64);
    match summary.refused {
        None => Ok(None),
        Some(ErrorKind::StaleMap) => Ok(Some(ResendReason::Stale(node))),
        Some(ErrorKind::Busy) => Ok(Some(ResendReason::Busy(node))),
        Some(ErrorKind::Denied) => {
            let DatasetAccess { owner, mode } = dataset.spec().access;
            let words = format!("it belongs to uid {owner}, mode {mode:03o}");
            Err(locate(Error::new(ErrorKind::Denied, words), dataset, node, name))
        }
        Some(kind) => Err(locate(Error::from(kind).context("refused"), dataset, node, name)),
    }
}

/// No node is there, or it says nothing.
pub(crate) fn is_absence(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout)
}

/// Puts the operation, the dataset and the node into an error's message.
fn locate(error: Error, dataset: &Dataset, node: NodeId, name: &str) -> Error {
    error.context(format_args!("{name} in {:?} on node {node}", dataset.spec().name))
}

/// Gives consecutive numbers to mutations, none to others, and readies all for sending.
pub(crate) fn number(ops: &mut [ClientOperation<'_>], first: Seq) {
    let mut next = first;
    for op in ops {
        op.operation.seq = Seq(0);
        if op.operation.is_mutation() {
            op.operation.seq = next;
            next = Seq(next.get() + 1);
        }
        op.clip();
    }
}

/// Whether an outcome is none yet: the node had no room for it in this reply, or knows of a newer map.
fn retry_reason(outcome: &OwnedOutcome, node: NodeId) -> Option<ResendReason> {
    match outcome {
        OwnedOutcome::Failed(OwnedFailure {
            kind: ErrorKind::Busy | ErrorKind::Unavailable,
            ..
        }) => Some(ResendReason::Busy(node)),
        OwnedOutcome::Failed(OwnedFailure { kind: ErrorKind::StaleMap, .. }) => {
            Some(ResendReason::Stale(node))
        }
        _ => None,
    }
}

/// Whether an operation was not done, and never will be under its number. Of one that cannot be done now (`Unavailable`) an earlier sending may
/// have been, so it keeps its number.
const fn is_behind(outcome: &OwnedOutcome) -> bool {
    matches!(outcome, OwnedOutcome::Failed(OwnedFailure { kind: ErrorKind::Busy, .. }))
}
