//! Locks of partitions that a node has become the primary of, or a good member.
//!
//! A lock lives as long as its holder has a connection to a node that knows the lock. So before a
//! new primary grants any, it asks the others for the locks that they know: the members of before,
//! and the nodes beside the group that noted them. These locks come into the table here, as do the
//! locks that the primary tells a member that has become good; and as long as their holders have no
//! connection to this node it asks, now and then, whether another node still has one.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use samite_placement::ClusterMap;
use samite_types::{ClientId, Epoch, NodeId, PartitionId, Redundancy, Term};
use samite_wire::lock::LockOwner;

use crate::audience::{is_good, may_know};
use crate::table::LockFile;

/// A node that has not answered for so long, though it is not taken for dead, is not waited for any
/// more.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a lock holder keeps its locks when no node has a connection of it, and none saw it go:
/// the nodes to which it was connected are gone, and it may sleep.
const GRACE: Duration = Duration::from_secs(60);
/// Most locks that are let go of while others are asked, and heeded.
const FORGOTTEN_MAX: usize = 1 << 16;

/// Partitions of the datasets of one redundancy.
pub(crate) type PartitionPlace = (Redundancy, PartitionId);

/// A process of a node: the node and its incarnation.
pub(crate) type NodeProcess = (NodeId, u64);

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
    at: Vec<NodeProcess>,
}

/// Locks that are taken over from other nodes.
#[derive(Debug, Default)]
pub(crate) struct LockRecovery {
    expected: HashMap<PartitionPlace, RecoveringPartition>,
    absent: HashMap<ClientId, AbsentHolder>,
    /// Locks that were forgotten here while others were asked: what they say about them may be
    /// older.
    forgotten: HashSet<(LockFile, LockOwner)>,
}

/// Whom to ask next for locks.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RecoveryQuestions {
    /// The nodes, each once.
    pub nodes: Vec<NodeId>,
    /// Partitions for which some have not answered for too long.
    pub given_up: Vec<GivenUpRecovery>,
}

/// A partition whose locks are taken for known, although not all have told.
#[derive(Debug, PartialEq, Eq)]
pub struct GivenUpRecovery {
    /// The partition.
    pub partition: PartitionId,
    /// Nodes that have not told.
    pub silent: Vec<NodeId>,
}

/// What other nodes say about the holders of locks that are not connected here.
#[derive(Debug, Default)]
pub struct HolderReports {
    answered: HashSet<NodeProcess>,
    /// The clients that are connected, and where.
    clients: HashMap<ClientId, Vec<NodeProcess>>,
}

impl HolderReports {
    /// The process `incarnation` of `node` has connections of these clients, of all that it was
    /// asked about.
    pub fn add(&mut self, node: NodeId, incarnation: u64, clients: Vec<ClientId>) {
        self.answered.insert((node, incarnation));
        for client in clients {
            self.clients.entry(client).or_default().push((node, incarnation));
        }
    }
}

impl LockRecovery {
    /// Whether others may know locks of this partition that are not known here yet.
    pub(crate) fn expects(&self, redundancy: Redundancy, partition: PartitionId) -> bool {
        self.expected.contains_key(&(redundancy, partition))
    }

    /// Whether others may know locks of any.
    pub(crate) fn expects_any(&self) -> bool {
        !self.expected.is_empty()
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

    /// Whether an owner has let go of locks that another node still tells of.
    pub(crate) fn has_forgotten(&self, file: LockFile, owner: LockOwner) -> bool {
        self.forgotten.contains(&(file, owner))
    }

    /// The clients that are not connected here.
    pub(crate) fn absent(&self) -> impl Iterator<Item = ClientId> {
        self.absent.keys().copied()
    }

    /// Whether the client has locks here and no connection.
    pub(crate) fn is_absent(&self, client: ClientId) -> bool {
        self.absent.contains_key(&client)
    }

    /// A lock of `client`, which is not connected here, was told of at `now`. `at`: the process
    /// that told has a connection of it.
    pub(crate) fn is_missing(&mut self, client: ClientId, at: Option<NodeProcess>, now: Duration) {
        let absent = self.absent.entry(client).or_default();
        absent.seen = now;
        if let Some(at) = at.filter(|at| !absent.at.contains(at)) {
            absent.at.push(at);
        }
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

    /// Nodes to ask.
    pub(crate) fn questions(&mut self, now: Duration) -> RecoveryQuestions {
        let over = self.expected.extract_if(|_, expected| now >= expected.since + PATIENCE);
        let given_up = over
            .map(|((_, partition), expected)| GivenUpRecovery { partition, silent: expected.from })
            .collect();
        let all = self.expected.values().flat_map(|expected| &expected.from);
        let mut nodes: Vec<NodeId> = all.copied().collect();
        nodes.sort_unstable();
        nodes.dedup();
        RecoveryQuestions { nodes, given_up }
    }

    /// The question about absent holders is answered. Those that are gone are returned.
    pub(crate) fn heard(
        &mut self,
        reports: &HolderReports,
        is_dead: impl Fn(NodeProcess) -> bool,
        now: Duration,
    ) -> Vec<ClientId> {
        let mut gone = Vec::new();
        self.absent.retain(|client, absent| {
            if let Some(at) = reports.clients.get(client) {
                *absent = AbsentHolder { seen: now, at: at.clone() };
                return true;
            }
            // Processes that had a connection say that they have none any more, and none is left to
            // be asked.
            let is_told = |place: &NodeProcess| reports.answered.contains(place);
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

    /// There is a new map: finds out of which partitions the node `me` has become the primary, or a
    /// good member. Those are returned of which it was no good member before: the locks that it
    /// knows of them are old.
    pub(crate) fn see_map(
        &mut self,
        before: Option<&ClusterMap>,
        map: &ClusterMap,
        me: NodeId,
        now: Duration,
    ) -> HashSet<PartitionPlace> {
        let mut fresh = HashSet::new();
        for table in &map.data().tables {
            let redundancy = table.redundancy;
            for (group, index) in table.groups.iter().zip(0..) {
                let place = (redundancy, PartitionId(index));
                if !is_good(map, place, me) {
                    self.expected.remove(&place);
                    continue;
                }
                let Some(from) = whom_to_ask(before, map, (place, group.term), me) else {
                    continue;
                };
                if !from.is_empty() {
                    let expected = RecoveringPartition { epoch: map.epoch(), since: now, from };
                    self.expected.insert(place, expected);
                    if !before.is_some_and(|before| is_good(before, place, me)) {
                        fresh.insert(place);
                    }
                }
            }
        }
        fresh
    }
}

/// The nodes that may know locks of a partition of which `me` is a good member, beside it; `None`:
/// it has granted them itself, or there are none.
fn whom_to_ask(
    before: Option<&ClusterMap>,
    map: &ClusterMap,
    (place, term): (PartitionPlace, Term),
    me: NodeId,
) -> Option<Vec<NodeId>> {
    let (redundancy, partition) = place;
    let granter = map.node_of(redundancy, partition);
    if granter != Some(me) {
        // It has everything now, and may take the primary's place.
        let is_new = before.is_some_and(|before| {
            before.group(redundancy, partition).is_some() && !is_good(before, place, me)
        });
        let from = granter.filter(|_| is_new && redundancy > Redundancy(1));
        return Some(from.into_iter().collect());
    }
    let was_mine = before.is_some_and(|before| {
        before.node_of(redundancy, partition) == Some(me) && is_good(before, place, me)
    });
    if was_mine || term == Term(0) {
        return None;
    }
    Some(may_know(before, map, place, me))
}
