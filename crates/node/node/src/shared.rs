//! State that the threads of one node share: the cluster map, the nodes that serve by it, metrics,
//! and the ways to each shard.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use samite_backend::{Arena, Backend, TargetUsage};
use samite_coordinator::ClusterTiming;
use samite_log::joined::DirectoryMarks;
use samite_metrics::{MetricStore, registry};
use samite_placement::{ClusterMap, MapHistory};
use samite_transport::client::NodeLink;
use samite_transport::server::ConnId;
use samite_types::fault::FaultSwitch;
use samite_types::{
    Clock, Deadline, Epoch, Error, ErrorKind, NodeId, Result, ShardId, SystemClock, TargetId,
};
use samite_wire::control::{BackendSpec, ControlReply, ControlRequest, GroupMember, NodeInfo};
use samite_wire::delta::MapDelta;
use samite_wire::status::TargetStatus;
use samite_wire::ticket::KeyStep;

use crate::clock::ClockComparisons;
use crate::config::NodeLogs;
use crate::control_reply::ReplyTo;
use crate::events::EventHistory;
use crate::inbox::{InboxMessage, ShardInbox};
use crate::locks::SharedLocks;
use crate::map_diff::{self, MapDiff};
use crate::membership::{AnswerRoute, NodeMembership};
use crate::mutex::lock;
use crate::node_calls::call;
use crate::presence::ClientPresence;
use crate::revocations::RecallListeners;
use crate::scrub::WantedScrub;
use crate::stop::StopHandle;
use crate::tickets::TicketOffice;
use crate::worker_processes::{WorkerConfig, WorkerProcesses};

/// How long the leader may take to hear how large this node is.
const TELL_TIMEOUT: Duration = Duration::from_secs(1);
/// Most control requests that wait for the worker.
pub(crate) const WORKER_QUEUE_LEN: usize = 64;

/// Events for the thread that called [`crate::run`].
#[derive(Debug)]
pub(crate) enum NodeNotice {
    /// There is a map for the first time.
    Serving(Epoch),
    /// All shards take up messages.
    Alive,
    /// The map names other nodes than before, or other addresses.
    Nodes(Vec<NodeInfo>),
    /// A client has asked the node to stop.
    ShutdownAsked,
    /// A shard has ended.
    ShardEnded,
    /// The node cannot go on.
    Fatal(Error),
}

/// Tasks of the worker, because they may take time.
#[derive(Debug)]
pub(crate) enum WorkerJob {
    /// Answer when every part of the cluster serves by `epoch`.
    Settle { epoch: Epoch, reply: ControlReply, to: ReplyTo },
    /// Ask the leader.
    Forward { request: ControlRequest, to: ReplyTo },
    /// Read the node's log, or change what is logged, or what the memory target holds.
    Own { request: ControlRequest, to: ReplyTo },
    /// Change the cluster key here, which is written to disk.
    ChangeKey { step: KeyStep, to: ReplyTo },
    /// End.
    End,
}

/// By which map everybody serves.
#[derive(Debug)]
struct MapSpread {
    shards: Vec<Epoch>,
    /// Nodes that watch this one for maps, by the connection they do it on.
    followers: HashMap<(ShardId, ConnId), (NodeId, Epoch)>,
}

