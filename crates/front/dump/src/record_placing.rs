//! The partition of each record in the cluster that is loaded into.

use samite_client::Dataset;
use samite_client::record_placement::RecordPlacement;
use samite_placement::{ClusterMap, Distribution};
use samite_types::{Error, ErrorKind, PartitionId, Result};

use crate::manifest::DatasetManifest;
use crate::segment::DumpedRecord;

/// First byte of the keys under which records are kept for the end of a load; no view uses it.
pub(crate) const KEPT: u8 = b'z';
/// Key of the record that says how far a load is. In the partition of its hash.
pub(crate) const MARK_KEY: &[u8] = b"zload";
/// Most partitions that become one.
pub(crate) const SHARE_MAX: u32 = 32;

/// Where a record goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PlacedRecord {
    /// To this partition, under its key.
    At(PartitionId),
    /// To this partition, under this key, until all others are there.
    Kept(PartitionId, Vec<u8>),
    /// Nowhere: it belongs to an operation that was under way, and is not needed.
    Nowhere,
}

/// The way from the partitions of one cluster to those of another.
#[derive(Clone, Debug)]
pub(crate) struct RecordPlacing {
    /// Both have the same: each record stays where it was.
    is_same: bool,
    is_files: bool,
    from: (u32, Distribution),
    to: (u32, Distribution),
}

impl RecordPlacing {
    pub(crate) fn new(
        manifest: &DatasetManifest,
        dataset: &Dataset,
        map: &ClusterMap,
    ) -> Result<Self> {
        let data = map.dataset_by_id(dataset.id()).ok_or(ErrorKind::NotFound)?;
        let from = (manifest.partitions, Distribution::new(&manifest.data(), manifest.partitions));
        let to = (map.partitions(), map.distribution(data));
        Self::between(manifest.is_files, from, to)
    }

    fn between(is_files: bool, from: (u32, Distribution), to: (u32, Distribution)) -> Result<Self> {
        if from.0.div_ceil(to.0) > SHARE_MAX {
            let words = format!(
                "the dump has {} partitions and this cluster {}: not less than a {SHARE_MAX}th will do",
                from.0, to.0
            );
            return Err(Error::new(ErrorKind::Unsupported, words));
        }
        Ok(Self { is_same: from == to, is_files, from, to })
    }

    /// How the partition of a record follows from its key.
    pub(crate) fn placement<'k>(&self, key: &'k [u8]) -> Option<RecordPlacement<'k>> {
        if self.is_files {
            return samite_fs::record_placement(key);
        }
        samite_kv::record_placement(key).or_else(|| samite_object::record_placement(key))
    }

    /// The partition of what is placed so, in the cluster that is loaded into.
    pub(crate) fn partition(&self, placement: &RecordPlacement<'_>) -> Option<PartitionId> {
        placement.partition(self.to.0, &self.to.1)
    }

    /// Where a record goes.
    ///
    /// # Errors
    /// `Corrupt`: its partition is none. `Unsupported`: nobody knows where it belongs among other
    /// partitions.
    pub(crate) fn place(&self, record: &DumpedRecord<'_>) -> Result<PlacedRecord> {
        if record.partition.get() >= self.from.0 {
            return Err(crate::corrupt("it has a record of a partition that does not exist"));
        }
        if self.is_same {
            return Ok(PlacedRecord::At(record.partition));
        }
        let unknown = || {
            let words = format!(
                "{}: no view is known that keeps record {} there; it can be loaded only into a \
                 cluster with as many partitions and the same distribution",
                record.partition,
                record.key.escape_ascii()
            );
            Error::new(ErrorKind::Unsupported, words)
        };
        let placement = self.placement(record.key).ok_or_else(unknown)?;
        let shared = PartitionId(record.partition.get() % self.to.0);
        Ok(match placement {
            RecordPlacement::Hashed(_) | RecordPlacement::Chunk { .. } => {
                if placement.partition(self.from.0, &self.from.1) != Some(record.partition) {
                    return Err(unknown());
                }
                PlacedRecord::At(self.partition(&placement).ok_or_else(unknown)?)
            }
            RecordPlacement::PerPartition if self.to.0 >= self.from.0 => {
                PlacedRecord::At(record.partition)
            }
            RecordPlacement::Anywhere => PlacedRecord::At(shared),
            RecordPlacement::PerPartition
            | RecordPlacement::Verdict
            | RecordPlacement::Draft { .. } => {
                PlacedRecord::Kept(shared, kept_key(record.key, record.partition))
            }
            RecordPlacement::Transient => PlacedRecord::Nowhere,
        })
    }
}

