//! The submission queues ([`samite_wire::submission`]): operations that clients of the host have
//! completed early are carried out before whatever comes next.
//!
//! Clients may complete operations early while nothing but the look-up table stands between them
//! and the records of a shard: no other client has delegations on records, no request waits for
//! delegations to end, no partition of a dataset that keeps records once has other members, and the
//! target has room for what they may submit.

use std::sync::Arc;
use std::time::Duration;

use samite_backend::{Arena, CoreWaiters, ExclusiveLock, LockTurn, SubmissionEntry};
use samite_placement::{ClusterMap, shard_of};
use samite_transport::server::SharedMemoryWork;
use samite_types::{ClientId, Clock, DatasetId, Epoch, ShardId, SystemClock};
use samite_wire::lookup::RecordId;
use samite_wire::op::{Action, Guard, Operation, OperationRequest, TouchedRecords};
use samite_wire::submission::LANE_BOXES;
use smallvec::SmallVec;

use crate::budget::ReplyBudget;
use crate::partitions::{HolderSet, OpenPartitions};
use crate::shard::{ShardService, count};

/// After so many entries the waiters on the node's core are served, also while others have
/// submitted more than can wait.
const POSTS_PER_TURN: u64 = 4 * LANE_BOXES as u64;

/// The table of one shard.
pub(crate) struct ShardSubmissions {
    arena: Arc<Arena>,
    shard: ShardId,
    shards: u16,
    /// The map by which clients may complete operations early, or might when they last did.
    map: Option<Arc<ClusterMap>>,
    /// By that map partitions are about to move.
    has_moving: bool,
    /// By that map partitions that this node leads have lost their records: a record that is not in
    /// the look-up table may have been there.
    has_lost: bool,
    /// Epoch of that map while clients may complete operations early; 0: they may not.
    open: Epoch,
    /// The only client that may.
    only: Option<ClientId>,
    /// Operations that were carried out since clients on this thread's core were last woken.
    since_turn: u64,
}

impl ShardSubmissions {
    pub(crate) fn new(arena: Arc<Arena>, shard: ShardId, shards: u16) -> Self {
        Self {
            arena,
            shard,
            shards,
            map: None,
            has_moving: false,
            has_lost: false,
            open: Epoch(0),
            only: None,
            since_turn: 0,
        }
    }

    /// Frees the slots that a client that is gone was about to submit.
    pub(crate) fn drop_client(&self, client: ClientId) {
        self.arena.drop_poster(self.shard, client);
    }

    /// Carries out all entries that were submitted before this call. Returns how many operations.
    fn carry_out_all(&self, partitions: &mut OpenPartitions) -> u64 {
        let now = self.time_for(partitions);
        let mut operations = 0;
        self.arena.take_submissions(self.shard, |turn, post| match turn {
            LockTurn::Before => fetch_for(post, partitions),
            LockTurn::Now => operations += self.carry_out(post, partitions, now),
        });
        operations
    }

    /// The time, if delegations have anything to do with the entries; else zero.
    fn time_for(&self, partitions: &OpenPartitions) -> Duration {
        if self.only.is_none() && !partitions.has_leases() {
            return Duration::ZERO;
        }
        SystemClock.monotonic()
    }

    /// `operation` is to be applied soon: the memory at which [`ShardSubmissions::make_way`] looks
    /// first is fetched meanwhile.
    pub(crate) fn expect(&self, dataset: DatasetId, operation: &Operation<'_>) {
        if let Some(key) = changed(operation).next() {
            let partition = operation.partition;
            self.arena.expect(&RecordId { dataset, partition, key });
        }
    }

    /// `operation` is next: entries about the records that it changes are carried out before, and
    /// no more are submitted about them until [`ShardSubmissions::let_pass`].
    pub(crate) fn make_way(
        &self,
        dataset: DatasetId,
        operation: &Operation<'_>,
        partitions: &mut OpenPartitions,
    ) -> ExclusiveLocks {
        let mut bars = ExclusiveLocks { barred: SmallVec::new(), reopens: false };
        if self.open != Epoch(0) && forbids_others(operation) {
            self.arena.close_submissions(self.shard);
            self.carry_out_all(partitions);
            bars.reopens = true;
        }
        let (partition, now) = (operation.partition, self.time_for(partitions));
        for key in changed(operation) {
            let record = RecordId { dataset, partition, key };
            let bar = self.arena.lock_exclusive(self.shard, &record, |post| {
                self.carry_out(post, partitions, now);
            });
            bars.reopens |= bar.has_closed();
            bars.barred.push(bar);
        }
        bars
    }

    /// An operation for which way was made has been applied.
    pub(crate) fn let_pass(&self, bars: ExclusiveLocks) {
        for bar in bars.barred {
            self.arena.unlock_exclusive(self.shard, bar);
        }
        if bars.reopens && self.open != Epoch(0) {
            self.arena.open_submissions(self.shard, self.open, self.only);
        }
    }

    fn carry_out(
        &self,
        post: &SubmissionEntry,
        partitions: &mut OpenPartitions,
        now: Duration,
    ) -> u64 {
        let mut operation = Operation::default();
        let contents = post.contents();
        let client = contents.map(|contents| contents.label.client);
        let header = contents.and_then(|contents| {
            OperationRequest::decode_one(contents.body, contents.payload, &mut operation).ok()
        });
        let is_here = shard_of(operation.partition, self.shards) == self.shard;
        // Without a map the table was never open.
        let (Some(header), Some(client), Some(map), true) =
            (header, client, self.map.as_deref(), is_here)
        else {
            tracing::error!(shard = %self.shard, ?client, "a client posted what is no operation here");
            self.arena.submission_done(self.shard, post);
            return 0;
        };
        operation.actions.retain(|action| match *action {
            Action::Hold { token, .. } => self.arena.keeps_reference(self.shard, post, token),
            _ => true,
        });
        let id = (header.dataset, operation.partition);
        match partitions.apply_submitted(id, map, client, &operation, now) {
            // The client took care that it would be done.
            Some(Ok(())) => {}
            Some(Err(kind)) => {
                tracing::error!(%client, ?id, ?kind, ?operation, "carry out what was posted");
            }
            None => tracing::error!(%client, ?id, "posted to a partition that is not here alone"),
        }
        self.arena.submission_done(self.shard, post);
        1
    }
}

