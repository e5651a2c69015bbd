//! The directory of a cluster that is to be started.

use std::time::Duration;

use samite_client::runtime::{ClusterDir, RuntimeDir};
use samite_types::{Error, ErrorKind, Result};

use super::{
    ClusterLock, STAYS_FILE, living_etcd, living_nodes, living_voter, lock, stop_all, sweep,
    wait_all,
};

/// How long another `up` or `down` of the same cluster is waited for.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
/// How long nodes that are just ending are waited for before the cluster counts as up.
const END_TIMEOUT: Duration = Duration::from_millis(300);

/// Refuses a directory that `samite attach` has written: its cluster lives on other hosts.
///
/// # Errors
/// `Conflict`.
pub fn check_not_attached(dir: &ClusterDir) -> Result<()> {
    if !dir.read_cluster_file().is_ok_and(|file| file.is_attached) {
        return Ok(());
    }
    let name = dir.name();
    let words = format!(
        "cluster {name}: attached here already; `samite detach --name {name}` ends that, \
         another --name starts a second one"
    );
    Err(Error::new(ErrorKind::Conflict, words))
}

/// Makes the cluster's directory ours: refuses a living cluster, clears away a dead one.
///
/// # Errors
/// `Conflict`: the cluster is up, or attached, or the directory is somebody's own, with a key and
/// logs that [stay](super::make_directory); `Io`.
pub fn claim(dir: &ClusterDir) -> Result<ClusterLock> {
    loop {
        dir.create()?;
        let Some(lock) = lock(dir, LOCK_TIMEOUT)? else { continue };
        check_not_attached(dir)?;
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
        if dir.path().join(STAYS_FILE).exists() {
            let words = format!(
                "cluster {}: {} holds the key and logs of nodes that are started by hand; use \
                 another --name",
                dir.name(),
                dir.path().display()
            );
            return Err(Error::new(ErrorKind::Conflict, words));
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

#[cfg(test)]
mod tests {
    use samite_client::runtime::{ClusterFile, ClusterSetup};

    use super::super::{clear, make_directory};
    use super::*;

    #[test]
    fn a_directory_that_is_attached_or_stays_is_not_swept() {
        let scratch = tempfile::tempdir().unwrap();
        let runtime = RuntimeDir::at(scratch.path().join("run")).unwrap();
        runtime.create().unwrap();
        let refused = |dir: &ClusterDir, files: &[&str]| {
            let error = claim(dir).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Conflict);
            for name in files {
                assert!(dir.path().join(name).exists(), "{name}");
            }
            error.message().to_owned()
        };
        let far = runtime.cluster("far").unwrap();
        make_directory(&far).unwrap();
        let file = ClusterFile {
            cluster: "far".into(),
            nodes: Vec::new(),
            created_s: 0,
            setup: ClusterSetup::default(),
            is_attached: true,
        };
        far.write_cluster_file(&file).unwrap();
        for name in ["key", "mount-7.json"] {
            std::fs::write(far.path().join(name), "").unwrap();
        }
        let said = refused(&far, &["key", "cluster.json", "mount-7.json"]);
        assert!(said.contains("`samite detach --name far`"), "{said}");
        let own = runtime.cluster("own").unwrap();
        own.create().unwrap();
        for name in ["key", "n0.log"] {
            std::fs::write(own.path().join(name), "").unwrap();
        }
        make_directory(&own).unwrap();
        std::fs::write(own.path().join("n0.life"), "").unwrap();
        refused(&own, &["key", "n0.log"]);
        clear(&own).unwrap();
        refused(&own, &["key", "n0.log"]);
        // Remains of an `up` that was killed.
        let dead = runtime.cluster("dead").unwrap();
        dead.create().unwrap();
        std::fs::write(dead.path().join("key"), "").unwrap();
        claim(&dead).unwrap();
        assert!(!dead.path().join("key").exists());
    }
}
