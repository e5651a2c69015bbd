//! Requests that wait for delegations on records to end.
//!
//! A change of a record on which another client has a delegation waits, whole and before anything
//! of it is done, until the delegation has run out or was given back. Waiting requests keep their
//! order: a later request that would change the same records waits behind them. While something
//! waits, no new delegation is granted on what it changes, so it waits for one term at most.

use std::collections::VecDeque;
use std::time::Duration;

use samite_mirror::ApplyTime;
use samite_partition::DelegationHolder;
use samite_placement::shard_of;
use samite_transport::server::{ConnId, ConnectionPeer, ReplySink};
use samite_types::{ClientId, Clock, PartitionId, RequestId, SystemClock};
use samite_wire::op::OperationRequest;

use crate::budget::ReplyBudget;
use crate::inbox::ShardTask;
use crate::partitions::DatasetIndex;
use crate::revocations::{RecalledDelegation, SHORT_TERM_MAX};
use crate::shard::ShardService;

/// Most requests of connections that wait at one shard, and most bytes of them; tasks of other shards have their own bound.
const PARKED_MAX: usize = 1024;
const PARKED_LEN_MAX: usize = 16 << 20;

/// A waiting request.
pub(crate) enum WaitingWork {
    /// A request of a connection of this shard.
    Request { conn: ConnId, peer: ConnectionPeer, id: RequestId, body: Vec<u8>, payload: Vec<u8> },
    /// A task that another shard has passed on.
    Task(ShardTask),
}

impl WaitingWork {
    const fn len(&self) -> usize {
        match self {
            Self::Request { body, payload, .. } => body.len() + payload.len(),
            Self::Task(_) => 0,
        }
    }
}

/// Work that waits, oldest first.
#[derive(Default)]
pub(crate) struct DelegationWaiters {
    waiting: VecDeque<(WaitingWork, Duration)>,
    len: usize,
}

impl DelegationWaiters {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// End of the first delegation that something waits for.
    pub(crate) fn next(&self) -> Option<Duration> {
        self.waiting.iter().map(|(_, until)| *until).min()
    }

    fn has_room(&self, len: usize) -> bool {
        self.waiting.len() < PARKED_MAX && self.len + len <= PARKED_LEN_MAX
    }

    fn push(&mut self, work: WaitingWork, until: Duration) {
        self.len += work.len();
        self.waiting.push_back((work, until));
    }
}

/// Whether a request may be carried out.
pub(crate) enum DelegationTurn {
    /// It may.
    Now,
    /// It has to wait, at most until then.
    Later(Duration),
    /// It would have to wait, and too much waits already.
    Never,
}

impl ShardService {
    /// The time, if delegations have anything to do with the request at hand; else zero.
    pub(crate) fn time_for(&mut self, budget: &ReplyBudget) -> Duration {
        if budget.lease_term.is_zero() && self.parked.is_empty() && !self.partitions.has_leases() {
            return Duration::ZERO;
        }
        let now = SystemClock.monotonic();
        self.partitions.leases_at(now);
        now
    }

    /// Whether the operations of `request` on this shard's partitions may be carried out at `now`.
    /// When they have to wait, no delegations are granted on what they change from here on, and
    /// long ones are recalled (I12). `len`: its bytes, if they count.
    pub(crate) fn may_run(
        &mut self,
        slot: DatasetIndex,
        client: ClientId,
        request: &OperationRequest<'_>,
        (now, at): (Duration, ApplyTime),
        len: Option<usize>,
    ) -> DelegationTurn {
        if now == Duration::ZERO && at.now == Duration::ZERO {
            return DelegationTurn::Now;
        }
        let now = now.max(at.now);
        let shards = self.shared.shards();
        let is_alone = request.operations.len() == 1;
        let id = self.id;
        let mine = || {
            let all = request.operations.iter();
            all.filter(move |op| op.is_mutation() && shard_of(op.partition, shards) == id)
        };
        let (mut until, mut is_behind) = (None, false);
        let mut held: Vec<(Box<[u8]>, PartitionId, DelegationHolder)> = Vec::new();
        for operation in mine() {
            let partition = operation.partition;
            let stands = self.partitions.leases_against(
                slot,
                client,
                (operation, is_alone),
                now,
                &mut |key, holder| {
                    if holder.until > now + SHORT_TERM_MAX {
                        held.push((key.into(), partition, holder));
                    }
                },
            );
            until = until.max(stands);
            is_behind |= self.partitions.is_awaited(slot, operation);
        }
        // A request that waits behind others only has no timer of its own: it is looked at when
        // they are.
        let Some(until) = until.or(is_behind.then_some(Duration::MAX)) else {
            return DelegationTurn::Now;
        };
        if len.is_some_and(|len| !self.parked.has_room(len)) {
            return DelegationTurn::Never;
        }
        // A client that completes operations early counts on delegations that nobody waits for.
        self.lock_all_records();
        for operation in mine() {
            self.partitions.wait_for(slot, operation);
        }
        for (key, partition, DelegationHolder { client, until }) in held {
            self.revoke(
                client,
                (request.header.dataset, &key),
                RecalledDelegation { partition, until },
            );
        }
        DelegationTurn::Later(until)
    }

    pub(crate) fn park(&mut self, work: WaitingWork, until: Duration) {
        self.parked.push(work, until);
    }

    /// Carries out the requests that need not wait any more, in the order in which they came.
    pub(crate) fn retry_waiters(&mut self, out: &mut ReplySink) {
        if self.parked.is_empty() {
            return;
        }
        self.partitions.clear_waits();
        for (work, _) in std::mem::take(&mut self.parked).waiting {
            match work {
                WaitingWork::Request { conn, peer, id, body, payload } => {
                    if let Some(until) = self.serve(conn, &peer, id, &body, &payload, out) {
                        self.park(WaitingWork::Request { conn, peer, id, body, payload }, until);
                    }
                }
                WaitingWork::Task(task) => self.task(task, out),
            }
        }
    }
}
