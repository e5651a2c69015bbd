//! One shard: the way of a data request through the node.
//!
//! ```text
//!  decode ─ admit (map, dataset, ownership) ─┬─ all mine ─── apply each, encode as it goes ─── send
//!                                            └─ some elsewhere ─ tasks to their shards ─┐
//!                                                apply mine ─── join the answers ───────┴───── send
//! ```

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use samite_backend::Arena;
use samite_mirror::ApplyTime;
use samite_partition::{BlockGrants, NoGrants, RequestContext};
use samite_placement::{ClusterMap, shard_of};
use samite_transport::server::{
    ConnId, ConnectionPeer, NodeDialler, NodeService, ReplySink, SharedArena, SharedMemoryWork,
};
use samite_types::{
    ClientId, Clock, Epoch, ErrorKind, NodeId, RequestId, Result, ShardId, SystemClock, TargetId,
};
use samite_wire::frame::{CheckedHeader, FrameKind};
use samite_wire::limits::PAYLOAD_LEN_MAX;
use samite_wire::op::{BlockRef, List, Operation, OperationRequest, ReplyHeader, RequestHeader};

use crate::budget::ReplyBudget;
use crate::control::MapWatch;
use crate::deferred_replies::{DeferredReplies, DeferredReply};
use crate::delegation_waiters::{DelegationTurn, DelegationWaiters, WaitingWork};
use crate::durable::ShardLog;
use crate::grants::{BlockGranter, ConnectionGrants, named};
use crate::inbox::InboxMessage;
use crate::join::JoinedRequest;
use crate::partitions::{ApplyContext, DatasetIndex, OpenPartitions};
use crate::peer_output::{PeerDestination, PeerOutput};
use crate::peers::PeerLines;
use crate::presence::ClientDepartures;
use crate::reply::{ReplyBuffers, ReplyBuilder};
use crate::resync_throttle::ResyncThrottle;
use crate::scrub::ShardScrub;
use crate::shared::{NodeShared, ShardMetrics, lock};
use crate::submissions::ShardSubmissions;
use crate::{access, faults};

/// The service behind one event loop.
pub(crate) struct ShardService {
    pub(crate) id: ShardId,
    pub(crate) shared: Arc<NodeShared>,
    /// The map by which this shard serves.
    pub(crate) map: Option<Arc<ClusterMap>>,
    pub(crate) partitions: OpenPartitions,
    pub(crate) granter: BlockGranter,
    pub(crate) grants: HashMap<ConnId, ConnectionGrants>,
    pub(crate) watches: HashMap<ConnId, MapWatch>,
    /// The client of each connection.
    clients: HashMap<ConnId, ClientId>,
    departures: ClientDepartures,
    /// Clients with open references here that were not seen since another node decided on them.
    pub(crate) inherited: ClientDepartures,
    /// Connections on which file locks were asked for.
    pub(crate) has_locks: HashSet<ConnId>,
    /// Clients with locks whose last connection broke.
    pub(crate) lock_departures: ClientDepartures,
    /// The connection that is closed next, if it broke.
    pub(crate) broken: Option<ConnId>,
    pub(crate) joins: HashMap<u64, JoinedRequest>,
    pub(crate) next_join: u64,
    pub(crate) parked: DelegationWaiters,
    /// The log of durable datasets, if this node keeps one.
    pub(crate) durable: Option<ShardLog>,
    pub(crate) peers: PeerLines,
    pub(crate) dialler: NodeDialler,
    pub(crate) outbox: PeerOutput,
    pub(crate) held: DeferredReplies,
    /// Where answers go to targets that have sent something in this request batch.
    pub(crate) backs: Vec<(TargetId, PeerDestination)>,
    pub(crate) pace: ResyncThrottle,
    pub(crate) scrub: ShardScrub,
    pub(crate) arena: Arc<Arena>,
    pub(crate) posts: ShardSubmissions,
    buffers: ReplyBuffers,
}

impl ShardService {
    pub(crate) fn new(
        id: ShardId,
        shared: Arc<NodeShared>,
        partitions: OpenPartitions,
        arena: Arc<Arena>,
        granted: Arc<AtomicU64>,
        dialler: NodeDialler,
    ) -> Self {
        let posts = ShardSubmissions::new(Arc::clone(&arena), id, shared.shards());
        Self {
            id,
            shared,
            map: None,
            partitions,
            granter: BlockGranter::new(Arc::clone(&arena), granted),
            grants: HashMap::new(),
            watches: HashMap::new(),
            clients: HashMap::new(),
            departures: ClientDepartures::default(),
            inherited: ClientDepartures::default(),
            has_locks: HashSet::new(),
            lock_departures: ClientDepartures::default(),
            broken: None,
            joins: HashMap::new(),
            next_join: 0,
            parked: DelegationWaiters::default(),
            durable: None,
            peers: PeerLines::default(),
            dialler,
            outbox: PeerOutput::default(),
            held: DeferredReplies::default(),
            backs: Vec::new(),
            pace: ResyncThrottle::default(),
            scrub: ShardScrub::default(),
            arena,
            posts,
            buffers: ReplyBuffers::default(),
        }
    }

