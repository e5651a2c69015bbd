//! Durable datasets of one shard: a log of the operations of its partitions, copies of them, and
//! the state to which both lead after a restart.
//!
//! ```text
//!  Mirrored ── Effect::Append ── log ── thread: one write, one fdatasync for all that has come meanwhile
//!      │                                     │
//!      └── Mirrored::logged ◂────────────────┘ wakes the shard; held replies leave
//! ```
//!
//! A node with a flash directory keeps one log for each shard, of the entries of all durable
//! partitions that it is a member for ([`samite_wire::peer::PartitionLogEntry`]). The log is one
//! more follower of each: an entry that is not on flash is not committed, and no reply tells of it.
//! When the log has grown to the size of the partitions that it tells of, each partition in it is
//! copied to a *checkpoint* while it goes on serving (`checkpoint.rs`), and the older part of the
//! log is dropped.
//!
//! At its start a node takes the newest checkpoint of each partition and replays the log after it
//! (`recovery.rs`). So records, versions, results that make operations happen once, name-space
//! generations and open references are as they were. Delegations are not kept: each client that had
//! one has lost its connection, and asks anew.

mod checkpoint;
mod checkpoint_schedule;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use samite_log::joined::DirectoryMarks;
use samite_log::storage::{self, StorageNote};
use samite_log::{DirDisk, FrameNeed, LogAppender, LogDisk, LogSettings};
pub(crate) use samite_mirror::durable::Recovered;
use samite_mirror::durable::checkpoint::copy as copy_piece;
use samite_mirror::durable::{LogTracks, PlaceId, RecoveredLog, frame, recover};
use samite_mirror::{LogEntry, MirroredPartition};
use samite_transport::server::LoopWaker;
use samite_types::fault::FaultSwitch;
use samite_types::{
    Clock, DatasetId, Entropy, Error, ErrorKind, NodeId, Position, Result, ShardId, SystemClock,
    SystemEntropy,
};

use crate::config::FlashConfig;
use checkpoint::{CheckpointThread, no_thread};
use checkpoint_schedule::{CheckpointSchedule, FinishedCheckpoint, LogView, WriteJob};

fn shard_name(shard: ShardId) -> String {
    format!("shard-{}", shard.get())
}

/// The directory of a node.
#[derive(Clone, Debug)]
pub(crate) struct NodeFlash {
    config: FlashConfig,
    storage: StorageNote,
    faults: Arc<FaultSwitch>,
}

impl NodeFlash {
    /// Opens the directory of `node`, or makes it.
    ///
    /// # Errors
    /// It is another node's, or cannot be used.
    pub(crate) fn open(
        config: &FlashConfig,
        (node, shards): (NodeId, u16),
        faults: &Arc<FaultSwitch>,
    ) -> Result<Self> {
        let id = SystemEntropy.next_u64().max(1);
        let like = StorageNote { id, node: node.get(), shards };
        let storage = DirDisk::new(&config.path, None)
            .and_then(|disk| StorageNote::open(&disk, like))
            .map_err(|error| error.context(config.path.display()))?;
        Ok(Self { config: config.clone(), storage, faults: Arc::clone(faults) })
    }

    /// The incarnation with which the node joins. `drawn`: for this process alone.
    ///
    /// # Errors
    /// Damage; errors of the disk.
    pub(crate) fn joined(&self, drawn: u64) -> Result<DirectoryMarks> {
        DirDisk::new(&self.config.path, None)
            .and_then(|disk| DirectoryMarks::open(&disk, self.storage.id, drawn.max(1)))
            .map_err(|error| self.with_way_out(error.context(self.config.path.display())))
    }

    fn shard_path(&self, shard: ShardId) -> PathBuf {
        self.config.path.join(shard_name(shard))
    }

    /// Why the data of a shard there cannot be read, and what to do about it.
    pub(crate) fn explain(&self, shard: ShardId, error: Error) -> Error {
        self.with_way_out(error.context(self.shard_path(shard).display()))
    }

    fn with_way_out(&self, error: Error) -> Error {
        if error.kind() != ErrorKind::Corrupt {
            return error;
        }
        let node = self.storage.node;
        let way = format!(
            "to have it made again from the other members of its groups, `samite node restart {node} --renew` (or `samite up … --renew {node}`), which keeps what is there under another name"
        );
        Error::new(ErrorKind::Corrupt, format!("{error}; {way}"))
    }

