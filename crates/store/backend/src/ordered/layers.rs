//! Rows as they are now: pending changes over those under way over the map.

use std::iter::Peekable;
use std::ops::ControlFlow;
use std::sync::Arc;

use samite_types::{Error, ErrorKind, Result};

use super::overlay::{CommittingRows, PendingRows};
use super::row::{SUM_LEN, patched_row, verified};
use super::{OrderedMap, RowBounds, row_of};
use crate::commit::{RowChange, StoredPartition};

/// The rows of one partition.
#[derive(Debug)]
pub(super) struct RowLayers {
    pub(super) map: Arc<dyn OrderedMap>,
    pub(super) place: StoredPartition,
    pub(super) pending: PendingRows,
    pub(super) committing: Option<CommittingRows>,
    /// What the map has is of no use: it goes with the batch that is under way, or the next one.
    pub(super) hides_map: bool,
}

/// What the layers over the map say of a row.
enum Covered<'a> {
    /// It has these bytes.
    Row(&'a [u8]),
    /// There is none.
    Gone,
    /// It is as in the map.
    Uncovered,
}

impl RowLayers {
    /// Hands the row at `key`, which nobody patches, to `see`. Returns whether there is one.
    pub(super) fn with_row(&self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool> {
        match self.covered(key) {
            Covered::Row(row) => {
                see(row);
                Ok(true)
            }
            Covered::Gone => Ok(false),
            Covered::Uncovered => self.map.get(self.place, key, see),
        }
    }

    /// Whether what becomes of the row at `key` is known without a look at the map.
    pub(super) fn covers(&self, key: &[u8]) -> bool {
        !matches!(self.covered(key), Covered::Uncovered)
    }

    fn covered(&self, key: &[u8]) -> Covered<'_> {
        let pending = self.pending.get(key).map(|pending| &pending.change);
        let change = pending.or_else(|| self.committing.as_ref()?.get(key));
        match change {
            Some(RowChange::Put(row)) => Covered::Row(row),
            Some(RowChange::Delete) => Covered::Gone,
            Some(RowChange::Patch { .. }) | None if self.hides_map => Covered::Gone,
            Some(RowChange::Patch { .. }) | None => Covered::Uncovered,
        }
    }

