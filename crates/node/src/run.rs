//! Start and end of a node.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};

use samite_backend::memory::MemoryBackend;
use samite_backend::null::NullBackend;
use samite_backend::{Arena, Backend};
use samite_coordinator::Coordinator;
use samite_transport::server::{EventLoop, Listener, Options};
use samite_transport::{Address, ClusterKey};
use samite_types::fault::Faults;
use samite_types::{
    Clock, Entropy, Error, ErrorKind, Result, ShardId, SystemClock, SystemEntropy, TargetId,
};
use samite_wire::arena::SHARDS_MAX;
use samite_wire::control::{NodeInfo, TargetInfo};

use crate::alive::Alive;
use crate::config::{CoordinatorConfig, Event, NodeConfig};
use crate::follow::Follower;
use crate::inbox::Inbox;
use crate::partitions::Partitions;
use crate::shard::Shard;
use crate::shared::{Job, Notice, Parts, Shared, WORKER_QUEUE_LEN, lock};
use crate::{Stop, faults, worker};

/// Serves as `config` says until `stop` is asked to, or a client sends a shutdown. Blocks; sends what is under way before it
/// returns. `events` is told, on this thread, how far the node has come.
///
/// # Errors
/// An address cannot be listened on, memory cannot be had, or the coordinator refuses the node.
pub fn run(config: NodeConfig, events: &mut dyn FnMut(Event), stop: &Stop) -> Result<()> {
    let node = config.node;
    serve(config, events, stop).map_err(|error| error.context(format_args!("node {node}")))
}

fn serve(config: NodeConfig, events: &mut dyn FnMut(Event), stop: &Stop) -> Result<()> {
    let shards = usize::from(config.shards);
    if !(1..=SHARDS_MAX).contains(&shards) {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!("{shards} shards; 1 to {SHARDS_MAX} are possible"),
        ));
    }
    let key = ClusterKey::new(config.key);
    let memory = MemoryBackend::new(config.memory_bytes, shards)?;
    let arena = memory
        .arena()
        .ok_or_else(|| Error::new(ErrorKind::Internal, "the memory backend has no arena"))?;
    let listeners = listen(&config)?;
    let addresses = addresses(&config.socket, &listeners);
    let faults = faults::faults(config.node, config.fault_log.clone());
    let loops = event_loops(&config, &key, &faults, listeners)?;
    let inboxes: Vec<Inbox> = loops.iter().map(|events| Inbox::new(events.waker())).collect();
    stop.watch(loops.iter().map(EventLoop::waker).collect());
    let info = NodeInfo {
        node: config.node,
        host: host()?,
        addresses: addresses.clone(),
        incarnation: SystemEntropy.next_u64(),
        targets: vec![TargetInfo {
            target: TargetId(config.node.get()),
            capacity_bytes: memory.usage().capacity,
            storage: 0,
        }],
    };
    let coordinator = coordinator(&config)?;
    let (worker, jobs) = mpsc::sync_channel(WORKER_QUEUE_LEN);
    let (notices, notice) = mpsc::channel();
    let shared = Arc::new(Shared::new(Parts {
        node: config.node,
        stop: stop.clone(),
        faults,
        inboxes,
        coordinator,
        target: Box::new(memory.clone()),
        worker: worker.clone(),
        notices,
    }));
    let null = NullBackend::new(config.memory_bytes);
    let threads = start_shards(&shared, loops, &memory, &null, &arena)?;
    let _alive = Alive::new(&arena);
    drop((memory, null, arena));
    let worker_thread = spawn("worker", {
        let shared = Arc::clone(&shared);
        move || worker::run(&shared, &jobs)
    })?;
    tracing::info!(node = %config.node, ?addresses, "listening");
    events(Event::Listening { addresses });
    let ended = join_cluster(&config, key, info, &shared)
        .and_then(|()| attend(&notice, threads.len(), events));
    stop.stop();
    let ended = threads.into_iter().fold(ended, |ended, thread| ended.and(end_of(thread)));
    // The worker may be busy with its queue full; it looks at `stop` where it waits, and takes this next.
    let _ = worker.send(Job::End);
    let _ = worker_thread.join();
    shared.release_target();
    tracing::info!(node = %config.node, "stopped");
    ended
}

/// The coordinator, if it lives in this node.
fn coordinator(config: &NodeConfig) -> Result<Option<Coordinator>> {
    let CoordinatorConfig::Embedded { expected, partitions } = &config.coordinator else {
        return Ok(None);
    };
    // Seconds: more than any earlier coordinator of this cluster has given out.
    let now = u32::try_from(SystemClock.realtime().as_secs()).unwrap_or(u32::MAX / 2);
    let coordinator = Coordinator::new(config.cluster.clone(), *expected)?.starting_at(now);
    Ok(Some(match partitions {
        Some(partitions) => coordinator.with_partitions(*partitions)?,
        None => coordinator,
    }))
}

