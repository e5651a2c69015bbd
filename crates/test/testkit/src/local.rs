//! A cluster whose nodes are threads of this process.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use samite_client::runtime::{
    ClusterDir, ClusterFile, ClusterSetup, LocalProcess, NodeEntry, RuntimeDir,
};
use samite_client::{Client, ClusterConfig, ClusterKeys};
use samite_node::{
    ClusterTiming, CoordinatorConfig, FlashConfig, NodeConfig, NodeEvent, SCRUB_INTERVAL,
    StopHandle, StoreConfig, TlsConfig, WorkerConfig, WorkerLimits,
};
use samite_types::{Error, ErrorKind, NodeId, Result, SystemEntropy};

/// How long a node may take to say that it listens, or serves.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// Settings of a [`LocalCluster`].
#[derive(Clone, Debug)]
pub struct LocalOptions {
    /// Name of the cluster.
    pub name: String,
    /// Bytes that each node may hold.
    pub memory_bytes: u64,
    /// Shard threads of each node.
    pub shards: u16,
    /// Whether the nodes listen on tcp (127.0.0.1, a free port).
    pub tcp: bool,
    /// Whether only the first node is on this host, as far as anybody knows.
    pub apart: bool,
    /// Whether they take TLS there, and nothing else.
    pub tls: bool,
    /// Where the (only) node gives out tickets.
    pub ticket_socket: Option<PathBuf>,
    /// Directory of durable datasets, and bytes of a segment of their logs; a cluster that is
    /// started there later has them again.
    pub flash: Option<(PathBuf, u64)>,
    /// How often nodes look for damage by themselves.
    pub scrub_interval: Option<Duration>,
    /// By how many microseconds the wall clocks of the nodes, from the first, are ahead.
    pub clocks_ahead_us: Vec<i64>,
    /// How long things may take.
    pub timing: ClusterTiming,
    /// The program of worker processes (`samite`), and what they may take; `None`: there are none.
    pub workers: Option<(PathBuf, WorkerLimits)>,
}

/// Times for tests in which no node is to be taken for dead, and hardly anything to be sent twice,
/// however slow the machine is. Frames that come to a node before it has the map are dropped, and
/// have to be sent again.
pub const PATIENT: ClusterTiming = ClusterTiming {
    late: Duration::from_secs(60),
    lease: Duration::from_secs(120),
    missed: Duration::from_secs(60),
    retransmit: Duration::from_secs(2),
    ..ClusterTiming::DEFAULT
};

impl Default for LocalOptions {
    /// 64 MiB and one shard for each node, tcp on.
    fn default() -> Self {
        Self {
            name: "test".into(),
            memory_bytes: 64 << 20,
            shards: 1,
            tcp: true,
            apart: false,
            tls: false,
            ticket_socket: None,
            flash: None,
            scrub_interval: Some(SCRUB_INTERVAL),
            clocks_ahead_us: Vec::new(),
            timing: ClusterTiming::DEFAULT,
            workers: None,
        }
    }
}

/// Nodes of one cluster, running as threads. Stopped when dropped.
pub struct LocalCluster {
    options: LocalOptions,
    /// Removes the runtime directory at the end.
    _scratch: tempfile::TempDir,
    runtime: RuntimeDir,
    dir: ClusterDir,
    keys: ClusterKeys,
    nodes: Vec<LocalNode>,
}

/// One node: the thread that runs it, or the rest of it.
struct LocalNode {
    stop: StopHandle,
    thread: Option<JoinHandle<Result<()>>>,
    /// In a mutex so that threads of a test can share the cluster.
    events: Mutex<Receiver<NodeEvent>>,
    addresses: Vec<String>,
}

impl LocalCluster {
    /// Starts `nodes` nodes and waits until the cluster serves.
    ///
    /// # Errors
    /// A node could not start; the message has its own words.
    pub fn start(nodes: usize, options: LocalOptions) -> Result<Self> {
        let scratch = tempfile::Builder::new().prefix("samite-test-").tempdir_in("/tmp");
        let scratch = scratch
            .map_err(|error| Error::new(ErrorKind::Io, format!("temporary directory: {error}")))?;
        let runtime = RuntimeDir::at(scratch.path().join("run"))?;
        runtime.create()?;
        let dir = runtime.cluster(&options.name)?;
        dir.create()?;
        let keys = ClusterKeys::generate(&SystemEntropy);
        dir.write_keys(&keys)?;
        let mut cluster =
            Self { options, _scratch: scratch, runtime, dir, keys, nodes: Vec::new() };
        for node in 0..nodes {
            let node = cluster.launch(node_id(node), nodes)?;
            cluster.nodes.push(node);
        }
        for node in &mut cluster.nodes {
            node.wait(|event| matches!(event, NodeEvent::Serving { .. }))?;
        }
        cluster.wait_until_joined()?;
        cluster.write_file()?;
        Ok(cluster)
    }

