//! `samite down`: end a cluster.

mod connected;

use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use samite_client::runtime::{ClusterFile, NodeEntry};
use samite_launch::{local, mounts};
use samite_types::Error;

use crate::cluster::ClusterTarget;
use crate::failure::{CommandFailure, ExitCode};
use crate::output::{CommandOutput, complain};

/// How long another `up` or `down` of the same cluster is waited for.
const LOCK_TIMEOUT: Duration = Duration::from_secs(60);
/// How long asking a node to stop may take.
const ASK_TIMEOUT: Duration = Duration::from_secs(1);
/// The same of a node on another host.
const ASK_FAR_TIMEOUT: Duration = Duration::from_secs(5);
/// How long nodes may take over the orderly stop they were asked for.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// The same of nodes on other hosts, which clear their hosts first.
const STOP_FAR_TIMEOUT: Duration = Duration::from_secs(20);
/// Between two looks at a node on another host.
const LOOK: Duration = Duration::from_millis(20);

/// End a store, on all of its hosts, and all that it held
///
/// Asks the nodes to stop, ends those that do not, and removes the cluster's files. Also clears away what a killed node or a killed
/// `samite up` left behind. Refuses (5) while programs use the store, or mounts that are in use; other mounts of this host end with it.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  samite down
  samite down --name scratch
  samite down --all")]
pub struct DownArgs {
    /// End every cluster of this user that has nodes here
    #[arg(long)]
    all: bool,
    /// Also while programs use it: they get errors
    #[arg(long)]
    force: bool,
    /// Say nothing
    #[arg(short, long)]
    quiet: bool,
}

/// Ends the cluster, or all.
pub fn run(args: &DownArgs, target: &ClusterTarget) -> Result<(), CommandFailure> {
    let mut out = CommandOutput::new();
    if !args.all {
        let line = down(target, args.force)?;
        if !args.quiet {
            out.line(line)?;
        }
        return out.finish();
    }
    let mut failed = false;
    for name in target.runtime.clusters()? {
        let one = ClusterTarget::new(Some(name), None)?;
        if one.dir.read_cluster_file().is_ok_and(|file| file.is_attached) {
            continue;
        }
        match down(&one, args.force) {
            Ok(line) if args.quiet => drop(line),
            Ok(line) => out.line(line)?,
            Err(failure) => {
                failed = true;
                complain(&failure.message);
            }
        }
    }
    out.finish()?;
    if failed { Err(CommandFailure::reported()) } else { Ok(()) }
}

fn down(target: &ClusterTarget, force: bool) -> Result<String, CommandFailure> {
    let dir = &target.dir;
    let exists = match dir.check() {
        Ok(()) => true,
        Err(error) if error.kind() == samite_types::ErrorKind::NotFound => false,
        Err(error) => return Err(error.into()),
    };
    let _lock = if exists { local::lock(dir, LOCK_TIMEOUT)? } else { None };
    // Also without a directory: someone may have removed it under a running cluster.
    let living = local::living_nodes(dir);
    let voter = local::living_voter(dir);
    let etcd = local::living_etcd(dir);
    if living.is_empty() && voter.is_none() && etcd.is_empty() && !dir.path().exists() {
        return Err(CommandFailure::new(
            ExitCode::Unreachable,
            format!("cluster {}: not up (no {})", dir.name(), dir.path().display()),
        ));
    }
    if dir.ticket_path().exists() && !dir.key_path().exists() {
        mounts::end_all(dir).iter().for_each(|error| complain(error.message()));
        local::sweep(dir)?;
        return Ok(format!("cluster {}: the ticket is removed, the nodes serve on", dir.name()));
    }
    let file = dir.read_cluster_file().ok();
    if let Some(file) = file.as_ref().filter(|_| !force) {
        connected::check_unused(target, file)?;
    }
    let gone = file.as_ref().and_then(|file| connected::only_in_memory(target, file));
    // While the nodes still serve, so that what was written gets there.
    for error in mounts::end_all(dir) {
        complain(error.message());
    }
    let asked = file.as_ref().map(|file| ask_to_stop(target, file)).unwrap_or_default();
    if !living.is_empty() {
        for node in living.iter().filter(|node| !asked.pids.contains(&node.pid())) {
            node.signal(Signal::TERM);
        }
        if !local::wait_all(&living, STOP_TIMEOUT) {
            local::stop_all(&living)?;
        }
    }
    let left = asked.wait_far();
    // Nodes that end release the files that they keep there.
    local::stop_all(voter.as_slice())?;
    local::stop_all(&etcd)?;
    local::clear(dir)?;
    let count = living.len() + asked.far.len();
    let plural = if count == 1 { "" } else { "s" };
    let line = format!("cluster {}: down, {count} node{plural} stopped", dir.name());
    if !left.is_empty() {
        let words = format!("{line}, and not all: {}", left.join("; "));
        return Err(CommandFailure::new(ExitCode::Unreachable, words));
    }
    Ok(gone.into_iter().fold(line, |line, gone| format!("{line}\n{gone}")))
}

