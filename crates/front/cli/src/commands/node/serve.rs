//! One node, in the foreground.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Resource, Rlimit};
use samite_client::runtime::{ClusterDir, ClusterSetup, EtcdTlsFiles};
use samite_launch::directories;
use samite_launch::memory::{self, MemoryRoom};
use samite_launch::node_life::{self, NodeLife};
use samite_launch::process_log::LogDestination;
use samite_node::etcd::EtcdTls;
use samite_node::{
    ClusterTiming, CoordinatorConfig, FlashConfig, InstanceConfig, MetricsAddress, NodeConfig,
    NodeEvent, SCRUB_INTERVAL, StopHandle, StoreConfig, TlsConfig, WorkerConfig, WorkerLimits,
};
use samite_transport::Address;
use samite_types::fault::{FaultTable, parse_time};
use samite_types::{NodeId, Redundancy};
use samite_wire::control::ReadsKind;

use super::by_hand::{self, HostDescription, ListenAddress};
use crate::cluster::ClusterTarget;
use crate::commands::dataset::parse_reads;
use crate::failure::{CommandFailure, IoContext};
use crate::log::LogControl;
use crate::size::parse_size;
use crate::{service_manager, signals, tls, turns};

/// The arguments of a node that serves.
#[derive(clap::Args)]
pub struct ServeArgs {
    /// The cluster's directory, named as the cluster; it must hold the key [default: that of the cluster in the runtime directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Put this key (32 bytes, mode 0600) into the cluster's directory if it has none
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Number of this node, from 0
    #[arg(long, value_name = "N")]
    node: u32,
    /// Nodes that the cluster is founded with
    #[arg(long, value_name = "N")]
    nodes: u32,
    /// Memory for records [default: 1 GiB, or less where the machine or a control group has less]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<u64>,
    /// Shard threads
    #[arg(long, value_name = "N", default_value_t = 1)]
    shards: u16,
    /// Partitions of the cluster; chosen by the number of nodes unless given
    #[arg(long, value_name = "P")]
    partitions: Option<u32>,
    /// So many nodes, from the first, have a coordinator
    #[arg(long, value_name = "N", default_value_t = 1)]
    coordinators: u32,
    /// Where the coordinators of all hosts are, `tcp://HOST:PORT` each or `tls://HOST:PORT`: one, in node 0, or three and more, in the first nodes, in their order
    #[arg(long, value_name = "URLS", value_delimiter = ',', value_parser = by_hand::parse_coordinator, conflicts_with_all = ["coordinators", "third_voter"])]
    coordinator: Vec<Address>,
    /// Nodes that hold each record of datasets that commands make by themselves
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=3))]
    mirror: u8,
    /// Who answers reads of them: `primary` or `any`
    #[arg(long, value_name = "WHO", default_value = "primary", value_parser = parse_reads)]
    reads: ReadsKind,
    /// Two nodes keep the coordinators' state together with a third process, which is node 4294967295
    #[arg(long)]
    third_voter: bool,
    /// Where coordinators keep their state: etcd at `http://HOST:PORT,…`, or https; else several keep it together, and the only one in the cluster's directory
    #[arg(long, value_name = "URLS", value_delimiter = ',')]
    etcd: Vec<String>,
    /// Who has signed the certificates of etcd at https://… (PEM)
    #[arg(long, value_name = "FILE")]
    etcd_ca: Option<PathBuf>,
    /// Show etcd this certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "etcd_key", requires = "etcd_ca")]
    etcd_cert: Option<PathBuf>,
    /// The certificate's private key (PEM)
    #[arg(long, value_name = "FILE", requires = "etcd_cert")]
    etcd_key: Option<PathBuf>,
    /// The cluster has served before: without its coordinators' state nothing is begun anew
    #[arg(long)]
    founded: bool,
    /// Give tickets to all users of this host by a unix socket at this path
    #[arg(long, value_name = "PATH")]
    shared: Option<PathBuf>,
    /// Listen on tcp too, at an address by which other hosts reach this one; may be given more than once. Without a port, the one in the list of coordinators, or a free one
    #[arg(long, value_name = "HOST[:PORT]", value_parser = by_hand::parse_listen)]
    listen: Vec<ListenAddress>,
    /// Take TLS on tcp, and nothing else, with a key pair that comes of the cluster key
    #[arg(long)]
    tls: bool,
    /// The same, with this certificate (PEM), which an authority in the directory's ca.pem has signed
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The certificate's private key (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Keep durable datasets in this directory, which is this node's alone; made if it is not there
    #[arg(long, value_name = "DIR")]
    durable: Option<PathBuf>,
    /// Look at all records for damage once in this time, `10m` unless given; 0: only when `samite scrub` asks
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    scrub_interval: Option<Duration>,
    /// Serve metrics to Prometheus, by HTTP, at this loopback address or unix socket: `127.0.0.1:PORT`, `[::1]:PORT` (port 0 takes a free one) or `unix:PATH`
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<MetricsAddress>,
    /// Rack of this host, or whatever else fails as a whole: copies of a record are in different ones where there are enough
    #[arg(long, value_name = "NAME")]
    rack: Option<String>,
    /// Log to this file, or to `stderr` [default: stderr under systemd and in a container, otherwise a file in the directory]
    #[arg(long, value_name = "FILE")]
    log: Option<String>,
}

