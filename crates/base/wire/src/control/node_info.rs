//! A node of the cluster map.

use std::time::Duration;

use samite_types::{NodeId, TargetId};
use serde::{Deserialize, Serialize};

/// Where a node can be reached, and what it serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "EncodedNodeInfo", into = "EncodedNodeInfo")]
pub struct NodeInfo {
    /// Id.
    pub node: NodeId,
    /// Name of the host it runs on (its boot id and its name), so that a client knows when `unix://` and `shm://` reach it.
    pub host: String,
    /// Name of the rack of that host, or of whatever else fails as a whole; empty: not known.
    pub rack: String,
    /// Addresses as URLs, best first: `shm://PATH`, `unix://PATH`, `tcp://HOST:PORT`.
    pub addresses: Vec<String>,
    /// Given to the process when it starts ([`incarnation_at`]): another one means that what was only in memory is gone. A process that started later has a
    /// higher one, unless the host's clock was set back meanwhile.
    pub incarnation: u64,
    /// Targets.
    pub targets: Vec<TargetInfo>,
}

/// Identifies a process that starts at this time (since 1970) among the others of its node: the
/// time in steps of 4 µs, then 12 random bits.
pub const fn incarnation_at(realtime: Duration, random: u64) -> u64 {
    const RANDOM: u64 = (1 << 12) - 1;
    realtime.as_nanos() as u64 & !RANDOM | random & RANDOM
}

/// One target of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetInfo {
    /// Id, unique in the cluster.
    pub target: TargetId,
    /// Bytes it can hold.
    pub capacity_bytes: u64,
    /// Names the state of the directory in which the target stores data that outlive its node:
    /// another one for each process, drawn when that starts, and noted in the directory. 0: it
    /// stores nothing.
    pub storage: u64,
}

/// A [`NodeInfo`] as bytes. The rack follows the host's name after a line feed: so these are the
/// bytes that builds without racks read, write and have saved.
#[derive(Clone, Serialize, Deserialize)]
struct EncodedNodeInfo {
    node: NodeId,
    place: String,
    addresses: Vec<String>,
    incarnation: u64,
    targets: Vec<TargetInfo>,
}

impl From<NodeInfo> for EncodedNodeInfo {
    fn from(info: NodeInfo) -> Self {
        let NodeInfo { node, host: mut place, rack, addresses, incarnation, targets } = info;
        if !rack.is_empty() {
            place.push('\n');
            place.push_str(&rack);
        }
        Self { node, place, addresses, incarnation, targets }
    }
}

impl From<EncodedNodeInfo> for NodeInfo {
    fn from(encoded: EncodedNodeInfo) -> Self {
        let EncodedNodeInfo { node, place, addresses, incarnation, targets } = encoded;
        let (host, rack) = match place.split_once('\n') {
            Some((host, rack)) => (host.to_owned(), rack.to_owned()),
            None => (place, String::new()),
        };
        Self { node, host, rack, addresses, incarnation, targets }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{decode, encode};
    use super::*;

    #[test]
    fn a_node_in_no_rack_has_the_bytes_of_before_there_were_racks() {
        let target = TargetInfo { target: TargetId(1), capacity_bytes: 2, storage: 3 };
        let mut info = NodeInfo {
            node: NodeId(9),
            host: "boot:h".into(),
            rack: String::new(),
            addresses: vec!["tcp://h:1".into()],
            incarnation: 4,
            targets: vec![target],
        };
        let before = b"\x09\x06boot:h\x01\x09tcp://h:1\x04\x01\x01\x02\x03";
        assert_eq!(encode(&info), before);
        assert_eq!(decode::<NodeInfo>(before), Ok(info.clone()));
        info.rack = "r 1".into();
        assert_eq!(decode::<NodeInfo>(&encode(&info)), Ok(info));
    }
}
