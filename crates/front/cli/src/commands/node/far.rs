//! Nodes of a cluster on several hosts: one more, one again, one less, from any host that has the
//! cluster's key.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use samite_client::Client;
use samite_client::runtime::{ClusterFile, ClusterSetup, NodeEntry};
use samite_launch::hosts::joining::{JoinPlan, JoiningHosts, coordinators};
use samite_launch::hosts::{JoinKind, list};
use samite_launch::local;
use samite_placement::ClusterMap;
use samite_transport::Address;
use samite_transport::host::label_of;
use samite_types::{ErrorKind, NodeId};
use samite_wire::control::{NodeInfo, NodeReachability};
use samite_wire::membership::AdminRequest;

use super::change::LOCK_TIMEOUT;
use crate::cluster::ClusterTarget;
use crate::commands::up::hosts::{LauncherArgs, hosts_in_file};
use crate::failure::{CommandFailure, ExitCode};
use crate::health::loss_words;
use crate::signals;
use crate::size::parse_size;

/// How long a node that was killed may still count as alive.
const SILENT_WITHIN: Duration = Duration::from_secs(3);
/// Between two looks at the cluster map.
const LOOK: Duration = Duration::from_millis(50);

/// The hosts on which nodes are added.
#[derive(clap::Args)]
pub struct AddedHostsArgs {
    /// Start a node on each of these other hosts, of a cluster on several hosts
    #[arg(long, value_name = "HOST,…", value_delimiter = ',')]
    host: Vec<String>,
    /// The same, with the hosts in a file, one on each line
    #[arg(long, value_name = "FILE", conflicts_with = "host")]
    hostfile: Option<PathBuf>,
    /// Memory for records of each of them [default: as the other nodes were given]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<u64>,
    #[command(flatten)]
    far: LauncherArgs,
}

/// The host on which a node is started again.
#[derive(clap::Args)]
pub struct RestartHostArgs {
    /// The host that it is on, or is to be on now, if it is another than this one
    #[arg(long, value_name = "HOST", conflicts_with = "renew")]
    host: Option<String>,
    #[command(flatten)]
    far: LauncherArgs,
}

impl AddedHostsArgs {
    /// The hosts; none: one more node on this machine.
    pub fn hosts(&self) -> Result<Vec<String>, CommandFailure> {
        if let Some(path) = &self.hostfile {
            return hosts_in_file(path);
        }
        if self.host.is_empty() {
            return match self.memory {
                Some(_) => {
                    Err(CommandFailure::usage("--memory: for nodes on other hosts (--host)"))
                }
                None => Ok(Vec::new()),
            };
        }
        let names = list::check(self.host.iter().map(String::as_str));
        names.map_err(|error| CommandFailure::usage(format!("--host: {error}")))
    }
}

impl RestartHostArgs {
    /// The host; `None`: this one.
    pub fn host(&self) -> Result<Option<String>, CommandFailure> {
        let Some(host) = &self.host else { return Ok(None) };
        let names = list::check(std::iter::once(host.as_str()));
        let names = names.map_err(|error| CommandFailure::usage(format!("--host: {error}")))?;
        Ok(names.into_iter().next())
    }
}

/// A client of the cluster, its description on this host, and its map.
struct JoinedCluster {
    file: ClusterFile,
    client: Client,
    map: Arc<ClusterMap>,
}

impl JoinedCluster {
    fn connect(target: &ClusterTarget) -> Result<Self, CommandFailure> {
        let file = target.cluster_file()?;
        let client = target.connect_with(&file.nodes, None, &file.setup)?;
        let map = client.refresh_map()?;
        Ok(Self { file, client, map })
    }

