//! The part of a store that remembers.

use std::sync::Arc;

use samite_types::Result;

use super::overlay::CommittingRows;
use super::row::{STATE_KEY, StateCounts};
use super::{OrderedStore, row_of};
use crate::commit::{CommitRecords, RowChange, WriteBatch};

impl CommitRecords for OrderedStore {
    fn state(&self) -> Result<Option<Vec<u8>>> {
        let Some(row) = row_of(&*self.layers.map, self.place, &STATE_KEY)? else {
            return Ok(None);
        };
        let (_, state) = StateCounts::decode(&row)?;
        Ok(Some(state.to_vec()))
    }

    fn pending_len(&self) -> u64 {
        self.layers.pending.len()
    }

    fn is_committing(&self) -> bool {
        self.layers.committing.is_some()
    }

    fn take_batch(&mut self, state: Option<&[u8]>) -> WriteBatch {
        debug_assert!(!self.is_committing(), "one batch at a time");
        let state = match state {
            Some(state) => RowChange::Put(self.counts.encode(state)),
            None => RowChange::Delete,
        };
        let changes = self.layers.pending.take();
        let mut rows = Vec::with_capacity(1 + changes.len());
        rows.push((STATE_KEY.to_vec(), state));
        rows.extend(changes);
        let rows: Arc<[(Vec<u8>, RowChange)]> = rows.into();
        self.layers.committing = Some(CommittingRows(Arc::clone(&rows)));
        self.known_ids = self.counts.next_id;
        // The map is hidden until this batch has cleared it.
        WriteBatch { place: self.place, clears: self.layers.hides_map, rows }
    }

    fn committed(&mut self) {
        self.layers.committing = None;
        self.layers.hides_map = false;
    }
}
