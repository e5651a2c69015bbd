//! Losses: records that nodes which were started again had in their memory, and no other node has.

use std::collections::BTreeMap;

use samite_types::{DatasetId, NodeId, PartitionId, Redundancy, Result, TargetId};
use samite_wire::control::{
    self, ClusterMapData, DatasetSpec, DurabilityKind, LostRecords, MemberConsistency, MirrorGroup,
    NULL_BACKEND, PartitionRange, SemanticsKind,
};

use crate::ClusterMap;
use crate::check::PARTITIONS_MAX;

/// Most bytes that losses take in the map, as encoded: all datasets there can be, each once, and some more.
pub const LOSSES_LEN_MAX: usize = 24 << 10;

/// Partitions of one dataset whose records are gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionLoss {
    /// Name of the dataset.
    pub dataset: String,
    /// Partitions that are empty now.
    pub partitions: usize,
    /// Partitions of the dataset.
    pub of: usize,
}

/// First and last of partitions one after the other, in order and apart.
type Runs = Vec<(u32, u32)>;

/// Losses of each dataset.
type ByDataset = BTreeMap<DatasetId, Runs>;

impl ClusterMap {
    /// Losses between this map and the newer map `after`: partitions of datasets in memory whose
    /// good members have all been started again. A partition counts from the map on in which an
    /// empty member leads it. Datasets that promise nothing after a crash (`temporary`) do not
    /// count.
    #[must_use]
    pub fn losses(&self, after: &Self) -> Vec<PartitionLoss> {
        after.in_words(self.lost_by(after))
    }

    /// Losses by this map: records that nobody has any more, and that nobody has acknowledged.
    #[must_use]
    pub fn losses_known(&self) -> Vec<PartitionLoss> {
        self.losses_named(&self.data().losses)
    }

    /// These losses, by the names that datasets have in this map.
    #[must_use]
    pub fn losses_named(&self, losses: &[LostRecords]) -> Vec<PartitionLoss> {
        self.in_words(unpacked(losses))
    }

