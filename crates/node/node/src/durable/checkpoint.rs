//! Checkpoints: copies of partitions in files, taken while they serve.
//!
//! A shard copies a piece of one partition at a time between requests, as the
//! [schedule](super::checkpoint_schedule) says, and the thread here writes the pieces. A checkpoint
//! is given its name only when all that it has seen is on flash in the log, too. It says which
//! frame of the log comes after it; earlier frames are not needed for this partition any more. Its
//! format: [`samite_mirror::durable::checkpoint`].

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::thread::JoinHandle;

use samite_log::LogDisk;
use samite_log::checkpoint::{CheckpointWriter, UNFINISHED};
use samite_log::inventory::FileInventory;
use samite_mirror::durable::PlaceId;
use samite_mirror::durable::checkpoint::{name, number};
use samite_transport::server::LoopWaker;
use samite_types::{Error, ErrorKind, Result};

use super::checkpoint_schedule::{FinishedCheckpoint, WriteJob};

/// Pieces on their way to the thread.
const ON_THE_WAY: usize = 4;

/// The thread that writes the checkpoints of a shard; it ends when this is dropped.
pub(super) struct CheckpointThread {
    jobs: Option<SyncSender<WriteJob>>,
    done: Receiver<(FinishedCheckpoint, Result<u64>)>,
    thread: Option<JoinHandle<()>>,
}

impl CheckpointThread {
    /// Starts it beside the log `log` on `disk`. `known`: the checkpoints that there are.
    pub(super) fn start(
        disk: Arc<dyn LogDisk>,
        log: u64,
        known: impl Iterator<Item = PlaceId>,
        waker: LoopWaker,
    ) -> Result<Self> {
        let inventory = FileInventory::open(&*disk, log, known.map(number))?;
        let (jobs, work) = sync_channel(ON_THE_WAY);
        let (tell, done) = channel();
        let thread = std::thread::Builder::new()
            .name("checkpoint".into())
            .spawn(move || write_all((&disk, log, inventory), &work, &tell, &waker))
            .map_err(|error| no_thread(&error))?;
        Ok(Self { jobs: Some(jobs), done, thread: Some(thread) })
    }

    /// Gives it a job.
    ///
    /// # Errors
    /// The job: it has no room.
    pub(super) fn give(&self, job: WriteJob) -> Result<(), WriteJob> {
        match self.jobs.as_ref().map(|jobs| jobs.try_send(job)) {
            Some(Err(TrySendError::Full(job) | TrySendError::Disconnected(job))) => Err(job),
            Some(Ok(())) | None => Ok(()),
        }
    }

    /// The next checkpoint that it has written, and its bytes, or why it could not.
    pub(super) fn next_done(&self) -> Option<(FinishedCheckpoint, Result<u64>)> {
        self.done.try_recv().ok()
    }
}

impl Drop for CheckpointThread {
    fn drop(&mut self) {
        self.jobs.take();
        if let Some(thread) = self.thread.take() {
            // A panic of it has been reported; a checkpoint that it has not finished is none.
            let _ = thread.join();
        }
    }
}

/// A thread could not be started.
pub(super) fn no_thread(error: &std::io::Error) -> Error {
    let errno = rustix::io::Errno::from_io_error(error).unwrap_or(rustix::io::Errno::AGAIN);
    Error::io("start a thread", errno)
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
