//! An instance of the coordinator: takes part in the election, and while it leads, decides. A
//! decision is saved first, then published, then answered; a decision that could not be saved is
//! forgotten, and everything begins anew from the saved state.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use samite_coordinator::store::election::{ElectionStep, KeyElection, SwapResult};
use samite_coordinator::{ClusterTiming, LeaderReachability};
use samite_placement::{ClusterMap, MapHistory};
use samite_types::{Epoch, NodeId, RequestId};
use samite_wire::control::{self, ControlReply, ControlRequest};
use samite_wire::membership::LeaderAddress;

use crate::leader_state::{SavedVerdict, SimulatedState};
use crate::message::SimMessage;
use crate::net::ProcessPlace;
use crate::process::{ProcessContext, SimDisk, SimProcess};
use crate::rng::SimRng;
use crate::state_request::{StateReply, StateRequest};
use crate::voting::SimVoter;

/// How often time passes for the coordinator.
const TICK: Duration = Duration::from_millis(50);
/// How long the store may take over an answer.
const STORE_TIMEOUT: Duration = Duration::from_millis(500);
/// Most requests that wait.
const QUEUE_MAX: usize = 1024;
/// Most steps at one time: a voter answers some questions at once.
const STEPS_MAX: usize = 4;

/// A request to the store under way.
struct PendingRequest {
    id: RequestId,
    sent: Duration,
    kind: PendingKind,
}

enum PendingKind {
    Read,
    Renew,
    Load,
    /// The state; these answers wait for it.
    Save(Vec<Answer>),
}

type Answer = (ProcessPlace, RequestId, SavedVerdict);

/// A coordinator that leads.
struct SimulatedLeader {
    decisions: SimulatedState,
    /// Revision of the saved state, and the epoch of its map.
    saved: (u64, Epoch),
    saved_at: Duration,
    published: Option<Arc<ClusterMap>>,
    history: MapHistory,
}

impl SimulatedLeader {
    fn now(&self) -> (u64, Epoch) {
        (self.decisions.revision(), self.decisions.epoch())
    }

    /// The decision is saved.
    fn publish(&mut self, now: Duration) {
        self.saved = self.now();
        self.saved_at = now;
        if let Some(map) = self.decisions.map() {
            self.history.note(self.published.as_deref(), map);
            self.published = Some(Arc::clone(map));
        }
    }

    fn answer(&self, verdict: SavedVerdict) -> ControlReply {
        match (verdict, &self.published) {
            (SavedVerdict::Reply(reply), _) => *reply,
            (SavedVerdict::Map(_), None) => ControlReply::Map(None),
            (SavedVerdict::Map(known), Some(map)) => self.history.answer(map, known),
        }
    }
}

/// Makes a coordinator at a time, from the saved state if there is one.
pub type Fresh = Box<dyn Fn(Option<&[u8]>, Duration) -> SimulatedState>;

/// An instance.
pub struct SimCoordinator {
    fresh: Fresh,
    election: KeyElection,
    timing: ClusterTiming,
    reachability: LeaderReachability,
    /// Nodes of the cluster.
    nodes: usize,
    leading: Option<SimulatedLeader>,
    pending: Option<PendingRequest>,
    queue: VecDeque<(ProcessPlace, RequestId, ControlRequest)>,
    /// The node that waits for the next map, and the epoch that it knows.
    watches: BTreeMap<ProcessPlace, (RequestId, Epoch)>,
    next_request: u64,
    /// The voter of this instance, where voters keep the state.
    voting: Option<SimVoter>,
}

impl SimCoordinator {
    /// The instance `id` in a cluster of `nodes` nodes; `number` is of no other process. `fresh`
    /// makes a coordinator, from the saved state.
    #[must_use]
    pub fn new(id: u32, number: u64, nodes: usize, timing: ClusterTiming, fresh: Fresh) -> Self {
        let leader = LeaderAddress { node: NodeId(id), addresses: vec![format!("tcp://k{id}:1")] };
        Self {
            fresh,
            election: KeyElection::new(leader, number, timing),
            timing,
            reachability: LeaderReachability::new(NodeId(id), timing),
            nodes,
            leading: None,
            pending: None,
            queue: VecDeque::new(),
            watches: BTreeMap::new(),
            next_request: number << 20,
            voting: None,
        }
    }

    /// The same, with its state at voters.
    #[must_use]
    pub fn with_voter(mut self, voting: SimVoter) -> Self {
        self.voting = Some(voting);
        self
    }

    /// Its voter, if there are any.
    #[must_use]
    pub const fn voting(&self) -> Option<&SimVoter> {
        self.voting.as_ref()
    }

    /// Whether it decides now.
    #[must_use]
    pub const fn leads(&self) -> bool {
        self.leading.is_some()
    }

