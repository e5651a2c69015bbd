//! Open references: an open file lives on without a name.
//!
//! Opening a file makes an open reference on the record of its inode, in the operation that finds
//! or makes it. An unlink of the last name of an open file leaves its record under an *orphan's*
//! key in the same partition, and the references follow; a handle that does not find its file any
//! more asks where its reference is. Closing ends the reference, which costs no request of its own:
//! releases wait ([`crate::records::release_queue`]) for the next request to their node, or, where new files are left with the
//! node and nothing is asked for, leave by themselves and are not waited for. The process that ends
//! the last reference to an orphan removes it. A leaked orphan, whose holders died, is swept
//! ([`crate::FileSystem::sweep_orphans`]).

use samite_client::{ClientOperation, OwnedOutcome, OwnedResult};
use samite_types::{ErrorKind, PartitionId, Result};
use samite_wire::op::{Action, List, Operation, UNLINKED_KEPT, UNLINKED_REMOVED};

use crate::FileSystem;
use crate::records::inode::{INODE_LEN, Inode};
use crate::records::key::{self, Key};
use crate::records::release_queue::{PendingReleases, ReferenceRelease};
use crate::records::store::{RecordLocation, RecordStoreView, expected, listing, malformed};

/// Orphans that one look at a partition finds.
const SWEEP_AT_ONCE: u32 = 256;

/// The operation that finds an open reference and ends it.
fn letting_go<'k>(release: &ReferenceRelease) -> Operation<'k> {
    let token = release.token;
    Operation::new(release.partition, [Action::Locate { token }, Action::Release { token }])
}

