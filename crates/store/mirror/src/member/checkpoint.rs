//! Copies of a member for checkpoints, and the state that a log on flash and its checkpoints give
//! back.

use std::time::Duration;

use samite_backend::QuotaLimit;
use samite_partition::ChangeFunds;
use samite_types::ErrorKind;
use samite_wire::peer::{PartitionLogEntry, RecordCopy};

use super::MirroredPartition;
use crate::copy_source::{CopyBatch, CopySource};
use crate::member_state;
use crate::role::MemberRole;

impl MirroredPartition {
    /// Applies an entry that a log on flash gave back, in order; before the first
    /// [`MirroredPartition::configure`].
    ///
    /// # Errors
    /// It does not follow on the state here, or its result was another: the log is not of this
    /// partition.
    pub fn replay(&mut self, entry: &PartitionLogEntry<'_>) -> Result<(), ErrorKind> {
        self.partition.set_follows(true);
        self.partition.set_funds(ChangeFunds::Promised);
        self.is_replaying = true;
        let stepped = self.step(entry, Duration::ZERO);
        self.is_replaying = false;
        self.partition.set_funds(ChangeFunds::Own);
        stepped.map(|_| ())
    }

    /// Begins a copy of the whole partition, for a checkpoint; one that is under way ends.
    pub fn begin_checkpoint(&mut self) {
        self.checkpoint = Some(CopySource::copying());
        self.partition.set_notes_touched(true);
    }

    /// The next records of the checkpoint, about `len_max` bytes of them; later ones replace
    /// earlier ones. All effects are to have been taken before: the log goes on after the
    /// checkpoint with the entries that it gets then. After [`CopyBatch::Last`], and before
    /// anything else happens, [`MirroredPartition::export`] gives the state that is to stand behind
    /// them. `None`: none is under way; the one that was has to begin again, unless it came to its
    /// end.
    ///
    /// # Errors
    /// Errors of the store; the checkpoint ends.
    pub fn checkpoint_step(&mut self, len_max: usize) -> samite_types::Result<Option<CopyBatch>> {
        let Some(mut source) = self.checkpoint.take() else { return Ok(None) };
        if let Some(kind) = self.failed() {
            return Err(kind.into());
        }
        let batch = source.next(&self.partition, len_max)?;
        if matches!(batch, CopyBatch::Last(_)) {
            debug_assert!(self.effects.is_log_told(), "a checkpoint of what no log has");
        } else {
            self.checkpoint = Some(source);
        }
        Ok(Some(batch))
    }

    /// Puts records of a checkpoint in place. After the last, [`MirroredPartition::import`] takes
    /// what stood behind them.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn install(&mut self, records: &[RecordCopy<'_>]) -> samite_types::Result<()> {
        records.iter().try_for_each(|record| self.partition.install(record, QuotaLimit::Beyond))
    }

    /// Appends all that this is beside its records: where its log stands, and the partition's
    /// state.
    pub fn export(&self, out: &mut Vec<u8>) {
        member_state::export(&self.partition, self.at, self.grants_delegations, out);
    }

    /// Takes over the output of [`MirroredPartition::export`], beside the records as they are: from
    /// here on it follows the log.
    ///
    /// # Errors
    /// `Corrupt`: it wrote something else; nothing is changed.
    pub fn import(&mut self, state: &[u8]) -> samite_types::Result<()> {
        (self.at, self.grants_delegations) = member_state::import(&mut self.partition, state)?;
        self.is_fit = true;
        self.is_doubtful = false;
        self.commit_anew();
        if matches!(self.role, MemberRole::Secondary) {
            self.partition.set_follows(true);
        }
        Ok(())
    }
}
