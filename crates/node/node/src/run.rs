//! Start and end of a node.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};

use samite_arena::layout::SHARDS_MAX;
use samite_backend::{Arena, Backend};
use samite_coordinator::LeaderReachability;
use samite_coordinator::store::{
    EtcdConfig, EtcdStore, FileStore, MemoryStateStore, ReplicatedStore, StateStore, VoterConfig,
};
use samite_log::joined::DirectoryMarks;
use samite_mirror::MirrorTimes;
use samite_transport::host::host_identity;
use samite_transport::server::{EventLoop, Listener, LoopOptions};
use samite_transport::{Address, SharedKeys, TransportKind};
use samite_types::fault::FaultSwitch;
use samite_types::{
    Clock, Entropy, Epoch, Error, ErrorKind, NodeId, Result, ShardId, SystemClock, SystemEntropy,
    TargetId,
};
use samite_wire::control::{BackendSpec, NodeInfo, TargetInfo, incarnation_at};
use samite_wire::membership::LeaderAddress;

use crate::config::{InstanceConfig, NodeConfig, NodeEvent, StoreConfig, TlsConfig};
use crate::durable::{NodeFlash, ShardLog};
use crate::inbox::ShardInbox;
use crate::membership::leader_loop::{self, LeaderLoop};
use crate::membership::map_watch::NodeCredentials;
use crate::membership::vote_sender::VoteSenders;
use crate::membership::{
    CoordinatorAsk, LEADER_QUEUE_LEN, NodeMembership, heartbeat, reports, waiting,
};
use crate::metrics_server::MetricsServer;
use crate::partitions::OpenPartitions;
use crate::robust_word::AliveWord;
use crate::shard::ShardService;
use crate::shared::{NodeNotice, NodeParts, NodeShared, WORKER_QUEUE_LEN, WorkerJob};
use crate::stop::StopHandle;
use crate::targets::{NodeTargets, ShardTargets};
use crate::threads::spawn;
use crate::tickets::TicketOffice;
use crate::{faults, lock_recovery, overseer, worker};

/// Serves as `config` says until `stop` is asked to, or a client sends a shutdown. Blocks; sends
/// the replies under way before it returns. `events` is told, on this thread, how far the node has
/// come.
///
/// # Errors
/// An address cannot be listened on, memory cannot be had, or the coordinator refuses the node.
pub fn run(config: NodeConfig, events: &mut dyn FnMut(NodeEvent), stop: &StopHandle) -> Result<()> {
    let node = config.node;
    serve(config, events, stop).map_err(|error| error.context(format_args!("node {node}")))
}

