//! `samite up`: start a local cluster.

use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use samite_client::Client;
use samite_client::runtime::{
    ClusterDir, ClusterFile, ClusterSetup, EtcdTlsFiles, NodeEntry, VoterEntry,
};
use samite_fs::{CallerContext, FileSystem};
use samite_node::etcd;
use samite_types::fault::parse_time;
use samite_types::{NodeId, Redundancy};
use samite_wire::control::{DatasetSpec, DurabilityKind, ReadsKind};

use crate::cluster::{ClusterTarget, FILES_DATASET};
use crate::commands::dataset::parse_reads;
use crate::commands::{kv, node::parse_node, object};
use crate::failure::{CommandFailure, ExitCode, IoContext};
use crate::local::cluster_record::{self, ClusterRecord, CoordinatorLocation};
use crate::local::{self, aside, launch, memory, process, tls};
use crate::output::{CommandOutput, human_bytes};
use crate::signals;
use crate::size::parse_size;

/// Most nodes of a local cluster.
const NODES_MAX: u32 = 64;
/// Members of an etcd that is started along.
const ETCD_MEMBERS: usize = 3;
/// How long an etcd that is said to be there is waited for.
const ETCD_TIMEOUT: Duration = Duration::from_secs(5);
/// Most nodes with a coordinator instance.
const COORDINATORS_MAX: u32 = 3;
/// How long another `up` or `down` of the same cluster is waited for.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
/// How long nodes that are just ending are waited for before the cluster counts as up.
const END_TIMEOUT: Duration = Duration::from_millis(300);
/// How long a step of the start may take before it is asked again whether the nodes still live.
const STEP_TIMEOUT: Duration = Duration::from_secs(2);
/// How much of a node's log is shown when it fails.
const LOG_TAIL_LINES: usize = 15;

/// Start a store on this machine
///
/// Starts N node processes, waits until the store serves, and prints what came up. The nodes stay until `samite down`. Several
/// clusters can be up side by side under different names.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  samite up --local 2
  samite up --local 4 --memory 512M --name scratch
  samite up --local 3 --mirror 2 --coordinator etcd
  samite up --local 2 --durable /flash/job
  samite up --local 2 --tls")]
pub struct UpArgs {
    /// Nodes to start on this machine
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(NODES_MAX)))]
    local: u32,
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
    coordinator: Option<CoordinatorKind>,
    #[command(flatten)]
    etcd_tls: tls::EtcdTlsArgs,
    /// Do not listen on tcp (127.0.0.1)
    #[arg(long)]
    no_tcp: bool,
    #[command(flatten)]
    tls: tls::TlsArgs,
    /// Seconds to wait for the store to serve
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    wait: u64,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// Where the cluster map is kept.
#[derive(Clone, Debug)]
enum CoordinatorKind {
    Embedded,
    Replicated,
    LocalEtcd,
    EtcdAt(Vec<String>),
}

fn parse_coordinator(text: &str) -> Result<CoordinatorKind, String> {
    match text {
        "embedded" => Ok(CoordinatorKind::Embedded),
        "replicated" => Ok(CoordinatorKind::Replicated),
        "etcd" => Ok(CoordinatorKind::LocalEtcd),
        urls if urls.split(',').all(is_url) => {
            Ok(CoordinatorKind::EtcdAt(urls.split(',').map(str::to_owned).collect()))
        }
        _ => Err("expected embedded, replicated, etcd, or http(s)://HOST:PORT,…".to_owned()),
    }
}

fn is_url(text: &str) -> bool {
    text.starts_with("http://") || text.starts_with("https://")
}

