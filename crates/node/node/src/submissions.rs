//! The submission queues ([`samite_arena::submission`]): operations that clients of the host have
//! completed early are carried out before whatever comes next.
//!
//! Which clients may: `submission_policy.rs`.

use std::sync::Arc;
use std::time::Duration;

use samite_arena::lookup::RecordId;
use samite_arena::submission::QUEUE_SLOTS;
use samite_arena::{Arena, ExclusiveLock, LockTurn, QueueAccess, SubmissionEntry};
use samite_partition::AppliedOutcome;
use samite_placement::{ClusterMap, shard_of};
use samite_types::{Clock, DatasetId, Epoch, ShardId, SystemClock};
use samite_wire::op::{Action, Guard, Operation, OperationRequest, TouchedRecords};
use smallvec::SmallVec;

use crate::partitions::{ApplyContext, DatasetIndex, OpenPartitions};
use crate::submission_policy::MapConditions;

/// After so many entries the waiters on the node's core are served, also while others have
/// submitted more than can wait.
const SUBMISSIONS_PER_TURN: u64 = 4 * QUEUE_SLOTS as u64;

/// How many operations before its own the memory of an operation is fetched.
pub(crate) const EXPECTED_AHEAD: usize = 4;

/// The table of one shard.
pub(crate) struct ShardSubmissions {
    arena: Arc<Arena>,
    shard: ShardId,
    shards: u16,
    /// The map by which clients may complete operations early, or might when they last did.
    map: Option<Arc<ClusterMap>>,
    /// What that map says of it.
    map_conditions: MapConditions,
    /// The clients that may, or might until the queues were closed, if what is in the queues has
    /// yet to be carried out.
    access: QueueAccess,
    /// Epoch of the map by which clients may; 0: they may not.
    open_by: Epoch,
    /// Operations that were carried out since clients on this thread's core were last woken.
    since_turn: u64,
}

impl ShardSubmissions {
    pub(crate) fn new(arena: Arc<Arena>, shard: ShardId, shards: u16) -> Self {
        let (access, open_by) = (QueueAccess::Closed, Epoch(0));
        let map_conditions = MapConditions::default();
        Self { arena, shard, shards, map: None, map_conditions, access, open_by, since_turn: 0 }
    }

    /// Epoch of the map that was taken up; 0: none.
    pub(crate) fn map_epoch(&self) -> Epoch {
        self.map.as_ref().map_or(Epoch(0), |map| map.epoch())
    }

    /// What the map that was taken up says of early completion.
    pub(crate) const fn map_conditions(&self) -> MapConditions {
        self.map_conditions
    }

    /// The clients that may complete operations early, or might until the queues were closed.
    pub(crate) const fn access(&self) -> QueueAccess {
        self.access
    }

    /// There is a new map. Entries that were submitted by the map before have been carried out:
    /// clients were shut out before this one came.
    pub(crate) fn take_up(&mut self, map: &Arc<ClusterMap>, conditions: MapConditions) {
        self.map = Some(Arc::clone(map));
        self.map_conditions = conditions;
    }

    /// Whether these clients and no others have access, by the newest map.
    pub(crate) fn stands(&self, access: QueueAccess) -> bool {
        match self.open_by {
            Epoch(0) => access == QueueAccess::Closed,
            open_by => access == self.access && open_by == self.map_epoch(),
        }
    }

    /// Lets these clients complete operations early. The queues are closed.
    pub(crate) fn open(&mut self, access: QueueAccess) {
        if access != QueueAccess::Closed {
            (self.access, self.open_by) = (access, self.map_epoch());
            self.reopen();
        }
    }

    /// No client submits from here on. Whether some might: then the entries that were submitted are
    /// to be [carried out](ShardSubmissions::drain), and [`ShardSubmissions::drained`] comes after.
    pub(crate) fn close(&mut self) -> bool {
        let was_open = std::mem::replace(&mut self.open_by, Epoch(0)) != Epoch(0);
        if was_open {
            self.close_briefly();
        }
        was_open
    }

    /// All entries that were there when the queues were closed are carried out.
    pub(crate) const fn drained(&mut self) {
        self.access = QueueAccess::Closed;
    }

    /// Has clients see that the queues are closed.
    fn close_briefly(&self) {
        self.arena.set_queue_access(self.shard, Epoch(0), QueueAccess::Closed);
    }

    /// Has clients see to whom the queues are open.
    fn reopen(&self) {
        self.arena.set_queue_access(self.shard, self.open_by, self.access);
    }

    /// Whether there are entries.
    pub(crate) fn are_there(&self) -> bool {
        self.arena.has_submissions(self.shard)
    }

    /// Carries out all entries that were submitted before this call (I14). Returns how many
    /// operations.
    pub(crate) fn drain(&mut self, partitions: &mut OpenPartitions) -> u64 {
        let operations = self.carry_out_all(partitions);
        self.since_turn += operations.max(1);
        operations
    }

