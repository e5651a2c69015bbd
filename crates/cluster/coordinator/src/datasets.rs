//! Datasets come and go.

use std::sync::Arc;

use samite_placement::{
    ClusterMap, DATASETS_MAX, arrange, check_dataset_spec, losses_but_older, losses_without,
    stripe_pattern,
};
use samite_types::{DatasetId, Epoch, Error, ErrorKind, PartitionId, Redundancy, Result, Term};
use samite_wire::control::{
    ClusterMapData, DatasetData, DatasetSpec, DistributionKind, DurabilityKind, GroupMember,
    LostRecords, MemberConsistency, MirrorGroup, PartitionRange, PartitionTable,
};

use crate::moves::{Goal, places};
use crate::{Coordinator, primaries};

impl Coordinator {
    /// Makes a dataset, and the table of its redundancy if it is the first. One with the same name and the same policy exists: the map as it is.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`]: the policy is unlawful, or more than the nodes can do. [`ErrorKind::Exists`]: the name is taken by a dataset with another
    /// policy. [`ErrorKind::TooLarge`]: too many datasets, or too many weights. [`ErrorKind::Unavailable`]: there is no map yet.
    pub fn create_dataset(&mut self, spec: DatasetSpec) -> Result<Arc<ClusterMap>> {
        check_dataset_spec(&spec)?;
        let map = self.ready_map()?;
        if let Some(present) = map.dataset(&spec.name) {
            if present.spec.is_same_policy(&spec) {
                return Ok(map.clone());
            }
            return Err(Error::new(
                ErrorKind::Exists,
                format!("dataset {}: exists with another policy", spec.name),
            ));
        }
        let mut data = map.data().clone();
        if data.datasets.len() == DATASETS_MAX || self.next_dataset == u32::MAX {
            return Err(Error::new(
                ErrorKind::TooLarge,
                format!("dataset {}: there are {} already", spec.name, data.datasets.len()),
            ));
        }
        check_nodes(&spec, &data)?;
        let mut goals = self.goals.clone();
        ensure_table(&mut data, &mut goals, spec.redundancy)?;
        let wheel = match &spec.distribution {
            DistributionKind::Weighted(weights) => {
                stripe_pattern(weights, &primaries(&data, spec.redundancy))
                    .map_err(|error| error.context(format_args!("dataset {}", spec.name)))?
            }
            DistributionKind::RoundRobin | DistributionKind::Single => Vec::new(),
        };
        let id = DatasetId(self.next_dataset);
        data.datasets.push(DatasetData { id, spec, wheel, frozen_by: 0 });
        Self::check_len(&data, &goals)?;
        let redundancy = data.datasets.last().map(|dataset| dataset.spec.redundancy);
        self.goals = goals;
        self.next_dataset += 1;
        let map = self.conclude(data, false)?;
        // A member that is up to date but for this dataset is not up to date.
        for table in map.data().tables.iter().filter(|table| Some(table.redundancy) == redundancy) {
            let is_lacking = |group: &MirrorGroup| {
                group.members.iter().any(|member| member.consistency != MemberConsistency::Good)
            };
            let groups = (0..).map(PartitionId).zip(&table.groups);
            for (partition, _) in groups.filter(|(_, group)| is_lacking(group)) {
                self.changed.insert((table.redundancy, partition), map.epoch());
            }
        }
        Ok(map)
    }

    /// Removes a dataset.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]: no dataset has this name. [`ErrorKind::Unavailable`]: there is no map yet.
    pub fn drop_dataset(&mut self, name: &str) -> Result<Arc<ClusterMap>> {
        let mut data = self.ready_map()?.data().clone();
        let before = data.datasets.len();
        if let Some(dropped) = data.datasets.iter().find(|dataset| dataset.spec.name == name) {
            data.losses = losses_without(&data.losses, dropped.id);
        }
        data.datasets.retain(|dataset| dataset.spec.name != name);
        if data.datasets.len() == before {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("dataset {name}: no such dataset"),
            ));
        }
        self.conclude(data, false)
    }

    /// Gives a dataset another owner or mode.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]: no dataset has this name. [`ErrorKind::Invalid`]: that is no mode. [`ErrorKind::Unavailable`]: there is no map yet.
    pub fn set_access(
        &mut self,
        name: &str,
        owner: Option<u32>,
        mode: Option<u16>,
    ) -> Result<Arc<ClusterMap>> {
        let mut data = self.ready_map()?.data().clone();
        let named = data.datasets.iter_mut().find(|dataset| dataset.spec.name == name);
        let dataset = named.ok_or_else(|| {
            Error::new(ErrorKind::NotFound, format!("dataset {name}: no such dataset"))
        })?;
        let access = &mut dataset.spec.access;
        access.owner = owner.unwrap_or(access.owner);
        access.mode = mode.unwrap_or(access.mode);
        check_dataset_spec(&dataset.spec)?;
        self.conclude(data, false)
    }
}