/// Serves.
pub fn run(args: &ServeArgs, target: &ClusterTarget) -> Result<(), CommandFailure> {
    let dir = cluster_dir(args, target)?;
    let is_by_hand = !args.coordinator.is_empty();
    // Before anything is made.
    let takes_tls = by_hand::check_coordinators(&args.coordinator, args.nodes)?;
    let node = NodeId(args.node);
    let listen = by_hand::listen_addresses(&args.listen, &args.coordinator, node)?;
    if is_by_hand || args.key_file.is_some() {
        by_hand::prepare(&dir, args.key_file.as_deref())?;
    }
    dir.check()?;
    let stop = StopHandle::new();
    let stopping = stop.clone();
    let destination = LogDestination::choose(args.log.as_deref(), dir.log_path(node));
    let log = LogControl::begin(destination, "info", is_by_hand)?;
    let reopened = log.clone();
    let ends = move || {
        service_manager::stopping();
        stopping.stop();
    };
    signals::on_stop_or_reload(ends, move || reopened.reopen())?;
    // The kernel cuts it to 15 bytes; without it `ps` shows all nodes alike.
    let title = std::ffi::CString::new(node_life::name(&dir, node)).unwrap_or_default();
    rustix::thread::set_name(&title).doing("name the process")?;
    let config = config(args, &dir, (listen, takes_tls), log)?;
    let life = NodeLife::begin(&dir, node);
    let setup = setup(args, &config);
    let mut here = is_by_hand.then(|| HostDescription::new(&dir, node, setup));
    let mut is_cleared = false;
    let mut on_event = |event: NodeEvent| match event {
        NodeEvent::Listening { addresses } => {
            tracing::info!(%node, addresses = addresses.join(" "), "listening");
        }
        NodeEvent::Serving { epoch } => {
            tracing::info!(%node, %epoch, "serving");
            service_manager::ready(&format!("serving since epoch {epoch}"));
        }
        NodeEvent::Alive => {
            service_manager::alive();
            here.iter_mut().for_each(HostDescription::write_again);
        }
        NodeEvent::Nodes { nodes } => {
            if let Some(here) = &mut here {
                here.write(nodes);
            }
        }
        NodeEvent::ShutdownAsked => {
            here.iter().for_each(HostDescription::clear);
            is_cleared = here.is_some();
        }
    };
    let served = samite_node::run(config, &mut on_event, &stop).map_err(|error| {
        tracing::error!(%node, %error, "node failed");
        CommandFailure::from(error)
    });
    let how = match &served {
        Ok(()) => "stopped".to_owned(),
        Err(failure) => format!("failed: {failure}"),
    };
    tracing::info!(%node, how, "ends");
    match is_cleared {
        true => life.forget(&dir, node),
        false => life.end(&dir, node, how),
    }
    served
}

