//! A node's target that remembers: the real store over an ordered map, with commits as the node's
//! thread makes them, by one hand.
//!
//! The time of a commit passes; a node that dies in the midst of it has made all of it or nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use samite_backend::failing::{CallFailure, FailingBackend, FailingMap};
use samite_backend::memory_rows::MemoryRows;
use samite_backend::ordered::OrderedTarget;
use samite_backend::{Backend, CommitTarget, WriteBatch};
use samite_mirror::MirroredPartition;
use samite_types::{ErrorKind, Position, Result};

use super::{CAPACITY_AMPLE, SimNode, SlotId};
use crate::process::ProcessContext;
use crate::rng::SimRng;
use crate::rules::{BrokenRule, RunRules};

/// After so long a batch that found no space is tried again.
const NO_SPACE_PAUSE: Duration = Duration::from_millis(200);

/// Changes of a partition, on their way to the target.
struct SimCommitJob {
    batch: WriteBatch,
    /// Entries up to here are committed with it.
    position: Option<Position>,
}

/// A target that remembers.
pub(super) struct SimTarget {
    target: Arc<OrderedTarget>,
    latency_us: u64,
    rules: RunRules,
    /// Those that come with the next commit, and before when it does not begin.
    waiting: Vec<SimCommitJob>,
    paused_until: Duration,
    /// A commit that is made at that time.
    committing: Option<(Duration, Vec<SimCommitJob>)>,
    /// Partitions that are being cleared, and how many batches of each are under way.
    clearings: BTreeMap<SlotId, u32>,
    /// The partitions that a restart has left, until a map says which are to be opened.
    stored: Vec<SlotId>,
}

impl SimTarget {
    /// Opens the target that has its rows in `rows`; the handle opens partitions.
    pub(super) fn open(
        rows: &Arc<MemoryRows>,
        latency_us: u64,
        (failure, commits_first): (&CallFailure, bool),
        rules: RunRules,
    ) -> Result<(Self, Box<dyn Backend>)> {
        let rows: Arc<MemoryRows> = Arc::clone(rows);
        let map = FailingMap::new(rows, failure.clone(), commits_first);
        let target = OrderedTarget::open(Arc::new(map), CAPACITY_AMPLE)?;
        let stored = target.stored()?;
        let backend = FailingBackend::new(Box::new(target.backend()), failure.clone());
        let opened = Self {
            target,
            latency_us,
            rules,
            waiting: Vec::new(),
            paused_until: Duration::ZERO,
            committing: None,
            clearings: BTreeMap::new(),
            stored,
        };
        Ok((opened, Box::new(backend)))
    }

    /// The partitions that a restart has left; none the next time.
    pub(super) fn take_stored(&mut self) -> Vec<SlotId> {
        std::mem::take(&mut self.stored)
    }

    /// Whether a partition is being cleared, and may not be opened.
    pub(super) fn clears(&self, id: SlotId) -> bool {
        self.clearings.contains_key(&id)
    }

    /// A partition is not this node's any more; `before` batches of it are under way.
    pub(super) fn clear(&mut self, id: SlotId, before: u32) {
        self.clearings.insert(id, before + 1);
        let batch = WriteBatch { place: id, clears: true, rows: [].into() };
        self.waiting.push(SimCommitJob { batch, position: None });
    }

    /// A batch is committed. Whether it is of a partition that is, or was until now, being cleared.
    fn note_cleared(&mut self, id: SlotId) -> bool {
        let Some(under_way) = self.clearings.get_mut(&id) else { return false };
        *under_way -= 1;
        if *under_way == 0 {
            self.clearings.remove(&id);
        }
        true
    }

    /// Takes what is to be committed next of a partition.
    fn take_next(&mut self, member: &mut MirroredPartition) {
        let Some(commit) = member.next_commit() else { return };
        if self.rules.breaks(BrokenRule::EarlyCommit)
            && let Some(position) = commit.position
        {
            member.logged(position);
        }
        self.waiting.push(SimCommitJob { batch: commit.batch, position: commit.position });
    }

