//! Checkpoints: copies of partitions in files, taken while they serve.
//!
//! A shard copies a piece of one partition at a time between requests ([`Mirrored::checkpoint_step`]), and a thread writes the pieces. A checkpoint
//! is given its name only when all that it has seen is on flash in the log, too. It says which frame of the log comes after it; what is
//! before is not needed for this partition any more.
//!
//! A file is frames (see [`samite_log::checkpoint`]) of these kinds, told by their first byte:
//!
//! ```text
//!  1  body length u32 │ body │ payload                   records, as a resync sends them; later ones replace earlier ones
//!  2  bytes                                              a part of what the partition is beside its records
//!  3  dataset u32 │ partition u32 │ next frame u64       the end
//! ```

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::thread::JoinHandle;

use samite_log::checkpoint::{UNFINISHED, Writer, read_all};
use samite_log::{Disk, Settings};
use samite_partition::mirror::{Batch, Copied, Mirrored};
use samite_transport::server::Waker;
use samite_types::{DatasetId, Error, ErrorKind, PartitionId, Position, Result};
use samite_wire::Decoder;
use samite_wire::op::Data;
use samite_wire::peer::{Message, RecordCopy};

use super::{Find, no_thread};
use crate::partitions::PlaceId;

const PREFIX: &str = "checkpoint-";
/// Bytes of records that are copied in one go.
const PIECE_LEN: usize = 256 << 10;
/// Bytes of state in one frame.
const STATE_PART_LEN: usize = 1 << 20;
/// Pieces on their way to the thread.
const ON_THE_WAY: usize = 4;
/// A log is not worth a checkpoint before it has so many segments.
const SEGMENTS_MIN: u64 = 4;

mod tag {
    pub(super) const RECORDS: u8 = 1;
    pub(super) const STATE: u8 = 2;
    pub(super) const END: u8 = 3;
}

fn name((dataset, partition): PlaceId) -> String {
    format!("{PREFIX}{:08x}-{:08x}", dataset.get(), partition.get())
}

fn place_of(name: &str) -> Option<PlaceId> {
    let (dataset, partition) = name.strip_prefix(PREFIX)?.split_once('-')?;
    let number = |text: &str| u32::from_str_radix(text, 16).ok();
    let place = (DatasetId(number(dataset)?), PartitionId(number(partition)?));
    (self::name(place) == name).then_some(place)
}

/// The partitions of which there are checkpoints. Removes what was not finished.
pub(super) fn find(disk: &dyn Disk) -> Result<Vec<PlaceId>> {
    let names = disk.list()?;
    for name in names.iter().filter(|name| name.starts_with(PREFIX) && name.ends_with(UNFINISHED)) {
        disk.remove(name)?;
    }
    let mut places: Vec<PlaceId> = names.iter().filter_map(|name| place_of(name)).collect();
    places.sort_unstable();
    Ok(places)
}

/// What a checkpoint says beside what the partition is.
pub(super) struct Loaded {
    /// The frame of the log that comes after it.
    pub(super) next: u64,
    pub(super) len: u64,
}

/// Reads the checkpoint of `id` into an empty partition.
///
/// # Errors
/// `Corrupt`; those of the disk; `NoSpace`: there is too little memory.
pub(super) fn load(
    disk: &dyn Disk,
    log: u64,
    id: PlaceId,
    member: &mut Mirrored,
) -> Result<Loaded> {
    let (mut state, mut end) = (Vec::new(), None);
    let len = read_all(disk, log, &name(id), &mut |bytes| {
        let (tag, rest) = bytes.split_first().ok_or(ErrorKind::Corrupt)?;
        match *tag {
            tag::RECORDS => install(member, rest)?,
            tag::STATE => state.extend_from_slice(rest),
            tag::END => end = Some(read_end(rest)?),
            _ => return Err(Error::new(ErrorKind::Corrupt, "a frame of no known kind")),
        }
        Ok(())
    });
    let wrong = |error: Error| error.context(format_args!("checkpoint {}", name(id)));
    let len = len.map_err(wrong)?;
    match end {
        Some((found, next)) if found == id => {
            member.import(&state).map_err(wrong)?;
            Ok(Loaded { next, len })
        }
        _ => Err(wrong(Error::new(ErrorKind::Corrupt, "it is not of this partition"))),
    }
}

fn install(member: &mut Mirrored, bytes: &[u8]) -> Result<()> {
    let mut decoder = Decoder::new(bytes);
    let len = decoder.u32("records length")? as usize;
    let body = decoder.bytes(len, "records")?;
    match Message::decode(body, decoder.rest())? {
        Message::Records { records, .. } => member.install(&records),
        _ => Err(Error::new(ErrorKind::Corrupt, "a message that is no records")),
    }
}

