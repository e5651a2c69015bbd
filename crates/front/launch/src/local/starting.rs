//! A cluster on this host, from its plan to the moment at which it serves.

use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use samite_client::runtime::{
    ClusterDir, ClusterFile, ClusterSetup, EtcdTlsFiles, LocalProcess, NodeEntry, VoterEntry,
};
use samite_client::{Client, ClusterKeys};
use samite_fs::{CallerContext, FileSystem};
use samite_node::MetricsAddress;
use samite_types::{Error, ErrorKind, NodeId, Redundancy, Result};
use samite_wire::control::{BackendSpec, DatasetSpec, DurabilityKind, ReadsKind};

use super::{spawn, sweep};
use crate::cluster_record::{ClusterRecord, CoordinatorLocation};
use crate::directories::private_dir;
use crate::io_context::{SystemContext as _, failed};
use crate::{aside, connect, etcd_members, process};

/// Members of an etcd that is started along.
const ETCD_MEMBERS: usize = 3;
/// Most nodes with a coordinator instance.
const COORDINATORS_MAX: u32 = 3;
/// How long a step of the start may take before it is asked again whether the nodes still live.
const STEP_TIMEOUT: Duration = Duration::from_secs(2);
/// How much of a node's log is shown when it fails.
const LOG_TAIL_LINES: usize = 15;

/// How a cluster on this host is to be.
#[derive(Clone, Debug)]
pub struct LocalPlan {
    /// Nodes, at least 1.
    pub nodes: u32,
    /// Bytes for records, each node.
    pub memory_bytes: u64,
    /// Shard threads of each node.
    pub shards: u16,
    /// Partitions of the cluster; chosen by the number of nodes when `None`.
    pub partitions: Option<u32>,
    /// Directory of durable datasets, made if it is not there.
    pub durable: Option<PathBuf>,
    /// Nodes look for damage once in this time; zero: never.
    pub scrub_interval: Option<Duration>,
    /// Redundancy of datasets that are made without another one.
    pub redundancy: Redundancy,
    /// The members that answer their reads.
    pub reads: ReadsKind,
    /// Where the cluster map is kept; `None`: where it was, or by the number of nodes.
    pub coordinator: Option<CoordinatorChoice>,
    /// Certificates for an etcd by https.
    pub etcd_tls: Option<EtcdTlsFiles>,
    /// Whether nodes listen on tcp (127.0.0.1).
    pub tcp: bool,
    /// Whether they take TLS there, and nothing else.
    pub tls: bool,
    /// Absolute path of a socket where the first node gives tickets to all users of the host.
    pub ticket_socket: Option<PathBuf>,
    /// Absolute paths of the certificate that they show, and of its key.
    pub tls_files: Option<(PathBuf, PathBuf)>,
    /// The dataset of the files: the cluster serves when they can be read.
    pub files_dataset: &'static str,
    /// Datasets that are made durable, beside that, where there are durable ones.
    pub datasets: &'static [&'static str],
    /// Where all of them are kept, when they are made.
    pub backend: BackendSpec,
    /// Where nodes serve their metrics; see [`MetricsAddress::of_node`].
    pub metrics: Option<MetricsAddress>,
    /// How long each request to the nodes may take, in place of 2 s.
    pub request_timeout: Option<Duration>,
}

/// Where the cluster map is to be kept.
#[derive(Clone, Debug)]
pub enum CoordinatorChoice {
    /// In the first node.
    Embedded,
    /// Among several nodes.
    Replicated,
    /// In an etcd that is started along.
    LocalEtcd,
    /// In the etcd with these endpoints.
    EtcdAt(Vec<String>),
}

impl CoordinatorChoice {
    /// The same without endpoints.
    #[must_use]
    pub const fn location(&self) -> CoordinatorLocation {
        match self {
            Self::Embedded => CoordinatorLocation::Embedded,
            Self::Replicated => CoordinatorLocation::Replicated,
            Self::LocalEtcd => CoordinatorLocation::LocalEtcd,
            Self::EtcdAt(_) => CoordinatorLocation::Etcd,
        }
    }
}

