//! When the records of a node are scrubbed, in the background: is each still what was written, and
//! do the members of a group have the same?
//!
//! Each shard *walks* through its partitions, a step of some records at a time, with pauses between
//! the steps: they take a tenth of a thread at most, and less while clients are served. A walk
//! begins once in an interval, or on request, and then with shorter pauses. A partition that
//! follows another node's primary is looked at when that one is. This is the schedule, which is
//! given the time; the shard makes the steps (`shard/scrub.rs`).

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use samite_mirror::durable::PlaceId;
use samite_types::DatasetId;

use crate::mutex::lock;

/// After a step passes its time so often, at least: when somebody waits for the walk, when nobody
/// is served, when clients are.
const PAUSES: [(u32, Duration); 3] =
    [(1, Duration::ZERO), (9, Duration::from_millis(2)), (49, Duration::from_millis(20))];
/// A record that was read through the arena and found undamaged is looked at again when it is read
/// after this time.
const ROUND: Duration = Duration::from_secs(10);

/// The request to all shards.
#[derive(Debug, Default)]
pub(crate) struct WantedScrub {
    /// Number of the last walk that was asked for, and of which dataset.
    asked: AtomicU64,
    dataset: Mutex<Option<DatasetId>>,
    /// Times that memory was to be damaged on purpose.
    rots: AtomicU64,
}

impl WantedScrub {
    /// Asks for a walk through a dataset, or all. Returns its number.
    pub(crate) fn ask(&self, dataset: Option<DatasetId>) -> u64 {
        let mut of = lock(&self.dataset);
        // A walk through all serves every client that asked before it has begun.
        *of = dataset;
        self.asked.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// The newest walk that was asked for, if that is another one than `known`.
    fn newer(&self, known: u64) -> Option<(u64, Option<DatasetId>)> {
        let asked = self.asked.load(Ordering::Acquire);
        (asked > known).then(|| (asked, *lock(&self.dataset)))
    }

    /// Memory is to be damaged as the table of faults says.
    pub(crate) fn ask_rot(&self) {
        self.rots.fetch_add(1, Ordering::AcqRel);
    }
}

/// Where a walk is.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ScrubPosition {
    /// The only dataset that it goes through; `None`: all.
    pub dataset: Option<DatasetId>,
    /// The partition; `None`: it has not begun.
    pub place: Option<PlaceId>,
    /// The last key there that was looked at; empty: none.
    pub key: Box<[u8]>,
}

impl ScrubPosition {
    /// The walk comes to a partition.
    pub(crate) fn enter(&mut self, place: PlaceId) {
        (self.place, self.key) = (Some(place), Box::default());
    }
}

/// One walk under way.
#[derive(Debug)]
struct ScrubWalk {
    /// The number under which it was asked for.
    asked: Option<u64>,
    position: ScrubPosition,
    next_at: Duration,
    /// Requests served when the last step was made.
    requests: u64,
}

/// Work that has become due.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct DueScrub {
    /// Records that were read through the arena are to be looked at again when they are read.
    pub is_new_round: bool,
    /// The next step of the walk, for [`ScrubSchedule::stepped`] or [`ScrubSchedule::ended`].
    pub step: Option<ScrubPosition>,
}

/// Scrubbing by one shard.
#[derive(Debug)]
pub(crate) struct ScrubSchedule {
    /// Walks begin so often by themselves.
    interval: Option<Duration>,
    walk: Option<ScrubWalk>,
    /// When the next walk begins by itself.
    next_walk: Option<Duration>,
    next_round: Duration,
    /// The last walk that was asked for and taken up here.
    asked: u64,
    rots: u64,
}

impl ScrubSchedule {
    /// `interval`: how often walks begin by themselves, if they do.
    pub(crate) const fn new(interval: Option<Duration>) -> Self {
        let (walk, next_walk, next_round) = (None, None, Duration::ZERO);
        Self { interval, walk, next_walk, next_round, asked: 0, rots: 0 }
    }

    /// When something is to be done.
    pub(crate) fn next(&self) -> Option<Duration> {
        let step = self.walk.as_ref().map(|walk| walk.next_at);
        step.into_iter().chain(self.next_walk).chain([self.next_round]).min()
    }

    /// Whether there are requests that were not taken up.
    pub(crate) fn is_asked(&self, wanted: &WantedScrub) -> bool {
        wanted.asked.load(Ordering::Acquire) > self.asked
            || wanted.rots.load(Ordering::Acquire) > self.rots
    }

    /// Takes up the requests; `requests` of clients were served so far. Returns whether memory is
    /// to be damaged now.
    pub(crate) fn take_up(&mut self, wanted: &WantedScrub, now: Duration, requests: u64) -> bool {
        if let Some((asked, dataset)) = wanted.newer(self.asked) {
            self.asked = asked;
            self.begin(Some(asked), dataset, now, requests);
        }
        let rots = wanted.rots.load(Ordering::Acquire);
        let is_rot_asked = rots > self.rots;
        self.rots = rots;
        is_rot_asked
    }

