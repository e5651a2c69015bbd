//! `samite down`: end a cluster.

pub mod asked;
mod connected;

use std::time::Duration;

use rustix::process::Signal;
use samite_launch::{local, mounts};

use crate::cluster::ClusterTarget;
use crate::failure::{CommandFailure, ExitCode};
use crate::output::{CommandOutput, complain};

/// How long another `up` or `down` of the same cluster is waited for.
const LOCK_TIMEOUT: Duration = Duration::from_secs(60);
/// How long nodes may take over the orderly stop they were asked for.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

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
    let mut file = dir.read_cluster_file().ok();
    if let Some(file) = file.as_mut().filter(|file| file.is_attached)
        && let Some(nodes) = asked::nodes_now(target, file)
    {
        file.nodes = nodes;
    }
    if let Some(file) = file.as_ref().filter(|_| !force) {
        connected::check_unused(target, file)?;
    }
    let gone = file.as_ref().and_then(|file| connected::only_in_memory(target, file));
    // While the nodes still serve, so that what was written gets there.
    for error in mounts::end_all(dir) {
        complain(error.message());
    }
    // The node here may remove it, and perhaps some have to be asked again.
    let keys = dir.read_keys().ok();
    let asked = file.as_ref().map(|file| asked::ask_to_stop(target, file)).unwrap_or_default();
    if !living.is_empty() {
        for node in living.iter().filter(|node| !asked.pids.contains(&node.pid())) {
            node.signal(Signal::TERM);
        }
        if !local::wait_all(&living, STOP_TIMEOUT) {
            local::stop_all(&living)?;
        }
    }
    let far = asked.wait_far();
    // Nodes that end release the files that they keep there.
    local::stop_all(voter.as_slice())?;
    local::stop_all(&etcd)?;
    let count = living.len() + far.stopped;
    let plural = if count == 1 { "" } else { "s" };
    if !far.left.is_empty() {
        if let (Some(file), Some(keys)) = (&file, &keys) {
            far.remember(dir, file, keys)?;
        }
        let name = dir.name();
        let words = format!(
            "cluster {name}: {count} node{plural} stopped, and not all: {}; `samite down` again asks \
             these again, `samite detach --name {name}` forgets them",
            far.left_words()
        );
        return Err(CommandFailure::new(ExitCode::Unreachable, words));
    }
    local::clear(dir)?;
    let line = format!("cluster {}: down, {count} node{plural} stopped", dir.name());
    Ok(gone.into_iter().fold(line, |line, gone| format!("{line}\n{gone}")))
}