    fn plan(
        &self,
        target: &ClusterTarget,
        (hosts, kind): (Vec<(String, NodeId)>, JoinKind),
        (launcher, port): (&LauncherArgs, Option<u16>),
    ) -> Result<JoinPlan, CommandFailure> {
        let keys = target.dir.read_keys().map_err(|error| match error.kind() {
            ErrorKind::NotFound => CommandFailure::new(
                ExitCode::Failed,
                "a node needs the cluster's key, and this user has none",
            ),
            _ => error.into(),
        })?;
        Ok(JoinPlan {
            cluster: target.dir.name().to_owned(),
            keys: keys.to_bytes(),
            hosts,
            launcher: launcher.launcher()?,
            program: launcher.program()?,
            port,
            kind,
            others: self.map.nodes().iter().filter_map(network_host).collect(),
            coordinators: coordinators(&self.file.setup, &self.map).map_err(|error| {
                let words = format!("cluster {}: {error}", self.file.cluster);
                CommandFailure::new(ExitCode::Conflict, words)
            })?,
            setup: self.file.setup.clone(),
        })
    }
}

/// The place at which a node is reached from other hosts.
fn network_place(info: &NodeInfo) -> Option<(String, u16)> {
    info.addresses.iter().find_map(|url| match url.parse() {
        Ok(Address::Tcp(host, port) | Address::Tls(host, port)) => Some((host, port)),
        _ => None,
    })
}

fn network_host(info: &NodeInfo) -> Option<String> {
    network_place(info).map(|(host, _)| host)
}

fn on_stop() -> Result<Arc<AtomicBool>, CommandFailure> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&interrupted);
    signals::on_stop(move || flag.store(true, Ordering::Relaxed))?;
    Ok(interrupted)
}

/// Starts one more node on each of these hosts.
pub fn add(
    args: &AddedHostsArgs,
    hosts: Vec<String>,
    target: &ClusterTarget,
    wait: u64,
) -> Result<String, CommandFailure> {
    let until = Instant::now() + Duration::from_secs(wait);
    let mut cluster = JoinedCluster::connect(target)?;
    if let Some(memory) = args.memory {
        cluster.file.setup.memory_bytes = memory;
    }
    let last = cluster.map.nodes().iter().map(|info| info.node.get()).max().unwrap_or(0);
    let numbered = hosts.into_iter().zip(last + 1..);
    let numbered: Vec<_> = numbered.map(|(host, number)| (host, NodeId(number))).collect();
    let nodes: Vec<NodeId> = numbered.iter().map(|(_, node)| *node).collect();
    let plan = cluster.plan(target, (numbered, JoinKind::Added), (&args.far, args.far.port()))?;
    let interrupted = on_stop()?;
    let mut joining = JoiningHosts::new(plan);
    let joined = bring_in(&mut joining, &cluster, &nodes, (until, &interrupted));
    let joined = joined.map_err(|failure| {
        let late = joining.undo(&cluster.client);
        let mut words = format!("cluster {}: nothing added: {failure}", cluster.file.cluster);
        if !late.is_empty() {
            words.push_str(&format!("; perhaps something is left on {}", late.join(", ")));
        }
        CommandFailure::new(failure.code, words)
    })?;
    update(target, &cluster.client)?;
    let name = &cluster.file.cluster;
    let lines = joined.iter().map(|info| format!("cluster {name}: {} is here", on_host(info)));
    Ok(lines.collect::<Vec<_>>().join("\n"))
}

/// Starts the nodes, which get their share when their hosts have said that they keep them: what
/// ends before that has held nothing.
fn bring_in(
    joining: &mut JoiningHosts,
    cluster: &JoinedCluster,
    nodes: &[NodeId],
    (until, interrupted): (Instant, &AtomicBool),
) -> Result<Vec<NodeInfo>, CommandFailure> {
    joining.ask(&cluster.map, until, interrupted)?;
    for node in nodes {
        cluster.client.admin_request(*node, AdminRequest::Invite)?;
    }
    joining.start(until, interrupted)?;
    let joined = joining.wait_joined(&cluster.client, until, interrupted)?;
    joining.keep(interrupted)?;
    for node in nodes {
        cluster.client.admin_request(*node, AdminRequest::Undrain)?;
    }
    Ok(joined)
}