fn serve(config: NodeConfig, events: &mut dyn FnMut(NodeEvent), stop: &StopHandle) -> Result<()> {
    check_shards(&config)?;
    let targets = Arc::new(NodeTargets::new(&config));
    let memory = targets.handle(&BackendSpec::default())?;
    let arena = arena_of(&*memory)?;
    let (listeners, addresses) = listen(&config)?;
    let scraped = config.metrics.as_ref().map(MetricsServer::listen).transpose()?;
    let faults = faults::faults(&config);
    let tickets = ticket_office(&config);
    let keys = tickets.keys.clone();
    let loops = event_loops(&config, &tickets, &faults, listeners)?;
    let mine = (config.node, config.shards);
    let flash =
        config.flash.as_ref().map(|flash| NodeFlash::open(flash, mine, &faults)).transpose()?;
    let inboxes: Vec<ShardInbox> =
        loops.iter().map(|events| ShardInbox::new(events.waker())).collect();
    stop.watch(loops.iter().map(EventLoop::waker).collect());
    let capacity = memory.usage().capacity;
    let (credentials, joined) = introduce(&config, keys, &addresses, (capacity, flash.as_ref()))?;
    let has_coordinator = config.coordinator.own.is_some();
    let (leader_loop, asks) = has_coordinator.then(|| mpsc::sync_channel(LEADER_QUEUE_LEN)).unzip();
    let (worker, jobs) = mpsc::sync_channel(WORKER_QUEUE_LEN);
    let (notices, notice) = mpsc::channel();
    let reachability = LeaderReachability::new(config.node, config.timing);
    let shared = Arc::new(NodeShared::new(NodeParts {
        node: config.node,
        incarnation: credentials.info.incarnation,
        stop: stop.clone(),
        faults,
        inboxes,
        timing: config.timing,
        scrub_interval: config.scrub_interval,
        joined,
        membership: NodeMembership::new(leader_loop, reachability),
        target: memory,
        worker: worker.clone(),
        notices,
        setup: config.setup.clone(),
        metrics_address: scraped.as_ref().map(|server| server.address().to_owned()),
        logs: config.logs.clone(),
        tickets,
        workers: config.workers.clone(),
    }));
    let held = open_partitions(&shared, &loops, &targets, flash.as_ref())?;
    let threads = start_shards(&shared, loops, held, &arena)?;
    let _alive = AliveWord::new(&arena);
    drop(arena);
    let sharer = Arc::clone(&shared);
    let worker_thread = spawn("worker", move || worker::run(&sharer, &targets, &jobs))?;
    oversee(&config, scraped.as_ref(), &shared)?;
    let process = format_args!("{:x}", shared.incarnation);
    tracing::info!(node = %config.node, process, ?addresses, "listening");
    events(NodeEvent::Listening { addresses });
    let begun = join_cluster(&config, credentials, &shared, asks);
    let (leader_loop, ended) = match begun {
        Ok(leader_loop) => (leader_loop, attend(&config, &notice, threads.len(), events)),
        Err(error) => (None, Err(error)),
    };
    stop.stop();
    end_helpers(&shared, scraped);
    // Before the shards: a node that follows this node's coordinator is to follow another at once.
    leader_loop.map(JoinHandle::join);
    let ended = threads.into_iter().fold(ended, |ended, thread| ended.and(end_of(thread)));
    // The worker may be busy with its queue full; it looks at `stop` where it waits, and takes this next.
    let _ = worker.send(WorkerJob::End);
    let _ = worker_thread.join();
    shared.release_target();
    tracing::info!(node = %config.node, "stopped");
    ended
}

/// Ends what serves others beside the shards, and tells the leader loop to end.
fn end_helpers(shared: &NodeShared, scraped: Option<MetricsServer>) {
    drop(scraped);
    shared.workers.end();
    shared.membership.end_leader_loop();
}

/// The memory file of the records.
fn arena_of(memory: &dyn Backend) -> Result<Arc<Arena>> {
    let missing = || Error::new(ErrorKind::Internal, "the memory backend has no arena");
    memory.arena().ok_or_else(missing)
}

/// Whether a node can have so many shards.
fn check_shards(config: &NodeConfig) -> Result<()> {
    let shards = usize::from(config.shards);
    if (1..=SHARDS_MAX).contains(&shards) {
        return Ok(());
    }
    let words = format!("{shards} shards; 1 to {SHARDS_MAX} are possible");
    Err(Error::new(ErrorKind::Invalid, words))
}

/// The node as it tells the others, and how its directory knows that it has joined as that.
fn introduce(
    config: &NodeConfig,
    keys: SharedKeys,
    addresses: &[String],
    (capacity_bytes, flash): (u64, Option<&NodeFlash>),
) -> Result<(NodeCredentials, Option<DirectoryMarks>)> {
    let incarnation = incarnation_at(SystemClock.realtime(), SystemEntropy.next_u64());
    let joined = flash.map(|flash| flash.joined(incarnation)).transpose()?;
    let storage = joined.as_ref().map_or(0, DirectoryMarks::tries);
    let info = NodeInfo {
        node: config.node,
        rack: config.rack.clone(),
        host: config.host.clone().map_or_else(host_identity, Ok)?,
        addresses: addresses.to_vec(),
        incarnation,
        targets: vec![TargetInfo { target: TargetId(config.node.get()), capacity_bytes, storage }],
    };
    let before = joined.as_ref().map_or(0, DirectoryMarks::before);
    Ok((NodeCredentials { keys, info, before }, joined))
}

