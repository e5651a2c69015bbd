//! Checks that a cluster map, a node or a dataset must pass to be accepted.

use std::collections::HashSet;

use samite_types::{Epoch, Error, ErrorKind, Redundancy, Result, TargetId, Version};
use samite_wire::access::DatasetAccess;
use samite_wire::control::{
    self, BackendSpec, ClusterMapData, DatasetData, DatasetSpec, DistributionKind, MirrorGroup,
    NodeInfo, PartitionRange, PartitionTable, SemanticsKind,
};

use crate::distribution::PATTERN_LEN_MAX;
use crate::loss::LOSSES_LEN_MAX;

/// Most nodes in a cluster.
pub const NODES_MAX: usize = 4096;
/// Most partitions in a cluster.
pub const PARTITIONS_MAX: usize = 1 << 16;
/// Most datasets in a cluster.
pub const DATASETS_MAX: usize = 4096;
/// Most targets that hold each record of a dataset.
pub const REDUNDANCY_MAX: Redundancy = Redundancy(3);
/// Most addresses of a node.
pub const ADDRESSES_MAX: usize = 8;
/// Longest address or host name of a node, in bytes.
pub const ADDRESS_LEN_MAX: usize = 512;

const NAME_LEN_MAX: usize = 255;
const BACKEND_NAME_LEN_MAX: usize = 32;
const BACKEND_PATH_LEN_MAX: usize = 1024;
const TARGETS_PER_NODE_MAX: usize = 64;
const CHUNK_LEN_MIN: u32 = 64 << 10;
const CHUNK_LEN_MAX: u32 = 1 << 20;
/// Most targets of a mirror group: more than its redundancy while it moves.
pub const MEMBERS_MAX: usize = 2 * REDUNDANCY_MAX.0 as usize;

fn check_name(name: &str) -> std::result::Result<(), String> {
    check_short_name(name, NAME_LEN_MAX)
}

fn check_short_name(name: &str, len_max: usize) -> std::result::Result<(), String> {
    let lawful = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if name.is_empty() || name.len() > len_max {
        return Err(format!("name of {} bytes; 1 to {len_max} are allowed", name.len()));
    }
    if name.starts_with('.') || !name.bytes().all(lawful) {
        return Err(format!(
            "name {name:?}; letters, digits, '-', '_' and '.' are allowed, and no '.' in front"
        ));
    }
    Ok(())
}

fn check_backend(spec: &BackendSpec) -> std::result::Result<(), String> {
    check_short_name(&spec.name, BACKEND_NAME_LEN_MAX)?;
    let Some(path) = &spec.path else { return Ok(()) };
    if path.len() > BACKEND_PATH_LEN_MAX {
        let len = path.len();
        return Err(format!("path of {len} bytes; at most {BACKEND_PATH_LEN_MAX} are allowed"));
    }
    let is_upward = path.split('/').any(|part| part == "..");
    if !path.starts_with('/') || is_upward || path.contains('\0') {
        return Err(format!("path {path:?}; an absolute one without '..' is needed"));
    }
    Ok(())
}

/// Checks a dataset as asked for: its name, its backend (the name, and the path if there is one), its semantics, and its chunk length (a power of two
/// from 64 KiB to 1 MiB).
///
/// # Errors
/// [`ErrorKind::Invalid`] naming the field.
pub fn check_dataset_spec(spec: &DatasetSpec) -> Result<()> {
    spec_fault(spec).map_err(|cause| Error::new(ErrorKind::Invalid, format!("dataset: {cause}")))
}

