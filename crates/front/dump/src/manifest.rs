//! What a dump is made of.

use samite_types::{DatasetId, PartitionId, Result};
use samite_wire::control::{DatasetData, DatasetSpec};
use serde::{Deserialize, Serialize};

use crate::corrupt;

/// Version of the form of dumps.
pub(crate) const FORMAT: u32 = 1;
/// Longest manifest, in bytes.
pub(crate) const MANIFEST_LEN_MAX: u64 = 64 << 20;

/// A dump.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DumpManifest {
    /// Version of the form of the dump.
    pub format: u32,
    /// By which its parts know it.
    pub id: u64,
    /// Name of the cluster that it is of.
    pub cluster: String,
    /// Each record is as it was at some time while the dump lasted; else all are of one moment.
    pub live: bool,
    /// It is whole.
    pub finished: bool,
    /// The processes of the nodes when it was begun: node and incarnation.
    pub nodes: Vec<(u32, u64)>,
    /// The datasets.
    pub datasets: Vec<DatasetManifest>,
}

/// A dataset of a dump.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetManifest {
    /// Its id in the cluster that it is of.
    pub id: DatasetId,
    /// Its policy.
    pub spec: DatasetSpec,
    /// Its stripe pattern, if it has one.
    pub wheel: Vec<PartitionId>,
    /// Partitions of that cluster.
    pub partitions: u32,
    /// It is a file system.
    pub is_files: bool,
    /// The passes that are whole, in the order in which they are to be loaded.
    pub passes: Vec<PassManifest>,
    /// How far the pass behind them is.
    pub progress: Option<PassProgress>,
}

/// A pass of a dataset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassManifest {
    /// Segments.
    pub segments: u64,
    /// Records, those that were removed included.
    pub records: u64,
    /// Bytes of their values.
    pub bytes: u64,
    /// Made of the checksums of its segments, in their order.
    pub digest: u64,
}

/// How far a pass is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassProgress {
    /// The segments that are whole.
    pub done: PassManifest,
    /// The partition that it was in.
    pub partition: u32,
    /// The key of the last record there, which is done; empty: none.
    pub after: Vec<u8>,
    /// Bytes of the key list.
    pub keys_len: u64,
}

impl PassManifest {
    /// Adds a segment with this checksum.
    pub(crate) fn add(&mut self, records: u64, bytes: u64, checksum: u64) {
        self.segments += 1;
        self.records += records;
        self.bytes += bytes;
        self.digest = self.digest.rotate_left(7) ^ checksum;
    }
}

impl DatasetManifest {
    /// The dataset as its cluster knew it.
    pub(crate) fn data(&self) -> DatasetData {
        let (id, spec, wheel) = (self.id, self.spec.clone(), self.wheel.clone());
        DatasetData { id, spec, wheel, frozen_by: 0 }
    }
}

impl DumpManifest {
    pub(crate) fn encode(&self) -> Vec<u8> {
        // Numbers, texts and lists of them can always be written.
        serde_json::to_vec_pretty(self).unwrap_or_default()
    }

    /// The manifest in `bytes`.
    ///
    /// # Errors
    /// `Corrupt`: they are none, or of another form.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let manifest: Self = serde_json::from_slice(bytes)
            .map_err(|error| corrupt(format!("the manifest is damaged: {error}")))?;
        let is_sane = |dataset: &DatasetManifest| {
            let partitions = dataset.partitions;
            let weighted = !dataset.wheel.is_empty();
            (1..=samite_placement::PARTITIONS_MAX as u32).contains(&partitions)
                && dataset.wheel.len() <= samite_placement::PATTERN_LEN_MAX
                && dataset.wheel.iter().all(|one| one.get() < partitions)
                && weighted
                    == matches!(
                        dataset.spec.distribution,
                        samite_wire::control::DistributionKind::Weighted(_)
                    )
                && samite_placement::check_dataset_spec(&dataset.spec).is_ok()
        };
        if manifest.format != FORMAT {
            return Err(corrupt(format!("the dump has form {}, not {FORMAT}", manifest.format)));
        }
        if !manifest.datasets.iter().all(is_sane) {
            return Err(corrupt("the manifest is damaged: a dataset that cannot be"));
        }
        Ok(manifest)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use samite_types::{DatasetId, ErrorKind};

    use super::*;

    fn manifest() -> DumpManifest {
        let progress = PassProgress {
            done: PassManifest { segments: 1, records: 2, bytes: 3, digest: u64::MAX },
            partition: 3,
            after: b"key\xff".to_vec(),
            keys_len: 9,
        };
        let dataset = DatasetManifest {
            id: DatasetId(7),
            spec: DatasetSpec::new("d"),
            wheel: Vec::new(),
            partitions: 64,
            is_files: true,
            passes: vec![PassManifest::default()],
            progress: Some(progress),
        };
        DumpManifest {
            format: FORMAT,
            id: u64::MAX,
            cluster: "c".into(),
            live: false,
            finished: true,
            nodes: vec![(0, u64::MAX)],
            datasets: vec![dataset],
        }
    }

    #[test]
    fn a_manifest_comes_back_and_one_that_cannot_be_is_refused() {
        let good = manifest();
        assert_eq!(DumpManifest::decode(&good.encode()).unwrap(), good);
        let bent = |bend: &dyn Fn(&mut DumpManifest)| {
            let mut manifest = manifest();
            bend(&mut manifest);
            DumpManifest::decode(&manifest.encode()).unwrap_err().kind()
        };
        for bend in [
            &(|one: &mut DumpManifest| one.format = 2) as &dyn Fn(&mut DumpManifest),
            &|one| one.datasets[0].partitions = 0,
            &|one| one.datasets[0].partitions = 1 << 20,
            &|one| one.datasets[0].wheel = vec![PartitionId(1)],
            &|one| one.datasets[0].spec.name = "../up".into(),
            &|one| one.datasets[0].spec.chunk_len = 3,
        ] {
            assert_eq!(bent(bend), ErrorKind::Corrupt);
        }
    }

    proptest! {
        #[test]
        fn damage_is_refused_or_makes_another_manifest_that_can_be(
            at in any::<prop::sample::Index>(), other: u8, cut in any::<prop::sample::Index>(),
        ) {
            let mut bytes = manifest().encode();
            let at = at.index(bytes.len());
            bytes[at] = other;
            if let Ok(read) = DumpManifest::decode(&bytes) {
                prop_assert!(read.datasets.iter().all(|one| one.partitions > 0));
            }
            bytes.truncate(cut.index(bytes.len()));
            prop_assert!(DumpManifest::decode(&bytes).is_err());
        }
    }
}