fn config(
    args: &ServeArgs,
    dir: &ClusterDir,
    (listen, takes_tls): (Vec<String>, bool),
    log: LogControl,
) -> Result<NodeConfig, CommandFailure> {
    // For all threads of the node.
    turns::ask_for_short();
    raise_descriptors();
    let node = NodeId(args.node);
    let mut config = NodeConfig {
        host: None,
        rack: args.rack.clone().unwrap_or_default(),
        node,
        cluster: dir.name().to_owned(),
        socket: dir.socket_path(node)?,
        listen,
        holds_ports: !args.coordinator.is_empty(),
        tls: tls(args, dir, takes_tls)?,
        fault_log: Some(dir.fault_log_path(node)),
        faults: fault_table(dir, node)?,
        keys: dir.read_keys()?,
        key_file: Some(dir.key_path()),
        ticket_socket: args.shared.clone(),
        memory_bytes: memory(args)?,
        clock_ahead_us: 0,
        shards: args.shards,
        coordinator: coordinator(args, dir)?,
        timing: ClusterTiming::DEFAULT,
        scrub_interval: Some(args.scrub_interval.unwrap_or(SCRUB_INTERVAL))
            .filter(|interval| !interval.is_zero()),
        flash: flash(args)?,
        metrics: args.metrics.clone(),
        logs: Some(Arc::new(log)),
        // A node by hand tries again then what it could not write.
        tells_alive: service_manager::wants_signs_of_life() || !args.coordinator.is_empty(),
        workers: workers(args, dir),
        setup: Vec::new(),
    };
    config.setup = serde_json::to_vec(&setup(args, &config)).unwrap_or_default();
    Ok(config)
}

/// How workers are started. A process that only votes starts none.
fn workers(args: &ServeArgs, dir: &ClusterDir) -> Option<WorkerConfig> {
    let path = |option: &str, path: &Path| vec![OsString::from(option), path.into()];
    (args.node != NodeId::THIRD_VOTER.get()).then(|| WorkerConfig {
        // This program, also when the file was replaced meanwhile.
        program: "/proc/self/exe".into(),
        arguments: path("--dir", dir.path()),
        guest_arguments: args.shared.as_ref().map(|socket| path("--tickets", socket)),
        log_dir: dir.path().to_owned(),
        limits: WorkerLimits::default(),
    })
}

/// How the cluster was set up, as far as it matters to clients on other hosts.
fn setup(args: &ServeArgs, config: &NodeConfig) -> ClusterSetup {
    ClusterSetup {
        redundancy: Redundancy(args.mirror),
        reads: args.reads,
        founders: args.nodes,
        memory_bytes: config.memory_bytes,
        shards: args.shards,
        partitions: args.partitions,
        tcp: !config.listen.is_empty(),
        tls: !matches!(config.tls, TlsConfig::Off),
        coordinators: coordinators(args),
        coordinator_urls: args.coordinator.iter().map(Address::to_string).collect(),
        is_founded: true,
        ..ClusterSetup::default()
    }
}

/// Nodes, from the first, with a coordinator.
fn coordinators(args: &ServeArgs) -> u32 {
    match args.coordinator.len() {
        0 => args.coordinators,
        some => u32::try_from(some).unwrap_or(u32::MAX),
    }
}

/// Where this node keeps durable datasets. Of a process that only votes just its voter lies there.
fn flash(args: &ServeArgs) -> Result<Option<FlashConfig>, CommandFailure> {
    match &args.durable {
        Some(path) if args.node == NodeId::THIRD_VOTER.get() => {
            directories::private_dir(path)?;
            Ok(None)
        }
        durable => Ok(durable.clone().map(FlashConfig::at)),
    }
}

/// Takes as many descriptors as this process may have: each connection needs some, and the usual soft limit of 1024 is for programs that use `select`.
fn raise_descriptors() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let all = Rlimit { current: limit.maximum, maximum: limit.maximum };
        if let Err(error) = rustix::process::setrlimit(Resource::Nofile, all) {
            tracing::warn!(%error, "raise the limit on descriptors");
        }
    }
}

/// The memory that other nodes use, and that of one that died just now, is no reason not to start:
/// only a limit that is too small in itself is.
fn memory(args: &ServeArgs) -> Result<u64, CommandFailure> {
    let room = if args.memory.is_some() { MemoryRoom::read_limits() } else { MemoryRoom::read() };
    let memory = memory::of_node(args.memory, 1, room.as_ref());
    memory.map_err(|error| CommandFailure::usage(error.message()))
}

