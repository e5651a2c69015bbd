//! The way to a shard for other threads of the node: a queue and the shard's waker.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use samite_mirror::durable::PlaceId;
use samite_transport::server::{ConnId, LoopWaker};
use samite_types::{ClientId, Epoch, NodeId, Position, ShardId};
use samite_wire::control::ControlReply;
use samite_wire::membership::MemberReport;
use samite_wire::peer::PeerService;

use crate::control_reply::ReplyTo;
use crate::grants::ConnectionGrants;
use crate::joined_requests::PartialOutcome;
use crate::mutex::lock;
use crate::peer_channel::{PeerDestination, PeerFrame};
use crate::revocations::ReturnedDelegations;

/// Most bytes of requests that wait in one inbox or are under way from it.
const COST_MAX: usize = 64 << 20;
/// A request counts for no less, so that there are at most 1,024 of them.
const COST_MIN: usize = 64 << 10;

/// A request of another shard's connection; the receiver applies the operations on its own partitions.
pub(crate) struct ShardTask {
    /// The shard that asks, and by which number it knows the request.
    pub from: ShardId,
    pub join: u64,
    pub client: ClientId,
    /// The client copies large values from the arena.
    pub reads_in_place: bool,
    /// Most bytes of payload in the reply's frame.
    pub payload_max: usize,
    pub body: Arc<[u8]>,
    pub payload: Arc<[u8]>,
    /// Blocks that the operations of this shard name.
    pub grants: ConnectionGrants,
    pub cost: InboxCost,
    /// What it reads was read ahead, or need not be.
    pub is_read: bool,
}

/// The result of a [`ShardTask`].
pub(crate) struct ShardAnswer {
    pub join: u64,
    pub outcome: PartialOutcome,
    /// Blocks that were not used.
    pub unused: ConnectionGrants,
}

/// Messages about this shard's partitions that came to another shard.
pub(crate) struct PassedMessages {
    pub service: PeerService,
    pub node: NodeId,
    /// Where answers go.
    pub back: PeerDestination,
    pub body: Arc<[u8]>,
    pub payload: Arc<[u8]>,
    pub cost: InboxCost,
}

/// A peer message that another shard has written, to go back by a connection of this one.
pub(crate) struct PassedFrame {
    pub conn: ConnId,
    pub frame: PeerFrame,
    /// Given back when it is sent.
    pub _cost: InboxCost,
}

/// The contents of an inbox.
pub(crate) enum InboxMessage {
    Task(ShardTask),
    /// At most one for each task that this shard has sent, so their number is bounded by the tasks'.
    Answer(ShardAnswer),
    /// At most one for each answer that has named the delegations to give back, and of these one
    /// waits for a client.
    Returned(ReturnedDelegations),
    /// At most one for each job that the worker has accepted, and for each question that waits.
    Control(ReplyTo, ControlReply),
    /// A client is gone for good. At most one for each connection that was closed.
    Gone(ClientId),
    /// A client can write to this submission queue no more. At most one for each queue.
    Released(u16),
    /// Messages of another node about this shard's partitions; they take room like tasks.
    Passed(PassedMessages),
    /// The coordinator has answered, with the map of this epoch, a report that a member has missed something. At most one for each report, which wait in a
    /// bounded queue of their own and are made again only after a while.
    Reported(MemberReport, Epoch),
    /// A request for what this shard has of a partition; takes room.
    Copy(ReplyTo, PlaceId, InboxCost),
    /// Answers to such, to be sent by a connection of this shard; they take room, too.
    Frame(PassedFrame),
    /// A batch of a partition is committed, with its entries up to here. At most one for each
    /// partition.
    Committed(PlaceId, Option<Position>),
    /// The reads for which a request waits were done. At most one for each such request.
    ReadAhead(u64),
    /// A sign of life is wanted. One at a time.
    Beat,
}

/// The inbox of one shard.
pub(crate) struct ShardInbox {
    queue: Mutex<VecDeque<InboxMessage>>,
    cost: Arc<AtomicUsize>,
    waker: LoopWaker,
}

/// Room taken in an inbox; given back when dropped.
pub(crate) struct InboxCost {
    bytes: usize,
    inbox: Arc<AtomicUsize>,
}

impl Drop for InboxCost {
    fn drop(&mut self) {
        self.inbox.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl ShardInbox {
    pub(crate) fn new(waker: LoopWaker) -> Self {
        Self { queue: Mutex::default(), cost: Arc::default(), waker }
    }

    /// Takes room for a task of `len` bytes; `None` when there is none left.
    pub(crate) fn reserve(&self, len: usize) -> Option<InboxCost> {
        let bytes = len.max(COST_MIN);
        let cost = InboxCost { bytes, inbox: Arc::clone(&self.cost) };
        // On failure the drop of `cost` takes back the addition.
        (self.cost.fetch_add(bytes, Ordering::Relaxed) + bytes <= COST_MAX).then_some(cost)
    }

    /// Adds a message and wakes the shard.
    pub(crate) fn send(&self, message: InboxMessage) {
        lock(&self.queue).push_back(message);
        self.waker.wake();
    }

    /// Wakes the shard.
    pub(crate) fn wake(&self) {
        self.waker.wake();
    }

    /// Messages that wait.
    pub(crate) fn count(&self) -> usize {
        lock(&self.queue).len()
    }

    /// Takes the oldest message.
    pub(crate) fn take(&self) -> Option<InboxMessage> {
        lock(&self.queue).pop_front()
    }
}
