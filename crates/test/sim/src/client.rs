//! A client: one call at a time, carried out by the decisions of [`samite_client::retry`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use samite_client::retry::{RetryEvent, RetryState, RetryStep, RetryTiming};
use samite_placement::ClusterMap;
use samite_types::{ClientId, DatasetId, Epoch, ErrorKind, PartitionId, RequestId, Seq};
use samite_wire::control::{self, ControlReply, ControlRequest, ReadsKind};
use samite_wire::op::{OperationReply, RequestEncoder, RequestHeader};

use crate::message::SimMessage;
use crate::net::ProcessPlace;
use crate::op::{OpOutcome, SimOperation, seen};
use crate::process::{ProcessContext, SimProcess};
use crate::rules::RunRules;
use crate::scenario::RunScenario;
use crate::workload::ClientWorkload;

/// How long a call may take before its client gives up.
const CALL_MAX: Duration = Duration::from_secs(60);
/// How long a client waits for answers when it looks for a newer map.
const LOOK_MAX: Duration = Duration::from_millis(100);

/// The tasks of a client.
#[derive(Debug)]
pub enum ClientTask {
    /// So many random calls.
    Random(ClientWorkload, u32),
    /// These calls.
    Script(VecDeque<(PartitionId, SimOperation)>),
}

#[derive(Debug)]
enum ClientPhase {
    /// Between two calls.
    Idle,
    /// An answer is waited for.
    Waiting,
    /// A newer map is looked for, until then.
    Looking(Duration),
    /// It sends again, at that time.
    Pausing(Duration),
    /// Everything was done.
    Over,
}

/// The call under way.
#[derive(Debug)]
struct CurrentCall {
    call: usize,
    partition: PartitionId,
    op: SimOperation,
    seq: Seq,
    retry: RetryState,
    was_sent: bool,
    /// Any member may be asked, where members answer reads; until one did not answer.
    by_members: bool,
    /// The node that was asked last, by which map, and the number of that request.
    asked: ProcessPlace,
    asked_epoch: Epoch,
    id: RequestId,
}

/// A client process.
#[derive(Debug)]
pub struct SimClient {
    index: usize,
    id: ClientId,
    nodes: u32,
    pause_us: u64,
    is_mirrored: bool,
    rules: RunRules,
    task: ClientTask,
    map: Option<Arc<ClusterMap>>,
    phase: ClientPhase,
    current: Option<CurrentCall>,
    next_seq: u64,
    next_request: u64,
    /// Calls of which it will never know how they ended.
    pub given_up: u32,
}

impl SimClient {
    /// A client with a session of its own.
    #[must_use]
    pub fn new(index: u32, id: ClientId, scenario: &RunScenario, task: ClientTask) -> Self {
        Self {
            index: index as usize,
            id,
            nodes: scenario.nodes,
            pause_us: scenario.pause_us,
            is_mirrored: scenario.redundancy > 1,
            rules: scenario.rules,
            task,
            map: None,
            phase: ClientPhase::Idle,
            current: None,
            next_seq: 1,
            // Replies to another process of this place never match.
            next_request: id.get() << 20,
            given_up: 0,
        }
    }

