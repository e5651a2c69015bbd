//! Observers that see more than any process may: they compare the acts of different ones.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use samite_types::{DatasetId, Epoch, NodeId, PartitionId, TargetId, Term};
use samite_wire::control::{self, ClusterMapData, LostRecords, MemberConsistency, MirrorGroup};

use crate::losses::{Life, RunLosses, simulated};
use crate::net::ProcessPlace;

/// Something that must never be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleViolation {
    /// Which rule.
    pub rule: &'static str,
    /// The observations.
    pub words: String,
}

impl fmt::Display for RuleViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.words)
    }
}

/// All observers.
#[derive(Debug, Default)]
pub struct AuditSet {
    violations: Vec<RuleViolation>,
    /// Newest map that each process has shown, since it was started.
    epochs: BTreeMap<ProcessPlace, Epoch>,
    /// Each published map, as bytes.
    maps: BTreeMap<Epoch, Vec<u8>>,
    newest: Option<ClusterMapData>,
    /// The incarnation of each node that runs.
    alive: BTreeMap<NodeId, u64>,
    lost: BTreeSet<PartitionId>,
    losses: RunLosses,
    /// The nodes that acknowledged changes in a term of a partition.
    primaries: BTreeMap<(DatasetId, PartitionId, Term), ProcessPlace>,
    /// Digests of the voters' register, by revision.
    registers: BTreeMap<u64, u64>,
    /// An acknowledged change outlives all processes.
    pub outlives: bool,
    /// Nodes may have too little room for all that is put there.
    pub gets_full: bool,
    /// Calls of stores fail.
    pub fails: bool,
    /// Histories that were too long to be judged.
    pub too_hard: u32,
}

/// Violations that are kept; one is enough to fail.
const VIOLATIONS_MAX: usize = 8;

