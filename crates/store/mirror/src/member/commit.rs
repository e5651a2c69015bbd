//! Members whose store [remembers](samite_backend::CommitRecords): records and the state beside
//! them are committed together, and an entry counts when it is in a batch that is.

use samite_backend::WriteBatch;
use samite_types::{ErrorKind, Position};

use super::MirroredPartition;

/// Most bytes of changes that wait to be committed. Beyond, the primary takes no changes, and a
/// member that is brought up to date no records.
const WAITING_LEN_MAX: u64 = 8 << 20;

/// How far the batches of a member are.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CommitProgress {
    /// The last batch had all entries up to here.
    taken: Position,
    /// The records are being replaced: the state that is committed is no use any more.
    is_replacing: bool,
    /// The last batch said so.
    is_taken_back: bool,
    /// The batch under way is of the records that have been replaced since: when it is committed,
    /// no entry of those that are here now is.
    is_outdated: bool,
}

/// Changes for a thread of the target.
#[derive(Debug)]
pub struct MemberCommit {
    /// The changes.
    pub batch: WriteBatch,
    /// Entries up to here are committed with it; `None`: the records are being replaced.
    pub position: Option<Position>,
}

impl MirroredPartition {
    /// What is to be committed next; then comes [`MirroredPartition::committed_upto`]. `None`:
    /// nothing, or the last batch is under way.
    pub fn next_commit(&mut self) -> Option<MemberCommit> {
        if self.failed().is_some() {
            return None;
        }
        let (at, progress) = (self.at.position, self.commits);
        let is_replacing = progress.is_replacing && !self.rules.commits_unfit;
        let is_fit = self.is_fit || self.rules.commits_unfit;
        let is_due = match is_replacing {
            true => !progress.is_taken_back,
            false => is_fit && at > progress.taken,
        };
        // A member that is not fit may have changes that belong to no entry.
        let takes_changes = is_replacing || is_fit;
        let records = self.partition.commits()?;
        if records.is_committing() || !(is_due || takes_changes && records.pending_len() > 0) {
            return None;
        }
        let mut state = Vec::new();
        if !is_replacing {
            self.export(&mut state);
        }
        let state = (!is_replacing).then_some(&*state);
        let batch = self.partition.commits()?.take_batch(state);
        self.commits.is_taken_back = is_replacing;
        let position = (!is_replacing).then_some(at);
        self.commits.taken = position.unwrap_or_default();
        Some(MemberCommit { batch, position })
    }

    /// The batch under way is committed.
    pub fn committed_upto(&mut self, position: Option<Position>) {
        if let Some(records) = self.partition.commits() {
            records.committed();
        }
        let is_outdated = std::mem::take(&mut self.commits.is_outdated);
        if let Some(position) = position
            && !is_outdated
        {
            self.logged(position);
        }
    }

    /// Takes up the state with which the store was opened, before the first
    /// [`MirroredPartition::configure`]. Returns whether there was one.
    ///
    /// # Errors
    /// Errors of the target; `Corrupt`.
    pub fn recover_committed(&mut self) -> samite_types::Result<bool> {
        let Some(records) = self.partition.commits() else { return Ok(false) };
        let Some(state) = records.state()? else { return Ok(false) };
        self.import(&state)?;
        self.commits.taken = self.at.position;
        Ok(true)
    }

    /// Whether too many changes wait to be committed.
    pub(super) fn is_behind_commits(&mut self) -> bool {
        let records = self.partition.commits();
        records.is_some_and(|records| records.pending_len() > WAITING_LEN_MAX)
    }

    /// The records are being replaced: what is on flash of them is no use any more.
    pub(super) fn discard_committed(&mut self) {
        if self.appends {
            self.effects.discard();
        } else if self.logged.is_some() {
            let records = self.partition.commits();
            let is_outdated = records.is_some_and(|records| records.is_committing());
            self.commits =
                CommitProgress { is_replacing: true, is_outdated, ..CommitProgress::default() };
        }
    }

    /// The records are all there, as they are now, and are to be on flash before they count.
    pub(super) fn commit_anew(&mut self) {
        let Some(logged) = &mut self.logged else { return };
        *logged = Position(0);
        if self.appends {
            self.effects.checkpoint();
        } else {
            let is_outdated = self.commits.is_outdated;
            self.commits = CommitProgress { is_outdated, ..CommitProgress::default() };
        }
    }

    /// Why the partition can serve no more, if so: an operation was carried out in part. Nothing of
    /// it is committed.
    #[must_use]
    pub const fn failed(&self) -> Option<ErrorKind> {
        self.partition.failed()
    }
}