/// Starts the cluster.
pub fn run(args: &UpArgs, target: &ClusterTarget) -> Result<(), CommandFailure> {
    let begun = Instant::now();
    let room = memory::MemoryRoom::read();
    let memory = memory::of_node(args.memory, u64::from(args.local), room.as_ref())?;
    if u32::from(args.mirror) > args.local {
        let words = format!("--mirror {}: there are only {} nodes", args.mirror, args.local);
        return Err(CommandFailure::usage(words));
    }
    if let Some(node) = args.renew.iter().find(|node| node.get() >= args.local) {
        let words = format!("--renew {node}: there are only {} nodes", args.local);
        return Err(CommandFailure::usage(words));
    }
    if args.local == 1 && args.keeper() == Some(CoordinatorLocation::Replicated) {
        let words = "--coordinator replicated: one node alone has nobody to keep it with";
        return Err(CommandFailure::usage(words));
    }
    let tls = args.tls.read()?;
    let etcd_tls = etcd_tls(args)?;
    let dir = &target.dir;
    // Fails early when the path is too long.
    dir.socket_path(NodeId(args.local - 1))?;
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&interrupted);
    signals::on_stop(move || flag.store(true, Ordering::Relaxed))?;
    target.runtime.create()?;
    let _lock = claim(dir)?;
    if let Some(pem) = &tls.authorities {
        dir.write_authorities(pem)?;
    }
    let (children, etcd) = (Vec::new(), Vec::new());
    let (setup, kept) =
        (ClusterSetup::default(), ClusterRecord::fresh(dir.name(), args.fresh_keeper()));
    // From here on, remains are removed if it does not come to serve.
    let asides = Vec::new();
    let third = None;
    let mut nodes =
        StartingCluster { dir, children, third, etcd, setup, kept, asides, serves: false };
    nodes.setup = nodes.set_up(args, memory, tls)?;
    nodes.setup.etcd_tls = etcd_tls;
    let until = begun + Duration::from_secs(args.wait);
    let started = nodes
        .renew(&args.renew)
        .and_then(|()| nodes.start())
        .and_then(|()| nodes.wait_until_serving(target, until, &interrupted));
    match started {
        Ok((mut file, client)) => {
            nodes.founded()?;
            file.setup.is_founded = true;
            dir.write_cluster_file(&file)?;
            nodes.serves = true;
            let asides = std::mem::take(&mut nodes.asides);
            report((args, &asides), &file, &client, memory, begun.elapsed())
        }
        Err(failure) => {
            let (tails, ways) = (nodes.log_tails(), nodes.ways_back());
            let message =
                format!("cluster {}: not started: {}{ways}{tails}", dir.name(), failure.message);
            Err(CommandFailure::new(failure.code, message))
        }
    }
}

impl UpArgs {
    /// Where the cluster map is to be kept; `None`: no choice was made.
    fn keeper(&self) -> Option<CoordinatorLocation> {
        self.coordinator.as_ref().map(|kind| match kind {
            CoordinatorKind::Embedded => CoordinatorLocation::Embedded,
            CoordinatorKind::Replicated => CoordinatorLocation::Replicated,
            CoordinatorKind::LocalEtcd => CoordinatorLocation::LocalEtcd,
            CoordinatorKind::EtcdAt(_) => CoordinatorLocation::Etcd,
        })
    }

    /// The same for a cluster that begins.
    fn fresh_keeper(&self) -> CoordinatorLocation {
        let usual = if self.local == 1 {
            CoordinatorLocation::Embedded
        } else {
            CoordinatorLocation::Replicated
        };
        self.keeper().unwrap_or(usual)
    }
}

/// Nodes with a voter, of so many: most voters have to live. Two get a third one beside them.
const fn voters(nodes: u32) -> u32 {
    match nodes {
        0..3 => nodes,
        3..5 => 3,
        5.. => 5,
    }
}

/// The directory of durable datasets, made if it is not there: nodes run elsewhere, so its path must not depend on where this is.
fn durable_dir(args: &UpArgs) -> Result<Option<PathBuf>, CommandFailure> {
    let Some(dir) = &args.durable else { return Ok(None) };
    launch::private_dir(dir)?;
    let path = dir.canonicalize();
    path.doing(format_args!("--durable: {}", dir.display())).map(Some)
}

