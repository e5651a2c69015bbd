//! `samite down`: end a local cluster.

use std::time::Duration;

use rustix::process::Signal;
use samite_launch::{local, mounts};

use crate::cluster::ClusterTarget;
use crate::failure::{CommandFailure, ExitCode};
use crate::output::CommandOutput;

/// How long another `up` or `down` of the same cluster is waited for.
const LOCK_TIMEOUT: Duration = Duration::from_secs(60);
/// How long asking a node to stop may take.
const ASK_TIMEOUT: Duration = Duration::from_secs(1);
/// How long nodes may take over the orderly stop they were asked for.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// End a store that was started by `samite up`, and all that it held
///
/// Asks the nodes to stop, ends those that do not, and removes the cluster's files. Also clears away what a killed node or a killed
/// `samite up` left behind.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  samite down
  samite down --name scratch
  samite down --all")]
pub struct DownArgs {
    /// End every cluster of this user
    #[arg(long)]
    all: bool,
    /// Say nothing
    #[arg(short, long)]
    quiet: bool,
}

/// Ends the cluster, or all.
pub fn run(args: &DownArgs, target: &ClusterTarget) -> Result<(), CommandFailure> {
    let mut out = CommandOutput::new();
    if !args.all {
        let line = down(target)?;
        if !args.quiet {
            out.line(line)?;
        }
        return out.finish();
    }
    let mut failed = false;
    for name in target.runtime.clusters()? {
        match ClusterTarget::new(Some(name), None).and_then(|target| down(&target)) {
            Ok(line) if args.quiet => drop(line),
            Ok(line) => out.line(line)?,
            Err(failure) => {
                failed = true;
                crate::output::complain(&failure.message);
            }
        }
    }
    out.finish()?;
    if failed { Err(CommandFailure::reported()) } else { Ok(()) }
}

fn down(target: &ClusterTarget) -> Result<String, CommandFailure> {
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
    // While the nodes still serve, so that what was written gets there.
    for error in mounts::end_all(dir) {
        crate::output::complain(error.message());
    }
    let count = living.len();
    if !living.is_empty() {
        let asked = ask_to_stop(target);
        for node in living.iter().filter(|node| !asked.contains(&node.pid())) {
            node.signal(Signal::TERM);
        }
        if !local::wait_all(&living, STOP_TIMEOUT) {
            local::stop_all(&living)?;
        }
    }
    // Nodes that end release the files that they keep there.
    local::stop_all(voter.as_slice())?;
    local::stop_all(&etcd)?;
    let is_by_ticket = dir.ticket_path().exists() && !dir.key_path().exists();
    local::sweep(dir)?;
    if is_by_ticket {
        return Ok(format!("cluster {}: the ticket is removed, the nodes serve on", dir.name()));
    }
    let plural = if count == 1 { "" } else { "s" };
    Ok(format!("cluster {}: down, {count} node{plural} stopped", dir.name()))
}

/// Asks the nodes over the wire, and gives the pids of those that agreed. A node that does not hear
/// it gets a signal, so nothing that fails here matters.
fn ask_to_stop(target: &ClusterTarget) -> Vec<u32> {
    let Ok(file) = target.dir.read_cluster_file() else { return Vec::new() };
    let mut asked = Vec::new();
    // The node with the cluster map last: the others may still need it.
    for entry in file.nodes.iter().rev() {
        let nodes = std::slice::from_ref(entry);
        let answer = target
            .connect_to(nodes, Some(ASK_TIMEOUT))
            .and_then(|client| client.shutdown_node(entry.node));
        if answer.is_ok() {
            asked.push(entry.pid);
        }
    }
    asked
}
