//! A node that is started by hand, or by `samite up --hosts`: where it listens, where the
//! coordinators are, and the directory and the description of the cluster on its host.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, SystemTime};

use samite_client::runtime::{self, ClusterDir, ClusterFile, ClusterSetup, NodeEntry};
use samite_launch::{local, mounts, node_life};
use samite_transport::Address;
use samite_transport::host::{host_identity, label_of};
use samite_types::{ErrorKind, NodeId};
use samite_wire::control::NodeInfo;

use crate::failure::{CommandFailure, ExitCode};
use crate::output::complain;

/// How long another command that works on the cluster is waited for.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// Where a node is to listen on tcp: a host, and a port unless it does not matter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenAddress {
    host: String,
    port: Option<u16>,
}

impl ListenAddress {
    /// `HOST:PORT`; without a port of its own, with this one.
    pub fn with_port(&self, port: u16) -> String {
        let port = self.port.unwrap_or(port);
        match self.host.contains(':') {
            true => format!("[{}]:{port}", self.host),
            false => format!("{}:{port}", self.host),
        }
    }
}

/// `HOST`, `HOST:PORT`, `[IPV6]` or `[IPV6]:PORT`.
pub fn parse_listen(text: &str) -> Result<ListenAddress, String> {
    let has_port = match text.rsplit_once(']') {
        Some((_, rest)) => rest.starts_with(':'),
        None => text.contains(':'),
    };
    let url = format!("tcp://{text}{}", if has_port { "" } else { ":0" });
    let address: Address = url.parse().map_err(|_| {
        "expected HOST or HOST:PORT; an IPv6 address stands in brackets: [::1]:7001".to_owned()
    })?;
    let Address::Tcp(host, port) = address else { return Err("expected HOST:PORT".to_owned()) };
    if host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_unspecified()) {
        let words = "other hosts are told this address: name one by which they reach this one";
        return Err(words.to_owned());
    }
    Ok(ListenAddress { host, port: has_port.then_some(port) })
}

/// The address of a coordinator: `tcp://HOST:PORT`, or `tls://HOST:PORT`.
pub fn parse_coordinator(text: &str) -> Result<Address, String> {
    match text.parse::<Address>() {
        Ok(address @ (Address::Tcp(_, port) | Address::Tls(_, port))) if port != 0 => Ok(address),
        _ => Err("expected tcp://HOST:PORT, or tls://HOST:PORT".to_owned()),
    }
}

/// Where the node listens, each as `HOST:PORT`: without a port, at the one that the list of
/// coordinators says; without a host, there.
///
/// # Errors
/// The node is no coordinator, and nothing says where it is to listen.
pub fn listen_addresses(
    asked: &[ListenAddress],
    coordinators: &[Address],
    node: NodeId,
) -> Result<Vec<String>, CommandFailure> {
    let own = coordinators.get(node.get() as usize);
    let port = match own {
        Some(Address::Tcp(_, port) | Address::Tls(_, port)) => *port,
        _ => 0,
    };
    match (asked, own) {
        ([], Some(Address::Tcp(host, _) | Address::Tls(host, _))) => {
            let own = ListenAddress { host: host.clone(), port: None };
            Ok(vec![own.with_port(port)])
        }
        ([], _) if !coordinators.is_empty() => Err(CommandFailure::usage(
            "--listen HOST is missing: other hosts have to reach this node",
        )),
        (asked, _) => Ok(asked.iter().map(|one| one.with_port(port)).collect()),
    }
}

/// Whether the list of coordinators makes sense, and whether they take TLS.
///
/// # Errors
/// It does not.
pub fn check_coordinators(all: &[Address], nodes: u32) -> Result<bool, CommandFailure> {
    if all.len() > nodes as usize {
        let words = format!("--coordinator: {} of them, and only {nodes} nodes", all.len());
        return Err(CommandFailure::usage(words));
    }
    if all.len() == 2 {
        return Err(CommandFailure::usage(
            "--coordinator: two cannot outvote one that is dead: name one, or three on three hosts",
        ));
    }
    let tls = all.iter().filter(|address| matches!(address, Address::Tls(..))).count();
    if tls != 0 && tls != all.len() {
        return Err(CommandFailure::usage("--coordinator: all are tcp://, or all are tls://"));
    }
    Ok(tls != 0)
}

