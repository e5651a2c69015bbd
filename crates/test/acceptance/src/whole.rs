//! Whether the mirror groups of a cluster are whole.

use std::time::{Duration, Instant};

use samite_client::Client;
use samite_types::{Deadline, Epoch};
use samite_wire::control::{MemberConsistency, MirrorGroup, PartitionTable};

/// Longest time that groups may take to become whole again.
pub const HEAL_MAX: Duration = Duration::from_secs(60);
/// Longest time that a node may take to say who it is, and what it knows.
const STATUS_MAX: Duration = Duration::from_secs(2);

/// Waits until the cluster [is whole](look).
///
/// # Errors
/// The reason why it is not whole.
pub fn wait_whole(client: &Client) -> Result<(), String> {
    let begun = Instant::now();
    loop {
        match look(client) {
            Err(lacks) if begun.elapsed() > HEAL_MAX => {
                return Err(format!("not whole after {} s: {lacks}", HEAL_MAX.as_secs()));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
            Ok(_) => return Ok(()),
        }
    }
}

/// The epoch of the map by which all groups have all their members, and these are good: all nodes
/// have that one, and it knows of the last start of each. A map that does not, or that only some
/// have, may be whole because it is old: a test that believed it could kill the only node that has
/// the records that another one lost.
///
/// # Errors
/// The reason why the cluster is not whole.
pub fn look(client: &Client) -> Result<Epoch, String> {
    let map = client.refresh_map().map_err(|error| error.to_string())?;
    let tables = map.data().tables.iter().filter(|table| table.redundancy.get() > 1);
    let ill: usize = tables.map(ill_groups).sum();
    if ill > 0 {
        return Err(format!("{ill} groups lack members, by the map of {}", map.epoch()));
    }
    for info in map.nodes() {
        let by = Deadline::after(STATUS_MAX);
        let status = client.node_status_by(info.node, by).map_err(|error| error.to_string())?;
        if status.incarnation != info.incarnation {
            return Err(format!("{} knows nothing of this process of {}", map.epoch(), info.node));
        }
        let its = client.map_at(info.node, by).map_err(|error| error.to_string())?;
        if its.epoch() != map.epoch() {
            return Err(format!("{} has {}, not {}", info.node, its.epoch(), map.epoch()));
        }
    }
    Ok(map.epoch())
}

fn ill_groups(table: &PartitionTable) -> usize {
    let wanted = usize::from(table.redundancy.get());
    let is_whole = |group: &MirrorGroup| {
        let mut members = group.members.iter();
        group.members.len() == wanted
            && members.all(|one| one.consistency == MemberConsistency::Good)
    };
    table.groups.iter().filter(|group| !is_whole(group)).count()
}
