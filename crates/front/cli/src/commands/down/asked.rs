//! Nodes that were asked to stop, and whether those on other hosts have.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::time::{Duration, Instant};

use samite_client::runtime::{ClusterDir, ClusterFile, NodeEntry};
use samite_client::{Client, ClusterKeys};
use samite_launch::local;
use samite_transport::Address;
use samite_transport::host::label_of;
use samite_types::Error;

use super::connected::of_each;
use crate::cluster::ClusterTarget;
use crate::output::complain;

/// How long asking a node to stop may take.
const ASK_TIMEOUT: Duration = Duration::from_secs(1);
/// The same of a node on another host.
const ASK_FAR_TIMEOUT: Duration = Duration::from_secs(5);
/// How long nodes on other hosts may take, which clear their hosts first.
const STOP_FAR_TIMEOUT: Duration = Duration::from_secs(20);
/// Between two looks at a node on another host.
const LOOK: Duration = Duration::from_millis(20);

/// Nodes that were asked to stop.
#[derive(Default)]
pub struct AskedNodes {
    /// Those on this host that have agreed.
    pub pids: Vec<u32>,
    /// Those on other hosts that have, and where they listen.
    far: Vec<(NodeEntry, Vec<SocketAddr>)>,
    /// Those on other hosts that have not, and why.
    silent: Vec<(NodeEntry, Error)>,
}

/// What has become of nodes on other hosts.
#[derive(Default)]
pub struct FarNodes {
    /// So many have stopped.
    pub stopped: usize,
    /// Those that may live, and why, in words.
    pub left: Vec<(NodeEntry, String)>,
}

/// Asks the nodes over the wire. One on this host that does not hear it gets a signal, so nothing
/// that fails with these matters.
pub fn ask_to_stop(target: &ClusterTarget, file: &ClusterFile) -> AskedNodes {
    // Before any is asked: one that ends may remove the cluster's key from this host.
    let connect = |entry: &NodeEntry| {
        let timeout = if entry.process.is_some() { ASK_TIMEOUT } else { ASK_FAR_TIMEOUT };
        target.connect_to(std::slice::from_ref(entry), Some(timeout))
    };
    let clients = of_each(&file.nodes, connect);
    let mut asked = AskedNodes::default();
    // The node with the cluster map last: the others may still need it.
    for (entry, client) in file.nodes.iter().zip(clients).rev() {
        let is_far = entry.process.is_none();
        let listens = if is_far && client.is_ok() { open_places(entry) } else { Vec::new() };
        let agreed = client.and_then(|client| client.shutdown_node(entry.node));
        match (agreed, entry.pid()) {
            (Ok(()), Some(pid)) => asked.pids.push(pid),
            (Ok(()), None) => asked.far.push((entry.clone(), listens)),
            (Err(_), Some(_)) => {}
            (Err(error), None) => asked.silent.push((entry.clone(), error)),
        }
    }
    asked
}

/// The nodes that the cluster has now, which may not be those that `file` names: nobody brings the
/// description up to date on a host without a node, and a number may have been given away again.
/// Those that `file` does not name are left out unless they live; `None`: no node tells.
pub fn nodes_now(target: &ClusterTarget, file: &ClusterFile) -> Option<Vec<NodeEntry>> {
    let client = target.connect_to(&file.nodes, Some(ASK_FAR_TIMEOUT)).ok()?;
    let map = client.map().ok()?;
    let entries = map.nodes().iter().map(|info| {
        let is_named = file.nodes.iter().any(|entry| entry.node == info.node);
        (NodeEntry::from_map(info, None, label_of(&info.host)), is_named)
    });
    let lives = |entry: &NodeEntry| {
        places(entry).is_ok_and(|places| state_of(&places) == PlaceState::Listens)
    };
    Some(
        entries
            .filter(|(entry, is_named)| *is_named || lives(entry))
            .map(|(entry, _)| entry)
            .collect(),
    )
}

/// A node that is removed from its cluster, which goes on.
pub struct RemovedNode {
    entry: NodeEntry,
    client: Client,
    listens: Vec<SocketAddr>,
}

impl RemovedNode {
    /// It, if it answers.
    pub fn find(target: &ClusterTarget, entry: &NodeEntry) -> Option<Self> {
        let client = target.connect_to(std::slice::from_ref(entry), Some(ASK_FAR_TIMEOUT)).ok()?;
        Some(Self { entry: entry.clone(), client, listens: open_places(entry) })
    }

    /// Ends it, which clears its host.
    ///
    /// # Errors
    /// It may live, and why, in words.
    pub fn end(self) -> Result<(), String> {
        let entry = &self.entry;
        let asked = self.client.shutdown_node(entry.node);
        asked.map_err(|error| format!("{} does not answer: {error}", called(entry)))?;
        match wait_gone(&self.listens, Instant::now() + STOP_FAR_TIMEOUT) {
            PlaceState::Gone => Ok(()),
            PlaceState::Listens => Err(format!("{} has not ended", called(entry))),
            PlaceState::Unreachable(why) => {
                Err(format!("{} cannot be reached: {why}", called(entry)))
            }
        }
    }
}