    /// Waits until the map tells of these nodes: a map that was stored tells of those before them.
    fn wait_until_joined(&self) -> Result<()> {
        if self.options.flash.is_none() {
            return Ok(());
        }
        let start = Instant::now();
        let client = self.client(samite_client::ClientOptions::default())?;
        while start.elapsed() < START_TIMEOUT {
            let map = client.refresh_map()?;
            let mut nodes = self.nodes.iter().zip(0..);
            if nodes.all(|(node, id)| {
                map.node(NodeId(id)).is_some_and(|info| info.addresses == node.addresses)
            }) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Err(Error::new(ErrorKind::Timeout, "not all nodes have joined again"))
    }

    /// Node 0 is the only coordinator.
    fn coordinator(
        &self,
        node: NodeId,
        nodes: usize,
        flash: Option<&FlashConfig>,
    ) -> Result<CoordinatorConfig> {
        if node != NodeId(0) {
            let socket = self.dir.socket_path(NodeId(0))?;
            return Ok(CoordinatorConfig::at(format!("unix://{}", socket.display())));
        }
        let mut coordinator = CoordinatorConfig::embedded(nodes);
        if let (Some(own), Some(flash)) = (&mut coordinator.own, flash) {
            own.store = StoreConfig::File(flash.path.join("coordinator"));
        }
        Ok(coordinator)
    }

    fn launch(&self, node: NodeId, nodes: usize) -> Result<LocalNode> {
        let flash = self.options.flash.as_ref();
        let flash = flash.map(|(dir, segment_len)| FlashConfig {
            path: dir.join(node.to_string()),
            segment_len: *segment_len,
        });
        let coordinator = self.coordinator(node, nodes, flash.as_ref())?;
        let config = NodeConfig {
            fault_log: None,
            host: (self.options.apart && node != NodeId(0)).then(|| format!("host of {node}")),
            rack: String::new(),
            faults: None,
            node,
            cluster: self.options.name.clone(),
            socket: self.dir.socket_path(node)?,
            holds_ports: false,
            listen: self.options.tcp.then(|| "127.0.0.1:0".into()).into_iter().collect(),
            tls: if self.options.tls { TlsConfig::ClusterKey } else { TlsConfig::Off },
            keys: self.dir.read_keys()?,
            key_file: Some(self.dir.key_path()),
            ticket_socket: self.options.ticket_socket.clone(),
            memory_bytes: self.options.memory_bytes,
            clock_ahead_us: self
                .options
                .clocks_ahead_us
                .get(node.get() as usize)
                .copied()
                .unwrap_or(0),
            shards: self.options.shards,
            coordinator,
            timing: self.options.timing,
            scrub_interval: self.options.scrub_interval,
            flash,
            logs: None,
            tells_alive: false,
            workers: self.options.workers.clone().map(|(program, limits)| WorkerConfig {
                program,
                arguments: vec!["--dir".into(), self.dir.path().into()],
                guest_arguments: None,
                log_dir: self.dir.path().into(),
                limits,
            }),
            metrics: None,
            setup: Vec::new(),
        };
        let stop = StopHandle::new();
        let (sender, events) = channel();
        let thread = std::thread::Builder::new().name(format!("node {node}")).spawn({
            let stop = stop.clone();
            // The test may have lost interest in what the node says.
            move || samite_node::run(config, &mut |event| drop(sender.send(event)), &stop)
        });
        let thread = thread.map_err(|error| {
            Error::new(ErrorKind::Io, format!("start a thread for node {node}: {error}"))
        })?;
        let mut node = LocalNode {
            stop,
            thread: Some(thread),
            events: Mutex::new(events),
            addresses: Vec::new(),
        };
        node.wait(|event| matches!(event, NodeEvent::Listening { .. }))?;
        Ok(node)
    }

    fn write_file(&self) -> Result<()> {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let nodes = self.nodes.iter().enumerate().map(|(index, node)| {
            let node_id = node_id(index);
            let mut entry = NodeEntry::local(
                node_id,
                LocalProcess {
                    pid: std::process::id(),
                    start_ticks: own_start_ticks().unwrap_or(0),
                    socket: self.dir.socket_path(node_id)?,
                },
            );
            entry.set_addresses(&node.addresses);
            Ok(entry)
        });
        let file = ClusterFile {
            cluster: self.options.name.clone(),
            nodes: nodes.collect::<Result<_>>()?,
            created_s: created.as_secs(),
            setup: ClusterSetup::default(),
            is_attached: false,
        };
        self.dir.write_cluster_file(&file)
    }

    /// The runtime directory in which the cluster's file lies.
    #[must_use]
    pub const fn runtime(&self) -> &RuntimeDir {
        &self.runtime
    }

    /// Where that directory is: the value of `SAMITE_RUNTIME_DIR` that leads to this cluster.
    #[must_use]
    pub fn runtime_path(&self) -> &Path {
        self.runtime.path()
    }

    /// Name of the cluster.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.options.name
    }