impl LocalPlan {
    /// Where the cluster map is to be kept; `None`: no choice was made.
    fn location(&self) -> Option<CoordinatorLocation> {
        self.coordinator.as_ref().map(CoordinatorChoice::location)
    }

    /// The same for a cluster that begins.
    fn fresh_location(&self) -> CoordinatorLocation {
        let usual = if self.nodes == 1 {
            CoordinatorLocation::Embedded
        } else {
            CoordinatorLocation::Replicated
        };
        self.location().unwrap_or(usual)
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

/// The nodes of a cluster that is not up yet. Dropped before it [serves](Self::serves), it leaves
/// nothing behind.
#[derive(Debug)]
pub struct StartingCluster<'a> {
    dir: &'a ClusterDir,
    plan: LocalPlan,
    children: Vec<(NodeId, Child)>,
    /// The third voter.
    third: Option<Child>,
    etcd: Vec<(String, Child)>,
    setup: ClusterSetup,
    kept: ClusterRecord,
    /// The directories that nodes kept, and where they are now.
    asides: Vec<(NodeId, PathBuf)>,
    /// Nothing is to be ended or removed any more.
    is_settled: bool,
}

impl Drop for StartingCluster<'_> {
    fn drop(&mut self) {
        // Who wants to know has called it.
        let _ = self.give_up();
    }
}

impl<'a> StartingCluster<'a> {
    /// A cluster at `dir`, which is [claimed](super::claim()). Nothing is done yet.
    #[must_use]
    pub fn new(dir: &'a ClusterDir, plan: LocalPlan) -> Self {
        let kept = ClusterRecord::fresh(dir.name(), plan.fresh_location());
        Self {
            dir,
            plan,
            children: Vec::new(),
            third: None,
            etcd: Vec::new(),
            setup: ClusterSetup::default(),
            kept,
            asides: Vec::new(),
            is_settled: false,
        }
    }

    /// Ends what was started, and removes the files of the cluster, unless it serves.
    ///
    /// # Errors
    /// Files cannot be removed.
    pub fn give_up(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.is_settled, true) {
            return Ok(());
        }
        let nodes = self.children.iter_mut().map(|(_, child)| child).chain(&mut self.third);
        for child in nodes.chain(self.etcd.iter_mut().map(|(_, child)| child)) {
            // Both fail only when it has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
        sweep(self.dir)
    }

    /// Finds out how the cluster is to be: as it was, if it is kept.
    ///
    /// # Errors
    /// `Conflict`: the directory of durable datasets is another cluster's, or its map is kept
    /// elsewhere; `NotFound`: the data of a member of etcd are gone; `Io`.
    pub fn set_up(&mut self) -> Result<()> {
        let durable = self.durable_dir()?;
        if let Some(durable) = &durable
            && let Some(kept) = ClusterRecord::read(durable, self.dir.name(), self.plan.location())?
        {
            self.kept = kept;
        }
        let etcd = match &self.plan.coordinator {
            None | Some(CoordinatorChoice::Embedded | CoordinatorChoice::Replicated) => Vec::new(),
            Some(CoordinatorChoice::LocalEtcd) => {
                match &durable {
                    Some(durable) => self.kept.etcd(durable, self.dir, ETCD_MEMBERS)?,
                    None => self.kept.etcd_members = etcd_members::plan(self.dir, ETCD_MEMBERS)?,
                }
                let members = self.kept.etcd_members.iter();
                members.map(|member| etcd_members::url(self.dir, member)).collect()
            }
            Some(CoordinatorChoice::EtcdAt(urls)) => urls.clone(),
        };
        if self.kept.keeper == CoordinatorLocation::Replicated && self.kept.voters == 0 {
            self.kept.voters = voters(self.plan.nodes);
        }
        if let Some(durable) = &durable {
            self.kept.write(durable)?;
        }
        let coordinators = match self.kept.keeper {
            CoordinatorLocation::Embedded => 1,
            CoordinatorLocation::Replicated => self.kept.voters,
            CoordinatorLocation::LocalEtcd | CoordinatorLocation::Etcd => {
                self.plan.nodes.min(COORDINATORS_MAX)
            }
        };
        let needs_third =
            self.kept.keeper == CoordinatorLocation::Replicated && self.kept.voters == 2;
        let plan = &self.plan;
        self.setup = ClusterSetup {
            redundancy: plan.redundancy,
            reads: plan.reads,
            founders: plan.nodes,
            memory_bytes: plan.memory_bytes,
            shards: plan.shards,
            partitions: plan.partitions,
            tcp: plan.tcp,
            tls: plan.tls,
            tls_files: plan.tls_files.clone(),
            durable,
            scrub_interval_us: plan.scrub_interval.map(|time| time.as_micros() as u64),
            ticket_socket: plan.ticket_socket.clone(),
            metrics: plan.metrics.as_ref().map(MetricsAddress::to_string),
            coordinators,
            coordinator_urls: Vec::new(),
            third_voter: needs_third.then(VoterEntry::default),
            etcd,
            etcd_tls: plan.etcd_tls.clone(),
            etcd_members: self.kept.etcd_members.clone(),
            is_founded: self.kept.is_founded,
        };
        Ok(())
    }

