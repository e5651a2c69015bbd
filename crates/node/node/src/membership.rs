//! The node's part in the cluster's membership: its lease, the leader that it knows, the reports of
//! its primaries, and the coordinator instance if it has one.
//!
//! ```text
//!  beat     one thread for each coordinator instance elsewhere: "I live"; the leader's answer extends the lease
//!  follow   joins at the leader, and always has one question for a newer map under way there
//!  waiting  says what a node without a map waits for
//!  reports  takes to the leader what shards noticed of members
//!  sender  one thread for each other node with a voter: messages of this node's voter
//!  keeper   the coordinator instance in this node: takes part in the election and, while it leads, decides
//! ```

pub(crate) mod heartbeat;
pub(crate) mod leader_loop;
mod leader_state;
pub(crate) mod map_watch;
pub(crate) mod reports;
pub(crate) mod vote_sender;
pub(crate) mod waiting;
mod waiting_reports;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use samite_coordinator::LeaderReachability;
use samite_coordinator::store::VoterMailbox;
use samite_transport::Address;
use samite_types::{Error, ErrorKind, NodeId, Result};
use samite_wire::control::{ControlReply, ControlRequest};
use samite_wire::membership::LeaderAddress;

use crate::control_reply::ReplyTo;
use crate::mutex::lock;
use waiting::CoordinatorTries;
use waiting_reports::WaitingReports;

/// Most requests that wait for the coordinator instance.
pub(crate) const LEADER_QUEUE_LEN: usize = 1024;

/// A request to the coordinator instance of this node.
#[derive(Debug)]
pub(crate) enum CoordinatorAsk {
    Request(ControlRequest, AnswerRoute),
    /// End.
    End,
}

/// Where its answer goes.
#[derive(Clone, Debug)]
pub(crate) enum AnswerRoute {
    /// To the client or node that asked this node.
    Shard(ReplyTo),
    /// To a thread of this node. Its queue has room for the one answer.
    Thread(SyncSender<ControlReply>),
}

/// The leader, as this node knows.
#[derive(Debug, Default)]
struct KnownLeader {
    leader: Option<LeaderAddress>,
    /// By which way its last answer came.
    address: Option<Address>,
    /// Instances that heartbeats go to.
    beaten: HashSet<NodeId>,
}

/// The state of membership that the threads of a node share.
#[derive(Debug)]
pub(crate) struct NodeMembership {
    lease_until_ns: AtomicU64,
    /// When the newest heartbeat that a leader has answered was sent.
    answered_ns: AtomicU64,
    leads: AtomicBool,
    leader_loop: Option<SyncSender<CoordinatorAsk>>,
    /// Why there is no map yet, in words.
    missing: Mutex<Option<String>>,
    pub tries: CoordinatorTries,
    known: Mutex<KnownLeader>,
    known_changed: Condvar,
    /// Reports of heartbeats about the leader.
    pub reachability: Mutex<LeaderReachability>,
    pub reports: WaitingReports,
    /// Of this node's voter, if it may have one.
    pub mailbox: OnceLock<VoterMailbox>,
}

impl NodeMembership {
    pub(crate) fn new(
        leader_loop: Option<SyncSender<CoordinatorAsk>>,
        reachability: LeaderReachability,
    ) -> Self {
        Self {
            lease_until_ns: AtomicU64::new(0),
            answered_ns: AtomicU64::new(0),
            leads: AtomicBool::new(false),
            leader_loop,
            missing: Mutex::default(),
            tries: CoordinatorTries::default(),
            known: Mutex::default(),
            known_changed: Condvar::new(),
            reachability: Mutex::new(reachability),
            reports: WaitingReports::default(),
            mailbox: OnceLock::new(),
        }
    }

    /// Until when this node may serve groups with more than one member, on the monotonic clock.
    pub(crate) fn lease_until(&self) -> Duration {
        Duration::from_nanos(self.lease_until_ns.load(Ordering::Acquire))
    }