    /// Partitions, by their redundancy, that are lost by the newer map `after` and not by this one; or once more.
    pub fn lost_groups<'a>(
        &'a self,
        after: &'a Self,
    ) -> impl Iterator<Item = (Redundancy, PartitionId)> + 'a {
        let tables = after.data().tables.iter();
        let known = tables.filter_map(|table| Some((self.table(table.redundancy)?, table)));
        known.flat_map(move |(before, table)| {
            let pairs = before.groups.iter().zip(&table.groups).zip((0..).map(PartitionId));
            let anew = pairs.filter(|((was, is), _)| self.begins_anew(after, was, is));
            anew.map(|(_, partition)| (table.redundancy, partition))
        })
    }

    /// Partitions of a dataset that are lost by this map, and not acknowledged.
    #[must_use]
    pub fn lost_partitions(&self, dataset: DatasetId) -> &[PartitionRange] {
        let mut losses = self.data().losses.iter();
        let lost = losses.find(|lost| lost.datasets.binary_search(&dataset).is_ok());
        lost.map_or(&[], |lost| &lost.partitions)
    }

    /// Whether a partition of a dataset is lost by this map, and that is not acknowledged.
    #[must_use]
    pub fn is_lost(&self, dataset: DatasetId, partition: PartitionId) -> bool {
        let ranges = self.lost_partitions(dataset);
        let after = ranges.partition_point(|range| range.first <= partition);
        let range = after.checked_sub(1).map(|at| ranges[at]);
        range.is_some_and(|range| partition.get() - range.first.get() < range.count)
    }

    /// Whether `node` leads partitions that are lost by this map.
    #[must_use]
    pub fn has_lost_at(&self, node: NodeId) -> bool {
        let datasets = self.data().losses.iter().flat_map(|lost| &lost.datasets);
        let mut known = datasets.filter_map(|id| self.dataset_by_id(*id));
        known.any(|dataset| {
            let ranges = self.lost_partitions(dataset.id).iter();
            let mut partitions =
                ranges.flat_map(|range| (range.first.get()..).take(range.count as usize));
            partitions
                .any(|one| self.node_of(dataset.spec.redundancy, PartitionId(one)) == Some(node))
        })
    }

    /// The map of `data`, which is made from this one, with what is lost by it.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_losses_of(&self, data: ClusterMapData) -> Result<Self> {
        let after = Self::new(data)?;
        let lost = self.lost_by(&after);
        if lost.is_empty() {
            return Ok(after);
        }
        let mut all = unpacked(&after.data().losses);
        for (dataset, runs) in lost {
            let known = all.entry(dataset).or_default();
            known.extend(runs);
            *known = joined(std::mem::take(known), 0);
        }
        Self::new(ClusterMapData { losses: packed(all), ..after.data().clone() })
    }

    fn in_words(&self, lost: ByDataset) -> Vec<PartitionLoss> {
        let of = self.partitions() as usize;
        let named = lost.into_iter().filter_map(|(id, runs)| {
            let dataset = self.dataset_by_id(id)?.spec.name.clone();
            let partitions = runs.iter().map(|(first, last)| (last - first) as usize + 1).sum();
            Some(PartitionLoss { dataset, partitions, of })
        });
        named.collect()
    }

    fn lost_by(&self, after: &Self) -> ByDataset {
        let mut empty: BTreeMap<Redundancy, Runs> = BTreeMap::new();
        for (redundancy, partition) in self.lost_groups(after) {
            empty.entry(redundancy).or_default().push((partition.get(), partition.get()));
        }
        empty.values_mut().for_each(|runs| *runs = joined(std::mem::take(runs), 0));
        let counted = self.datasets().iter().filter(|dataset| counts(&dataset.spec));
        let known = counted.filter(|dataset| after.dataset_by_id(dataset.id).is_some());
        let lost = known.filter_map(|dataset| {
            let runs = empty.get(&dataset.spec.redundancy).filter(|runs| !runs.is_empty())?;
            Some((dataset.id, runs.clone()))
        });
        lost.collect()
    }

    /// Whether the member that leads a group in the newer map `after` has nothing of what the group held in this map. `was` is the group in this map, `is` in `after`.
    #[must_use]
    pub fn begins_anew(&self, after: &Self, was: &MirrorGroup, is: &MirrorGroup) -> bool {
        let first = is.members[0];
        let is_same_process =
            |target: TargetId| self.incarnation_of(target) == after.incarnation_of(target);
        let is_kept = || {
            let mut good =
                was.members.iter().filter(|one| one.consistency == MemberConsistency::Good);
            good.any(|one| is_same_process(one.target))
        };
        let before = was.members.iter().find(|one| one.target == first.target);
        let is_empty = match before.map(|one| one.consistency) {
            Some(MemberConsistency::Good) => !is_kept(),
            Some(MemberConsistency::Restarted) => true,
            _ => false,
        };
        is_empty && first.consistency == MemberConsistency::Good
    }
}

/// Whether it is a loss that nodes had records of this dataset in memory only: it was to keep them.
fn counts(spec: &DatasetSpec) -> bool {
    spec.durability == DurabilityKind::Memory
        && spec.semantics != SemanticsKind::Temporary
        && spec.backend.name != NULL_BACKEND
}

/// The part of `losses` that is not in `seen`.
#[must_use]
pub fn remaining_losses(losses: &[LostRecords], seen: &[LostRecords]) -> Vec<LostRecords> {
    losses_but_older(losses, seen, &[])
}

