//! Properties of placement.

use std::collections::HashMap;

use proptest::prelude::*;
use samite_types::{DatasetId, Epoch, ErrorKind, NodeId, PartitionId, Redundancy, TargetId, Term};
use samite_wire::control::{
    ClusterMapData, DatasetData, DatasetSpec, DistributionKind, GroupMember, MemberConsistency,
    MirrorGroup, NodeInfo, NodeReachability, NodeState, PartitionTable, SemanticsKind, TargetInfo,
};

use crate::{ClusterMap, assign, partitions_for, shard_of, stripe_pattern};

mod delta;
mod groups;
mod losses;

fn counts(table: &[TargetId]) -> HashMap<TargetId, usize> {
    let mut counts = HashMap::new();
    for target in table {
        *counts.entry(*target).or_default() += 1;
    }
    counts
}

fn equal(targets: impl IntoIterator<Item = u32>) -> Vec<(TargetId, u64)> {
    targets.into_iter().map(|id| (TargetId(id), 1)).collect()
}

const ONLINE: NodeState = NodeState { reachability: NodeReachability::Online, is_draining: false };

/// The table of partitions that are not mirrored.
fn table(targets: &[TargetId]) -> PartitionTable {
    let alone = |target: &TargetId| MirrorGroup {
        term: Term(0),
        members: vec![GroupMember { target: *target, consistency: MemberConsistency::Good }],
    };
    PartitionTable { redundancy: Redundancy(1), groups: targets.iter().map(alone).collect() }
}

fn primaries(data: &ClusterMapData) -> Vec<TargetId> {
    data.tables[0].groups.iter().map(|group| group.members[0].target).collect()
}

fn map_data(nodes: u32) -> ClusterMapData {
    ClusterMapData {
        cluster: "c".into(),
        epoch: Epoch(1),
        nodes: (0..nodes)
            .map(|id| NodeInfo {
                node: NodeId(id),
                host: "h".into(),
                rack: String::new(),
                addresses: vec![format!("tcp://h:{id}")],
                incarnation: 1,
                targets: vec![TargetInfo { target: TargetId(id), capacity_bytes: 1, storage: 0 }],
            })
            .collect(),
        states: vec![ONLINE; nodes as usize],
        tables: vec![table(&assign(partitions_for(nodes as usize), &equal(0..nodes)).unwrap())],
        datasets: Vec::new(),
        losses: Vec::new(),
    }
}

fn dataset(id: u32, distribution: DistributionKind, wheel: Vec<PartitionId>) -> DatasetData {
    let spec = DatasetSpec { distribution, ..DatasetSpec::new(format!("d{id}")) };
    DatasetData { id: DatasetId(id), spec, wheel, frozen_by: 0 }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn counts_differ_by_at_most_one(nodes in 1..40u32, partitions in 1..2000u32) {
        let counts = counts(&assign(partitions, &equal(0..nodes)).unwrap());
        let most = counts.values().copied().max().unwrap();
        let fewest = (0..nodes).map(|id| counts.get(&TargetId(id)).copied().unwrap_or(0)).min().unwrap();
        prop_assert!(most - fewest <= 1, "{} to {}", fewest, most);
    }

    #[test]
    fn weights_are_kept_within_one(weights in prop::collection::vec(0..100u64, 1..20), partitions in 1..1000u32) {
        prop_assume!(weights.iter().any(|weight| *weight > 0));
        let targets: Vec<_> = (0..).map(TargetId).zip(weights.iter().copied()).collect();
        let counts = counts(&assign(partitions, &targets).unwrap());
        let total: u64 = weights.iter().sum();
        for (target, weight) in targets {
            let exact = weight as f64 * f64::from(partitions) / total as f64;
            let count = counts.get(&target).copied().unwrap_or(0) as f64;
            prop_assert!((count - exact).abs() < 1.0, "{}: {} for {}", target, count, exact);
        }
    }

    #[test]
    fn the_order_of_targets_does_not_matter(mut targets in Just(equal(0..17)).prop_shuffle()) {
        let shuffled = assign(256, &targets).unwrap();
        targets.sort();
        prop_assert_eq!(&shuffled, &assign(256, &targets).unwrap());
    }

    #[test]
    fn a_stripe_pattern_keeps_its_weights(weights in prop::collection::vec(1..9u32, 1..5), object in any::<u64>()) {
        let nodes = weights.len() as u32;
        let mut data = map_data(nodes);
        let weights: Vec<_> = (0..nodes).map(TargetId).zip(weights).collect();
        let cycle = stripe_pattern(&weights, &primaries(&data)).unwrap();
        data.datasets.push(dataset(1, DistributionKind::Weighted(weights.clone()), cycle.clone()));
        let map = ClusterMap::new(data).unwrap();
        let distribution = map.distribution(&map.datasets()[0]);
        let mut seen: HashMap<TargetId, usize> = HashMap::new();
        for chunk in 0..cycle.len() as u64 {
            let partition = distribution.chunk_partition(object, chunk);
            *seen.entry(map.target_of(Redundancy(1), partition).unwrap()).or_default() += 1;
        }
        let total: usize = weights.iter().map(|(_, weight)| *weight as usize).sum();
        for (target, weight) in weights {
            prop_assert_eq!(seen[&target] * total, weight as usize * cycle.len());
        }
    }

    #[test]
    fn round_robin_visits_every_partition_in_turn(object in any::<u64>(), chunk in 0..u64::MAX / 2) {
        let mut data = map_data(3);
        data.datasets.push(dataset(1, DistributionKind::RoundRobin, Vec::new()));
        data.datasets.push(dataset(2, DistributionKind::Single, Vec::new()));
        let map = ClusterMap::new(data).unwrap();
        let spread = map.distribution(&map.datasets()[0]);
        let here = spread.chunk_partition(object, chunk).get();
        let next = spread.chunk_partition(object, chunk + 1).get();
        prop_assert_eq!((here + 1) % map.partitions(), next);
        let single = map.distribution(&map.datasets()[1]);
        prop_assert_eq!(single.chunk_partition(object, chunk), map.partition_of_hash(object));
    }
}

