//! Which checkpoint is made, and removed, when: decided by how long the log is and how far it is on
//! flash.
//!
//! One partition is copied at a time, piece by piece. A piece goes to the thread that writes when
//! it has room; the last one not before everything that the checkpoint has seen is on flash in the
//! log, too. A checkpoint that is no use any more is removed when the log on flash says so.

use std::collections::BTreeMap;
use std::time::Duration;

use samite_mirror::durable::PlaceId;
use samite_mirror::durable::checkpoint::CheckpointPiece;
use samite_types::{ErrorKind, Position, Result};

/// A log is not worth a checkpoint before it has so many segments.
const SEGMENTS_MIN: u64 = 4;
/// How often a node whose disk is full tries to shorten its logs.
const NO_SPACE_ROUND: Duration = Duration::from_secs(10);

/// For the thread that writes.
#[derive(Debug)]
pub(super) enum WriteJob {
    Begin(PlaceId),
    /// Frames of the checkpoint that was begun last.
    Piece(Vec<Vec<u8>>),
    /// The last frames of the checkpoint of a partition.
    Finish(FinishedCheckpoint, Vec<Vec<u8>>),
    Remove(PlaceId),
}

/// A checkpoint that is complete.
#[derive(Clone, Copy, Debug)]
pub(super) struct FinishedCheckpoint {
    pub(super) id: PlaceId,
    /// The frame of the log that comes after it.
    pub(super) next: u64,
    /// The last entry that it has seen.
    pub(super) position: Position,
}

/// A partition that is being copied.
#[derive(Debug)]
struct CopiedPartition {
    id: PlaceId,
    /// Pieces for which the thread had no room yet, or that it may not have yet.
    waiting: Option<WriteJob>,
    /// Complete: to be finished when the log is on flash up to this frame.
    complete: Option<u64>,
}

/// A checkpoint that is no use any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CheckpointRemoval {
    pub(super) id: PlaceId,
    /// It is removed when the log is on flash up to the frame behind the one that says so. Earlier,
    /// a restart would find neither it nor why.
    upto: u64,
}

/// How a shard's log stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogView {
    /// The frame that it writes next.
    pub(super) next: u64,
    /// It is on flash up to this frame.
    pub(super) durable: u64,
}

/// The checkpoints of one shard.
#[derive(Debug)]
pub(super) struct CheckpointSchedule {
    /// Bytes of a segment of the log.
    segment_len: u64,
    /// Bytes of each checkpoint.
    sizes: BTreeMap<PlaceId, u64>,
    /// Partitions to be copied.
    todo: Vec<PlaceId>,
    current: Option<CopiedPartition>,
    removals: Vec<CheckpointRemoval>,
    /// It was said that there is no space for one, and there was none since.
    is_short_told: bool,
    /// Bytes that had been appended to the log when the last round was begun.
    round_at: Option<u64>,
    /// When a round was last begun because the disk is full.
    no_space_round: Option<Duration>,
}

impl CheckpointSchedule {
    /// For a log with such segments. `sizes`: the checkpoints that there are.
    pub(super) const fn new(segment_len: u64, sizes: BTreeMap<PlaceId, u64>) -> Self {
        Self {
            segment_len,
            sizes,
            todo: Vec::new(),
            current: None,
            removals: Vec::new(),
            is_short_told: false,
            round_at: None,
            no_space_round: None,
        }
    }

    /// Bytes of all checkpoints.
    pub(super) fn len(&self) -> u64 {
        self.sizes.values().sum()
    }

    /// Whether there is something to be done now, and not only when the thread or the log wakes the
    /// shard.
    pub(super) fn is_busy(&self) -> bool {
        match &self.current {
            Some(current) => current.waiting.is_none(),
            None => !self.todo.is_empty(),
        }
    }

    /// Whether nothing is being copied, and nothing is to be.
    pub(super) const fn is_idle(&self) -> bool {
        self.todo.is_empty() && self.current.is_none()
    }

