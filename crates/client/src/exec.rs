//! Carrying out operations: grouped by node, sent together, waited for, and repeated where that helps.
//!
//! A [`Run`] goes in rounds. A round sends one request to each node that has operations left (to all nodes first), then
//! waits for the replies. What is left after it goes into the next: operations whose node knows a newer cluster map (which
//! is fetched), whose connection broke (which is made again), whose node was busy or silent, or whose value changed during the copy. Mutations
//! keep their sequence numbers through all rounds, so that a partition applies each once. [`Retry`] decides what is worth doing.

use std::sync::Arc;
use std::time::Duration;

use samite_transport::client::{Link, Ticket};
use samite_types::{
    Clock, Deadline, Epoch, Error, ErrorKind, NodeId, PartitionId, Result, Seq, SystemClock,
};

use samite_wire::access::Access;

use crate::changes::{Changing, mask_of_change};
use crate::members::Whom;
use crate::op::Footprint;
use crate::outcome::{OwnedFailure, OwnedOutcome};
use crate::peer::Peer;
use crate::reply::{Answer, Receiver, Summary};
use crate::retry::{Event, Next, Retry, Timing};
use crate::seq::SeqRange;
use crate::session::{Session, View};
use crate::stats::count;
use crate::wait::await_reply;
use crate::{Dataset, Op, frame, op, torn};

/// Longest time for making one connection to a node whose place another may take.
const CONNECT_TIME: Duration = Duration::from_millis(500);

/// Rounds in which a value changed during the copy, after which it is asked for inside the frame.
const TORN_MAX: u32 = 3;

/// Bytes of requests and expected replies that one call has under way before it waits for the first of them.
const UNDER_WAY_MAX: usize = 32 << 20;

/// Why operations are to be sent again.
#[derive(Debug)]
pub(crate) enum Again {
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
    Torn(NodeId),
}

/// Operations that are carried out together.
pub(crate) struct Run<'r, 'a> {
    pub(crate) dataset: &'r Dataset,
    pub(crate) session: &'r Session,
    pub(crate) ops: &'r mut [Op<'a>],
    pub(crate) outcomes: Vec<Option<OwnedOutcome>>,
    pub(crate) deadline: Deadline,
    /// Some of the operations were sent before.
    pub(crate) is_retry: bool,
    /// Why the last round left something over.
    pub(crate) again: Option<Again>,
    /// Operations whose node had no room for them. Mutations among them came so late that their numbers are of no use any more.
    pub(crate) behind: Vec<u32>,
    /// Numbers taken in place of those.
    renumbered: Vec<SeqRange<'r>>,
    pub(crate) retry: Retry,
    pub(crate) whom: Whom,
    /// Epoch of the map by which operations were sent last.
    epoch: Epoch,
    torn: u32,
}

/// A request under way, and which operations it carries.
pub(crate) struct Sent {
    pub(crate) peer: Arc<Peer>,
    pub(crate) link: Arc<Link>,
    pub(crate) ticket: Ticket,
    pub(crate) ops: Vec<u32>,
    /// Bytes of it and of its reply, as far as known.
    len: usize,
}

impl Sent {
    pub(crate) fn new(peer: &Arc<Peer>, link: Arc<Link>, ticket: Ticket, ops: Vec<u32>) -> Self {
        Self { peer: Arc::clone(peer), link, ticket, ops, len: 0 }
    }
}

impl<'r, 'a> Run<'r, 'a> {
    pub(crate) fn new(dataset: &'r Dataset, ops: &'r mut [Op<'a>], deadline: Deadline) -> Self {
        let whom = Whom::of(dataset, ops.iter().map(|op| &op.operation));
        let retry = Retry::new(Timing::default(), dataset.is_mirrored(), deadline.at());
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
            whom,
            epoch: Epoch(0),
            torn: 0,
        }
    }