/// Keys of the kinds that programs use, not only random ones, land evenly on nodes.
#[test]
fn keys_spread_within_ten_percent_of_even() {
    let numbered: Vec<Vec<u8>> =
        (0..200_000u32).map(|i| format!("user:{i:08}").into_bytes()).collect();
    let dense: Vec<Vec<u8>> = (0..200_000u64).map(|i| i.to_be_bytes().to_vec()).collect();
    for keys in [numbered, dense] {
        for nodes in [2, 4, 8] {
            let map = ClusterMap::new(map_data(nodes)).unwrap();
            let mut held = vec![0usize; nodes as usize];
            for key in &keys {
                held[map.node_of(Redundancy(1), map.partition_of(key)).unwrap().get() as usize] +=
                    1;
            }
            let even = keys.len() as f64 / f64::from(nodes);
            for count in held {
                assert!((count as f64 / even - 1.0).abs() < 0.1, "{count} of {even} even");
            }
        }
    }
}

#[test]
fn an_older_map_never_replaces_a_newer_one() {
    let old = ClusterMap::new(map_data(2)).unwrap();
    let new = ClusterMap::new(ClusterMapData { epoch: Epoch(2), ..map_data(2) }).unwrap();
    assert!(new.replaces(&old).unwrap());
    assert!(!old.replaces(&new).unwrap());
    assert!(!new.replaces(&new).unwrap());
    let foreign = ClusterMapData { cluster: "other".into(), epoch: Epoch(3), ..map_data(2) };
    let error = ClusterMap::new(foreign).unwrap().replaces(&new).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

#[test]
fn every_kind_of_damage_to_a_map_is_noticed() {
    let two = DatasetData { id: DatasetId(2), ..dataset(1, DistributionKind::Single, Vec::new()) };
    type Damage = Box<dyn Fn(&mut ClusterMapData)>;
    let damages: Vec<Damage> = vec![
        Box::new(|data| data.cluster.clear()),
        Box::new(|data| data.epoch = Epoch(0)),
        Box::new(|data| data.nodes.clear()),
        Box::new(|data| data.nodes.swap(0, 1)),
        Box::new(|data| data.nodes[1].node = NodeId(0)),
        Box::new(|data| data.nodes[1].targets[0].target = TargetId(0)),
        Box::new(|data| data.nodes[0].addresses.clear()),
        Box::new(|data| data.nodes[0].addresses[0] = "a".repeat(513)),
        Box::new(|data| data.tables[0].groups.clear()),
        Box::new(|data| {
            let group = data.tables[0].groups[0].clone();
            data.tables[0].groups.resize((1 << 16) + 1, group);
        }),
        Box::new(|data| data.tables[0].groups[3].members[0].target = TargetId(9)),
        Box::new(|data| data.datasets[0].spec.name = "a b".into()),
        Box::new(|data| data.datasets[0].wheel = vec![PartitionId(0)]),
        Box::new(|data| data.datasets[0].spec.chunk_len = 0),
        Box::new(|data| data.datasets[0].spec.backend.name.clear()),
        Box::new(|data| data.datasets[0].spec.backend.path = Some("../up".into())),
        Box::new(|data| data.datasets[0].spec.semantics = SemanticsKind::Checkpoint),
        Box::new(move |data| data.datasets.push(two.clone())),
        Box::new(|data| data.datasets.push(dataset(1, DistributionKind::Single, Vec::new()))),
        Box::new(|data| {
            let weights = DistributionKind::Weighted(vec![(TargetId(0), 1)]);
            data.datasets.push(dataset(3, weights, vec![PartitionId(1 << 20)]));
        }),
    ];
    let mut sound = map_data(2);
    sound.datasets.push(dataset(1, DistributionKind::Single, Vec::new()));
    assert!(ClusterMap::new(sound.clone()).is_ok());
    for (index, damage) in damages.iter().enumerate() {
        let mut data = sound.clone();
        damage(&mut data);
        let error = ClusterMap::new(data).expect_err(&format!("damage {index}"));
        assert_eq!(error.kind(), ErrorKind::Corrupt, "damage {index}");
    }
}

#[test]
fn questions_outside_the_map_have_no_answer() {
    let map = ClusterMap::new(map_data(2)).unwrap();
    assert_eq!(map.node_of(Redundancy(1), PartitionId(map.partitions())), None);
    assert_eq!(map.target_of(Redundancy(1), PartitionId(u32::MAX)), None);
    assert!(map.node(NodeId(2)).is_none());
    assert!(map.dataset("nothing").is_none());
    assert_eq!(shard_of(PartitionId(7), 0).get(), 0);
    assert_eq!(shard_of(PartitionId(7), 4).get(), 3);
    assert!(assign(64, &[]).is_err());
    assert!(assign(64, &[(TargetId(1), 0)]).is_err());
    assert!(assign(64, &equal([1, 1])).is_err());
}