    pub(crate) fn metrics(&self) -> &ShardMetrics {
        &self.shared.figures[usize::from(self.id.get())]
    }

    fn data(
        &mut self,
        conn: ConnId,
        peer: &ConnectionPeer,
        header: &CheckedHeader,
        body: &[u8],
        payload: &[u8],
        out: &mut ReplySink,
    ) {
        let id = header.request_id;
        if let Some(until) = self.serve(conn, peer, id, body, payload, out) {
            let (body, payload) = (body.to_vec(), payload.to_vec());
            self.park(WaitingWork::Request { conn, peer: *peer, id, body, payload }, until);
        }
    }

    /// Carries out a request. `Some`: it has to wait, at most until then, and nothing was done.
    pub(crate) fn serve(
        &mut self,
        conn: ConnId,
        peer: &ConnectionPeer,
        id: RequestId,
        body: &[u8],
        payload: &[u8],
        out: &mut ReplySink,
    ) -> Option<Duration> {
        self.apply_submissions();
        let request = match OperationRequest::decode(body, payload) {
            Ok(request) => request,
            Err(error) => {
                out.close(conn, ErrorKind::Corrupt, &format!("request: {error}"));
                return None;
            }
        };
        if let Some(first) = request.operations.first() {
            self.posts.expect(request.header.dataset, first);
        }
        let admitted = self
            .admit(&request.header, &request)
            .and_then(|slot| Ok((slot, ReplyBudget::of(&request, PAYLOAD_LEN_MAX)?)));
        let (slot, budget) = match admitted {
            Ok(admitted) => admitted,
            Err(kind) => {
                self.refuse(conn, id, &request, kind, out);
                return None;
            }
        };
        let len = body.len() + payload.len();
        let at = match self.moment_for(slot, peer, &request, len, out) {
            Ok(at) => at,
            Err(kind) => {
                self.refuse(conn, id, &request, kind, out);
                return None;
            }
        };
        self.lock_records(peer.client, &request, &budget);
        let now = self.time_for(&budget);
        match self.may_run(slot, peer.client, &request, (now, at), Some(len)) {
            DelegationTurn::Now => {}
            DelegationTurn::Later(until) => return Some(until),
            DelegationTurn::Never => {
                self.refuse(conn, id, &request, ErrorKind::Busy, out);
                return None;
            }
        }
        count(&self.metrics().operations, request.operations.len() as u64);
        let shards = self.shared.shards();
        let mine = |partition| shards == 1 || shard_of(partition, shards) == self.id;
        if request.operations.iter().all(|operation| mine(operation.partition)) {
            self.apply_all(conn, peer, id, &request, slot, &budget, (now, at, len), out);
        } else {
            self.scatter(conn, peer, id, (body, payload), &request, &budget, (now, at), out);
        }
        None
    }

    /// Whether `peer` may ask for this, and members of mirror groups may try it; the time by which
    /// these judge.
    fn moment_for(
        &mut self,
        slot: DatasetIndex,
        peer: &ConnectionPeer,
        request: &OperationRequest<'_>,
        len: usize,
        out: &ReplySink,
    ) -> Result<ApplyTime, ErrorKind> {
        access::check(&self.partitions.access(slot), peer, request)?;
        if !self.partitions.is_grouped(slot) {
            return Ok(ApplyTime::default());
        }
        let at = self.apply_time();
        self.check_members(slot, request, (at, len), out)?;
        Ok(at)
    }

    /// Checks that this node may carry out the request, by the newest map it has.
    fn admit(
        &mut self,
        header: &RequestHeader,
        request: &OperationRequest<'_>,
    ) -> Result<DatasetIndex, ErrorKind> {
        let map = self.map.as_ref().ok_or(ErrorKind::Busy)?;
        // A client with a newer map knows better: it is to ask again when that map has come here too.
        let behind = header.map_epoch > map.epoch();
        let unknown = if behind { ErrorKind::Busy } else { ErrorKind::NotFound };
        let slot = self.partitions.dataset(map, header.dataset).ok_or(unknown)?;
        let redundancy = self.partitions.redundancy(slot);
        for operation in &request.operations {
            match map.node_of(redundancy, operation.partition) {
                Some(node) if node == self.shared.node => {}
                Some(_) if self.may_read(map, slot, operation) => {}
                Some(_) if behind => return Err(ErrorKind::Busy),
                Some(_) => return Err(ErrorKind::StaleMap),
                None => return Err(ErrorKind::Invalid),
            }
        }
        Ok(slot)
    }