fn end_frame((dataset, partition): PlaceId, next: u64) -> Vec<u8> {
    let mut bytes = vec![tag::END];
    bytes.extend_from_slice(&dataset.get().to_le_bytes());
    bytes.extend_from_slice(&partition.get().to_le_bytes());
    bytes.extend_from_slice(&next.to_le_bytes());
    bytes
}

fn read_end(bytes: &[u8]) -> Result<(PlaceId, u64)> {
    let mut decoder = Decoder::new(bytes);
    let id = (DatasetId(decoder.u32("dataset")?), PartitionId(decoder.u32("partition")?));
    let next = decoder.u64("next frame")?;
    decoder.finish("end of a checkpoint")?;
    Ok((id, next))
}

fn records_frame(copied: &[Copied]) -> Vec<u8> {
    let records = copied.iter().map(|record| {
        let value = record.value.as_ref().map(|pieces| {
            let pieces = pieces.iter();
            pieces
                .map(|piece| match piece.as_bytes() {
                    Some(bytes) => Data::Inline(bytes),
                    // A record has at most 1 MiB.
                    None => Data::Zeros(piece.len() as u32),
                })
                .collect()
        });
        RecordCopy { key: &record.key, version: record.version, value }
    });
    let message = Message::Records { attempt: 0, step: 0, records: records.collect() };
    let mut frame = vec![tag::RECORDS, 0, 0, 0, 0];
    message.encode(&mut frame);
    let len = (frame.len() - 5) as u32;
    frame[1..5].copy_from_slice(&len.to_le_bytes());
    message.payload(&mut |bytes| frame.extend_from_slice(bytes));
    frame
}

/// For the thread that writes.
enum Job {
    Begin(PlaceId),
    /// Frames of what was begun last.
    Piece(Vec<Vec<u8>>),
    /// The last frames of the checkpoint of a partition.
    Finish(Finished, Vec<Vec<u8>>),
    Remove(PlaceId),
}

/// A checkpoint that is complete.
#[derive(Clone, Copy, Debug)]
pub(super) struct Finished {
    pub(super) id: PlaceId,
    /// The frame of the log that comes after it.
    pub(super) next: u64,
    /// The last entry that it has seen.
    pub(super) position: Position,
}

/// A partition that is being copied.
struct Current {
    id: PlaceId,
    /// What the thread had no room for yet, or may not have yet.
    waiting: Option<Job>,
    /// Complete: to be finished when the log is on flash up to this frame.
    complete: Option<u64>,
}

/// The checkpoints of one shard.
pub(super) struct Checkpoints {
    settings: Settings,
    sizes: HashMap<PlaceId, u64>,
    /// Partitions to be copied.
    todo: Vec<PlaceId>,
    current: Option<Current>,
    /// Checkpoints that are no use any more.
    removals: Vec<PlaceId>,
    hands: Hands,
    done: Receiver<(Finished, Result<u64>)>,
}

/// How a shard's log stands.
pub(super) struct LogView {
    pub(super) next: u64,
    pub(super) durable: u64,
}

impl Checkpoints {
    /// `sizes`: those that there are.
    pub(super) fn start(
        disk: Arc<dyn Disk>,
        settings: Settings,
        sizes: HashMap<PlaceId, u64>,
        waker: Waker,
    ) -> Result<Self> {
        let (jobs, work) = sync_channel(ON_THE_WAY);
        let (tell, done) = channel();
        let thread = std::thread::Builder::new()
            .name("checkpoint".into())
            .spawn(move || write_all(&disk, settings.id, &work, &tell, &waker))
            .map_err(|error| no_thread(&error))?;
        let hands = Hands { jobs: Some(jobs), thread: Some(thread) };
        let (todo, current, removals) = (Vec::new(), None, Vec::new());
        Ok(Self { settings, sizes, todo, current, removals, hands, done })
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
        let is_idle = self.todo.is_empty() && self.current.is_none();
        is_idle && log_len > self.log_len_max()
    }

    /// A log that is longer than this is to be shortened: as long as what it tells of.
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

    /// What was known of these partitions is no use any more.
    pub(super) fn discard(&mut self, is_gone: &dyn Fn(PlaceId) -> bool) {
        self.todo.retain(|id| !is_gone(*id));
        if self.current.as_ref().is_some_and(|current| is_gone(current.id)) {
            self.current = None;
        }
        self.removals.extend(self.sizes.keys().filter(|id| is_gone(**id)));
        self.sizes.retain(|id, _| !is_gone(*id));
    }