    fn ask_store(
        &mut self,
        request: StateRequest,
        kind: PendingKind,
        context: &mut ProcessContext<'_>,
    ) {
        self.next_request += 1;
        let id = RequestId(self.next_request);
        self.pending = Some(PendingRequest { id, sent: context.now, kind });
        match &mut self.voting {
            Some(voting) => voting.ask(id, request, context),
            None => {
                let body = control::encode(&request);
                context.send(ProcessPlace::Store, SimMessage::Keeper { id, body });
            }
        }
        context.wake_at(context.now + STORE_TIMEOUT);
    }

    /// Does the work that is due.
    fn pump(&mut self, context: &mut ProcessContext<'_>) {
        if let Some(voting) = &mut self.voting {
            voting.pump(context);
            self.voted(context);
        }
        for _ in 0..STEPS_MAX {
            self.step(context);
            if !self.voted(context) {
                break;
            }
        }
    }

    /// Takes the answers of its voter; whether there were any.
    fn voted(&mut self, context: &mut ProcessContext<'_>) -> bool {
        let answers = self.voting.as_mut().map(SimVoter::answers).unwrap_or_default();
        let is_any = !answers.is_empty();
        for (id, reply) in answers {
            if self.pending.as_ref().is_none_or(|pending| pending.id != id) {
                continue;
            }
            match reply {
                Some(reply) => self.stored(reply, context),
                None => self.unanswered(context),
            }
        }
        is_any
    }

    fn step(&mut self, context: &mut ProcessContext<'_>) {
        context.wake_at(context.now + TICK);
        if self.pending.as_ref().is_some_and(|pending| context.now >= pending.sent + STORE_TIMEOUT)
        {
            self.unanswered(context);
        }
        if self.leading.is_some() && !self.election.leads(context.now) {
            self.step_down(context);
        }
        self.watch_leader(context);
        if self.leading.is_none() && !self.election.leads(context.now) {
            self.send_on(context);
        }
        if self.pending.is_some() {
            return;
        }
        match self.election.next(context.now) {
            ElectionStep::Read => {
                return self.ask_store(StateRequest::Read, PendingKind::Read, context);
            }
            ElectionStep::Swap { expected, seat } => {
                let swap = StateRequest::Swap { expected, seat, state: None };
                return self.ask_store(swap, PendingKind::Renew, context);
            }
            ElectionStep::Rest => {}
        }
        if self.leading.is_some() {
            self.decide(context);
        } else if self.election.leads(context.now) {
            self.ask_store(StateRequest::Load, PendingKind::Load, context);
        }
    }

    /// Answers the waiting requests, and lets time pass. In this order, as the node does: a silent
    /// node is found out when every node that spoke was heard.
    fn decide(&mut self, context: &mut ProcessContext<'_>) {
        let Some(leading) = &mut self.leading else { return };
        let gathered = leading.saved_at + self.timing.gather;
        if context.now < gathered {
            return context.wake_at(gathered);
        }
        let mut answers = Vec::new();
        while let Some((from, id, request)) = self.queue.pop_front() {
            if let ControlRequest::Watch { known, .. } = request {
                if known < leading.saved.1 {
                    answers.push((from, id, SavedVerdict::Map(known)));
                } else {
                    self.watches.insert(from, (id, known));
                }
                continue;
            }
            answers.push((from, id, leading.decisions.decide(context.now, request)));
        }
        leading.decisions.tick(context.now);
        if leading.now() == leading.saved {
            return answer(leading, answers, context);
        }
        let state = Some(leading.decisions.state());
        match self.election.renewal_now(context.now) {
            Some((expected, seat)) => {
                let swap = StateRequest::Swap { expected, seat, state };
                self.ask_store(swap, PendingKind::Save(answers), context);
            }
            None => self.step_down(context),
        }
    }

    /// Does the leader reach the nodes?
    fn watch_leader(&mut self, context: &mut ProcessContext<'_>) {
        for (_, _, request) in &self.queue {
            if let ControlRequest::Heartbeat(beat) = request {
                self.reachability.heard(beat, context.now);
            }
        }
        let leader = self.election.leader().map(|leader| leader.node);
        if self.reachability.deposes(leader, None, self.nodes, context.now) {
            context.note(|| format!("challenges {leader:?}"));
            self.election.challenge();
        }
    }

    /// The store has not answered in time.
    fn unanswered(&mut self, context: &mut ProcessContext<'_>) {
        let Some(PendingRequest { sent, kind, .. }) = self.pending.take() else { return };
        if let Some(voting) = &mut self.voting {
            voting.forget();
        }
        match kind {
            PendingKind::Read => self.election.unreadable(context.now),
            PendingKind::Load => {}
            PendingKind::Renew => self.election.swapped(sent, context.now, SwapResult::Unknown),
            PendingKind::Save(_) => {
                self.election.swapped(sent, context.now, SwapResult::Unknown);
                self.step_down(context);
            }
        }
    }

