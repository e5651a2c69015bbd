//! Locks of partitions that this node has become the primary of, or a good member.
//!
//! A lock lives as long as its holder has a connection to a node that knows the lock. So before a
//! new primary grants any, it asks the others for the locks that they know: the members of before,
//! and the nodes beside the group that noted them. These locks come into the table here, as do the
//! locks that the primary tells a member that has become good; and as long as their holders have no
//! connection to this node it asks, now and then, whether another node still has one.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use samite_partition::locks::LockFile;
use samite_placement::ClusterMap;
use samite_transport::client::NodeLink;
use samite_transport::server::ConnectionPeer;
use samite_types::{
    ClientId, Clock, Deadline, Epoch, Error, ErrorKind, NodeId, PartitionId, Redundancy, Result,
    SystemClock, Term,
};
use samite_wire::control::{ControlReply, ControlRequest, MemberConsistency, NodeReachability};
use samite_wire::lock::{KNOWN_LOCKS_MAX, KnownLock, LOCK_CLIENTS_MAX, LockOwner};

use crate::inbox::InboxMessage;
use crate::locks::{Answers, NodeLocks, answer_to_wait};
use crate::membership::map_watch::NodeCredentials;
use crate::membership::reports::refusal;
use crate::peers::addresses;
use crate::shard::ShardService;
use crate::shared::{NodeShared, ReplyTo, lock};
use crate::worker::call;

/// How long another node may take over a connection or an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
/// Pause before nodes are asked again that have not answered.
const PAUSE: Duration = Duration::from_millis(10);
/// A node that has not answered for so long, though it is not taken for dead, is not waited for any more.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often the node asks after lock holders that are not connected here.
const LOOK_AFTER: Duration = Duration::from_millis(500);
/// How long a lock holder keeps its locks when no node has a connection of it, and none saw it go:
/// the nodes to which it was connected are gone, and it may sleep.
const GRACE: Duration = Duration::from_secs(60);
/// Most locks that are let go of while others are asked, and heeded.
const FORGOTTEN_MAX: usize = 1 << 16;
/// How often the thread looks whether the node stops.
const LOOK: Duration = Duration::from_secs(1);

/// A partition whose locks are not all known yet.
#[derive(Debug)]
struct RecoveringPartition {
    epoch: Epoch,
    since: Duration,
    /// Nodes that have not answered.
    from: Vec<NodeId>,
}

/// A lock holder that is not connected here.
#[derive(Debug, Default)]
struct AbsentHolder {
    /// When it was known to live.
    seen: Duration,
    /// Processes of nodes to which it was connected then.
    at: Vec<(NodeId, u64)>,
}

/// Locks that are taken over from other nodes.
#[derive(Debug, Default)]
pub(crate) struct LockRecovery {
    expected: HashMap<(Redundancy, PartitionId), RecoveringPartition>,
    absent: HashMap<ClientId, AbsentHolder>,
    /// Locks that were forgotten here while others were asked: what they say about them may be
    /// older.
    forgotten: HashSet<(LockFile, LockOwner)>,
}

impl LockRecovery {
    /// Whether others may know locks of this partition that are not known here yet.
    pub(crate) fn expects(&self, redundancy: Redundancy, partition: PartitionId) -> bool {
        self.expected.contains_key(&(redundancy, partition))
    }

    /// A client is connected here: from now on that shows whether it lives.
    pub(crate) fn came(&mut self, client: ClientId) {
        self.absent.remove(&client);
    }

    /// An owner lets go of locks on a file of which others may still tell.
    pub(crate) fn forgets(&mut self, file: LockFile, owner: LockOwner) {
        if self.forgotten.len() < FORGOTTEN_MAX {
            self.forgotten.insert((file, owner));
        }
    }

    fn is_idle(&self) -> bool {
        self.expected.is_empty() && self.absent.is_empty()
    }

