//! Members of an etcd that is started along with a cluster.

use samite_client::runtime::{ClusterDir, EtcdEntry};
use samite_node::etcd::LocalMember;
use samite_types::Result;

/// Plans an etcd cluster of `count` members for the cluster at `dir`.
///
/// # Errors
/// No free ports can be had.
pub(crate) fn plan(dir: &ClusterDir, count: usize) -> Result<Vec<EtcdEntry>> {
    let members = LocalMember::plan(dir.path(), count)?;
    let entry = |member: LocalMember| EtcdEntry {
        name: member.name,
        pid: 0,
        start_ticks: 0,
        client_port: member.client_port,
        peer_port: member.peer_port,
    };
    Ok(members.into_iter().map(entry).collect())
}

/// The member as the node's library knows it.
pub(crate) fn member(dir: &ClusterDir, entry: &EtcdEntry) -> LocalMember {
    LocalMember {
        name: entry.name.clone(),
        dir: dir.path().join(&entry.name),
        client_port: entry.client_port,
        peer_port: entry.peer_port,
    }
}

/// The address of a member for clients.
pub(crate) fn url(dir: &ClusterDir, entry: &EtcdEntry) -> String {
    member(dir, entry).client_url()
}