    /// A log that is longer than this is to be shortened: as long as the partitions that it tells
    /// of.
    fn log_len_max(&self) -> u64 {
        self.len().max(SEGMENTS_MIN * self.segment_len)
    }

    /// Whether enough was appended to the log since the last round for another: `appended` bytes in
    /// all.
    pub(super) fn is_round_time(&self, appended: u64) -> bool {
        self.round_at.is_none_or(|at| appended - at >= self.log_len_max() / 2)
    }

    /// Whether a log of this length is to be shortened, and nothing is done about it yet.
    pub(super) fn is_due(&self, log_len: u64) -> bool {
        self.is_idle() && log_len > self.log_len_max()
    }

    /// The disk is full: whether a round is to be begun because of that.
    pub(super) fn is_no_space_round_due(&mut self, now: Duration) -> bool {
        let last = self.no_space_round;
        let is_due = last.is_none_or(|at| now.saturating_sub(at) >= NO_SPACE_ROUND);
        if is_due {
            self.no_space_round = Some(now);
        }
        is_due
    }

    /// Begins a round: a checkpoint of each of these. `appended`: bytes appended to the log so far.
    pub(super) fn begin(&mut self, places: Vec<PlaceId>, appended: u64) {
        tracing::debug!(partitions = places.len(), "checkpoints are begun");
        self.todo = places;
        self.round_at = Some(appended);
    }

    /// A checkpoint of this partition is to be made before others.
    pub(super) fn want(&mut self, id: PlaceId) {
        self.todo.retain(|other| *other != id);
        self.todo.push(id);
    }

    /// The log before frame `upto` says that earlier records of these partitions are no use any
    /// more.
    pub(super) fn discard(&mut self, is_gone: &dyn Fn(PlaceId) -> bool, upto: u64) {
        self.todo.retain(|id| !is_gone(*id));
        if self.current.as_ref().is_some_and(|current| is_gone(current.id)) {
            self.current = None;
        }
        let gone = self.sizes.keys().filter(|id| is_gone(**id));
        self.removals.extend(gone.map(|id| CheckpointRemoval { id: *id, upto }));
        self.sizes.retain(|id, _| !is_gone(*id));
    }

    /// The first frame without which a checkpoint that is to be removed would count again.
    pub(super) fn needed_from(&self) -> Option<u64> {
        self.removals.iter().map(|removal| removal.upto - 1).min()
    }

    /// The thread has written a checkpoint, of so many bytes, or could not. `next`: the frame that
    /// the log writes next. Returns the checkpoint if it counts.
    pub(super) fn written(
        &mut self,
        finished: FinishedCheckpoint,
        written: Result<u64>,
        next: u64,
    ) -> Option<FinishedCheckpoint> {
        let is_current = self.current.take_if(|current| {
            current.id == finished.id && current.waiting.is_none() && current.complete.is_some()
        });
        match written {
            // It is tried again and again.
            Err(error) if error.kind() == ErrorKind::NoSpace && self.is_short_told => {}
            Err(error) => {
                self.is_short_told = error.kind() == ErrorKind::NoSpace;
                tracing::warn!(%error, "a checkpoint could not be written");
            }
            // Discarded while it was written.
            Ok(_) if is_current.is_none() => {
                self.removals.push(CheckpointRemoval { id: finished.id, upto: next });
            }
            Ok(len) => {
                self.is_short_told = false;
                self.sizes.insert(finished.id, len);
                return Some(finished);
            }
        }
        None
    }

    /// Takes a checkpoint to be removed now.
    pub(super) fn take_removal(&mut self, log: LogView) -> Option<CheckpointRemoval> {
        let is_due = |removal: &CheckpointRemoval| log.durable >= removal.upto;
        let index = self.removals.iter().position(is_due)?;
        Some(self.removals.remove(index))
    }

    /// The thread has no room for a removal.
    pub(super) fn keep_removal(&mut self, removal: CheckpointRemoval) {
        self.removals.push(removal);
    }

