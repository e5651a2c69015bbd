//! `samite up`: start a cluster, on this host or on several.

pub mod hosts;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use samite_client::Client;
use samite_client::runtime::{ClusterFile, EtcdTlsFiles};
use samite_launch::local::{self, CoordinatorChoice, LocalPlan, StartingCluster};
use samite_launch::{cluster_record, memory};
use samite_node::{MetricsAddress, etcd};
use samite_types::fault::parse_time;
use samite_types::{NodeId, Redundancy, human_bytes};
use samite_wire::control::{BackendSpec, MEMORY_BACKEND, ReadsKind};

use crate::cluster::{ClusterTarget, FILES_DATASET, local_process};
use crate::commands::dataset::parse_reads;
use crate::commands::{kv, node::parse_node, object};
use crate::failure::CommandFailure;
use crate::output::{CommandOutput, complain};
use crate::size::parse_size;
use crate::{signals, tls};

/// Most nodes of a local cluster.
const NODES_MAX: u32 = 64;
/// How long an etcd that is said to be there is waited for.
const ETCD_TIMEOUT: Duration = Duration::from_secs(5);

/// Start a store on this machine, or on several hosts
///
/// Starts N node processes, or one on each host, waits until the store serves, and prints what came up. The nodes stay until `samite down`. In a job of Slurm or PBS, the
/// hosts are the job's unless they are named. Several clusters can be up side by side under different names. When a host fails, nothing is left on any.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  samite up --local 2
  samite up --local 4 --memory 512M --name scratch
  samite up --local 3 --mirror 2 --coordinator etcd
  samite up --local 2 --durable /flash/job
  samite up --local 2 --durable /flash/job --backend lmdb
  samite up --local 2 --tls
  samite up --local 2 --metrics 127.0.0.1:9100
  samite up --hosts a,b,c --mirror 2 --memory 8G
  samite up --hostfile nodes --launcher 'rsh' --listen :7001 --at-least 3")]
pub struct UpArgs {
    /// Nodes to start on this machine
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(NODES_MAX)))]
    local: Option<u32>,
    #[command(flatten)]
    far: hosts::HostsArgs,
    /// Memory for records, each node [default: 1 GiB, or less where the machine or a control group has less]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<u64>,
    /// Shard threads of each node
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    shards: u16,
    /// Partitions of the cluster, for good [default: 16 for each node, at least 64]
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u32).range(1..=65536))]
    partitions: Option<u32>,
    /// Keep files, keys and objects in this directory, too, so that the same `up` brings them back after the nodes have ended, or died
    #[arg(long, value_name = "DIR")]
    durable: Option<PathBuf>,
    /// What holds files, keys and objects when they are made: `memory` and a log, or a backend that remembers, as `samite dataset create` has them
    #[arg(long, value_name = "NAME", requires = "durable", default_value = MEMORY_BACKEND, value_parser = parse_backend)]
    backend: String,
    /// Directory in which the backend keeps them, if it is to be elsewhere than in DIR
    #[arg(long, value_name = "DIR", requires = "backend")]
    path: Option<String>,
    /// What this node kept on flash is damaged: set that aside, under another name, and bring the node up to date from the others
    #[arg(long, value_name = "NODE", requires = "durable", value_parser = parse_node)]
    renew: Vec<NodeId>,
    /// Nodes look at all records for damage once in this time (`30s`, `10m`); 0: only when `samite scrub` asks [default: 10m]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    scrub_interval: Option<Duration>,
    /// Nodes that hold each record, unless a dataset is made with another number
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=3))]
    mirror: u8,
    /// Who answers reads of them: `primary`, or `any` node that holds the record, which is the one on the reader's host if there is one
    #[arg(long, value_name = "WHO", default_value = "primary", value_parser = parse_reads)]
    reads: ReadsKind,
    /// Where the cluster map is kept: `replicated` among the first three nodes, or five of five and more, or two and a third process, which is so from two nodes on unless
    /// said otherwise; `embedded` in the first node; `etcd`, started along; or etcd endpoints `http://HOST:PORT,…`, or https
    #[arg(long, value_name = "WHERE", value_parser = parse_coordinator)]
    coordinator: Option<CoordinatorChoice>,
    #[command(flatten)]
    etcd_tls: tls::EtcdTlsArgs,
    /// Do not listen on tcp (127.0.0.1)
    #[arg(long)]
    no_tcp: bool,
    #[command(flatten)]
    tls: tls::TlsArgs,
    /// Give tickets to all users of this host by a unix socket at this path, which n0 makes; see `samite ticket get`
    #[arg(long, value_name = "PATH")]
    shared: Option<PathBuf>,
    /// Serve each node's metrics to Prometheus at a loopback address: `127.0.0.1:PORT`, the next node at the next port (0, as without ADDRESS: any), or `unix:PATH`, each at PATH.nN
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = "127.0.0.1:0")]
    metrics: Option<MetricsAddress>,
    /// Seconds to wait for the store to serve
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    wait: u64,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