    /// Whether it has done everything.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        matches!(self.phase, ClientPhase::Over)
    }

    /// Gives it something else to do, once everything is done.
    pub fn go_on_with(&mut self, task: ClientTask) {
        self.task = task;
        self.phase = ClientPhase::Idle;
    }

    /// Its task, in words.
    #[must_use]
    pub fn doing(&self) -> String {
        let current = self.current.as_ref().map(|current| {
            format!("{} {} {} of {}", current.partition, current.seq, current.op, current.asked)
        });
        format!("{:?} {}", self.phase, current.unwrap_or_default())
    }

    fn next_call(&mut self, context: &mut ProcessContext<'_>) {
        let next = match &mut self.task {
            ClientTask::Random(_, 0) => None,
            ClientTask::Random(workload, left) => {
                *left -= 1;
                Some(workload.next(context.rng))
            }
            ClientTask::Script(calls) => calls.pop_front(),
        };
        let Some((partition, op)) = next else {
            self.phase = ClientPhase::Over;
            return;
        };
        let made = context.disk.files.entry("calls").or_default();
        made.push(1);
        let seq = if op.is_mutation() { Seq(self.next_seq) } else { Seq(0) };
        self.next_seq += u64::from(op.is_mutation());
        let call = context.history.begin(self.index, partition, op.clone(), context.world_now);
        context.note(|| format!("call {call}: {partition} {op}"));
        let by_members = op.only_reads();
        self.current = Some(CurrentCall {
            call,
            partition,
            by_members,
            op,
            seq,
            retry: RetryState::new(
                RetryTiming::default(),
                self.is_mirrored,
                context.now + CALL_MAX,
            ),
            was_sent: false,
            asked: ProcessPlace::Node(0),
            asked_epoch: Epoch(0),
            id: RequestId(0),
        });
        self.send(context);
    }

    /// Where to send: to the primary. Where any member answers reads, reads go to any member.
    fn destination(
        &self,
        current: &CurrentCall,
        context: &mut ProcessContext<'_>,
    ) -> Option<(ProcessPlace, DatasetId, Epoch)> {
        let found = self.primary(current.partition)?;
        let map = self.map.as_ref()?;
        let spec = &map.dataset(crate::scenario::DATASET)?.spec;
        let is_wrong = self.rules.mirror().reads_anywhere && !current.op.is_mutation();
        let by_members = spec.reads == ReadsKind::Any && current.by_members;
        if !is_wrong && !by_members {
            return Some(found);
        }
        let redundancy = spec.redundancy;
        let members = &map.group(redundancy, current.partition)?.members;
        let node = map.node_of_target(context.rng.pick(members).target)?;
        Some((ProcessPlace::Node(node.get()), found.1, found.2))
    }

    /// The place of the primary by the map it has.
    fn primary(&self, partition: PartitionId) -> Option<(ProcessPlace, DatasetId, Epoch)> {
        let map = self.map.as_ref()?;
        let dataset = map.dataset(crate::scenario::DATASET)?;
        let node = map.node_of(dataset.spec.redundancy, partition)?;
        Some((ProcessPlace::Node(node.get()), dataset.id, map.epoch()))
    }

    fn send(&mut self, context: &mut ProcessContext<'_>) {
        let Some(current) = &self.current else { return };
        let partition = current.partition;
        let Some((place, dataset, map_epoch)) = self.destination(current, context) else {
            return self.look(context);
        };
        let id = self.request_id();
        // One call at a time: all before it are answered.
        let answered_below = Seq(self.next_seq - 1);
        let Some(current) = &mut self.current else { return };
        let header = RequestHeader {
            dataset,
            map_epoch,
            name_space_generation: Epoch(u64::MAX),
            answered_below: if current.seq.get() > 0 { current.seq } else { answered_below },
            is_retry: current.was_sent,
        };
        let (body, payload) = current.op.operation(partition, current.seq, |operation| {
            let mut encoder = RequestEncoder::new(Vec::new(), &header);
            encoder.operation(operation);
            let (body, payload) = encoder.finish();
            (body, payload.concat())
        });
        let len = body.len() + payload.len();
        context.history.sent(current.call, id);
        if !current.was_sent {
            current.retry = current.retry.clone().of_len(len);
        }
        current.was_sent = true;
        (current.asked, current.asked_epoch, current.id) = (place, map_epoch, id);
        context.send(place, SimMessage::Request { id, client: self.id, body, payload });
        current.retry.sent(context.now);
        self.phase = ClientPhase::Waiting;
        context.wake_at(current.retry.wait_until());
    }

    fn request_id(&mut self) -> RequestId {
        self.next_request += 1;
        RequestId(self.next_request)
    }

    fn look(&mut self, context: &mut ProcessContext<'_>) {
        let known = self.map.as_ref().map_or(Epoch(0), |map| map.epoch());
        for node in 0..self.nodes {
            let id = self.request_id();
            context.send(
                ProcessPlace::Node(node),
                SimMessage::control(id, &ControlRequest::Map { known }),
            );
        }
        let until = context.now + LOOK_MAX;
        self.phase = ClientPhase::Looking(until);
        context.wake_at(until);
    }

    fn happened(&mut self, event: RetryEvent, context: &mut ProcessContext<'_>) {
        let Some(current) = &mut self.current else { return };
        let was_by_members = std::mem::take(&mut current.by_members);
        let (asked, partition) = (current.asked, current.partition);
        if was_by_members && self.primary(partition).is_some_and(|(place, ..)| place != asked) {
            return self.send(context);
        }
        let Some(current) = &mut self.current else { return };
        let next = current.retry.happened(event, context.now);
        context.note(|| format!("{event:?}: {next:?}"));
        self.follow(next, context);
    }

    fn follow(&mut self, next: RetryStep, context: &mut ProcessContext<'_>) {
        match next {
            RetryStep::Wait => {
                self.phase = ClientPhase::Waiting;
                if let Some(current) = &self.current {
                    context.wake_at(current.retry.wait_until());
                }
            }
            RetryStep::Look => self.look(context),
            RetryStep::Pause(pause) => {
                let until = context.now + pause;
                self.phase = ClientPhase::Pausing(until);
                context.wake_at(until);
            }
            RetryStep::Send => self.send(context),
            RetryStep::Fail(_) => {
                self.given_up += 1;
                self.rest(context);
            }
        }
    }

    /// The look is over.
    fn looked(&mut self, context: &mut ProcessContext<'_>) {
        let Some(partition) = self.current.as_ref().map(|current| current.partition) else {
            return;
        };
        let found = self.primary(partition);
        let Some(current) = &mut self.current else { return };
        let is_worth = match found {
            // A map was needed to begin with.
            Some(_) if !current.was_sent => true,
            Some((place, _, epoch)) => place != current.asked || epoch > current.asked_epoch,
            None => false,
        };
        if found.is_none() {
            let until = context.now + Duration::from_millis(50);
            self.phase = ClientPhase::Pausing(until);
            return context.wake_at(until);
        }
        let next = current.retry.looked(is_worth, context.now);
        context.note(|| format!("looked, worth it: {is_worth}: {next:?}"));
        self.follow(next, context);
    }

    fn reply(
        &mut self,
        id: RequestId,
        body: &[u8],
        payload: &[u8],
        context: &mut ProcessContext<'_>,
    ) {
        let Some(current) = self.current.as_mut().filter(|current| current.id == id) else {
            return;
        };
        let Ok(reply) = OperationReply::decode(body, payload) else {
            return context.audit.violate("replies decode", format!("{id}"));
        };
        match reply.header.refused {
            Some(ErrorKind::StaleMap) => return self.happened(RetryEvent::Stale, context),
            Some(ErrorKind::Busy | ErrorKind::NotFound) => {
                return self.happened(RetryEvent::Busy, context);
            }
            Some(kind) => return self.lost(kind, context),
            None => {}
        }
        let Some(outcome) = reply.outcomes.first() else {
            return context.audit.violate("replies have outcomes", format!("{id}"));
        };
        let (outcome, version) = seen(outcome);
        match outcome {
            OpOutcome::Failed(ErrorKind::Unavailable) => self.happened(RetryEvent::Busy, context),
            OpOutcome::Failed(ErrorKind::Busy) => {
                // It came so late that its number is of no use any more.
                if current.op.is_mutation() {
                    current.seq = Seq(self.next_seq);
                    self.next_seq += 1;
                }
                self.happened(RetryEvent::Busy, context);
            }
            OpOutcome::Failed(ErrorKind::StaleMap) => self.happened(RetryEvent::Stale, context),
            OpOutcome::Failed(kind @ (ErrorKind::SessionLost | ErrorKind::Internal)) => {
                self.lost(kind, context);
            }
            outcome => {
                let (call, now) = (current.call, context.world_now);
                context.note(|| format!("call {call} ends: {outcome}"));
                if let ClientTask::Random(workload, _) = &mut self.task {
                    workload.learn(current.partition, &current.op, &outcome);
                }
                context.history.end(call, now, outcome, version);
                self.rest(context);
            }
        }
    }

    /// An error that a program would see.
    fn lost(&mut self, kind: ErrorKind, context: &mut ProcessContext<'_>) {
        let doing = self.doing();
        let Some(partition) = self.current.as_ref().map(|current| current.partition) else {
            return;
        };
        context.audit.erred(partition, format!("{}: {kind:?} for {doing}", context.place));
        self.rest(context);
    }

    fn rest(&mut self, context: &mut ProcessContext<'_>) {
        self.current = None;
        self.phase = ClientPhase::Idle;
        let pause = context.rng.micros(0, self.pause_us);
        context.wake_at(context.now + pause.max(Duration::from_micros(1)));
    }
}