/// The files for an etcd that is there. Whether it and this side trust each other is found out before anything is started.
fn etcd_tls(args: &UpArgs) -> Result<Option<EtcdTlsFiles>, CommandFailure> {
    let (files, tls) = args.etcd_tls.read()?.unzip();
    match &args.coordinator {
        Some(CoordinatorKind::EtcdAt(urls)) => {
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

/// Makes the cluster's directory ours: refuses a living cluster, clears away a dead one.
fn claim(dir: &ClusterDir) -> Result<local::ClusterLock, CommandFailure> {
    loop {
        dir.create()?;
        let Some(lock) = local::lock(dir, LOCK_TIMEOUT)? else { continue };
        let living = local::living_nodes(dir);
        let is_up = dir.cluster_file_path().exists();
        // A process that has just been killed is not gone at once.
        if is_up && !local::wait_all(&living, END_TIMEOUT) {
            let pids: Vec<String> = living.iter().map(|node| node.pid().to_string()).collect();
            return Err(CommandFailure::new(
                ExitCode::Conflict,
                format!(
                    "cluster {name}: up already (processes {}); `samite down --name {name}` ends it, \
                     another --name starts a second one",
                    pids.join(", "),
                    name = dir.name(),
                ),
            ));
        }
        // Processes of an `up` that was killed half-way serve nobody, and neither does a voter alone.
        local::stop_all(&living)?;
        local::stop_all(local::living_voter(dir).as_slice())?;
        local::stop_all(&local::living_etcd(dir))?;
        if std::fs::read_dir(dir.path()).is_ok_and(|mut entries| entries.next().is_none()) {
            return Ok(lock);
        }
        local::sweep(dir)?;
        // Sweeping removed the directory and with it the runtime directory, if this was the only cluster.
        if let Some(parent) = dir.path().parent() {
            samite_client::runtime::RuntimeDir::at(parent)?.create()?;
        }
    }
}

/// The nodes of a cluster that is not up yet. Dropped before it serves, it leaves nothing behind.
struct StartingCluster<'a> {
    dir: &'a ClusterDir,
    children: Vec<(NodeId, Child)>,
    /// The third voter.
    third: Option<Child>,
    etcd: Vec<(String, Child)>,
    setup: ClusterSetup,
    kept: ClusterRecord,
    /// The directories that nodes kept, and where they are now.
    asides: Vec<(NodeId, PathBuf)>,
    serves: bool,
}

impl Drop for StartingCluster<'_> {
    fn drop(&mut self) {
        if self.serves {
            return;
        }
        let nodes = self.children.iter_mut().map(|(_, child)| child).chain(&mut self.third);
        for child in nodes.chain(self.etcd.iter_mut().map(|(_, child)| child)) {
            // Both fail only when it has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
        if let Err(failure) = local::sweep(self.dir) {
            crate::output::complain(&failure.message);
        }
    }
}

impl StartingCluster<'_> {
    /// How the cluster is to be: as it was, if it is kept.
    fn set_up(
        &mut self,
        args: &UpArgs,
        memory_bytes: u64,
        tls: tls::TlsRequest,
    ) -> Result<ClusterSetup, CommandFailure> {
        let durable = durable_dir(args)?;
        if let Some(durable) = &durable
            && let Some(kept) = ClusterRecord::read(durable, self.dir.name(), args.keeper())?
        {
            self.kept = kept;
        }
        let etcd = match &args.coordinator {
            None | Some(CoordinatorKind::Embedded | CoordinatorKind::Replicated) => Vec::new(),
            Some(CoordinatorKind::LocalEtcd) => {
                match &durable {
                    Some(durable) => self.kept.etcd(durable, self.dir, ETCD_MEMBERS)?,
                    None => self.kept.etcd_members = launch::plan_etcd(self.dir, ETCD_MEMBERS)?,
                }
                let members = self.kept.etcd_members.iter();
                members.map(|member| launch::etcd_url(self.dir, member)).collect()
            }
            Some(CoordinatorKind::EtcdAt(urls)) => urls.clone(),
        };
        if self.kept.keeper == CoordinatorLocation::Replicated && self.kept.voters == 0 {
            self.kept.voters = voters(args.local);
        }
        if let Some(durable) = &durable {
            self.kept.write(durable)?;
        }
        let coordinators = match self.kept.keeper {
            CoordinatorLocation::Embedded => 1,
            CoordinatorLocation::Replicated => self.kept.voters,
            CoordinatorLocation::LocalEtcd | CoordinatorLocation::Etcd => {
                args.local.min(COORDINATORS_MAX)
            }
        };
        let needs_third =
            self.kept.keeper == CoordinatorLocation::Replicated && self.kept.voters == 2;
        Ok(ClusterSetup {
            redundancy: Redundancy(args.mirror),
            reads: args.reads,
            founders: args.local,
            memory_bytes,
            shards: args.shards,
            partitions: args.partitions,
            tcp: !args.no_tcp,
            tls: tls.is_on,
            tls_files: tls.files,
            durable,
            scrub_interval_us: args.scrub_interval.map(|time| time.as_micros() as u64),
            coordinators,
            third_voter: needs_third.then(VoterEntry::default),
            etcd,
            etcd_tls: None,
            etcd_members: self.kept.etcd_members.clone(),
            is_founded: self.kept.is_founded,
        })
    }

    /// It has come to serve: from now on there is something to be lost.
    fn founded(&mut self) -> Result<(), CommandFailure> {
        let Some(durable) = self.setup.durable.as_ref().filter(|_| !self.kept.is_founded) else {
            return Ok(());
        };
        self.kept.is_founded = true;
        self.kept.write(durable)
    }

    fn start(&mut self) -> Result<(), CommandFailure> {
        self.dir.write_key(&self.kept.key)?;
        let members = self.setup.etcd_members.clone();
        for (entry, planned) in self.setup.etcd_members.iter_mut().zip(&members) {
            let child = launch::etcd(self.dir, planned, &members)?;
            entry.pid = child.id();
            entry.start_ticks = process::start_ticks(child.id()).unwrap_or_default();
            self.etcd.push((planned.name.clone(), child));
        }
        for number in 0..self.setup.founders {
            let node = NodeId(number);
            self.children.push((node, launch::node(self.dir, &self.setup, node)?));
        }
        if self.setup.third_voter.is_some() {
            let (child, entry) = launch::third_voter(self.dir, &self.setup)?;
            (self.third, self.setup.third_voter) = (Some(child), Some(entry));
        }
        Ok(())
    }

    fn wait_until_serving(
        &mut self,
        target: &ClusterTarget,
        until: Instant,
        interrupted: &AtomicBool,
    ) -> Result<(ClusterFile, Client), CommandFailure> {
        loop {
            for (node, child) in &mut self.children {
                if let Some(status) = child.try_wait().doing("wait for a node")? {
                    return Err(CommandFailure::failed(format!("node {node} ended with {status}")));
                }
            }
            if let Some(child) = &mut self.third
                && let Some(status) = child.try_wait().doing("wait for the third voter")?
            {
                return Err(CommandFailure::failed(format!("the third voter ended with {status}")));
            }
            for (name, child) in &mut self.etcd {
                if let Some(status) = child.try_wait().doing("wait for etcd")? {
                    return Err(CommandFailure::failed(format!("{name} ended with {status}")));
                }
            }
            if interrupted.load(Ordering::Relaxed) {
                return Err(CommandFailure::failed("interrupted"));
            }
            match self.try_serving(target) {
                Ok(up) => return Ok(up),
                // Waiting makes none.
                Err(error) if error.kind() == samite_types::ErrorKind::NoSpace => {
                    return Err(CommandFailure::failed(error.to_string()));
                }
                Err(error) if Instant::now() >= until => {
                    return Err(CommandFailure::new(
                        ExitCode::Unreachable,
                        format!("it does not serve in time: {error}"),
                    ));
                }
                Err(_) => {}
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Serving means: the map is whole, every node answers, and a file system stands.
    fn try_serving(&self, target: &ClusterTarget) -> samite_types::Result<(ClusterFile, Client)> {
        use samite_types::{Error, ErrorKind};
        let mut nodes = Vec::new();
        for (node, child) in &self.children {
            let start_ticks = process::start_ticks(child.id())
                .ok_or_else(|| Error::new(ErrorKind::Unavailable, format!("{node} has ended")))?;
            let socket = self.dir.socket_path(*node)?;
            if !socket.exists() {
                let message = format!("{node} does not listen yet");
                return Err(Error::new(ErrorKind::Unavailable, message));
            }
            nodes.push(NodeEntry { node: *node, pid: child.id(), start_ticks, socket, tcp: None });
        }
        let setup = self.setup.clone();
        let client = target.connect_with(&nodes, Some(STEP_TIMEOUT), &setup)?;
        let map = client.refresh_map()?;
        for entry in &mut nodes {
            let info = map.node(entry.node).ok_or_else(|| {
                let message = format!("{} is not in the cluster map yet", entry.node);
                Error::new(ErrorKind::Unavailable, message)
            })?;
            // A map that was saved tells of the nodes as they were before.
            if client.node_status(entry.node)?.incarnation != info.incarnation {
                let message = format!("{} has not joined yet", entry.node);
                return Err(Error::new(ErrorKind::Unavailable, message));
            }
            entry.tcp = NodeEntry::tcp_of(&info.addresses);
        }
        if setup.durable.is_some() {
            for name in [FILES_DATASET, kv::DATASET, object::DATASET] {
                make_durable(&client, name)?;
            }
        }
        let fs = FileSystem::open(&client, FILES_DATASET)?;
        fs.stat(&CallerContext::of_process(0), b"/", true)?;
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let cluster = self.dir.name().to_owned();
        Ok((ClusterFile { cluster, nodes, created_s: since.as_secs(), setup }, client))
    }

    /// Sets aside the files that these nodes kept.
    fn renew(&mut self, nodes: &[NodeId]) -> Result<(), CommandFailure> {
        for node in nodes {
            let durable = self.setup.durable.as_deref().unwrap_or_else(|| Path::new(""));
            let aside = aside::set_aside(durable, *node)?;
            self.asides.extend(aside.map(|aside| (*node, aside)));
        }
        Ok(())
    }

    /// How to restore files that were set aside.
    fn ways_back(&self) -> String {
        let durable = self.setup.durable.as_deref().unwrap_or_else(|| Path::new(""));
        let ways = self.asides.iter().map(|(node, aside)| (*node, Some(&**aside)));
        ways.map(|(node, aside)| aside::way_back(durable, node, aside)).collect()
    }

    /// The ends of the logs, for the person who has to find out why.
    fn log_tails(&self) -> String {
        let mut tails = String::new();
        let nodes = self.children.iter().map(|(node, _)| node.to_string());
        let third = self.third.iter().map(|_| NodeId::THIRD_VOTER.to_string());
        for name in nodes.chain(third).chain(self.etcd.iter().map(|(name, _)| name.clone())) {
            let path = self.dir.path().join(format!("{name}.log"));
            let text = std::fs::read(&path).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            let lines: Vec<&str> = text.lines().collect();
            let tail = &lines[lines.len().saturating_sub(LOG_TAIL_LINES)..];
            if !tail.is_empty() {
                tails.push_str(&format!("\n--- end of the log of {name}\n{}", tail.join("\n")));
            }
        }
        tails
    }
}

/// Makes a dataset of the views durable, unless it is there.
fn make_durable(client: &Client, name: &str) -> samite_types::Result<()> {
    match client.dataset(name) {
        Err(error) if error.kind() == samite_types::ErrorKind::NotFound => {
            let durability = DurabilityKind::Logged;
            client.create_dataset(&DatasetSpec { durability, ..client.spec(name) }).map(drop)
        }
        found => found.map(drop),
    }
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
        out.line(format!(
            "  {}  pid {}  shm://{}{tcp}",
            node.node,
            node.pid,
            node.socket.display()
        ))?;
    }
    if let Some(line) = cluster_record::keeping(&file.setup) {
        out.line(line)?;
    }
    for (node, aside) in asides {
        out.line(format!("  {node}: what it had is in {}", aside.display()))?;
    }
    let name = if file.cluster == samite_client::runtime::DEFAULT_CLUSTER {
        String::new()
    } else {
        format!(" --name {}", file.cluster)
    };
    out.line(format!("next: samite run{name} -- ls /samite     end: samite down{name}"))?;
    out.finish()
}
