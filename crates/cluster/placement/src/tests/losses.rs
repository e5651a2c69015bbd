//! Losses, as the map keeps them.

use proptest::prelude::*;
use samite_types::{DatasetId, Epoch, PartitionId, Redundancy, Term};
use samite_wire::control::{
    BackendSpec, ClusterMapData, DatasetSpec, DistributionKind, DurabilityKind, LostRecords,
    NULL_BACKEND, PartitionRange, SemanticsKind, encode,
};

use super::{dataset, map_data};
use crate::{
    ClusterMap, DATASETS_MAX, LOSSES_LEN_MAX, PARTITIONS_MAX, losses_without, remaining_losses,
};

fn with_datasets(nodes: u32, datasets: u32) -> ClusterMapData {
    let mut data = map_data(nodes);
    let of = |id| dataset(id, DistributionKind::RoundRobin, Vec::new());
    data.datasets = (1..=datasets).map(of).collect();
    data
}

/// The map after `node` was started again.
fn restarted(before: &ClusterMap, node: usize) -> ClusterMap {
    let mut data = before.data().clone();
    data.epoch = Epoch(data.epoch.get() + 1);
    data.nodes[node].incarnation += 1;
    let target = data.nodes[node].targets[0].target;
    for group in data.tables.iter_mut().flat_map(|table| &mut table.groups) {
        if group.members[0].target == target {
            group.term = Term(group.term.get() + 1);
        }
    }
    before.with_losses_of(data).unwrap()
}

#[test]
fn a_loss_stays_until_just_that_is_acknowledged() {
    let first = ClusterMap::new(with_datasets(2, 2)).unwrap();
    assert!(first.losses_known().is_empty());
    let lost = restarted(&first, 1);
    let of = first.partitions();
    let is_hit = |map: &ClusterMap, partition| {
        map.group(Redundancy(1), partition).unwrap().members[0].target
            == map.nodes()[1].targets[0].target
    };
    let mut count = 0;
    for partition in (0..of).map(PartitionId) {
        assert_eq!(lost.is_lost(DatasetId(2), partition), is_hit(&first, partition), "{partition}");
        count += usize::from(is_hit(&first, partition));
    }
    assert!(!lost.is_lost(DatasetId(3), PartitionId(0)));
    let known = lost.losses_known();
    assert_eq!(known.len(), 2);
    assert_eq!((known[0].partitions, known[0].of), (count, of as usize));
    assert_eq!(first.losses(&lost), known);
    // Datasets that have lost the same are named together.
    assert_eq!(lost.data().losses.len(), 1);
    // Losses that were read stay in the maps that follow, and another death adds to them.
    let all = restarted(&lost, 0);
    assert!(all.losses_known().iter().all(|loss| loss.partitions == loss.of));
    let left = remaining_losses(&all.data().losses, &lost.data().losses);
    let later = ClusterMap::new(ClusterMapData { losses: left, ..all.data().clone() }).unwrap();
    for partition in (0..of).map(PartitionId) {
        assert_eq!(later.is_lost(DatasetId(1), partition), !is_hit(&first, partition));
    }
    assert!(remaining_losses(&all.data().losses, &all.data().losses).is_empty());
    let one = losses_without(&all.data().losses, DatasetId(1));
    assert_eq!(one[0].datasets, [DatasetId(2)]);
    assert!(losses_without(&one, DatasetId(2)).is_empty());
}

#[test]
fn what_was_never_promised_is_no_loss() {
    let mut data = with_datasets(2, 4);
    let spec = |at: usize, change: &dyn Fn(&mut DatasetSpec), data: &mut ClusterMapData| {
        change(&mut data.datasets[at].spec);
    };
    spec(0, &|spec| spec.semantics = SemanticsKind::Temporary, &mut data);
    spec(1, &|spec| spec.durability = DurabilityKind::Logged, &mut data);
    spec(2, &|spec| spec.backend = BackendSpec::named(NULL_BACKEND), &mut data);
    let lost = restarted(&ClusterMap::new(data).unwrap(), 0);
    let named: Vec<String> = lost.losses_known().into_iter().map(|loss| loss.dataset).collect();
    assert_eq!(named, ["d4"]);
}