/// Makes the cluster's directory unless it is there, and puts the key from `key_file` into it.
///
/// # Errors
/// Others may read the key; the directory has another one; the system's.
pub fn prepare(dir: &ClusterDir, key_file: Option<&Path>) -> Result<(), CommandFailure> {
    local::make_directory(dir)?;
    let Some(path) = key_file else {
        return match dir.read_keys() {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let path = dir.key_path();
                let words = format!("there is no key: --key-file FILE, or {}", path.display());
                Err(CommandFailure::usage(words))
            }
            key => Ok(key.map(drop)?),
        };
    };
    let keys = runtime::read_key_file(path)
        .map_err(|error| CommandFailure::usage(format!("--key-file: {error}")))?;
    match dir.read_keys() {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(dir.write_keys(&keys)?),
        // It may have been changed since (`samite key rotate`).
        Ok(found) if found.id() == keys.id() => Ok(()),
        Ok(_) => {
            let words = format!("--key-file: {} is another key", dir.key_path().display());
            Err(CommandFailure::new(ExitCode::Conflict, words))
        }
        Err(error) => Err(error.into()),
    }
}

/// The description of the cluster in the directory on this host, which one of the nodes here keeps
/// up to date.
pub struct HostDescription<'a> {
    dir: &'a ClusterDir,
    node: NodeId,
    setup: ClusterSetup,
    /// The cluster's nodes, where they could not be written.
    unwritten: Option<Vec<NodeInfo>>,
}

impl<'a> HostDescription<'a> {
    /// That in `dir`, kept by `node` of a cluster that was set up so.
    pub const fn new(dir: &'a ClusterDir, node: NodeId, setup: ClusterSetup) -> Self {
        Self { dir, node, setup, unwritten: None }
    }

    /// Writes it: the cluster has these nodes.
    pub fn write(&mut self, nodes: Vec<NodeInfo>) {
        if let Err(failure) = self.try_write(&nodes) {
            tracing::warn!(error = failure.message, "write the description of the cluster");
            self.unwritten = Some(nodes);
        } else {
            self.unwritten = None;
        }
    }

    /// Tries again if it could not be written.
    pub fn write_again(&mut self) {
        if let Some(nodes) = self.unwritten.take() {
            self.write(nodes);
        }
    }

    fn try_write(&self, nodes: &[NodeInfo]) -> Result<(), CommandFailure> {
        let _lock = local::lock(self.dir, LOCK_TIMEOUT)?;
        let host = host_identity()?;
        let mut entries = BTreeMap::new();
        for info in nodes {
            let is_here = info.host == host && self.has_socket_of(info);
            let process = is_here.then(|| node_life::process(self.dir, info.node)).flatten();
            let entry = NodeEntry::from_map(info, process, label_of(&info.host));
            entries.insert(info.node, entry);
        }
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let before = self.dir.read_cluster_file().ok();
        let file = ClusterFile {
            cluster: self.dir.name().to_owned(),
            nodes: entries.into_values().collect(),
            created_s: before.map_or(since.as_secs(), |before| before.created_s),
            setup: self.setup.clone(),
            is_attached: false,
        };
        Ok(self.dir.write_cluster_file(&file)?)
    }

    /// Whether the node listens on a socket in this directory.
    fn has_socket_of(&self, info: &NodeInfo) -> bool {
        let socket = self.dir.socket_path(info.node);
        socket.is_ok_and(|socket| info.addresses.contains(&Address::Unix(socket).to_string()))
    }