    /// The directory of a shard. A file that was in it and is missing is an error.
    fn shard(&self, shard: ShardId) -> Result<Arc<dyn LogDisk>> {
        let path = self.shard_path(shard);
        let disk = DirDisk::new(&path, Some(Arc::clone(&self.faults)))?;
        storage::check_begun(&DirDisk::new(&self.config.path, None)?, &shard_name(shard), &disk)?;
        Ok(Arc::new(disk))
    }

    /// From now on the log of a shard has to be there.
    fn note_begun(&self, shard: ShardId) -> Result<()> {
        storage::note_begun(&DirDisk::new(&self.config.path, None)?, &shard_name(shard))
    }

    /// No two logs have the same id.
    const fn log_id(&self, shard: ShardId) -> u64 {
        self.storage.id ^ ((shard.get() as u64) << 48)
    }
}

/// Hands an open partition to somebody; does nothing when there is none.
pub(crate) type Find<'f> = dyn FnMut(PlaceId, &mut dyn FnMut(&mut MirroredPartition)) + 'f;

/// The log of one shard, and its companions.
pub(crate) struct ShardLog {
    appender: LogAppender,
    tracks: LogTracks,
    checkpoints: CheckpointSchedule,
    writer: CheckpointThread,
    /// Longest entry that the log takes, in bytes.
    entry_len_max: usize,
}

/// Bytes of records that are copied in one go.
const PIECE_LEN: usize = 256 << 10;

impl ShardLog {
    /// Reads the data there into partitions that `open` makes, and goes on from it. `waker`: of the
    /// shard.
    ///
    /// # Errors
    /// Damage, and where; too little memory for the data there.
    pub(crate) fn open(
        flash: &NodeFlash,
        shard: ShardId,
        waker: LoopWaker,
        open: &mut dyn FnMut(PlaceId) -> Result<MirroredPartition>,
    ) -> Result<(Self, Recovered)> {
        let disk = flash.shard(shard)?;
        let id = flash.log_id(shard);
        let settings = LogSettings { id, segment_len: flash.config.segment_len };
        let found = read(&disk, settings, open)?;
        flash.note_begun(shard)?;
        let name = format!("log-{}", shard.get());
        let woken = waker.clone();
        let appender = LogAppender::start(&name, found.log, move || woken.wake());
        let appender = appender.map_err(|error| no_thread(&error))?;
        if let Some(error) = appender.blocked() {
            return Err(error.context("there is no space to go on with the log"));
        }
        let known = found.checkpointed.keys().copied();
        let writer = CheckpointThread::start(disk, settings.id, known, waker)?;
        let durable = Self {
            appender,
            tracks: found.tracks,
            checkpoints: CheckpointSchedule::new(settings.segment_len, found.checkpointed),
            writer,
            entry_len_max: (settings.segment_len / 2) as usize,
        };
        Ok((durable, found.partitions))
    }

    /// Whether the log takes entries of up to `len` bytes in all, for operations that may take effect.
    ///
    /// # Errors
    /// `Busy`; `NoSpace` and others of the disk; `TooLarge`.
    pub(crate) fn admit(&self, len: usize, need: FrameNeed) -> Result<(), ErrorKind> {
        if len > self.entry_len_max {
            return Err(ErrorKind::TooLarge);
        }
        self.appender.admit(len, need)
    }

    /// Appends an entry of a partition.
    pub(crate) fn append(&mut self, id: PlaceId, entry: &LogEntry) {
        let frame = self.appender.add(|out| frame::encode_entry(out, id, entry));
        self.tracks.appended(id, frame, entry.position());
        self.appender.submit();
    }

    /// The data of a partition on flash is no use any more.
    pub(crate) fn discard(&mut self, id: PlaceId) {
        let frame = self.appender.add(|out| frame::encode_discarded(out, id));
        self.appender.submit();
        self.checkpoints.discard(&|other| other == id, frame + 1);
        self.tracks.discarded(id, frame);
    }

    /// Bytes that are appended to a partition count again once they are all in a checkpoint.
    pub(crate) fn want_checkpoint(&mut self, id: PlaceId) {
        self.checkpoints.want(id);
    }

    /// The next entry that has come to be on flash, with all before it: a partition, and the entry's position.
    pub(crate) fn next_durable(&mut self) -> Option<(PlaceId, Position)> {
        self.tracks.next_durable(self.appender.durable())
    }

    /// Entries that are on their way to flash.
    pub(crate) fn waiting(&self) -> usize {
        self.appender.next().saturating_sub(self.appender.durable()) as usize
    }

    /// Bytes of the log and of the checkpoints.
    pub(crate) fn lens(&self) -> (u64, u64) {
        (self.appender.metrics().len, self.checkpoints.len())
    }

