//! Whether the mirror groups of a cluster are whole.

use std::time::{Duration, Instant};

use samite_client::Client;
use samite_wire::control::{Consistency, Group, PartitionTable};

/// Longest time that groups may take to become whole again.
const HEAL_MAX: Duration = Duration::from_secs(60);

/// Waits until all groups have all their members, and these are good.
///
/// # Errors
/// How many are not.
pub fn wait_whole(client: &Client) -> Result<(), String> {
    let begun = Instant::now();
    loop {
        let map = client.refresh_map();
        let ill = map.as_ref().map_or(usize::MAX, |map| {
            let tables = map.data().tables.iter().filter(|table| table.redundancy.get() > 1);
            tables.map(ill_groups).sum()
        });
        if ill == 0 {
            return Ok(());
        }
        if begun.elapsed() > HEAL_MAX {
            return Err(format!("{ill} groups are not whole after {} s", HEAL_MAX.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn ill_groups(table: &PartitionTable) -> usize {
    let wanted = usize::from(table.redundancy.get());
    let is_whole = |group: &Group| {
        let mut members = group.members.iter();
        group.members.len() == wanted && members.all(|one| one.consistency == Consistency::Good)
    };
    table.groups.iter().filter(|group| !is_whole(group)).count()
}