    fn begin(
        &mut self,
        asked: Option<u64>,
        dataset: Option<DatasetId>,
        now: Duration,
        requests: u64,
    ) {
        let position = ScrubPosition { dataset, ..ScrubPosition::default() };
        self.walk = Some(ScrubWalk { asked, position, next_at: now, requests });
    }

    /// What has become due by `now`.
    pub(crate) fn due(&mut self, now: Duration, requests: u64) -> DueScrub {
        let is_new_round = self.next_round <= now;
        if is_new_round {
            self.next_round = now + ROUND;
        }
        if let Some(interval) = self.interval {
            let next = *self.next_walk.get_or_insert(now + interval);
            if next <= now {
                self.next_walk = Some(now + interval);
                if self.walk.is_none() {
                    self.begin(None, None, now, requests);
                }
            }
        }
        let walk = self.walk.as_mut().filter(|walk| walk.next_at <= now);
        DueScrub { is_new_round, step: walk.map(|walk| std::mem::take(&mut walk.position)) }
    }

    /// The step that was due has led to this position; it took from the first to the second time.
    pub(crate) fn stepped(
        &mut self,
        position: ScrubPosition,
        (begun, end): (Duration, Duration),
        requests: u64,
    ) {
        let Some(walk) = &mut self.walk else { return };
        let is_busy = std::mem::replace(&mut walk.requests, requests) != requests;
        let pause = if walk.asked.is_some() { 0 } else { 1 + usize::from(is_busy) };
        let (times, least) = PAUSES[pause];
        walk.next_at = end + (end.saturating_sub(begun) * times).max(least);
        walk.position = position;
    }

    /// The step that was due was the last of the walk. Returns the number under which that was
    /// asked for, if it was.
    pub(crate) fn ended(&mut self) -> Option<u64> {
        self.walk.take().and_then(|walk| walk.asked)
    }
}

#[cfg(test)]
mod tests {
    use samite_types::PartitionId;

    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const PLACE: PlaceId = (DatasetId(1), PartitionId(2));

    /// Makes a step of 1 ms at `at`. Returns the pause after it.
    fn step(schedule: &mut ScrubSchedule, at: Duration, requests: u64) -> Duration {
        let mut position = schedule.due(at, requests).step.expect("a step is due");
        position.enter(PLACE);
        schedule.stepped(position, (at, at + MS), requests);
        schedule.next().map_or(Duration::ZERO, |next| next - at - MS)
    }

    #[test]
    fn walks_begin_by_themselves_once_in_an_interval() {
        let mut schedule = ScrubSchedule::new(Some(4 * MS));
        assert_eq!(schedule.next(), Some(Duration::ZERO));
        assert_eq!(schedule.due(MS, 0), DueScrub { is_new_round: true, step: None });
        assert_eq!(schedule.next(), Some(5 * MS));
        assert_eq!(schedule.due(4 * MS, 0), DueScrub::default());
        let begun = DueScrub { is_new_round: false, step: Some(ScrubPosition::default()) };
        assert_eq!(schedule.due(5 * MS, 0), begun);
        assert_eq!(schedule.ended(), None, "nobody has asked for it");
        assert_eq!(schedule.next(), Some(9 * MS));
        assert_eq!(ScrubSchedule::new(None).due(MS, 0).step, None);
    }

    #[test]
    fn pauses_are_long_while_clients_are_served_and_short_for_who_asks() {
        let mut schedule = ScrubSchedule::new(None);
        schedule.begin(None, None, MS, 0);
        assert_eq!(step(&mut schedule, MS, 0), 9 * MS);
        assert_eq!(step(&mut schedule, 11 * MS, 5), 49 * MS);
        let wanted = WantedScrub::default();
        assert_eq!(wanted.ask(Some(DatasetId(1))), 1);
        assert_eq!(wanted.ask(Some(DatasetId(7))), 2);
        assert!(!schedule.take_up(&wanted, 70 * MS, 5));
        assert_eq!(step(&mut schedule, 70 * MS, 9), MS);
        let position = schedule.due(80 * MS, 9).step.expect("it goes on");
        assert_eq!((position.dataset, position.place), (Some(DatasetId(7)), Some(PLACE)));
        assert_eq!(schedule.ended(), Some(2));
        assert!(!schedule.take_up(&wanted, 90 * MS, 9));
        assert_eq!(schedule.due(90 * MS, 9).step, None, "each request is taken up once");
    }

    #[test]
    fn memory_is_damaged_once_for_each_time_that_it_was_asked_for() {
        let (mut schedule, wanted) = (ScrubSchedule::new(None), WantedScrub::default());
        assert!(!schedule.take_up(&wanted, MS, 0));
        wanted.ask_rot();
        assert!(schedule.take_up(&wanted, MS, 0) && !schedule.take_up(&wanted, MS, 0));
    }
}
