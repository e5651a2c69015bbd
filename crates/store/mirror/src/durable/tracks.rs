//! The ways of partitions through a log that they share, as far as they are known.

use std::collections::{BTreeMap, VecDeque};

use samite_types::{DatasetId, Position};

use super::PlaceId;

/// A partition's way through the log, as far as it is known.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LogTrack {
    /// Frame with its last entry; 0: none.
    pub(super) last: u64,
    /// Frames below this are not needed for it.
    pub(super) needed: u64,
    /// The entries in the log are of no use before there is a checkpoint.
    pub(super) is_headless: bool,
}

/// The partitions of a log.
#[derive(Debug, Default)]
pub struct LogTracks {
    tracks: BTreeMap<PlaceId, LogTrack>,
    /// Entries on their way to flash: number of the frame, partition, position.
    under_way: VecDeque<(u64, PlaceId, Position)>,
    /// Frames on their way to flash which say that earlier ones do not count: number of the frame,
    /// first frame that is needed until it is there.
    discards: VecDeque<(u64, u64)>,
}

impl LogTracks {
    pub(super) const fn new(tracks: BTreeMap<PlaceId, LogTrack>) -> Self {
        Self { tracks, under_way: VecDeque::new(), discards: VecDeque::new() }
    }

    /// An entry of a partition, up to `position`, was appended as `frame`.
    pub fn appended(&mut self, id: PlaceId, frame: u64, position: Position) {
        let track =
            self.tracks.entry(id).or_insert(LogTrack { needed: frame, ..LogTrack::default() });
        track.last = frame;
        self.under_way.push_back((frame, id, position));
    }

    /// `frame` says that earlier frames of a partition do not count any more.
    pub fn discarded(&mut self, id: PlaceId, frame: u64) {
        self.under_way.retain(|(_, other, _)| *other != id);
        let track = LogTrack { last: frame, needed: frame + 1, is_headless: true };
        let before = self.tracks.insert(id, track);
        // Recovery reads the frames up to there as they stand; without its beginning it would not
        // be read at all.
        if let Some(before) = before.filter(|before| before.last >= before.needed) {
            self.discards.push_back((frame, before.needed));
        }
    }

    /// Datasets of which something is told.
    #[must_use]
    pub fn datasets(&self) -> Vec<DatasetId> {
        let mut datasets: Vec<DatasetId> = self.tracks.keys().map(|id| id.0).collect();
        datasets.dedup();
        datasets
    }

    /// A dataset is no more.
    pub fn dropped(&mut self, dataset: DatasetId) {
        self.tracks.retain(|id, _| id.0 != dataset);
        self.under_way.retain(|(_, id, _)| id.0 != dataset);
    }

    /// There is a checkpoint after which the log goes on with frame `next`. Whether it is one that
    /// the partition had to have before its entries count: then all up to the position that it has
    /// seen is on flash.
    pub fn checkpointed(&mut self, id: PlaceId, next: u64) -> bool {
        let Some(track) = self.tracks.get_mut(&id) else { return false };
        track.needed = next;
        std::mem::take(&mut track.is_headless)
    }

    /// The next entry that has come to be on flash, with all before it: a partition, and the
    /// entry's position. `durable`: the first frame that is not.
    pub fn next_durable(&mut self, durable: u64) -> Option<(PlaceId, Position)> {
        loop {
            let (frame, id, position) = *self.under_way.front()?;
            if frame >= durable {
                return None;
            }
            self.under_way.pop_front();
            // Of several entries of one partition the last says all.
            let track = self.tracks.get(&id).copied().unwrap_or_default();
            if !track.is_headless {
                return Some((id, position));
            }
        }
    }

    /// The first frame that is needed, if any is. `durable`: the first frame that is not on flash.
    #[must_use]
    pub fn needed_from(&mut self, durable: u64) -> Option<u64> {
        while self.discards.front().is_some_and(|(frame, _)| *frame < durable) {
            self.discards.pop_front();
        }
        let needed = self.tracks.values().filter(|track| track.last >= track.needed);
        let needed = needed.map(|track| track.needed);
        needed.chain(self.discards.iter().map(|(_, needed)| *needed)).min()
    }

    /// The partitions of which the log has frames that no checkpoint covers, in falling order of
    /// the first frame that they need.
    #[must_use]
    pub fn told_of(&self) -> Vec<PlaceId> {
        let told = self.tracks.iter().filter(|(_, track)| track.last >= track.needed);
        let mut places: Vec<(u64, PlaceId)> = told.map(|(id, track)| (track.needed, *id)).collect();
        places.sort_unstable_by(|one, other| other.cmp(one));
        places.into_iter().map(|(_, id)| id).collect()
    }
}

#[cfg(test)]
mod tests {
    use samite_types::PartitionId;

    use super::*;

    #[test]
    fn what_was_told_is_kept_until_the_word_that_it_does_not_count_is_on_flash() {
        let mut tracks = LogTracks::default();
        let id = (DatasetId(1), PartitionId(0));
        for frame in 5..8 {
            tracks.appended(id, frame, Position(frame));
        }
        assert_eq!(tracks.needed_from(6), Some(5));
        tracks.discarded(id, 8);
        assert_eq!(tracks.needed_from(8), Some(5));
        assert_eq!(tracks.needed_from(9), None);
    }
}
