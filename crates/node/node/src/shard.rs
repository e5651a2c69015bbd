//! One shard: the service behind an event loop. It owns its components, passes what comes in (a
//! request, a peer message, a map, a timer, "the log is on flash") on to them, and carries out what
//! they say: replies, peer messages, entries of the log, timers, look-ups that are published,
//! recalls. The folder has a file for each kind of work.

mod accounts;
mod clients;
mod commits;
mod control;
mod copies;
mod credentials;
mod delegations;
mod join;
mod locks;
mod log;
mod mirror;
mod peer_messages;
mod requests;
mod resync;
mod scrub;
mod submissions;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use samite_arena::Arena;
use samite_metrics::{MetricValues, registry};
use samite_placement::ClusterMap;
use samite_transport::server::{
    ConnId, ConnectionPeer, NodeDialler, NodeService, ReplySink, SharedArena, SharedMemoryWork,
};
use samite_types::{Clock, Epoch, ErrorKind, NodeId, RequestId, Result, ShardId, SystemClock};
use samite_wire::frame::{CheckedHeader, FrameKind};
use samite_wire::op::ReplyHeader;

use crate::cold_reads::ColdReads;
use crate::deferred_replies::{DeferredReplies, DeferredReply};
use crate::delegation_waiters::{DelegationWaiters, WaitingWork};
use crate::durable::ShardLog;
use crate::faults;
use crate::grants::{BlockGrantTable, BlockGranter};
use crate::joined_requests::{JoinedAsker, JoinedRequests};
use crate::link_counts::LinkCounts;
use crate::lock_connections::LockConnections;
use crate::map_watchers::MapWatchers;
use crate::mutex::lock;
use crate::partitions::OpenPartitions;
use crate::peer_channel::{PeerChannel, PeerDestination};
use crate::presence::ClientConnections;
use crate::reply::ReplyBuffers;
use crate::request_account::RequestAccounts;
use crate::resync_throttle::ResyncThrottle;
use crate::scrub::ScrubSchedule;
use crate::shared::NodeShared;
use crate::submissions::ShardSubmissions;

/// The service behind one event loop.
pub(crate) struct ShardService {
    id: ShardId,
    shared: Arc<NodeShared>,
    /// The map by which this shard serves.
    map: Option<Arc<ClusterMap>>,
    partitions: OpenPartitions,
    arena: Arc<Arena>,
    grants: BlockGrantTable<ConnId>,
    /// Submission queues of the connections.
    queues: HashMap<ConnId, u16>,
    clients: ClientConnections<ConnId>,
    links: LinkCounts<ConnId>,
    lock_connections: LockConnections<ConnId>,
    watchers: MapWatchers<ConnId>,
    joins: JoinedRequests<JoinedAsker>,
    waiters: DelegationWaiters<WaitingWork>,
    cold_reads: ColdReads<WaitingWork>,
    deferred: DeferredReplies<DeferredReply>,
    submissions: ShardSubmissions,
    /// The log of durable datasets, if this node keeps one.
    durable: Option<ShardLog>,
    channel: PeerChannel,
    resync: ResyncThrottle,
    scrub: ScrubSchedule,
    buffers: ReplyBuffers,
    accounts: RequestAccounts,
    /// Metrics say that something waits.
    tells_waiting: bool,
}

impl ShardService {
    pub(crate) fn new(
        id: ShardId,
        shared: Arc<NodeShared>,
        (partitions, durable): (OpenPartitions, Option<ShardLog>),
        arena: Arc<Arena>,
        granted: Arc<AtomicU64>,
        dialler: NodeDialler,
    ) -> Self {
        let submissions = ShardSubmissions::new(Arc::clone(&arena), id, shared.shards());
        let grants = BlockGrantTable::new(BlockGranter::new(Arc::clone(&arena), granted));
        let scrub = ScrubSchedule::new(shared.scrub_interval);
        Self {
            id,
            shared,
            map: None,
            partitions,
            arena,
            grants,
            queues: HashMap::new(),
            clients: ClientConnections::default(),
            links: LinkCounts::default(),
            lock_connections: LockConnections::default(),
            watchers: MapWatchers::default(),
            joins: JoinedRequests::default(),
            waiters: DelegationWaiters::default(),
            cold_reads: ColdReads::default(),
            deferred: DeferredReplies::default(),
            submissions,
            durable,
            channel: PeerChannel::new(dialler),
            resync: ResyncThrottle::default(),
            scrub,
            buffers: ReplyBuffers::default(),
            accounts: RequestAccounts::default(),
            tells_waiting: false,
        }
    }

    fn metrics(&self) -> &MetricValues {
        self.shared.metrics.shard(usize::from(self.id.get()))
    }

    /// Requests of clients that were served so far.
    fn requests_served(&self) -> u64 {
        self.metrics().counter(registry::REQUESTS_RECEIVED)
    }

    fn reply_header(&self, refused: Option<ErrorKind>) -> ReplyHeader {
        let map_epoch = self.map.as_ref().map_or(Epoch(0), |map| map.epoch());
        ReplyHeader { refused, map_epoch, name_space_generation: Epoch(0) }
    }

    fn take_buffers(&mut self) -> ReplyBuffers {
        std::mem::take(&mut self.buffers)
    }

    fn send(
        &mut self,
        conn: ConnId,
        id: RequestId,
        mut buffers: ReplyBuffers,
        out: &mut ReplySink,
    ) {
        out.send(conn, FrameKind::Reply, id, buffers.body(), buffers.payload());
        buffers.clear();
        self.buffers = buffers;
    }