    /// The partition to begin with now, if there is one.
    pub(super) fn begin_next(&mut self) -> Option<PlaceId> {
        if self.current.is_some() {
            return None;
        }
        let id = self.todo.pop()?;
        let waiting = Some(WriteJob::Begin(id));
        self.current = Some(CopiedPartition { id, waiting, complete: None });
        Some(id)
    }

    /// The partition of which the next piece is to be copied now, if there is one.
    pub(super) fn to_copy(&self) -> Option<PlaceId> {
        let current = self.current.as_ref()?;
        (current.waiting.is_none() && current.complete.is_none()).then_some(current.id)
    }

    /// The next piece of the partition is copied, or could not be: then it is given up.
    pub(super) fn copied(&mut self, piece: Result<CheckpointPiece>, log: LogView) {
        let Some(current) = &mut self.current else { return };
        match piece {
            Ok(CheckpointPiece::Some(frames)) => current.waiting = Some(WriteJob::Piece(frames)),
            Ok(CheckpointPiece::Last { frames, position }) => {
                current.complete = Some(log.next);
                let finished = FinishedCheckpoint { id: current.id, next: log.next, position };
                current.waiting = Some(WriteJob::Finish(finished, frames));
            }
            Err(error) => {
                tracing::debug!(%error, "a checkpoint is given up");
                self.current = None;
            }
        }
    }

    /// Takes the job that waits for the thread, if everything that it tells of is on flash.
    pub(super) fn take_job(&mut self, log: LogView) -> Option<WriteJob> {
        let current = self.current.as_mut()?;
        if let Some(next) = current.complete {
            if log.durable < next {
                return None;
            }
            // It takes the place of the checkpoint that is to be removed.
            self.removals.retain(|removal| removal.id != current.id);
        }
        current.waiting.take()
    }

    /// The thread has no room for a job.
    pub(super) fn keep_job(&mut self, job: WriteJob) {
        if let Some(current) = &mut self.current {
            current.waiting = Some(job);
        }
    }
}

#[cfg(test)]
mod tests {
    use samite_types::{DatasetId, PartitionId};

    use super::*;

    const SEGMENT: u64 = 100;

    fn id(partition: u32) -> PlaceId {
        (DatasetId(1), PartitionId(partition))
    }

    fn view(next: u64, durable: u64) -> LogView {
        LogView { next, durable }
    }

    fn schedule(sizes: &[(PlaceId, u64)]) -> CheckpointSchedule {
        CheckpointSchedule::new(SEGMENT, sizes.iter().copied().collect())
    }

    /// Copies the next partition whole while the log writes frame `next`. Returns which.
    fn copy_whole(schedule: &mut CheckpointSchedule, next: u64) -> PlaceId {
        let id = schedule.begin_next().expect("there is one");
        assert!(matches!(schedule.take_job(view(next, 0)), Some(WriteJob::Begin(_))));
        assert_eq!(schedule.to_copy(), Some(id));
        let last = CheckpointPiece::Last { frames: Vec::new(), position: Position::default() };
        schedule.copied(Ok(last), view(next, 0));
        id
    }

    /// Has the thread finish the checkpoint that waits. Returns whether it counts.
    fn finish(schedule: &mut CheckpointSchedule, log: LogView, written: Result<u64>) -> bool {
        match schedule.take_job(log) {
            Some(WriteJob::Finish(finished, _)) => {
                schedule.written(finished, written, log.next).is_some()
            }
            job => panic!("{job:?}"),
        }
    }

    #[test]
    fn a_round_is_due_when_the_log_is_longer_than_what_it_tells_of() {
        let mut schedule = schedule(&[(id(0), 1000)]);
        assert!(schedule.is_round_time(0) && !schedule.is_due(1000) && schedule.is_due(1001));
        schedule.begin(vec![id(0), id(1)], 1001);
        assert!(!schedule.is_due(1001), "it is being shortened");
        assert!(!schedule.is_round_time(1500) && schedule.is_round_time(1501));
        let small = CheckpointSchedule::new(SEGMENT, BTreeMap::new());
        assert!(!small.is_due(SEGMENTS_MIN * SEGMENT));
    }

