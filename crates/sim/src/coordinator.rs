//! An instance of the coordinator: takes part in the election, and while it leads, decides. What is decided is saved first, then published,
//! then answered; what could not be saved is forgotten, and everything begins anew from what is saved.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use samite_coordinator::store::election::{Election, Step, Swapped};
use samite_coordinator::{Timing, Witness};
use samite_placement::{ClusterMap, MapHistory};
use samite_types::{Epoch, NodeId, RequestId};
use samite_wire::control::{self, ControlReply, ControlRequest};
use samite_wire::membership::Leader;

use crate::decider::{Decider, Verdict};
use crate::keeper::{KeeperReply, KeeperRequest};
use crate::message::Message;
use crate::net::Place;
use crate::process::{Context, Disk, Process};
use crate::rng::Rng;
use crate::voting::Voting;

/// How often time passes for the coordinator.
const TICK: Duration = Duration::from_millis(50);
/// How long the store may take over an answer.
const STORE_TIMEOUT: Duration = Duration::from_millis(500);
/// Most requests that wait.
const QUEUE_MAX: usize = 1024;
/// Most steps at one time: a voter answers some questions at once.
const STEPS_MAX: usize = 4;

/// A request to the store under way.
struct Pending {
    id: RequestId,
    sent: Duration,
    kind: Kind,
}

enum Kind {
    Read,
    Renew,
    Load,
    /// The state; these answers wait for it.
    Save(Vec<Answer>),
}

type Answer = (Place, RequestId, Verdict);

/// A coordinator that leads.
struct Leading {
    decider: Decider,
    /// Revision of what is saved, and the epoch of its map.
    saved: (u64, Epoch),
    saved_at: Duration,
    published: Option<Arc<ClusterMap>>,
    history: MapHistory,
}

impl Leading {
    fn now(&self) -> (u64, Epoch) {
        (self.decider.revision(), self.decider.epoch())
    }

    /// What is decided is saved.
    fn publish(&mut self, now: Duration) {
        self.saved = self.now();
        self.saved_at = now;
        if let Some(map) = self.decider.map() {
            self.history.note(self.published.as_deref(), map);
            self.published = Some(Arc::clone(map));
        }
    }

    fn answer(&self, verdict: Verdict) -> ControlReply {
        match (verdict, &self.published) {
            (Verdict::Reply(reply), _) => reply,
            (Verdict::Map(_), None) => ControlReply::Map(None),
            (Verdict::Map(known), Some(map)) => self.history.answer(map, known),
        }
    }
}

/// Makes a coordinator at a time, from what is saved if something is.
pub type Fresh = Box<dyn Fn(Option<&[u8]>, Duration) -> Decider>;

/// An instance.
pub struct SimCoordinator {
    fresh: Fresh,
    election: Election,
    timing: Timing,
    witness: Witness,
    /// Nodes of the cluster.
    nodes: usize,
    leading: Option<Leading>,
    pending: Option<Pending>,
    queue: VecDeque<(Place, RequestId, ControlRequest)>,
    /// Who waits for the next map, and what it knows.
    watches: BTreeMap<Place, (RequestId, Epoch)>,
    next_request: u64,
    /// The voter of this instance, where voters keep the state.
    voting: Option<Voting>,
}