fn spec_fault(spec: &DatasetSpec) -> std::result::Result<(), String> {
    check_name(&spec.name)?;
    check_backend(&spec.backend).map_err(|cause| format!("backend: {cause}"))?;
    if spec.semantics == SemanticsKind::Checkpoint {
        return Err("semantics checkpoint are not offered; posix, session and temporary are".into());
    }
    let len = spec.chunk_len;
    if !len.is_power_of_two() || !(CHUNK_LEN_MIN..=CHUNK_LEN_MAX).contains(&len) {
        return Err(format!("chunk length {len}; a power of two from 64 KiB to 1 MiB is needed"));
    }
    if !(Redundancy(1)..=REDUNDANCY_MAX).contains(&spec.redundancy) {
        return Err(format!(
            "redundancy {}; 1 to {} are possible",
            spec.redundancy.get(),
            REDUNDANCY_MAX.get()
        ));
    }
    if spec.access.mode & !DatasetAccess::MODE_MASK != 0 {
        return Err(format!("mode {:o}; 0 to 777 are possible", spec.access.mode));
    }
    if let DistributionKind::Weighted(weights) = &spec.distribution {
        let targets: HashSet<TargetId> = weights.iter().map(|(target, _)| *target).collect();
        if targets.len() != weights.len() {
            return Err("weights name a target twice".into());
        }
        if !weights.iter().any(|(_, weight)| *weight > 0) {
            return Err("no weight is above zero".into());
        }
    }
    Ok(())
}

/// Checks a node as it presents itself.
///
/// # Errors
/// [`ErrorKind::Invalid`] naming the field.
pub fn check_node_info(info: &NodeInfo) -> Result<()> {
    node_fault(info)
        .map_err(|cause| Error::new(ErrorKind::Invalid, format!("node {}: {cause}", info.node)))
}

fn node_fault(info: &NodeInfo) -> std::result::Result<(), String> {
    if info.addresses.is_empty() || info.addresses.len() > ADDRESSES_MAX {
        return Err(format!("{} addresses", info.addresses.len()));
    }
    if info.host.len() > ADDRESS_LEN_MAX
        || info.rack.len() > ADDRESS_LEN_MAX
        || info.addresses.iter().any(|address| address.len() > ADDRESS_LEN_MAX)
    {
        return Err("address over its limit".into());
    }
    if info.targets.is_empty() || info.targets.len() > TARGETS_PER_NODE_MAX {
        return Err(format!("{} targets", info.targets.len()));
    }
    Ok(())
}

/// Says what is wrong with a map.
pub(crate) fn check_map(data: &ClusterMapData) -> std::result::Result<(), String> {
    check_name(&data.cluster)?;
    if data.epoch == Epoch(0) {
        return Err("epoch 0".into());
    }
    if data.nodes.is_empty() || data.nodes.len() > NODES_MAX {
        return Err(format!("{} nodes", data.nodes.len()));
    }
    if !data.nodes.is_sorted_by(|a, b| a.node < b.node) {
        return Err("nodes out of order".into());
    }
    let mut targets = HashSet::new();
    for info in &data.nodes {
        node_fault(info).map_err(|cause| format!("{}: {cause}", info.node))?;
        if let Some(twice) = info.targets.iter().find(|info| !targets.insert(info.target)) {
            return Err(format!("target {} twice", twice.target));
        }
    }
    if data.states.len() != data.nodes.len() {
        return Err(format!("{} states of {} nodes", data.states.len(), data.nodes.len()));
    }
    check_tables(&data.tables, &targets)?;
    check_datasets(data)?;
    check_losses(data)
}

fn check_tables(
    tables: &[PartitionTable],
    targets: &HashSet<TargetId>,
) -> std::result::Result<(), String> {
    let partitions = tables.first().map_or(0, |table| table.groups.len());
    if partitions == 0 || partitions > PARTITIONS_MAX {
        return Err(format!("{partitions} partitions"));
    }
    let redundancies = tables.iter().map(|table| table.redundancy);
    if tables[0].redundancy != Redundancy(1)
        || tables.len() > usize::from(REDUNDANCY_MAX.get())
        || !redundancies.is_sorted_by(|a, b| a < b)
    {
        return Err("tables out of order".into());
    }
    for table in tables {
        if table.groups.len() != partitions {
            return Err(format!("{}: {} partitions", table.redundancy, table.groups.len()));
        }
        for group in &table.groups {
            check_group(group, targets)
                .map_err(|cause| format!("{}: {cause}", table.redundancy))?;
        }
    }
    Ok(())
}