    /// Makes the commit that is due, and begins the next one. Returns the batches that are
    /// committed.
    ///
    /// # Errors
    /// Errors of the target: nobody knows what is there.
    fn step(&mut self, now: Duration, rng: &mut SimRng) -> Result<Vec<(SlotId, Option<Position>)>> {
        let mut done = Vec::new();
        if let Some((_, jobs)) = self.committing.take_if(|(until, _)| *until <= now) {
            let (cleared, jobs) = without_cleared(jobs);
            done.extend(cleared.into_iter().map(|job| (job.batch.place, job.position)));
            let batches: Vec<_> = jobs.iter().map(|job| job.batch.clone()).collect();
            let all = Self::made(self.target.commit(&batches))?;
            let mut left = Vec::new();
            for job in jobs {
                // Together, or one by one when there is no space for all.
                if all || Self::made(self.target.commit(std::slice::from_ref(&job.batch)))? {
                    done.push((job.batch.place, job.position));
                } else {
                    self.paused_until = now + NO_SPACE_PAUSE;
                    left.push(job);
                }
            }
            // Before those that have come meanwhile.
            self.waiting.splice(0..0, left);
        }
        if self.committing.is_none() && !self.waiting.is_empty() && now >= self.paused_until {
            let until = now + rng.micros(self.latency_us / 10, self.latency_us);
            self.committing = Some((until, std::mem::take(&mut self.waiting)));
        }
        Ok(done)
    }

    /// Whether a commit was made; else there was no space for it.
    fn made(committed: Result<()>) -> Result<bool> {
        match committed {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NoSpace => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// When there is something to do.
    fn next_step(&self) -> Option<Duration> {
        let under_way = self.committing.as_ref().map(|(until, _)| *until);
        under_way.or((!self.waiting.is_empty()).then_some(self.paused_until))
    }

    /// The node dies. The commit under way is made, or not.
    pub(super) fn die(&mut self, rng: &mut SimRng) {
        let Some((_, jobs)) = self.committing.take_if(|_| rng.chance(500)) else { return };
        let batch = |job: &SimCommitJob| match self.rules.breaks(BrokenRule::StateAlone) {
            // The state is in the first row.
            true => WriteBatch {
                rows: job.batch.rows[..job.batch.rows.len().min(1)].into(),
                ..job.batch
            },
            false => job.batch.clone(),
        };
        // Whatever its result, no process hears it.
        let _ = self.target.commit(&jobs.iter().map(batch).collect::<Vec<_>>());
    }
}

/// The batches that need not be made, as a later one clears their partition, and the others. There
/// may be no space for the former, and they must not be made after it.
fn without_cleared(jobs: Vec<SimCommitJob>) -> (Vec<SimCommitJob>, Vec<SimCommitJob>) {
    let clears: Vec<_> =
        jobs.iter().map(|job| job.batch.clears.then_some(job.batch.place)).collect();
    let mut index = 0;
    jobs.into_iter().partition(|job| {
        index += 1;
        clears[index..].contains(&Some(job.batch.place))
    })
}

impl SimNode {
    /// Lets the target do its work, and tells partitions what is committed. A store that has failed
    /// in the midst of a change, or at a commit, ends the node.
    pub(super) fn step_target(&mut self, context: &mut ProcessContext<'_>) {
        let failed = self.slots.values().find(|slot| slot.mirrored.failed().is_some());
        if let Some(slot) = failed {
            let words = format!("{:?}: its store failed in the midst of a change", slot.mirrored);
            return context.stop(&words);
        }
        let Some(target) = &mut self.target else { return };
        for slot in self.slots.values_mut() {
            target.take_next(&mut slot.mirrored);
        }
        let done = match target.step(context.now, context.rng) {
            Ok(done) => done,
            Err(error) => return context.stop(&format!("commit changes: {error}")),
        };
        for (id, position) in done {
            let cleared = self.target.as_mut().is_some_and(|target| target.note_cleared(id));
            if let Some(slot) = self.slots.get_mut(&id).filter(|_| !cleared) {
                slot.mirrored.committed_upto(position);
                self.carry_out(id, context);
            }
        }
    }

    /// When the target has something to do.
    pub(super) fn next_target_step(&self) -> Option<Duration> {
        self.target.as_ref().and_then(SimTarget::next_step)
    }
}
