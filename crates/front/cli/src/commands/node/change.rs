//! Nodes of a cluster: one more, one less, one again.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use samite_client::Client;
use samite_client::runtime::{ClusterFile, LocalProcess, NodeEntry};
use samite_launch::aside::{self, way_back};
use samite_launch::local::{self, spawn};
use samite_launch::node_command::NetworkPlaces;
use samite_launch::node_life;
use samite_launch::process::{self, NodeProcess};
use samite_placement::{ClusterMap, PartitionLoss};
use samite_transport::host::label_of;
use samite_types::{NodeId, human_bytes};
use samite_wire::control::{NodeInfo, NodeReachability};
use samite_wire::membership::AdminRequest;

use super::far;
use crate::cluster::{ClusterTarget, local_process};
use crate::commands::down::asked;
use crate::failure::{CommandFailure, ExitCode};
use crate::health::loss_words;

/// How long another command that works on the cluster is waited for.
pub const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
/// Time in which it is seen of a process that it was killed.
const BEGINS_WITHIN: Duration = Duration::from_millis(300);
/// How long a killed process of a node is waited for.
const ENDS_WITHIN: Duration = Duration::from_secs(20);
/// Between two looks at the cluster map.
const LOOK: Duration = Duration::from_millis(50);

/// The number of a node, as `2` or `n2`.
pub fn parse_node(text: &str) -> Result<NodeId, String> {
    let number = text.strip_prefix('n').unwrap_or(text).parse();
    number.map(NodeId).map_err(|_| "expected the number of a node, as 2 or n2".to_owned())
}

pub fn resize(target: &ClusterTarget, node: NodeId, memory: u64) -> Result<String, CommandFailure> {
    let file = target.cluster_file()?;
    let client = client(target, &file)?;
    let before = client.node_status(node)?.capacity_bytes;
    client.resize_node(node, memory)?;
    let (now, before) = (human_bytes(memory), human_bytes(before));
    Ok(format!("cluster {}: {node} holds {now} from now on, {before} before", file.cluster))
}

/// The node, as the description on this host has it, or else the cluster map.
fn entry_anywhere(
    target: &ClusterTarget,
    file: &ClusterFile,
    node: NodeId,
) -> Result<NodeEntry, CommandFailure> {
    match entry(file, node) {
        Ok(found) => Ok(found.clone()),
        Err(absent) => {
            let map = client(target, file)?.refresh_map()?;
            let info = map.node(node).ok_or(absent)?;
            Ok(NodeEntry::from_map(info, None, label_of(&info.host)))
        }
    }
}

pub fn entry(file: &ClusterFile, node: NodeId) -> Result<&NodeEntry, CommandFailure> {
    file.nodes.iter().find(|entry| entry.node == node).ok_or_else(|| {
        let words = format!("cluster {}: it has no node {node}", file.cluster);
        CommandFailure::new(ExitCode::NotFound, words)
    })
}

pub fn living(entry: &NodeEntry) -> Option<NodeProcess> {
    NodeProcess::of(entry.process.as_ref()?)
}

/// Whether the cluster was started by `samite up --local`.
fn is_local(file: &ClusterFile) -> bool {
    file.setup.coordinator_urls.is_empty() && file.nodes.iter().all(|entry| entry.process.is_some())
}

/// Refuses to start a node again that is not this host's, or that somebody has started by hand.
pub fn check_here(
    target: &ClusterTarget,
    file: &ClusterFile,
    node: NodeId,
) -> Result<(), CommandFailure> {
    if is_local(file) {
        return Ok(());
    }
    let found = entry_anywhere(target, file, node)?;
    let name = &file.cluster;
    let words = match (&found.process, found.host.as_deref().unwrap_or("another host")) {
        (Some(_), _) if local::was_made(&target.dir) => return Ok(()),
        (Some(_), _) => format!("cluster {name}: {node} was started by hand: start it as before"),
        (None, host) => format!(
            "cluster {name}: {node} is on {host}: `samite node restart {node} --host {host}`, or `samite node restart {node}` there"
        ),
    };
    Err(CommandFailure::new(ExitCode::Conflict, words))
}

