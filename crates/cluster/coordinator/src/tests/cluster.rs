//! A cluster of nodes that send the messages that real ones would send.

use std::time::Duration;

use samite_placement::ClusterMap;
use samite_types::{NodeId, PartitionId, Redundancy, TargetId};
use samite_wire::control::{DatasetSpec, DurabilityKind, MemberConsistency, MirrorGroup};
use samite_wire::membership::{Heartbeat, MemberChanges, MemberReport, NodeStanding};

use super::node;
use crate::Coordinator;

pub(super) const TWICE: Redundancy = Redundancy(2);
pub(super) const START: Duration = Duration::from_secs(100);

/// A cluster whose nodes live unless they are told not to.
pub(super) struct Cluster {
    pub(super) coordinator: Coordinator,
    pub(super) now: Duration,
    pub(super) alive: Vec<u32>,
    pub(super) incarnations: Vec<u64>,
    pub(super) durability: DurabilityKind,
}

impl Cluster {
    pub(super) fn new(nodes: u32) -> Self {
        let mut cluster = Self {
            coordinator: Coordinator::new("c", nodes as usize).unwrap(),
            now: START,
            alive: (0..nodes).collect(),
            incarnations: vec![1; 16],
            durability: DurabilityKind::Memory,
        };
        for id in 0..nodes {
            cluster.join(id);
        }
        cluster
    }

    pub(super) fn mirrored(nodes: u32) -> Self {
        let mut cluster = Self::new(nodes);
        cluster.create(2);
        cluster
    }

    pub(super) fn create(&mut self, redundancy: u8) {
        let spec = DatasetSpec {
            redundancy: Redundancy(redundancy),
            durability: self.durability,
            ..DatasetSpec::new(format!("x{redundancy}"))
        };
        self.coordinator.create_dataset(spec).unwrap();
    }

    pub(super) fn join(&mut self, id: u32) {
        let mut info = node(id, "tcp://h:1");
        info.incarnation = self.incarnations[id as usize];
        info.targets[0].storage = 7;
        self.coordinator.join(info, self.now).unwrap();
    }

    pub(super) fn restart(&mut self, id: u32) {
        self.incarnations[id as usize] += 1;
        self.join(id);
        self.alive.push(id);
    }

    pub(super) fn heartbeat(&mut self, id: u32) -> NodeStanding {
        let serves = self.map().epoch();
        let incarnation = self.incarnations[id as usize];
        let heartbeat = Heartbeat { node: NodeId(id), incarnation, serves, is_led: true };
        self.coordinator.heartbeat(&heartbeat, self.now).standing
    }

    /// Time passes; the nodes that live say so and know the newest map.
    pub(super) fn pass(&mut self, ms: u64) {
        for _ in 0..ms / 100 {
            self.now += Duration::from_millis(100);
            for id in self.alive.clone() {
                self.heartbeat(id);
            }
            self.coordinator.tick(self.now);
        }
    }

    pub(super) fn die(&mut self, id: u32) {
        self.alive.retain(|other| *other != id);
    }

    pub(super) fn map(&self) -> &ClusterMap {
        self.coordinator.map().unwrap()
    }

    pub(super) fn groups(&self) -> Vec<MirrorGroup> {
        self.map().table(TWICE).unwrap().groups.clone()
    }

    pub(super) fn report(&mut self, partition: u32, target: u32, change: MemberChanges) {
        let map = self.map();
        let group = map.group(TWICE, PartitionId(partition)).unwrap();
        let report = MemberReport {
            redundancy: TWICE,
            partition: PartitionId(partition),
            term: group.term,
            epoch: map.epoch(),
            target: TargetId(target),
            change,
        };
        let primary = map.node_of(TWICE, PartitionId(partition)).unwrap();
        self.coordinator.report(primary, &[report]).unwrap();
    }

    /// Primaries bring up to date every member that can be reached, until nothing is left to do.
    pub(super) fn sync(&mut self) {
        for _ in 0..200 {
            let mut reports = Vec::new();
            let map = self.coordinator.map().unwrap().clone();
            for (partition, group) in (0..).map(PartitionId).zip(&map.table(TWICE).unwrap().groups)
            {
                for member in &group.members {
                    let is_alive = self.alive.contains(&member.target.get());
                    if member.consistency == MemberConsistency::NeedsResync && is_alive {
                        reports.push(MemberReport {
                            redundancy: TWICE,
                            partition,
                            term: group.term,
                            epoch: map.epoch(),
                            target: member.target,
                            change: MemberChanges::Synced,
                        });
                    }
                }
            }
            let is_quiet = reports.is_empty();
            for id in self.alive.clone() {
                self.coordinator.report(NodeId(id), &reports).unwrap();
            }
            let before = self.map().epoch();
            self.pass(200);
            if is_quiet && self.map().epoch() == before {
                return;
            }
        }
        panic!("does not come to rest");
    }

    pub(super) fn check_even(&self, nodes: usize) {
        let groups = self.groups();
        let mut primaries = vec![0usize; 16];
        let mut members = vec![0usize; 16];
        for group in &groups {
            assert_eq!(group.members.len(), 2);
            assert!(group.members.iter().all(|one| one.consistency == MemberConsistency::Good));
            primaries[group.members[0].target.get() as usize] += 1;
            for member in &group.members {
                members[member.target.get() as usize] += 1;
            }
        }
        for counts in [primaries, members] {
            let held: Vec<usize> = counts.into_iter().filter(|count| *count > 0).collect();
            assert_eq!(held.len(), nodes);
            assert!(held.iter().max().unwrap() - held.iter().min().unwrap() <= 1, "{held:?}");
        }
    }
}

pub(super) fn states(group: &MirrorGroup) -> Vec<(u32, MemberConsistency)> {
    group.members.iter().map(|member| (member.target.get(), member.consistency)).collect()
}
