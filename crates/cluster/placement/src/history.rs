//! The last changes of the cluster map: a caller that knows an older one gets a map diff.

use std::collections::{BTreeMap, VecDeque};

use samite_types::Epoch;
use samite_wire::control::ControlReply;
use samite_wire::delta::{MapDelta, NodeChange};

use crate::ClusterMap;

/// Most changes that are remembered.
const DELTAS_MAX: usize = 256;
/// Most entries of all of them together.
const ENTRIES_MAX: usize = 16 << 10;

/// Changes that follow one another, the newest last. Bounded; a caller with a map from before them
/// needs the whole one.
#[derive(Debug, Default)]
pub struct MapHistory {
    deltas: VecDeque<MapDelta>,
    entries: usize,
}

impl MapHistory {
    /// `after` has taken the place of `before`, which is the map that was noted last.
    pub fn note(&mut self, before: Option<&ClusterMap>, after: &ClusterMap) {
        match before.and_then(|before| after.changes_since(before)) {
            Some(delta) => self.add(delta),
            None => self.clear(),
        }
    }

    /// `delta` has led from the map that was noted last to the present one.
    pub fn add(&mut self, delta: MapDelta) {
        let newest = self.deltas.back().map(|last| last.to);
        // A diff from further back has the changes of the last one, too.
        if newest.is_some_and(|newest| !(delta.from..delta.to).contains(&newest)) {
            self.clear();
        }
        self.entries += entries(&delta);
        self.deltas.push_back(delta);
        while self.deltas.len() > DELTAS_MAX || self.entries > ENTRIES_MAX {
            let oldest = self.deltas.pop_front();
            self.entries -= oldest.as_ref().map_or(0, entries);
        }
    }

    fn clear(&mut self) {
        *self = Self::default();
    }

    /// The map diff from the map of epoch `known` to that of epoch `to`; `None` when that is not
    /// remembered.
    #[must_use]
    pub fn since(&self, known: Epoch, to: Epoch) -> Option<MapDelta> {
        let end = self.deltas.iter().rposition(|delta| delta.to == to)? + 1;
        // The last that a map of this epoch can begin with.
        let begins = |delta: &MapDelta| (delta.from..delta.to).contains(&known);
        let begin = self.deltas.iter().take(end).rposition(begins)?;
        let mut deltas = self.deltas.range(begin..end);
        let first = deltas.next()?.clone();
        Some(deltas.fold(first, merge))
    }

    /// The answer to a caller that has the map of epoch `known` (0: none), and is to have `map`.
    #[must_use]
    pub fn answer(&self, map: &ClusterMap, known: Epoch) -> ControlReply {
        if map.epoch() <= known {
            return ControlReply::Map(None);
        }
        match self.since(known, map.epoch()) {
            Some(delta) => ControlReply::MapDelta(delta),
            None => ControlReply::Map(Some(map.data().clone())),
        }
    }
}

fn entries(delta: &MapDelta) -> usize {
    let of_tables: usize = delta.tables.iter().map(|table| table.groups.len()).sum();
    let of_losses: usize = delta.losses.iter().flatten().map(|lost| lost.partitions.len()).sum();
    1 + delta.nodes.len() + delta.groups.len() + delta.datasets.len() + of_tables + of_losses
}

/// Both, one after the other.
fn merge(mut first: MapDelta, then: &MapDelta) -> MapDelta {
    let is_renewed = |of| then.tables.iter().any(|table| table.redundancy == of);
    first.tables.retain(|table| !is_renewed(table.redundancy));
    first.groups.retain(|change| !is_renewed(change.redundancy));
    let mut nodes: BTreeMap<_, NodeChange> =
        first.nodes.into_iter().map(|change| (change.node, change)).collect();
    for change in &then.nodes {
        let before = nodes.remove(&change.node).and_then(|before| before.info);
        let info = change.info.clone().or(before).filter(|_| change.state.is_some());
        nodes.insert(change.node, NodeChange { info, ..change.clone() });
    }
    let mut groups: BTreeMap<_, _> = first
        .groups
        .into_iter()
        .map(|change| ((change.redundancy, change.partition), change))
        .collect();
    for change in &then.groups {
        let mut tables = first.tables.iter_mut();
        let table = tables.find(|table| table.redundancy == change.redundancy);
        match table.and_then(|table| table.groups.get_mut(change.partition.get() as usize)) {
            Some(group) => *group = change.group.clone(),
            None => drop(groups.insert((change.redundancy, change.partition), change.clone())),
        }
    }
    let mut datasets: BTreeMap<_, _> =
        first.datasets.into_iter().map(|change| (change.id, change)).collect();
    datasets.extend(then.datasets.iter().map(|change| (change.id, change.clone())));
    first.tables.extend(then.tables.iter().cloned());
    first.tables.sort_by_key(|table| table.redundancy);
    MapDelta {
        from: first.from,
        to: then.to,
        digest: then.digest,
        nodes: nodes.into_values().collect(),
        tables: first.tables,
        groups: groups.into_values().collect(),
        datasets: datasets.into_values().collect(),
        losses: then.losses.clone().or(first.losses),
    }
}