    /// The cluster key.
    #[must_use]
    pub const fn key(&self) -> &[u8; 32] {
        self.keys.current().as_bytes()
    }

    /// Addresses of a node as URLs: shm, unix, and tcp if it listens there.
    ///
    /// # Panics
    /// There is no such node.
    #[must_use]
    pub fn addresses(&self, node: NodeId) -> &[String] {
        &self.nodes[node.get() as usize].addresses
    }

    /// Configuration with which a client reaches the cluster.
    #[must_use]
    pub fn config(&self) -> ClusterConfig {
        ClusterConfig {
            cluster: self.options.name.clone(),
            addresses: self.nodes.iter().flat_map(|node| node.addresses.clone()).collect(),
            credential: self.keys.current().into(),
            home: None,
        }
    }

    /// A client of the cluster.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn client(&self, options: samite_client::ClientOptions) -> Result<Client> {
        Client::connect(&self.config(), options)
    }

    /// Stops one node and waits for its end; its records are gone. Clients see their connections closed, as after a crash.
    ///
    /// # Errors
    /// The node ended with an error.
    pub fn stop_node(&mut self, node: NodeId) -> Result<()> {
        match self.nodes.get_mut(node.get() as usize) {
            Some(node) => node.end(),
            None => Err(Error::new(ErrorKind::NotFound, format!("stop {node}: no such node"))),
        }
    }

    /// Starts a node that was stopped, empty.
    ///
    /// # Errors
    /// It could not start.
    pub fn restart_node(&mut self, node: NodeId) -> Result<()> {
        self.stop_node(node)?;
        let mut fresh = self.launch(node, self.nodes.len())?;
        fresh.wait(|event| matches!(event, NodeEvent::Serving { .. }))?;
        self.nodes[node.get() as usize] = fresh;
        self.write_file()
    }

    /// Stops all nodes.
    ///
    /// # Errors
    /// The first error with which one ended.
    pub fn stop(&mut self) -> Result<()> {
        // All at once first, so that none is left looking for the others.
        for node in &self.nodes {
            node.stop.stop();
        }
        self.nodes.iter_mut().map(LocalNode::end).fold(Ok(()), Result::and)
    }
}

impl Drop for LocalCluster {
    fn drop(&mut self) {
        if let Err(error) = self.stop()
            && !std::thread::panicking()
        {
            panic!("a node ended with an error: {error}");
        }
    }
}

impl LocalNode {
    /// Waits for an event. Addresses that it tells are remembered.
    fn wait(&mut self, is_it: impl Fn(&NodeEvent) -> bool) -> Result<()> {
        loop {
            let events = self.events.get_mut().unwrap_or_else(PoisonError::into_inner);
            match events.recv_timeout(START_TIMEOUT) {
                Ok(event) => {
                    if let NodeEvent::Listening { addresses } = &event {
                        self.addresses.clone_from(addresses);
                    }
                    if is_it(&event) {
                        return Ok(());
                    }
                }
                Err(_) => {
                    self.end()?;
                    return Err(Error::new(ErrorKind::Timeout, "a node did not come up"));
                }
            }
        }
    }

    fn end(&mut self) -> Result<()> {
        self.stop.stop();
        let Some(thread) = self.thread.take() else { return Ok(()) };
        thread
            .join()
            .unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "a node's thread panicked")))
    }
}

fn node_id(index: usize) -> NodeId {
    NodeId(u32::try_from(index).expect("few nodes"))
}

/// Field 22 of `/proc/self/stat`.
fn own_start_ticks() -> Option<u64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let after_name = stat.rsplit_once(')')?.1;
    after_name.split_whitespace().nth(19)?.parse().ok()
}
