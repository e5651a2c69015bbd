//! The coordinator instance of this node: a thread that takes part in the election and, while it leads, decides.
//!
//! A decision is saved first, then published, then answered. When it could not be saved, or another
//! instance may have taken over, everything that was decided here is forgotten, and begins anew
//! from the saved state.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use samite_coordinator::Coordinator;
use samite_coordinator::store::{InstanceRole, StateStore};
use samite_types::{Clock, Epoch, Error, ErrorKind, NodeId, Result, SystemClock};
use samite_wire::control::{ControlReply, ControlRequest, NodeInfo};
use samite_wire::membership::{Heartbeat, LeaderAddress};

use super::leader_state::{LeaderState, LeaderVerdict};
use super::map_watch::is_final;
use super::{AnswerRoute, CoordinatorAsk};
use crate::config::InstanceConfig;
use crate::control_reply::{ReplyTo, refused};
use crate::inbox::InboxMessage;
use crate::mutex::lock;
use crate::shared::{NodeNotice, NodeShared, WorkerJob};

/// How often time passes for the coordinator.
const TICK: Duration = Duration::from_millis(50);
/// Most requests that are answered between two ticks.
const ASKS_MAX: usize = 256;

/// The instance.
pub(crate) struct LeaderLoop {
    pub cluster: String,
    pub config: InstanceConfig,
    pub info: NodeInfo,
    /// By which storage it joined last.
    pub before: u64,
    pub store: Box<dyn StateStore>,
    /// When something was saved last.
    pub saved_at: Duration,
    /// Epoch of the map whose nodes the store knows.
    pub told: Epoch,
}

/// A coordinator that leads.
struct LeadingCoordinator {
    coordinator: LeaderState,
    /// Revision of the saved state; `None`: nothing yet.
    saved: Option<u64>,
    /// It decides nothing from then on.
    until: Duration,
}

impl LeaderLoop {
    /// Runs until the node ends.
    pub(crate) fn run(mut self, shared: &NodeShared, asks: &Receiver<CoordinatorAsk>) {
        let mut leading: Option<LeadingCoordinator> = None;
        let mut is_ended = false;
        while !is_ended {
            let first = asks.recv_timeout(TICK);
            is_ended = matches!(first, Err(RecvTimeoutError::Disconnected));
            self.gather(shared);
            leading = self.campaign(shared, leading);
            let mut decided = Vec::new();
            for ask in first.into_iter().chain(asks.try_iter().take(ASKS_MAX)) {
                match ask {
                    CoordinatorAsk::End => is_ended = true,
                    CoordinatorAsk::Request(request, way) => {
                        decided.push(decide(leading.as_mut(), request, way));
                    }
                }
            }
            if let Some(mut leads) = leading.take() {
                leading = self.tick(shared, &mut leads).then_some(leads);
            }
            self.watch_leader(shared);
            shared.membership.leads.store(leading.is_some(), Ordering::Release);
            for one in decided {
                answer(shared, leading.as_ref(), one);
            }
        }
        self.store.resign();
    }

    /// Lets changes that come close together become one map: each goes to every node.
    fn gather(&self, shared: &NodeShared) {
        let rest = self.saved_at + shared.timing.gather;
        std::thread::sleep(rest.saturating_sub(SystemClock.monotonic()).min(shared.timing.gather));
    }

    /// Does the work that is due for the leadership.
    fn campaign(
        &mut self,
        shared: &NodeShared,
        leading: Option<LeadingCoordinator>,
    ) -> Option<LeadingCoordinator> {
        let until = match self.store.campaign() {
            InstanceRole::Leads { until } => until,
            InstanceRole::Follows { leader } => {
                if leading.is_some() {
                    step_down(shared, "its leadership has ended");
                }
                leader.into_iter().for_each(|leader| shared.membership.heard_of(leader));
                return None;
            }
        };
        if let Some(leading) = leading {
            return Some(LeadingCoordinator { until, ..leading });
        }
        match self.begin(shared, until) {
            Ok(leading) => Some(leading),
            // A state that is damaged stays so.
            Err(error)
                if (is_final(error.kind()) || error.kind() == ErrorKind::Corrupt)
                    && shared.map().is_none() =>
            {
                shared.notice(NodeNotice::Fatal(error));
                None
            }
            Err(error) => {
                tracing::warn!(%error, "begin to lead");
                None
            }
        }
    }