/// The record that `post` is about is fetched, while something else is done.
fn fetch_for(post: &SubmissionEntry, partitions: &mut OpenPartitions) {
    let about = post.contents().and_then(|contents| OperationRequest::first_guarded(contents.body));
    if let Some(about) = about.filter(|about| about.is_there) {
        partitions.fetch((about.dataset, about.partition), about.key);
    }
}

/// The lock that clients respect until an operation is applied.
#[must_use = "clients wait for it to be given back"]
pub(crate) struct ExclusiveLocks {
    barred: SmallVec<[ExclusiveLock; 4]>,
    reopens: bool,
}

/// Whether the waiters on the node's core are to be served, when so much was carried out since the
/// last time.
fn is_turn(since: u64, is_behind: impl FnOnce() -> bool) -> bool {
    since >= POSTS_PER_TURN || since > 0 && !is_behind()
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

impl ShardService {
    /// Carries out the submission-queue entries, between requests.
    pub(crate) fn poll_submissions(&mut self) -> SharedMemoryWork {
        self.call_shards();
        let has_done = self.apply_submissions();
        let left = if has_done { SharedMemoryWork::Something } else { SharedMemoryWork::Nothing };
        if !is_turn(self.posts.since_turn, || has_done && self.arena.is_behind(self.id)) {
            return left;
        }
        self.posts.since_turn = 0;
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
    pub(crate) fn answer_submissions(&mut self) {
        if self.apply_submissions() {
            self.arena.wake_posters(self.id);
        }
    }

    /// Carries out all entries that were submitted before this call (I14). Returns whether there
    /// were any.
    pub(crate) fn apply_submissions(&mut self) -> bool {
        if !self.arena.has_submissions(self.id) {
            return false;
        }
        let operations = self.posts.carry_out_all(&mut self.partitions);
        self.posts.since_turn += operations.max(1);
        count(&self.metrics().operations, operations);
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
    pub(crate) fn unlock_exclusive(&mut self, who: Option<ClientId>) {
        let Some(map) = &self.map else { return };
        let epoch = map.epoch();
        if self.posts.map.as_ref().is_none_or(|known| known.epoch() != epoch) {
            // Entries that were submitted by the map before have been carried out: clients were
            // shut out before this one came.
            self.posts.map = Some(Arc::clone(map));
            self.posts.has_moving = self.partitions.has_moving(map);
            self.posts.has_lost = map.has_lost_at(self.shared.node);
            self.partitions.know_all(map);
        }
        let open = (self.posts.open != Epoch(0)).then_some(self.posts.only);
        if open == self.may_post(who) && (open.is_none() || self.posts.open == epoch) {
            return;
        }
        // Once no client submits, it is known which clients have delegations.
        self.lock_all_records();
        if let Some(only) = self.may_post(who) {
            (self.posts.open, self.posts.only) = (epoch, only);
            self.arena.open_submissions(self.id, epoch, only);
        }
    }

    /// The clients that may complete operations early, as things are now: all clients of the host
    /// or only one of them; `None`: no client. A client that was shut out for others may again when
    /// it asks for something: until then they change what they like, and the table stays as it is.
    fn may_post(&self, who: Option<ClientId>) -> Option<Option<ClientId>> {
        let is_barred = self.posts.has_moving || self.posts.has_lost;
        if is_barred || !self.parked.is_empty() || !self.arena.has_submission_room() {
            return None;
        }
        match self.partitions.free_to_change() {
            HolderSet::Anyone => Some(None),
            HolderSet::Only(client) => {
                [who, self.posts.only].contains(&Some(client)).then_some(Some(client))
            }
            HolderSet::Nobody => None,
        }
    }

    /// A request of `client` is about to be looked at: no client may complete operations early that
    /// might count on delegations that the request contradicts, or contradict those that it gets.
    pub(crate) fn lock_records(
        &mut self,
        client: ClientId,
        request: &OperationRequest<'_>,
        budget: &ReplyBudget,
    ) {
        let is_against = match self.posts.only {
            None => !budget.lease_term.is_zero(),
            Some(only) => {
                let may_change = || request.operations.iter().any(Operation::is_mutation);
                only != client && (!budget.lease_term.is_zero() || may_change())
            }
        };
        if is_against {
            self.lock_all_records();
        }
    }

    /// No client submits from here on, until it is [admitted](Self::unlock_exclusive); the entries
    /// that were submitted are carried out.
    pub(crate) fn lock_all_records(&mut self) {
        if std::mem::take(&mut self.posts.open) != Epoch(0) {
            self.arena.close_submissions(self.id);
            self.apply_submissions();
            self.posts.only = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_has_a_turn_before_long_however_much_others_post() {
        for (since, is_behind, is_due) in [
            (0, false, false),
            (1, false, true),
            (1, true, false),
            (POSTS_PER_TURN - 1, true, false),
            (POSTS_PER_TURN, true, true),
        ] {
            assert_eq!(is_turn(since, || is_behind), is_due, "{since} {is_behind}");
        }
    }
}
