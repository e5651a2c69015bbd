//! Stopping and killing the nodes of a local cluster.

use std::time::Duration;

use rustix::process::Signal;
use samite_launch::process::NodeProcess;
use samite_types::NodeId;

use super::entry;
use crate::cluster::{ClusterTarget, local_process};
use crate::failure::{CommandFailure, ExitCode};
use crate::signals;

/// How long a killed node may take to end.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// How long all threads of a node may take to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// Exit code when Ctrl-C ends a pause, as the shell reports a death by SIGINT.
const INTERRUPTED_CODE: i32 = 128 + 2;

fn process(target: &ClusterTarget, node: NodeId) -> Result<NodeProcess, CommandFailure> {
    let file = target.cluster_file()?;
    let entry = entry(&file, node)?;
    let process = local_process(entry)?;
    NodeProcess::of(process).ok_or_else(|| {
        CommandFailure::new(ExitCode::Unreachable, format!("node {node} does not live any more"))
    })
}

/// Stops a node, for a time or for good.
pub fn pause(
    target: &ClusterTarget,
    node: NodeId,
    time: Option<Duration>,
) -> Result<(), CommandFailure> {
    let paused = process(target, node)?;
    let stop = || {
        let stands = paused.stop(STOP_TIMEOUT);
        stands
            .then_some(())
            .ok_or_else(|| CommandFailure::failed(format!("node {node} does not stop")))
    };
    let Some(time) = time else { return stop() };
    let woken = process(target, node)?;
    // A user who interrupts the wait does not want the node to stay as it is.
    signals::on_stop(move || {
        woken.signal(Signal::CONT);
        std::process::exit(INTERRUPTED_CODE);
    })?;
    let stopped = stop();
    if stopped.is_ok() {
        std::thread::sleep(time);
    }
    paused.signal(Signal::CONT);
    stopped
}

/// Lets a node go on.
pub fn resume(target: &ClusterTarget, node: NodeId) -> Result<(), CommandFailure> {
    process(target, node)?.signal(Signal::CONT);
    Ok(())
}

/// Kills a node and waits for its end.
pub fn kill(target: &ClusterTarget, node: NodeId) -> Result<(), CommandFailure> {
    let killed = process(target, node)?;
    killed.signal(Signal::KILL);
    if killed.wait(KILL_TIMEOUT) {
        return Ok(());
    }
    Err(CommandFailure::failed(format!("node {node} does not end, not even by SIGKILL")))
}