    /// Whether this node, which is not the primary, may answer an operation as a member.
    fn may_read(&self, map: &ClusterMap, slot: DatasetIndex, operation: &Operation<'_>) -> bool {
        let me = TargetId(self.shared.node.get());
        let group = || map.group(self.partitions.redundancy(slot), operation.partition);
        self.partitions.reads_any(slot)
            && operation.only_reads()
            && group().is_some_and(|group| group.members.iter().any(|one| one.target == me))
    }

    /// Says why nothing was tried. The blocks that the request names stay with the client.
    pub(crate) fn refuse(
        &mut self,
        conn: ConnId,
        id: RequestId,
        request: &OperationRequest<'_>,
        kind: ErrorKind,
        out: &mut ReplySink,
    ) {
        let header = self.reply_header(Some(kind));
        let back = match self.grants.get(&conn) {
            Some(grants) => grants.still_held(&named(&request.operations)),
            None => List::new(),
        };
        let buffers = self.take_buffers().refusal(&header, &back);
        self.send(conn, id, buffers, out);
    }

    pub(crate) fn reply_header(&self, refused: Option<ErrorKind>) -> ReplyHeader {
        let map_epoch = self.map.as_ref().map_or(Epoch(0), |map| map.epoch());
        ReplyHeader { refused, map_epoch, lease_epoch: Epoch(0) }
    }

    pub(crate) fn take_buffers(&mut self) -> ReplyBuffers {
        std::mem::take(&mut self.buffers)
    }