fn parse_coordinator(text: &str) -> Result<CoordinatorChoice, String> {
    match text {
        "embedded" => Ok(CoordinatorChoice::Embedded),
        "replicated" => Ok(CoordinatorChoice::Replicated),
        "etcd" => Ok(CoordinatorChoice::LocalEtcd),
        urls if urls.split(',').all(is_url) => {
            Ok(CoordinatorChoice::EtcdAt(urls.split(',').map(str::to_owned).collect()))
        }
        _ => Err("expected embedded, replicated, etcd, or http(s)://HOST:PORT,…".to_owned()),
    }
}

fn is_url(text: &str) -> bool {
    text.starts_with("http://") || text.starts_with("https://")
}

/// Starts the cluster.
pub fn run(args: &UpArgs, target: &ClusterTarget) -> Result<(), CommandFailure> {
    match (args.local, args.local.is_none().then(|| args.far.hosts()).transpose()?.flatten()) {
        (Some(nodes), _) => run_here(args, nodes, target),
        (None, Some(hosts)) => hosts::run(args, hosts, target),
        (None, None) => Err(CommandFailure::usage(
            "up: `--local N` starts N nodes on this machine (`--local 1` is the fastest), `--hosts A,B,…` one on each of these hosts",
        )),
    }
}

/// Starts one whose nodes all run on this host.
fn run_here(args: &UpArgs, local: u32, target: &ClusterTarget) -> Result<(), CommandFailure> {
    let begun = Instant::now();
    let room = memory::MemoryRoom::read();
    let memory = memory::of_node(args.memory, u64::from(local), room.as_ref())
        .map_err(|error| CommandFailure::usage(error.message()))?;
    if u32::from(args.mirror) > local {
        let words = format!("--mirror {}: there are only {local} nodes", args.mirror);
        return Err(CommandFailure::usage(words));
    }
    if let Some(node) = args.renew.iter().find(|node| node.get() >= local) {
        let words = format!("--renew {node}: there are only {local} nodes");
        return Err(CommandFailure::usage(words));
    }
    if local == 1 && matches!(args.coordinator, Some(CoordinatorChoice::Replicated)) {
        let words = "--coordinator replicated: one node alone has nobody to keep it with";
        return Err(CommandFailure::usage(words));
    }
    if let Some(metrics) = &args.metrics {
        let last = metrics.of_node(local - 1);
        last.map_err(|words| CommandFailure::usage(format!("--metrics {words}")))?;
    }
    let tls = args.tls.read()?;
    let etcd_tls = etcd_tls(args)?;
    let plan = args.plan((local, memory), &tls, etcd_tls, target.timeout());
    let dir = &target.dir;
    // Fails early when the path is too long.
    dir.socket_path(NodeId(local - 1))?;
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&interrupted);
    signals::on_stop(move || flag.store(true, Ordering::Relaxed))?;
    target.runtime.create()?;
    let _lock = local::claim(dir)?;
    if let Some(pem) = &tls.authorities {
        dir.write_authorities(pem)?;
    }
    // From here on, remains are removed if it does not come to serve.
    let mut nodes = StartingCluster::new(dir, plan);
    let until = begun + Duration::from_secs(args.wait);
    let up = bring_up(&mut nodes, &args.renew, until, &interrupted);
    if up.is_err()
        && let Err(error) = nodes.give_up()
    {
        complain(error.message());
    }
    let (file, client) = up?;
    report((args, nodes.asides()), &file, &client, memory, begun.elapsed())
}

/// Starts the nodes, and waits until they serve.
fn bring_up(
    nodes: &mut StartingCluster<'_>,
    renew: &[NodeId],
    until: Instant,
    interrupted: &AtomicBool,
) -> Result<(ClusterFile, Client), CommandFailure> {
    nodes.set_up()?;
    let started = nodes
        .renew(renew)
        .and_then(|()| nodes.start())
        .and_then(|()| nodes.wait_until_serving(until, interrupted));
    let (mut file, client) = started.map_err(|error| {
        let (tails, ways, name) = (nodes.log_tails(), nodes.ways_back(), nodes.dir().name());
        let message = format!("cluster {name}: not started: {error}{ways}{tails}");
        CommandFailure::new(CommandFailure::from(error).code, message)
    })?;
    nodes.serves(&mut file)?;
    Ok((file, client))
}

