//! Long histories of events of a cluster, and the invariants that must be true at every point of
//! them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use samite_placement::ClusterMap;
use samite_types::{Epoch, ErrorKind, NodeId, PartitionId, Redundancy, TargetId, Term};
use samite_wire::control::{DatasetSpec, MemberConsistency, MirrorGroup, NodeReachability};
use samite_wire::membership::{AdminRequest, Heartbeat, MemberChanges, MemberReport, NodeStanding};

use super::node;
use crate::{ClusterTiming, Coordinator};

#[derive(Clone, Debug)]
enum Step {
    /// Time passes in steps of 50 ms.
    Pass(u8),
    /// A node hears of the newest map.
    Learn(u32),
    Die(u32),
    Restart(u32),
    /// A node lives but is not heard; or is again.
    Cut(u32, bool),
    /// A node's primaries find that a member has missed something.
    Missed(u32, u16),
    /// A node's primaries have brought members up to date, each or every third.
    Synced(u32, bool),
    Create(u8),
    Drop(u8),
    Add(u32),
    Admin(u32, AdminRequest),
    /// Another instance decides from now on.
    TakeOver,
}

fn step() -> impl Strategy<Value = Step> {
    let node = 0..6u32;
    let request = prop_oneof![
        Just(AdminRequest::Drain),
        Just(AdminRequest::Undrain),
        Just(AdminRequest::Remove { force: false }),
        Just(AdminRequest::Remove { force: true }),
    ];
    prop_oneof![
        8 => (1..30u8).prop_map(Step::Pass),
        6 => node.clone().prop_map(Step::Learn),
        2 => node.clone().prop_map(Step::Die),
        3 => node.clone().prop_map(Step::Restart),
        3 => (node.clone(), any::<bool>()).prop_map(|(node, cut)| Step::Cut(node, cut)),
        4 => (node.clone(), any::<u16>()).prop_map(|(node, pick)| Step::Missed(node, pick)),
        8 => (node.clone(), any::<bool>()).prop_map(|(node, all)| Step::Synced(node, all)),
        2 => (1..4u8).prop_map(Step::Create),
        1 => (1..4u8).prop_map(Step::Drop),
        1 => node.clone().prop_map(Step::Add),
        2 => (node, request).prop_map(|(node, request)| Step::Admin(node, request)),
        1 => Just(Step::TakeOver),
    ]
}

/// A node as it sees itself.
#[derive(Default)]
struct Seen {
    is_alive: bool,
    is_cut: bool,
    incarnation: u64,
    map: Option<Arc<ClusterMap>>,
    lease_until: Duration,
}

struct World {
    coordinator: Coordinator,
    now: Duration,
    nodes: BTreeMap<u32, Seen>,
    last: Arc<ClusterMap>,
    /// Every primary that there ever was.
    primaries: BTreeMap<(Redundancy, PartitionId, Term), TargetId>,
    synced: BTreeSet<(Redundancy, PartitionId, TargetId)>,
}

impl World {
    fn new(founders: u32) -> Self {
        let mut coordinator =
            Coordinator::new("c", founders as usize).unwrap().with_partitions(24).unwrap();
        let now = Duration::from_secs(50);
        let mut nodes = BTreeMap::new();
        for id in 0..founders {
            let mut info = node(id, "tcp://h:1");
            info.incarnation = 1;
            coordinator.join(info, now).unwrap();
            nodes.insert(id, Seen { is_alive: true, incarnation: 1, ..Seen::default() });
        }
        let last = coordinator.map().unwrap().clone();
        for seen in nodes.values_mut() {
            seen.map = Some(last.clone());
        }
        let (primaries, synced) = (BTreeMap::new(), BTreeSet::new());
        Self { coordinator, now, nodes, last, primaries, synced }
    }

