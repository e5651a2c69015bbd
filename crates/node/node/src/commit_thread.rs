//! The threads of a target that remembers: one commits changes, one reads ahead. No shard waits for
//! a disk.
//!
//! ```text
//!  shard ── batch of each partition ──▶ commits: all that has come meanwhile, one commit
//!    ▲                                     │
//!    └──────────── Committed ◀─────────────┘
//! ```

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::io::Errno;
use samite_backend::{CommitTarget, ReadAhead, WriteBatch};
use samite_metrics::registry;
use samite_mirror::durable::PlaceId;
use samite_types::fault::{DiskFault, DiskOp, DiskVerdict};
use samite_types::{Error, ErrorKind, Position, Result, ShardId};

use crate::inbox::InboxMessage;
use crate::shared::{NodeNotice, NodeShared};
use crate::threads::spawn;

/// Most batches that are committed as one.
const BATCHES_MAX: usize = 256;
/// After so long a batch that found no space is tried again.
const NO_SPACE_PAUSE: Duration = Duration::from_millis(200);

/// Changes of a partition, on their way to the target.
pub(crate) struct CommitJob {
    /// Whose partition it is.
    pub(crate) shard: ShardId,
    pub(crate) batch: WriteBatch,
    /// Entries up to here are committed with it.
    pub(crate) position: Option<Position>,
}

/// Work for the thread that reads ahead.
struct ReadJob {
    shard: ShardId,
    /// By which number the shard knows it.
    number: u64,
    reads: Vec<ReadAhead>,
}

/// The way to the threads of one target. They end when it is dropped.
pub(crate) struct TargetThreads {
    target: Arc<dyn CommitTarget>,
    /// At most two for each partition: its last batch, and one that clears it. `None` when this is
    /// dropped.
    commits: Option<Sender<CommitJob>>,
    /// At most one for each request that waits for it, and of these there is a bounded number.
    reads: Option<Sender<ReadJob>>,
    threads: Vec<JoinHandle<()>>,
}

impl TargetThreads {
    /// Starts them for `target`, which is called `name`.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub(crate) fn start(
        target: Arc<dyn CommitTarget>,
        name: &str,
        shared: &Arc<NodeShared>,
    ) -> Result<Self> {
        let (commits, jobs) = channel();
        let (written, sharer) = (Arc::clone(&target), Arc::clone(shared));
        let body = move || commit_all(&*written, &jobs, &sharer);
        let mut threads = vec![spawn(&format!("commit-{name}"), body)?];
        let (reads, jobs) = channel();
        let sharer = Arc::clone(shared);
        threads.push(spawn(&format!("read-{name}"), move || read_all(&jobs, &sharer))?);
        Ok(Self { target, commits: Some(commits), reads: Some(reads), threads })
    }

    /// The partitions of which the target has something.
    ///
    /// # Errors
    /// Errors of the target.
    pub(crate) fn stored(&self) -> Result<Vec<PlaceId>> {
        self.target.stored()
    }

    /// Has a batch committed. The shard is told by [`InboxMessage::Committed`].
    pub(crate) fn commit(&self, job: CommitJob) {
        // The thread ends before this does only when the node cannot go on, and the batch is lost.
        let _ = self.commits.as_ref().map(|commits| commits.send(job));
    }

    /// Has these read. The shard is told by [`InboxMessage::ReadAhead`].
    pub(crate) fn read(&self, shard: ShardId, number: u64, reads: Vec<ReadAhead>) {
        let _ = self.reads.as_ref().map(|to| to.send(ReadJob { shard, number, reads }));
    }
}

impl Drop for TargetThreads {
    fn drop(&mut self) {
        (self.commits, self.reads) = (None, None);
        for thread in self.threads.drain(..) {
            // A panic of it has been reported; what it has not committed nobody was told of.
            let _ = thread.join();
        }
    }
}

fn read_all(jobs: &Receiver<ReadJob>, shared: &NodeShared) {
    while let Ok(ReadJob { shard, number, reads }) = jobs.recv() {
        reads.into_iter().for_each(|read| read());
        shared.inboxes[usize::from(shard.get())].send(InboxMessage::ReadAhead(number));
    }
}

fn commit_all(target: &dyn CommitTarget, jobs: &Receiver<CommitJob>, shared: &NodeShared) {
    // Those that found no space.
    let mut left: Vec<CommitJob> = Vec::new();
    loop {
        let is_short = !left.is_empty();
        let mut waiting = std::mem::take(&mut left);
        if waiting.is_empty() {
            let Ok(job) = jobs.recv() else { return };
            waiting.push(job);
        } else {
            std::thread::sleep(NO_SPACE_PAUSE);
            if shared.stop.is_asked() {
                return;
            }
        }
        let more = BATCHES_MAX.saturating_sub(waiting.len());
        waiting.extend(jobs.try_iter().take(more));
        left = match commit(target, waiting, (shared, is_short)) {
            Ok(left) => left,
            Err(error) => return shared.notice(NodeNotice::Fatal(error)),
        };
    }
}

