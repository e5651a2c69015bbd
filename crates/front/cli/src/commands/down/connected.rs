//! Who uses a store that is to end, and what ends with it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use samite_client::Client;
use samite_client::runtime::{ClusterFile, NodeEntry};
use samite_launch::mounts::{self, MountRecord};
use samite_types::{ClientId, NodeId, human_bytes};

use crate::cluster::ClusterTarget;
use crate::failure::{CommandFailure, ExitCode};

/// How long a node may take to say who is connected.
const ASK_TIMEOUT: Duration = Duration::from_secs(1);
/// How long programs that have just ended are waited for: a node notices that a moment later.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);
/// So many nodes are asked at once.
const ASKED_MAX: usize = 32;
/// Between two looks.
const LOOK: Duration = Duration::from_millis(20);
/// What a store may hold in memory without a word about it.
const LITTLE: u64 = 1 << 20;

/// Refuses while programs use the store: other than mounts of this host that nobody uses, which
/// are ended here.
///
/// # Errors
/// Some do; how many, and of a mount, who.
pub fn check_unused(target: &ClusterTarget, file: &ClusterFile) -> Result<(), CommandFailure> {
    let name = target.dir.name();
    let clients = clients(target, file);
    let until = Instant::now() + LEAVE_TIMEOUT;
    loop {
        let daemons = records(target).len();
        let programs = connected(&clients).len().saturating_sub(daemons);
        if programs == 0 {
            break;
        }
        if Instant::now() >= until {
            let (plural, verb) = if programs == 1 { ("", "is") } else { ("s", "are") };
            let words = format!(
                "cluster {name}: {programs} other program{plural} {verb} connected; \
                 `samite down --force` ends the store all the same"
            );
            return Err(CommandFailure::new(ExitCode::Conflict, words));
        }
        std::thread::sleep(LOOK);
    }
    drop(clients);
    for record in records(target) {
        let mounted = samite_fuse::find_mount(&record.path).ok().flatten();
        let Some(mount) = mounted.filter(|mount| mount.cluster == name) else { continue };
        mounts::end(&target.dir, &mount, false).map_err(|error| {
            let words = format!(
                "cluster {name}: mount on {}: {error}; `samite down --force` ends the store all the same",
                record.path.display()
            );
            CommandFailure::new(ExitCode::Conflict, words)
        })?;
    }
    Ok(())
}

/// Mounts on this host whose daemons live.
fn records(target: &ClusterTarget) -> Vec<MountRecord> {
    let mut records = mounts::records(&target.dir);
    records.retain(|record| record.daemon().is_some());
    records
}

/// A client for each node that answers: one that is silent does not stand in the way of the others.
fn clients(target: &ClusterTarget, file: &ClusterFile) -> Vec<(NodeId, Client)> {
    let of = |entry: &NodeEntry| {
        let client = target.connect_to(std::slice::from_ref(entry), Some(ASK_TIMEOUT)).ok()?;
        Some((entry.node, client))
    };
    of_each(&file.nodes, of).into_iter().flatten().collect()
}

/// What `ask` learns of each node. Those that do not answer cost their wait together, not each.
pub fn of_each<T: Send>(nodes: &[NodeEntry], ask: impl Fn(&NodeEntry) -> T + Sync) -> Vec<T> {
    let mut all = Vec::with_capacity(nodes.len());
    for some in nodes.chunks(ASKED_MAX) {
        std::thread::scope(|scope| {
            let asks: Vec<_> = some.iter().map(|entry| scope.spawn(|| ask(entry))).collect();
            let told = asks.into_iter().map(std::thread::ScopedJoinHandle::join);
            all.extend(told.map(|told| match told {
                Ok(told) => told,
                Err(panic) => std::panic::resume_unwind(panic),
            }));
        });
    }
    all
}

/// The clients of all these nodes, without those that ask and the nodes' own workers.
fn connected(nodes: &[(NodeId, Client)]) -> BTreeSet<ClientId> {
    let told = nodes.iter().filter_map(|(node, client)| client.clients_at(*node).ok());
    let mut all: BTreeSet<ClientId> = told.flatten().collect();
    let mut own: Vec<ClientId> = nodes.iter().map(|(_, client)| client.id()).collect();
    let statuses = nodes.iter().filter_map(|(node, client)| client.node_status(*node).ok());
    own.extend(statuses.flat_map(|status| status.workers).filter_map(|worker| worker.client));
    all.retain(|client| !own.contains(client));
    all
}

/// What is in memory and nowhere else; `None`: nothing to speak of.
pub fn only_in_memory(target: &ClusterTarget, file: &ClusterFile) -> Option<String> {
    if file.setup.durable.is_some() {
        return None;
    }
    let used = |entry: &NodeEntry| {
        let client = target.connect_to(std::slice::from_ref(entry), Some(ASK_TIMEOUT)).ok()?;
        let status = client.node_status(entry.node).ok()?;
        Some((status.used_bytes, status.records))
    };
    let told = of_each(&file.nodes, used);
    only_in_memory_words(&told, u64::from(file.setup.redundancy.get()))
}

/// The same, by the bytes and records of each node, as far as it tells them; each record is on so
/// many nodes.
fn only_in_memory_words(told: &[Option<(u64, u64)>], copies: u64) -> Option<String> {
    let sum = told.iter().flatten().fold((0u64, 0u64), |sum, (bytes, records)| {
        (sum.0.saturating_add(*bytes), sum.1.saturating_add(*records))
    });
    let (bytes, records) = (sum.0 / copies.max(1), sum.1 / copies.max(1));
    let least = if told.iter().all(Option::is_some) { "" } else { "at least " };
    // A store without records has only what it began with.
    (bytes >= LITTLE && records > 0).then(|| {
        let bytes = human_bytes(bytes);
        format!(
            "{least}{bytes} in {records} records were in memory alone: what was not staged out is gone"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_memory_alone_is_the_sum_of_what_nodes_tell() {
        let all = only_in_memory_words(&[Some((4 << 20, 5)), Some((4 << 20, 3))], 2).unwrap();
        assert_eq!(
            all,
            "4.0 MiB in 4 records were in memory alone: what was not staged out is gone"
        );
        let some = only_in_memory_words(&[None, Some((4 << 20, 3))], 1).unwrap();
        assert!(some.starts_with("at least 4.0 MiB in 3 records"), "{some}");
        assert_eq!(only_in_memory_words(&[None, Some((5, 1))], 0), None);
        assert_eq!(only_in_memory_words(&[Some((8 << 20, 0))], 1), None);
    }
}
