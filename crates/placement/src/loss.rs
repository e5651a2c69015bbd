//! What the nodes that were started again had in their memory, and nobody else has.

use std::collections::BTreeMap;

use samite_types::{Redundancy, TargetId};
use samite_wire::control::{Consistency, DurabilityKind, Group};

use crate::ClusterMap;

/// Partitions of one dataset whose records are gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Name of the dataset.
    pub dataset: String,
    /// Partitions that are empty now.
    pub partitions: usize,
    /// Partitions of the dataset.
    pub of: usize,
}

impl ClusterMap {
    /// What was lost between this map and the newer map `after`: partitions of datasets in memory whose good members have all been started again. A partition
    /// counts from the map on in which an empty member leads it.
    #[must_use]
    pub fn losses(&self, after: &Self) -> Vec<Loss> {
        let mut empty: BTreeMap<Redundancy, usize> = BTreeMap::new();
        for table in &after.data().tables {
            let Some(before) = self.table(table.redundancy) else { continue };
            let pairs = before.groups.iter().zip(&table.groups);
            let count = pairs.filter(|(was, is)| self.begins_anew(after, was, is)).count();
            empty.insert(table.redundancy, count);
        }
        let in_memory = self.datasets().iter().map(|dataset| &dataset.spec);
        let in_memory = in_memory.filter(|spec| spec.durability == DurabilityKind::Memory);
        let losses = in_memory.filter_map(|spec| {
            let partitions = *empty.get(&spec.redundancy)?;
            let of = after.table(spec.redundancy)?.groups.len();
            (partitions > 0).then(|| Loss { dataset: spec.name.clone(), partitions, of })
        });
        losses.collect()
    }

    /// Whether the member that leads a group in the newer map `after` has nothing of what the group held in this map. `was` is the group in this map, `is` in `after`.
    #[must_use]
    pub fn begins_anew(&self, after: &Self, was: &Group, is: &Group) -> bool {
        let first = is.members[0];
        let is_same_process =
            |target: TargetId| self.incarnation_of(target) == after.incarnation_of(target);
        let is_kept = || {
            let mut good = was.members.iter().filter(|one| one.consistency == Consistency::Good);
            good.any(|one| is_same_process(one.target))
        };
        let before = was.members.iter().find(|one| one.target == first.target);
        let is_empty = match before.map(|one| one.consistency) {
            Some(Consistency::Good) => !is_kept(),
            Some(Consistency::Restarted) => true,
            _ => false,
        };
        is_empty && first.consistency == Consistency::Good
    }
}