    /// A node need not be asked any more for locks that are expected by this epoch.
    fn answered(&mut self, node: NodeId, by: Epoch) {
        for expected in self.expected.values_mut().filter(|expected| expected.epoch <= by) {
            expected.from.retain(|other| *other != node);
        }
        self.expected.retain(|_, expected| !expected.from.is_empty());
        if self.expected.is_empty() {
            self.forgotten.clear();
        }
    }

    /// Nodes to ask, each once.
    fn unasked(&mut self, now: Duration) -> Vec<NodeId> {
        self.expected.retain(|(_, partition), expected| {
            let goes_on = now < expected.since + PATIENCE;
            if !goes_on {
                tracing::warn!(%partition, silent = ?expected.from, "nobody else tells of locks");
            }
            goes_on
        });
        let all = self.expected.values().flat_map(|expected| &expected.from);
        let mut all: Vec<NodeId> = all.copied().collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The question about absent holders is answered. Those that are gone are returned.
    fn heard(
        &mut self,
        alive: &HolderLiveness,
        is_dead: impl Fn((NodeId, u64)) -> bool,
        now: Duration,
    ) -> Vec<ClientId> {
        let mut gone = Vec::new();
        self.absent.retain(|client, absent| {
            if let Some(at) = alive.clients.get(client) {
                *absent = AbsentHolder { seen: now, at: at.clone() };
                return true;
            }
            // Processes that had a connection say that they have none any more, and none is left to be asked.
            let is_told = |place: &(NodeId, u64)| alive.answered.contains(place);
            let is_gone = absent.at.iter().any(is_told)
                && absent.at.iter().all(|place| is_told(place) || is_dead(*place));
            let stays = !is_gone && now < absent.seen + GRACE;
            if !stays {
                gone.push(*client);
            }
            stays
        });
        gone
    }
}

/// Reports of other nodes about holders.
#[derive(Debug, Default)]
struct HolderLiveness {
    /// Processes that have answered.
    answered: HashSet<(NodeId, u64)>,
    /// The clients that are connected, and where.
    clients: HashMap<ClientId, Vec<(NodeId, u64)>>,
}

impl NodeLocks {
    /// There is a new map: finds out of which partitions this node `me` has become the primary, or
    /// a good member. Clients whose waits end because of it are returned.
    pub(crate) fn see_map(
        &mut self,
        before: Option<&ClusterMap>,
        map: &ClusterMap,
        me: NodeId,
    ) -> Vec<ReplyTo> {
        let now = SystemClock.monotonic();
        let mut fresh: HashSet<(Redundancy, PartitionId)> = HashSet::new();
        for table in &map.data().tables {
            let redundancy = table.redundancy;
            for (group, index) in table.groups.iter().zip(0..) {
                let partition = PartitionId(index);
                let place = (redundancy, partition);
                if !is_good(map, place, me) {
                    self.heir.expected.remove(&place);
                    continue;
                }
                let granter = map.node_of(redundancy, partition);
                let from = if granter != Some(me) {
                    // It has everything now, and may take the primary's place.
                    let is_new = before.is_some_and(|before| {
                        before.group(redundancy, partition).is_some() && !is_good(before, place, me)
                    });
                    let from = granter.filter(|_| is_new && redundancy > Redundancy(1));
                    from.into_iter().collect()
                } else {
                    let was_mine = before.is_some_and(|before| {
                        before.node_of(redundancy, partition) == Some(me)
                            && is_good(before, place, me)
                    });
                    if was_mine || group.term == Term(0) {
                        continue;
                    }
                    others_of(before, map, (place, me))
                };
                if !from.is_empty() {
                    let expected = RecoveringPartition { epoch: map.epoch(), since: now, from };
                    self.heir.expected.insert(place, expected);
                    if !before.is_some_and(|before| is_good(before, place, me)) {
                        fresh.insert(place);
                    }
                }
            }
        }
        if fresh.is_empty() { Vec::new() } else { self.begin_anew(map, &fresh) }
    }