    /// The cluster ends: ends its mounts on this host, and removes its files, unless another node of
    /// it lives here that has not come so far: the last of them does it.
    pub fn clear(&self) {
        // A `down` may have been faster.
        let _ = std::fs::remove_file(node_life::path(self.dir, self.node));
        if !node_life::processes(self.dir).is_empty() {
            return;
        }
        let errors = mounts::end_all(self.dir).into_iter();
        for error in errors.chain(local::clear(self.dir).err()) {
            tracing::warn!(%error, "leave the host");
            complain(error.message());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_to_listen_at_are_hosts_and_ports() {
        let port = |text: &str| parse_listen(text).map(|address| address.with_port(9));
        for (text, full) in [
            ("h", "h:9"),
            ("h:7", "h:7"),
            ("h:0", "h:0"),
            ("[::1]", "[::1]:9"),
            ("[fe80::2]:70", "[fe80::2]:70"),
            ("10.0.0.1", "10.0.0.1:9"),
        ] {
            assert_eq!(port(text).as_deref(), Ok(full));
        }
        for bad in ["", ":7", "::1", "h:x", "h:70000", "[::1", "0.0.0.0:7", "[::]", "[::1]7"] {
            assert!(port(bad).is_err(), "{bad:?}");
        }
    }

    fn directory(scratch: &Path) -> ClusterDir {
        let runtime = runtime::RuntimeDir::at(scratch.join("run")).unwrap();
        let dir = runtime.cluster("c").unwrap();
        local::make_directory(&dir).unwrap();
        dir
    }

    #[test]
    fn the_last_node_to_end_clears_its_host() {
        let scratch = tempfile::tempdir().unwrap();
        let dir = directory(scratch.path());
        // Both processes live on: each of the two nodes is about to end, and sees the other.
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let mut entries = Vec::new();
        for (node, pid) in [(NodeId(0), std::process::id()), (NodeId(1), child.id())] {
            let start_ticks = samite_launch::process::start_ticks(pid).unwrap();
            let life = serde_json::json!({ "pid": pid, "start_ticks": start_ticks });
            std::fs::write(node_life::path(&dir, node), life.to_string()).unwrap();
            let socket = dir.socket_path(node).unwrap();
            let process = runtime::LocalProcess { pid, start_ticks, socket };
            entries.push(NodeEntry::local(node, process));
        }
        let file = ClusterFile {
            cluster: "c".into(),
            nodes: entries,
            created_s: 0,
            setup: ClusterSetup::default(),
            is_attached: false,
        };
        dir.write_cluster_file(&file).unwrap();
        HostDescription::new(&dir, NodeId(1), ClusterSetup::default()).clear();
        assert!(dir.cluster_file_path().exists(), "n0 has not come so far");
        HostDescription::new(&dir, NodeId(0), ClusterSetup::default()).clear();
        assert!(!dir.path().exists());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_description_that_could_not_be_written_is_tried_again() {
        let scratch = tempfile::tempdir().unwrap();
        let dir = directory(scratch.path());
        let mut here = HostDescription::new(&dir, NodeId(0), ClusterSetup::default());
        let held = local::lock(&dir, LOCK_TIMEOUT).unwrap();
        here.write(Vec::new());
        assert!(!dir.cluster_file_path().exists(), "another command works on it");
        drop(held);
        here.write_again();
        assert!(dir.read_cluster_file().unwrap().nodes.is_empty());
        std::fs::remove_file(dir.cluster_file_path()).unwrap();
        here.write_again();
        assert!(!dir.cluster_file_path().exists(), "once");
    }

    #[test]
    fn a_node_listens_where_the_list_says() {
        let list: Vec<Address> = ["tcp://a:1", "tcp://[::1]:2"]
            .iter()
            .map(|url| parse_coordinator(url).unwrap())
            .collect();
        let at = |asked: &[&str], node| {
            let asked: Vec<_> = asked.iter().map(|text| parse_listen(text).unwrap()).collect();
            listen_addresses(&asked, &list, NodeId(node)).map_err(|failure| failure.message)
        };
        assert_eq!(at(&[], 1).unwrap(), ["[::1]:2"]);
        assert_eq!(at(&["b", "c:5"], 0).unwrap(), ["b:1", "c:5"]);
        assert_eq!(at(&["b"], 7).unwrap(), ["b:0"]);
        assert!(at(&[], 7).unwrap_err().contains("--listen HOST is missing"));
        let none = listen_addresses(&[], &[], NodeId(0));
        assert!(none.is_ok_and(|all| all.is_empty()), "sockets alone");
    }

    #[test]
    fn lists_of_coordinators_that_make_no_sense_are_refused() {
        let all = |urls: &[&str]| -> Vec<Address> {
            urls.iter().map(|url| parse_coordinator(url).unwrap()).collect()
        };
        let check = |urls: &[&str], nodes| {
            check_coordinators(&all(urls), nodes).map_err(|failure| failure.message)
        };
        assert_eq!(check(&["tcp://a:1"], 2), Ok(false));
        assert_eq!(check(&["tls://a:1", "tls://b:1", "tls://c:1"], 3), Ok(true));
        assert!(check(&["tcp://a:1", "tcp://b:1"], 2).unwrap_err().contains("or three"));
        assert!(check(&["tcp://a:1", "tls://b:1", "tcp://c:1"], 3).is_err());
        assert!(check(&["tcp://a:1"; 3], 2).is_err());
        for bad in ["", "unix:///x", "shm:///x", "tcp://a", "tcp://a:0", "a:1"] {
            assert!(parse_coordinator(bad).is_err(), "{bad:?}");
        }
    }
}