pub(crate) struct NodeShared {
    pub node: NodeId,
    /// This process, as the map names it once it has joined.
    pub incarnation: u64,
    pub stop: StopHandle,
    /// The faults that are injected.
    pub faults: Arc<FaultSwitch>,
    pub inboxes: Vec<ShardInbox>,
    pub metrics: MetricStore,
    /// Where they are served, as a URL.
    pub metrics_address: Option<String>,
    /// How the cluster was set up.
    pub setup: Vec<u8>,
    pub tickets: TicketOffice,
    pub workers: WorkerProcesses,
    /// File locks, of all shards.
    pub locks: Mutex<SharedLocks>,
    /// There are locks that others have to be asked for.
    pub lock_recovery_due: Condvar,
    pub timing: ClusterTiming,
    /// Requests for scrubbing.
    pub wanted_scrub: WantedScrub,
    /// How often it is done unasked.
    pub scrub_interval: Option<Duration>,
    /// The node's part in the cluster's membership.
    pub membership: NodeMembership,
    /// The connection to the leader's node, when that is another one.
    pub upstream: Mutex<Option<Arc<NodeLink>>>,
    /// The incarnation with which this process joins, until it has; `None`: it keeps nothing
    /// durable.
    joined: Mutex<Option<DirectoryMarks>>,
    /// The clients that are connected.
    pub presence: Mutex<ClientPresence>,
    pub revocations: RecallListeners<ReplyTo>,
    pub started: Instant,
    map: RwLock<Option<Arc<ClusterMap>>>,
    /// The changes that led to `map`. Its lock is held by the thread that changes the map.
    history: Mutex<MapHistory>,
    /// Epoch of `map`, to be looked at once for each request.
    epoch: AtomicU64,
    spread: Mutex<MapSpread>,
    spread_changed: Condvar,
    lookup: Mutex<HostLookup>,
    /// A handle to the target, for its metrics; gone once the node has stopped, so that no late
    /// thread keeps its memory.
    target: Mutex<Option<Box<dyn Backend>>>,
    /// The same of its other targets.
    more_targets: Mutex<Vec<(BackendSpec, Box<dyn Backend>)>>,
    worker: SyncSender<WorkerJob>,
    worker_waiting: AtomicUsize,
    /// What happened since the start.
    pub events: EventHistory,
    /// Its wall clock, and those of others.
    pub clocks: ClockComparisons,
    /// The log of this process, if others may read it.
    pub logs: Option<Arc<dyn NodeLogs>>,
    /// Messages to all shards that these have taken up, since the start.
    beats: AtomicU64,
    notices: Sender<NodeNotice>,
}

/// The look-up table that clients of the host read for themselves.
struct HostLookup {
    /// Gone once the node has stopped.
    arena: Weak<Arena>,
    /// This node is in groups that have other members.
    is_grouped: bool,
}

/// Parts that [`NodeShared`] is made of.
pub(crate) struct NodeParts {
    pub node: NodeId,
    pub incarnation: u64,
    pub stop: StopHandle,
    pub faults: Arc<FaultSwitch>,
    pub inboxes: Vec<ShardInbox>,
    pub timing: ClusterTiming,
    pub scrub_interval: Option<Duration>,
    pub joined: Option<DirectoryMarks>,
    pub membership: NodeMembership,
    pub target: Box<dyn Backend>,
    pub worker: SyncSender<WorkerJob>,
    pub notices: Sender<NodeNotice>,
    pub metrics_address: Option<String>,
    pub logs: Option<Arc<dyn NodeLogs>>,
    pub setup: Vec<u8>,
    pub clock_ahead_us: i64,
    pub tickets: TicketOffice,
    pub workers: Option<WorkerConfig>,
}

impl NodeShared {
    pub(crate) fn new(parts: NodeParts) -> Self {
        let shards = parts.inboxes.len();
        let arena = parts.target.arena().map_or_else(Weak::new, |arena| Arc::downgrade(&arena));
        Self {
            node: parts.node,
            incarnation: parts.incarnation,
            stop: parts.stop,
            faults: parts.faults,
            inboxes: parts.inboxes,
            locks: Mutex::default(),
            lock_recovery_due: Condvar::new(),
            metrics: MetricStore::new(shards),
            metrics_address: parts.metrics_address,
            setup: parts.setup,
            tickets: parts.tickets,
            workers: WorkerProcesses::new(parts.node, parts.workers),
            timing: parts.timing,
            wanted_scrub: WantedScrub::default(),
            scrub_interval: parts.scrub_interval,
            membership: parts.membership,
            upstream: Mutex::new(None),
            joined: Mutex::new(parts.joined),
            presence: Mutex::default(),
            revocations: RecallListeners::default(),
            started: Instant::now(),
            map: RwLock::new(None),
            history: Mutex::default(),
            epoch: AtomicU64::new(0),
            spread: Mutex::new(MapSpread {
                shards: vec![Epoch(0); shards],
                followers: HashMap::new(),
            }),
            spread_changed: Condvar::new(),
            lookup: Mutex::new(HostLookup { arena, is_grouped: false }),
            target: Mutex::new(Some(parts.target)),
            more_targets: Mutex::default(),
            worker: parts.worker,
            worker_waiting: AtomicUsize::new(0),
            events: EventHistory::default(),
            clocks: ClockComparisons::new(parts.clock_ahead_us),
            logs: parts.logs,
            beats: AtomicU64::new(0),
            notices: parts.notices,
        }
    }