impl AskedNodes {
    /// Waits until those on other hosts have gone, or for a while.
    pub fn wait_far(self) -> FarNodes {
        let until = Instant::now() + STOP_FAR_TIMEOUT;
        let mut nodes = FarNodes::default();
        for (entry, listens) in self.far {
            match wait_gone(&listens, until) {
                PlaceState::Gone => nodes.stopped += 1,
                PlaceState::Listens => nodes.left.push((entry, "has not ended".to_owned())),
                PlaceState::Unreachable(why) => {
                    nodes.left.push((entry, format!("cannot be reached: {why}")));
                }
            }
        }
        for (entry, error) in self.silent {
            match places(&entry).map(|places| state_of(&places)) {
                Ok(PlaceState::Gone) => {
                    let words = "ended before; `samite down` there removes what it has left";
                    complain(format!("{} {words}", called(&entry)));
                }
                _ => nodes.left.push((entry, format!("does not answer: {error}"))),
            }
        }
        nodes
    }
}

impl FarNodes {
    /// Those that may live, in words.
    pub fn left_words(&self) -> String {
        let words = self.left.iter().map(|(entry, why)| format!("{} {why}", called(entry)));
        words.collect::<Vec<_>>().join("; ")
    }

    /// Describes those that may live in the directory of this host, from which the node here may
    /// have removed all, so that they can be asked again from here: no others are left.
    ///
    /// # Errors
    /// Those of the system.
    pub fn remember(
        &self,
        dir: &ClusterDir,
        file: &ClusterFile,
        keys: &ClusterKeys,
    ) -> samite_types::Result<()> {
        local::make_directory(dir)?;
        if !dir.key_path().exists() {
            dir.write_keys(keys)?;
        }
        let nodes = self.left.iter().map(|(entry, _)| entry.clone()).collect();
        dir.write_cluster_file(&ClusterFile { nodes, is_attached: true, ..file.clone() })
    }
}

fn called(entry: &NodeEntry) -> String {
    format!("{} on {}", entry.node, entry.host.as_deref().unwrap_or("another host"))
}

/// Whether a node may still be where it listened.
#[derive(Debug, PartialEq, Eq)]
enum PlaceState {
    /// Something listens there.
    Listens,
    /// The host says that nothing does.
    Gone,
    /// That cannot be known, and why.
    Unreachable(String),
}

/// Where the node is reached from other hosts.
///
/// # Errors
/// A name cannot be looked up.
fn places(entry: &NodeEntry) -> std::io::Result<Vec<SocketAddr>> {
    let mut all = Vec::new();
    for url in entry.addresses() {
        if let Ok(Address::Tcp(host, port) | Address::Tls(host, port)) = url.parse() {
            all.extend((host.as_str(), port).to_socket_addrs()?);
        }
    }
    Ok(all)
}

/// The places at which something listens; all, if nothing does.
fn open_places(entry: &NodeEntry) -> Vec<SocketAddr> {
    let all = places(entry).unwrap_or_default();
    let is_open = |place: &&SocketAddr| state_of(&[**place]) == PlaceState::Listens;
    let open: Vec<SocketAddr> = all.iter().filter(is_open).copied().collect();
    if open.is_empty() { all } else { open }
}

fn state_of(places: &[SocketAddr]) -> PlaceState {
    let mut state = match places {
        [] => PlaceState::Unreachable("no address of it is known".to_owned()),
        _ => PlaceState::Gone,
    };
    for place in places {
        match TcpStream::connect_timeout(place, ASK_TIMEOUT) {
            Ok(_) => return PlaceState::Listens,
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {}
            Err(error) => state = PlaceState::Unreachable(format!("connect {place}: {error}")),
        }
    }
    state
}

/// Waits until nothing listens there, by `until`. A node clears its host first. One that cannot be
/// reached has perhaps not ended.
fn wait_gone(places: &[SocketAddr], until: Instant) -> PlaceState {
    loop {
        match state_of(places) {
            PlaceState::Gone => return PlaceState::Gone,
            state if Instant::now() >= until => return state,
            _ => std::thread::sleep(LOOK),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use samite_types::NodeId;

    use super::*;

    #[test]
    fn only_a_refusal_says_that_a_node_has_gone() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let place = listener.local_addr().unwrap();
        assert_eq!(state_of(&[place]), PlaceState::Listens);
        assert_eq!(wait_gone(&[place], Instant::now()), PlaceState::Listens);
        let ends = std::thread::spawn(move || drop(listener));
        assert_eq!(wait_gone(&[place], Instant::now() + STOP_FAR_TIMEOUT), PlaceState::Gone);
        ends.join().unwrap();
        // No host has this address, and no network leads to it.
        let nowhere = SocketAddr::from(([255, 255, 255, 255], 7));
        assert!(matches!(state_of(&[place, nowhere]), PlaceState::Unreachable(_)));
        assert!(matches!(state_of(&[]), PlaceState::Unreachable(_)));
    }

    #[test]
    fn places_are_those_on_the_network() {
        let mut entry = NodeEntry::elsewhere(NodeId(1));
        let urls = ["unix:///s", "tcp://127.0.0.1:1", "tls://[::1]:2"].map(str::to_owned);
        entry.set_addresses(&urls);
        let all: Vec<String> = places(&entry).unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(all, ["127.0.0.1:1", "[::1]:2"]);
        entry.set_addresses(&["tcp://no.such.host.invalid:1".to_owned()]);
        assert!(places(&entry).is_err());
    }
}
