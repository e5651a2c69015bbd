//! `samite node upgrade`: all nodes of a local cluster, one after the other, by this build.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use samite_client::Client;
use samite_client::runtime::NodeEntry;
use samite_types::NodeId;
use samite_wire::control::{DatasetSpec, DurabilityKind};

use super::change;
use crate::cluster::ClusterTarget;
use crate::failure::{CommandFailure, ExitCode};
use crate::health::HealthWord;

/// How long a node may take over its orderly end.
const END_TIMEOUT: Duration = Duration::from_secs(30);
/// Between two looks at the cluster map.
const LOOK: Duration = Duration::from_millis(50);

/// Ends and starts these nodes in turn, or all of this host: each only while the others have whole copies of
/// everything. Returns what to say.
///
/// # Errors
/// `Conflict`: not everything is mirrored; `Unreachable`: the copies are not whole in time, or a
/// node does not end; else as of a restart. What is done stays done.
pub fn upgrade(
    target: &ClusterTarget,
    nodes: &[NodeId],
    wait: u64,
) -> Result<String, CommandFailure> {
    let file = target.cluster_file()?;
    let (here, elsewhere): (Vec<&NodeEntry>, Vec<&NodeEntry>) =
        file.nodes.iter().partition(|entry| entry.process.is_some());
    let here: Vec<NodeId> = here.iter().map(|entry| entry.node).collect();
    let nodes = if nodes.is_empty() { &here } else { nodes };
    for node in nodes {
        change::entry(&file, *node)?;
        change::check_here(target, &file, *node)?;
    }
    let client = change::client(target, &file)?;
    check_mirrored(&client)?;
    let wait_for = Duration::from_secs(wait);
    for node in nodes {
        wait_whole(&client, &format!("before {node}"), wait_for)?;
        let file = target.cluster_file()?;
        if let Some(process) = change::living(change::entry(&file, *node)?) {
            process.signal(Signal::TERM);
            if !process.wait(END_TIMEOUT) {
                let words = format!("{node} (pid {}) has not ended", process.pid());
                return Err(CommandFailure::new(ExitCode::Unreachable, words));
            }
        }
        change::restart(target, file, (*node, false), wait)?;
    }
    wait_whole(&client, "after the last", wait_for)?;
    let (cluster, count) = (&file.cluster, nodes.len());
    let plural = if count == 1 { "" } else { "s" };
    let version = env!("SAMITE_VERSION");
    let done =
        format!("cluster {cluster}: {count} node{plural} restarted in turn by samite {version}");
    Ok(elsewhere.iter().fold(done, |words, entry| {
        let host = entry.host.as_deref().unwrap_or("another host");
        format!("{words}\n{} is on {host}: `samite node upgrade` there", entry.node)
    }))
}

/// Refuses if the end of a node would take records with it.
fn check_mirrored(client: &Client) -> Result<(), CommandFailure> {
    let map = client.refresh_map()?;
    let is_lost_with_a_node = |spec: &DatasetSpec| {
        spec.redundancy.get() == 1 && spec.durability == DurabilityKind::Memory
    };
    let mut specs = map.data().datasets.iter().map(|dataset| &dataset.spec);
    let Some(spec) = specs.find(|spec| is_lost_with_a_node(spec)) else { return Ok(()) };
    let words = format!(
        "dataset `{}` is in the memory of one node each and would be lost with it: a dataset made \
         with `--mirror 2` is not",
        spec.name
    );
    Err(CommandFailure::new(ExitCode::Conflict, words))
}

fn wait_whole(client: &Client, when: &str, wait: Duration) -> Result<(), CommandFailure> {
    let until = Instant::now() + wait;
    loop {
        let map = client.refresh_map();
        if map.is_ok_and(|map| HealthWord::of(Some(&map)) == HealthWord::Ok) {
            return Ok(());
        }
        if Instant::now() >= until {
            let words = format!(
                "{when} not all copies are whole after {} s; see `samite status`, and go on with \
                 `samite node upgrade`",
                wait.as_secs()
            );
            return Err(CommandFailure::new(ExitCode::Unreachable, words));
        }
        std::thread::sleep(LOOK);
    }
}
