//! Rows in LMDB, of which the large ones are files.

use std::borrow::Cow;
use std::ops::{Bound, ControlFlow};
use std::sync::{Mutex, PoisonError};

use samite_backend::ordered::{
    OrderedMap, RowBounds, changed_row, is_part_key, part_key_bounds, row_of,
};
use samite_backend::{RowChange, StoredPartition, WriteBatch};
use samite_backend_lmdb::{LmdbMap, LmdbOptions, TargetRoot};
use samite_types::{DatasetId, Error, ErrorKind, PartitionId, Result};

use crate::files::{NewFiles, PartFiles};

/// Part rows of more bytes are files.
const ROW_LEN_MAX: usize = 4096;
/// Where the rows are that belong to no partition; no dataset has this id.
const OWN_PLACE: StoredPartition = (DatasetId(u32::MAX), PartitionId(u32::MAX));
/// Key of the number of the next file.
const NEXT_KEY: [u8; 1] = [0];
/// What the keys begin with that name files which are to be removed.
const REMOVED_TAG: u8 = 1;
const ROW_TAG: u8 = 0;
const FILE_TAG: u8 = 1;

/// An ordered map: LMDB, and a file for each large part of a value.
#[derive(Debug)]
pub struct PartFileMap {
    map: LmdbMap,
    files: PartFiles,
    numbers: Mutex<FileNumbers>,
}

#[derive(Debug, Default)]
struct FileNumbers {
    next: u64,
    /// Files that are gone, of which rows say that they are to be removed.
    removed: Vec<u64>,
}

/// A part row as LMDB has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PartRow<'a> {
    Bytes(&'a [u8]),
    File { number: u64, len: u32 },
}

fn damaged(what: &'static str) -> Error {
    Error::new(ErrorKind::Corrupt, what)
}

impl<'a> PartRow<'a> {
    fn decode(row: &'a [u8]) -> Result<Self> {
        match row.split_first() {
            Some((&ROW_TAG, bytes)) => Ok(Self::Bytes(bytes)),
            Some((&FILE_TAG, rest)) => {
                let (number, len) = rest
                    .split_first_chunk()
                    .and_then(|(number, len)| Some((number, len.try_into().ok()?)))
                    .ok_or_else(|| damaged("a row that names a file is damaged"))?;
                let len = u32::from_le_bytes(len).min(2 * samite_backend::ordered::PART_LEN);
                Ok(Self::File { number: u64::from_le_bytes(*number), len })
            }
            _ => Err(damaged("a part row of no known kind")),
        }
    }

    fn encode(&self) -> Vec<u8> {
        match self {
            Self::Bytes(bytes) => [&[ROW_TAG], *bytes].concat(),
            Self::File { number, len } => {
                [&[FILE_TAG][..], &number.to_le_bytes(), &len.to_le_bytes()].concat()
            }
        }
    }
}

fn removed_key(number: u64) -> Vec<u8> {
    [&[REMOVED_TAG][..], &number.to_be_bytes()].concat()
}

fn number_of(bytes: &[u8]) -> Result<[u8; 8]> {
    bytes.try_into().map_err(|_| damaged("a number of a file is damaged"))
}

impl PartFileMap {
    /// Opens the map in the directory of a target; makes it, if there is none. Files that a commit
    /// which was not finished has left are removed.
    ///
    /// # Errors
    /// As [`LmdbMap::open`]; errors of the disk.
    pub fn open(root: TargetRoot, options: &LmdbOptions) -> Result<Self> {
        let map = LmdbMap::open(root, options)?;
        let files = PartFiles::open(map.root())?;
        let next = row_of(&map, OWN_PLACE, &NEXT_KEY)?;
        let next = next.map_or(Ok(0), |row| number_of(&row).map(u64::from_le_bytes))?;
        let mut numbers = FileNumbers { next, removed: Vec::new() };
        let bounds = (Bound::Included(&[REMOVED_TAG][..]), Bound::Unbounded);
        let mut failure = None;
        map.scan(OWN_PLACE, bounds, false, &mut |key, _| match number_of(&key[1..]) {
            Ok(number) => {
                numbers.removed.push(u64::from_be_bytes(number));
                ControlFlow::Continue(())
            }
            Err(error) => {
                failure = Some(error);
                ControlFlow::Break(())
            }
        })?;
        failure.map_or(Ok(()), Err)?;
        numbers.removed.iter().try_for_each(|number| files.remove(*number))?;
        files.sweep(next)?;
        Ok(Self { map, files, numbers: Mutex::new(numbers) })
    }