impl RecordStoreView {
    /// Carries out one operation. A failure that a caller has to handle (a guard, a missing record,
    /// a full inode) stays an outcome; every other failure is an error.
    pub fn run<'k>(&self, op: impl Into<ClientOperation<'k>>) -> Result<OwnedOutcome> {
        if self.releases.are_due() {
            let op = op.into();
            return self.run_behind(self.riders(op.operation.partition), op);
        }
        expected(self.dataset.execute_one(op.into())?)
    }

    /// Carries out an operation that takes a name away: this process's own waiting releases come first, so that a file that was closed is
    /// not taken for open.
    pub fn run_removal(&self, op: ClientOperation<'_>) -> Result<OwnedOutcome> {
        let partition = op.operation.partition;
        self.land(|release| release.partition == partition);
        // All releases that can travel with it: one that waits for another partition would make
        // the next removal there wait for an answer.
        self.run_behind(self.riders(partition), op)
    }

    /// Takes the releases that wait for a request to the node of this partition.
    fn riders(&self, partition: PartitionId) -> Vec<ReferenceRelease> {
        let node = self.dataset.node_of(partition).ok();
        self.releases.take(|release| {
            release.partition == partition
                || node.is_some() && self.dataset.node_of(release.partition).ok() == node
        })
    }

    /// The same for operations that are carried out together.
    pub fn run_all_removals<'k>(
        &self,
        ops: impl IntoIterator<Item = ClientOperation<'k>>,
    ) -> Result<Vec<OwnedOutcome>> {
        let mut ops: Vec<ClientOperation<'k>> = ops.into_iter().collect();
        let is_before = |release: &ReferenceRelease| {
            ops.iter().any(|op| op.operation.partition == release.partition)
        };
        self.land(is_before);
        let before = self.releases.take(is_before);
        ops.splice(0..0, before.iter().map(|one| ClientOperation::new(letting_go(one))));
        let mut outcomes = self.dataset.execute(&mut ops, self.client.deadline())?;
        let results = outcomes.split_off(before.len());
        // The requested operation is done; an orphan that stays is swept later.
        let _ = self.let_go(&before, outcomes);
        results.into_iter().map(expected).collect()
    }

    fn run_behind(
        &self,
        releases: Vec<ReferenceRelease>,
        op: ClientOperation<'_>,
    ) -> Result<OwnedOutcome> {
        if releases.is_empty() {
            return expected(self.dataset.execute_one(op)?);
        }
        let mut ops: Vec<ClientOperation<'_>> =
            releases.iter().map(|one| ClientOperation::new(letting_go(one))).collect();
        ops.push(op);
        let mut outcomes = self.dataset.execute(&mut ops, self.client.deadline())?;
        let last = outcomes.pop().ok_or_else(malformed)?;
        // As above.
        let _ = self.let_go(&releases, outcomes);
        expected(last)
    }

    /// Ends an open reference: soon, or at once when it `is_urgent`.
    pub fn release(&self, release: ReferenceRelease) -> Result<()> {
        let is_full = self.releases.push(release);
        if is_full { self.flush_releases(|_| true) } else { Ok(()) }
    }

    /// Sends the releases that are due, and waits only for the answers to those that were sent long
    /// before.
    pub fn send_releases(&self) {
        if !self.releases.are_due() {
            return;
        }
        // Much space may depend on the answers to those that are urgent. Another thread may have sent them all.
        let releases = self.releases.take(|release| !release.is_urgent);
        if releases.is_empty() {
            return;
        }
        let operations: Vec<Operation<'_>> = releases.iter().map(letting_go).collect();
        match self.dataset.submit(&operations) {
            Ok(answers) => {
                if let Some(oldest) = self.releases.keep(PendingReleases { releases, answers }) {
                    self.see_to(oldest);
                }
            }
            // It can still be sent the slow way.
            Err(_) => releases.into_iter().for_each(|release| {
                self.releases.push(release);
            }),
        }
    }

    /// Waits for the answers to what was sent, if `pick` selects any of it.
    fn land(&self, pick: impl Fn(&ReferenceRelease) -> bool) {
        self.releases.take_underway(pick).into_iter().for_each(|underway| self.see_to(underway));
    }

    fn see_to(&self, PendingReleases { releases, answers }: PendingReleases) {
        // The requested operation is done; an orphan that stays is swept later.
        let _ = answers
            .wait_by(self.client.deadline())
            .and_then(|outcomes| self.let_go(&releases, outcomes));
    }

    /// Sends the waiting releases that `pick` selects: one request per node.
    pub fn flush_releases(&self, pick: impl Fn(&ReferenceRelease) -> bool) -> Result<()> {
        self.land(&pick);
        let releases = self.releases.take(pick);
        if releases.is_empty() {
            return Ok(());
        }
        let mut ops: Vec<ClientOperation<'_>> =
            releases.iter().map(|one| ClientOperation::new(letting_go(one))).collect();
        let outcomes = self.dataset.execute(&mut ops, self.client.deadline())?;
        self.let_go(&releases, outcomes)
    }

    /// Sends the urgent releases.
    pub fn flush_urgent(&self) -> Result<()> {
        self.flush_releases(|release| release.is_urgent)
    }

    /// In the child of a fork.
    pub fn forget_releases(&self) {
        self.releases.forget();
    }

    /// After releases: removes orphans without open references, and follows references that have
    /// moved.
    fn let_go(&self, releases: &[ReferenceRelease], outcomes: Vec<OwnedOutcome>) -> Result<()> {
        for (release, outcome) in releases.iter().zip(outcomes) {
            if !self.let_go_one(release, outcome)? {
                self.follow_hold(release)?;
            }
        }
        Ok(())
    }

    /// False: there is no such open reference.
    fn let_go_one(&self, release: &ReferenceRelease, outcome: OwnedOutcome) -> Result<bool> {
        let results = match outcome {
            OwnedOutcome::Done(results) => results,
            OwnedOutcome::Failed(failure) if failure.kind == ErrorKind::NotFound => {
                return Ok(false);
            }
            OwnedOutcome::Failed(failure) => return Err(failure.into_error("release")),
        };
        let mut results = results.into_iter();
        let (Some(OwnedResult::Value { data, .. }), Some(left)) = (results.next(), results.next())
        else {
            return Err(malformed());
        };
        if left.number()? == 0 && key::is_orphan(&data) {
            self.remove_orphan(&RecordLocation {
                key: Key::from_slice(&data),
                partition: release.partition,
            })?;
        }
        Ok(true)
    }

    /// The file has moved to another partition since its handle last looked: ends the reference
    /// there.
    fn follow_hold(&self, release: &ReferenceRelease) -> Result<()> {
        if release.ino == 0 {
            return Ok(());
        }
        for partition in self.partitions_of(release.ino)? {
            let moved = ReferenceRelease { partition, ..*release };
            let outcome = self.dataset.execute_one(ClientOperation::new(letting_go(&moved)))?;
            if partition != release.partition && self.let_go_one(&moved, outcome)? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Partitions in which the inode may be, beside that of the name under which it was found.
    pub fn partitions_of(&self, ino: u64) -> Result<List<PartitionId, 2>> {
        let pointer = self.location(key::location(ino));
        let outcome = self
            .dataset
            .execute_one(ClientOperation::new(Operation::get(pointer.partition, &pointer.key)))?;
        let mut partitions = List::new();
        if let OwnedOutcome::Done(results) = outcome
            && let Some(OwnedResult::Value { data, .. }) = results.into_iter().next()
        {
            partitions.push(self.location(Key::from_slice(&data)).partition);
        }
        partitions.push(self.own(ino).partition);
        Ok(partitions)
    }

    /// The record in `partition` with the open reference `token`.
    pub fn locate(&self, partition: PartitionId, token: u64) -> Result<Option<RecordLocation>> {
        if token == 0 {
            return Ok(None);
        }
        let op = Operation::new(partition, [Action::Locate { token }]);
        match self.run(op)? {
            OwnedOutcome::Done(results) => match results.into_iter().next() {
                Some(OwnedResult::Value { data, .. }) => {
                    Ok(Some(RecordLocation { key: Key::from_slice(&data), partition }))
                }
                _ => Err(malformed()),
            },
            OwnedOutcome::Failed(_) => Ok(None),
        }
    }

    /// Removes an orphan, unless it has open references. Whether it went.
    pub fn remove_orphan(&self, location: &RecordLocation) -> Result<bool> {
        let key = &location.key;
        let op = Operation::new(
            location.partition,
            [
                Action::Get { key, offset: 0, len: INODE_LEN as u32 },
                Action::Detach { key, to: key },
            ],
        );
        let outcome = expected(self.dataset.execute_one(ClientOperation::new(op))?)?;
        let OwnedOutcome::Done(results) = outcome else { return Ok(false) };
        let removed = RemovedInode::of(results)?;
        if removed.is_kept {
            return Ok(false);
        }
        self.free(&removed.inode()?)?;
        Ok(true)
    }
}

/// The results of a `Get` of an inode and the `Detach` of its record, the first two actions of an
/// operation.
pub struct RemovedInode {
    value: Vec<u8>,
    /// It has open references.
    pub is_kept: bool,
}

impl RemovedInode {
    pub fn of(results: List<OwnedResult, 2>) -> Result<Self> {
        let mut results = results.into_iter();
        match (results.next(), results.next()) {
            (Some(OwnedResult::Value { data, .. }), Some(unlinked)) => {
                let unlinked = unlinked.number()?;
                debug_assert!(unlinked == UNLINKED_KEPT || unlinked == UNLINKED_REMOVED);
                Ok(Self { value: data, is_kept: unlinked == UNLINKED_KEPT })
            }
            _ => Err(malformed()),
        }
    }

    pub fn inode(&self) -> Result<Inode> {
        Inode::decode(&self.value)
    }
}

impl FileSystem {
    /// Whether there is a file without a name that somebody has open, or had when he was killed.
    ///
    /// # Errors
    /// As of the nodes.
    pub fn has_orphans(&self) -> Result<bool> {
        let store = self.store();
        for index in 0..store.dataset.partitions() {
            let list = Action::List {
                prefix: key::ORPHANS,
                after: &[],
                limit: 1,
                reverse: false,
                value_len_max: 0,
            };
            let operation = Operation::new(PartitionId(index), [list]);
            let (entries, _) = listing(store.run(operation)?)?;
            if !entries.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Removes leaked orphans: files without a name whose holders were killed. Asks each node
    /// whether it has any, and looks for them only then. Returns how many went.
    ///
    /// # Errors
    /// As of the nodes.
    pub fn sweep_orphans(&self) -> Result<u64> {
        let abandoned: u64 = self.statuses()?.iter().map(|status| status.abandoned).sum();
        if abandoned == 0 { Ok(0) } else { self.remove_unreferenced() }
    }

    /// Removes files without a name that nobody has open, also where nodes do not know of them:
    /// where records came from elsewhere. Returns how many went.
    ///
    /// # Errors
    /// As of the nodes.
    pub fn remove_unreferenced(&self) -> Result<u64> {
        let mut removed = 0;
        let store = self.store();
        for index in 0..store.dataset.partitions() {
            let partition = PartitionId(index);
            let mut after = Key::new();
            loop {
                let list = Action::List {
                    prefix: key::ORPHANS,
                    after: &after,
                    limit: SWEEP_AT_ONCE,
                    reverse: false,
                    value_len_max: 0,
                };
                let (entries, is_complete) =
                    listing(store.run(Operation::new(partition, [list]))?)?;
                for entry in &entries {
                    after = Key::from_slice(&entry.key);
                    let location = RecordLocation { key: after.clone(), partition };
                    removed += u64::from(store.remove_orphan(&location)?);
                }
                if is_complete || entries.is_empty() {
                    break;
                }
            }
        }
        Ok(removed)
    }

    /// Tells the nodes of every file that was closed; otherwise they hear of it with what they are asked next.
    ///
    /// # Errors
    /// As of the nodes.
    pub fn flush_closes(&self) -> Result<()> {
        self.store().flush_releases(|_| true)
    }
}