    /// Forgets locks that others know better by now, of partitions that this node was a member of
    /// long ago.
    fn begin_anew(
        &mut self,
        map: &ClusterMap,
        fresh: &HashSet<(Redundancy, PartitionId)>,
    ) -> Vec<ReplyTo> {
        let redundancy_of = |dataset| map.dataset_by_id(dataset).map(|data| data.spec.redundancy);
        let ended = self.end_waits(|request| {
            redundancy_of(request.dataset)
                .is_some_and(|redundancy| fresh.contains(&(redundancy, request.partition)))
        });
        let absent = &self.heir.absent;
        self.table.retain_held(
            |file, held| {
                let Some(redundancy) = redundancy_of(file.dataset) else { return true };
                // Where there are no mirrors, nothing is noted: only the last primary knows.
                let is_old = redundancy == Redundancy(1) || absent.contains_key(&held.owner.client);
                !(is_old && fresh.contains(&(redundancy, file.partition)))
            },
            // No client waits any more.
            &mut Vec::new(),
        );
        ended
    }

    /// Locks on partitions of which `node` is a member by `map`, behind `after`; and whether there are more than are returned.
    fn known(
        &self,
        map: &ClusterMap,
        node: NodeId,
        after: Option<&KnownLock>,
    ) -> (Vec<KnownLock>, bool) {
        let after = after.map(KnownLock::place);
        let is_of_node = |file: &LockFile| {
            let dataset = map.dataset_by_id(file.dataset);
            let group = dataset.and_then(|data| map.group(data.spec.redundancy, file.partition));
            let members = group.into_iter().flat_map(|group| &group.members);
            members.into_iter().any(|member| map.node_of_target(member.target) == Some(node))
        };
        let held = self.table.held().filter(|(file, _)| is_of_node(file));
        let mut locks: Vec<KnownLock> = held
            .map(|(file, lock)| {
                let LockFile { dataset, partition, object, space } = file;
                let is_here = self.is_here(lock.owner.client);
                KnownLock { dataset, partition, object, space, lock: *lock, is_here }
            })
            .filter(|lock| after.is_none_or(|after| lock.place() > after))
            .collect();
        let has_more = locks.len() > KNOWN_LOCKS_MAX;
        if has_more {
            // Only the locks that are told of are sorted.
            locks.select_nth_unstable_by_key(KNOWN_LOCKS_MAX, KnownLock::place);
            locks.truncate(KNOWN_LOCKS_MAX);
        }
        locks.sort_unstable_by_key(KnownLock::place);
        (locks, has_more)
    }

    /// Takes over locks that a process of another node knows.
    fn take_over(&mut self, map: &ClusterMap, from: (NodeId, u64), locks: &[KnownLock]) {
        let now = SystemClock.monotonic();
        for known in locks {
            let KnownLock { dataset, partition, object, space, lock, is_here } = *known;
            let redundancy = map.dataset_by_id(dataset).map(|data| data.spec.redundancy);
            if !redundancy.is_some_and(|redundancy| self.heir.expects(redundancy, partition)) {
                continue;
            }
            let file = LockFile { dataset, partition, object, space };
            if self.heir.forgotten.contains(&(file, lock.owner)) {
                continue;
            }
            if !self.table.adopt(file, &lock) {
                tracing::warn!(%partition, "no room for a lock that another node knows");
            }
            let client = lock.owner.client;
            if !self.is_here(client) {
                let absent = self.heir.absent.entry(client).or_default();
                absent.seen = now;
                if is_here && !absent.at.contains(&from) {
                    absent.at.push(from);
                }
            }
        }
    }