#[test]
fn unlawful_losses_are_refused() {
    let data = with_datasets(2, 2);
    let range = |first, count| PartitionRange { first: PartitionId(first), count };
    let of = |datasets: &[u32], partitions: &[PartitionRange]| LostRecords {
        datasets: datasets.iter().copied().map(DatasetId).collect(),
        partitions: partitions.to_vec(),
    };
    let with =
        |losses: Vec<LostRecords>| ClusterMap::new(ClusterMapData { losses, ..data.clone() });
    assert!(with(vec![of(&[1, 2], &[range(0, 1), range(2, 3)])]).is_ok());
    for bad in [
        vec![of(&[], &[range(0, 1)])],
        vec![of(&[1], &[])],
        vec![of(&[3], &[range(0, 1)])],
        vec![of(&[1], &[range(0, 1)]), of(&[1], &[range(3, 1)])],
        vec![of(&[2, 1], &[range(0, 1)])],
        vec![of(&[1], &[range(0, 0)])],
        vec![of(&[1], &[range(0, 2), range(2, 1)])],
        vec![of(&[1], &[range(0, u32::MAX)])],
        vec![of(&[1], &[range(u32::MAX, 2)])],
    ] {
        assert!(with(bad.clone()).is_err(), "{bad:?}");
    }
}

/// A loss of each dataset, as different from the others as can be.
fn scattered(datasets: u32, step: u32) -> Vec<LostRecords> {
    let ranges = |id: u32| {
        let firsts = (id % step..PARTITIONS_MAX as u32).step_by(step as usize);
        firsts.map(|first| PartitionRange { first: PartitionId(first), count: 1 }).collect()
    };
    let lost =
        |id| LostRecords { datasets: vec![DatasetId(u32::MAX / 2 + id)], partitions: ranges(id) };
    (0..datasets).map(lost).collect()
}

#[test]
fn losses_have_their_limit_and_say_too_much_rather_than_too_little() {
    for (datasets, step) in [(1, 2), (8, 64), (64, 999), (DATASETS_MAX as u32, 40_000)] {
        let wide = scattered(datasets, step);
        let kept = remaining_losses(&wide, &[]);
        assert!(encode(&kept).len() <= LOSSES_LEN_MAX, "{datasets} {step}");
        let covers = |dataset: DatasetId, range: &PartitionRange| {
            let lost = kept.iter().find(|lost| lost.datasets.contains(&dataset)).unwrap();
            lost.partitions.iter().any(|one| {
                one.first <= range.first
                    && range.first.get() + range.count <= one.first.get() + one.count
            })
        };
        for lost in &wide {
            assert!(lost.partitions.iter().all(|range| covers(lost.datasets[0], range)));
        }
    }
}

proptest! {
    #[test]
    fn what_is_acknowledged_is_gone_and_nothing_else(
        lost in prop::collection::vec(any::<bool>(), 40),
        seen in prop::collection::vec(any::<bool>(), 40),
    ) {
        let of = |which: &[bool]| {
            let numbers = (0..).zip(which).filter(|(_, is)| **is);
            let ranges = numbers.map(|(first, _)| PartitionRange { first: PartitionId(first), count: 1 });
            vec![LostRecords { datasets: vec![DatasetId(1)], partitions: ranges.collect() }]
        };
        let left = remaining_losses(&of(&lost), &of(&seen));
        let is_left = |partition: u32| left.iter().flat_map(|lost| &lost.partitions).any(|range| {
            (range.first.get()..range.first.get() + range.count).contains(&partition)
        });
        for (partition, (lost, seen)) in (0..).zip(lost.iter().zip(&seen)) {
            prop_assert_eq!(is_left(partition), *lost && !*seen);
        }
    }
}
