//! Checkpoints: copies of partitions in files, taken while they serve.
//!
//! A shard copies a piece of one partition at a time between requests
//! ([`MirroredPartition::checkpoint_step`]), and a thread writes the pieces. A checkpoint is given
//! its name only when all that it has seen is on flash in the log, too. It says which frame of the
//! log comes after it; earlier frames are not needed for this partition any more. Its format:
//! [`samite_mirror::durable::checkpoint`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::thread::JoinHandle;

use samite_log::checkpoint::{CheckpointWriter, UNFINISHED};
use samite_log::inventory::FileInventory;
use samite_log::{LogDisk, LogSettings};
use samite_mirror::MirroredPartition;
use samite_mirror::durable::PlaceId;
use samite_mirror::durable::checkpoint::{CheckpointPiece, copy, name, number};
use samite_transport::server::LoopWaker;
use samite_types::{Error, ErrorKind, Position, Result};

use super::{Find, no_thread};

/// Bytes of records that are copied in one go.
const PIECE_LEN: usize = 256 << 10;
/// Pieces on their way to the thread.
const ON_THE_WAY: usize = 4;
/// A log is not worth a checkpoint before it has so many segments.
const SEGMENTS_MIN: u64 = 4;

/// For the thread that writes.
enum WriteJob {
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
struct CopiedPartition {
    id: PlaceId,
    /// Pieces for which the thread had no room yet, or that it may not have yet.
    waiting: Option<WriteJob>,
    /// Complete: to be finished when the log is on flash up to this frame.
    complete: Option<u64>,
}

/// The checkpoints of one shard.
pub(super) struct ShardCheckpoints {
    settings: LogSettings,
    sizes: BTreeMap<PlaceId, u64>,
    /// Partitions to be copied.
    todo: Vec<PlaceId>,
    current: Option<CopiedPartition>,
    /// Checkpoints that are no use any more: each is removed when the log is on flash up to the frame behind the one that says so. Earlier, a restart would
    /// find neither it nor why.
    removals: Vec<(u64, PlaceId)>,
    hands: WriterThread,
    done: Receiver<(FinishedCheckpoint, Result<u64>)>,
    /// It was said that there is no space for one, and there was none since.
    is_short_told: bool,
}

/// How a shard's log stands.
pub(super) struct LogView {
    pub(super) next: u64,
    pub(super) durable: u64,
}

impl ShardCheckpoints {
    /// `sizes`: those that there are.
    pub(super) fn start(
        disk: Arc<dyn LogDisk>,
        settings: LogSettings,
        sizes: BTreeMap<PlaceId, u64>,
        waker: LoopWaker,
    ) -> Result<Self> {
        let inventory =
            FileInventory::open(&*disk, settings.id, sizes.keys().map(|id| number(*id)))?;
        let (jobs, work) = sync_channel(ON_THE_WAY);
        let (tell, done) = channel();
        let thread = std::thread::Builder::new()
            .name("checkpoint".into())
            .spawn(move || write_all((&disk, settings.id, inventory), &work, &tell, &waker))
            .map_err(|error| no_thread(&error))?;
        let hands = WriterThread { jobs: Some(jobs), thread: Some(thread) };
        let (todo, current, removals) = (Vec::new(), None, Vec::new());
        let is_short_told = false;
        Ok(Self { settings, sizes, todo, current, removals, hands, done, is_short_told })
    }

    /// Longest entry that the log takes.
    pub(super) const fn entry_len_max(&self) -> usize {
        (self.settings.segment_len / 2) as usize
    }

    /// Bytes of all checkpoints.
    pub(super) fn len(&self) -> u64 {
        self.sizes.values().sum()
    }

    /// Whether there is something to be done now, and not only when the thread or the log wakes the shard.
    pub(super) fn is_busy(&self) -> bool {
        match &self.current {
            Some(current) => current.waiting.is_none(),
            None => !self.todo.is_empty(),
        }
    }

    /// Whether a log of this length is to be shortened, and nothing is done about it yet.
    pub(super) fn is_due(&self, log_len: u64) -> bool {
        self.is_idle() && log_len > self.log_len_max()
    }

    /// Whether nothing is being copied, and nothing is to be.
    pub(super) const fn is_idle(&self) -> bool {
        self.todo.is_empty() && self.current.is_none()
    }

    /// A log that is longer than this is to be shortened: as long as the partitions that it tells
    /// of.
    pub(super) fn log_len_max(&self) -> u64 {
        self.len().max(SEGMENTS_MIN * self.settings.segment_len)
    }

    /// Begins a round.
    pub(super) fn begin(&mut self, places: Vec<PlaceId>) {
        tracing::debug!(partitions = places.len(), "checkpoints are begun");
        self.todo = places;
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
        self.removals.extend(gone.map(|id| (upto, *id)));
        self.sizes.retain(|id, _| !is_gone(*id));
    }

    /// The first frame without which a checkpoint that is to be removed would count again.
    pub(super) fn needed_from(&self) -> Option<u64> {
        self.removals.iter().map(|(upto, _)| upto - 1).min()
    }

    /// The next checkpoint that is on flash. `next`: the frame that the log writes next.
    pub(super) fn finished(&mut self, next: u64) -> Option<FinishedCheckpoint> {
        loop {
            let (finished, written) = self.done.try_recv().ok()?;
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
                Ok(_) if is_current.is_none() => self.removals.push((next, finished.id)),
                Ok(len) => {
                    self.is_short_told = false;
                    self.sizes.insert(finished.id, len);
                    return Some(finished);
                }
            }
        }
    }