/// Commits these together, or one by one when there is no space for all. Returns those for which
/// there was none. `is_short`: there was none for some of them before.
fn commit(
    target: &dyn CommitTarget,
    jobs: Vec<CommitJob>,
    (shared, is_short): (&NodeShared, bool),
) -> Result<Vec<CommitJob>> {
    let (cleared, jobs) = without_cleared(jobs);
    for (shard, place, position) in cleared {
        let message = InboxMessage::Committed(place, position);
        shared.inboxes[usize::from(shard.get())].send(message);
    }
    let (doings, batches): (Vec<_>, Vec<_>) =
        jobs.into_iter().map(|job| ((job.shard, job.position), job.batch)).unzip();
    let told = |index: usize, batch: &WriteBatch| {
        let (shard, position): (ShardId, _) = doings[index];
        let message = InboxMessage::Committed(batch.place, position);
        shared.inboxes[usize::from(shard.get())].send(message);
    };
    match commit_or_fault(target, &batches, shared) {
        Ok(()) => {
            shared.metrics.node().add(registry::TARGET_COMMITS, 1);
            shared.metrics.node().add(registry::TARGET_BATCHES, batches.len() as u64);
            batches.iter().enumerate().for_each(|(index, batch)| told(index, batch));
            return Ok(Vec::new());
        }
        Err(error) if error.kind() == ErrorKind::NoSpace => {
            if !is_short {
                tracing::warn!(%error, "commits wait for space");
            }
        }
        Err(error) => return Err(fatal(error)),
    }
    let mut left = Vec::new();
    for (index, batch) in batches.into_iter().enumerate() {
        match commit_or_fault(target, std::slice::from_ref(&batch), shared) {
            Ok(()) => told(index, &batch),
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                let (shard, position) = doings[index];
                left.push(CommitJob { shard, batch, position });
            }
            Err(error) => return Err(fatal(error)),
        }
    }
    Ok(left)
}

/// Commits, unless a fault is injected: a commit is one write.
fn commit_or_fault(
    target: &dyn CommitTarget,
    batches: &[WriteBatch],
    shared: &NodeShared,
) -> Result<()> {
    let len = batches.iter().map(WriteBatch::len).sum();
    let DiskVerdict { delay, fault } = shared.faults.disk(DiskOp::Write, len);
    if !delay.is_zero() {
        std::thread::sleep(delay);
    }
    let errno = match fault {
        // A commit has checksums: a wrong bit is found when it is read.
        None | Some(DiskFault::Rot { .. }) => return target.commit(batches),
        Some(DiskFault::Full) => Errno::NOSPC,
        Some(DiskFault::Error | DiskFault::Torn { .. }) => Errno::IO,
    };
    Err(Error::io("commit (injected)", errno))
}

/// A batch that is not made: the shard, the partition, and the position that comes with it.
type ClearedBatch = (ShardId, PlaceId, Option<Position>);

/// The batches that are to be made, and those that need not be, as a later one clears their
/// partition. Those must not be made after it, as one that found no space would be.
fn without_cleared(jobs: Vec<CommitJob>) -> (Vec<ClearedBatch>, Vec<CommitJob>) {
    let clears: Vec<_> =
        jobs.iter().map(|job| job.batch.clears.then_some(job.batch.place)).collect();
    let (mut cleared, mut left) = (Vec::new(), Vec::new());
    for (index, job) in jobs.into_iter().enumerate() {
        let CommitJob { shard, position, ref batch } = job;
        if clears[index + 1..].contains(&Some(batch.place)) {
            cleared.push((shard, batch.place, position));
        } else {
            left.push(job);
        }
    }
    (cleared, left)
}

/// Nobody knows what is there.
fn fatal(error: Error) -> Error {
    let words = "the node ends, so that nothing is told of it; started again it goes on from the last commit";
    error.context(format_args!("commit changes ({words})"))
}

#[cfg(test)]
mod tests {
    use samite_types::{DatasetId, PartitionId};

    use super::*;

    #[test]
    fn a_batch_without_space_does_not_come_behind_one_that_clears_its_partition() {
        let job = |partition, clears, position| CommitJob {
            shard: ShardId(0),
            batch: WriteBatch {
                place: (DatasetId(1), PartitionId(partition)),
                clears,
                rows: [].into(),
            },
            position,
        };
        let jobs = vec![
            job(1, true, Some(Position(4))),
            job(2, false, Some(Position(5))),
            job(1, true, None),
            job(1, false, Some(Position(6))),
        ];
        let (cleared, left) = without_cleared(jobs);
        let place = |partition| (DatasetId(1), PartitionId(partition));
        assert_eq!(cleared, [(ShardId(0), place(1), Some(Position(4)))]);
        let left: Vec<_> = left.iter().map(|job| (job.batch.place, job.position)).collect();
        let expected =
            [(place(2), Some(Position(5))), (place(1), None), (place(1), Some(Position(6)))];
        assert_eq!(left, expected);
    }
}
