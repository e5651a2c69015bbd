//! One shard: the way of a data request through the node.
//!
//! ```text
//!  decode ─ admit (map, dataset, ownership) ─┬─ all mine ─── apply each, encode as it goes ─── send
//!                                            └─ some elsewhere ─ tasks to their shards ─┐
//!                                                apply mine ─── join the answers ───────┴───── send
//! ```

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use samite_backend::Arena;
use samite_partition::{Context, Grants, NoGrants};
use samite_placement::{ClusterMap, shard_of};
use samite_transport::server::{ConnId, Peer, Replies, Service, SharedArena};
use samite_types::{Epoch, ErrorKind, RequestId, ShardId};
use samite_wire::frame::{FrameKind, Header};
use samite_wire::limits::PAYLOAD_LEN_MAX;
use samite_wire::op::{BlockRef, List, ReplyHeader, Request, RequestHeader};

use crate::budget::Budget;
use crate::control::Watch;
use crate::grants::{ConnectionGrants, Granter, named};
use crate::join::Join;
use crate::partitions::{Partitions, Slot};
use crate::reply::{Buffers, ReplyBuilder};
use crate::shared::{Figures, Shared};

/// The service behind one event loop.
pub(crate) struct Shard {
    pub(crate) id: ShardId,
    pub(crate) shared: Arc<Shared>,
    /// The map by which this shard serves.
    pub(crate) map: Option<Arc<ClusterMap>>,
    pub(crate) partitions: Partitions,
    pub(crate) granter: Granter,
    pub(crate) grants: HashMap<ConnId, ConnectionGrants>,
    pub(crate) watches: HashMap<ConnId, Watch>,
    pub(crate) joins: HashMap<u64, Join>,
    pub(crate) next_join: u64,
    arena: Arc<Arena>,
    buffers: Buffers,
}

impl Shard {
    pub(crate) fn new(
        id: ShardId,
        shared: Arc<Shared>,
        partitions: Partitions,
        arena: Arc<Arena>,
        granted: Arc<AtomicU64>,
    ) -> Self {
        Self {
            id,
            shared,
            map: None,
            partitions,
            granter: Granter::new(Arc::clone(&arena), granted),
            grants: HashMap::new(),
            watches: HashMap::new(),
            joins: HashMap::new(),
            next_join: 0,
            arena,
            buffers: Buffers::default(),
        }
    }

    pub(crate) fn figures(&self) -> &Figures {
        &self.shared.figures[usize::from(self.id.get())]
    }

    fn data(
        &mut self,
        conn: ConnId,
        peer: &Peer,
        header: &Header,
        body: &[u8],
        payload: &[u8],
        out: &mut Replies,
    ) {
        let request = match Request::decode(body, payload) {
            Ok(request) => request,
            Err(error) => return out.close(conn, ErrorKind::Corrupt, &format!("request: {error}")),
        };
        count(&self.figures().operations, request.operations.len() as u64);
        let admitted = self
            .admit(&request.header, &request)
            .and_then(|slot| Ok((slot, Budget::of(&request, PAYLOAD_LEN_MAX)?)));
        let (slot, budget) = match admitted {
            Ok(admitted) => admitted,
            Err(kind) => return self.refuse(conn, header.request_id, &request, kind, out),
        };
        let shards = self.shared.shards();
        let mine = |partition| shards == 1 || shard_of(partition, shards) == self.id;
        if request.operations.iter().all(|operation| mine(operation.partition)) {
            self.apply_all(conn, peer, header.request_id, &request, &slot, &budget, out);
        } else {
            self.scatter(conn, peer, header.request_id, (body, payload), &request, &budget, out);
        }
    }

    /// Checks that this node may carry out the request, by the newest map it has.
    fn admit(&mut self, header: &RequestHeader, request: &Request<'_>) -> Result<Slot, ErrorKind> {
        let map = self.map.as_ref().ok_or(ErrorKind::Busy)?;
        // A client with a newer map knows better: it is to ask again when that map has come here too.
        let behind = header.map_epoch > map.epoch();
        for operation in &request.operations {
            match map.node_of(operation.partition) {
                Some(node) if node == self.shared.node => {}
                Some(_) if behind => return Err(ErrorKind::Busy),
                Some(_) => return Err(ErrorKind::StaleMap),
                None => return Err(ErrorKind::Invalid),
            }
        }
        let unknown = if behind { ErrorKind::Busy } else { ErrorKind::NotFound };
        self.partitions.dataset(map, header.dataset).ok_or(unknown)
    }