impl Coordinator {
    /// An operator acknowledges these losses, as the map of epoch `by` has them: they are told no
    /// more. A partition that is not lost, or not any more, is passed over; a loss (perhaps once
    /// more) after that map stays told. So does everything when this instance took its place after
    /// that map: it does not know of losses between the two.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`]: there is no map yet.
    pub fn acknowledge_loss(&mut self, by: Epoch, seen: &[LostRecords]) -> Result<Arc<ClusterMap>> {
        let map = self.ready_map()?;
        if by < self.since {
            return Ok(Arc::clone(map));
        }
        let mut data = map.data().clone();
        data.losses = losses_but_older(&data.losses, seen, &self.lost_after(by));
        self.conclude(data, false)
    }

    /// Losses after the map of epoch `by`.
    fn lost_after(&self, by: Epoch) -> Vec<LostRecords> {
        let datasets = self.map.iter().flat_map(|map| map.datasets());
        let lost = datasets.map(|dataset| {
            let of = dataset.spec.redundancy;
            let newer = self.lost.iter().filter(|((at, _), lost)| *at == of && **lost > by);
            let ranges = newer.map(|((_, first), _)| PartitionRange { first: *first, count: 1 });
            LostRecords { datasets: vec![dataset.id], partitions: ranges.collect() }
        });
        lost.filter(|lost| !lost.partitions.is_empty()).collect()
    }
}

/// Whether the nodes can keep the promises of the dataset.
fn check_nodes(spec: &DatasetSpec, data: &ClusterMapData) -> Result<()> {
    let invalid = |cause: String| {
        Err(Error::new(ErrorKind::Invalid, format!("dataset {}: {cause}", spec.name)))
    };
    let staying = || data.nodes.iter().zip(&data.states).filter(|(_, state)| !state.is_draining);
    let count = staying().count();
    if usize::from(spec.redundancy.get()) > count {
        return invalid(format!(
            "redundancy {} needs as many nodes; the cluster has {count}",
            spec.redundancy.get()
        ));
    }
    let mut targets =
        staying().flat_map(|(info, _)| info.targets.iter().map(move |one| (info, one)));
    if spec.durability == DurabilityKind::Logged
        && let Some((info, one)) = targets.find(|(_, one)| one.storage == 0)
    {
        return invalid(format!(
            "cannot be logged: target {} of {} has no durable storage",
            one.target, info.node
        ));
    }
    Ok(())
}

/// Makes the table of this redundancy, if there is none.
fn ensure_table(
    data: &mut ClusterMapData,
    goals: &mut Vec<Goal>,
    redundancy: Redundancy,
) -> Result<()> {
    let Err(index) = data.tables.binary_search_by_key(&redundancy, |table| table.redundancy) else {
        return Ok(());
    };
    let partitions = data.tables[0].groups.len();
    // Nodes that are away get their share all the same: it is empty yet.
    let goal = arrange(&vec![Vec::new(); partitions], redundancy, &places(data, |_| false))?;
    let members = |targets: &Vec<_>| {
        let good =
            |target: &_| GroupMember { target: *target, consistency: MemberConsistency::Good };
        targets.iter().map(good).collect()
    };
    let groups =
        goal.iter().map(|one| MirrorGroup { term: Term(0), members: members(one) }).collect();
    data.tables.insert(index, PartitionTable { redundancy, groups });
    goals.insert(index, goal);
    Ok(())
}
