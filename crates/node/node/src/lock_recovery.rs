//! Locks of partitions that this node has become the primary of, or a good member.
//!
//! A lock lives as long as its holder has a connection to a node that knows the lock. So before a
//! new primary grants any, it asks the others for the locks that they know: the members of before,
//! and the nodes beside the group that noted them. These locks come into the table here, as do the
//! locks that the primary tells a member that has become good; and as long as their holders have no
//! connection to this node it asks, now and then, whether another node still has one.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use samite_partition::locks::LockFile;
use samite_placement::ClusterMap;
use samite_types::{ClientId, Clock, Epoch, NodeId, PartitionId, Redundancy, SystemClock, Term};
use samite_wire::control::{MemberConsistency, NodeReachability};
use samite_wire::lock::{KNOWN_LOCKS_MAX, KnownLock, LockOwner};

use crate::control_reply::ReplyTo;
use crate::locks::{Answers, NodeLocks};

/// A node that has not answered for so long, though it is not taken for dead, is not waited for any more.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a lock holder keeps its locks when no node has a connection of it, and none saw it go:
/// the nodes to which it was connected are gone, and it may sleep.
const GRACE: Duration = Duration::from_secs(60);
/// Most locks that are let go of while others are asked, and heeded.
const FORGOTTEN_MAX: usize = 1 << 16;

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

    /// Whether locks of some partition are not all known yet.
    pub(crate) fn expects_any(&self) -> bool {
        !self.expected.is_empty()
    }

    /// Lock holders that are not connected here.
    pub(crate) fn absent(&self) -> impl Iterator<Item = ClientId> {
        self.absent.keys().copied()
    }

    /// Whether there is nobody to ask for anything.
    pub(crate) fn is_idle(&self) -> bool {
        self.expected.is_empty() && self.absent.is_empty()
    }

    /// A node need not be asked any more for locks that are expected by this epoch.
    pub(crate) fn answered(&mut self, node: NodeId, by: Epoch) {
        for expected in self.expected.values_mut().filter(|expected| expected.epoch <= by) {
            expected.from.retain(|other| *other != node);
        }
        self.expected.retain(|_, expected| !expected.from.is_empty());
        if self.expected.is_empty() {
            self.forgotten.clear();
        }
    }

    /// Nodes to ask, each once.
    pub(crate) fn unasked(&mut self, now: Duration) -> Vec<NodeId> {
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
    pub(crate) fn heard(
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
pub(crate) struct HolderLiveness {
    /// Processes that have answered.
    pub answered: HashSet<(NodeId, u64)>,
    /// The clients that are connected, and where.
    pub clients: HashMap<ClientId, Vec<(NodeId, u64)>>,
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
                    self.recovery.expected.remove(&place);
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
                    self.recovery.expected.insert(place, expected);
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
        let absent = &self.recovery.absent;
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
    pub(crate) fn known(
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
    pub(crate) fn take_over(&mut self, map: &ClusterMap, from: (NodeId, u64), locks: &[KnownLock]) {
        let now = SystemClock.monotonic();
        for known in locks {
            let KnownLock { dataset, partition, object, space, lock, is_here } = *known;
            let redundancy = map.dataset_by_id(dataset).map(|data| data.spec.redundancy);
            if !redundancy.is_some_and(|redundancy| self.recovery.expects(redundancy, partition)) {
                continue;
            }
            let file = LockFile { dataset, partition, object, space };
            if self.recovery.forgotten.contains(&(file, lock.owner)) {
                continue;
            }
            if !self.table.adopt(file, &lock) {
                tracing::warn!(%partition, "no room for a lock that another node knows");
            }
            let client = lock.owner.client;
            if !self.is_here(client) {
                let absent = self.recovery.absent.entry(client).or_default();
                absent.seen = now;
                if is_here && !absent.at.contains(&from) {
                    absent.at.push(from);
                }
            }
        }
    }

    pub(crate) fn end_clients(&mut self, gone: &[ClientId]) -> Answers {
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
pub(crate) fn may_answer(map: &ClusterMap, node: NodeId) -> bool {
    map.state(node).is_some_and(|state| state.reachability != NodeReachability::Offline)
}