    /// The directory of durable datasets, made if it is not there: nodes run elsewhere, so its path
    /// must not depend on where this is.
    fn durable_dir(&self) -> Result<Option<PathBuf>> {
        let Some(dir) = &self.plan.durable else { return Ok(None) };
        private_dir(dir)?;
        let path = dir.canonicalize();
        path.doing(format_args!("--durable: {}", dir.display())).map(Some)
    }

    /// Sets aside the files that these nodes kept.
    ///
    /// # Errors
    /// `Io`.
    pub fn renew(&mut self, nodes: &[NodeId]) -> Result<()> {
        for node in nodes {
            let durable = self.setup.durable.as_deref().unwrap_or_else(|| Path::new(""));
            let aside = aside::set_aside(durable, *node)?;
            self.asides.extend(aside.map(|aside| (*node, aside)));
        }
        Ok(())
    }

    /// Starts all processes.
    ///
    /// # Errors
    /// `Io`.
    pub fn start(&mut self) -> Result<()> {
        let keys = ClusterKeys::parse(&self.kept.key)
            .map_err(|error| error.context("the record of the durable store"))?;
        self.dir.write_keys(&keys)?;
        let members = self.setup.etcd_members.clone();
        for (entry, planned) in self.setup.etcd_members.iter_mut().zip(&members) {
            let child = spawn::etcd(self.dir, planned, &members)?;
            entry.pid = child.id();
            entry.start_ticks = process::start_ticks(child.id()).unwrap_or_default();
            self.etcd.push((planned.name.clone(), child));
        }
        for number in 0..self.setup.founders {
            let node = NodeId(number);
            self.children.push((node, spawn::node(self.dir, &self.setup, node)?));
        }
        if self.setup.third_voter.is_some() {
            let (child, entry) = spawn::third_voter(self.dir, &self.setup)?;
            (self.third, self.setup.third_voter) = (Some(child), Some(entry));
        }
        Ok(())
    }