impl AuditSet {
    /// Something that must never be has happened.
    pub fn violate(&mut self, rule: &'static str, words: String) {
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(RuleViolation { rule, words });
        }
    }

    /// An event that must never be.
    #[must_use]
    pub fn violations(&self) -> Vec<RuleViolation> {
        self.violations.clone()
    }

    /// Partitions of which all good members died at one time: their records are gone, and that is
    /// told.
    #[must_use]
    pub const fn lost(&self) -> &BTreeSet<PartitionId> {
        &self.lost
    }

    /// Losses, and those that were acknowledged.
    #[must_use]
    pub const fn losses(&self) -> &RunLosses {
        &self.losses
    }

    /// The operator takes note of these losses, as the map of epoch `by` has them.
    pub fn acknowledges(&mut self, by: Epoch, seen: &[LostRecords]) {
        self.losses.asked(by, seen);
    }

    /// A client was given an error that no program should see.
    pub fn erred(&mut self, partition: PartitionId, words: String) {
        if !self.lost.contains(&partition) {
            self.violate("no error", words);
        }
    }

    /// A process was started, with this number.
    pub fn started(&mut self, place: ProcessPlace, number: u64) {
        self.epochs.remove(&place);
        if let ProcessPlace::Node(id) = place {
            self.alive.insert(NodeId(id), number);
        }
    }

    /// A process has died.
    pub fn died(&mut self, place: ProcessPlace, now: Duration) {
        if let ProcessPlace::Node(id) = place
            && let Some(life) = self.alive.remove(&NodeId(id))
        {
            self.losses.died((NodeId(id), life), now);
            self.spread(now);
        }
    }

    /// Looks which map all nodes have by now.
    fn spread(&mut self, now: Duration) {
        let known = |node: &NodeId| self.epochs.get(&ProcessPlace::Node(node.get())).copied();
        let oldest = self.alive.keys().map(|node| known(node).unwrap_or(Epoch(0))).min();
        if let Some(epoch) = oldest {
            self.losses.all_know(epoch, now);
        }
    }

    /// A process serves or works by this map.
    pub fn saw_map(&mut self, place: ProcessPlace, epoch: Epoch, now: Duration) {
        let before = self.epochs.insert(place, epoch);
        if before.is_some_and(|before| before > epoch) {
            self.violate("map epochs grow", format!("{place} went back to {epoch} at {now:?}"));
        }
        self.spread(now);
    }

    /// A map was published.
    pub fn published(&mut self, map: &ClusterMapData, now: Duration) {
        let (epoch, bytes) = (map.epoch, control::encode(map));
        match self.maps.get(&epoch) {
            None => {
                self.maps.insert(epoch, bytes);
                self.succeed(map, now);
            }
            Some(other) if *other == bytes => {}
            Some(_) => {
                self.violate("one map for each epoch", format!("two of {epoch} at {now:?}"));
            }
        }
    }

    /// A map follows on the newest.
    fn succeed(&mut self, map: &ClusterMapData, now: Duration) {
        let before = self.newest.replace(map.clone());
        if before.as_ref().is_some_and(|before| before.epoch >= map.epoch) {
            return self.violate("map epochs grow", format!("{} after a newer one", map.epoch));
        }
        let groups = |map: &ClusterMapData| -> Vec<MirrorGroup> {
            simulated(map).map(|(_, table)| table.groups.clone()).unwrap_or_default()
        };
        let old = before.as_ref().map(groups).unwrap_or_default();
        for (index, group) in groups(map).iter().enumerate() {
            let partition = PartitionId(index as u32);
            let old = old.get(index);
            if let (Some(old), Some(before)) = (old, &before) {
                self.check_successor(partition, old, group, before, map, now);
            }
            let good =
                group.members.iter().filter(|one| one.consistency == MemberConsistency::Good);
            let lives = good.filter_map(|one| life_of(map, one.target)).collect();
            self.losses.held_by(partition, lives);
        }
        if let Some((rule, words)) = self.losses.compare(map, now) {
            self.violate(rule, words);
        }
    }

    /// A member that was started anew may only be good when all that were good have died.
    fn check_successor(
        &mut self,
        partition: PartitionId,
        old: &MirrorGroup,
        new: &MirrorGroup,
        before: &ClusterMapData,
        after: &ClusterMapData,
        now: Duration,
    ) {
        let consistency = |group: &MirrorGroup, target| {
            let member = group.members.iter().find(|member| member.target == target);
            member.map(|member| member.consistency)
        };
        let is_successor = new.members.iter().any(|member| {
            let target = member.target;
            member.consistency == MemberConsistency::Good
                && match consistency(old, target) {
                    Some(MemberConsistency::Restarted) => true,
                    Some(MemberConsistency::Good) => {
                        life_of(before, target) != life_of(after, target)
                    }
                    _ => false,
                }
        });
        if !is_successor {
            return;
        }
        let alive = old.members.iter().find(|member| {
            let node = life_of(before, member.target);
            member.consistency == MemberConsistency::Good
                && node.is_some_and(|(node, life)| self.alive.get(&node) == Some(&life))
        });
        match alive {
            Some(member) => self.violate(
                "no memory is given up in vain",
                format!(
                    "{partition}: {} lives, and an empty member follows, at {now:?}",
                    member.target
                ),
            ),
            None if self.outlives => {}
            None => {
                self.lost.insert(partition);
                self.losses.lost(partition, after.epoch, now);
            }
        }
    }

    /// A voter has the register with so many changes.
    pub fn register(&mut self, place: ProcessPlace, changes: u64, digest: u64, now: Duration) {
        if *self.registers.entry(changes).or_insert(digest) != digest {
            let words = format!("{place} has another one of revision {changes}, at {now:?}");
            self.violate("one register for each revision", words);
        }
    }

    /// A node has told a client that its change is done.
    pub fn acknowledged(
        &mut self,
        node: ProcessPlace,
        dataset: DatasetId,
        partition: PartitionId,
        term: Term,
        now: Duration,
    ) {
        let first = *self.primaries.entry((dataset, partition, term)).or_insert(node);
        if first != node {
            self.violate(
                "one primary for each term",
                format!("{first} and {node} acknowledged in {term} of {partition}, at {now:?}"),
            );
        }
    }
}

/// The process that a map has for a target.
fn life_of(map: &ClusterMapData, target: TargetId) -> Option<Life> {
    let node = map.nodes.iter().find(|info| info.targets[0].target == target);
    node.map(|info| (info.node, info.incarnation))
}