/// Requests to the coordinator instance in this node.
type Asks = Receiver<CoordinatorAsk>;

/// Where the instance in this node keeps its state.
fn store(
    config: &NodeConfig,
    own: &InstanceConfig,
    (shared, credentials): (&Arc<NodeShared>, &NodeCredentials),
) -> Result<Box<dyn StateStore>> {
    let NodeInfo { node, addresses, .. } = credentials.info.clone();
    let leader = LeaderAddress { node, addresses };
    let (instance, timing) = (SystemEntropy.next_u64(), config.timing);
    Ok(match &own.store {
        StoreConfig::Memory => Box::new(MemoryStateStore::default()),
        StoreConfig::File(path) => Box::new(FileStore::new(path.clone())),
        StoreConfig::Etcd { endpoints, tls } => Box::new(EtcdStore::new(&EtcdConfig {
            endpoints: endpoints.clone(),
            tls: tls.clone(),
            prefix: etcd_prefix(&config.cluster, config.keys.id()),
            leader,
            instance,
            timing,
        })?),
        StoreConfig::Voters { path, is_synced, first } => {
            let place = |(node, address): &(NodeId, String)| Ok((*node, address.parse()?));
            let known = first.iter().map(place).collect::<Result<_>>()?;
            let vote_sender = VoteSenders::new(Arc::clone(shared), credentials.clone(), known);
            let voter = VoterConfig {
                node,
                first: first.iter().map(|(node, _)| *node).collect(),
                path: path.clone(),
                is_synced: *is_synced,
                is_founded: own.is_founded,
                leader,
                instance,
                timing,
            };
            let (store, mailbox) = ReplicatedStore::start(&voter, Box::new(vote_sender))?;
            // It is set once, here.
            let _ = shared.membership.mailbox.set(mailbox);
            Box::new(store)
        }
    })
}

/// Begins the keys in etcd of this cluster, and of no other that has the same name.
fn etcd_prefix(cluster: &str, id: &[u8]) -> String {
    let id: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("/samite/{cluster}-{id}/")
}

fn cluster_keys(config: &NodeConfig) -> SharedKeys {
    let keys = config.keys.clone();
    SharedKeys::new(match &config.tls {
        TlsConfig::Files { authorities, .. } => keys.with_authorities(authorities),
        TlsConfig::Off | TlsConfig::ClusterKey => keys,
    })
}

fn ticket_office(config: &NodeConfig) -> TicketOffice {
    TicketOffice {
        cluster: config.cluster.clone(),
        keys: cluster_keys(config),
        authorities: match &config.tls {
            TlsConfig::Files { authorities, .. } => Some(authorities.clone()),
            TlsConfig::Off | TlsConfig::ClusterKey => None,
        },
        key_file: config.key_file.clone(),
        lives: Arc::default(),
    }
}

/// The node's listeners, and where clients reach it. Users who ask for tickets are told elsewhere.
fn listen(config: &NodeConfig) -> Result<(Vec<Listener>, Vec<String>)> {
    let mut listeners = vec![Listener::unix(&config.socket)?];
    let is_plain = matches!(config.tls, TlsConfig::Off);
    let scheme = if is_plain { TransportKind::Tcp } else { TransportKind::Tls };
    for address in &config.listen {
        match format!("{scheme}://{address}").parse()? {
            Address::Tcp(host, port) => listeners.push(Listener::tcp(&host, port)?),
            Address::Tls(host, port) => listeners.push(Listener::tls(&host, port)?),
            Address::Shm(_) | Address::Unix(_) => {
                return Err(Error::new(ErrorKind::Invalid, format!("{address}: not HOST:PORT")));
            }
        }
    }
    if config.holds_ports {
        for listener in listeners.iter().filter(|listener| listener.address().transport().is_tcp())
        {
            // For the kernel to close, when the process has ended.
            std::mem::forget(listener.try_clone()?);
        }
    }
    let addresses = addresses(&config.socket, &listeners);
    listeners.extend(config.ticket_socket.as_deref().map(Listener::guests).transpose()?);
    Ok((listeners, addresses))
}

