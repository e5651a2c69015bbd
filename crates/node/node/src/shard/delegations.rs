//! Delegations on records as the shard deals with them: changes wait for those of others, which are
//! recalled when they are long (I12).

use std::collections::HashMap;
use std::time::Duration;

use samite_metrics::registry;
use samite_mirror::ApplyTime;
use samite_partition::DelegationHolder;
use samite_placement::shard_of;
use samite_transport::server::{ConnId, ReplySink};
use samite_types::{ClientId, Clock, DatasetId, PartitionId, ShardId, SystemClock};
use samite_wire::control::ControlReply;
use samite_wire::op::OperationRequest;

use super::ShardService;
use crate::budget::ReplyBudget;
use crate::control_reply::ReplyTo;
use crate::delegation_waiters::{DelegationTurn, WaitingWork};
use crate::inbox::InboxMessage;
use crate::partitions::DatasetIndex;
use crate::revocations::{
    RecalledDelegation, RecalledRecords, ReturnedDelegations, SHORT_TERM_MAX,
};

impl ShardService {
    /// The time, if delegations have anything to do with the request at hand; else zero.
    pub(super) fn time_for(&mut self, budget: &ReplyBudget) -> Duration {
        let is_idle = self.waiters.is_empty() && !self.partitions.has_delegations();
        if budget.lease_term.is_zero() && is_idle {
            return Duration::ZERO;
        }
        let now = SystemClock.monotonic();
        self.partitions.delegations_at(now);
        now
    }

    /// Whether the operations of `request` on this shard's partitions may be carried out at `now`.
    /// When they have to wait, no delegations are granted on what they change from here on, and
    /// long ones are recalled (I12). `len`: its bytes, if they count.
    pub(super) fn may_run(
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
        let (mut stands, mut is_behind) = (None, false);
        let mut held: Vec<(Box<[u8]>, PartitionId, DelegationHolder)> = Vec::new();
        for operation in mine() {
            let partition = operation.partition;
            let until = self.partitions.delegations_against(
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
            stands = stands.max(until);
            is_behind |= self.partitions.is_awaited(slot, operation);
        }
        let turn = self.waiters.turn(stands, is_behind, len);
        if let DelegationTurn::Later(_) = turn {
            // A client that completes operations early counts on delegations that nobody waits for.
            self.lock_all_records();
            for operation in mine() {
                self.partitions.wait_for(slot, operation);
            }
            for (key, partition, DelegationHolder { client, until }) in held {
                let recalled = RecalledDelegation { partition, until };
                self.revoke(client, (request.header.dataset, &key), recalled);
            }
        }
        turn
    }

    /// Has work wait, at most until then.
    pub(super) fn park(&mut self, work: WaitingWork, until: Duration) {
        self.metrics().add(registry::DELEGATION_WAITS, 1);
        self.park_again(work, until);
    }

    fn park_again(&mut self, work: WaitingWork, until: Duration) {
        let len = work.len();
        self.waiters.push(work, len, until);
    }

    /// Carries out the requests that need not wait any more, in the order in which they came.
    pub(super) fn retry_waiters(&mut self, out: &mut ReplySink) {
        if self.waiters.is_empty() {
            return;
        }
        self.partitions.clear_waits();
        for work in self.waiters.take_all() {
            match work {
                WaitingWork::Request { conn, peer, id, body, payload, since } => {
                    let frame = (&*body, &*payload);
                    if let Some(until) = self.serve(conn, &peer, id, frame, Some(since), out) {
                        let work = WaitingWork::Request { conn, peer, id, body, payload, since };
                        self.park_again(work, until);
                    }
                }
                WaitingWork::Task(task) => self.task(task, out),
            }
        }
    }

    /// Recalls a delegation.
    fn revoke(&self, client: ClientId, record: (DatasetId, &[u8]), recalled: RecalledDelegation) {
        self.metrics().add(registry::DELEGATION_RECALLS, 1);
        if let Some((to, reply)) = self.shared.revocations.revoke(client, record, recalled) {
            self.shared.inboxes[usize::from(to.shard.get())].send(InboxMessage::Control(to, reply));
        }
    }

    /// A client listens for revocations, and gives back the delegations that it was told of before.
    pub(super) fn revocations(
        &mut self,
        to: ReplyTo,
        client: ClientId,
        done: u64,
        out: &mut ReplySink,
    ) -> Option<ControlReply> {
        let (answers, records) = self.shared.revocations.ask(client, to, done);
        for (to, reply) in answers {
            // The question that this one ends may have come to another shard.
            self.shared.inboxes[usize::from(to.shard.get())].send(InboxMessage::Control(to, reply));
        }
        let shards = self.shared.shards();
        let mut by_shard: HashMap<ShardId, RecalledRecords> = HashMap::new();
        for (record, revoked) in records {
            let shard = shard_of(revoked.partition, shards);
            by_shard.entry(shard).or_default().insert(record, revoked);
        }
        for (shard, records) in by_shard {
            let returned = ReturnedDelegations { client, records };
            if shard == self.id {
                self.returned(&returned, out);
            } else {
                self.shared.inboxes[usize::from(shard.get())]
                    .send(InboxMessage::Returned(returned));
            }
        }
        None
    }

    /// Delegations on records of this shard were given back: requests that wait for them may go on.
    pub(super) fn returned(&mut self, returned: &ReturnedDelegations, out: &mut ReplySink) {
        self.metrics().add(registry::DELEGATION_RETURNS, returned.records.len() as u64);
        for ((dataset, key), RecalledDelegation { partition, until }) in &returned.records {
            let place = (*dataset, *partition);
            self.partitions.release_delegation(place, returned.client, key, *until);
        }
        self.retry_waiters(out);
    }

    pub(super) fn revocations_closed(&self, conn: ConnId) {
        self.shared.revocations.left(|from| (from.shard, from.conn) == (self.id, conn));
    }
}