impl SimCoordinator {
    /// The instance `id` in a cluster of `nodes` nodes; `number` is of no other process. `fresh` makes a coordinator, from what is saved.
    #[must_use]
    pub fn new(id: u32, number: u64, nodes: usize, timing: Timing, fresh: Fresh) -> Self {
        let leader = Leader { node: NodeId(id), addresses: vec![format!("tcp://k{id}:1")] };
        Self {
            fresh,
            election: Election::new(leader, number, timing),
            timing,
            witness: Witness::new(NodeId(id), timing),
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
    pub fn with_voter(mut self, voting: Voting) -> Self {
        self.voting = Some(voting);
        self
    }

    /// Its voter, if there are any.
    #[must_use]
    pub const fn voting(&self) -> Option<&Voting> {
        self.voting.as_ref()
    }

    /// Whether it decides now.
    #[must_use]
    pub const fn leads(&self) -> bool {
        self.leading.is_some()
    }

    fn ask_store(&mut self, request: KeeperRequest, kind: Kind, context: &mut Context<'_>) {
        self.next_request += 1;
        let id = RequestId(self.next_request);
        self.pending = Some(Pending { id, sent: context.now, kind });
        match &mut self.voting {
            Some(voting) => voting.ask(id, request, context),
            None => {
                let body = control::encode(&request);
                context.send(Place::Store, Message::Keeper { id, body });
            }
        }
        context.wake_at(context.now + STORE_TIMEOUT);
    }

    /// Does what is due.
    fn pump(&mut self, context: &mut Context<'_>) {
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

    /// Takes what its voter answered; whether that was anything.
    fn voted(&mut self, context: &mut Context<'_>) -> bool {
        let answers = self.voting.as_mut().map(Voting::answers).unwrap_or_default();
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

    fn step(&mut self, context: &mut Context<'_>) {
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
            Step::Read => return self.ask_store(KeeperRequest::Read, Kind::Read, context),
            Step::Swap { expected, seat } => {
                let swap = KeeperRequest::Swap { expected, seat, state: None };
                return self.ask_store(swap, Kind::Renew, context);
            }
            Step::Rest => {}
        }
        if self.leading.is_some() {
            self.decide(context);
        } else if self.election.leads(context.now) {
            self.ask_store(KeeperRequest::Load, Kind::Load, context);
        }
    }

    /// Answers what waits, and lets time pass. In this order, as the node does: who is silent is found out when everybody who spoke was heard.
    fn decide(&mut self, context: &mut Context<'_>) {
        let Some(leading) = &mut self.leading else { return };
        let gathered = leading.saved_at + self.timing.gather;
        if context.now < gathered {
            return context.wake_at(gathered);
        }
        let mut answers = Vec::new();
        while let Some((from, id, request)) = self.queue.pop_front() {
            if let ControlRequest::Watch { known, .. } = request {
                if known < leading.saved.1 {
                    answers.push((from, id, Verdict::Map(known)));
                } else {
                    self.watches.insert(from, (id, known));
                }
                continue;
            }
            answers.push((from, id, leading.decider.decide(context.now, request)));
        }
        leading.decider.tick(context.now);
        if leading.now() == leading.saved {
            return answer(leading, answers, context);
        }
        let state = Some(leading.decider.state());
        match self.election.renewal_now(context.now) {
            Some((expected, seat)) => {
                let swap = KeeperRequest::Swap { expected, seat, state };
                self.ask_store(swap, Kind::Save(answers), context);
            }
            None => self.step_down(context),
        }
    }

    /// Does whoever leads reach the nodes?
    fn watch_leader(&mut self, context: &mut Context<'_>) {
        for (_, _, request) in &self.queue {
            if let ControlRequest::Heartbeat(beat) = request {
                self.witness.heard(beat, context.now);
            }
        }
        let leader = self.election.leader().map(|leader| leader.node);
        if self.witness.deposes(leader, None, self.nodes, context.now) {
            context.note(|| format!("challenges {leader:?}"));
            self.election.challenge();
        }
    }

    /// The store has not answered in time.
    fn unanswered(&mut self, context: &mut Context<'_>) {
        let Some(Pending { sent, kind, .. }) = self.pending.take() else { return };
        if let Some(voting) = &mut self.voting {
            voting.forget();
        }
        match kind {
            Kind::Read => self.election.unreadable(context.now),
            Kind::Load => {}
            Kind::Renew => self.election.swapped(sent, context.now, Swapped::Unknown),
            Kind::Save(_) => {
                self.election.swapped(sent, context.now, Swapped::Unknown);
                self.step_down(context);
            }
        }
    }

    fn stored(&mut self, reply: KeeperReply, context: &mut Context<'_>) {
        let Some(Pending { sent, kind, .. }) = self.pending.take() else { return };
        let now = context.now;
        match (kind, reply) {
            (Kind::Read, KeeperReply::Key(key)) => self.election.observed(now, key.into()),
            (Kind::Renew, reply) => self.election.swapped(sent, now, swapped(reply)),
            (Kind::Save(answers), reply) => {
                let swapped = swapped(reply);
                let is_saved = matches!(swapped, Swapped::Done(_));
                self.election.swapped(sent, now, swapped);
                if is_saved { self.saved(answers, context) } else { self.step_down(context) }
            }
            (Kind::Load, KeeperReply::State(state)) => {
                if self.election.leads(now) {
                    let decider = (self.fresh)(state.as_deref(), now);
                    let mut leading = Leading {
                        decider,
                        saved: (0, Epoch(0)),
                        saved_at: now,
                        published: None,
                        history: MapHistory::default(),
                    };
                    leading.publish(now);
                    context.note(|| format!("leads, from {}", leading.saved.1));
                    // Saved is decided, also when nobody was told.
                    if let Some(map) = leading.decider.map_data() {
                        context.audit.published(&map, context.world_now);
                    }
                    self.leading = Some(leading);
                }
            }
            (Kind::Read | Kind::Load, _) => {}
        }
    }

    /// What was decided is saved: it counts from now on.
    fn saved(&mut self, answers: Vec<Answer>, context: &mut Context<'_>) {
        let Some(leading) = &mut self.leading else { return };
        leading.publish(context.now);
        if let Some(map) = leading.decider.map().map(|map| map.data()) {
            context.note(|| format!("publishes {}: {}", map.epoch, crate::decider::words(map)));
            context.audit.published(map, context.world_now);
        }
        let watches = std::mem::take(&mut self.watches).into_iter();
        let watches = watches.map(|(place, (id, known))| (place, id, Verdict::Map(known)));
        answer(leading, watches.collect(), context);
        answer(leading, answers, context);
    }

    fn step_down(&mut self, context: &mut Context<'_>) {
        if self.leading.take().is_some() {
            context.note(|| "does not lead any more".into());
        }
        self.send_on(context);
    }

    /// Tells everybody who waits that another leads.
    fn send_on(&mut self, context: &mut Context<'_>) {
        let leader = self.election.leader().cloned();
        let waiting = self.queue.drain(..).map(|(place, id, _)| (place, id));
        let watching = std::mem::take(&mut self.watches);
        for (place, id) in waiting.chain(watching.into_iter().map(|(place, (id, _))| (place, id))) {
            let reply = ControlReply::NotLeader { leader: leader.clone() };
            context.send(place, Message::control_reply(id, &reply));
        }
    }
}

fn swapped(reply: KeeperReply) -> Swapped {
    match reply {
        KeeperReply::Swapped(revision) => Swapped::Done(revision),
        KeeperReply::Key(key) => Swapped::Lost(key.into()),
        KeeperReply::State(_) => Swapped::Unknown,
    }
}

fn answer(leading: &Leading, answers: Vec<Answer>, context: &mut Context<'_>) {
    for (place, id, verdict) in answers {
        context.send(place, Message::control_reply(id, &leading.answer(verdict)));
    }
}

impl Process for SimCoordinator {
    fn start(&mut self, context: &mut Context<'_>) {
        if let Some(voting) = &mut self.voting {
            voting.start(context);
        }
        self.pump(context);
    }

    fn receive(&mut self, from: Place, message: Message, context: &mut Context<'_>) {
        match message {
            Message::KeeperReply { id, body } => {
                let is_pending = self.pending.as_ref().is_some_and(|pending| pending.id == id);
                if let (true, Ok(reply)) = (is_pending, control::decode(&body)) {
                    self.stored(reply, context);
                }
            }
            Message::Control { id, body } => {
                if let (true, Ok(request)) = (self.queue.len() < QUEUE_MAX, control::decode(&body))
                {
                    self.queue.push_back((from, id, request));
                }
            }
            Message::Vote { body } => {
                if let Some(voting) = &mut self.voting {
                    voting.receive(from, body);
                }
            }
            _ => {}
        }
        self.pump(context);
    }

    fn broken(&mut self, peer: Place, context: &mut Context<'_>) {
        self.watches.remove(&peer);
        if peer == Place::Store {
            self.unanswered(context);
        }
        self.pump(context);
    }

    fn wake(&mut self, context: &mut Context<'_>) {
        self.pump(context);
    }

    fn die(&mut self, rng: &mut Rng, disk: &mut Disk) {
        if let Some(voting) = &mut self.voting {
            voting.die(rng, disk);
        }
    }
}