    /// The next checkpoint that is on flash.
    pub(super) fn finished(&mut self) -> Option<Finished> {
        loop {
            let (finished, written) = self.done.try_recv().ok()?;
            let is_current = self.current.take_if(|current| {
                current.id == finished.id && current.waiting.is_none() && current.complete.is_some()
            });
            match written {
                Err(error) => tracing::warn!(%error, "a checkpoint could not be written"),
                // Discarded while it was written.
                Ok(_) if is_current.is_none() => self.removals.push(finished.id),
                Ok(len) => {
                    self.sizes.insert(finished.id, len);
                    return Some(finished);
                }
            }
        }
    }

    /// Does the next piece, if there is one to do. `find` gives an open partition.
    pub(super) fn step(&mut self, log: &LogView, find: &mut Find<'_>) {
        let Self { removals, hands, .. } = self;
        removals.retain(|id| hands.give(Job::Remove(*id)).is_err());
        if self.current.is_none() {
            let Some(id) = self.todo.pop() else { return };
            find(id, &mut Mirrored::begin_checkpoint);
            let waiting = Some(Job::Begin(id));
            self.current = Some(Current { id, waiting, complete: None });
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
        current.hand_over(hands, log);
    }
}

impl Current {
    /// Copies the next piece.
    fn copy(&mut self, member: &mut Mirrored, log: &LogView) -> Result<()> {
        let batch = member.checkpoint_step(PIECE_LEN)?;
        self.waiting = Some(match batch {
            None | Some(Batch::Compare { .. }) => {
                return Err(Error::new(ErrorKind::NotFound, "its partition is being replaced"));
            }
            Some(Batch::Records(records)) => Job::Piece(vec![records_frame(&records)]),
            Some(Batch::Last(records)) => {
                let mut frames = vec![records_frame(&records)];
                let mut state = Vec::new();
                member.export(&mut state);
                frames.extend(
                    state.chunks(STATE_PART_LEN).map(|part| [&[tag::STATE], part].concat()),
                );
                frames.push(end_frame(self.id, log.next));
                self.complete = Some(log.next);
                let position = member.point().position;
                Job::Finish(Finished { id: self.id, next: log.next, position }, frames)
            }
        });
        Ok(())
    }

    /// Gives the thread what waits, if it has room, and if everything that it tells of is on flash.
    fn hand_over(&mut self, hands: &Hands, log: &LogView) {
        let is_ready = self.complete.is_none_or(|next| log.durable >= next);
        if is_ready && let Some(job) = self.waiting.take() {
            self.waiting = hands.give(job).err();
        }
    }
}

/// The way to the thread, which ends when it is dropped.
struct Hands {
    jobs: Option<SyncSender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Hands {
    fn give(&self, job: Job) -> Result<(), Job> {
        match self.jobs.as_ref().map(|jobs| jobs.try_send(job)) {
            Some(Err(TrySendError::Full(job) | TrySendError::Disconnected(job))) => Err(job),
            Some(Ok(())) | None => Ok(()),
        }
    }
}

impl Drop for Hands {
    fn drop(&mut self) {
        self.jobs.take();
        if let Some(thread) = self.thread.take() {
            // A panic of it has been reported; what it has not finished is no checkpoint.
            let _ = thread.join();
        }
    }
}

/// Writes checkpoints until there is nobody to ask for them.
fn write_all(
    disk: &Arc<dyn Disk>,
    log: u64,
    work: &Receiver<Job>,
    tell: &Sender<(Finished, Result<u64>)>,
    waker: &Waker,
) {
    let mut writer: Option<Writer> = None;
    let mut failed = None;
    while let Ok(job) = work.recv() {
        match job {
            Job::Begin(place) => {
                failed = None;
                writer = keep(&mut failed, Writer::create(Arc::clone(disk), log, &name(place)));
            }
            Job::Piece(frames) => {
                let written = writer.as_mut().map(|writer| add_all(writer, &frames));
                keep(&mut failed, written.unwrap_or(Ok(())));
            }
            Job::Finish(finished, frames) => {
                let written = match (writer.take(), failed.take()) {
                    (Some(mut writer), None) => {
                        add_all(&mut writer, &frames).and_then(|()| writer.finish())
                    }
                    (_, error) => Err(error.unwrap_or_else(|| ErrorKind::Internal.into())),
                };
                // Nobody listens when the shard has ended.
                let _ = tell.send((finished, written));
            }
            Job::Remove(place) => {
                let removed = disk.remove(&name(place)).and_then(|()| disk.sync());
                if let Err(error) = removed {
                    tracing::warn!(%error, "remove a checkpoint");
                }
            }
        }
        waker.wake();
    }
}

fn add_all(writer: &mut Writer, frames: &[Vec<u8>]) -> Result<()> {
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
