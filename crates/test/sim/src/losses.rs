//! An observer's knowledge of losses: which nodes had the records of a partition last, when the
//! last of those died, from which map on that is told, and until when.

use std::collections::BTreeMap;
use std::time::Duration;

use samite_types::{DatasetId, Epoch, NodeId, PartitionId};
use samite_wire::control::{ClusterMapData, DatasetData, LostRecords, PartitionTable};

use crate::scenario::DATASET;

/// An event of all records of a partition at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartitionEvent {
    /// They are gone, and that is told.
    Lost,
    /// An operator has acknowledged it: a record that is gone is missing.
    Acknowledged,
}

/// The same, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedEvent {
    /// The event.
    pub what: PartitionEvent,
    /// Not before this.
    pub from: Duration,
    /// And until then for everybody; `None`: not for everybody before the end.
    pub to: Option<Duration>,
}

/// A process of a node.
pub type Life = (NodeId, u64);

/// The losses of a run.
#[derive(Debug, Default)]
pub struct RunLosses {
    /// The members that were good by the last map in which any was.
    holders: BTreeMap<PartitionId, Vec<Life>>,
    died: BTreeMap<Life, Duration>,
    /// Lost, by the map of that epoch, and not acknowledged.
    open: BTreeMap<PartitionId, Epoch>,
    /// The losses that the operator wants to acknowledge, and the newest map by which it does.
    asked: BTreeMap<PartitionId, Epoch>,
    /// Acknowledged by the map of that epoch, which not all nodes have.
    spreading: BTreeMap<PartitionId, Epoch>,
    happened: BTreeMap<PartitionId, Vec<TimedEvent>>,
}

impl RunLosses {
    /// The events of a partition, in order.
    #[must_use]
    pub fn of(&self, partition: PartitionId) -> &[TimedEvent] {
        self.happened.get(&partition).map_or(&[], Vec::as_slice)
    }

    /// A process of a node has died.
    pub fn died(&mut self, life: Life, now: Duration) {
        self.died.insert(life, now);
    }

    /// These are good by the newest map.
    pub fn held_by(&mut self, partition: PartitionId, lives: Vec<Life>) {
        if !lives.is_empty() {
            self.holders.insert(partition, lives);
        }
    }

    /// By the map of `epoch`, which is published at `now`, an empty member leads the partition.
    pub fn lost(&mut self, partition: PartitionId, epoch: Epoch, now: Duration) {
        let holders = self.holders.get(&partition).into_iter().flatten();
        let from = holders.filter_map(|life| self.died.get(life)).max().copied();
        self.end(partition, now);
        self.open.insert(partition, epoch);
        let happening =
            TimedEvent { what: PartitionEvent::Lost, from: from.unwrap_or(now), to: Some(now) };
        self.happened.entry(partition).or_default().push(happening);
    }

    /// The operator says that it knows of these, from the map of epoch `by`.
    pub fn asked(&mut self, by: Epoch, seen: &[LostRecords]) {
        for partition in seen.iter().flat_map(partitions) {
            let known = self.asked.entry(partition).or_default();
            *known = by.max(*known);
        }
    }

    /// Compares a map that is published with the losses. Its errors, in words.
    pub fn compare(
        &mut self,
        map: &ClusterMapData,
        now: Duration,
    ) -> Option<(&'static str, String)> {
        let (dataset, table) = simulated(map)?;
        for partition in (0..table.groups.len() as u32).map(PartitionId) {
            let open = self.open.get(&partition).copied();
            let is_asked = |lost| self.asked.get(&partition).is_some_and(|by| *by >= lost);
            match (open, is_lost(map, dataset.id, partition)) {
                (Some(_), true) | (None, false) => {}
                (None, true) => {
                    let words = format!("{partition}: {} says so, at {now:?}", map.epoch);
                    return Some(("nothing is called lost that somebody has", words));
                }
                (Some(lost), false) if is_asked(lost) => {
                    self.open.remove(&partition);
                    self.spreading.insert(partition, map.epoch);
                    let happening =
                        TimedEvent { what: PartitionEvent::Acknowledged, from: now, to: None };
                    self.happened.entry(partition).or_default().push(happening);
                }
                (Some(_), false) => {
                    let words =
                        format!("{partition}: {} says nothing of it, at {now:?}", map.epoch);
                    return Some(("a loss is told until it is acknowledged", words));
                }
            }
        }
        None
    }

    /// All nodes that live serve by maps of at least this epoch.
    pub fn all_know(&mut self, epoch: Epoch, now: Duration) {
        let known = self.spreading.iter().filter(|(_, needed)| **needed <= epoch);
        for partition in known.map(|(partition, _)| *partition).collect::<Vec<_>>() {
            self.end(partition, now);
        }
    }

    fn end(&mut self, partition: PartitionId, now: Duration) {
        if self.spreading.remove(&partition).is_some()
            && let Some(last) = self.happened.entry(partition).or_default().last_mut()
        {
            last.to = Some(now);
        }
    }
}

/// The simulated dataset of a map, and the table that has its groups.
#[must_use]
pub fn simulated(map: &ClusterMapData) -> Option<(&DatasetData, &PartitionTable)> {
    let dataset = map.datasets.iter().find(|dataset| dataset.spec.name == DATASET)?;
    let table = map.tables.iter().find(|table| table.redundancy == dataset.spec.redundancy)?;
    Some((dataset, table))
}

/// Whether a map says that a partition of a dataset is lost.
#[must_use]
pub fn is_lost(map: &ClusterMapData, dataset: DatasetId, partition: PartitionId) -> bool {
    let mut named = map.losses.iter().filter(|lost| lost.datasets.contains(&dataset));
    named.any(|lost| partitions(lost).any(|one| one == partition))
}

fn partitions(lost: &LostRecords) -> impl Iterator<Item = PartitionId> {
    let ranges = lost.partitions.iter();
    ranges.flat_map(|range| (range.first.get()..).take(range.count as usize)).map(PartitionId)
}