    /// Does this node's part as a detector of the leader's reachability.
    fn watch_leader(&mut self, shared: &NodeShared) {
        let now = SystemClock.monotonic();
        let own = self.own_heartbeat(shared, now);
        let leader = shared.membership.leader().map(|leader| leader.node);
        let map = shared.map();
        if let Some(map) = map.as_ref().filter(|map| map.epoch() != self.told) {
            let nodes: Vec<NodeId> = map.data().nodes.iter().map(|info| info.node).collect();
            self.store.set_nodes(&nodes);
            self.told = map.epoch();
        }
        let mut reachability = lock(&shared.membership.reachability);
        reachability.heard(&own, now);
        let deposes = reachability.deposes(leader, map.as_deref(), self.config.expected, now);
        drop(reachability);
        if deposes {
            tracing::warn!(?leader, "the leader reaches too few nodes; takes its place");
            self.store.challenge();
        }
    }

    fn own_heartbeat(&self, shared: &NodeShared, now: Duration) -> Heartbeat {
        Heartbeat {
            node: self.info.node,
            incarnation: self.info.incarnation,
            serves: shared.taken_up(),
            is_led: shared.membership.is_led(now, shared.timing.lease),
        }
    }

    /// Takes up the saved state, and joins this node.
    fn begin(&mut self, shared: &NodeShared, until: Duration) -> Result<LeadingCoordinator> {
        let saved = self.store.load()?;
        if saved.is_none() && (self.config.is_founded || shared.map().is_some()) {
            let lost = format!(
                "the cluster map of {} is lost: {} has none. Without it nothing is begun anew, for nodes would let go of what they keep; restore it",
                self.cluster, self.config.store,
            );
            return Err(Error::new(ErrorKind::Invalid, lost));
        }
        let coordinator = self.coordinator(shared, saved.as_deref())?;
        let epoch = coordinator.epoch();
        tracing::info!(%epoch, "leads");
        // It saves the state that it has read: a write of before that was given up may be under way
        // still, and would change it behind this one's back.
        let mut leading = LeadingCoordinator { coordinator, saved: None, until };
        if let Some(map) = leading.coordinator.map() {
            shared.publish(Arc::clone(map))?;
        }
        let info = shared.as_it_is(&self.info);
        leading.coordinator.join(SystemClock.monotonic(), info, self.before)?;
        self.save(shared, &mut leading)?;
        let NodeInfo { node, addresses, .. } = self.info.clone();
        shared.membership.heard_of(LeaderAddress { node, addresses });
        shared.membership.leads.store(true, Ordering::Release);
        Ok(leading)
    }

    fn coordinator(&self, shared: &NodeShared, saved: Option<&[u8]>) -> Result<LeaderState> {
        // Seconds: more than any earlier coordinator of this cluster has given out.
        let start = u32::try_from(SystemClock.realtime().as_secs()).unwrap_or(u32::MAX / 2);
        let InstanceConfig { expected, partitions, .. } = self.config;
        let fresh = Coordinator::new(self.cluster.clone(), expected)?.starting_at(start);
        let fresh = match partitions {
            Some(partitions) => fresh.with_partitions(partitions)?,
            None => fresh,
        };
        LeaderState::new(fresh, shared.timing, SystemClock.monotonic(), saved)
    }

    /// Saves and publishes the decisions, if there are any (I7).
    fn save(&mut self, shared: &NodeShared, leading: &mut LeadingCoordinator) -> Result<()> {
        let missing = leading.coordinator.ready_map().err().map(|error| error.message().to_owned());
        *lock(&shared.membership.missing) = missing;
        let revision = leading.coordinator.revision();
        if leading.saved == Some(revision) {
            return Ok(());
        }
        if SystemClock.monotonic() >= leading.until {
            return Err(Error::new(ErrorKind::Unavailable, "it may not lead any more"));
        }
        self.store.save(&leading.coordinator.state())?;
        leading.saved = Some(revision);
        self.saved_at = SystemClock.monotonic();
        leading.coordinator.map().cloned().map_or(Ok(()), |map| shared.publish(map))
    }

