//! The shard between its clients on the host and the submission queues: entries are carried out
//! before whatever comes next, and the queues are closed and opened.

use samite_arena::{CoreWaiters, QueueAccess};
use samite_metrics::registry;
use samite_transport::server::SharedMemoryWork;
use samite_types::{ClientId, ShardId};
use samite_wire::op::{Operation, OperationRequest};

use super::ShardService;
use crate::budget::ReplyBudget;
use crate::partitions::HolderSet;
use crate::submission_policy::{MapConditions, SubmissionConditions, contradicts, queue_access};

impl ShardService {
    /// Carries out the submission-queue entries, between requests.
    pub(super) fn poll_submissions(&mut self) -> SharedMemoryWork {
        self.call_shards();
        let has_done = self.apply_submissions();
        let left = if has_done { SharedMemoryWork::Something } else { SharedMemoryWork::Nothing };
        if !self.submissions.take_turn(|| has_done && self.arena.is_behind(self.id)) {
            return left;
        }
        // The waiters on this core are served while others go on elsewhere: the entries that these
        // submit meanwhile are carried out together, which costs less.
        match self.arena.wake_posters(self.id) {
            CoreWaiters::Nobody => left,
            CoreWaiters::All => SharedMemoryWork::ByNear { are_others: false },
            CoreWaiters::Some => SharedMemoryWork::ByNear { are_others: true },
        }
    }

    /// Wakes the other shards that have new entries. A client wakes only the one that has its
    /// connection.
    fn call_shards(&self) {
        for (index, inbox) in self.shared.inboxes.iter().enumerate() {
            let shard = ShardId(index as u16);
            if shard != self.id && self.arena.has_submissions(shard) {
                inbox.wake();
            }
        }
    }

    /// Another shard says that there are new entries: carries them out, and wakes the clients that
    /// wait for that.
    pub(super) fn answer_submissions(&mut self) {
        if self.apply_submissions() {
            self.arena.wake_posters(self.id);
        }
    }

    /// Carries out all entries that were submitted before this call (I14). Returns whether there
    /// were any.
    pub(super) fn apply_submissions(&mut self) -> bool {
        if !self.submissions.are_there() {
            return false;
        }
        let operations = self.submissions.drain(&mut self.partitions);
        self.metrics().add(registry::OPERATIONS, operations);
        self.metrics().add(registry::EARLY_COMPLETIONS, operations);
        self.note_metrics();
        if !self.arena.has_submission_room()
            || self.partitions.free_to_change() == HolderSet::Nobody
        {
            // The excess over the target's limit, or that of delegations, is never more than the
            // slots have room for.
            self.lock_all_records();
        }
        operations > 0
    }

    /// Lets clients complete operations early, or not, as things are now. `who` has asked for
    /// something.
    pub(super) fn unlock_exclusive(&mut self, who: Option<ClientId>) {
        let Some(map) = &self.map else { return };
        if self.submissions.map_epoch() != map.epoch() {
            let conditions = MapConditions {
                has_moving: self.partitions.has_moving(map),
                has_lost: map.has_lost_at(self.shared.node),
                has_frozen: map.datasets().iter().any(|dataset| dataset.frozen_by != 0),
            };
            self.submissions.take_up(map, conditions);
            self.partitions.know_all(map);
        }
        if self.submissions.stands(self.queue_access(who)) {
            return;
        }
        // Once no client submits, it is known which clients have delegations.
        self.lock_all_records();
        let access = self.queue_access(who);
        self.submissions.open(access);
    }

    /// The clients that may complete operations early, as things are now.
    fn queue_access(&self, asker: Option<ClientId>) -> QueueAccess {
        queue_access(&SubmissionConditions {
            map: self.submissions.map_conditions(),
            holders: self.partitions.free_to_change(),
            has_waiters: !self.waiters.is_empty(),
            has_room: self.arena.has_submission_room(),
            asker,
            until_now: self.submissions.access(),
        })
    }

    /// A request of `client` is about to be looked at: no client may complete operations early that
    /// might count on delegations that the request contradicts, or contradict those that it gets.
    pub(super) fn lock_records(
        &mut self,
        client: ClientId,
        request: &OperationRequest<'_>,
        budget: &ReplyBudget,
    ) {
        let may_change = || request.operations.iter().any(Operation::is_mutation);
        let asks_delegation = !budget.lease_term.is_zero();
        if contradicts(self.submissions.access(), client, asks_delegation, may_change) {
            self.lock_all_records();
        }
    }

    /// No client submits from here on, until it is [admitted](Self::unlock_exclusive); the entries
    /// that were submitted are carried out.
    pub(super) fn lock_all_records(&mut self) {
        if self.submissions.close() {
            self.apply_submissions();
            self.submissions.drained();
        }
    }
}