    /// Says why nothing was tried. The blocks that the request names stay with the client.
    pub(crate) fn refuse(
        &mut self,
        conn: ConnId,
        id: RequestId,
        request: &Request<'_>,
        kind: ErrorKind,
        out: &mut Replies,
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

    pub(crate) fn take_buffers(&mut self) -> Buffers {
        std::mem::take(&mut self.buffers)
    }

    pub(crate) fn send(
        &mut self,
        conn: ConnId,
        id: RequestId,
        mut buffers: Buffers,
        out: &mut Replies,
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
        peer: &Peer,
        id: RequestId,
        request: &Request<'_>,
        slot: &Slot,
        budget: &Budget,
        out: &mut Replies,
    ) {
        let header = self.reply_header(None);
        let mut builder =
            ReplyBuilder::new(self.take_buffers(), &header, budget, out.shares_arena(conn));
        let blocks = self.named_blocks(conn, request, budget);
        let context = context(&request.header, budget);
        let mut lease_epoch = Epoch(0);
        let grants: &mut dyn Grants = match self.grants.get_mut(&conn) {
            Some(grants) if budget.has_blocks => grants,
            _ => &mut NoGrants,
        };
        for operation in &request.operations {
            let outcome = self.partitions.apply(
                slot,
                peer.client,
                &context,
                operation,
                grants,
                &mut lease_epoch,
            );
            builder.outcome(outcome, operation.is_mutation());
        }
        let grants = self.regrant(conn, &blocks);
        self.figures().records.store(self.partitions.records(), Ordering::Relaxed);
        let buffers = builder.finish(lease_epoch, &grants);
        self.send(conn, id, buffers, out);
    }

    /// The blocks of `conn` that the request names.
    pub(crate) fn named_blocks(
        &self,
        conn: ConnId,
        request: &Request<'_>,
        budget: &Budget,
    ) -> NamedBlocks {
        if !budget.has_blocks {
            return NamedBlocks::default();
        }
        let offsets = named(&request.operations);
        let held = self.grants.get(&conn).map_or(0, |grants| grants.count(&offsets));
        NamedBlocks { offsets, held }
    }

    /// After a request that named `blocks`: those that were not used go back to the client, and new ones in place of the others.
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

    /// Takes up the newest map, if there is one.
    pub(crate) fn refresh(&mut self, out: &mut Replies) {
        let served = self.map.as_ref().map_or(Epoch(0), |map| map.epoch());
        if self.shared.epoch() == served {
            return;
        }
        let Some(map) = self.shared.map() else { return };
        self.partitions.retain(&map);
        self.figures().records.store(self.partitions.records(), Ordering::Relaxed);
        self.map = Some(Arc::clone(&map));
        self.shared.shard_serves(self.id, map.epoch());
        self.answer_watches(&map, out);
    }
}

/// Blocks that a request names: their offsets, and how many of them its connection held.
#[derive(Debug, Default)]
pub(crate) struct NamedBlocks {
    offsets: Vec<u64>,
    held: usize,
}

pub(crate) const fn context(header: &RequestHeader, budget: &Budget) -> Context {
    Context {
        answered_below: header.answered_below,
        is_retry: header.is_retry,
        lease_epoch: header.lease_epoch,
        body_len_max: budget.share,
    }
}

/// Adds to a figure that only this thread writes: cheaper than an atomic addition.
fn count(figure: &AtomicU64, more: u64) {
    figure.store(figure.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}

impl Service for Shard {
    fn request(
        &mut self,
        conn: ConnId,
        peer: &Peer,
        header: &Header,
        body: &[u8],
        payload: &[u8],
        out: &mut Replies,
    ) {
        self.refresh(out);
        count(&self.figures().requests, 1);
        self.figures().connections.store(out.connections() as u64, Ordering::Relaxed);
        match header.kind {
            FrameKind::Request => self.data(conn, peer, header, body, payload, out),
            FrameKind::Control => self.control(conn, header.request_id, body, out),
            _ => out.close(conn, ErrorKind::Corrupt, "a frame that is no request"),
        }
    }

    fn closed(&mut self, conn: ConnId) {
        self.grants.remove(&conn);
        self.watches.remove(&conn);
        self.shared.follower_left((self.id, conn));
        let connections = &self.figures().connections;
        connections.store(connections.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
    }

    fn wakeup(&mut self, out: &mut Replies) {
        self.refresh(out);
        self.take_messages(out);
    }

    fn map_epoch(&self) -> Epoch {
        self.shared.epoch()
    }

    fn arena(&self) -> Option<SharedArena<'_>> {
        Some(SharedArena { fd: self.arena.fd(), len: self.arena.layout().total_len() })
    }
}