/// Nodes that were asked to stop.
#[derive(Default)]
struct AskedNodes {
    /// Those on this host that have agreed.
    pids: Vec<u32>,
    /// Those on other hosts that have.
    far: Vec<NodeEntry>,
    /// Those on other hosts that have not, and why.
    silent: Vec<(NodeEntry, Error)>,
}

/// Asks the nodes over the wire. One on this host that does not hear it gets a signal, so nothing
/// that fails with these matters.
fn ask_to_stop(target: &ClusterTarget, file: &ClusterFile) -> AskedNodes {
    // Before any is asked: one that ends may remove the cluster's key from this host.
    let connect = |entry: &NodeEntry| {
        let timeout = if entry.process.is_some() { ASK_TIMEOUT } else { ASK_FAR_TIMEOUT };
        target.connect_to(std::slice::from_ref(entry), Some(timeout))
    };
    let clients: Vec<_> = file.nodes.iter().map(|entry| (entry, connect(entry))).collect();
    let mut asked = AskedNodes::default();
    // The node with the cluster map last: the others may still need it.
    for (entry, client) in clients.into_iter().rev() {
        let agreed = client.and_then(|client| client.shutdown_node(entry.node));
        match (agreed, entry.pid()) {
            (Ok(()), Some(pid)) => asked.pids.push(pid),
            (Ok(()), None) => asked.far.push(entry.clone()),
            (Err(_), Some(_)) => {}
            (Err(error), None) => asked.silent.push((entry.clone(), error)),
        }
    }
    asked
}

impl AskedNodes {
    /// Waits until those on other hosts have gone, and says which have not, in words.
    fn wait_far(&self) -> Vec<String> {
        let until = Instant::now() + STOP_FAR_TIMEOUT;
        let host = |entry: &NodeEntry| entry.host.clone().unwrap_or_default();
        let mut left: Vec<String> = Vec::new();
        for entry in &self.far {
            while listens(entry) {
                if Instant::now() >= until {
                    left.push(format!("{} on {} has not ended", entry.node, host(entry)));
                    break;
                }
                std::thread::sleep(LOOK);
            }
        }
        left.extend(self.silent.iter().map(|(entry, error)| {
            format!("{} on {} does not answer: {error}", entry.node, host(entry))
        }));
        left
    }
}

/// Whether something still listens where the node was reached. It clears its host first.
fn listens(entry: &NodeEntry) -> bool {
    let Some(url) = entry.network_address() else { return false };
    let place = url.rsplit_once("://").map_or(&*url, |(_, place)| place);
    let addresses = place.to_socket_addrs().into_iter().flatten();
    let is_open = |address| TcpStream::connect_timeout(&address, ASK_TIMEOUT).is_ok();
    addresses.into_iter().any(is_open)
}