    /// There are no such datasets any more.
    pub(crate) fn forget(&mut self, is_gone: &dyn Fn(DatasetId) -> bool) {
        for dataset in self.tracks.datasets().into_iter().filter(|dataset| is_gone(*dataset)) {
            self.appender.add(|out| frame::encode_dropped(out, dataset));
            self.tracks.dropped(dataset);
        }
        self.appender.submit();
        self.checkpoints.discard(&|(dataset, _)| is_gone(dataset), self.appender.next());
    }

    /// Whether [`ShardLog::advance`] has something to do now, and not only when the shard is woken.
    pub(crate) fn is_busy(&self) -> bool {
        self.checkpoints.is_busy()
    }

    /// Does a piece of a checkpoint, if there is something to do. `find` gives an open partition. Returns the partition that has
    /// a checkpoint now which it had to have before its entries count, and the position up to which all is there.
    pub(crate) fn advance(&mut self, find: &mut Find<'_>) -> Option<(PlaceId, Position)> {
        let mut headed = None;
        let mut is_shorter = false;
        if let Some(done) = self.next_checkpoint() {
            let is_headed = self.tracks.checkpointed(done.id, done.next);
            headed = is_headed.then_some((done.id, done.position));
            is_shorter = true;
        }
        if self.is_round_due() {
            is_shorter = true;
            self.checkpoints.begin(self.tracks.told_of(), self.appender.appended());
        }
        if is_shorter {
            let needed = self.tracks.needed_from(self.appender.durable()).into_iter();
            let first = needed.chain(self.checkpoints.needed_from()).min();
            self.appender.drop_below(first.unwrap_or(self.appender.next())); // I17
        }
        let log = LogView { next: self.appender.next(), durable: self.appender.durable() };
        self.write_checkpoints(log, find);
        headed
    }

    /// The next checkpoint that is on flash.
    fn next_checkpoint(&mut self) -> Option<FinishedCheckpoint> {
        loop {
            let (finished, written) = self.writer.next_done()?;
            let counts = self.checkpoints.written(finished, written, self.appender.next());
            if counts.is_some() {
                return counts;
            }
        }
    }

    /// Copies the next piece, and gives the thread what it has room for.
    fn write_checkpoints(&mut self, log: LogView, find: &mut Find<'_>) {
        while let Some(removal) = self.checkpoints.take_removal(log) {
            if self.writer.give(WriteJob::Remove(removal.id)).is_err() {
                self.checkpoints.keep_removal(removal);
                break;
            }
        }
        if let Some(id) = self.checkpoints.begin_next() {
            find(id, &mut MirroredPartition::begin_checkpoint);
        }
        if let Some(id) = self.checkpoints.to_copy() {
            let mut piece = Err(ErrorKind::NotFound.into());
            find(id, &mut |member| piece = copy_piece(member, id, log.next, PIECE_LEN));
            self.checkpoints.copied(piece, log);
        }
        if let Some(job) = self.checkpoints.take_job(log)
            && let Err(job) = self.writer.give(job)
        {
            self.checkpoints.keep_job(job);
        }
    }

    /// Whether checkpoints are to be begun: the log has become long, or there is no space for more of it.
    fn is_round_due(&mut self) -> bool {
        let is_time = self.checkpoints.is_round_time(self.appender.appended());
        if is_time && self.checkpoints.is_due(self.appender.metrics().len) {
            return true;
        }
        if !self.checkpoints.is_idle() || self.appender.shortage().is_none() {
            return false;
        }
        self.checkpoints.is_no_space_round_due(SystemClock.monotonic())
    }
}

/// How many entries go by between words on how far it is.
const PROGRESS: u64 = 1 << 18;

/// Reads all that is on `disk`.
fn read(
    disk: &Arc<dyn LogDisk>,
    settings: LogSettings,
    open: &mut dyn FnMut(PlaceId) -> Result<MirroredPartition>,
) -> Result<RecoveredLog> {
    let begun = Instant::now();
    let found = recover(disk, settings, open, &mut |entries| {
        if entries > 0 && entries.is_multiple_of(PROGRESS) {
            tracing::info!(entries, "reading the log");
        }
    })?;
    let ms = begun.elapsed().as_millis() as u64;
    let (count, checkpoints) = (found.partitions.len(), found.checkpointed.len());
    let (entries, bytes) = (found.replayed, found.log.len());
    tracing::info!(partitions = count, checkpoints, entries, bytes, ms, "durable data is read");
    Ok(found)
}