pub fn client(target: &ClusterTarget, file: &ClusterFile) -> Result<Client, CommandFailure> {
    Ok(target.connect_with(&file.nodes, None, &file.setup)?)
}

pub fn add(
    target: &ClusterTarget,
    mut file: ClusterFile,
    wait: u64,
) -> Result<String, CommandFailure> {
    if !is_local(&file) {
        let words =
            format!("cluster {}: it is one on several hosts: name one by --host", file.cluster);
        return Err(CommandFailure::new(ExitCode::Conflict, words));
    }
    let last = file.nodes.iter().map(|entry| entry.node.get()).max();
    let node = NodeId(last.map_or(0, |last| last + 1));
    let client = client(target, &file)?;
    client.admin_request(node, AdminRequest::Add)?;
    let StartedNode { entry, .. } = start(target, &file, &client, node, wait)?;
    let pid = local_process(&entry)?.pid;
    let line = format!("cluster {}: {node} is here (pid {pid})", file.cluster);
    file.nodes.push(entry);
    target.dir.write_cluster_file(&file)?;
    Ok(line)
}

pub fn restart(
    target: &ClusterTarget,
    mut file: ClusterFile,
    (node, renew): (NodeId, bool),
    wait: u64,
) -> Result<String, CommandFailure> {
    check_here(target, &file, node)?;
    wait_for_end(&file, node)?;
    let before = entry(&file, node)?;
    let ended = before.pid().zip(node_life::ended(&target.dir, before));
    let client = client(target, &file);
    let aside = match renew {
        true => set_aside(&file, client.as_ref().ok(), node)?,
        false => None,
    };
    let fresh = match &client {
        Ok(client) => start(target, &file, client, node, wait),
        // No node lives that one could ask; then it cannot serve without the others, and is not
        // waited for.
        Err(_) => start_process(target, &file, (node, None))
            .map(|entry| StartedNode { entry, losses: Vec::new() }),
    };
    let StartedNode { entry: fresh, losses } = fresh.map_err(|failure| {
        let durable = file.setup.durable.as_deref().unwrap_or_else(|| Path::new(""));
        let words = format!("{failure}{}", way_back(durable, node, aside.as_deref()));
        CommandFailure::new(failure.code, words)
    })?;
    let pid = local_process(&fresh)?.pid;
    let mut line = match client {
        Ok(_) => format!("cluster {}: {node} is back (pid {pid})", file.cluster),
        Err(_) => format!(
            "cluster {}: {node} was started (pid {pid}); no other node lives, and it serves when enough of them do",
            file.cluster
        ),
    };
    if let Some((pid, how)) = ended {
        line.push_str(&format!("; its process before (pid {pid}) {how}"));
    }
    if let Some(aside) = aside {
        line.push_str(&format!("; what it had is in {}", aside.display()));
    }
    if !losses.is_empty() {
        line.push_str(&format!(
            "\nlost: {}: the memory of the node that died had the only copy; `samite acknowledge-loss` takes note of it",
            loss_words(&losses)
        ));
    }
    file.nodes
        .iter_mut()
        .filter(|entry| entry.node == node)
        .for_each(|entry| *entry = fresh.clone());
    target.dir.write_cluster_file(&file)?;
    if let Some(voter) = file.setup.third_voter
        && NodeProcess::started_at(voter.pid, voter.start_ticks).is_none()
    {
        let (_, entry) = spawn::third_voter(&target.dir, &file.setup)?;
        file.setup.third_voter = Some(entry);
        target.dir.write_cluster_file(&file)?;
        line.push_str(&format!("\nthe third voter had ended, and is back (pid {})", entry.pid));
    }
    Ok(line)
}