/// Key under which a record of `from` is kept: those of one key are neighbours.
fn kept_key(key: &[u8], from: PartitionId) -> Vec<u8> {
    [&[KEPT], key, &from.get().to_be_bytes()[..]].concat()
}

/// The key of a record that is kept under `kept`.
pub(crate) fn own_key(kept: &[u8]) -> Option<&[u8]> {
    let (first, rest) = kept.split_first()?;
    if *first != KEPT || kept == MARK_KEY {
        return None;
    }
    rest.split_last_chunk::<4>().map(|(key, _)| key)
}

#[cfg(test)]
mod tests {
    use samite_wire::control::{DatasetData, DatasetSpec};

    use super::*;

    fn spread(partitions: u32) -> (u32, Distribution) {
        let (id, spec) = (samite_types::DatasetId(1), DatasetSpec::new("d"));
        let data = DatasetData { id, spec, wheel: Vec::new(), frozen_by: 0 };
        (partitions, Distribution::new(&data, partitions))
    }

    fn placing(is_files: bool, from: u32, to: u32) -> RecordPlacing {
        RecordPlacing::between(is_files, spread(from), spread(to)).unwrap()
    }

    fn record(partition: PartitionId, key: &[u8]) -> DumpedRecord<'_> {
        DumpedRecord { partition, key, value: Some(b"") }
    }

    #[test]
    fn records_go_where_their_view_looks_for_them() {
        let same = placing(false, 64, 64);
        let at = PartitionId(9);
        assert_eq!(same.place(&record(at, b"?")).unwrap(), PlacedRecord::At(at));
        let more = placing(false, 64, 128);
        let place = RecordPlacement::Hashed(b"key");
        let (was, is) = (place.partition(64, &spread(64).1), place.partition(128, &spread(128).1));
        let found = more.place(&record(was.unwrap(), b"vkey")).unwrap();
        assert_eq!(found, PlacedRecord::At(is.unwrap()));
        // Where its view does not look, or of no view.
        let other = PartitionId((was.unwrap().get() + 1) % 64);
        assert_eq!(more.place(&record(other, b"vkey")).unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(more.place(&record(at, b"?")).unwrap_err().kind(), ErrorKind::Unsupported);
        let none = PartitionId(64);
        assert_eq!(same.place(&record(none, b"vkey")).unwrap_err().kind(), ErrorKind::Corrupt);
    }

    #[test]
    fn what_each_partition_has_is_kept_where_several_become_one() {
        let stamp = [b"t", &7_u64.to_be_bytes()[..]].concat();
        let at = PartitionId(70);
        let more = placing(true, 128, 256).place(&record(at, &stamp)).unwrap();
        assert_eq!(more, PlacedRecord::At(at));
        let fewer = placing(true, 128, 64).place(&record(at, &stamp)).unwrap();
        let PlacedRecord::Kept(PartitionId(6), kept) = fewer else { panic!("{fewer:?}") };
        assert_eq!(own_key(&kept), Some(&stamp[..]));
        assert_eq!(own_key(MARK_KEY), None);
        let tombstone = [b"s", &7_u64.to_be_bytes()[..]].concat();
        let gone = placing(true, 64, 128).place(&record(PartitionId(3), &tombstone)).unwrap();
        assert_eq!(gone, PlacedRecord::Nowhere);
        assert!(RecordPlacing::between(true, spread(4096), spread(64)).is_err());
    }
}