    /// Waits until the cluster serves, by `until`, or `interrupted` is set. The description that is
    /// returned is to be written when the cluster [serves](Self::serves).
    ///
    /// # Errors
    /// `Unavailable`: it does not serve in time; `NoSpace`; `Io`: a process has ended, or the wait
    /// was interrupted.
    pub fn wait_until_serving(
        &mut self,
        until: Instant,
        interrupted: &AtomicBool,
    ) -> Result<(ClusterFile, Client)> {
        loop {
            self.check_processes()?;
            if interrupted.load(Ordering::Relaxed) {
                return Err(failed("interrupted".to_owned()));
            }
            match self.try_serving() {
                Ok(up) => return Ok(up),
                // Waiting makes none.
                Err(error) if error.kind() == ErrorKind::NoSpace => return Err(error),
                Err(error) if Instant::now() >= until => {
                    let words = format!("it does not serve in time: {error}");
                    return Err(Error::new(ErrorKind::Unavailable, words));
                }
                Err(_) => {}
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Fails when one of the processes has ended.
    fn check_processes(&mut self) -> Result<()> {
        for (node, child) in &mut self.children {
            if let Some(status) = child.try_wait().doing("wait for a node")? {
                return Err(failed(format!("node {node} ended with {status}")));
            }
        }
        if let Some(child) = &mut self.third
            && let Some(status) = child.try_wait().doing("wait for the third voter")?
        {
            return Err(failed(format!("the third voter ended with {status}")));
        }
        for (name, child) in &mut self.etcd {
            if let Some(status) = child.try_wait().doing("wait for etcd")? {
                return Err(failed(format!("{name} ended with {status}")));
            }
        }
        Ok(())
    }

    /// Serving means: the map is whole, every node answers, and a file system stands.
    fn try_serving(&self) -> Result<(ClusterFile, Client)> {
        let mut nodes = Vec::new();
        for (node, child) in &self.children {
            let start_ticks = process::start_ticks(child.id())
                .ok_or_else(|| Error::new(ErrorKind::Unavailable, format!("{node} has ended")))?;
            let socket = self.dir.socket_path(*node)?;
            if !socket.exists() {
                let message = format!("{node} does not listen yet");
                return Err(Error::new(ErrorKind::Unavailable, message));
            }
            let process = LocalProcess { pid: child.id(), start_ticks, socket };
            nodes.push(NodeEntry::local(*node, process));
        }
        let setup = self.setup.clone();
        let timeout = self.plan.request_timeout.unwrap_or(STEP_TIMEOUT);
        let client = connect(self.dir, &nodes, &setup, Some(timeout))?;
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
            entry.set_addresses(&info.addresses);
        }
        let files = self.plan.files_dataset;
        if setup.durable.is_some() {
            for name in std::iter::once(&files).chain(self.plan.datasets) {
                make_durable(&client, name, &self.plan.backend)?;
            }
        }
        let fs = FileSystem::open(&client, files)?;
        fs.stat(&CallerContext::of_process(0), b"/", true)?;
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let cluster = self.dir.name().to_owned();
        let created_s = since.as_secs();
        Ok((ClusterFile { cluster, nodes, created_s, setup, is_attached: false }, client))
    }

    /// It has come to serve: writes its description, and from now on there is something to be lost.
    ///
    /// # Errors
    /// `Io`.
    pub fn serves(&mut self, file: &mut ClusterFile) -> Result<()> {
        if let Some(durable) = self.setup.durable.as_ref().filter(|_| !self.kept.is_founded) {
            self.kept.is_founded = true;
            self.kept.write(durable)?;
        }
        file.setup.is_founded = true;
        self.dir.write_cluster_file(file)?;
        self.is_settled = true;
        Ok(())
    }

    /// The cluster's directory.
    #[must_use]
    pub const fn dir(&self) -> &ClusterDir {
        self.dir
    }

    /// The directories that nodes kept and that were set aside, and where they are now.
    #[must_use]
    pub fn asides(&self) -> &[(NodeId, PathBuf)] {
        &self.asides
    }

    /// How to restore files that were set aside.
    #[must_use]
    pub fn ways_back(&self) -> String {
        let durable = self.setup.durable.as_deref().unwrap_or_else(|| Path::new(""));
        let ways = self.asides.iter().map(|(node, aside)| (*node, Some(&**aside)));
        ways.map(|(node, aside)| aside::way_back(durable, node, aside)).collect()
    }

    /// The ends of the logs, for the person who has to find out why.
    #[must_use]
    pub fn log_tails(&self) -> String {
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
fn make_durable(client: &Client, name: &str, backend: &BackendSpec) -> Result<()> {
    match client.dataset(name) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let (durability, backend) = (DurabilityKind::Logged, backend.clone());
            let spec = DatasetSpec { durability, backend, ..client.spec(name) };
            client.create_dataset(&spec).map(drop)
        }
        found => found.map(drop),
    }
}