    /// The leader has granted a lease until then.
    pub(crate) fn extend_lease(&self, until: Duration) {
        self.membership.extend_lease(until);
        self.show_lookup(&lock(&self.lookup));
    }

    /// `map` says whether this node is in groups that have other members.
    pub(crate) fn set_grouped(&self, map: &ClusterMap) {
        let mut groups = map.data().tables.iter().flat_map(|table| &table.groups);
        let me = TargetId(self.node.get());
        let is_mine = |member: &GroupMember| member.target == me;
        let is_grouped =
            groups.any(|group| group.members.len() > 1 && group.members.iter().any(is_mine));
        let mut lookup = lock(&self.lookup);
        lookup.is_grouped = is_grouped;
        self.show_lookup(&lookup);
    }

    /// Clients may look records up for themselves as long as nobody can have taken them over.
    fn show_lookup(&self, lookup: &HostLookup) {
        if let Some(arena) = lookup.arena.upgrade() {
            arena.set_shown_until(lookup.is_grouped.then(|| self.membership.lease_until()));
        }
    }

    /// Shards of this node.
    pub(crate) fn shards(&self) -> u16 {
        // Checked at start against the arena's limit of shards.
        self.inboxes.len() as u16
    }

    /// Epoch of the map; 0 before there is one.
    pub(crate) fn epoch(&self) -> Epoch {
        Epoch(self.epoch.load(Ordering::Acquire))
    }