    /// Numbers the mutations, and readies all operations for sending.
    fn begin(&mut self) -> Result<SeqRange<'r>> {
        let mutations = self.ops.iter().filter(|op| op.operation.is_mutation()).count();
        let range = self.session.seqs.take(mutations as u64, self.deadline)?;
        number(self.ops, range.first());
        self.ops.iter_mut().for_each(Op::clip);
        Ok(range)
    }

    /// Carries all out; appends their outcomes.
    pub(crate) fn finish(mut self, outcomes: &mut Vec<OwnedOutcome>) -> Result<()> {
        let _numbers = self.begin()?;
        let changing = self.changing();
        self.rounds()?;
        changing.end();
        outcomes.extend(self.outcomes.into_iter().flatten());
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

    /// Counts what is about to be changed.
    fn changing(&self) -> Changing<'r> {
        let changes = self.ops.iter().filter(|op| op.operation.is_mutation());
        let mask = changes.fold(0, |mask, op| mask | mask_of_change(&op.operation));
        self.session.changes.begin(mask)
    }

    /// The short way for one operation: nothing is collected that only several need.
    fn first_try(&mut self) -> Result<Option<OwnedOutcome>> {
        let view = self.dataset.client().view(self.deadline)?;
        let partition = self.ops[0].operation.partition;
        let peer = view.peer_at(self.whom.index(&view, self.dataset.redundancy(), partition)?);
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
        let mut one = One { op: &mut self.ops[0], answer: None };
        let summary = sent.and_then(|ticket| {
            let sent = (&**peer, &*link, ticket);
            await_reply(self.dataset, &mut self.retry, sent, &mut one, self.deadline)
        });
        let answer = one.answer;
        self.is_retry = true;
        match judge(self.dataset, peer.node, self.what(), summary)? {
            Some(again) => self.again = Some(again),
            None => match answer {
                Some(Answer::Outcome(outcome)) => match retry_reason(&outcome, peer.node) {
                    None => return Ok(Some(outcome)),
                    again => {
                        if is_behind(&outcome) {
                            self.behind.push(0);
                        }
                        self.again = again;
                    }
                },
                Some(Answer::Torn) => self.again = Some(Again::Torn(peer.node)),
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
    pub(crate) fn send(&mut self, view: &View, under_way: &mut Vec<Sent>) -> Result<()> {
        self.renumber()?;
        let shared = self.shared(view);
        let mut groups: Vec<Vec<u32>> = vec![Vec::new(); view.peers().len()];
        for (index, op) in (0u32..).zip(self.ops.iter()) {
            if self.outcomes[index as usize].is_none() {
                let redundancy = self.dataset.redundancy();
                groups[self.whom.index(view, redundancy, op.operation.partition)?].push(index);
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
                        let sent = Sent::new(peer, link, ticket, part.to_vec());
                        under_way.push(Sent { len, ..sent });
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
        let mut sum = Footprint::default();
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
    pub(crate) fn settle(&mut self, sent: Sent) -> Result<()> {
        let Sent { peer, link, ticket, ops, .. } = sent;
        let outcomes = &mut self.outcomes;
        let behind = &mut self.behind;
        let collected = Collected { node: peer.node, indices: &ops, outcomes, behind, again: None };
        let mut several = Several { ops: self.ops, collected };
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

    fn shared(&mut self, view: &View) -> frame::Shared {
        self.epoch = view.map.epoch();
        frame::Shared {
            dataset: self.dataset.id(),
            map_epoch: view.map.epoch(),
            answered_below: self.session.seqs.answered_below(),
            is_retry: self.is_retry,
        }
    }

    /// A link to a node; or why there is none now, where another node may take its place.
    fn link(&self, peer: &Peer) -> Result<Result<Arc<Link>, Again>> {
        if let Some(link) = peer.live_link() {
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
                Ok(Err(Again::Unreachable(peer.node, error)))
            }
            Err(error) => Err(self.name(error, peer.node)),
        }
    }

    /// Makes another round worth while: or the error that ends the call.
    fn prepare(&mut self, again: Again) -> Result<()> {
        let is_silent = matches!(again, Again::Silent | Again::Broken(..) | Again::Unreachable(..));
        let view = self.session.view();
        if self.whom.turns_to_primary(view.as_deref(), is_silent) {
            return Ok(());
        }
        let (event, node, cause) = match again {
            Again::Silent => return Ok(()),
            Again::Torn(node) => return self.torn(node),
            Again::Stale(node) => {
                let cause = "its cluster map and ours do not meet";
                (Event::Stale, node, Error::new(ErrorKind::Timeout, cause))
            }
            Again::Busy(node) => {
                (Event::Busy, node, Error::new(ErrorKind::Timeout, "the node is busy"))
            }
            Again::Broken(node, error) => (Event::Broken, node, error),
            Again::Unreachable(node, error) => (Event::Unreachable, node, error),
        };
        let mut next = self.retry.happened(event, SystemClock.monotonic());
        if next == Next::Look {
            let is_newer = self.look(event, node)?;
            next = self.retry.looked(is_newer, SystemClock.monotonic());
        }
        match next {
            Next::Fail(_) => return Err(self.name(cause, node)),
            Next::Pause(pause) => std::thread::sleep(pause),
            Next::Send | Next::Wait | Next::Look => {}
        }
        Ok(())
    }

    /// Asks for a newer map than the one by which operations were sent; whether there is one.
    fn look(&self, event: Event, node: NodeId) -> Result<bool> {
        let client = self.dataset.client();
        match event {
            Event::Stale => client
                .refresh_from(self.epoch, Some(node), self.deadline)
                .or_else(|error| if self.retry.is_mirrored() { Ok(false) } else { Err(error) })
                .map_err(|error| self.name(error, node)),
            _ => Ok(client.look(self.epoch, node)),
        }
    }

    /// A value changed during the copy.
    fn torn(&mut self, node: NodeId) -> Result<()> {
        self.torn += 1;
        if self.torn >= TORN_MAX {
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
            if outcome.is_none() && torn::is_plain_read(&op.operation) {
                *outcome = Some(torn::read_in_pieces(self.dataset, op, self.deadline)?);
            }
        }
        Ok(())
    }

    /// What the first operation does, for messages.
    fn what(&self) -> &'static str {
        self.ops.first().map_or("nothing", |op| op::name(&op.operation))
    }

    fn name(&self, error: Error, node: NodeId) -> Error {
        locate(error, self.dataset, node, self.what())
    }
}

/// What a reply, or its absence, means for a request as a whole.
pub(crate) fn judge(
    dataset: &Dataset,
    node: NodeId,
    name: &str,
    summary: Result<Option<Result<Summary>>>,
) -> Result<Option<Again>> {
    let summary = match summary.and_then(Option::transpose) {
        Ok(Some(summary)) => summary,
        Ok(None) => return Ok(Some(Again::Silent)),
        Err(error) if error.kind() == ErrorKind::Unavailable => {
            return Ok(Some(Again::Broken(node, error)));
        }
        Err(error) if error.kind() == ErrorKind::Timeout && dataset.is_mirrored() => {
            return Ok(Some(Again::Unreachable(node, error)));
        }
        Err(error) => return Err(locate(error, dataset, node, name)),
    };
    dataset.saw_lease_epoch(summary.lease_epoch);
    count(&dataset.client().counters().received_bytes, summary.received_len as u64);
    match summary.refused {
        None => Ok(None),
        Some(ErrorKind::StaleMap) => Ok(Some(Again::Stale(node))),
        Some(ErrorKind::Busy) => Ok(Some(Again::Busy(node))),
        Some(ErrorKind::Denied) => {
            let Access { owner, mode } = dataset.spec().access;
            let words = format!("it belongs to uid {owner}, mode {mode:03o}");
            Err(locate(Error::new(ErrorKind::Denied, words), dataset, node, name))
        }
        Some(kind) => Err(locate(Error::from(kind).context("refused"), dataset, node, name)),
    }
}

/// Nobody is there, or says nothing.
pub(crate) fn is_absence(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout)
}

/// Puts the operation, the dataset and the node into an error's message.
fn locate(error: Error, dataset: &Dataset, node: NodeId, name: &str) -> Error {
    error.context(format_args!("{name} in {:?} on node {node}", dataset.spec().name))
}

/// Gives consecutive numbers to mutations, none to others.
pub(crate) fn number(ops: &mut [Op<'_>], first: Seq) {
    let mut next = first;
    for op in ops {
        op.operation.seq = Seq(0);
        if op.operation.is_mutation() {
            op.operation.seq = next;
            next = Seq(next.get() + 1);
        }
    }
}

/// Whether an outcome is none yet: the node had no room for it in this reply, or knows of a newer map.
fn retry_reason(outcome: &OwnedOutcome, node: NodeId) -> Option<Again> {
    match outcome {
        OwnedOutcome::Failed(OwnedFailure {
            kind: ErrorKind::Busy | ErrorKind::Unavailable,
            ..
        }) => Some(Again::Busy(node)),
        OwnedOutcome::Failed(OwnedFailure { kind: ErrorKind::StaleMap, .. }) => {
            Some(Again::Stale(node))
        }
        _ => None,
    }
}

/// Whether an operation was not done, and never will be under its number. Of one that cannot be done now (`Unavailable`) an earlier sending may
/// have been, so it keeps its number.
const fn is_behind(outcome: &OwnedOutcome) -> bool {
    matches!(outcome, OwnedOutcome::Failed(OwnedFailure { kind: ErrorKind::Busy, .. }))
}

/// Receives the reply to one operation.
struct One<'o, 'a> {
    op: &'o mut Op<'a>,
    answer: Option<Answer>,
}

impl Receiver for One<'_, '_> {
    fn count(&self) -> usize {
        1
    }

    fn partition(&self, _index: usize) -> Option<PartitionId> {
        Some(self.op.operation.partition)
    }

    fn dest(&mut self, _index: usize) -> Option<&mut [u8]> {
        self.op.dest.as_deref_mut()
    }

    fn done(&mut self, _index: usize, answer: Answer) {
        self.answer = Some(answer);
    }
}

/// Receives the reply to some operations out of many, into their destinations where they have any.
struct Several<'o, 'a> {
    ops: &'o mut [Op<'a>],
    collected: Collected<'o>,
}

impl Receiver for Several<'_, '_> {
    fn count(&self) -> usize {
        self.collected.count()
    }

    fn partition(&self, index: usize) -> Option<PartitionId> {
        Some(self.ops[self.collected.indices[index] as usize].operation.partition)
    }

    fn dest(&mut self, index: usize) -> Option<&mut [u8]> {
        self.ops[self.collected.indices[index] as usize].dest.as_deref_mut()
    }

    fn done(&mut self, index: usize, answer: Answer) {
        self.collected.done(index, answer);
    }
}

/// Receives the reply to some operations out of many.
pub(crate) struct Collected<'o> {
    pub(crate) node: NodeId,
    pub(crate) indices: &'o [u32],
    pub(crate) outcomes: &'o mut [Option<OwnedOutcome>],
    /// See [`Run::behind`].
    pub(crate) behind: &'o mut Vec<u32>,
    pub(crate) again: Option<Again>,
}

impl Receiver for Collected<'_> {
    fn count(&self) -> usize {
        self.indices.len()
    }

    fn partition(&self, _index: usize) -> Option<PartitionId> {
        None
    }

    fn dest(&mut self, _index: usize) -> Option<&mut [u8]> {
        None
    }

    fn done(&mut self, index: usize, answer: Answer) {
        let again = match answer {
            Answer::Torn => Some(Again::Torn(self.node)),
            Answer::Outcome(outcome) => match retry_reason(&outcome, self.node) {
                None => {
                    self.outcomes[self.indices[index] as usize] = Some(outcome);
                    None
                }
                again => {
                    if is_behind(&outcome) {
                        self.behind.push(self.indices[index]);
                    }
                    again
                }
            },
        };
        // A stale map matters more than a busy node: without it the next round asks the wrong one again.
        if !matches!(self.again, Some(Again::Stale(_))) && again.is_some() {
            self.again = again;
        }
    }
}
