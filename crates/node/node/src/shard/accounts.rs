//! Requests as metrics have them: under what they are counted, how long they take, what waits.

use std::time::Duration;

use samite_metrics::registry::{self, WaitQueue};
use samite_transport::server::{ConnectionPeer, ReplySink};
use samite_types::{Clock, SystemClock};

use super::ShardService;
use crate::budget::ReplyBudget;
use crate::deferred_replies::DeferredReply;
use crate::delegation_waiters::WaitingWork;
use crate::durable::ShardLog;
use crate::partitions::DatasetIndex;
use crate::reply::ReplyBuilder;
use crate::request_account::{RequestAccount, RequestAccounts};

/// Tasks and answers of other shards, which do not say since when, are passed over, up to so many.
const LOOKED_AT_MAX: usize = 8;

impl ShardService {
    /// When the request came that is looked at now, if it is to be timed. `came`: it has waited since.
    pub(super) fn clock_in(
        &self,
        budget: &ReplyBudget,
        came: Option<Duration>,
    ) -> Option<Duration> {
        came.or_else(|| self.accounts.times(budget.kind).then(|| SystemClock.monotonic()))
    }

    /// The request is carried out now.
    pub(super) fn begin_account(
        &mut self,
        peer: &ConnectionPeer,
        slot: DatasetIndex,
        budget: &ReplyBudget,
        came: (Option<Duration>, bool),
    ) -> RequestAccount {
        let values = self.shared.metrics.shard(usize::from(self.id.get()));
        if !budget.lease_term.is_zero() {
            values.add(registry::DELEGATION_REQUESTS, 1);
        }
        let (id, map) = (self.partitions.dataset_id(slot), self.map.as_ref());
        let name = || {
            let known = map.and_then(|map| map.dataset_by_id(id));
            known.map(|known| known.spec.name.clone()).unwrap_or_default()
        };
        let counted = (budget.kind, budget.written);
        let place = (&self.shared.metrics, values);
        self.accounts.begin(place, counted, peer.identity.uid, (id, name), came)
    }

    /// The reply to a request is made.
    pub(super) fn account_reply(&self, account: &RequestAccount, reply: &ReplyBuilder) {
        RequestAccounts::read(self.metrics(), account, reply.read_len());
        if reply.without_space() > 0 {
            self.metrics().add(registry::SPACE_REFUSALS, reply.without_space() as u64);
        }
    }

    /// The reply to a request leaves.
    pub(super) fn close_account(&mut self, account: &RequestAccount) {
        let values = self.shared.metrics.shard(usize::from(self.id.get()));
        self.accounts.answered(values, account, || SystemClock.monotonic());
    }

    /// Ends a request batch: carries out the effects, and lets others see what waits.
    pub(super) fn end_batch(&mut self, out: &mut ReplySink) {
        self.settle(out);
        let lens = [
            (WaitQueue::Delegation, self.waiters.count()),
            (WaitQueue::Commit, self.deferred.count()),
            (WaitQueue::Shards, self.joins.count()),
            (WaitQueue::Reads, self.cold_reads.count()),
            (WaitQueue::Log, self.durable.as_ref().map_or(0, ShardLog::waiting)),
        ];
        let waits = lens.iter().any(|(_, len)| *len > 0);
        if !waits && !self.tells_waiting {
            return;
        }
        self.tells_waiting = waits;
        let metrics = self.metrics();
        for (queue, len) in lens {
            metrics.set_at(registry::QUEUE_LENGTH, queue.index(), len as u64);
        }
        let oldest = [
            self.waiters.oldest(LOOKED_AT_MAX).find_map(WaitingWork::since),
            self.deferred.oldest(LOOKED_AT_MAX).find_map(DeferredReply::since),
            self.joins.oldest().and_then(|asker| asker.account.since()),
        ];
        let oldest = oldest.into_iter().flatten().min();
        let since = oldest.map_or(0, |since| since.as_micros() as u64);
        metrics.set(registry::OLDEST_WAITING, since);
    }
}