fn tls(args: &ServeArgs, dir: &ClusterDir, takes: bool) -> Result<TlsConfig, CommandFailure> {
    let (Some(certificate), Some(key)) = (&args.tls_cert, &args.tls_key) else {
        return Ok(if args.tls || takes { TlsConfig::ClusterKey } else { TlsConfig::Off });
    };
    let authorities = dir.read_authorities()?.ok_or_else(|| {
        let path = dir.path().join("ca.pem");
        CommandFailure::usage(format!("--tls-cert: there is no {}", path.display()))
    })?;
    let own = Arc::new(tls::files(certificate, key)?);
    Ok(TlsConfig::Files { own, authorities })
}

/// The faults that were set for this node, before it was started again.
fn fault_table(dir: &ClusterDir, node: NodeId) -> Result<Option<FaultTable>, CommandFailure> {
    let path = dir.fault_table_path(node);
    let text = match std::fs::read_to_string(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        text => text.doing(format_args!("read {}", path.display()))?,
    };
    let named = |error| CommandFailure::failed(format!("{}: {error}", path.display()));
    text.parse().map(Some).map_err(named)
}

/// Which coordinators there are, and whether one is in this node.
fn coordinator(args: &ServeArgs, dir: &ClusterDir) -> Result<CoordinatorConfig, CommandFailure> {
    let me = NodeId(args.node);
    let coordinators = coordinators(args);
    let address = |node: NodeId| -> Result<String, CommandFailure> {
        match args.coordinator.get(node.get() as usize) {
            Some(address) => Ok(address.to_string()),
            None => Ok(format!("unix://{}", dir.socket_path(node)?.display())),
        }
    };
    let etcd_tls = etcd_tls(args)?.map(|(_, tls)| tls);
    let mut others = Vec::new();
    for node in (0..coordinators).map(NodeId).filter(|node| *node != me) {
        others.push(address(node)?);
    }
    // With durable datasets it has to outlive the cluster's directory: it says which there are.
    let place = |name: &str, other| args.durable.as_ref().map_or(other, |path| path.join(name));
    let store = if !args.etcd.is_empty() {
        StoreConfig::Etcd { endpoints: args.etcd.clone(), tls: etcd_tls }
    } else if coordinators > 1 {
        let third = args.third_voter.then_some(NodeId::THIRD_VOTER);
        let first = (0..coordinators).map(NodeId).chain(third);
        StoreConfig::Voters {
            path: place("voter", dir.voter_path(me)),
            is_synced: args.durable.is_some(),
            first: first
                .map(|node| Ok((node, address(node)?)))
                .collect::<Result<_, CommandFailure>>()?,
        }
    } else {
        StoreConfig::File(place("coordinator", dir.map_path()))
    };
    // A node without a voter may be given the one of a node that is gone.
    let may_lead = args.node < coordinators || matches!(store, StoreConfig::Voters { .. });
    let own = InstanceConfig {
        expected: args.nodes as usize,
        partitions: args.partitions,
        is_founded: args.founded,
        store,
    };
    Ok(CoordinatorConfig { own: may_lead.then_some(own), others })
}

fn etcd_tls(args: &ServeArgs) -> Result<Option<(EtcdTlsFiles, EtcdTls)>, CommandFailure> {
    let (etcd_ca, etcd_cert) = (args.etcd_ca.clone(), args.etcd_cert.clone());
    tls::EtcdTlsArgs { etcd_ca, etcd_cert, etcd_key: args.etcd_key.clone() }.read()
}

/// The directory given by path; its last component is the cluster's name.
fn cluster_dir(args: &ServeArgs, target: &ClusterTarget) -> Result<ClusterDir, CommandFailure> {
    let Some(path) = &args.dir else { return Ok(target.dir.clone()) };
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let parent = path.parent().unwrap_or_else(|| target.runtime.path());
    let dir = samite_client::runtime::RuntimeDir::at(parent).and_then(|base| base.cluster(name));
    dir.map_err(|error| CommandFailure::usage(format!("--dir: {error}")))
}