fn check_group(
    group: &MirrorGroup,
    targets: &HashSet<TargetId>,
) -> std::result::Result<(), String> {
    let members = &group.members;
    if members.is_empty() || members.len() > MEMBERS_MAX {
        return Err(format!("a group of {} members", members.len()));
    }
    if group.term > Version::TERM_MAX {
        return Err(format!("a group in {}; {} is the last", group.term, Version::TERM_MAX));
    }
    for (index, member) in members.iter().enumerate() {
        if !targets.contains(&member.target) {
            return Err(format!("a partition on unknown target {}", member.target));
        }
        if members[..index].iter().any(|other| other.target == member.target) {
            return Err(format!("target {} twice in a group", member.target));
        }
    }
    Ok(())
}

fn check_datasets(data: &ClusterMapData) -> std::result::Result<(), String> {
    if data.datasets.len() > DATASETS_MAX {
        return Err(format!("{} datasets", data.datasets.len()));
    }
    if !data.datasets.is_sorted_by(|a, b| a.id < b.id) {
        return Err("datasets out of order".into());
    }
    let mut names = HashSet::new();
    for dataset in &data.datasets {
        spec_fault(&dataset.spec).map_err(|cause| format!("{}: {cause}", dataset.id))?;
        if !names.insert(&dataset.spec.name) {
            return Err(format!("dataset {:?} twice", dataset.spec.name));
        }
        if !data.tables.iter().any(|table| table.redundancy == dataset.spec.redundancy) {
            return Err(format!("{}: no table for {}", dataset.id, dataset.spec.redundancy));
        }
        check_pattern(dataset, data.tables[0].groups.len())?;
    }
    Ok(())
}

fn check_pattern(dataset: &DatasetData, partitions: usize) -> std::result::Result<(), String> {
    let weighted = matches!(dataset.spec.distribution, DistributionKind::Weighted(_));
    if weighted == dataset.wheel.is_empty() || dataset.wheel.len() > PATTERN_LEN_MAX {
        return Err(format!("{}: a stripe pattern of {} slots", dataset.id, dataset.wheel.len()));
    }
    if dataset.wheel.iter().any(|partition| partition.get() as usize >= partitions) {
        return Err(format!("{}: stripe pattern names an unknown partition", dataset.id));
    }
    Ok(())
}

fn check_losses(data: &ClusterMapData) -> std::result::Result<(), String> {
    if data.losses.is_empty() {
        return Ok(());
    }
    if control::encode(&data.losses).len() > LOSSES_LEN_MAX {
        return Err("more losses than there is room for".into());
    }
    let partitions = data.tables[0].groups.len() as u64;
    let mut datasets = HashSet::new();
    for lost in &data.losses {
        if lost.datasets.is_empty() || !lost.datasets.is_sorted_by(|a, b| a < b) {
            return Err("losses out of order".into());
        }
        let is_known = |id| data.datasets.binary_search_by_key(&id, |dataset| dataset.id).is_ok();
        if let Some(id) = lost.datasets.iter().find(|id| !is_known(**id) || !datasets.insert(**id))
        {
            return Err(format!("a loss of {id}, which is unknown or named twice"));
        }
        let end = |range: &PartitionRange| u64::from(range.first.get()) + u64::from(range.count);
        let ranges = &lost.partitions;
        let are_apart = ranges.is_sorted_by(|a, b| end(a) < u64::from(b.first.get()));
        let is_lawful = |range: &PartitionRange| range.count > 0 && end(range) <= partitions;
        if ranges.is_empty() || !are_apart || !ranges.iter().all(is_lawful) {
            return Err("a loss of unlawful partitions".into());
        }
    }
    Ok(())
}
