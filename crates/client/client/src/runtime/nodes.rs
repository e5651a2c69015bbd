//! The nodes of a cluster, as its description names them.

use std::path::PathBuf;

use samite_transport::Address;
use samite_types::NodeId;
use samite_wire::control::NodeInfo;
use serde::{Deserialize, Serialize};

/// One node of a [`ClusterFile`](super::ClusterFile).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeEntry {
    /// Id.
    pub node: NodeId,
    /// Its process, if it runs on this host.
    #[serde(flatten)]
    pub process: Option<LocalProcess>,
    /// Name of its host, if it runs on another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// `HOST:PORT` when the node listens on tcp, `tls://HOST:PORT` when with TLS.
    pub tcp: Option<String>,
    /// More addresses where other hosts reach it, as URLs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more_addresses: Vec<String>,
}

/// The process of a node on this host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalProcess {
    /// Process id.
    pub pid: u32,
    /// The process's start time in clock ticks since boot (`/proc/PID/stat`, field 22): with the
    /// pid it names one process for good, so that a reused pid is never mistaken for the node.
    pub start_ticks: u64,
    /// Path of the unix socket, which serves `shm://` and `unix://`.
    pub socket: PathBuf,
}

impl NodeEntry {
    /// A node with this process on this host, whose other addresses are not known yet.
    #[must_use]
    pub const fn local(node: NodeId, process: LocalProcess) -> Self {
        Self { node, process: Some(process), host: None, tcp: None, more_addresses: Vec::new() }
    }

    /// A node of which is not known where it runs: its users do not reach its process.
    #[must_use]
    pub const fn elsewhere(node: NodeId) -> Self {
        Self { node, process: None, host: None, tcp: None, more_addresses: Vec::new() }
    }

    /// Nodes that are reached at these URLs only, ordered by id.
    pub fn on_network(nodes: &[(NodeId, String)]) -> Vec<Self> {
        let entry = |(node, url): &(NodeId, String)| {
            let mut entry = Self::elsewhere(*node);
            entry.set_addresses(std::slice::from_ref(url));
            entry
        };
        let mut entries: Vec<Self> = nodes.iter().map(entry).collect();
        entries.sort_by_key(|entry| entry.node);
        entries
    }

    /// The node that the cluster map describes so: with `process` if it runs on this host, else on
    /// the one that is called `host`.
    #[must_use]
    pub fn from_map(info: &NodeInfo, process: Option<LocalProcess>, host: &str) -> Self {
        let host = process.is_none().then(|| host.to_owned());
        let mut entry =
            Self { node: info.node, process, host, tcp: None, more_addresses: Vec::new() };
        entry.set_addresses(&info.addresses);
        entry
    }

    /// Takes over the addresses on the network that are among these.
    pub fn set_addresses(&mut self, addresses: &[String]) {
        let is_on_network = |address: &&String| {
            address.parse::<Address>().is_ok_and(|address| address.transport().is_tcp())
        };
        let mut urls = addresses.iter().filter(is_on_network).cloned();
        let first = urls.next();
        self.tcp = first.map(|url| match url.strip_prefix("tcp://") {
            Some(plain) => plain.to_owned(),
            None => url,
        });
        self.more_addresses = urls.collect();
    }

    /// Pid of its process, if that runs on this host.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(|process| process.pid)
    }

    /// Where other hosts reach it first, as a URL.
    #[must_use]
    pub fn network_address(&self) -> Option<String> {
        let tcp = self.tcp.as_ref()?;
        Some(if tcp.contains("://") { tcp.clone() } else { format!("tcp://{tcp}") })
    }

    /// Everywhere that this host reaches it, as URLs, best first.
    pub fn addresses(&self) -> impl Iterator<Item = String> {
        let sockets = self.process.iter().flat_map(|process| {
            let path = process.socket.display();
            [format!("shm://{path}"), format!("unix://{path}")]
        });
        sockets.chain(self.network_address()).chain(self.more_addresses.iter().cloned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(addresses: &[&str]) -> NodeInfo {
        let addresses = addresses.iter().map(|&url| url.to_owned()).collect();
        let (node, host) = (NodeId(1), "h".to_owned());
        NodeInfo { node, host, rack: String::new(), addresses, incarnation: 1, targets: Vec::new() }
    }

    #[test]
    fn entries_round_trip_with_a_process_and_without() {
        let far = info(&["shm:///s", "unix:///s", "tls://a:1", "tls://[::1]:2"]);
        let far = NodeEntry::from_map(&far, None, "b");
        let urls: Vec<String> = far.addresses().collect();
        assert_eq!(urls, ["tls://a:1", "tls://[::1]:2"], "sockets of other hosts are no way");
        let process = LocalProcess { pid: 1, start_ticks: 2, socket: "/s".into() };
        let near = NodeEntry::from_map(&info(&["unix:///s", "tcp://a:1"]), Some(process), "b");
        assert_eq!((near.host.as_deref(), near.tcp.as_deref()), (None, Some("a:1")));
        let urls: Vec<String> = near.addresses().collect();
        assert_eq!(urls, ["shm:///s", "unix:///s", "tcp://a:1"]);
        for entry in [far, near] {
            let text = serde_json::to_string(&entry).unwrap();
            assert_eq!(serde_json::from_str::<NodeEntry>(&text).unwrap(), entry);
        }
        // As it was written before nodes could be elsewhere.
        let old = r#"{"node":0,"pid":5,"start_ticks":6,"socket":"/s","tcp":null}"#;
        assert_eq!(serde_json::from_str::<NodeEntry>(old).unwrap().pid(), Some(5));
    }
}