    /// Does the next piece, if there is one to do. `find` gives an open partition.
    pub(super) fn step(&mut self, log: &LogView, find: &mut Find<'_>) {
        let Self { removals, hands, .. } = self;
        removals
            .retain(|(upto, id)| log.durable < *upto || hands.give(WriteJob::Remove(*id)).is_err());
        if self.current.is_none() {
            let Some(id) = self.todo.pop() else { return };
            find(id, &mut MirroredPartition::begin_checkpoint);
            let waiting = Some(WriteJob::Begin(id));
            self.current = Some(CopiedPartition { id, waiting, complete: None });
        }
        let Some(current) = &mut self.current else { return };
        if current.waiting.is_none() && current.complete.is_none() {
            let mut copied = Err(ErrorKind::NotFound.into());
            find(current.id, &mut |member| copied = current.copy(member, log));
            if let Err(error) = copied {
                tracing::debug!(%error, "a checkpoint is given up");
                self.current = None;
                return;
            }
        }
        if current.is_ready(log) && current.complete.is_some() {
            // It takes the place of the checkpoint that is to be removed.
            removals.retain(|(_, id)| *id != current.id);
        }
        current.hand_over(hands, log);
    }
}

impl CopiedPartition {
    /// Copies the next piece.
    fn copy(&mut self, member: &mut MirroredPartition, log: &LogView) -> Result<()> {
        self.waiting = Some(match copy(member, self.id, log.next, PIECE_LEN)? {
            CheckpointPiece::Some(frames) => WriteJob::Piece(frames),
            CheckpointPiece::Last { frames, position } => {
                self.complete = Some(log.next);
                WriteJob::Finish(
                    FinishedCheckpoint { id: self.id, next: log.next, position },
                    frames,
                )
            }
        });
        Ok(())
    }

    const fn is_ready(&self, log: &LogView) -> bool {
        match self.complete {
            Some(next) => log.durable >= next,
            None => true,
        }
    }

    /// Gives the thread the pieces that wait, if it has room, and if everything that they tell of
    /// is on flash.
    fn hand_over(&mut self, hands: &WriterThread, log: &LogView) {
        if self.is_ready(log)
            && let Some(job) = self.waiting.take()
        {
            self.waiting = hands.give(job).err();
        }
    }
}

/// The way to the thread, which ends when it is dropped.
struct WriterThread {
    jobs: Option<SyncSender<WriteJob>>,
    thread: Option<JoinHandle<()>>,
}

impl WriterThread {
    fn give(&self, job: WriteJob) -> Result<(), WriteJob> {
        match self.jobs.as_ref().map(|jobs| jobs.try_send(job)) {
            Some(Err(TrySendError::Full(job) | TrySendError::Disconnected(job))) => Err(job),
            Some(Ok(())) | None => Ok(()),
        }
    }
}

impl Drop for WriterThread {
    fn drop(&mut self) {
        self.jobs.take();
        if let Some(thread) = self.thread.take() {
            // A panic of it has been reported; a checkpoint that it has not finished is none.
            let _ = thread.join();
        }
    }
}

/// Writes checkpoints until there is nobody to ask for them.
fn write_all(
    (disk, log, mut inventory): (&Arc<dyn LogDisk>, u64, FileInventory),
    work: &Receiver<WriteJob>,
    tell: &Sender<(FinishedCheckpoint, Result<u64>)>,
    waker: &LoopWaker,
) {
    let mut writer: Option<CheckpointWriter> = None;
    let mut failed = None;
    while let Ok(job) = work.recv() {
        match job {
            WriteJob::Begin(place) => {
                failed = None;
                writer = keep(
                    &mut failed,
                    CheckpointWriter::create(Arc::clone(disk), log, &name(place)),
                );
            }
            WriteJob::Piece(frames) => {
                let written = writer.as_mut().map(|writer| add_all(writer, &frames));
                if keep(&mut failed, written.unwrap_or(Ok(()))).is_none() {
                    // On a full disk others need the space.
                    keep(&mut failed, writer.take().map_or(Ok(()), CheckpointWriter::discard));
                }
            }
            WriteJob::Finish(finished, frames) => {
                let written = match (writer.take(), failed.take()) {
                    (Some(mut writer), None) => {
                        add_all(&mut writer, &frames).and_then(|()| writer.finish())
                    }
                    (_, error) => Err(error.unwrap_or_else(|| ErrorKind::Internal.into())),
                };
                // The log is shortened because of it.
                let written =
                    written.and_then(|len| inventory.add(number(finished.id)).map(|()| len));
                if written.is_err() {
                    // Of one that failed at its end; others are gone.
                    let _ = disk.remove(&format!("{}{UNFINISHED}", name(finished.id)));
                }
                // No thread listens when the shard has ended.
                let _ = tell.send((finished, written));
            }
            WriteJob::Remove(place) => {
                let removed = inventory.remove(number(place));
                let removed = removed.and_then(|()| disk.remove(&name(place)));
                let removed = removed.and_then(|()| disk.sync());
                if let Err(error) = removed {
                    tracing::warn!(%error, "remove a checkpoint");
                }
            }
        }
        waker.wake();
    }
}

fn add_all(writer: &mut CheckpointWriter, frames: &[Vec<u8>]) -> Result<()> {
    frames.iter().try_for_each(|frame| writer.add(frame))
}

/// Remembers the first failure.
fn keep<T>(failed: &mut Option<Error>, result: Result<T>) -> Option<T> {
    match result {
        Ok(done) => Some(done),
        Err(error) => {
            failed.get_or_insert(error);
            None
        }
    }
}