/// The part of `losses` that is not in `seen`, or is in `newer`.
#[must_use]
pub fn losses_but_older(
    losses: &[LostRecords],
    seen: &[LostRecords],
    newer: &[LostRecords],
) -> Vec<LostRecords> {
    let (seen, newer) = (unpacked(seen), unpacked(newer));
    let mut left = unpacked(losses);
    for (dataset, runs) in &mut left {
        let Some(seen) = seen.get(dataset) else { continue };
        *runs = match newer.get(dataset) {
            Some(newer) => without(runs, &without(seen, newer)),
            None => without(runs, seen),
        };
    }
    left.retain(|_, runs| !runs.is_empty());
    packed(left)
}

/// The part of `losses` that is not of this dataset.
#[must_use]
pub fn losses_without(losses: &[LostRecords], dataset: DatasetId) -> Vec<LostRecords> {
    let mut left = losses.to_vec();
    left.iter_mut().for_each(|lost| lost.datasets.retain(|one| *one != dataset));
    left.retain(|lost| !lost.datasets.is_empty());
    left
}

/// Unpacks losses as they travel, which may have come from anywhere: no number is relied on.
fn unpacked(losses: &[LostRecords]) -> ByDataset {
    let mut all = ByDataset::new();
    for lost in losses {
        let ranges = lost.partitions.iter().filter(|range| range.count > 0);
        let runs = ranges.map(|range| {
            let first = range.first.get();
            (first, first.saturating_add(range.count - 1))
        });
        let runs: Runs = runs.take(PARTITIONS_MAX).collect();
        for dataset in &lost.datasets {
            let known = all.entry(*dataset).or_default();
            known.extend(&runs);
            *known = joined(std::mem::take(known), 0);
        }
    }
    all
}

/// As it travels: datasets that have lost the same partitions are named together. Where that would be too long, partitions between lost ones count as lost, too: so
/// it may say too much, and never too little.
fn packed(mut all: ByDataset) -> Vec<LostRecords> {
    let mut gap = 0;
    loop {
        let losses = together(&all);
        if control::encode(&losses).len() <= LOSSES_LEN_MAX {
            return losses;
        }
        if gap as usize >= PARTITIONS_MAX {
            break;
        }
        gap = (gap * 2).max(1);
        all.values_mut().for_each(|runs| *runs = joined(std::mem::take(runs), gap));
    }
    // Each has one run by now, and too many have others.
    let runs = all.values().flatten().copied().collect();
    vec![lost(all.into_keys().collect(), &joined(runs, gap))]
}

fn together(all: &ByDataset) -> Vec<LostRecords> {
    let mut datasets: BTreeMap<&Runs, Vec<DatasetId>> = BTreeMap::new();
    for (dataset, runs) in all {
        datasets.entry(runs).or_default().push(*dataset);
    }
    datasets.into_iter().map(|(runs, datasets)| lost(datasets, runs)).collect()
}

fn lost(datasets: Vec<DatasetId>, runs: &Runs) -> LostRecords {
    let range = |(first, last): &(u32, u32)| PartitionRange {
        first: PartitionId(*first),
        count: last - first + 1,
    };
    LostRecords { datasets, partitions: runs.iter().map(range).collect() }
}

/// In order, with those made one that have at most `gap` between them.
fn joined(mut runs: Runs, gap: u32) -> Runs {
    runs.sort_unstable();
    let mut joined = Runs::new();
    for (first, last) in runs {
        match joined.last_mut() {
            Some((_, end)) if first <= end.saturating_add(gap).saturating_add(1) => {
                *end = last.max(*end);
            }
            _ => joined.push((first, last)),
        }
    }
    joined
}

/// The part of `runs` that is not in `others`.
fn without(runs: &Runs, others: &Runs) -> Runs {
    let mut left = Runs::new();
    for &(mut first, last) in runs {
        let met = others.iter().filter(|(_, end)| *end >= first);
        let met: Runs = met.take_while(|(start, _)| *start <= last).copied().collect();
        let mut is_over = false;
        for (start, end) in met {
            if start > first {
                left.push((first, start - 1));
            }
            is_over = end >= last;
            first = end.saturating_add(1);
        }
        if !is_over {
            left.push((first, last));
        }
    }
    left
}
