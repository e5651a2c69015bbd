//! Changes of rows that are not in the map yet.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Bound;
use std::sync::Arc;

use super::row::{self, SUM_LEN};
use crate::commit::RowChange;

/// Bytes charged for a change beside its key and bytes.
const CHANGE_LEN: u64 = 64;

/// A change of one row.
#[derive(Debug)]
pub(super) struct PendingChange {
    pub(super) change: RowChange,
    /// The checksum in a [`RowChange::Put`] is that of its bytes, or is wrong because they are.
    /// Otherwise it is made when the change is taken.
    pub(super) is_sealed: bool,
}

/// The changes that no batch has taken yet.
#[derive(Debug, Default)]
pub(super) struct PendingRows {
    rows: BTreeMap<Vec<u8>, PendingChange>,
    len: u64,
}

fn change_len(key: &[u8], change: &RowChange) -> u64 {
    let bytes = match change {
        RowChange::Put(bytes) => bytes.len(),
        RowChange::Patch { pieces, .. } => pieces.iter().map(|(_, bytes)| bytes.len() + 32).sum(),
        RowChange::Delete => 0,
    };
    CHANGE_LEN + (key.len() + bytes) as u64
}

impl PendingRows {
    /// Bytes of all changes.
    pub(super) const fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<&PendingChange> {
        self.rows.get(key)
    }

    pub(super) fn range(
        &self,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
    ) -> impl DoubleEndedIterator<Item = (&[u8], &PendingChange)> {
        self.rows.range::<[u8], _>(bounds).map(|(key, pending)| (&**key, pending))
    }

    /// The row becomes these bytes, which have their checksum.
    pub(super) fn put(&mut self, key: &[u8], bytes: Vec<u8>) {
        self.set(key, RowChange::Put(bytes), true);
    }

    /// The row goes. `is_new`: it is not in any layer below, so that nothing has to be told.
    pub(super) fn delete(&mut self, key: &[u8], is_new: bool) {
        if !is_new {
            self.set(key, RowChange::Delete, true);
        } else if let Some(pending) = self.rows.remove(key) {
            self.len -= change_len(key, &pending.change);
        }
    }

    fn set(&mut self, key: &[u8], change: RowChange, is_sealed: bool) {
        self.len += change_len(key, &change);
        let pending = PendingChange { change, is_sealed };
        if let Some(old) = self.rows.insert(key.to_vec(), pending) {
            self.len -= change_len(key, &old.change);
        }
    }

    /// The part row becomes these bytes, zeros before them.
    pub(super) fn put_part(&mut self, key: &[u8], at: u32, bytes: &[u8]) {
        let mut row = Vec::with_capacity(SUM_LEN + at as usize + bytes.len());
        row.resize(SUM_LEN + at as usize, 0);
        row.extend_from_slice(bytes);
        self.set(key, RowChange::Put(row), false);
    }

    /// The part row has `bytes` at `at`; the rest of it stays.
    pub(super) fn write_part(&mut self, key: &[u8], at: u32, bytes: &[u8]) {
        self.edit_part(key, u32::MAX, |change| match change {
            RowChange::Put(row) => {
                let (start, end) = (SUM_LEN + at as usize, SUM_LEN + at as usize + bytes.len());
                row.resize(row.len().max(end), 0);
                row[start..end].copy_from_slice(bytes);
            }
            RowChange::Patch { pieces, .. } => add_piece(pieces, at, bytes),
            RowChange::Delete => {}
        });
    }

    /// Only the first `len` bytes of the part row stay.
    pub(super) fn cut_part(&mut self, key: &[u8], len: u32) {
        self.edit_part(key, len, |change| match change {
            RowChange::Put(row) => row.truncate(SUM_LEN + len as usize),
            RowChange::Patch { keep, pieces } => {
                *keep = len.min(*keep);
                pieces.retain(|(at, _)| *at < len);
                if let Some((at, bytes)) = pieces.last_mut() {
                    bytes.truncate((len - *at) as usize);
                }
            }
            RowChange::Delete => {}
        });
    }

    /// Changes what is to become of a part row; a row of the layers below by a patch that keeps its
    /// first `keep` bytes.
    fn edit_part(&mut self, key: &[u8], keep: u32, edit: impl FnOnce(&mut RowChange)) {
        let pending = match self.rows.entry(key.to_vec()) {
            Entry::Vacant(entry) => {
                let change = RowChange::Patch { keep, pieces: Vec::new() };
                self.len += change_len(key, &change);
                entry.insert(PendingChange { change, is_sealed: true })
            }
            Entry::Occupied(entry) => entry.into_mut(),
        };
        self.len -= change_len(key, &pending.change);
        if matches!(pending.change, RowChange::Delete) {
            pending.change = RowChange::Put(vec![0; SUM_LEN]);
            pending.is_sealed = false;
        }
        // The checksum of a damaged row has to stay a wrong one.
        let is_damaged = match &pending.change {
            RowChange::Put(row) => pending.is_sealed && row::verified(key, row).is_none(),
            _ => false,
        };
        edit(&mut pending.change);
        if let RowChange::Put(row) = &mut pending.change {
            pending.is_sealed = is_damaged;
            if is_damaged {
                row::seal(key, row, true);
            }
        }
        self.len += change_len(key, &pending.change);
    }