    /// The leader has granted that. Leases only grow: an older answer that comes late changes nothing.
    pub(crate) fn extend_lease(&self, until: Duration) {
        let until = u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
        self.lease_until_ns.fetch_max(until, Ordering::AcqRel);
    }

    /// A leader has answered a heartbeat that was sent then, whatever it said.
    pub(crate) fn answered(&self, sent: Duration) {
        let sent = u64::try_from(sent.as_nanos()).unwrap_or(u64::MAX);
        self.answered_ns.fetch_max(sent, Ordering::AcqRel);
    }

    /// Whether a leader has answered a heartbeat that is not older than `term`.
    pub(crate) fn is_led(&self, now: Duration, term: Duration) -> bool {
        let answered = self.answered_ns.load(Ordering::Acquire);
        answered > 0 && now <= Duration::from_nanos(answered) + term
    }

    /// Whether the coordinator instance of this node decides.
    pub(crate) fn leads(&self) -> bool {
        self.leads.load(Ordering::Acquire)
    }

    /// Asks the coordinator instance of this node.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`]: too much waits already. [`ErrorKind::Unavailable`]: there is none, or the node is stopping.
    pub(crate) fn ask(&self, request: ControlRequest, way: AnswerRoute) -> Result<()> {
        let none = || Error::new(ErrorKind::Unavailable, "no coordinator lives here");
        let leader_loop = self.leader_loop.as_ref().ok_or_else(none)?;
        leader_loop.try_send(CoordinatorAsk::Request(request, way)).map_err(|error| match error {
            TrySendError::Full(_) => {
                Error::new(ErrorKind::Busy, "too many requests wait for the coordinator; try again")
            }
            TrySendError::Disconnected(_) => Error::new(ErrorKind::Unavailable, "node is stopping"),
        })
    }

    /// Ends the coordinator instance, which may be busy for a short time.
    pub(crate) fn end_leader_loop(&self) {
        if let Some(leader_loop) = &self.leader_loop {
            let _ = leader_loop.send(CoordinatorAsk::End);
        }
    }

    /// The leader, as far as this node knows.
    pub(crate) fn leader(&self) -> Option<LeaderAddress> {
        lock(&self.known).leader.clone()
    }

    /// Another instance says which one leads.
    fn heard_of(&self, leader: LeaderAddress) {
        let mut known = lock(&self.known);
        if known.leader.as_ref() != Some(&leader) {
            known.leader = Some(leader);
        }
    }

    /// The instance on `node`, at `address`, has answered as leader.
    fn led_by(&self, node: NodeId, address: &Address) {
        let mut known = lock(&self.known);
        if known.leader.as_ref().is_none_or(|leader| leader.node != node) {
            known.leader = Some(LeaderAddress { node, addresses: vec![address.to_string()] });
        }
        if known.address.as_ref() != Some(address) {
            tracing::info!(leader = %node, %address, "follows");
            known.address = Some(address.clone());
            self.known_changed.notify_all();
        }
    }

    /// Where the leader answered last; waits for it at most for `timeout`.
    fn leader_address(&self, timeout: Duration) -> Option<Address> {
        let known = lock(&self.known);
        let waiting = |known: &mut KnownLeader| known.address.is_none();
        let waited = self.known_changed.wait_timeout_while(known, timeout, waiting);
        waited.unwrap_or_else(PoisonError::into_inner).0.address.clone()
    }

    /// The leader at `address` has stopped answering as such.
    fn lost(&self, address: &Address) {
        let mut known = lock(&self.known);
        if known.address.as_ref() == Some(address) {
            known.address = None;
        }
    }

    /// Notes that heartbeats go to the instance on `node`; whether they did not before.
    fn sends_heartbeats(&self, node: NodeId) -> bool {
        lock(&self.known).beaten.insert(node)
    }

    /// To how many instances heartbeats go.
    fn instances(&self) -> usize {
        lock(&self.known).beaten.len()
    }

    /// Why there is no map yet.
    pub(crate) fn missing(&self) -> Option<String> {
        lock(&self.missing).clone()
    }
}