    /// The bytes of a file; `None`: there is none.
    fn file(&self, number: u64, len: u32) -> Result<Option<Vec<u8>>> {
        // A file that cannot be read is damage of one value, not of the target.
        self.files.read(number, len as usize).map_err(|errno| {
            Error::new(ErrorKind::Corrupt, format!("reading a part of a value: {errno}"))
        })
    }

    /// The part row at `key`, and the file in which it is.
    fn part(&self, place: StoredPartition, key: &[u8]) -> Result<Option<(Vec<u8>, Option<u64>)>> {
        let mut missing = None;
        loop {
            let Some(row) = row_of(&self.map, place, key)? else { return Ok(None) };
            let (number, len) = match PartRow::decode(&row)? {
                PartRow::Bytes(bytes) => return Ok(Some((bytes.to_vec(), None))),
                PartRow::File { number, len } => (number, len),
            };
            if let Some(bytes) = self.file(number, len)? {
                return Ok(Some((bytes, Some(number))));
            }
            // A commit has removed it since, and the row says which file it is now.
            if missing == Some(number) {
                return Err(damaged("the file of a part of a value is missing"));
            }
            missing = Some(number);
        }
    }

    /// The files that part rows of a partition name.
    fn files_of(&self, place: StoredPartition) -> Result<Vec<u64>> {
        let (first, end) = part_key_bounds();
        let bounds = (Bound::Included(&first[..]), Bound::Excluded(&end[..]));
        let mut numbers = Vec::new();
        self.map.scan(place, bounds, false, &mut |_, row| {
            if let Ok(PartRow::File { number, .. }) = PartRow::decode(row) {
                numbers.push(number);
            }
            ControlFlow::Continue(())
        })?;
        Ok(numbers)
    }

    /// Makes the files that a batch needs, and the batch for LMDB.
    fn stage(
        &self,
        batch: &WriteBatch,
        numbers: &mut FileNumbers,
        new: &mut NewFiles<'_>,
        unused: &mut Vec<u64>,
    ) -> Result<WriteBatch> {
        if batch.clears {
            unused.extend(self.files_of(batch.place)?);
        }
        let stage = |(key, change): &(Vec<u8>, RowChange)| {
            if !is_part_key(key) {
                return Ok((key.clone(), change.clone()));
            }
            let old = match change {
                _ if batch.clears => None,
                RowChange::Patch { .. } => self.old_part(batch.place, key, unused)?,
                RowChange::Put(_) | RowChange::Delete => {
                    unused.extend(self.file_at(batch.place, key)?);
                    None
                }
            };
            let staged = match changed_row(key, change, || Ok(old))? {
                None => RowChange::Delete,
                Some(row) => RowChange::Put(self.stage_row(row, numbers, new)?),
            };
            Ok((key.clone(), staged))
        };
        let rows: Result<Vec<_>> = batch.rows.iter().map(stage).collect();
        Ok(WriteBatch { place: batch.place, clears: batch.clears, rows: rows?.into() })
    }

    /// A part row that is patched: what it is, with its file noted. One that cannot be read is
    /// damaged, and stays so.
    fn old_part(
        &self,
        place: StoredPartition,
        key: &[u8],
        unused: &mut Vec<u64>,
    ) -> Result<Option<Vec<u8>>> {
        unused.extend(self.file_at(place, key)?);
        match self.part(place, key) {
            Ok(part) => Ok(part.map(|(row, _)| row)),
            Err(error) if error.kind() == ErrorKind::Corrupt => Ok(Some(Vec::new())),
            Err(error) => Err(error),
        }
    }

