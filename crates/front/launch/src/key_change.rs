//! Changing the cluster key of a store that serves.

use std::fs::{File, TryLockError};
use std::time::Duration;

use samite_client::runtime::{ClusterDir, ClusterFile};
use samite_client::{ClusterKeys, KeyRotation};
use samite_placement::ClusterMap;
use samite_types::{Error, ErrorKind, NodeId, Result};

use crate::cluster_record::ClusterRecord;
use crate::io_context::SystemContext as _;

/// Changes the cluster key at all nodes of `map`, in the directory of the cluster, and in the
/// record
/// of a durable store; or ends a change that was cut off. Returns the number of the new key. With
/// `keeps_before`, the key before counts still; the next call drops it.
///
/// # Errors
/// `Conflict`: another change is under way; `NotFound`: the cluster key is not here; else as
/// [`KeyRotation::run`].
pub fn change_key(
    dir: &ClusterDir,
    file: &ClusterFile,
    map: &ClusterMap,
    keeps_before: bool,
    timeout: Duration,
) -> Result<u32> {
    let path = dir.cluster_file_path();
    let lock = File::open(&path).doing(format_args!("open {}", path.display()))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let words = "the cluster key is being changed by another command";
            return Err(Error::new(ErrorKind::Conflict, words));
        }
        Err(TryLockError::Error(error)) => {
            Err(error).doing(format_args!("lock {}", path.display()))?;
        }
    }
    let mut nodes: Vec<(NodeId, Vec<String>)> =
        map.data().nodes.iter().map(|info| (info.node, info.addresses.clone())).collect();
    if file.setup.third_voter.is_some() {
        let voter = NodeId::THIRD_VOTER;
        let socket = dir.socket_path(voter)?;
        nodes.push((voter, vec![format!("unix://{}", socket.display())]));
    }
    for (_, addresses) in &mut nodes {
        addresses.retain(|address| !address.starts_with("shm://"));
    }
    let mut own = dir.read_keys()?;
    if let Some(authorities) = dir.read_authorities()? {
        own = own.with_authorities(&authorities);
    }
    let mut keep = |keys: &ClusterKeys| keep(dir, file, keys);
    // The two may differ after a change that was cut off between them.
    keep(&own)?;
    KeyRotation { own, keep: &mut keep, nodes, keeps_before, timeout }.run()
}

fn keep(dir: &ClusterDir, file: &ClusterFile, keys: &ClusterKeys) -> Result<()> {
    if let Some(durable) = &file.setup.durable
        && let Some(mut record) = ClusterRecord::find(durable)?
    {
        record.key = keys.to_bytes();
        record.write(durable)?;
    }
    dir.write_keys(keys)
}
