//! The arguments of a node's process, on whichever host.

use std::ffi::OsString;

use samite_client::runtime::{ClusterDir, ClusterSetup};
use samite_node::MetricsAddress;
use samite_types::NodeId;
use samite_wire::control::ReadsKind;

use crate::directories::node_dir;

/// Memory of a process without records, in bytes.
const VOTER_MEMORY: u64 = 16 << 20;

/// The arguments of `samite` for a node of a cluster that was set up so, or for the process with
/// its third voter.
#[must_use]
pub fn node_arguments(dir: &ClusterDir, setup: &ClusterSetup, node: NodeId) -> Vec<OsString> {
    // `--dir` first: that is how `down` knows a node whose pid was never written down.
    let mut all: Vec<OsString> = vec!["node".into(), "--dir".into(), dir.path().into()];
    let mut pair = |option: &str, value: OsString| all.extend([option.into(), value]);
    let mut number = |option: &str, value: u64| pair(option, value.to_string().into());
    number("--node", node.get().into());
    number("--nodes", setup.founders.into());
    let is_node = node != NodeId::THIRD_VOTER;
    let (memory, shards) =
        if is_node { (setup.memory_bytes, setup.shards) } else { (VOTER_MEMORY, 1) };
    number("--memory", memory);
    number("--shards", shards.into());
    number("--coordinators", setup.coordinators.into());
    number("--mirror", setup.redundancy.get().into());
    pair("--reads", reads_word(setup.reads).into());
    let mut number = |option: &str, value: u64| pair(option, value.to_string().into());
    if let Some(partitions) = setup.partitions {
        number("--partitions", partitions.into());
    }
    if !setup.etcd.is_empty() {
        pair("--etcd", setup.etcd.join(",").into());
    }
    if setup.tcp {
        pair("--listen", "127.0.0.1:0".into());
    }
    if let Some(micros) = setup.scrub_interval_us {
        pair("--scrub-interval", format!("{micros}us").into());
    }
    // A node that is added when there is no port left serves none.
    let metrics = setup.metrics.as_ref().filter(|_| is_node);
    let metrics = metrics.and_then(|address| address.parse::<MetricsAddress>().ok());
    if let Some(address) = metrics.and_then(|address| address.of_node(node.get()).ok()) {
        pair("--metrics", address.to_string().into());
    }
    // One node of the host is enough.
    if let Some(path) = setup.ticket_socket.as_ref().filter(|_| node == NodeId(0)) {
        pair("--shared", path.into());
    }
    if let Some(files) = &setup.etcd_tls {
        pair("--etcd-ca", (&files.authorities).into());
        if let Some((certificate, key)) = &files.own {
            pair("--etcd-cert", certificate.into());
            pair("--etcd-key", key.into());
        }
    }
    if let Some((certificate, key)) = &setup.tls_files {
        pair("--tls-cert", certificate.into());
        pair("--tls-key", key.into());
    }
    if let Some(durable) = &setup.durable {
        pair("--durable", node_dir(durable, node).into());
    }
    let flags = [
        (setup.tls && setup.tls_files.is_none(), "--tls"),
        (setup.third_voter.is_some(), "--third-voter"),
        (setup.is_founded, "--founded"),
    ];
    all.extend(flags.into_iter().filter(|(is_on, _)| *is_on).map(|(_, flag)| flag.into()));
    all
}

/// The places of a node in a cluster on several hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkPlaces {
    /// Where it listens, `HOST:PORT` each.
    pub listen: Vec<String>,
    /// Where the coordinators are, as URLs.
    pub coordinators: Vec<String>,
    /// The cluster has served before.
    pub is_founded: bool,
}

/// The arguments of `samite` for a node of a cluster on several hosts.
#[must_use]
pub fn far_node_arguments(
    dir: &ClusterDir,
    setup: &ClusterSetup,
    node: NodeId,
    places: &NetworkPlaces,
) -> Vec<OsString> {
    // `--dir` first, as above.
    let mut all: Vec<OsString> = vec!["node".into(), "--dir".into(), dir.path().into()];
    let mut pair = |option: &str, value: String| all.extend([option.into(), value.into()]);
    pair("--node", node.get().to_string());
    pair("--nodes", setup.founders.to_string());
    pair("--shards", setup.shards.to_string());
    pair("--mirror", setup.redundancy.get().to_string());
    pair("--reads", reads_word(setup.reads).to_owned());
    for listen in &places.listen {
        pair("--listen", listen.to_owned());
    }
    pair("--coordinator", places.coordinators.join(","));
    // Otherwise each host's own memory decides.
    if setup.memory_bytes > 0 {
        pair("--memory", setup.memory_bytes.to_string());
    }
    if let Some(partitions) = setup.partitions {
        pair("--partitions", partitions.to_string());
    }
    if let Some(micros) = setup.scrub_interval_us {
        pair("--scrub-interval", format!("{micros}us"));
    }
    if setup.tls {
        all.push("--tls".into());
    }
    if places.is_founded {
        all.push("--founded".into());
    }
    all
}

fn reads_word(reads: ReadsKind) -> &'static str {
    match reads {
        ReadsKind::Primary => "primary",
        ReadsKind::Any => "any",
    }
}

#[cfg(test)]
mod tests {
    use samite_client::runtime::{RuntimeDir, VoterEntry};

    use super::*;

    #[test]
    fn a_process_that_only_votes_gets_little_memory_and_every_setting_is_handed_on() {
        let runtime = RuntimeDir::at("/run/samite").unwrap();
        let dir = runtime.cluster("c").unwrap();
        let setup = ClusterSetup {
            founders: 2,
            memory_bytes: 1 << 30,
            shards: 4,
            partitions: Some(8),
            tls: true,
            tcp: true,
            durable: Some("/flash".into()),
            scrub_interval_us: Some(5),
            ticket_socket: Some("/run/tickets".into()),
            metrics: Some("127.0.0.1:9100".into()),
            coordinators: 2,
            third_voter: Some(VoterEntry::default()),
            is_founded: true,
            ..ClusterSetup::default()
        };
        let line = |node| {
            let all = node_arguments(&dir, &setup, node);
            all.iter().map(|one| one.to_str().unwrap()).collect::<Vec<_>>().join(" ")
        };
        let rest = "--coordinators 2 --mirror 1 --reads primary --partitions 8 --listen 127.0.0.1:0 --scrub-interval 5us --metrics 127.0.0.1:9101";
        assert_eq!(
            line(NodeId(1)),
            format!(
                "node --dir /run/samite/c --node 1 --nodes 2 --memory 1073741824 --shards 4 {rest} \
                 --durable /flash/n1 --tls --third-voter --founded"
            )
        );
        assert!(line(NodeId(0)).contains(" --shared /run/tickets "));
        let voter = line(NodeId::THIRD_VOTER);
        assert!(voter.contains("--memory 16777216 --shards 1 --coord"));
        assert!(!voter.contains("--metrics"), "it has none");
    }
}
