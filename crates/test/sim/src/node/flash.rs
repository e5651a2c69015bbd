//! A node's disk: the real log, checkpoints and recovery, written by one hand in place of two threads.
//!
//! The time of a batch on its way to flash passes; a node that dies in the midst of it has written
//! a part. Bytes that were not synced are lost then as [`samite_log::memory`] loses them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use samite_log::checkpoint::CheckpointWriter;
use samite_log::memory::{CallFault, MemoryDisk};
use samite_log::{FrameBatch, LogDisk, LogSettings, OpenLog};
use samite_mirror::durable::checkpoint::{CheckpointPiece, copy, name};
use samite_mirror::durable::{LogTracks, PlaceId, Recovered, RecoveredLog, frame, recover};
use samite_mirror::{LogEntry, MirroredPartition};
use samite_types::{Position, Result};

use crate::rng::SimRng;

/// Does something to a partition, if it is open.
type Find<'f> = dyn FnMut(PlaceId, &mut dyn FnMut(&mut MirroredPartition)) + 'f;

/// Small, so that there are many.
const SEGMENT_LEN: u64 = 1024;
/// A log is not worth a checkpoint before it has so many segments.
const SEGMENTS_MIN: u64 = 3;
/// Bytes of records that are copied in one go.
const PIECE_LEN: usize = 48;

/// A checkpoint that is being made.
struct CheckpointInProgress {
    id: PlaceId,
    writer: CheckpointWriter,
    /// All of it is written. It counts when the log is on flash up to this frame; the position that
    /// it has seen.
    complete: Option<(u64, Position)>,
}

/// The log of a node, and its checkpoints.
pub(super) struct SimFlash {
    handle: MemoryDisk,
    disk: Arc<dyn LogDisk>,
    settings: LogSettings,
    log: OpenLog,
    next: u64,
    batch: FrameBatch,
    /// A batch that is on flash at that time.
    writing: Option<(Duration, FrameBatch)>,
    tracks: LogTracks,
    /// Bytes of each checkpoint.
    sizes: BTreeMap<PlaceId, u64>,
    todo: Vec<PlaceId>,
    making: Option<CheckpointInProgress>,
    /// Checkpoints that are no use any more, each with the frame up to which the log has to be on flash before.
    removals: Vec<(u64, PlaceId)>,
    latency_us: u64,
    /// An appended frame counts as being on flash.
    lies: bool,
}

impl SimFlash {
    /// Reads the log and the checkpoints into partitions that `open` makes.
    pub(super) fn open(
        handle: &MemoryDisk,
        (id, latency_us, lies): (u64, u64, bool),
        open: &mut dyn FnMut(PlaceId) -> Result<MirroredPartition>,
    ) -> Result<(Self, Recovered)> {
        let settings = LogSettings { id, segment_len: SEGMENT_LEN };
        let disk: Arc<dyn LogDisk> = Arc::new(handle.clone());
        let RecoveredLog { log, partitions, tracks, checkpointed, .. } =
            recover(&disk, settings, open, &mut |_| {})?;
        let flash = Self {
            handle: handle.clone(),
            disk,
            settings,
            next: log.next(),
            log,
            batch: FrameBatch::default(),
            writing: None,
            tracks,
            sizes: checkpointed,
            todo: Vec::new(),
            making: None,
            removals: Vec::new(),
            latency_us,
            lies,
        };
        Ok((flash, partitions))
    }