    /// Lets time pass; whether this instance still leads.
    fn tick(&mut self, shared: &NodeShared, leading: &mut LeadingCoordinator) -> bool {
        let now = SystemClock.monotonic();
        if now >= leading.until {
            step_down(shared, "its leadership has ended");
            return false;
        }
        let own = self.own_heartbeat(shared, now);
        let lease = leading.coordinator.heartbeat(now, &own);
        leading.coordinator.tick(now);
        if let Err(error) = self.save(shared, leading) {
            step_down(shared, error.message());
            return false;
        }
        shared.membership.answered(now);
        if lease.term_us > 0 {
            shared.extend_lease(now + Duration::from_micros(lease.term_us));
        }
        true
    }
}

/// Refuses requests to a process that votes and leads nothing, until it ends.
pub(crate) fn refuse(shared: &NodeShared, asks: &Receiver<CoordinatorAsk>) {
    while let Ok(CoordinatorAsk::Request(_, way)) = asks.recv() {
        send(shared, way, ControlReply::NotLeader { leader: None });
    }
}

/// A request, and its answer once that is saved.
struct DecidedRequest {
    way: AnswerRoute,
    /// `None`: this instance does not lead.
    verdict: Option<Result<LeaderVerdict>>,
    is_change: bool,
    /// A client that wants a change knows nothing of leaders: its request is passed on.
    again: Option<(ControlRequest, ReplyTo)>,
}

fn decide(
    leading: Option<&mut LeadingCoordinator>,
    request: ControlRequest,
    way: AnswerRoute,
) -> DecidedRequest {
    let is_change = matches!(
        request,
        ControlRequest::CreateDataset(_)
            | ControlRequest::DropDataset { .. }
            | ControlRequest::SetAccess { .. }
            | ControlRequest::Freeze(_)
            | ControlRequest::AcknowledgeLoss { .. }
            | ControlRequest::Wish { .. }
    );
    let again = match &way {
        AnswerRoute::Shard(to) if is_change => Some((request.clone(), *to)),
        _ => None,
    };
    let now = SystemClock.monotonic();
    let leading = leading.filter(|leading| now < leading.until);
    let verdict = leading.map(|leading| leading.coordinator.decide(now, request));
    DecidedRequest { way, verdict, is_change, again }
}

/// Sends the answer, if the decision is saved: this instance leads still.
fn answer(shared: &NodeShared, leading: Option<&LeadingCoordinator>, decided: DecidedRequest) {
    let DecidedRequest { way, verdict, is_change, again } = decided;
    let (Some(leading), Some(verdict)) = (leading, verdict) else {
        let sent_on = again.map(|(request, to)| shared.work(WorkerJob::Forward { request, to }));
        if sent_on.is_none_or(|sent| sent.is_err()) {
            let leader = shared.membership.leader();
            send(shared, way, ControlReply::NotLeader { leader });
        }
        return;
    };
    let reply = match (verdict, leading.coordinator.map()) {
        (Ok(LeaderVerdict::Reply(reply)), _) => *reply,
        (Ok(LeaderVerdict::Map(known)), Some(map)) => shared.map_since(map, known),
        (Ok(LeaderVerdict::Map(_)), None) => ControlReply::Map(None),
        (Err(error), _) => refused(&error),
    };
    let epoch = leading.coordinator.epoch();
    if let (true, AnswerRoute::Shard(to)) = (is_change && !shared.is_settled(epoch), &way) {
        let settle = WorkerJob::Settle { epoch, reply: reply.clone(), to: *to };
        if shared.work(settle).is_ok() {
            return;
        }
        // The worker has too much to do: the answer comes before all serve by the new map.
    }
    send(shared, way, reply);
}

fn step_down(shared: &NodeShared, why: &str) {
    tracing::warn!(why, "does not lead any more");
    shared.membership.leads.store(false, Ordering::Release);
    // So that the watches for maps here are sent on.
    for inbox in &shared.inboxes {
        inbox.wake();
    }
}

fn send(shared: &NodeShared, way: AnswerRoute, reply: ControlReply) {
    match way {
        AnswerRoute::Shard(to) => {
            shared.inboxes[usize::from(to.shard.get())].send(InboxMessage::Control(to, reply));
        }
        // The sender of the request may have given up.
        AnswerRoute::Thread(answer) => drop(answer.try_send(reply)),
    }
}