/// Refuses while the process of `node` lives. A process that was killed is waited for: the kernel
/// takes it apart for a while, the longer the more memory it had.
fn wait_for_end(file: &ClusterFile, node: NodeId) -> Result<(), CommandFailure> {
    let Some(process) = living(entry(file, node)?) else { return Ok(()) };
    // For a moment the kernel has taken the signal and not begun: then nothing tells.
    if process.wait(BEGINS_WITHIN) || process.is_dying() && process.wait(ENDS_WITHIN) {
        return Ok(());
    }
    let state = if process.is_dying() { "was killed and has not ended yet" } else { "lives" };
    let words = format!("cluster {}: {node} {state} (pid {})", file.cluster, process.pid());
    Err(CommandFailure::new(ExitCode::Conflict, words))
}

/// Sets aside what a dead node keeps on flash, unless something would be lost with it.
fn set_aside(
    file: &ClusterFile,
    client: Option<&Client>,
    node: NodeId,
) -> Result<Option<PathBuf>, CommandFailure> {
    let durable = file.setup.durable.as_ref().ok_or_else(|| {
        let words = "--renew: the cluster keeps nothing on flash; `samite node restart` does it";
        CommandFailure::usage(words)
    })?;
    if let Some(client) = client {
        aside::check_others(&*client.refresh_map()?, node)?;
    }
    Ok(aside::set_aside(durable, node)?)
}

/// Starts the process of `node`, with the memory that it had if it is `known` to the cluster.
fn start_process(
    target: &ClusterTarget,
    file: &ClusterFile,
    (node, known): (NodeId, Option<&NodeInfo>),
) -> Result<NodeEntry, CommandFailure> {
    let socket = target.dir.socket_path(node)?;
    let mut setup = file.setup.clone();
    if let Some(memory) = known.and_then(|info| info.targets.first()) {
        setup.memory_bytes = memory.capacity_bytes;
    }
    let child = match is_local(file) {
        true => spawn::node(&target.dir, &setup, node)?,
        false => spawn::far_node(&target.dir, &setup, node, &network_places(file, node)?)?,
    };
    let pid = child.id();
    let start_ticks = process::start_ticks(pid)
        .ok_or_else(|| CommandFailure::failed(format!("{node} has ended at once; see its log")))?;
    Ok(NodeEntry::local(node, LocalProcess { pid, start_ticks, socket }))
}

/// Where a node of a cluster on several hosts was, and will be again.
fn network_places(file: &ClusterFile, node: NodeId) -> Result<NetworkPlaces, CommandFailure> {
    let plain = |url: String| url.split_once("://").map(|(_, place)| place.to_owned());
    let found = entry(file, node)?;
    let urls = found.network_address().into_iter().chain(found.more_addresses.iter().cloned());
    Ok(NetworkPlaces {
        listen: urls.filter_map(plain).collect(),
        coordinators: file.setup.coordinator_urls.clone(),
        is_founded: true,
    })
}

/// A node that serves.
struct StartedNode {
    entry: NodeEntry,
    /// The losses since the node was started.
    losses: Vec<PartitionLoss>,
}

/// Starts `node` and waits until the cluster counts it in.
fn start(
    target: &ClusterTarget,
    file: &ClusterFile,
    client: &Client,
    node: NodeId,
    wait: u64,
) -> Result<StartedNode, CommandFailure> {
    let first = client.refresh_map()?;
    let before = first.node(node).map(|info| info.incarnation);
    let mut entry = start_process(target, file, (node, first.node(node)))?;
    let until = Instant::now() + Duration::from_secs(wait);
    loop {
        let Some(process) = living(&entry) else {
            let log = target.dir.log_path(node);
            let said = spawn::last_words(&log).map_or_else(String::new, |said| format!(": {said}"));
            let words = format!("{node} has ended{said}; its log is {}", log.display());
            return Err(CommandFailure::failed(words));
        };
        if let Ok(map) = client.refresh_map()
            && let Some(info) = map.node(node)
            && Some(info.incarnation) != before
            && map.state(node).is_some_and(|state| state.reachability == NodeReachability::Online)
        {
            entry.set_addresses(&info.addresses);
            return Ok(StartedNode { entry, losses: first.losses(&map) });
        }
        if Instant::now() >= until {
            process.signal(Signal::KILL);
            let words = format!("{node} is not part of the cluster in time, and was ended");
            return Err(CommandFailure::new(ExitCode::Unreachable, words));
        }
        std::thread::sleep(LOOK);
    }
}

