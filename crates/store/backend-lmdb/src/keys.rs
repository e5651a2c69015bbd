//! Rows by keys of any length, in order.
//!
//! LMDB's keys have up to 511 bytes; those of rows may have 4,161. A key that is too long is cut
//! into chunks: its first chunk leads to a *link*, a number under which the rest of the key is, by
//! the same rule. All keys that begin with a chunk are neighbours, so a link stands for them in
//! their place, and a walk that meets it goes on behind it.
//!
//! ```text
//!  1 dataset u32 partition u32 │ up to 480 bytes       row
//!  1 dataset u32 partition u32 │ 480 bytes │ 0         link u64
//!  2 link u64 │ up to 480 bytes                        row
//!  2 link u64 │ 480 bytes │ 0                          link u64
//! ```

use std::ops::{Bound, ControlFlow};

use heed::types::Bytes;
use heed::{Database, RoTxn, RwTxn};
use samite_backend::StoredPartition;
use samite_backend::ordered::RowBounds;
use samite_types::{DatasetId, PartitionId};

/// Keys and rows of the environment.
pub(crate) type RowDatabase = Database<'static, Bytes, Bytes>;

/// Bytes of a key in one level.
const CHUNK_LEN: usize = 480;
const PREFIX_LEN: usize = 9;
const ROW_TAG: u8 = 1;
const LINK_TAG: u8 = 2;
/// Key of the number of the next link.
const NEXT_LINK_KEY: [u8; 2] = [0, 1];

/// What all keys of a level begin with.
type LevelPrefix = [u8; PREFIX_LEN];

fn root_level((dataset, partition): StoredPartition) -> LevelPrefix {
    let mut prefix = [ROW_TAG; PREFIX_LEN];
    prefix[1..5].copy_from_slice(&dataset.get().to_be_bytes());
    prefix[5..].copy_from_slice(&partition.get().to_be_bytes());
    prefix
}

fn link_level(link: &[u8]) -> heed::Result<LevelPrefix> {
    let mut prefix = [LINK_TAG; PREFIX_LEN];
    // A link that is not a number is damage.
    let link: [u8; 8] = link.try_into().map_err(|_| heed::Error::Mdb(heed::MdbError::Corrupted))?;
    prefix[1..].copy_from_slice(&link);
    Ok(prefix)
}

/// The first prefix behind all keys of a level.
fn behind(prefix: &LevelPrefix) -> LevelPrefix {
    let mut next = *prefix;
    for byte in next.iter_mut().rev() {
        *byte = byte.wrapping_add(1);
        if *byte != 0 {
            break;
        }
    }
    next
}

/// A key of the environment: `rest` in the level, or the link in its place.
fn level_key(prefix: &LevelPrefix, rest: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(PREFIX_LEN + CHUNK_LEN + 1);
    key.extend_from_slice(prefix);
    match rest.get(..CHUNK_LEN) {
        Some(chunk) if rest.len() > CHUNK_LEN => {
            key.extend_from_slice(chunk);
            key.push(0);
        }
        _ => key.extend_from_slice(rest),
    }
    key
}

/// The row at `key`.
pub(crate) fn get<'t>(
    rows: RowDatabase,
    txn: &'t RoTxn<'_>,
    place: StoredPartition,
    key: &[u8],
) -> heed::Result<Option<&'t [u8]>> {
    let (mut prefix, mut rest) = (root_level(place), key);
    loop {
        let Some(found) = rows.get(txn, &level_key(&prefix, rest))? else { return Ok(None) };
        if rest.len() <= CHUNK_LEN {
            return Ok(Some(found));
        }
        (prefix, rest) = (link_level(found)?, &rest[CHUNK_LEN..]);
    }
}

/// Makes `row` the row at `key`.
pub(crate) fn put(
    rows: RowDatabase,
    txn: &mut RwTxn<'_>,
    place: StoredPartition,
    key: &[u8],
    row: &[u8],
) -> heed::Result<()> {
    let (mut prefix, mut rest) = (root_level(place), key);
    while rest.len() > CHUNK_LEN {
        let link_key = level_key(&prefix, rest);
        prefix = match rows.get(txn, &link_key)? {
            Some(link) => link_level(link)?,
            None => {
                let next = rows.get(txn, &NEXT_LINK_KEY)?.map_or(Ok([0; 8]), |next| {
                    next.try_into().map_err(|_| heed::Error::Mdb(heed::MdbError::Corrupted))
                })?;
                let after = u64::from_be_bytes(next) + 1;
                rows.put(txn, &NEXT_LINK_KEY, &after.to_be_bytes())?;
                rows.put(txn, &link_key, &next)?;
                link_level(&next)?
            }
        };
        rest = &rest[CHUNK_LEN..];
    }
    rows.put(txn, &level_key(&prefix, rest), row)
}

/// Removes the row at `key`, and links that lead to nothing more.
pub(crate) fn delete(
    rows: RowDatabase,
    txn: &mut RwTxn<'_>,
    place: StoredPartition,
    key: &[u8],
) -> heed::Result<()> {
    let (mut prefix, mut rest) = (root_level(place), key);
    let mut links = Vec::new();
    while rest.len() > CHUNK_LEN {
        let link_key = level_key(&prefix, rest);
        let Some(link) = rows.get(txn, &link_key)? else { return Ok(()) };
        prefix = link_level(link)?;
        rest = &rest[CHUNK_LEN..];
        links.push((link_key, prefix));
    }
    rows.delete(txn, &level_key(&prefix, rest))?;
    for (link_key, level) in links.into_iter().rev() {
        if rows.prefix_iter(txn, &level)?.next().is_some() {
            break;
        }
        rows.delete(txn, &link_key)?;
    }
    Ok(())
}