    fn file_at(&self, place: StoredPartition, key: &[u8]) -> Result<Option<u64>> {
        let row = row_of(&self.map, place, key)?;
        Ok(match row.as_deref().map(PartRow::decode) {
            Some(Ok(PartRow::File { number, .. })) => Some(number),
            // Of a damaged row nobody knows the file.
            _ => None,
        })
    }

    fn stage_row(
        &self,
        row: Cow<'_, [u8]>,
        numbers: &mut FileNumbers,
        new: &mut NewFiles<'_>,
    ) -> Result<Vec<u8>> {
        if row.len() <= ROW_LEN_MAX {
            return Ok(PartRow::Bytes(&row).encode());
        }
        let mut write = || {
            let number = numbers.next;
            numbers.next += 1;
            new.write(number, &row).map(|()| PartRow::File { number, len: row.len() as u32 })
        };
        let mut written = write();
        while matches!(&written, Err(error) if error.kind() == ErrorKind::NoSpace)
            && self.map.release_reserve()
        {
            written = write();
        }
        Ok(written?.encode())
    }

    /// The rows of our own: how far numbers are used, which files are to be removed, and which are.
    fn own_batch(numbers: &FileNumbers, unused: &[u64]) -> WriteBatch {
        let next = RowChange::Put(numbers.next.to_le_bytes().to_vec());
        let gone = numbers.removed.iter().map(|number| (removed_key(*number), RowChange::Delete));
        let more = unused.iter().map(|number| (removed_key(*number), RowChange::Put(Vec::new())));
        let mut rows: Vec<_> = gone.chain(more).collect();
        rows.sort_by(|one, other| one.0.cmp(&other.0));
        rows.insert(0, (NEXT_KEY.to_vec(), next));
        WriteBatch { place: OWN_PLACE, clears: false, rows: rows.into() }
    }
}

impl OrderedMap for PartFileMap {
    fn get(&self, place: StoredPartition, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool> {
        if !is_part_key(key) {
            return self.map.get(place, key, see);
        }
        let part = self.part(place, key)?;
        Ok(part.map(|(row, _)| see(&row)).is_some())
    }

    fn scan(
        &self,
        place: StoredPartition,
        bounds: RowBounds<'_>,
        reverse: bool,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut failure = None;
        self.map.scan(place, bounds, reverse, &mut |key, row| {
            if !is_part_key(key) {
                return visit(key, row);
            }
            match self.part(place, key) {
                Ok(Some((row, _))) => visit(key, &row),
                Ok(None) => ControlFlow::Continue(()),
                Err(error) => {
                    failure = Some(error);
                    ControlFlow::Break(())
                }
            }
        })?;
        failure.map_or(Ok(()), Err)
    }

    fn commit(&self, batches: &[WriteBatch]) -> Result<()> {
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut new, mut unused) = (NewFiles::new(&self.files), Vec::new());
        let mut staged = Vec::with_capacity(batches.len() + 1);
        // Their rows go with this commit: no crash may bring them back.
        new.note_removed(&numbers.removed);
        let mut stage = || {
            for batch in batches {
                staged.push(self.stage(batch, &mut numbers, &mut new, &mut unused)?);
            }
            new.sync()?;
            staged.push(Self::own_batch(&numbers, &unused));
            self.map.commit(&staged)
        };
        match stage() {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                // Nothing names the new files.
                new.discard()?;
                return Err(error);
            }
            Err(error) => return Err(error),
        }
        numbers.removed.clear();
        // What cannot be removed now is when the target is opened the next time.
        for number in unused {
            if self.files.remove(number).is_ok() {
                numbers.removed.push(number);
            }
        }
        Ok(())
    }

    fn stored(&self) -> Result<Vec<StoredPartition>> {
        let mut stored = self.map.stored()?;
        stored.retain(|place| *place != OWN_PLACE);
        Ok(stored)
    }

    fn has_room(&self) -> bool {
        self.map.has_room()
    }
}