pub fn drain(
    target: &ClusterTarget,
    file: &ClusterFile,
    node: NodeId,
    undo: bool,
    wait: u64,
) -> Result<String, CommandFailure> {
    entry_anywhere(target, file, node)?;
    let client = client(target, file)?;
    if undo {
        client.admin_request(node, AdminRequest::Undrain)?;
        return Ok(format!("cluster {}: {node} is used again", file.cluster));
    }
    client.admin_request(node, AdminRequest::Drain)?;
    let until = Instant::now() + Duration::from_secs(wait);
    loop {
        let left = held(&*client.refresh_map()?, node);
        if left == 0 {
            return Ok(format!("cluster {}: {node} holds nothing any more", file.cluster));
        }
        if Instant::now() >= until {
            let words = format!("{node} still is in {left} groups; it goes on in the background");
            return Err(CommandFailure::new(ExitCode::Unreachable, words));
        }
        std::thread::sleep(LOOK);
    }
}

/// Groups of all tables that have a member on `node`.
fn held(map: &ClusterMap, node: NodeId) -> usize {
    let groups = map.data().tables.iter().flat_map(|table| &table.groups);
    let is_there = |target| map.node_of_target(target) == Some(node);
    groups.filter(|group| group.members.iter().any(|member| is_there(member.target))).count()
}

pub fn remove(
    target: &ClusterTarget,
    mut file: ClusterFile,
    node: NodeId,
    force: bool,
) -> Result<String, CommandFailure> {
    let removed = entry_anywhere(target, &file, node)?;
    // One of a cluster on several hosts clears its host, which need not be another one.
    if !is_local(&file) {
        return remove_far(target, &file, (&removed, force));
    }
    let process = living(&removed);
    client(target, &file)?.admin_request(node, AdminRequest::Remove { force })?;
    if let Some(process) = process {
        local::stop_all(std::slice::from_ref(&process))?;
    }
    file.nodes.retain(|entry| entry.node != node);
    target.dir.write_cluster_file(&file)?;
    local::remove_node_files(&target.dir, node)?;
    Ok(format!("cluster {}: {node} is gone", file.cluster))
}

/// Removes a node of a cluster on several hosts, which ends, and clears its host.
fn remove_far(
    target: &ClusterTarget,
    file: &ClusterFile,
    (removed, force): (&NodeEntry, bool),
) -> Result<String, CommandFailure> {
    let (name, node) = (&file.cluster, removed.node);
    let client = client(target, file)?;
    // It has to be known before it leaves the map. A dead one is not.
    let own = asked::RemovedNode::find(target, removed);
    client.admin_request(node, AdminRequest::Remove { force })?;
    let host = removed.host.as_deref().unwrap_or("this host");
    let line = match own {
        Some(own) => {
            own.end().map_err(|why| {
                let words = format!("cluster {name}: {node} is removed, and {why}");
                CommandFailure::new(ExitCode::Unreachable, words)
            })?;
            format!("cluster {name}: {node} is gone, and has cleared {host}")
        }
        None => format!(
            "cluster {name}: {node} is gone; it did not answer: `samite down` on {host} removes what it has left"
        ),
    };
    far::update_locked(target, &client)?;
    Ok(line)
}
