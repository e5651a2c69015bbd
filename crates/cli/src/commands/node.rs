//! `samite node`: one node, in the foreground.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Mutex;

use samite_client::runtime::ClusterDir;
use samite_node::{
    CoordinatorConfig, Event, FlashConfig, InstanceConfig, NodeConfig, Stop, StoreConfig, Timing,
};
use samite_types::NodeId;
use tracing_subscriber::EnvFilter;

use crate::cluster::Target;
use crate::failure::{Failure, IoContext};
use crate::signals;
use crate::size::parse_size;

/// Serve one node of a cluster until it is told to stop (`samite up` starts these)
///
/// The node takes its key, socket and log from the cluster's directory. SIGTERM, SIGINT and SIGHUP end it in order. SAMITE_LOG sets what is
/// logged, `info` by default.
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  samite node --dir /tmp/samite-1000/default --node 0 --nodes 1 --memory 1G")]
pub struct Args {
    /// The cluster's directory; it must hold the key. Must come first
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Number of this node, from 0; node 0 keeps the cluster map
    #[arg(long, value_name = "N")]
    node: u32,
    /// Nodes in the cluster
    #[arg(long, value_name = "N")]
    nodes: u32,
    /// Memory for records
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: u64,
    /// Shard threads
    #[arg(long, value_name = "N", default_value_t = 1)]
    shards: u16,
    /// Partitions of the cluster; chosen by the number of nodes unless given
    #[arg(long, value_name = "P")]
    partitions: Option<u32>,
    /// Listen on tcp at this address too; port 0 takes a free one
    #[arg(long, value_name = "HOST:PORT")]
    tcp: Option<String>,
    /// Keep durable datasets in this directory, which is this node's alone; made if it is not there
    #[arg(long, value_name = "DIR")]
    durable: Option<PathBuf>,
}

/// Serves.
pub fn run(args: Args, target: &Target) -> Result<(), Failure> {
    let dir = cluster_dir(&args, target)?;
    let node = NodeId(args.node);
    let stop = Stop::new();
    let stopping = stop.clone();
    signals::on_stop(move || stopping.stop())?;
    // The kernel cuts it to 15 bytes; without it `ps` shows all nodes alike.
    let title = format!("samite {node} {}", dir.name());
    let title = std::ffi::CString::new(title).unwrap_or_default();
    rustix::thread::set_name(&title).doing("name the process")?;
    log_to(&dir, node)?;
    let config = NodeConfig {
        node,
        cluster: dir.name().to_owned(),
        socket: dir.socket_path(node)?,
        tcp: args.tcp,
        fault_log: Some(dir.fault_log_path(node)),
        key: dir.read_key()?,
        memory_bytes: args.memory,
        shards: args.shards,
        coordinator: if node == NodeId(0) {
            let own = InstanceConfig {
                expected: args.nodes as usize,
                partitions: args.partitions,
                // Without what says which datasets there are, what is in them is of no use.
                store: args.durable.as_ref().map_or(StoreConfig::Memory, |durable| {
                    StoreConfig::File(durable.join("coordinator"))
                }),
            };
            CoordinatorConfig { own: Some(own), others: Vec::new() }
        } else {
            CoordinatorConfig::at(format!("unix://{}", dir.socket_path(NodeId(0))?.display()))
        },
        timing: Timing::DEFAULT,
        flash: args.durable.map(FlashConfig::at),
    };
    let mut on_event = |event: Event| match event {
        Event::Listening { addresses } => {
            tracing::info!(%node, addresses = addresses.join(" "), "listening");
        }
        Event::Serving { epoch } => tracing::info!(%node, %epoch, "serving"),
    };
    samite_node::run(config, &mut on_event, &stop).map_err(|error| {
        tracing::error!(%node, %error, "node failed");
        Failure::from(error)
    })?;
    tracing::info!(%node, "stopped");
    Ok(())
}

/// The directory given by path; its last component is the cluster's name.
fn cluster_dir(args: &Args, target: &Target) -> Result<ClusterDir, Failure> {
    let name = args.dir.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let parent = args.dir.parent().unwrap_or_else(|| target.runtime.path());
    let dir = samite_client::runtime::RuntimeDir::at(parent).and_then(|base| base.cluster(name));
    let dir = dir.map_err(|error| Failure::usage(format!("--dir: {error}")))?;
    dir.check()?;
    Ok(dir)
}

fn log_to(dir: &ClusterDir, node: NodeId) -> Result<(), Failure> {
    let path = dir.log_path(node);
    let file = File::options()
        .append(true)
        .create(true)
        .open(&path)
        .doing(format_args!("open {}", path.display()))?;
    let filter = EnvFilter::try_from_env("SAMITE_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_writer(Mutex::new(file))
        .with_ansi(false)
        .with_env_filter(filter)
        .init();
    Ok(())
}