    #[test]
    fn a_disk_that_is_full_has_a_round_now_and_then() {
        let (mut schedule, second) = (schedule(&[]), Duration::from_secs(1));
        assert!(schedule.is_no_space_round_due(second));
        assert!(!schedule.is_no_space_round_due(2 * second));
        assert!(schedule.is_no_space_round_due(second + NO_SPACE_ROUND));
    }

    #[test]
    fn a_checkpoint_is_finished_when_the_log_on_flash_has_what_it_has_seen() {
        let mut schedule = schedule(&[]);
        schedule.begin(vec![id(0), id(1)], 0);
        schedule.want(id(0));
        assert!(schedule.is_busy());
        assert_eq!(copy_whole(&mut schedule, 7), id(0), "it is wanted before others");
        assert!(!schedule.is_busy(), "the log wakes the shard");
        assert!(schedule.take_job(view(9, 6)).is_none());
        assert!(finish(&mut schedule, view(9, 7), Ok(50)));
        assert_eq!((schedule.len(), schedule.begin_next()), (50, Some(id(1))));
    }

    #[test]
    fn pieces_wait_while_the_thread_has_no_room() {
        let mut schedule = schedule(&[]);
        schedule.want(id(0));
        assert_eq!(schedule.begin_next(), Some(id(0)));
        let job = schedule.take_job(view(1, 0)).expect("it is begun");
        schedule.keep_job(job);
        assert_eq!((schedule.to_copy(), schedule.is_busy()), (None, false));
        assert!(schedule.take_job(view(1, 0)).is_some());
        schedule.copied(Ok(CheckpointPiece::Some(vec![vec![1]])), view(1, 0));
        assert!(matches!(schedule.take_job(view(1, 0)), Some(WriteJob::Piece(_))));
        schedule.copied(Err(ErrorKind::NotFound.into()), view(1, 0));
        assert!(schedule.is_idle(), "it is given up");
    }

    #[test]
    fn a_discarded_checkpoint_is_removed_once_the_log_on_flash_says_so() {
        let mut schedule = schedule(&[(id(0), 10), (id(1), 20)]);
        schedule.discard(&|other| other == id(0), 5);
        assert_eq!((schedule.len(), schedule.needed_from()), (20, Some(4)));
        assert_eq!(schedule.take_removal(view(6, 4)), None);
        let removal = schedule.take_removal(view(6, 5)).expect("it is on flash");
        schedule.keep_removal(removal);
        assert_eq!(schedule.take_removal(view(6, 5)), Some(removal));
        assert_eq!(schedule.needed_from(), None);
    }

    #[test]
    fn a_new_checkpoint_takes_the_place_of_one_to_be_removed() {
        let mut schedule = schedule(&[(id(0), 10)]);
        schedule.discard(&|_| true, 50);
        schedule.want(id(0));
        copy_whole(&mut schedule, 7);
        assert!(finish(&mut schedule, view(8, 7), Ok(30)));
        assert_eq!((schedule.needed_from(), schedule.len()), (None, 30));
    }

    #[test]
    fn a_checkpoint_that_is_discarded_while_it_is_written_does_not_count() {
        let mut schedule = schedule(&[]);
        schedule.want(id(0));
        copy_whole(&mut schedule, 7);
        let Some(WriteJob::Finish(finished, _)) = schedule.take_job(view(7, 7)) else { panic!() };
        schedule.discard(&|_| true, 8);
        assert!(schedule.written(finished, Ok(30), 9).is_none());
        assert_eq!((schedule.len(), schedule.needed_from()), (0, Some(8)));
        schedule.want(id(0));
        copy_whole(&mut schedule, 10);
        let failure = Err(ErrorKind::NoSpace.into());
        assert!(!finish(&mut schedule, view(10, 10), failure));
        assert!(schedule.is_idle(), "another round tries again");
    }
}