    fn stored(&mut self, reply: StateReply, context: &mut ProcessContext<'_>) {
        let Some(PendingRequest { sent, kind, .. }) = self.pending.take() else { return };
        let now = context.now;
        match (kind, reply) {
            (PendingKind::Read, StateReply::Key(key)) => self.election.observed(now, key.into()),
            (PendingKind::Renew, reply) => self.election.swapped(sent, now, swapped(reply)),
            (PendingKind::Save(answers), reply) => {
                let swapped = swapped(reply);
                let is_saved = matches!(swapped, SwapResult::Done(_));
                self.election.swapped(sent, now, swapped);
                if is_saved { self.saved(answers, context) } else { self.step_down(context) }
            }
            (PendingKind::Load, StateReply::State(state)) => {
                if self.election.leads(now) {
                    let decisions = (self.fresh)(state.as_deref(), now);
                    let mut leading = SimulatedLeader {
                        decisions,
                        saved: (0, Epoch(0)),
                        saved_at: now,
                        published: None,
                        history: MapHistory::default(),
                    };
                    leading.publish(now);
                    context.note(|| format!("leads, from {}", leading.saved.1));
                    // Saved is decided, also when nobody was told.
                    if let Some(map) = leading.decisions.map_data() {
                        context.audit.published(&map, context.world_now);
                    }
                    self.leading = Some(leading);
                }
            }
            (PendingKind::Read | PendingKind::Load, _) => {}
        }
    }

    /// The decision is saved: it counts from now on.
    fn saved(&mut self, answers: Vec<Answer>, context: &mut ProcessContext<'_>) {
        let Some(leading) = &mut self.leading else { return };
        leading.publish(context.now);
        if let Some(map) = leading.decisions.map().map(|map| map.data()) {
            context
                .note(|| format!("publishes {}: {}", map.epoch, crate::leader_state::words(map)));
            context.audit.published(map, context.world_now);
        }
        let watches = std::mem::take(&mut self.watches).into_iter();
        let watches = watches.map(|(place, (id, known))| (place, id, SavedVerdict::Map(known)));
        answer(leading, watches.collect(), context);
        answer(leading, answers, context);
    }

    fn step_down(&mut self, context: &mut ProcessContext<'_>) {
        if self.leading.take().is_some() {
            context.note(|| "does not lead any more".into());
        }
        self.send_on(context);
    }

    /// Tells every node that waits that another instance leads.
    fn send_on(&mut self, context: &mut ProcessContext<'_>) {
        let leader = self.election.leader().cloned();
        let waiting = self.queue.drain(..).map(|(place, id, _)| (place, id));
        let watching = std::mem::take(&mut self.watches);
        for (place, id) in waiting.chain(watching.into_iter().map(|(place, (id, _))| (place, id))) {
            let reply = ControlReply::NotLeader { leader: leader.clone() };
            context.send(place, SimMessage::control_reply(id, &reply));
        }
    }
}

fn swapped(reply: StateReply) -> SwapResult {
    match reply {
        StateReply::Swapped(revision) => SwapResult::Done(revision),
        StateReply::Key(key) => SwapResult::Lost(key.into()),
        StateReply::State(_) => SwapResult::Unknown,
    }
}

fn answer(leading: &SimulatedLeader, answers: Vec<Answer>, context: &mut ProcessContext<'_>) {
    for (place, id, verdict) in answers {
        context.send(place, SimMessage::control_reply(id, &leading.answer(verdict)));
    }
}

impl SimProcess for SimCoordinator {
    fn start(&mut self, context: &mut ProcessContext<'_>) {
        if let Some(voting) = &mut self.voting {
            voting.start(context);
        }
        self.pump(context);
    }

    fn receive(
        &mut self,
        from: ProcessPlace,
        message: SimMessage,
        context: &mut ProcessContext<'_>,
    ) {
        match message {
            SimMessage::KeeperReply { id, body } => {
                let is_pending = self.pending.as_ref().is_some_and(|pending| pending.id == id);
                if let (true, Ok(reply)) = (is_pending, control::decode(&body)) {
                    self.stored(reply, context);
                }
            }
            SimMessage::Control { id, body } => {
                if let (true, Ok(request)) = (self.queue.len() < QUEUE_MAX, control::decode(&body))
                {
                    self.queue.push_back((from, id, request));
                }
            }
            SimMessage::Vote { body } => {
                if let Some(voting) = &mut self.voting {
                    voting.receive(from, body);
                }
            }
            _ => {}
        }
        self.pump(context);
    }

    fn broken(&mut self, peer: ProcessPlace, context: &mut ProcessContext<'_>) {
        self.watches.remove(&peer);
        if peer == ProcessPlace::Store {
            self.unanswered(context);
        }
        self.pump(context);
    }

    fn wake(&mut self, context: &mut ProcessContext<'_>) {
        self.pump(context);
    }

    fn die(&mut self, rng: &mut SimRng, disk: &mut SimDisk) {
        if let Some(voting) = &mut self.voting {
            voting.die(rng, disk);
        }
    }
}