fn listen(config: &NodeConfig) -> Result<Vec<Listener>> {
    let mut listeners = vec![Listener::unix(&config.socket)?];
    if let Some(address) = &config.tcp {
        match format!("tcp://{address}").parse()? {
            Address::Tcp(host, port) => listeners.push(Listener::tcp(&host, port)?),
            Address::Shm(_) | Address::Unix(_) => {
                return Err(Error::new(ErrorKind::Invalid, format!("{address}: not HOST:PORT")));
            }
        }
    }
    Ok(listeners)
}

/// Where the node can be reached, best first.
fn addresses(socket: &Path, listeners: &[Listener]) -> Vec<String> {
    let mut addresses = vec![Address::Shm(socket.to_owned()).to_string()];
    addresses.extend(listeners.iter().map(|listener| listener.address().to_string()));
    addresses
}

fn event_loops(
    config: &NodeConfig,
    key: &ClusterKey,
    faults: &Arc<Faults>,
    listeners: Vec<Listener>,
) -> Result<Vec<EventLoop>> {
    let options = Options { faults: Some(Arc::clone(faults)), ..Options::default() };
    let make = |listeners| EventLoop::new(config.node, key.clone(), listeners, options.clone());
    let mut loops = Vec::new();
    for _ in 1..config.shards {
        let clones: Result<Vec<Listener>> = listeners.iter().map(Listener::try_clone).collect();
        loops.push(make(clones?)?);
    }
    loops.push(make(listeners)?);
    Ok(loops)
}

fn start_shards(
    shared: &Arc<Shared>,
    loops: Vec<EventLoop>,
    memory: &MemoryBackend,
    null: &NullBackend,
    arena: &Arc<Arena>,
) -> Result<Vec<JoinHandle<Result<()>>>> {
    let granted = Arc::new(AtomicU64::new(0));
    let mut threads = Vec::new();
    for (events, index) in loops.into_iter().zip(0..) {
        let partitions = Partitions::new(memory.clone(), null.clone());
        let shard = ShardId(index);
        let mut service = Shard::new(
            shard,
            Arc::clone(shared),
            partitions,
            Arc::clone(arena),
            Arc::clone(&granted),
        );
        let shared = Arc::clone(shared);
        threads.push(spawn(&format!("shard-{}", shard.get()), move || {
            let ended = events.run(&mut service, shared.stop.flag());
            shared.notice(Notice::ShardEnded);
            ended
        })?);
    }
    Ok(threads)
}

/// Makes this node part of the cluster, or begins to.
fn join_cluster(
    config: &NodeConfig,
    key: ClusterKey,
    info: NodeInfo,
    shared: &Arc<Shared>,
) -> Result<()> {
    if let Some(coordinator) = &shared.coordinator {
        let map = lock(coordinator).join(info)?;
        return map.map_or(Ok(()), |map| shared.publish(map));
    }
    let CoordinatorConfig::At(address) = &config.coordinator else { return Ok(()) };
    let follower = Follower { coordinator: address.parse()?, key, info };
    let shared = Arc::clone(shared);
    // Not joined at the end: it may be waiting for the coordinator's node, and holds nothing that matters.
    spawn("follow", move || follower.run(&shared)).map(drop)
}

/// Passes on what happens until a shard ends, as all do when the node is told to stop.
fn attend(notices: &Receiver<Notice>, shards: usize, events: &mut dyn FnMut(Event)) -> Result<()> {
    debug_assert!(shards > 0);
    loop {
        match notices.recv() {
            Ok(Notice::Serving(epoch)) => events(Event::Serving { epoch }),
            Ok(Notice::Fatal(error)) => return Err(error),
            Ok(Notice::ShardEnded) | Err(_) => return Ok(()),
        }
    }
}

fn spawn<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>> {
    thread::Builder::new().name(name.into()).spawn(body).map_err(|error| {
        let errno = rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::AGAIN);
        Error::io(format_args!("start thread {name}"), errno)
    })
}

fn end_of(thread: JoinHandle<Result<()>>) -> Result<()> {
    thread.join().unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "a shard panicked")))
}

/// What tells this host from others: its boot id.
fn host() -> Result<String> {
    const PATH: &str = "/proc/sys/kernel/random/boot_id";
    let id = std::fs::read_to_string(PATH).map_err(|error| {
        let errno = rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO);
        Error::io(format_args!("read {PATH}"), errno)
    })?;
    Ok(id.trim().to_owned())
}