/// Where the node can be reached, best first.
fn addresses(socket: &Path, listeners: &[Listener]) -> Vec<String> {
    let mut addresses = vec![Address::Shm(socket.to_owned()).to_string()];
    addresses.extend(listeners.iter().map(|listener| listener.address().to_string()));
    addresses
}

fn event_loops(
    config: &NodeConfig,
    tickets: &TicketOffice,
    faults: &Arc<FaultSwitch>,
    listeners: Vec<Listener>,
) -> Result<Vec<EventLoop>> {
    let mut options = LoopOptions {
        faults: Some(Arc::clone(faults)),
        ticket_lives: Arc::clone(&tickets.lives),
        ..LoopOptions::default()
    };
    if let TlsConfig::Files { own, .. } = &config.tls {
        options.tls = Some(Arc::clone(own));
    }
    let make =
        |listeners| EventLoop::new(config.node, tickets.keys.clone(), listeners, options.clone());
    let mut loops = Vec::new();
    for _ in 1..config.shards {
        let clones: Result<Vec<Listener>> = listeners.iter().map(Listener::try_clone).collect();
        loops.push(make(clones?)?);
    }
    loops.push(make(listeners)?);
    Ok(loops)
}

/// Starts the overseer, and the thread that serves metrics. They are not joined: a scraper may keep
/// that for a second, and the overseer sleeps so long.
fn oversee(
    config: &NodeConfig,
    server: Option<&MetricsServer>,
    shared: &Arc<NodeShared>,
) -> Result<()> {
    let (sharer, tells_alive) = (Arc::clone(shared), config.tells_alive);
    spawn("overseer", move || overseer::run(&sharer, tells_alive))?;
    let Some(server) = server else { return Ok(()) };
    tracing::info!(node = %shared.node, address = server.address(), "serves metrics");
    spawn("metrics", server.body(shared)).map(drop)
}

/// The partitions of each shard, with their state in its log.
fn open_partitions(
    shared: &Arc<NodeShared>,
    loops: &[EventLoop],
    targets: &Arc<NodeTargets>,
    flash: Option<&NodeFlash>,
) -> Result<Vec<(OpenPartitions, Option<ShardLog>)>> {
    let me = TargetId(shared.node.get());
    let open = |shard, waker| {
        // Each shard has handles of its own.
        let (retransmit, missed) = (shared.timing.retransmit, shared.timing.missed);
        let times = MirrorTimes { retransmit, missed, ..MirrorTimes::DEFAULT };
        let mut partitions = OpenPartitions::new(
            ShardTargets::new(Arc::clone(targets), Arc::clone(shared)),
            me,
            times,
        );
        let Some(flash) = flash else { return Ok((partitions, None)) };
        let opened = ShardLog::open(flash, shard, waker, &mut |id| partitions.new_member(id));
        let (durable, recovered) = opened.map_err(|error| flash.explain(shard, error))?;
        partitions.recover(recovered);
        Ok((partitions, Some(durable)))
    };
    thread::scope(|scope| {
        let opening: Vec<_> = loops
            .iter()
            .zip(0..)
            .map(|(events, index)| {
                let (open, waker) = (&open, events.waker());
                scope.spawn(move || open(ShardId(index), waker))
            })
            .collect();
        let panicked = |_| Err(Error::new(ErrorKind::Internal, "reading the log panicked"));
        opening.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
    })
}