    /// Lets others see how much there is.
    fn note_metrics(&self) {
        let metrics = self.metrics();
        metrics.set(registry::RECORDS, self.partitions.records());
        metrics.set(registry::LEAKED_ORPHANS, self.partitions.leaked_orphans());
    }

    /// Takes up the newest map, if there is one.
    fn refresh(&mut self, out: &mut ReplySink) {
        let served = self.map.as_ref().map_or(Epoch(0), |map| map.epoch());
        if self.shared.epoch() == served {
            return;
        }
        let Some(map) = self.shared.map() else { return };
        // By the old map, under which it was submitted.
        self.lock_all_records();
        self.map = Some(Arc::clone(&map));
        self.take_up_groups(&map, out);
        self.unlock_exclusive(None);
        self.note_metrics();
        self.shared.shard_serves(self.id, map.epoch());
        self.answer_watches(&map, out);
        self.send_lock_waits_on(out);
    }
}

impl NodeService for ShardService {
    fn request(
        &mut self,
        conn: ConnId,
        peer: &ConnectionPeer,
        header: &CheckedHeader,
        body: &[u8],
        payload: &[u8],
        out: &mut ReplySink,
    ) {
        self.apply_submissions();
        self.refresh(out);
        let is_request = u64::from(header.kind == FrameKind::Request);
        self.metrics().add(registry::REQUESTS_RECEIVED, is_request);
        self.metrics().set(registry::CONNECTIONS, out.connections() as u64);
        match header.kind {
            FrameKind::Request => self.data(conn, peer, header, body, payload, out),
            FrameKind::Control => self.control(conn, peer, header.request_id, body, out),
            FrameKind::Peer => {
                if let Some(node) = peer.node {
                    let back = PeerDestination::Back(self.id, conn);
                    self.take_frame((node, back), conn, (body, payload), out);
                }
            }
            _ => out.close(conn, ErrorKind::Corrupt, "a frame that is no request"),
        }
        self.end_batch(out);
    }

    fn opened(&mut self, conn: ConnId, peer: &ConnectionPeer) {
        self.links.opened(conn, peer.node.is_some(), peer.transport);
        self.links.note(self.metrics());
        if peer.node.is_some() {
            return;
        }
        self.clients.opened(conn, peer.client);
        lock(&self.shared.presence).came(peer.client);
    }

    fn reply(
        &mut self,
        conn: ConnId,
        _: &CheckedHeader,
        body: &[u8],
        payload: &[u8],
        out: &mut ReplySink,
    ) {
        self.apply_submissions();
        self.refresh(out);
        if let Some(node) = self.channel.node_at(conn) {
            self.take_frame((node, PeerDestination::Node(node)), conn, (body, payload), out);
            self.end_batch(out);
        }
    }

    fn connected(&mut self, ticket: u64, made: Result<(ConnId, NodeId)>, out: &mut ReplySink) {
        self.refresh(out);
        self.channel.dialled(ticket, made, out);
        self.settle(out);
    }

    fn broken(&mut self, conn: ConnId) {
        self.lock_connections.broke(conn);
    }

    fn closed(&mut self, conn: ConnId) {
        let now = SystemClock.monotonic();
        self.links.closed(conn);
        self.links.note(self.metrics());
        if let Some(node) = self.channel.closed(conn, now) {
            return self.resync.lost(node, now);
        }
        if let Some(client) = self.clients.closed(conn)
            && lock(&self.shared.presence).left(client)
        {
            self.clients.departs(client, now);
        }
        self.watchers.closed(conn);
        self.locks_closed(conn);
        self.revocations_closed(conn);
        self.shared.follower_left((self.id, conn));
        let connections = self.metrics().gauge(registry::CONNECTIONS);
        self.metrics().set(registry::CONNECTIONS, connections.saturating_sub(1));
    }

    fn give_queue(&mut self, conn: ConnId, peer: &ConnectionPeer) -> Option<u16> {
        let queue = self.arena.give_queue(peer.client)?;
        self.queues.insert(conn, queue);
        Some(queue)
    }

    fn released(&mut self, conn: ConnId) {
        self.take_back(conn);
    }

    fn is_about_faults(&self, header: &CheckedHeader, body: &[u8]) -> bool {
        faults::is_about_faults(header, body)
    }

    fn poll(&mut self) -> SharedMemoryWork {
        self.poll_submissions()
    }

    fn wakeup(&mut self, out: &mut ReplySink) {
        self.answer_submissions();
        self.refresh(out);
        self.send_watches_on(out);
        self.take_messages(out);
        self.note_durable(out);
        self.note_scrub();
        self.end_batch(out);
    }

    fn timer_at(&self) -> Option<Duration> {
        let timers = [
            self.waiters.next(),
            self.clients.next(),
            self.lock_connections.next(),
            self.partitions.next_timer(),
            self.resync.next(),
            self.scrub.next(),
            self.checkpoint_due(),
        ];
        timers.into_iter().flatten().min()
    }

    fn timer_due(&mut self, out: &mut ReplySink) {
        self.apply_submissions();
        self.see_off();
        self.see_off_lockers(out);
        self.retry_waiters(out);
        self.tick_partitions(out);
        self.throttle_resync(out);
        self.keep_scrubbing(out);
        self.advance_checkpoints(out);
        self.end_batch(out);
    }

    fn map_epoch(&self) -> Epoch {
        self.shared.epoch()
    }

    fn arena(&self) -> Option<SharedArena<'_>> {
        Some(SharedArena { fd: self.arena.fd(), len: self.arena.layout().total_len() })
    }
}
