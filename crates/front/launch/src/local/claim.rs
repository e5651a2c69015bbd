//! The directory of a cluster that is to be started.

use std::time::Duration;

use samite_client::runtime::{ClusterDir, RuntimeDir};
use samite_types::{Error, ErrorKind, Result};

use super::{
    ClusterLock, living_etcd, living_nodes, living_voter, lock, stop_all, sweep, wait_all,
};

/// How long another `up` or `down` of the same cluster is waited for.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
/// How long nodes that are just ending are waited for before the cluster counts as up.
const END_TIMEOUT: Duration = Duration::from_millis(300);

/// Makes the cluster's directory ours: refuses a living cluster, clears away a dead one.
///
/// # Errors
/// `Conflict`: the cluster is up; `Io`.
pub fn claim(dir: &ClusterDir) -> Result<ClusterLock> {
    loop {
        dir.create()?;
        let Some(lock) = lock(dir, LOCK_TIMEOUT)? else { continue };
        let living = living_nodes(dir);
        let is_up = dir.cluster_file_path().exists();
        // A process that has just been killed is not gone at once.
        if is_up && !wait_all(&living, END_TIMEOUT) {
            let pids: Vec<String> = living.iter().map(|node| node.pid().to_string()).collect();
            return Err(Error::new(
                ErrorKind::Conflict,
                format!(
                    "cluster {name}: up already (processes {}); `samite down --name {name}` ends it, \
                     another --name starts a second one",
                    pids.join(", "),
                    name = dir.name(),
                ),
            ));
        }
        // Processes of an `up` that was killed half-way serve nobody, and neither does a voter
        // alone.
        stop_all(&living)?;
        stop_all(living_voter(dir).as_slice())?;
        stop_all(&living_etcd(dir))?;
        if std::fs::read_dir(dir.path()).is_ok_and(|mut entries| entries.next().is_none()) {
            return Ok(lock);
        }
        sweep(dir)?;
        // Sweeping removed the directory and with it the runtime directory, if this was the only
        // cluster.
        if let Some(parent) = dir.path().parent() {
            RuntimeDir::at(parent)?.create()?;
        }
    }
}