/// Removes all rows of a partition.
pub(crate) fn clear(
    rows: RowDatabase,
    txn: &mut RwTxn<'_>,
    place: StoredPartition,
) -> heed::Result<()> {
    let mut levels = vec![root_level(place)];
    while let Some(level) = levels.pop() {
        for found in rows.prefix_iter(txn, &level)? {
            let (key, row) = found?;
            if key.len() == PREFIX_LEN + CHUNK_LEN + 1 {
                levels.push(link_level(row)?);
            }
        }
        let (first, last) = (level, behind(&level));
        let range = (Bound::Included(&first[..]), Bound::Excluded(&last[..]));
        rows.delete_range(txn, &range)?;
    }
    Ok(())
}

/// The partitions that have rows.
pub(crate) fn partitions(rows: RowDatabase, txn: &RoTxn<'_>) -> heed::Result<Vec<StoredPartition>> {
    let number = |bytes: &[u8]| bytes.iter().fold(0, |all, byte| all << 8 | u32::from(*byte));
    let (mut found, mut at) = (Vec::new(), vec![ROW_TAG]);
    while let Some((key, _)) = rows.get_greater_than_or_equal_to(txn, &at)? {
        let Some(prefix) = key.first_chunk::<PREFIX_LEN>().filter(|key| key[0] == ROW_TAG) else {
            break;
        };
        found.push((DatasetId(number(&prefix[1..5])), PartitionId(number(&prefix[5..]))));
        at = behind(prefix).to_vec();
    }
    Ok(found)
}

/// What visits rows.
pub(crate) type RowVisit<'v> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'v;

/// Visits the rows of a partition within `bounds`, in order or backwards, until `visit` breaks.
pub(crate) fn scan(
    rows: RowDatabase,
    txn: &RoTxn<'_>,
    place: StoredPartition,
    bounds: RowBounds<'_>,
    reverse: bool,
    visit: &mut RowVisit<'_>,
) -> heed::Result<()> {
    let mut walk = LevelWalk { rows, txn, reverse, key: Vec::new(), visit };
    walk.level(&root_level(place), bounds).map(drop)
}

struct LevelWalk<'w, 'v> {
    rows: RowDatabase,
    txn: &'w RoTxn<'w>,
    reverse: bool,
    /// The chunks on the way to this level.
    key: Vec<u8>,
    visit: &'w mut RowVisit<'v>,
}

impl LevelWalk<'_, '_> {
    fn level(
        &mut self,
        prefix: &LevelPrefix,
        (first, last): RowBounds<'_>,
    ) -> heed::Result<ControlFlow<()>> {
        let end = behind(prefix);
        // A key that is too long lies behind its link.
        let bound = |bound: Bound<&[u8]>| match bound {
            Bound::Included(key) | Bound::Excluded(key) if key.len() > CHUNK_LEN => {
                Bound::Included(level_key(prefix, key))
            }
            bound => bound.map(|key| level_key(prefix, key)),
        };
        let start = match first {
            Bound::Unbounded => Bound::Included(prefix.to_vec()),
            first => bound(first),
        };
        let stop = match last {
            Bound::Unbounded => Bound::Excluded(end.to_vec()),
            last => bound(last),
        };
        let range = (start.as_ref().map(|key| &**key), stop.as_ref().map(|key| &**key));
        let (rows, txn) = (self.rows, self.txn);
        let found: Box<dyn Iterator<Item = heed::Result<(&[u8], &[u8])>>> = match self.reverse {
            true => Box::new(rows.rev_range(txn, &range)?),
            false => Box::new(rows.range(txn, &range)?),
        };
        for row in found {
            let (key, row) = row?;
            let rest = &key[PREFIX_LEN..];
            let flow = if rest.len() > CHUNK_LEN {
                self.link(&rest[..CHUNK_LEN], row, (first, last))?
            } else if self.key.is_empty() {
                (self.visit)(rest, row)
            } else {
                let len = self.key.len();
                self.key.extend_from_slice(rest);
                let flow = (self.visit)(&self.key, row);
                self.key.truncate(len);
                flow
            };
            if flow.is_break() {
                return Ok(flow);
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Goes on behind a link.
    fn link(
        &mut self,
        chunk: &[u8],
        link: &[u8],
        (first, last): RowBounds<'_>,
    ) -> heed::Result<ControlFlow<()>> {
        // A bound that begins otherwise lies before or behind all of them.
        let within = |key: &[u8]| key.len() > CHUNK_LEN && key.starts_with(chunk);
        let rest = |bound: Bound<&'_ [u8]>| match bound {
            Bound::Included(key) if within(key) => Bound::Included(key[CHUNK_LEN..].to_vec()),
            Bound::Excluded(key) if within(key) => Bound::Excluded(key[CHUNK_LEN..].to_vec()),
            _ => Bound::Unbounded,
        };
        let (first, last) = (rest(first), rest(last));
        let bounds = (first.as_ref().map(|key| &**key), last.as_ref().map(|key| &**key));
        let len = self.key.len();
        self.key.extend_from_slice(chunk);
        let flow = self.level(&link_level(link)?, bounds);
        self.key.truncate(len);
        flow
    }
}