fn start_shards(
    shared: &Arc<NodeShared>,
    loops: Vec<EventLoop>,
    held: Vec<(OpenPartitions, Option<ShardLog>)>,
    arena: &Arc<Arena>,
) -> Result<Vec<JoinHandle<Result<()>>>> {
    let granted = Arc::new(AtomicU64::new(0));
    let mut threads = Vec::new();
    for ((events, kept), index) in loops.into_iter().zip(held).zip(0..) {
        let shard = ShardId(index);
        let mut service = ShardService::new(
            shard,
            Arc::clone(shared),
            kept,
            Arc::clone(arena),
            Arc::clone(&granted),
            events.dialler(),
        );
        let shared = Arc::clone(shared);
        threads.push(spawn(&format!("shard-{}", shard.get()), move || {
            let ended = events.run(&mut service, shared.stop.flag());
            shared.notice(NodeNotice::ShardEnded);
            ended
        })?);
    }
    Ok(threads)
}

/// Makes this node part of the cluster, or begins to. The returned thread ends after
/// [`NodeMembership::end_leader_loop`]; the other threads are not joined: they may be waiting for
/// other nodes, and have nothing that matters.
fn join_cluster(
    config: &NodeConfig,
    credentials: NodeCredentials,
    shared: &Arc<NodeShared>,
    asks: Option<Asks>,
) -> Result<Option<JoinHandle<()>>> {
    let mut leader_loop = None;
    if let (Some(own), Some(asks)) = (&config.coordinator.own, asks) {
        let store = store(config, own, (shared, &credentials))?;
        if config.node == NodeId::THIRD_VOTER {
            // It has no records, and the coordinator does not know of it.
            let shared = Arc::clone(shared);
            let body = move || {
                leader_loop::refuse(&shared, &asks);
                drop(store);
            };
            return spawn("leader-loop", body).map(Some);
        }
        let cluster = config.cluster.clone();
        let body = LeaderLoop {
            cluster,
            config: own.clone(),
            info: credentials.info.clone(),
            before: credentials.before,
            store,
            saved_at: std::time::Duration::ZERO,
            told: Epoch(0),
        };
        let shared = Arc::clone(shared);
        leader_loop = Some(spawn("leader-loop", move || body.run(&shared, &asks))?);
    }
    let sharer = Arc::clone(shared);
    spawn("waiting", move || waiting::run(&sharer))?;
    for address in &config.coordinator.others {
        heartbeat::start(shared, credentials.clone(), vec![address.parse()?]);
    }
    let sharer = Arc::clone(shared);
    spawn("reports", move || reports::run(&sharer))?;
    let (sharer, who) = (Arc::clone(shared), credentials.clone());
    spawn("lock-recovery", move || lock_recovery::run(&sharer, &who))?;
    let shared = Arc::clone(shared);
    spawn("map-watch", move || credentials.follow(&shared))?;
    Ok(leader_loop)
}

/// A refusal of the coordinator to a node that keeps durable data may be due to those data: says
/// where they are.
fn in_directory(config: &NodeConfig, error: Error) -> Error {
    match &config.flash {
        Some(flash) if error.kind() == ErrorKind::Invalid => error.context(flash.path.display()),
        _ => error,
    }
}

/// Passes on the events until a shard ends, as all do when the node is told to stop, or a client
/// asks for that.
fn attend(
    config: &NodeConfig,
    notices: &Receiver<NodeNotice>,
    shards: usize,
    events: &mut dyn FnMut(NodeEvent),
) -> Result<()> {
    debug_assert!(shards > 0);
    loop {
        match notices.recv() {
            Ok(NodeNotice::Serving(epoch)) => events(NodeEvent::Serving { epoch }),
            Ok(NodeNotice::Alive) => events(NodeEvent::Alive),
            Ok(NodeNotice::Nodes(nodes)) => events(NodeEvent::Nodes { nodes }),
            Ok(NodeNotice::ShutdownAsked) => {
                events(NodeEvent::ShutdownAsked);
                return Ok(());
            }
            Ok(NodeNotice::Fatal(error)) => return Err(in_directory(config, error)),
            Ok(NodeNotice::ShardEnded) | Err(_) => return Ok(()),
        }
    }
}

fn end_of(thread: JoinHandle<Result<()>>) -> Result<()> {
    thread.join().unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "a shard panicked")))
}