    /// The map.
    pub(crate) fn map(&self) -> Option<Arc<ClusterMap>> {
        self.map.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Makes `new` the map if it is newer, and wakes the shards for it.
    ///
    /// A map that names an earlier process of this node names records of it that that one had, and
    /// this one has not: it is no map for it.
    pub(crate) fn publish(&self, new: Arc<ClusterMap>) -> Result<()> {
        let mut history = lock(&self.history);
        let current = self.map();
        if !self.is_next(&new, current.as_deref())? {
            return Ok(());
        }
        history.note(current.as_deref(), &new);
        self.change_map(new, current.as_deref());
        Ok(())
    }

    /// Makes the map that `delta` leads to the map, if that is newer.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`]: it does not begin at the present one; the whole map is needed.
    pub(crate) fn publish_change(&self, delta: MapDelta) -> Result<()> {
        let mut history = lock(&self.history);
        let current = self.map();
        let current = current.ok_or_else(|| Error::new(ErrorKind::Corrupt, "no map to change"))?;
        if delta.to <= current.epoch() {
            return Ok(());
        }
        let new = Arc::new(current.with(&delta)?);
        if self.is_next(&new, Some(&current))? {
            history.add(delta);
            self.change_map(new, Some(&current));
        }
        Ok(())
    }

    /// The answer to a node that has the map of epoch `known`, and is to have `map`.
    pub(crate) fn map_since(&self, map: &ClusterMap, known: Epoch) -> ControlReply {
        lock(&self.history).answer(map, known)
    }

    fn is_next(&self, new: &ClusterMap, current: Option<&ClusterMap>) -> Result<bool> {
        if new.node(self.node).is_some_and(|info| info.incarnation != self.incarnation) {
            return Ok(false);
        }
        current.map_or(Ok(true), |current| new.replaces(current))
    }

    fn change_map(&self, new: Arc<ClusterMap>, current: Option<&ClusterMap>) {
        let (epoch, is_first) = (new.epoch(), current.is_none());
        // Before any process may rely on the files of that directory.
        if new.node(self.node).is_some_and(|info| info.incarnation == self.incarnation)
            && let Some(mut joined) = lock(&self.joined).take()
            && let Err(error) = joined.settle()
        {
            tracing::warn!(%error, "note that the node has joined");
        }
        // Before any shard serves by it.
        let now = SystemClock.monotonic();
        let ended = lock(&self.locks).see_map(current, &new, self.node, now);
        self.lock_recovery_due.notify_all();
        for to in ended {
            let reply = ControlReply::failed(ErrorKind::StaleMap, "lock: ask again");
            self.inboxes[usize::from(to.shard.get())].send(InboxMessage::Control(to, reply));
        }
        self.events.see_map(current, &new);
        match current {
            Some(before) => {
                let diff = MapDiff::new(before, &new);
                tracing::info!(%epoch, news = %diff, "cluster map");
                if let Some(loss) = map_diff::lost(before, &new) {
                    tracing::warn!(%epoch, "{loss}");
                }
            }
            None => {
                let (nodes, datasets) = (new.nodes().len(), new.datasets().len());
                tracing::info!(%epoch, nodes, datasets, "first cluster map");
            }
        }
        let is_same = current.is_some_and(|current| current.nodes() == new.nodes());
        let nodes = (!is_same).then(|| new.nodes().to_vec());
        *self.map.write().unwrap_or_else(PoisonError::into_inner) = Some(new);
        self.epoch.store(epoch.get(), Ordering::Release);
        // Who hears that it serves finds the nodes described.
        nodes.into_iter().for_each(|nodes| self.notice(NodeNotice::Nodes(nodes)));
        if is_first {
            self.notice(NodeNotice::Serving(epoch));
        }
        for inbox in &self.inboxes {
            inbox.wake();
        }
    }

    /// Tells the thread that runs the node. It may have gone already, and then needs no telling.
    pub(crate) fn notice(&self, notice: NodeNotice) {
        let _ = self.notices.send(notice);
    }

    /// Gives the worker something to do.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`]: too much waits already.
    pub(crate) fn work(&self, job: WorkerJob) -> Result<()> {
        self.worker_waiting.fetch_add(1, Ordering::Relaxed);
        self.worker.try_send(job).map_err(|error| {
            self.job_taken();
            match error {
                TrySendError::Full(_) => {
                    Error::new(ErrorKind::Busy, "too many control requests wait; try again")
                }
                TrySendError::Disconnected(_) => {
                    Error::new(ErrorKind::Unavailable, "node is stopping")
                }
            }
        })
    }

    /// The worker has taken up a job that [`NodeShared::work`] gave it.
    pub(crate) fn job_taken(&self) {
        self.worker_waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// Jobs that wait for the worker.
    pub(crate) fn worker_waiting(&self) -> usize {
        self.worker_waiting.load(Ordering::Relaxed)
    }

    /// A shard serves by `epoch` from now on.
    pub(crate) fn shard_serves(&self, shard: ShardId, epoch: Epoch) {
        lock(&self.spread).shards[usize::from(shard.get())] = epoch;
        self.spread_changed.notify_all();
    }

    /// Another node serves by `epoch`, as it says on this connection.
    pub(crate) fn follower_serves(&self, at: (ShardId, ConnId), node: NodeId, epoch: Epoch) {
        lock(&self.spread).followers.insert(at, (node, epoch));
        self.spread_changed.notify_all();
    }

    /// The connection is gone, and the follower on it if there was one.
    pub(crate) fn follower_left(&self, at: (ShardId, ConnId)) {
        if let Some((node, _)) = lock(&self.spread).followers.remove(&at) {
            tracing::info!(%node, "no longer follows");
        }
        self.spread_changed.notify_all();
    }

    /// Whether every shard and every follower serves by `epoch` or a newer one.
    pub(crate) fn is_settled(&self, epoch: Epoch) -> bool {
        laggards(&lock(&self.spread), epoch) == 0
    }

    /// Epoch by which all shards of this node serve.
    pub(crate) fn taken_up(&self) -> Epoch {
        lock(&self.spread).shards.iter().min().copied().unwrap_or(Epoch(0))
    }

    /// Waits until all shards of this node serve by `epoch`, for at most `timeout`.
    pub(crate) fn wait_taken_up(&self, epoch: Epoch, timeout: Duration) {
        let waits = |spread: &mut MapSpread| {
            spread.shards.iter().any(|serves| *serves < epoch) && !self.stop.is_asked()
        };
        drop(self.spread_changed.wait_timeout_while(lock(&self.spread), timeout, waits));
    }

    /// Waits for that, for at most `timeout`; whether it came.
    pub(crate) fn wait_settled(&self, epoch: Epoch, timeout: Duration) -> bool {
        let (spread, _) = self
            .spread_changed
            .wait_timeout_while(lock(&self.spread), timeout, |spread| {
                laggards(spread, epoch) > 0 && !self.stop.is_asked()
            })
            .unwrap_or_else(PoisonError::into_inner);
        laggards(&spread, epoch) == 0
    }

    /// A target beside the memory is open.
    pub(crate) fn note_target(&self, backend: &BackendSpec, target: Box<dyn Backend>) {
        lock(&self.more_targets).push((backend.clone(), target));
    }

    /// How full the targets beside the memory are.
    pub(crate) fn more_usages(&self) -> Vec<TargetStatus> {
        let targets = lock(&self.more_targets);
        let statuses = targets.iter().map(|(backend, target)| {
            let usage = target.usage();
            let (capacity_bytes, used_bytes) = (usage.capacity, usage.used);
            TargetStatus { backend: backend.clone(), capacity_bytes, used_bytes }
        });
        statuses.collect()
    }

    /// How full the target is.
    pub(crate) fn usage(&self) -> TargetUsage {
        lock(&self.target).as_ref().map(|target| target.usage()).unwrap_or_default()
    }

    /// Has the memory target hold so many bytes from now on. For the worker alone.
    ///
    /// # Errors
    /// As of [`Backend::resize`]; `Unavailable`: the node is stopping.
    pub(crate) fn resize(&self, memory_bytes: u64) -> Result<()> {
        let stopping = || Error::new(ErrorKind::Unavailable, "node is stopping");
        let target = lock(&self.target).as_ref().map(|target| target.handle());
        target.ok_or_else(stopping)?.resize(memory_bytes)?;
        tracing::info!(memory_bytes, "the memory target has another size");
        Ok(())
    }

    /// How this node is to join: as `info` says, with what its target holds now.
    pub(crate) fn as_it_is(&self, info: &NodeInfo) -> NodeInfo {
        let (capacity, mut info) = (self.usage().capacity, info.clone());
        for target in info.targets.iter_mut().filter(|_| capacity > 0) {
            target.capacity_bytes = capacity;
        }
        info
    }

    /// Has the cluster map say what this node's target holds, if it says something else.
    pub(crate) fn tell_capacity(&self) {
        let Some(map) = self.map() else { return };
        let known = map.node(self.node).filter(|info| info.incarnation == self.incarnation);
        let Some(known) = known else { return };
        let info = self.as_it_is(known);
        if info == *known {
            return;
        }
        let request = ControlRequest::Join { info, before: 0 };
        if self.membership.leads() {
            let (answer, _) = sync_channel(1);
            // What fails is tried again soon.
            let _ = self.membership.ask(request, AnswerRoute::Thread(answer));
        } else if let Some(link) = lock(&self.upstream).clone() {
            let _ = call(&link, &request, Deadline::after(TELL_TIMEOUT));
        }
    }

    /// Notes that this node's clock and one of a coordinator's node differ, or do not any more.
    pub(crate) fn look_at_clock(&self) {
        if let Some(map) = self.map() {
            self.clocks.retain(|node| map.node(node).is_some());
        }
        let found = self.clocks.largest();
        self.events.see_clock((self.node, self.epoch()), found.as_ref());
    }

    /// Notes targets that are full now, or have room again.
    pub(crate) fn look_at_usage(&self) {
        let place = (self.node, self.epoch());
        let refused = self.metrics.counter(registry::SPACE_REFUSALS);
        self.events.see_refusals(place, refused, SystemClock.monotonic());
        self.events.see_usage(place, &BackendSpec::default(), &self.usage());
        let more = lock(&self.more_targets);
        let usages: Vec<_> =
            more.iter().map(|(backend, target)| (backend.clone(), target.usage())).collect();
        drop(more);
        for (backend, usage) in usages {
            self.events.see_usage(place, &backend, &usage);
        }
    }

    /// A shard has taken up an [`InboxMessage::Beat`].
    pub(crate) fn beat(&self) {
        self.beats.fetch_add(1, Ordering::Relaxed);
    }

    /// Such messages that were taken up, by all shards.
    pub(crate) fn beats(&self) -> u64 {
        self.beats.load(Ordering::Relaxed)
    }

    /// Lets go of the targets.
    pub(crate) fn release_target(&self) {
        lock(&self.target).take();
        lock(&self.more_targets).clear();
    }
}

fn laggards(spread: &MapSpread, epoch: Epoch) -> usize {
    let shards = spread.shards.iter().filter(|serves| **serves < epoch).count();
    shards + spread.followers.values().filter(|(_, serves)| *serves < epoch).count()
}
