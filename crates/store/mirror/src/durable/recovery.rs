//! From a directory to partitions: checkpoints, then the log.

use std::collections::{BTreeMap, btree_map};
use std::sync::Arc;

use samite_log::{LogDisk, LogSettings, OpenLog};
use samite_types::{DatasetId, Error, ErrorKind, Result};
use samite_wire::peer::PartitionLogEntry;

use super::PlaceId;
use super::checkpoint::{self, LoadedCheckpoint};
use super::frame::{self, PartitionFrame};
use super::tracks::{LogTrack, LogTracks};
use crate::member::MirroredPartition;

/// Partitions as they were.
pub type Recovered = BTreeMap<PlaceId, MirroredPartition>;

/// The findings of recovery.
pub struct RecoveredLog {
    /// The log, to be gone on with.
    pub log: OpenLog,
    /// Partitions.
    pub partitions: Recovered,
    /// Their way through the log, as far as it is known.
    pub tracks: LogTracks,
    /// Bytes of the checkpoint of each partition that has one.
    pub checkpointed: BTreeMap<PlaceId, u64>,
    /// Entries of the log that were applied.
    pub replayed: u64,
}

/// Reads all that is on `disk` into partitions that `open` makes. `progress` is told of each entry
/// that was applied, how many there were.
///
/// # Errors
/// Damage, and where; too little memory for the data there.
pub fn recover(
    disk: &Arc<dyn LogDisk>,
    settings: LogSettings,
    open: &mut dyn FnMut(PlaceId) -> Result<MirroredPartition>,
    progress: &mut dyn FnMut(u64),
) -> Result<RecoveredLog> {
    let mut replay = LogReplay::default();
    let mut checkpointed = BTreeMap::new();
    for id in checkpoint::find(&**disk, settings.id)? {
        let mut member = open(id)?;
        let LoadedCheckpoint { next, len } =
            checkpoint::load(&**disk, settings.id, id, &mut member)?;
        checkpointed.insert(id, len);
        replay.tracks.insert(id, LogTrack { needed: next, ..LogTrack::default() });
        replay.partitions.insert(id, member);
    }
    let log = OpenLog::open(Arc::clone(disk), settings, &mut |number, bytes| {
        let told = match frame::decode(bytes)? {
            PartitionFrame::Entry(id, entry) => {
                let entered = replay.entry(number, id, &entry, open);
                progress(replay.replayed);
                entered
            }
            PartitionFrame::Discarded(id) => {
                replay.discarded(number, id);
                Ok(())
            }
            PartitionFrame::Dropped(dataset) => {
                replay.dropped(dataset);
                Ok(())
            }
        };
        told.map_err(|error| error.context(format_args!("frame {number} of the log")))
    })?;
    let LogReplay { partitions, tracks, failures, replayed } = replay;
    if let Some(failure) = failures.into_values().next() {
        return Err(failure);
    }
    if let Some((id, track)) = tracks.iter().find(|(_, track)| track.needed > log.next()) {
        let words = format!(
            "the log ends with frame {}, and {} goes on with frame {}: the newest log-* is missing or cut",
            log.next() - 1,
            checkpoint::name(*id),
            track.needed
        );
        return Err(Error::new(ErrorKind::Corrupt, words));
    }
    let tracks = LogTracks::new(tracks);
    Ok(RecoveredLog { log, partitions, tracks, checkpointed, replayed })
}

#[derive(Default)]
struct LogReplay {
    partitions: Recovered,
    tracks: BTreeMap<PlaceId, LogTrack>,
    /// Partitions whose entries do not follow on their earlier state. They must turn out to be
    /// discarded or dropped later: then the log may begin in their midst.
    failures: BTreeMap<PlaceId, Error>,
    replayed: u64,
}

impl LogReplay {
    fn entry(
        &mut self,
        number: u64,
        id: PlaceId,
        entry: &PartitionLogEntry<'_>,
        open: &mut dyn FnMut(PlaceId) -> Result<MirroredPartition>,
    ) -> Result<()> {
        let first = LogTrack { needed: number, ..LogTrack::default() };
        let track = self.tracks.entry(id).or_insert(first);
        if number < track.needed || track.is_headless || self.failures.contains_key(&id) {
            return Ok(());
        }
        let member = match self.partitions.entry(id) {
            btree_map::Entry::Occupied(known) => known.into_mut(),
            btree_map::Entry::Vacant(new) => new.insert(open(id)?),
        };
        let here = member.point();
        if let Err(kind) = member.replay(entry) {
            if kind == ErrorKind::NoSpace {
                let words = "there is less memory than before: give the node more";
                return Err(Error::new(kind, words));
            }
            let (dataset, partition) = id;
            let words = format!(
                "frame {number} of the log: {dataset} {partition} cannot go on from {here:?}: {kind:?}"
            );
            self.failures.insert(id, Error::new(ErrorKind::Corrupt, words));
            return Ok(());
        }
        track.last = number;
        self.replayed += 1;
        Ok(())
    }

    /// The frames of a partition so far do not count any more; a checkpoint made later does.
    fn discarded(&mut self, number: u64, id: PlaceId) {
        if self.tracks.get(&id).is_some_and(|track| number < track.needed) {
            return;
        }
        self.failures.remove(&id);
        self.partitions.remove(&id);
        let track = LogTrack { last: number, needed: number + 1, is_headless: true };
        self.tracks.insert(id, track);
    }

    fn dropped(&mut self, dataset: DatasetId) {
        self.failures.retain(|id, _| id.0 != dataset);
        self.partitions.retain(|id, _| id.0 != dataset);
        self.tracks.retain(|id, _| id.0 != dataset);
    }
}