impl SimProcess for SimClient {
    fn start(&mut self, context: &mut ProcessContext<'_>) {
        if let ClientTask::Random(_, left) = &mut self.task {
            let made = context.disk.files.get("calls").map_or(0, Vec::len);
            *left = left.saturating_sub(made as u32);
        }
        self.rest(context);
    }

    fn receive(
        &mut self,
        from: ProcessPlace,
        message: SimMessage,
        context: &mut ProcessContext<'_>,
    ) {
        match message {
            SimMessage::Reply { id, body, payload } => self.reply(id, &body, &payload, context),
            SimMessage::ControlReply { id, body } => {
                let map = match (control::decode(&body), &self.map) {
                    (Ok(ControlReply::Map(Some(data))), _) => ClusterMap::new(data),
                    (Ok(ControlReply::MapDelta(delta)), Some(known))
                        if delta.to > known.epoch() =>
                    {
                        let Ok(map) = known.with(&delta) else {
                            let whole = ControlRequest::Map { known: Epoch(0) };
                            return context.send(from, SimMessage::control(id, &whole));
                        };
                        Ok(map)
                    }
                    _ => return,
                };
                let Ok(map) = map else {
                    return context.audit.violate("maps are lawful", "from a node".into());
                };
                if self.map.as_ref().is_none_or(|known| known.epoch() < map.epoch()) {
                    context.audit.saw_map(context.place, map.epoch(), context.world_now);
                    self.map = Some(Arc::new(map));
                    if matches!(self.phase, ClientPhase::Looking(_)) {
                        self.looked(context);
                    }
                }
            }
            _ => {}
        }
    }

    fn broken(&mut self, peer: ProcessPlace, context: &mut ProcessContext<'_>) {
        let is_asked = self.current.as_ref().is_some_and(|current| current.asked == peer);
        if is_asked && matches!(self.phase, ClientPhase::Waiting) {
            self.happened(RetryEvent::Broken, context);
        }
    }

    fn wake(&mut self, context: &mut ProcessContext<'_>) {
        match self.phase {
            ClientPhase::Idle => self.next_call(context),
            ClientPhase::Waiting => {
                let Some(current) = &self.current else { return };
                let until = current.retry.wait_until();
                if context.now >= until {
                    self.happened(RetryEvent::Silent, context);
                } else {
                    context.wake_at(until);
                }
            }
            ClientPhase::Looking(until) | ClientPhase::Pausing(until) if context.now < until => {
                context.wake_at(until);
            }
            ClientPhase::Looking(_) => self.looked(context),
            ClientPhase::Pausing(_) => self.send(context),
            ClientPhase::Over => {}
        }
    }
}