    fn end_clients(&mut self, gone: &[ClientId]) -> Answers {
        let mut granted = Vec::new();
        gone.iter().for_each(|client| self.table.client_gone(*client, &mut granted));
        self.granted(&granted)
    }
}

/// Whether the node is a good member.
fn is_good(map: &ClusterMap, place: (Redundancy, PartitionId), node: NodeId) -> bool {
    let group = map.group(place.0, place.1);
    group.into_iter().flat_map(|group| &group.members).any(|member| {
        map.node_of_target(member.target) == Some(node)
            && member.consistency == MemberConsistency::Good
    })
}

/// Nodes that may know locks of a partition that `me` has become the primary of.
fn others_of(
    before: Option<&ClusterMap>,
    map: &ClusterMap,
    ((redundancy, partition), me): ((Redundancy, PartitionId), NodeId),
) -> Vec<NodeId> {
    let members = before.and_then(|before| before.group(redundancy, partition));
    let members = members.into_iter().flat_map(|group| &group.members);
    let mut others: Vec<NodeId> = if redundancy == Redundancy(1) {
        members.filter_map(|member| map.node_of_target(member.target)).collect()
    } else {
        map.nodes().iter().map(|info| info.node).collect()
    };
    others.retain(|node| *node != me && may_answer(map, *node));
    others
}

/// Whether a node may live.
fn may_answer(map: &ClusterMap, node: NodeId) -> bool {
    map.state(node).is_some_and(|state| state.reachability != NodeReachability::Offline)
}

impl ShardService {
    /// Which locks are known here of partitions that `node` is a member of.
    pub(crate) fn known_locks(
        &self,
        peer: &ConnectionPeer,
        (node, epoch): (NodeId, Epoch),
        after: Option<&KnownLock>,
    ) -> Result<ControlReply> {
        if peer.node != Some(node) {
            let words = format!("only {node} itself may take over the locks of {node}");
            return Err(Error::new(ErrorKind::Denied, words));
        }
        // By an older map, a shard might still grant some.
        let map = self.map.as_ref().filter(|_| self.shared.taken_up() >= epoch);
        let Some(map) = map else {
            return Err(Error::new(ErrorKind::Busy, "locks: that map is on its way"));
        };
        let (locks, has_more) = lock(&self.shared.locks).known(map, node, after);
        Ok(ControlReply::KnownLocks { locks, has_more })
    }

    /// Which of these clients have connections here on which locks were asked for.
    pub(crate) fn lock_clients(
        &self,
        peer: &ConnectionPeer,
        mut clients: Vec<ClientId>,
    ) -> Result<ControlReply> {
        if peer.node.is_none() {
            return Err(Error::new(ErrorKind::Denied, "only nodes may ask who is connected"));
        }
        let locks = lock(&self.shared.locks);
        clients.retain(|client| locks.is_here(*client));
        Ok(ControlReply::LockClients { incarnation: self.shared.incarnation, clients })
    }
}

/// Takes over locks, and looks after absent holders, until the node stops.
pub(crate) fn run(shared: &NodeShared, credentials: &NodeCredentials) {
    let mut others = RecoveryLinks { shared, credentials, links: HashMap::new() };
    let mut looked = Duration::ZERO;
    while !shared.stop.is_asked() {
        let wait = if lock(&shared.locks).heir.absent.is_empty() { LOOK } else { LOOK_AFTER };
        let waits = |locks: &mut NodeLocks| locks.heir.expected.is_empty();
        let waited = shared.has_heirs.wait_timeout_while(lock(&shared.locks), wait, waits);
        let locks = waited.unwrap_or_else(PoisonError::into_inner).0;
        let (expects, is_idle) = (!locks.heir.expected.is_empty(), locks.heir.is_idle());
        drop(locks);
        if is_idle {
            others.links.clear();
            continue;
        }
        let Some(map) = shared.map() else { continue };
        if expects {
            others.gather(&map);
            // At once, unless somebody has not answered.
            if !lock(&shared.locks).heir.expected.is_empty() {
                std::thread::sleep(PAUSE);
            }
        }
        let now = SystemClock.monotonic();
        if now >= looked + LOOK_AFTER {
            looked = now;
            others.look_after(&map);
        }
    }
}

/// Ways to other nodes.
struct RecoveryLinks<'a> {
    shared: &'a NodeShared,
    credentials: &'a NodeCredentials,
    links: HashMap<NodeId, (u64, Arc<NodeLink>)>,
}