    /// Whether the waiters on the node's core are to be served now; `is_behind`: others have
    /// submitted more meanwhile.
    pub(crate) fn take_turn(&mut self, is_behind: impl FnOnce() -> bool) -> bool {
        let is_turn = is_turn(self.since_turn, is_behind);
        if is_turn {
            self.since_turn = 0;
        }
        is_turn
    }

    /// Applies one operation as [`OpenPartitions::apply`] does, so that each operation that is
    /// completed early meanwhile comes either before or after it.
    pub(crate) fn apply_alone(
        &self,
        partitions: &mut OpenPartitions,
        (slot, map): (DatasetIndex, &ClusterMap),
        operation: &Operation<'_>,
        apply_context: &mut ApplyContext<'_>,
    ) -> AppliedOutcome {
        if !operation.is_mutation() {
            return partitions.apply(slot, map, operation, apply_context);
        }
        let locks = self.lock_changed(partitions.dataset_id(slot), operation, partitions);
        let outcome = partitions.apply(slot, map, operation, apply_context);
        self.unlock_all(locks);
        outcome
    }

    /// Carries out all entries that were submitted before this call. Returns how many operations.
    fn carry_out_all(&self, partitions: &mut OpenPartitions) -> u64 {
        let now = self.time_for(partitions);
        let mut operations = 0;
        self.arena.take_submissions(self.shard, |turn, entry| match turn {
            LockTurn::Before => fetch_for(entry, partitions),
            LockTurn::Now => operations += self.carry_out(entry, partitions, now),
        });
        operations
    }

    /// The time, if delegations have anything to do with the entries; else zero.
    fn time_for(&self, partitions: &OpenPartitions) -> Duration {
        if self.access.only().is_none() && !partitions.has_delegations() {
            return Duration::ZERO;
        }
        SystemClock.monotonic()
    }

    /// `operation` is to be applied soon: the memory at which [`ShardSubmissions::lock_changed`]
    /// looks first is fetched meanwhile.
    pub(crate) fn expect(&self, dataset: DatasetId, operation: &Operation<'_>) {
        if let Some(key) = changed(operation).next() {
            let partition = operation.partition;
            self.arena.expect(&RecordId { dataset, partition, key });
        }
    }

    /// `operation` is next: entries about the records that it changes are carried out before, and
    /// no more are submitted about them until [`ShardSubmissions::unlock_all`].
    fn lock_changed(
        &self,
        dataset: DatasetId,
        operation: &Operation<'_>,
        partitions: &mut OpenPartitions,
    ) -> ExclusiveLocks {
        let mut locks = ExclusiveLocks { locked: SmallVec::new(), reopens: false };
        if self.open_by != Epoch(0) && forbids_others(operation) {
            self.close_briefly();
            self.carry_out_all(partitions);
            locks.reopens = true;
        }
        let (partition, now) = (operation.partition, self.time_for(partitions));
        for key in changed(operation) {
            let record = RecordId { dataset, partition, key };
            let lock = self.arena.lock_exclusive(self.shard, &record, |entry| {
                self.carry_out(entry, partitions, now);
            });
            locks.reopens |= lock.has_closed();
            locks.locked.push(lock);
        }
        locks
    }

    /// An operation for which way was made has been applied.
    fn unlock_all(&self, locks: ExclusiveLocks) {
        for lock in locks.locked {
            self.arena.unlock_exclusive(self.shard, lock);
        }
        if locks.reopens && self.open_by != Epoch(0) {
            self.reopen();
        }
    }

    fn carry_out(
        &self,
        entry: &SubmissionEntry,
        partitions: &mut OpenPartitions,
        now: Duration,
    ) -> u64 {
        let mut operation = Operation::default();
        let contents = entry.contents();
        let client = entry.client();
        let header = contents.and_then(|contents| {
            OperationRequest::decode_one(contents.body, contents.payload, &mut operation).ok()
        });
        let is_here = shard_of(operation.partition, self.shards) == self.shard;
        let is_meant = contents.zip(header.as_ref()).is_some_and(|(contents, header)| {
            is_submittable(&operation, header.dataset, contents.label.hash)
        });
        // Without a map the table was never open.
        let (Some(header), Some(map), true) = (header, self.map.as_deref(), is_here && is_meant)
        else {
            tracing::error!(shard = %self.shard, %client, "a client submitted no operation of this shard");
            self.arena.submission_done(self.shard, entry);
            return 0;
        };
        operation.actions.retain(|action| match *action {
            Action::Hold { token, .. } => self.arena.keeps_reference(self.shard, entry, token),
            _ => true,
        });
        let id = (header.dataset, operation.partition);
        match partitions.apply_submitted(id, map, client, &operation, now) {
            // The client took care that it would be done.
            Some(Ok(())) => {}
            Some(Err(kind)) => {
                tracing::error!(%client, ?id, ?kind, ?operation, "carry out a submission");
            }
            None => {
                tracing::error!(%client, ?id, "submitted to a partition that is not here alone")
            }
        }
        self.arena.submission_done(self.shard, entry);
        1
    }
}