    /// Takes all changes, in the order of their keys, with their checksums.
    pub(super) fn take(&mut self) -> Vec<(Vec<u8>, RowChange)> {
        self.len = 0;
        let sealed = |(key, mut pending): (Vec<u8>, PendingChange)| {
            if let RowChange::Put(row) = &mut pending.change
                && !pending.is_sealed
            {
                row::seal(&key, row, false);
            }
            (key, pending.change)
        };
        std::mem::take(&mut self.rows).into_iter().map(sealed).collect()
    }
}

/// Adds a piece to pieces that are in order and apart from each other.
fn add_piece(pieces: &mut Vec<(u32, Vec<u8>)>, at: u32, bytes: &[u8]) {
    let end = |(at, bytes): &(u32, Vec<u8>)| *at + bytes.len() as u32;
    let until = at + bytes.len() as u32;
    // Those that it overlaps or touches become one.
    let first = pieces.partition_point(|piece| end(piece) < at);
    let last = pieces.partition_point(|piece| piece.0 <= until);
    if first == last {
        pieces.insert(first, (at, bytes.to_vec()));
        return;
    }
    let whole_end = end(&pieces[last - 1]).max(until);
    let (start, mut whole) = if pieces[first].0 <= at {
        (pieces[first].0, std::mem::take(&mut pieces[first].1))
    } else {
        (at, Vec::with_capacity((whole_end - at) as usize))
    };
    whole.resize((whole_end - start) as usize, 0);
    for (piece_at, piece) in &pieces[first..last] {
        if !piece.is_empty() {
            whole[(*piece_at - start) as usize..][..piece.len()].copy_from_slice(piece);
        }
    }
    whole[(at - start) as usize..][..bytes.len()].copy_from_slice(bytes);
    pieces[first] = (start, whole);
    pieces.drain(first + 1..last);
}

/// The changes of the batch under way.
#[derive(Clone, Debug)]
pub(super) struct CommittingRows(pub(super) Arc<[(Vec<u8>, RowChange)]>);

impl CommittingRows {
    pub(super) fn get(&self, key: &[u8]) -> Option<&RowChange> {
        let at = self.0.binary_search_by(|(row, _)| (**row).cmp(key)).ok()?;
        Some(&self.0[at].1)
    }

    pub(super) fn range(
        &self,
        (first, last): (Bound<&[u8]>, Bound<&[u8]>),
    ) -> impl DoubleEndedIterator<Item = (&[u8], &RowChange)> {
        let start = match first {
            Bound::Included(key) => self.0.partition_point(|(row, _)| **row < *key),
            Bound::Excluded(key) => self.0.partition_point(|(row, _)| **row <= *key),
            Bound::Unbounded => 0,
        };
        let end = match last {
            Bound::Included(key) => self.0.partition_point(|(row, _)| **row <= *key),
            Bound::Excluded(key) => self.0.partition_point(|(row, _)| **row < *key),
            Bound::Unbounded => self.0.len(),
        };
        self.0[start..end.max(start)].iter().map(|(key, change)| (&**key, change))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ordered::row::{part_key, patched_row, verified};

    #[derive(Clone, Debug)]
    enum Edit {
        Write(u32, Vec<u8>),
        Cut(u32),
        Take,
    }

    fn edits() -> impl Strategy<Value = Vec<Edit>> {
        let write = (0..60_u32, prop::collection::vec(any::<u8>(), 1..12));
        let edit = prop_oneof![
            6 => write.prop_map(|(at, bytes)| Edit::Write(at, bytes)),
            1 => (1..70_u32).prop_map(Edit::Cut),
            1 => Just(Edit::Take),
        ];
        prop::collection::vec(edit, 1..40)
    }

    proptest! {
        #[test]
        fn patches_in_any_order_give_the_bytes(edits in edits(), is_new in any::<bool>()) {
            let key = part_key(1, 2);
            let (mut pending, mut stored) = (PendingRows::default(), None::<Vec<u8>>);
            let mut model = Vec::new();
            if is_new {
                pending.put_part(&key, 3, b"xyz");
                model = b"\0\0\0xyz".to_vec();
            }
            let take = |pending: &mut PendingRows, stored: &mut Option<Vec<u8>>| {
                for (_, change) in pending.take() {
                    match change {
                        RowChange::Put(row) => *stored = Some(row),
                        RowChange::Delete => *stored = None,
                        RowChange::Patch { keep, pieces } => {
                            let ends = pieces.windows(2).all(|two| {
                                two[0].0 + (two[0].1.len() as u32) < two[1].0
                            });
                            assert!(ends, "pieces overlap, or are not in order");
                            *stored = Some(patched_row(&key, stored.as_deref(), keep, &pieces));
                        }
                    }
                }
                assert_eq!(pending.len(), 0);
            };
            for edit in edits.into_iter().chain([Edit::Take]) {
                match edit {
                    Edit::Write(at, bytes) => {
                        pending.write_part(&key, at, &bytes);
                        let (start, end) = (at as usize, at as usize + bytes.len());
                        model.resize(model.len().max(end), 0);
                        model[start..end].copy_from_slice(&bytes);
                    }
                    Edit::Cut(len) => {
                        pending.cut_part(&key, len);
                        model.truncate(len as usize);
                    }
                    Edit::Take => {
                        take(&mut pending, &mut stored);
                        let row = stored.as_ref().map(|row| verified(&key, row).unwrap());
                        // Zeros at the end may be left out.
                        let mut bytes = row.unwrap_or(&[]).to_vec();
                        prop_assert!(bytes.len() <= model.len());
                        bytes.resize(model.len(), 0);
                        prop_assert_eq!(&bytes, &model);
                    }
                }
            }
        }
    }
}