impl RecoveryLinks<'_> {
    /// Asks the nodes that have not told yet for the locks that they know.
    fn gather(&mut self, map: &ClusterMap) {
        let nodes = lock(&self.shared.locks).heir.unasked(SystemClock.monotonic());
        for node in nodes {
            let answered = !may_answer(map, node) || self.tells(map, node);
            if answered {
                lock(&self.shared.locks).heir.answered(node, map.epoch());
            }
        }
    }

    /// Takes over the locks that `node` knows; whether these were all.
    fn tells(&mut self, map: &ClusterMap, node: NodeId) -> bool {
        let Some(info) = map.node(node) else { return true };
        let from = (node, info.incarnation);
        let mut after = None;
        loop {
            let request =
                ControlRequest::KnownLocks { node: self.shared.node, epoch: map.epoch(), after };
            match self.ask(map, node, &request) {
                Ok(ControlReply::KnownLocks { locks, has_more }) => {
                    lock(&self.shared.locks).take_over(map, from, &locks);
                    after = locks.last().copied();
                    if !has_more || after.is_none() {
                        return true;
                    }
                }
                Ok(reply) => {
                    tracing::debug!(%node, error = %refusal(&reply), "locks of another node");
                    return false;
                }
                Err(error) => {
                    tracing::debug!(%node, %error, "locks of another node");
                    return false;
                }
            }
        }
    }

    /// Asks after holders that are not connected here, and ends the locks of those that are gone.
    fn look_after(&mut self, map: &ClusterMap) {
        let absent: Vec<ClientId> = lock(&self.shared.locks).heir.absent.keys().copied().collect();
        if absent.is_empty() {
            return;
        }
        let mut alive = HolderLiveness::default();
        let others = map.nodes().iter().map(|info| info.node);
        for node in others.filter(|node| *node != self.shared.node && may_answer(map, *node)) {
            for clients in absent.chunks(LOCK_CLIENTS_MAX) {
                let request = ControlRequest::LockClients(clients.to_vec());
                let Ok(ControlReply::LockClients { incarnation, clients }) =
                    self.ask(map, node, &request)
                else {
                    break;
                };
                alive.answered.insert((node, incarnation));
                for client in clients {
                    alive.clients.entry(client).or_default().push((node, incarnation));
                }
            }
        }
        let mut locks = lock(&self.shared.locks);
        let is_dead = |(node, process)| {
            let is_same = map.node(node).is_some_and(|info| info.incarnation == process);
            !(is_same && may_answer(map, node))
        };
        let gone = locks.heir.heard(&alive, is_dead, SystemClock.monotonic());
        let answers = locks.end_clients(&gone);
        drop(locks);
        for (to, request, answer) in answers {
            let reply = answer_to_wait(self.shared, Some(map), &request, answer);
            self.shared.inboxes[usize::from(to.shard.get())].send(InboxMessage::Control(to, reply));
        }
    }

    fn ask(
        &mut self,
        map: &ClusterMap,
        node: NodeId,
        request: &ControlRequest,
    ) -> Result<ControlReply> {
        let incarnation = map.node(node).map_or(0, |info| info.incarnation);
        let known = self.links.get(&node).filter(|(process, _)| *process == incarnation);
        let link = match known {
            Some((_, link)) => Arc::clone(link),
            None => {
                let link = self.connect(map, node)?;
                self.links.insert(node, (incarnation, Arc::clone(&link)));
                link
            }
        };
        let answer = call(&link, request, Deadline::after(ANSWER_TIMEOUT));
        if answer.is_err() {
            self.links.remove(&node);
        }
        answer
    }

    fn connect(&self, map: &ClusterMap, node: NodeId) -> Result<Arc<NodeLink>> {
        let mut failed = Error::new(ErrorKind::Unavailable, "no address");
        for address in addresses(map, self.shared.node, node) {
            match self.credentials.connect(self.shared, &address, ANSWER_TIMEOUT) {
                Ok(link) if link.node() == node => return Ok(link),
                Ok(_) => failed = Error::new(ErrorKind::Unavailable, "another node answers"),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }
}