    fn map(&self) -> Arc<ClusterMap> {
        self.coordinator.map().unwrap().clone()
    }

    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Pass(steps) => (0..steps).for_each(|_| self.pass()),
            Step::Learn(id) => self.learn(id),
            Step::Die(id) => {
                if let Some(seen) = self.nodes.get_mut(&id) {
                    *seen = Seen { incarnation: seen.incarnation, ..Seen::default() };
                }
            }
            Step::Restart(id) => self.restart(id),
            Step::Cut(id, is_cut) => {
                if let Some(seen) = self.nodes.get_mut(&id) {
                    seen.is_cut = is_cut;
                }
            }
            Step::Missed(id, pick) => self.missed(id, pick),
            Step::Synced(id, all) => self.sync(id, all),
            Step::Create(redundancy) => {
                let spec = DatasetSpec {
                    redundancy: Redundancy(redundancy),
                    ..DatasetSpec::new(format!("x{redundancy}"))
                };
                let _ = self.coordinator.create_dataset(spec);
            }
            Step::Drop(redundancy) => {
                let _ = self.coordinator.drop_dataset(&format!("x{redundancy}"));
            }
            Step::Add(id) => {
                let _ = self.coordinator.admin_request(NodeId(id), AdminRequest::Add);
            }
            Step::Admin(id, request) => {
                let _ = self.coordinator.admin_request(NodeId(id), request);
            }
            Step::TakeOver => {
                // The former one gives leases to the last.
                for id in self.nodes.keys().copied().collect::<Vec<_>>() {
                    self.heartbeat(id);
                }
                let state = self.coordinator.export();
                self.coordinator =
                    Coordinator::take_over(&state, ClusterTiming::DEFAULT, self.now).unwrap();
            }
        }
        self.check();
    }

    fn pass(&mut self) {
        self.now += Duration::from_millis(50);
        for id in self.nodes.keys().copied().collect::<Vec<_>>() {
            self.heartbeat(id);
            self.check();
        }
        self.coordinator.tick(self.now);
        self.check();
    }

    fn heartbeat(&mut self, id: u32) {
        let seen = self.nodes.get_mut(&id).unwrap();
        let Some(map) = seen.map.as_ref().filter(|_| seen.is_alive && !seen.is_cut) else { return };
        let incarnation = seen.incarnation;
        let heartbeat =
            Heartbeat { node: NodeId(id), incarnation, serves: map.epoch(), is_led: true };
        let lease = self.coordinator.heartbeat(&heartbeat, self.now);
        seen.lease_until = seen.lease_until.max(self.now + Duration::from_micros(lease.term_us));
        if lease.term_us > 0 {
            assert_eq!(lease.standing, NodeStanding::Member);
        } else if lease.standing == NodeStanding::Behind {
            self.learn(id);
        }
    }

    fn learn(&mut self, id: u32) {
        let map = self.map();
        if let Some(seen) = self.nodes.get_mut(&id).filter(|seen| seen.is_alive && !seen.is_cut) {
            seen.map = Some(map);
        }
    }

    fn restart(&mut self, id: u32) {
        let seen = self.nodes.entry(id).or_default();
        *seen = Seen { incarnation: seen.incarnation + 1, ..Seen::default() };
        let mut info = node(id, "tcp://h:1");
        info.incarnation = seen.incarnation;
        if let Ok(Some(map)) = self.coordinator.join(info, self.now) {
            let seen = self.nodes.get_mut(&id).unwrap();
            (seen.is_alive, seen.map) = (true, Some(map));
        }
        self.check();
    }

    /// The report of a node by the map that it has.
    fn reports(&self, id: u32, change: MemberChanges) -> Vec<MemberReport> {
        let Some(seen) = self.nodes.get(&id).filter(|seen| !seen.is_cut) else { return Vec::new() };
        let Some(map) = &seen.map else { return Vec::new() };
        let mut reports = Vec::new();
        for table in &map.data().tables {
            for (partition, group) in (0..).map(PartitionId).zip(&table.groups) {
                if map.node_of(table.redundancy, partition) != Some(NodeId(id)) {
                    continue;
                }
                for member in &group.members[1..] {
                    let alive = self.nodes.get(&member.target.get());
                    let is_there = alive.is_some_and(|seen| seen.is_alive && !seen.is_cut);
                    let is_lacking = member.consistency == MemberConsistency::NeedsResync;
                    if change == MemberChanges::Missed || (is_there && is_lacking) {
                        reports.push(MemberReport {
                            redundancy: table.redundancy,
                            partition,
                            term: group.term,
                            epoch: map.epoch(),
                            target: member.target,
                            change,
                        });
                    }
                }
            }
        }
        reports
    }

    fn missed(&mut self, id: u32, pick: u16) {
        let reports = self.reports(id, MemberChanges::Missed);
        if let Some(report) = reports.get(usize::from(pick) % reports.len().max(1)) {
            let before = self.map().epoch();
            if let Err(error) = self.coordinator.report(NodeId(id), &[*report]) {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                assert_eq!(self.map().epoch(), before, "what is refused changes nothing");
                return;
            }
            let map = self.coordinator.report(NodeId(id), &[*report]).unwrap();
            let again = self.coordinator.report(NodeId(id), &[*report]).unwrap();
            assert_eq!(map.epoch(), again.epoch(), "twice is as good as once");
        }
    }

    fn sync(&mut self, id: u32, all: bool) {
        let mut reports = self.reports(id, MemberChanges::Synced);
        if !all {
            reports = reports.into_iter().step_by(3).collect();
        }
        self.synced =
            reports.iter().map(|one| (one.redundancy, one.partition, one.target)).collect();
        self.coordinator.report(NodeId(id), &reports).unwrap();
        self.check();
        self.synced.clear();
    }

    /// Every invariant, after every input.
    fn check(&mut self) {
        let map = self.map();
        if map.epoch() == self.last.epoch() {
            assert_eq!(map.data(), self.last.data(), "one epoch, one map");
        } else {
            assert_eq!(map.epoch(), Epoch(self.last.epoch().get() + 1).max(map.epoch()));
            assert!(map.replaces(&self.last).unwrap());
        }
        let used: BTreeSet<Redundancy> =
            map.datasets().iter().map(|dataset| dataset.spec.redundancy).collect();
        for table in &map.data().tables {
            for (partition, group) in (0..).map(PartitionId).zip(&table.groups) {
                let key = (table.redundancy, partition, group.term);
                let primary = *self.primaries.entry(key).or_insert(group.members[0].target);
                assert_eq!(primary, group.members[0].target, "one term, one primary");
                if let Some(before) = self.last.group(table.redundancy, partition) {
                    assert!(group.term >= before.term);
                    if used.contains(&table.redundancy) && !self.last.datasets().is_empty() {
                        let had_data = self
                            .last
                            .datasets()
                            .iter()
                            .any(|dataset| dataset.spec.redundancy == table.redundancy);
                        if had_data {
                            self.check_group(&map, (table.redundancy, partition), before, group);
                        }
                    }
                }
                if used.contains(&table.redundancy) {
                    self.check_readers(&map, table.redundancy, partition, group);
                }
            }
        }
        self.last = map;
    }

    fn check_group(
        &self,
        map: &ClusterMap,
        place: (Redundancy, PartitionId),
        before: &MirrorGroup,
        after: &MirrorGroup,
    ) {
        let had = |target| before.members.iter().find(|member| member.target == target);
        let is_kept = |member: &&samite_wire::control::GroupMember| {
            matches!(member.consistency, MemberConsistency::Good | MemberConsistency::Restarted)
        };
        assert!(after.members.iter().any(|member| is_kept(&member)), "{place:?}: {after:?}");
        // Only a good member, or one that was the last to be, makes others less than good.
        let lost_one = before.members.iter().filter(is_kept).any(|member| {
            let now = after.members.iter().find(|one| one.target == member.target);
            !now.is_some_and(|one| is_kept(&one))
        });
        if lost_one {
            let mut good =
                after.members.iter().filter(|one| one.consistency == MemberConsistency::Good);
            assert!(
                good.any(|one| {
                    before.members.iter().filter(is_kept).any(|was| was.target == one.target)
                        || self.synced.contains(&(place.0, place.1, one.target))
                }),
                "{place:?}: {before:?} to {after:?}"
            );
        }
        for member in after.members.iter().filter(|one| one.consistency == MemberConsistency::Good)
        {
            let was = had(member.target).map(|member| member.consistency);
            let (redundancy, partition) = place;
            let by_report = self.synced.contains(&(redundancy, partition, member.target));
            let by_restart = after.members[0].target == member.target && {
                let reach = map.node_of_target(member.target).and_then(|node| map.state(node));
                let is_online =
                    reach.is_some_and(|state| state.reachability == NodeReachability::Online);
                is_online && !after.members[1..].iter().any(|one| is_kept(&one))
            };
            assert!(
                was == Some(MemberConsistency::Good) || by_report || by_restart,
                "{place:?}: {before:?} to {after:?}"
            );
        }
    }

    /// A node that takes itself for the primary, and may serve, is one that nothing is acknowledged
    /// without.
    fn check_readers(
        &self,
        map: &ClusterMap,
        redundancy: Redundancy,
        partition: PartitionId,
        group: &MirrorGroup,
    ) {
        for (id, seen) in &self.nodes {
            let Some(own) = &seen.map else { continue };
            let Some(view) = own.group(redundancy, partition) else { continue };
            let leads = own.node_of(redundancy, partition) == Some(NodeId(*id))
                && view.members[0].consistency == MemberConsistency::Good;
            let has_data = own.datasets().iter().any(|one| {
                map.dataset_by_id(one.id).is_some() && one.spec.redundancy == redundancy
            });
            if !leads || !has_data || (view.members.len() > 1 && seen.lease_until <= self.now) {
                continue;
            }
            let target = view.members[0].target;
            let now = group.members.iter().find(|member| member.target == target);
            assert!(
                now.is_some_and(|member| member.consistency == MemberConsistency::Good),
                "n{id} serves {redundancy} {partition} by {view:?} of {}, while {} has {group:?}",
                own.epoch(),
                map.epoch()
            );
        }
    }

    /// Everybody is well again, and everything comes to rest.
    fn settle(&mut self) {
        let members: Vec<u32> = self.map().nodes().iter().map(|info| info.node.get()).collect();
        for id in &members {
            self.nodes.get_mut(id).unwrap().is_cut = false;
            if !self.nodes[id].is_alive {
                self.restart(*id);
            }
        }
        let mut quiet = 0;
        for _ in 0..1000 {
            let before = self.map().epoch();
            for id in &members {
                self.learn(*id);
                self.sync(*id, true);
            }
            (0..4).for_each(|_| self.pass());
            quiet = if self.map().epoch() == before { quiet + 1 } else { 0 };
            if quiet == 8 {
                return;
            }
        }
        panic!("does not come to rest");
    }

    fn check_rest(&self) {
        let map = self.map();
        let staying: Vec<TargetId> = map
            .nodes()
            .iter()
            .zip(&map.data().states)
            .filter(|(_, state)| !state.is_draining)
            .map(|(info, _)| info.targets[0].target)
            .collect();
        for state in &map.data().states {
            assert_eq!(state.reachability, NodeReachability::Online);
        }
        for table in &map.data().tables {
            let wanted = usize::from(table.redundancy.get()).min(staying.len());
            let mut primaries: BTreeMap<TargetId, usize> = BTreeMap::new();
            let mut held: BTreeMap<TargetId, usize> = BTreeMap::new();
            for group in &table.groups {
                assert_eq!(group.members.len(), wanted, "{group:?}");
                *primaries.entry(group.members[0].target).or_default() += 1;
                for member in &group.members {
                    assert_eq!(member.consistency, MemberConsistency::Good, "{group:?}");
                    *held.entry(member.target).or_default() += 1;
                }
            }
            for counts in [primaries, held] {
                let of = |target| counts.get(target).copied().unwrap_or(0);
                let most = staying.iter().map(of).max().unwrap();
                let fewest = staying.iter().map(of).min().unwrap();
                assert!(most - fewest <= 1 + most / 10, "{}: {counts:?}", table.redundancy);
                assert!(counts.keys().all(|target| staying.contains(target)));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn hold_at_every_moment(founders in 1..5u32, steps in prop::collection::vec(step(), 1..120)) {
        let mut world = World::new(founders);
        for step in &steps {
            world.apply(step);
        }
        world.settle();
        world.check_rest();
    }
}
