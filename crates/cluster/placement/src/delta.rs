//! Map diffs: from one map to the next by the changes between them.

use std::collections::BTreeMap;

use samite_types::{Error, ErrorKind, Result};
use samite_wire::control::{self, ClusterMapData};
use samite_wire::delta::{DatasetChange, GroupChange, MapDelta, NodeChange};

use crate::{ClusterMap, hash};

impl ClusterMap {
    /// The map diff since `before`; `None` when only the whole map can say it: it is of another
    /// cluster, or not later.
    #[must_use]
    pub fn changes_since(&self, before: &Self) -> Option<MapDelta> {
        if !self.replaces(before).ok()? {
            return None;
        }
        let (old, new) = (before.data(), self.data());
        let has_table =
            |data: &ClusterMapData, of| data.tables.iter().any(|table| table.redundancy == of);
        // Tables come, and stay.
        if old.tables.iter().any(|table| !has_table(new, table.redundancy)) {
            return None;
        }
        let fresh = new.tables.iter().filter(|table| !has_table(old, table.redundancy));
        Some(MapDelta {
            from: old.epoch,
            to: new.epoch,
            digest: digest(new),
            nodes: changed_nodes(old, new),
            tables: fresh.cloned().collect(),
            groups: changed_groups(old, new),
            datasets: changed_datasets(old, new),
            losses: (old.losses != new.losses).then(|| new.losses.clone()),
        })
    }

    /// This map with `delta` applied: the one that `delta` leads to.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`]: it does not begin here, or leads to something else. The whole map is to be asked for then.
    pub fn with(&self, delta: &MapDelta) -> Result<Self> {
        let unfit = |cause: &str| {
            let (from, to, epoch) = (delta.from, delta.to, self.epoch());
            let cause =
                format!("change of the cluster map from {from} to {to} at {epoch}: {cause}");
            Error::new(ErrorKind::Corrupt, cause)
        };
        if !(delta.from..delta.to).contains(&self.epoch()) {
            return Err(unfit("it does not begin here"));
        }
        let mut data = self.data().clone();
        data.epoch = delta.to;
        change_nodes(&mut data, &delta.nodes).ok_or_else(|| unfit("an unknown node"))?;
        change_tables(&mut data, delta).ok_or_else(|| unfit("an unknown partition"))?;
        for change in &delta.datasets {
            let place = data.datasets.binary_search_by_key(&change.id, |dataset| dataset.id);
            replace(&mut data.datasets, place, change.data.clone());
        }
        if let Some(losses) = &delta.losses {
            data.losses.clone_from(losses);
        }
        let map = Self::new(data)?;
        if digest(map.data()) != delta.digest {
            return Err(unfit("it leads to another map"));
        }
        Ok(map)
    }
}

/// By which two maps are compared.
fn digest(data: &ClusterMapData) -> u64 {
    hash(&control::encode(data))
}

fn changed_nodes(old: &ClusterMapData, new: &ClusterMapData) -> Vec<NodeChange> {
    let known = |data: &ClusterMapData, node| {
        let index = data.nodes.binary_search_by_key(&node, |info| info.node).ok()?;
        Some((data.nodes[index].clone(), data.states[index]))
    };
    let mut changes: Vec<NodeChange> = Vec::new();
    for (info, state) in new.nodes.iter().zip(&new.states) {
        let before = known(old, info.node);
        let is_known = before.as_ref().is_some_and(|(before, _)| before == info);
        if !is_known || before.is_some_and(|(_, before)| before != *state) {
            let info_of = (!is_known).then(|| info.clone());
            changes.push(NodeChange { node: info.node, state: Some(*state), info: info_of });
        }
    }
    let gone = old.nodes.iter().filter(|info| known(new, info.node).is_none());
    changes.extend(gone.map(|info| NodeChange { node: info.node, state: None, info: None }));
    changes.sort_by_key(|change| change.node);
    changes
}

fn changed_groups(old: &ClusterMapData, new: &ClusterMapData) -> Vec<GroupChange> {
    let mut changes = Vec::new();
    for table in &new.tables {
        let before = old.tables.iter().find(|before| before.redundancy == table.redundancy);
        let Some(before) = before else { continue };
        let pairs = before.groups.iter().zip(&table.groups).zip(0..);
        let other = pairs.filter(|((before, after), _)| before != after);
        changes.extend(other.map(|((_, group), partition)| GroupChange {
            redundancy: table.redundancy,
            partition: samite_types::PartitionId(partition),
            group: group.clone(),
        }));
    }
    changes
}

fn changed_datasets(old: &ClusterMapData, new: &ClusterMapData) -> Vec<DatasetChange> {
    let before: BTreeMap<_, _> = old.datasets.iter().map(|data| (data.id, data)).collect();
    let after: BTreeMap<_, _> = new.datasets.iter().map(|data| (data.id, data)).collect();
    let mut changes: Vec<DatasetChange> = after
        .iter()
        .filter(|(id, data)| before.get(id) != Some(data))
        .map(|(id, data)| DatasetChange { id: *id, data: Some((*data).clone()) })
        .chain(
            before
                .keys()
                .filter(|id| !after.contains_key(id))
                .map(|id| DatasetChange { id: *id, data: None }),
        )
        .collect();
    changes.sort_by_key(|change| change.id);
    changes
}

/// Puts `new` where a search has ended, in the place of what it has found.
fn replace<T>(all: &mut Vec<T>, place: std::result::Result<usize, usize>, new: Option<T>) {
    match (place, new) {
        (Ok(at), Some(new)) => all[at] = new,
        (Ok(at), None) => drop(all.remove(at)),
        (Err(at), Some(new)) => all.insert(at, new),
        (Err(_), None) => {}
    }
}

fn change_nodes(data: &mut ClusterMapData, changes: &[NodeChange]) -> Option<()> {
    for change in changes {
        let place = data.nodes.binary_search_by_key(&change.node, |info| info.node);
        let info = match (&change.info, place) {
            // Under another's id it would be out of order.
            (Some(info), _) if info.node != change.node => return None,
            (None, Err(_)) if change.state.is_some() => return None,
            (None, Ok(at)) => Some(data.nodes[at].clone()),
            (info, _) => info.clone(),
        };
        replace(&mut data.states, place, change.state);
        replace(&mut data.nodes, place, change.state.and(info));
    }
    Some(())
}

fn change_tables(data: &mut ClusterMapData, delta: &MapDelta) -> Option<()> {
    for table in &delta.tables {
        let place = data.tables.binary_search_by_key(&table.redundancy, |table| table.redundancy);
        replace(&mut data.tables, place, Some(table.clone()));
    }
    for change in &delta.groups {
        let mut tables = data.tables.iter_mut();
        let table = tables.find(|table| table.redundancy == change.redundancy)?;
        *table.groups.get_mut(change.partition.get() as usize)? = change.group.clone();
    }
    Some(())
}