    /// Hands the bytes of the part row at `key` to `see`, none if there is no such row.
    ///
    /// # Errors
    /// `Corrupt`: they are damaged.
    pub(super) fn with_part(&self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<()> {
        if let Some(pending) = self.pending.get(key)
            && !pending.is_sealed
            && let RowChange::Put(row) = &pending.change
        {
            see(&row[SUM_LEN..]);
            return Ok(());
        }
        let mut is_right = true;
        let mut check = |row: &[u8]| match verified(key, row) {
            Some(bytes) => see(bytes),
            None => is_right = false,
        };
        let under = self.committing.as_ref().and_then(|rows| rows.get(key));
        let has_row = match (self.pending.get(key).map(|pending| &pending.change), under) {
            (Some(RowChange::Put(row)), _) | (None, Some(RowChange::Put(row))) => {
                check(row);
                true
            }
            (Some(RowChange::Delete), _) | (None, Some(RowChange::Delete)) => false,
            (None, None) if self.hides_map => false,
            (None, None) => self.map.get(self.place, key, &mut check)?,
            (over, under) => {
                let row = self.patched(key, over, under)?;
                check(&row);
                true
            }
        };
        if !is_right {
            return Err(Error::new(ErrorKind::Corrupt, "a part of a value is damaged"));
        }
        if !has_row {
            see(&[]);
        }
        Ok(())
    }

    /// The row at `key` with the patches of the layers.
    fn patched(
        &self,
        key: &[u8],
        over: Option<&RowChange>,
        under: Option<&RowChange>,
    ) -> Result<Vec<u8>> {
        let mut row = match under {
            Some(RowChange::Put(row)) => Some(row.clone()),
            Some(RowChange::Delete) => None,
            Some(RowChange::Patch { .. }) | None if self.hides_map => None,
            Some(RowChange::Patch { .. }) | None => row_of(&*self.map, self.place, key)?,
        };
        for change in [under, over] {
            if let Some(RowChange::Patch { keep, pieces }) = change {
                row = Some(patched_row(key, row.as_deref(), *keep, pieces));
            }
        }
        Ok(row.unwrap_or_default())
    }

    /// The whole part row at `key`, with its checksum: for who changes it without knowing it.
    pub(super) fn part_row(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut bytes = Vec::new();
        self.with_part(key, &mut |part| bytes = part.to_vec())?;
        if bytes.is_empty() {
            return Ok(None);
        }
        let mut row = vec![0; SUM_LEN];
        row.extend_from_slice(&bytes);
        super::row::seal(key, &mut row, false);
        Ok(Some(row))
    }

    /// Visits the rows within `bounds`, which nobody patches, in the order of their keys, or
    /// backwards, until `visit` breaks.
    pub(super) fn scan(
        &self,
        bounds: RowBounds<'_>,
        reverse: bool,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        let pending = self.pending.range(bounds).map(|(key, pending)| (key, &pending.change));
        let committing = self.committing.as_ref();
        let committing = committing.into_iter().flat_map(|rows| rows.range(bounds));
        if reverse {
            self.merge(pending.rev(), committing.rev(), bounds, true, visit)
        } else {
            self.merge(pending, committing, bounds, false, visit)
        }
    }

    fn merge<'a>(
        &self,
        pending: impl Iterator<Item = (&'a [u8], &'a RowChange)>,
        committing: impl Iterator<Item = (&'a [u8], &'a RowChange)>,
        bounds: RowBounds<'_>,
        reverse: bool,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        let comes_first =
            |one: &[u8], other: &[u8]| if reverse { one > other } else { one < other };
        let mut over =
            MergedChanges { over: pending.peekable(), under: committing.peekable(), comes_first };
        // Visits the changed rows before `key`; all of them, if there is none.
        let mut before = |key: Option<&[u8]>, visit: &mut Visit<'_>| {
            while let Some(changed) = over.key()
                && key.is_none_or(|key| comes_first(changed, key))
            {
                if let Some((key, RowChange::Put(row))) = over.next()
                    && visit(key, row).is_break()
                {
                    return ControlFlow::Break(());
                }
            }
            let is_covered = key.is_some() && over.key() == key;
            ControlFlow::Continue(is_covered)
        };
        let mut is_over = false;
        if !self.hides_map {
            self.map.scan(self.place, bounds, reverse, &mut |key, row| {
                let flow = match before(Some(key), visit) {
                    ControlFlow::Continue(true) => ControlFlow::Continue(()),
                    ControlFlow::Continue(false) => visit(key, row),
                    ControlFlow::Break(()) => ControlFlow::Break(()),
                };
                is_over = flow.is_break();
                flow
            })?;
        }
        if !is_over {
            let _ = before(None, visit);
        }
        Ok(())
    }
}

type Visit<'v> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'v;

/// Changes of two layers, in order; of a row that both change, that of the upper one.
struct MergedChanges<I: Iterator, J: Iterator, F> {
    over: Peekable<I>,
    under: Peekable<J>,
    comes_first: F,
}

impl<'a, I, J, F> MergedChanges<I, J, F>
where
    I: Iterator<Item = (&'a [u8], &'a RowChange)>,
    J: Iterator<Item = (&'a [u8], &'a RowChange)>,
    F: Fn(&[u8], &[u8]) -> bool,
{
    fn key(&mut self) -> Option<&'a [u8]> {
        let (over, under) = (self.over.peek().map(|row| row.0), self.under.peek().map(|row| row.0));
        match (over, under) {
            (Some(over), Some(under)) if (self.comes_first)(under, over) => Some(under),
            (over, under) => over.or(under),
        }
    }
}

impl<'a, I, J, F> Iterator for MergedChanges<I, J, F>
where
    I: Iterator<Item = (&'a [u8], &'a RowChange)>,
    J: Iterator<Item = (&'a [u8], &'a RowChange)>,
    F: Fn(&[u8], &[u8]) -> bool,
{
    type Item = (&'a [u8], &'a RowChange);

    fn next(&mut self) -> Option<Self::Item> {
        let key = self.key()?;
        let under = self.under.next_if(|row| row.0 == key);
        self.over.next_if(|row| row.0 == key).or(under)
    }
}