/// The record that `entry` is about is fetched, while something else is done.
fn fetch_for(entry: &SubmissionEntry, partitions: &mut OpenPartitions) {
    let about =
        entry.contents().and_then(|contents| OperationRequest::first_guarded(contents.body));
    if let Some(about) = about.filter(|about| about.is_there) {
        partitions.fetch((about.dataset, about.partition), about.key);
    }
}

/// The lock that clients respect until an operation is applied.
#[must_use = "clients wait for it to be given back"]
struct ExclusiveLocks {
    locked: SmallVec<[ExclusiveLock; 4]>,
    reopens: bool,
}

/// Whether the waiters on the node's core are to be served, when so much was carried out since the
/// last time.
fn is_turn(since: u64, is_behind: impl FnOnce() -> bool) -> bool {
    since >= SUBMISSIONS_PER_TURN || since > 0 && !is_behind()
}

/// Whether the changes of an operation forbid others, on records that it does not name: those for
/// which its guard is that there are none, or those of clients that stand on an older name-space
/// generation. These clients must hear of that before they find other records missing that it takes
/// away.
fn forbids_others(operation: &Operation<'_>) -> bool {
    let raises = |action: &Action<'_>| matches!(action, Action::RaiseLease { .. });
    operation.actions.iter().any(raises)
        || operation.guards.iter().any(|guard| matches!(guard, Guard::PrefixEmpty(_)))
}

/// Whether a client may submit an operation about the record of this hash: one of the kinds of
/// `Dataset::try_complete` in the client.
fn is_submittable(operation: &Operation<'_>, dataset: DatasetId, hash: u64) -> bool {
    let Some((first, others)) = operation.actions.split_first() else { return false };
    let key = match *first {
        Action::Put { key, .. } | Action::Delete { key } | Action::Detach { key, .. } => key,
        _ => return false,
    };
    let is_allowed = |action: &Action<'_>| match *action {
        Action::Add { .. } | Action::Max { .. } | Action::Advance { .. } => true,
        Action::Hold { key: of, .. } | Action::Lease { key: of, .. } => of == key,
        _ => false,
    };
    let partition = operation.partition;
    others.iter().all(is_allowed)
        && !forbids_others(operation)
        && RecordId { dataset, partition, key }.hash() == hash
}

/// Keys of the records that an operation changes. Clients submit operations on entries of
/// directories, which no operation removes by a prefix.
fn changed<'o>(operation: &'o Operation<'_>) -> impl Iterator<Item = &'o [u8]> {
    operation.actions.iter().flat_map(|action| {
        let (first, second) = match action.touched() {
            TouchedRecords::Key(key) => (Some(key), None),
            TouchedRecords::Moved(from, to) => (Some(from), Some(to)),
            TouchedRecords::Nothing | TouchedRecords::Prefix(_) => (None, None),
        };
        first.into_iter().chain(second)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changes_of_the_marked_record_are_carried_out() {
        let (dataset, partition) = (DatasetId(3), 7.into());
        let hash = |key| RecordId { dataset, partition, key }.hash();
        let may = |actions: &[Action<'_>], key| {
            let operation = Operation::new(partition, actions.iter().cloned());
            is_submittable(&operation, dataset, hash(key))
        };
        let data = || samite_wire::op::ValueData::Inline(b"v");
        let put = Action::Put { key: b"k", data: data() };
        let delete = |key| Action::Delete { key };
        assert!(may(std::slice::from_ref(&put), b"k") && may(&[delete(b"k")], b"k"));
        assert!(!may(&[delete(b"k")], b"other") && !may(&[], b"k"));
        assert!(!may(&[Action::DeletePrefix { prefix: b"k", limit: 1 }], b"k"));
        assert!(!may(&[put.clone(), delete(b"other")], b"k"), "two records");
        let hold = |key| Action::Hold { key, token: 5 };
        assert!(may(&[put.clone(), hold(b"k")], b"k") && !may(&[put, hold(b"other")], b"k"));
        assert!(!is_submittable(
            &Operation::new(partition, [delete(b"k")]),
            DatasetId(4),
            hash(b"k")
        ));
    }

    #[test]
    fn core_waiters_are_served_however_much_others_submit() {
        for (since, is_behind, is_due) in [
            (0, false, false),
            (1, false, true),
            (1, true, false),
            (SUBMISSIONS_PER_TURN - 1, true, false),
            (SUBMISSIONS_PER_TURN, true, true),
        ] {
            assert_eq!(is_turn(since, || is_behind), is_due, "{since} {is_behind}");
        }
    }
}
