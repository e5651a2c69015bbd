//! The records that the members of a cluster's groups hold, in figures that can be compared.

use samite_client::{Client, Dataset};
use samite_types::{NodeId, PartitionId, Redundancy};
use samite_wire::control::{GroupMember, PartitionCopy};

/// Every member of every group holds the same of these datasets, byte for byte.
///
/// # Errors
/// Which do not, or the cause for which that cannot be told.
pub(super) fn compare(client: &Client, names: &[&str]) -> Result<(), String> {
    for name in names {
        let dataset = client.dataset(name).map_err(|error| error.to_string())?;
        each(client, &dataset, &mut |partition, copies| {
            let copies: Result<Vec<_>, String> = copies.into_iter().map(|(_, copy)| copy).collect();
            let copies = copies?;
            if copies.windows(2).all(|pair| pair[0] == pair[1]) {
                return Ok(());
            }
            Err(format!("members of {name}, partition {partition} differ: {copies:?}"))
        })?;
    }
    Ok(())
}

/// The records of one node in a partition.
pub(super) type Copy = (NodeId, Result<Option<PartitionCopy>, String>);

/// Tells `visit` of each partition of a dataset the records that its members hold, the primary
/// first.
///
/// # Errors
/// There is no map, or what `visit` says.
pub(super) fn each(
    client: &Client,
    dataset: &Dataset,
    visit: &mut dyn FnMut(u32, Vec<Copy>) -> Result<(), String>,
) -> Result<(), String> {
    let map = client.map().map_err(|error| error.to_string())?;
    let spec = map.dataset_by_id(dataset.id()).map(|known| known.spec.redundancy);
    let table = map.table(spec.unwrap_or(Redundancy(1))).ok_or("no table of groups")?;
    for (group, partition) in table.groups.iter().zip(0..) {
        let copy_at = |member: &GroupMember| -> Result<Copy, String> {
            let node = map.node_of_target(member.target).ok_or("a target without node")?;
            let copy = client.partition_copy(node, dataset.id(), PartitionId(partition));
            Ok((node, copy.map_err(|error| error.to_string())))
        };
        let copies: Result<Vec<Copy>, String> = group.members.iter().map(copy_at).collect();
        visit(partition, copies?)?;
    }
    Ok(())
}