    pub(crate) fn send(
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

    /// Every operation is on a partition of this shard: applies them in order, encoding as it goes.
    #[allow(clippy::too_many_arguments, reason = "one call, of what arrived with the request")]
    fn apply_all(
        &mut self,
        conn: ConnId,
        peer: &ConnectionPeer,
        id: RequestId,
        request: &OperationRequest<'_>,
        slot: DatasetIndex,
        budget: &ReplyBudget,
        (now, at, len): (Duration, ApplyTime, usize),
        out: &mut ReplySink,
    ) {
        let header = self.reply_header(None);
        let mut builder =
            ReplyBuilder::new(self.take_buffers(), &header, budget, out.shares_arena(conn));
        let blocks = self.named_blocks(conn, request, budget);
        let term_max = self.lease_term_max(peer.client, budget.lease_term);
        let lends_memory = out.shares_arena(conn);
        let context = context(&request.header, budget, now, term_max);
        let context = RequestContext { lends_memory, ..context };
        let Some(map) = &self.map else { return };
        let grants: &mut dyn BlockGrants = match self.grants.get_mut(&conn) {
            Some(grants) if budget.has_blocks => grants,
            _ => &mut NoGrants,
        };
        let mut course = ApplyContext::new(peer.client, &context, grants, at);
        for operation in &request.operations {
            let known = (slot, &**map);
            let outcome = self.partitions.apply_alone(&self.posts, known, operation, &mut course);
            builder.outcome(outcome, operation.is_mutation());
        }
        let ApplyContext { lease_epoch, seen, .. } = course;
        let grants = self.regrant(conn, &blocks);
        self.unlock_exclusive(Some(peer.client));
        self.note_metrics();
        let buffers = builder.finish(lease_epoch, &grants);
        if seen.is_empty() {
            self.send(conn, id, buffers, out);
        } else {
            self.defer_reply(seen, DeferredReply::Client { conn, id, buffers, grants }, len);
        }
    }

    /// The blocks of `conn` that the request names.
    pub(crate) fn named_blocks(
        &self,
        conn: ConnId,
        request: &OperationRequest<'_>,
        budget: &ReplyBudget,
    ) -> NamedBlocks {
        if !budget.has_blocks {
            return NamedBlocks::default();
        }
        let offsets = named(&request.operations);
        let held = self.grants.get(&conn).map_or(0, |grants| grants.count(&offsets));
        NamedBlocks { offsets, held }
    }

    /// After a request that named `blocks`: the unused ones go back to the client, and new ones in
    /// place of the others.
    pub(crate) fn regrant(&mut self, conn: ConnId, blocks: &NamedBlocks) -> List<BlockRef, 4> {
        let Some(grants) = self.grants.get_mut(&conn) else { return List::new() };
        if blocks.held == 0 {
            return List::new();
        }
        let mut back = grants.still_held(&blocks.offsets);
        let used = blocks.held - back.len();
        back.extend(self.granter.grant(grants, used));
        back
    }

    /// Ends the open references of clients that have been gone for a while.
    fn see_off(&mut self) {
        let now = SystemClock.monotonic();
        while let Some(client) = self.departures.take(now).or_else(|| self.inherited.take(now)) {
            if lock(&self.shared.presence).is_here(client) {
                continue;
            }
            for (inbox, index) in self.shared.inboxes.iter().zip(0..) {
                if ShardId(index) != self.id {
                    inbox.send(InboxMessage::Gone(client));
                }
            }
            self.drop_client(client);
        }
    }

    /// Ends the open references of a client that is gone.
    pub(crate) fn drop_client(&mut self, client: ClientId) {
        self.apply_submissions();
        self.posts.drop_client(client);
        self.partitions.drop_client(client, SystemClock.monotonic());
        self.note_metrics();
    }

    /// Lets others see how much there is.
    pub(crate) fn note_metrics(&self) {
        let figures = self.metrics();
        figures.records.store(self.partitions.records(), Ordering::Relaxed);
        figures.abandoned.store(self.partitions.leaked_orphans(), Ordering::Relaxed);
    }

    /// Takes up the newest map, if there is one.
    pub(crate) fn refresh(&mut self, out: &mut ReplySink) {
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

/// Blocks that a request names: their offsets, and how many of them were granted to its connection.
#[derive(Debug, Default)]
pub(crate) struct NamedBlocks {
    offsets: Vec<u64>,
    held: usize,
}

pub(crate) const fn context(
    header: &RequestHeader,
    budget: &ReplyBudget,
    now: Duration,
    lease_term_max: Duration,
) -> RequestContext {
    RequestContext {
        answered_below: header.answered_below,
        is_retry: header.is_retry,
        lease_epoch: header.lease_epoch,
        body_len_max: budget.share,
        now,
        lease_term_max,
        lends_memory: false,
        promises_leases: false,
    }
}

/// Adds to a figure that only this thread writes: cheaper than an atomic addition.
pub(crate) fn count(figure: &AtomicU64, more: u64) {
    figure.store(figure.load(Ordering::Relaxed) + more, Ordering::Relaxed);
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
        count(&self.metrics().requests, u64::from(header.kind == FrameKind::Request));
        self.metrics().connections.store(out.connections() as u64, Ordering::Relaxed);
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
        self.settle(out);
    }

    fn opened(&mut self, conn: ConnId, peer: &ConnectionPeer) {
        if peer.node.is_some() {
            return;
        }
        self.clients.insert(conn, peer.client);
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
        if let Some(node) = self.peers.at(conn) {
            self.take_frame((node, PeerDestination::Node(node)), conn, (body, payload), out);
            self.settle(out);
        }
    }

    fn connected(&mut self, ticket: u64, made: Result<(ConnId, NodeId)>, out: &mut ReplySink) {
        self.refresh(out);
        self.dialled(ticket, made, out);
        self.settle(out);
    }

    fn broken(&mut self, conn: ConnId) {
        self.broken = Some(conn);
    }

    fn closed(&mut self, conn: ConnId) {
        let now = SystemClock.monotonic();
        if let Some(node) = self.peers.closed(conn, now) {
            return self.pace.lost(node, now);
        }
        if let Some(client) = self.clients.remove(&conn)
            && lock(&self.shared.presence).left(client)
        {
            self.departures.add(client, SystemClock.monotonic());
        }
        self.grants.remove(&conn);
        self.watches.remove(&conn);
        self.locks_closed(conn);
        self.revocations_closed(conn);
        self.shared.follower_left((self.id, conn));
        let connections = &self.metrics().connections;
        connections.store(connections.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
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
        self.settle(out);
    }

    fn alarm_at(&self) -> Option<Duration> {
        let appointments = [
            self.parked.next(),
            self.departures.next(),
            self.inherited.next(),
            self.lock_departures.next(),
            self.partitions.next_timer(),
            self.pace.next(),
            self.scrub.next(),
            self.checkpoint_due(),
        ];
        appointments.into_iter().flatten().min()
    }

    fn alarm(&mut self, out: &mut ReplySink) {
        self.apply_submissions();
        self.see_off();
        self.see_off_lockers(out);
        self.retry_waiters(out);
        self.keep_appointments(out);
        self.throttle_resync(out);
        self.keep_scrubbing(out);
        self.advance_checkpoints(out);
        self.settle(out);
    }

    fn map_epoch(&self) -> Epoch {
        self.shared.epoch()
    }

    fn arena(&self) -> Option<SharedArena<'_>> {
        Some(SharedArena { fd: self.arena.fd(), len: self.arena.layout().total_len() })
    }
}
