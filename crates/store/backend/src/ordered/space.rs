//! What records take of a target's quota.
//!
//! What a record is decides, not how it is stored: a charge for the record, its key, and the bytes
//! of its value up to the last that is not zero, of each part.

use samite_types::Result;

use super::OrderedStore;
use super::row::{RecordRow, ValueLayout};
use super::write::{spans, stored_lens};
use crate::quota::QuotaLimit;
use crate::record::PlannedChange;

/// Charge of a record beside its key and value, in bytes: its row has a head of up to 100 bytes, and
/// pages of a tree are about two thirds full.
const RECORD_CHARGE: u64 = 160;

pub(super) const fn record_charge(key: &[u8]) -> u64 {
    RECORD_CHARGE + key.len() as u64
}

/// Bytes charged for the record at `key`.
pub(super) fn charge_of(key: &[u8], row: &RecordRow<'_>) -> u64 {
    record_charge(key) + row.layout.stored_len()
}

/// The most that `change` takes for the value of any record.
fn value_max(change: &PlannedChange<'_>) -> u64 {
    match change {
        PlannedChange::Put { source, .. } => source.len() as u64,
        PlannedChange::Write { offset, source, .. } => {
            spans(*offset, source.len()).map(|span| u64::from(span.at) + span.len as u64).sum()
        }
        PlannedChange::Moves { .. } | PlannedChange::Wipes { .. } => 0,
    }
}

/// What `change` takes of a record with this value.
fn value_growth(change: &PlannedChange<'_>, layout: &ValueLayout<'_>) -> u64 {
    let old = stored_lens(layout);
    match change {
        PlannedChange::Put { source, .. } => {
            (source.len() as u64).saturating_sub(layout.stored_len())
        }
        PlannedChange::Write { offset, source, .. } => {
            let growth = |span: super::write::PartSpan| {
                let end = u64::from(span.at) + span.len as u64;
                end.saturating_sub(old.get(span.part).copied().unwrap_or(0).into())
            };
            spans(*offset, source.len()).map(growth).sum()
        }
        PlannedChange::Moves { .. } | PlannedChange::Wipes { .. } => 0,
    }
}

impl OrderedStore {
    /// The most that `changes` take of any target that has the same records.
    pub(super) fn most(&self, changes: &[PlannedChange<'_>]) -> u64 {
        let charge = |(index, change): (usize, &PlannedChange<'_>)| {
            let Some(key) = change.key() else { return 0 };
            let is_known =
                is_settled(&changes[..index], key) && matches!(self.record(key), Ok(Some(_)));
            value_max(change) + if is_known { 0 } else { record_charge(key) }
        };
        changes.iter().enumerate().map(charge).sum()
    }

    /// Sets aside what `changes` take.
    pub(super) fn set_aside(&mut self, changes: &[PlannedChange<'_>]) -> Result<()> {
        let charge = |change: &PlannedChange<'_>| {
            change.key().map_or(0, |key| record_charge(key) + value_max(change))
        };
        let most = changes.iter().map(charge).sum();
        let has_room = self.target.map().has_room();
        let target = std::sync::Arc::clone(&self.target);
        if has_room && self.account.set_aside(target.quota(), most) {
            return Ok(());
        }
        let mut exact = 0;
        for (index, change) in changes.iter().enumerate() {
            let Some(key) = change.key() else { continue };
            exact += match self.record_to_change(key)? {
                _ if !is_settled(&changes[..index], key) => charge(change),
                None => charge(change),
                Some(row) => value_growth(change, &row.layout),
            };
        }
        self.check_room(exact)?;
        self.account.reserve(target.quota(), exact)
    }

    /// Charges what a record takes more than before.
    ///
    /// # Errors
    /// `NoSpace`.
    pub(super) fn charge(&mut self, old: u64, new: u64) -> Result<()> {
        let more = new.saturating_sub(old);
        if !self.is_reserved {
            self.check_room(more)?;
        }
        if more > 0 && !self.account.spend(self.target.quota(), more) {
            return Err(self.target.quota().full());
        }
        self.counts.charged += more;
        self.uncharge(old.saturating_sub(new));
        Ok(())
    }

    /// Gives back a charge.
    pub(super) fn uncharge(&mut self, bytes: u64) {
        self.counts.charged -= bytes;
        self.target.quota().uncharge(bytes);
    }

    fn check_room(&self, bytes: u64) -> Result<()> {
        if bytes > 0 && self.account.limit() == QuotaLimit::Open && !self.target.map().has_room() {
            return Err(super::target::disk_full());
        }
        Ok(())
    }
}

/// Whether none of the `earlier` changes leaves another record at `key`.
fn is_settled(earlier: &[PlannedChange<'_>], key: &[u8]) -> bool {
    earlier.iter().all(|change| !change.unsettles(key) && change.key() != Some(key))
}