    fn add(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> u64 {
        self.batch.add(write);
        self.next += 1;
        self.next - 1
    }

    pub(super) fn append(&mut self, id: PlaceId, entry: &LogEntry) {
        let frame = self.add(|out| frame::encode_entry(out, id, entry));
        self.tracks.appended(id, frame, entry.position());
    }

    /// The data of a partition on flash are no use any more.
    pub(super) fn discard(&mut self, id: PlaceId) {
        let frame = self.add(|out| frame::encode_discarded(out, id));
        self.tracks.discarded(id, frame);
        self.todo.retain(|other| *other != id);
        self.making.take_if(|making| making.id == id);
        if self.sizes.remove(&id).is_some() {
            self.removals.push((frame + 1, id));
        }
    }

    /// Entries that are appended to a partition count again once they are all in a checkpoint.
    pub(super) fn want_checkpoint(&mut self, id: PlaceId) {
        self.todo.retain(|other| *other != id);
        self.todo.push(id);
    }

    /// The first frame that is not on flash.
    const fn durable(&self) -> u64 {
        if self.lies { self.next } else { self.log.next() }
    }

    /// When there is something to do.
    pub(super) fn next_step(&self, now: Duration) -> Option<Duration> {
        let copies = self.making.as_ref().is_some_and(|making| making.complete.is_none());
        let is_busy = copies || !self.todo.is_empty();
        let busy = is_busy.then(|| now + Duration::from_micros(self.latency_us));
        self.writing.as_ref().map(|(until, _)| *until).into_iter().chain(busy).min()
    }

    /// Does the work that is due. `find` gives an open partition. Returns the entries that have
    /// come to be on flash: partitions, and the positions of their last entries there.
    pub(super) fn step(
        &mut self,
        now: Duration,
        rng: &mut SimRng,
        find: &mut Find<'_>,
    ) -> Result<Vec<(PlaceId, Position)>> {
        if let Some((_, mut batch)) = self.writing.take_if(|(until, _)| *until <= now) {
            self.log.write(&mut batch)?;
        }
        let mut there = Vec::new();
        while let Some(durable) = self.tracks.next_durable(self.durable()) {
            there.push(durable);
        }
        let durable = self.durable();
        while let Some((_, id)) = self.removals.pop_if(|(upto, _)| durable >= *upto) {
            self.disk.remove(&name(id))?;
            self.disk.sync()?;
        }
        self.step_checkpoint(&mut there, find)?;
        if self.writing.is_none() && !self.batch.is_empty() {
            let until = now + rng.micros(self.latency_us / 10, self.latency_us);
            self.writing = Some((until, std::mem::take(&mut self.batch)));
        }
        Ok(there)
    }

    fn step_checkpoint(
        &mut self,
        there: &mut Vec<(PlaceId, Position)>,
        find: &mut Find<'_>,
    ) -> Result<()> {
        let len_max = self.sizes.values().sum::<u64>().max(SEGMENTS_MIN * SEGMENT_LEN);
        if self.making.is_none() && self.todo.is_empty() && self.log.len() > len_max {
            self.shorten()?;
            self.todo = self.tracks.told_of();
        }
        if self.making.is_none() {
            let Some(id) = self.todo.pop() else { return Ok(()) };
            find(id, &mut MirroredPartition::begin_checkpoint);
            let writer =
                CheckpointWriter::create(Arc::clone(&self.disk), self.settings.id, &name(id))?;
            self.making = Some(CheckpointInProgress { id, writer, complete: None });
        }
        let (next, durable) = (self.next, self.durable());
        let Some(making) = &mut self.making else { return Ok(()) };
        if making.complete.is_none() {
            let (id, mut copied) = (making.id, None);
            find(id, &mut |member| copied = copy(member, id, next, PIECE_LEN).ok());
            let frames = match copied {
                // Its partition is being replaced.
                None => {
                    self.making = None;
                    return Ok(());
                }
                Some(CheckpointPiece::Some(frames)) => frames,
                Some(CheckpointPiece::Last { frames, position }) => {
                    making.complete = Some((next, position));
                    frames
                }
            };
            frames.iter().try_for_each(|frame| making.writer.add(frame))?;
        }
        let is_done = |making: &mut CheckpointInProgress| {
            making.complete.is_some_and(|(next, _)| durable >= next)
        };
        if let Some(CheckpointInProgress { id, writer, complete: Some((next, position)) }) =
            self.making.take_if(is_done)
        {
            self.removals.retain(|(_, other)| *other != id);
            self.sizes.insert(id, writer.finish()?);
            if self.tracks.checkpointed(id, next) {
                there.push((id, position));
            }
            self.shorten()?;
        }
        Ok(())
    }

    /// Drops the files that are not needed any more.
    fn shorten(&mut self) -> Result<()> {
        let removed = self.removals.iter().map(|(upto, _)| upto - 1);
        let told = self.tracks.needed_from(self.durable());
        let needed = told.into_iter().chain(removed).min();
        let needed = needed.unwrap_or(self.next);
        self.log.drop_below(needed.min(self.log.next()))
    }

    /// The node dies. Of the bytes that are being written, a part may have got to the disk.
    pub(super) fn die(&mut self, rng: &mut SimRng) {
        if let Some((_, batch)) = &mut self.writing
            && rng.chance(700)
        {
            self.handle.trouble_at(self.handle.calls() + rng.between(1, 6), CallFault::Stop);
            // Whatever its result, no process hears it.
            let _ = self.log.write(batch);
        }
    }
}