/// A backend whose records are there again after a restart.
fn parse_backend(text: &str) -> Result<String, String> {
    let entry = samite_registry::find(text).map_err(|error| error.message().to_owned())?;
    match entry.outlives_nodes() {
        true => Ok(text.to_owned()),
        false => Err(format!("{text} keeps nothing over a restart")),
    }
}

impl UpArgs {
    /// The cluster that is to be started.
    fn plan(
        &self,
        (nodes, memory_bytes): (u32, u64),
        tls: &tls::TlsRequest,
        etcd_tls: Option<EtcdTlsFiles>,
        request_timeout: Option<Duration>,
    ) -> LocalPlan {
        LocalPlan {
            nodes,
            memory_bytes,
            shards: self.shards,
            partitions: self.partitions,
            durable: self.durable.clone(),
            scrub_interval: self.scrub_interval,
            redundancy: Redundancy(self.mirror),
            reads: self.reads,
            coordinator: self.coordinator.clone(),
            etcd_tls,
            tcp: !self.no_tcp,
            tls: tls.is_on,
            tls_files: tls.files.clone(),
            ticket_socket: self.shared.as_deref().map(absolute),
            files_dataset: FILES_DATASET,
            datasets: &[kv::DATASET, object::DATASET],
            backend: BackendSpec { name: self.backend.clone(), path: self.path.clone() },
            metrics: self.metrics.clone(),
            request_timeout,
        }
    }
}

/// The path that the node is told, which runs elsewhere.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// The files for an etcd that is there. Whether it and this side trust each other is found out before anything is started.
fn etcd_tls(args: &UpArgs) -> Result<Option<EtcdTlsFiles>, CommandFailure> {
    let (files, tls) = args.etcd_tls.read()?.unzip();
    match &args.coordinator {
        Some(CoordinatorChoice::EtcdAt(urls)) => {
            etcd::check_etcd(urls, tls.as_ref(), ETCD_TIMEOUT).map_err(|error| {
                CommandFailure::new(
                    CommandFailure::from(error.clone()).code,
                    format!("--coordinator: {error}"),
                )
            })?;
        }
        _ if files.is_some() => {
            return Err(CommandFailure::usage(
                "--etcd-ca is for --coordinator https://HOST:PORT,…",
            ));
        }
        _ => {}
    }
    Ok(files)
}

fn report(
    (args, asides): (&UpArgs, &[(NodeId, PathBuf)]),
    file: &ClusterFile,
    client: &Client,
    memory: u64,
    elapsed: Duration,
) -> Result<(), CommandFailure> {
    let map = client.map()?;
    let mut out = CommandOutput::new();
    if args.json {
        out.json(&serde_json::json!({
            "cluster": file.cluster,
            "nodes": file.nodes,
            "memory_bytes": memory,
            "mirror": file.setup.redundancy,
            "partitions": map.partitions(),
            "coordinators": file.setup.coordinators,
            "third_voter": file.setup.third_voter,
            "epoch": map.epoch(),
            "seconds": elapsed.as_secs_f64(),
        }))?;
        return out.finish();
    }
    let count = file.nodes.len();
    out.line(format!(
        "cluster {}: serving, {count} node{} of {}, {} partitions{}, after {:.2} s",
        file.cluster,
        if count == 1 { "" } else { "s" },
        human_bytes(memory),
        map.partitions(),
        match file.setup.redundancy.get() {
            1 => String::new(),
            copies => format!(", mirrored on {copies}"),
        },
        elapsed.as_secs_f64(),
    ))?;
    for node in &file.nodes {
        let tcp = node.network_address().map(|tcp| format!("  {tcp}")).unwrap_or_default();
        let process = local_process(node)?;
        let (pid, socket) = (process.pid, process.socket.display());
        out.line(format!("  {}  pid {pid}  shm://{socket}{tcp}", node.node))?;
        if args.metrics.is_some()
            && let Some(address) = client.node_metrics(node.node)?.address
        {
            out.line(format!("      metrics at {address}"))?;
        }
    }
    if let Some(line) = cluster_record::keeping(&file.setup) {
        out.line(line)?;
    }
    for (node, aside) in asides {
        out.line(format!("  {node}: what it had is in {}", aside.display()))?;
    }
    let name = ClusterTarget::option_for(&file.cluster);
    out.line(format!("next: samite run{name} -- ls /samite     end: samite down{name}"))?;
    out.finish()
}
