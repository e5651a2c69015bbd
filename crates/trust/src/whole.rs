//! Whether the mirror groups of a cluster are whole.

use std::time::{Duration, Instant};

use samite_client::Client;
use samite_types::Deadline;
use samite_wire::control::{Consistency, Group, NodeInfo, PartitionTable};

/// Longest time that groups may take to become whole again.
const HEAL_MAX: Duration = Duration::from_secs(60);
/// Longest time that a node may take to say who it is.
const STATUS_MAX: Duration = Duration::from_secs(2);

/// Waits until all groups have all their members, and these are good, by a map that knows all nodes as they are.
///
/// # Errors
/// How many are not; none, if a node does not answer, or as another one than the map knows.
pub fn wait_whole(client: &Client) -> Result<(), String> {
    let begun = Instant::now();
    loop {
        let map = client.refresh_map();
        let ill = map.as_ref().map_or(usize::MAX, |map| {
            let tables = map.data().tables.iter().filter(|table| table.redundancy.get() > 1);
            tables.map(ill_groups).sum()
        });
        if ill == 0 && map.as_ref().is_ok_and(|map| are_of_today(client, &map.data().nodes)) {
            return Ok(());
        }
        if begun.elapsed() > HEAL_MAX {
            return Err(format!("{ill} groups are not whole after {} s", HEAL_MAX.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Whether a map with these nodes knows of the last start of each. One that does not is whole because it is old: whoever believed it could kill the
/// only node that has what another one lost.
fn are_of_today(client: &Client, nodes: &[NodeInfo]) -> bool {
    nodes.iter().all(|info| {
        let status = client.node_status_by(info.node, Deadline::after(STATUS_MAX));
        status.is_ok_and(|status| status.incarnation == info.incarnation)
    })
}

fn ill_groups(table: &PartitionTable) -> usize {
    let wanted = usize::from(table.redundancy.get());
    let is_whole = |group: &Group| {
        let mut members = group.members.iter();
        group.members.len() == wanted && members.all(|one| one.consistency == Consistency::Good)
    };
    table.groups.iter().filter(|group| !is_whole(group)).count()
}
