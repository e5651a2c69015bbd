//! From a directory to partitions: checkpoints, then the log.

use std::collections::{BTreeMap, HashMap, btree_map};
use std::sync::Arc;
use std::time::Instant;

use samite_log::{Disk, Log, Settings};
use samite_partition::mirror::Mirrored;
use samite_types::{DatasetId, Error, ErrorKind, Result};
use samite_wire::peer::Entry;

use super::Track;
use super::checkpoint::{self, Loaded};
use super::frame::{self, Frame};
use crate::partitions::PlaceId;

/// Partitions as they were.
pub(crate) type Recovered = BTreeMap<PlaceId, Mirrored>;

/// What was found.
pub(super) struct Found {
    pub(super) log: Log,
    pub(super) partitions: Recovered,
    pub(super) tracks: HashMap<PlaceId, Track>,
    /// Bytes of the checkpoint of each partition that has one.
    pub(super) checkpointed: HashMap<PlaceId, u64>,
}

/// How many entries go by between words on how far it is.
const PROGRESS: u64 = 1 << 18;

/// Reads all that is on `disk`.
///
/// # Errors
/// Damage, and where; too little memory for what is there.
pub(super) fn recover(
    disk: &Arc<dyn Disk>,
    settings: Settings,
    open: &mut dyn FnMut(PlaceId) -> Result<Mirrored>,
) -> Result<Found> {
    let begun = Instant::now();
    let mut replay = Replay::default();
    let mut checkpointed = HashMap::new();
    for id in checkpoint::find(&**disk)? {
        let mut member = open(id)?;
        let Loaded { next, len } = checkpoint::load(&**disk, settings.id, id, &mut member)?;
        checkpointed.insert(id, len);
        replay.tracks.insert(id, Track { needed: next, ..Track::default() });
        replay.partitions.insert(id, member);
    }
    if !checkpointed.is_empty() {
        let bytes = checkpointed.values().sum::<u64>();
        tracing::info!(partitions = checkpointed.len(), bytes, "checkpoints are read");
    }
    let log = Log::open(Arc::clone(disk), settings, &mut |number, bytes| {
        let told = match frame::decode(bytes)? {
            Frame::Entry(id, entry) => replay.entry(number, id, &entry, open),
            Frame::Discarded(id) => {
                replay.discarded(number, id);
                Ok(())
            }
            Frame::Dropped(dataset) => {
                replay.dropped(dataset);
                Ok(())
            }
        };
        told.map_err(|error| error.context(format_args!("frame {number} of the log")))
    })?;
    let Replay { partitions, tracks, failures, replayed } = replay;
    if let Some(failure) = failures.into_values().next() {
        return Err(failure);
    }
    if let Some(track) = tracks.values().find(|track| track.needed > log.next()) {
        let words = format!("the log ends before frame {}, which a checkpoint has", track.needed);
        return Err(Error::new(ErrorKind::Corrupt, words));
    }
    let ms = begun.elapsed().as_millis() as u64;
    let (count, bytes) = (partitions.len(), log.len());
    tracing::info!(partitions = count, entries = replayed, bytes, ms, "durable data is read");
    Ok(Found { log, partitions, tracks, checkpointed })
}

#[derive(Default)]
struct Replay {
    partitions: Recovered,
    tracks: HashMap<PlaceId, Track>,
    /// Partitions whose entries do not follow on what is there. They must turn out to be discarded or dropped later: then the log may
    /// begin in their midst.
    failures: HashMap<PlaceId, Error>,
    replayed: u64,
}

impl Replay {
    fn entry(
        &mut self,
        number: u64,
        id: PlaceId,
        entry: &Entry<'_>,
        open: &mut dyn FnMut(PlaceId) -> Result<Mirrored>,
    ) -> Result<()> {
        let first = Track { needed: number, ..Track::default() };
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
        if self.replayed.is_multiple_of(PROGRESS) {
            tracing::info!(entries = self.replayed, "reading the log");
        }
        Ok(())
    }

    /// What was told of a partition does not count any more; a checkpoint made later does.
    fn discarded(&mut self, number: u64, id: PlaceId) {
        if self.tracks.get(&id).is_some_and(|track| number < track.needed) {
            return;
        }
        self.failures.remove(&id);
        self.partitions.remove(&id);
        let track = Track { last: number, needed: number + 1, is_headless: true };
        self.tracks.insert(id, track);
    }

    fn dropped(&mut self, dataset: DatasetId) {
        self.failures.retain(|id, _| id.0 != dataset);
        self.partitions.retain(|id, _| id.0 != dataset);
        self.tracks.retain(|id, _| id.0 != dataset);
    }
}