fn on_host(info: &NodeInfo) -> String {
    let at =
        network_place(info).map_or_else(String::new, |(host, port)| format!(" ({host}:{port})"));
    format!("{} on {}{at}", info.node, label_of(&info.host))
}

/// Brings the description on this host up to date, if no node here does.
fn update(target: &ClusterTarget, client: &Client) -> Result<(), CommandFailure> {
    let _lock = local::lock(&target.dir, LOCK_TIMEOUT)?;
    update_locked(target, client)
}

/// The same, for who holds the lock of the directory.
pub fn update_locked(target: &ClusterTarget, client: &Client) -> Result<(), CommandFailure> {
    let Ok(file) = target.dir.read_cluster_file() else { return Ok(()) };
    if !file.is_attached {
        return Ok(());
    }
    let map = client.refresh_map()?;
    let nodes = map.nodes().iter();
    let nodes = nodes.map(|info| NodeEntry::from_map(info, None, label_of(&info.host))).collect();
    Ok(target.dir.write_cluster_file(&ClusterFile { nodes, ..file })?)
}

/// Starts a node again that has died, on `host`.
pub fn restart(
    args: &RestartHostArgs,
    host: String,
    target: &ClusterTarget,
    (node, wait): (NodeId, u64),
) -> Result<String, CommandFailure> {
    let until = Instant::now() + Duration::from_secs(wait);
    let cluster = JoinedCluster::connect(target)?;
    let name = cluster.file.cluster.clone();
    let before = wait_silent(&cluster, node)?;
    // Where others look for it, and firewalls let it through.
    let port = args.far.port().or_else(|| network_place(&before).map(|(_, port)| port));
    let hosts = vec![(host, node)];
    let plan = cluster.plan(target, (hosts, JoinKind::Restarted), (&args.far, port))?;
    let interrupted = on_stop()?;
    let mut joining = JoiningHosts::new(JoinPlan {
        // As much as it held last.
        setup: ClusterSetup {
            memory_bytes: before.targets.first().map_or(0, |target| target.capacity_bytes),
            ..plan.setup.clone()
        },
        ..plan
    });
    joining.ask(&cluster.map, until, &interrupted)?;
    joining.start(until, &interrupted)?;
    // What it has from before may count at once, so it stays from here on.
    joining.keep(&interrupted)?;
    let joined = joining.wait_joined(&cluster.client, until, &interrupted);
    let joined = joined.map_err(|error| {
        let words = format!("cluster {name}: {node} was started, and goes on trying: {error}");
        CommandFailure::new(ExitCode::Unreachable, words)
    })?;
    let losses = cluster.map.losses(&*cluster.client.refresh_map()?);
    update(target, &cluster.client)?;
    let back = joined.first().map_or_else(|| node.to_string(), on_host);
    let mut line = format!("cluster {name}: {back} is back");
    if !losses.is_empty() {
        line.push_str(&format!(
            "\nlost: {}: the memory of the node that died had the only copy; `samite acknowledge-loss` takes note of it",
            loss_words(&losses)
        ));
    }
    Ok(line)
}

/// The node as the map has it, when it is silent.
///
/// # Errors
/// `NotFound`; `Conflict`: it lives.
fn wait_silent(cluster: &JoinedCluster, node: NodeId) -> Result<NodeInfo, CommandFailure> {
    let name = &cluster.file.cluster;
    let until = Instant::now() + SILENT_WITHIN;
    loop {
        let map = cluster.client.refresh_map()?;
        let Some((info, state)) = map.node(node).zip(map.state(node)) else {
            let words = format!("cluster {name}: it has no node {node}");
            return Err(CommandFailure::new(ExitCode::NotFound, words));
        };
        if state.reachability != NodeReachability::Online {
            return Ok(info.clone());
        }
        if Instant::now() >= until {
            let words = format!("cluster {name}: {node} lives, on {}", label_of(&info.host));
            return Err(CommandFailure::new(ExitCode::Conflict, words));
        }
        std::thread::sleep(LOOK);
    }
}
