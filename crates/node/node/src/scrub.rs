//! Scrubbing of all records of the node, in the background: is each still what was written, and do
//! the members of a group have the same?
//!
//! Each shard *walks* through its partitions, a step of some records at a time
//! ([`Mirrored::scrub_step`]), with pauses between the steps: they take a tenth of a thread at
//! most, and less while clients are served. A walk begins once in an interval, or on request, and
//! then with shorter pauses. A partition that follows another node's primary is looked at when that
//! one is.
//!
//! [`Mirrored::scrub_step`]: samite_mirror::MirroredPartition::scrub_step

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use samite_mirror::MirrorEffect;
use samite_placement::hash;
use samite_transport::server::ReplySink;
use samite_types::{Clock, DatasetId, SystemClock};
use samite_wire::control::ControlReply;

use crate::partitions::PlaceId;
use crate::shard::{ShardService, count};
use crate::shared::lock;

/// Bytes of a step.
const STEP_LEN: u64 = 256 << 10;
/// After a step passes its time so often, at least: when somebody waits for the walk, when nobody is served, when clients are.
const PAUSES: [(u32, Duration); 3] =
    [(1, Duration::ZERO), (9, Duration::from_millis(2)), (49, Duration::from_millis(20))];
/// A record that was read through the arena and found undamaged is looked at again when it is read
/// after this time.
const ROUND: Duration = Duration::from_secs(10);

/// The request to all shards.
#[derive(Debug)]
pub(crate) struct WantedScrub {
    /// Walks begin so often by themselves.
    interval: Option<Duration>,
    /// Number of the last walk that was asked for, and of which dataset.
    asked: AtomicU64,
    dataset: Mutex<Option<DatasetId>>,
    /// Times that memory was to be harmed.
    rots: AtomicU64,
}

impl WantedScrub {
    pub(crate) fn new(interval: Option<Duration>) -> Self {
        let (asked, rots) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { interval, asked, dataset: Mutex::new(None), rots }
    }
}

/// One walk under way.
#[derive(Debug)]
struct ScrubWalk {
    /// The number under which it was asked for.
    asked: Option<u64>,
    dataset: Option<DatasetId>,
    /// Where it is: partition, and the last key that was looked at.
    place: Option<PlaceId>,
    key: Box<[u8]>,
    next_at: Duration,
    /// Requests served when the last step was made.
    requests: u64,
}

/// Scrubbing by one shard.
#[derive(Debug, Default)]
pub(crate) struct ShardScrub {
    walk: Option<ScrubWalk>,
    /// When the next walk begins by itself.
    next_walk: Option<Duration>,
    next_round: Duration,
    /// The last walk that was asked for and taken up here.
    asked: u64,
    rots: u64,
}

impl ShardScrub {
    /// When something is to be done.
    pub(crate) fn next(&self) -> Option<Duration> {
        let step = self.walk.as_ref().map(|walk| walk.next_at);
        step.into_iter().chain(self.next_walk).chain([self.next_round]).min()
    }
}

impl ShardService {
    /// Somebody asks for a walk through a dataset, or all.
    pub(crate) fn scrub_asked(&self, dataset: Option<DatasetId>) -> ControlReply {
        let wanted = &self.shared.wanted_scrub;
        let number = {
            let mut of = wanted.dataset.lock().unwrap_or_else(PoisonError::into_inner);
            // A walk through all serves every client that asked before it has begun.
            *of = dataset;
            wanted.asked.fetch_add(1, Ordering::AcqRel) + 1
        };
        self.shared.inboxes.iter().for_each(crate::inbox::ShardInbox::wake);
        ControlReply::Scrubbing { number }
    }

    /// A table of faults was set: memory is to be harmed as it says.
    pub(crate) fn rot_asked(&self) {
        self.shared.wanted_scrub.rots.fetch_add(1, Ordering::AcqRel);
        self.shared.inboxes.iter().for_each(crate::inbox::ShardInbox::wake);
    }

    /// Takes up the requests.
    pub(crate) fn note_scrub(&mut self) {
        let asked = self.shared.wanted_scrub.asked.load(Ordering::Acquire);
        if asked > self.scrub.asked {
            self.scrub.asked = asked;
            let dataset = *lock(&self.shared.wanted_scrub.dataset);
            self.scrub.walk = Some(self.new_walk(Some(asked), dataset));
        }
        let rots = self.shared.wanted_scrub.rots.load(Ordering::Acquire);
        if rots > self.scrub.rots {
            self.scrub.rots = rots;
            self.rot();
        }
    }

    fn new_walk(&self, asked: Option<u64>, dataset: Option<DatasetId>) -> ScrubWalk {
        let requests = self.metrics().requests.load(Ordering::Relaxed);
        let next_at = SystemClock.monotonic();
        ScrubWalk { asked, dataset, place: None, key: Box::default(), next_at, requests }
    }

    /// Makes the next step, when its time has come.
    pub(crate) fn keep_scrubbing(&mut self, out: &mut ReplySink) {
        let now = SystemClock.monotonic();
        if self.scrub.next_round <= now {
            self.scrub.next_round = now + ROUND;
            if self.id.get() == 0 {
                self.arena.next_round();
            }
        }
        if let Some(interval) = self.shared.wanted_scrub.interval {
            let next = *self.scrub.next_walk.get_or_insert(now + interval);
            if next <= now {
                self.scrub.next_walk = Some(now + interval);
                if self.scrub.walk.is_none() {
                    self.scrub.walk = Some(self.new_walk(None, None));
                }
            }
        }
        let Some(mut walk) = self.scrub.walk.take_if(|walk| walk.next_at <= now) else { return };
        if self.scrub_on(&mut walk, now) {
            let requests = self.metrics().requests.load(Ordering::Relaxed);
            let is_busy = std::mem::replace(&mut walk.requests, requests) != requests;
            let pace = if walk.asked.is_some() { 0 } else { 1 + usize::from(is_busy) };
            let (times, least) = PAUSES[pace];
            let end = SystemClock.monotonic();
            walk.next_at = end + (end.saturating_sub(now) * times).max(least);
            self.scrub.walk = Some(walk);
        } else {
            self.note_damaged();
            let figures = &self.metrics().scrub;
            count(&figures.walks, 1);
            if let Some(number) = walk.asked {
                figures.done.store(number, Ordering::Relaxed);
            }
        }
        self.settle(out);
    }

    /// One step of a walk. Returns whether there is more.
    fn scrub_on(&mut self, walk: &mut ScrubWalk, now: Duration) -> bool {
        if walk.place.is_none_or(|place| self.partitions.place(place).is_none()) {
            let Some(next) = self.partitions.place_after(walk.place, walk.dataset) else {
                return false;
            };
            (walk.place, walk.key) = (Some(next), Box::default());
        }
        let Some((id, place)) =
            walk.place.and_then(|id| Some((id, self.partitions.mark_ready(id)?)))
        else {
            return true;
        };
        let mut next = None;
        if !place.member.is_led() {
            match place.member.scrub_step(&walk.key, STEP_LEN, now) {
                Ok(step) => {
                    let figures = &self.metrics().scrub;
                    count(&figures.records, step.records);
                    count(&figures.bytes, step.len);
                    next = step.next;
                }
                Err(error) => {
                    tracing::warn!(dataset = %id.0, partition = %id.1, %error, "scrub");
                }
            }
        }
        match next {
            Some(key) => walk.key = key,
            None => match self.partitions.place_after(Some(id), walk.dataset) {
                Some(next) => (walk.place, walk.key) = (Some(next), Box::default()),
                None => return false,
            },
        }
        true
    }

    /// Reports the findings.
    pub(crate) fn scrub_news(&mut self, (dataset, partition): PlaceId, news: &MirrorEffect) {
        let figures = &self.metrics().scrub;
        match news {
            MirrorEffect::Damaged { key } => {
                count(&figures.damaged, 1);
                let key = hash(key);
                tracing::warn!(%dataset, %partition, key, "a record is damaged in memory");
            }
            MirrorEffect::Mended { key } => {
                count(&figures.repaired, 1);
                tracing::warn!(%dataset, %partition, key = hash(key), "the record is right again");
            }
            MirrorEffect::Evened { .. } => {
                count(&figures.evened, 1);
                tracing::warn!(%dataset, %partition, "members held different records; they have the primary's now");
            }
            _ => {}
        }
        self.note_damaged();
    }

    /// Lets others see how much is damaged.
    fn note_damaged(&self) {
        self.metrics().scrub.left.store(self.partitions.damaged(), Ordering::Relaxed);
    }

    /// Damages records in memory, as the table of faults says.
    fn rot(&mut self) {
        let mut after = None;
        let mut record = u64::from(self.id.get()) << 40;
        while let Some(id) = self.partitions.place_after(after, None) {
            after = Some(id);
            let Some(place) = self.partitions.place(id) else { continue };
            let partition = place.member.partition_mut();
            let mut keys: Vec<(Box<[u8]>, u64)> = Vec::new();
            let visited = partition.visit_records(&[], &mut |key, meta| {
                record += 1;
                if let Some(random) = self.shared.faults.rot(record, u64::from(meta.len)) {
                    keys.push((key.into(), random));
                }
                std::ops::ControlFlow::Continue(())
            });
            debug_assert!(visited.is_ok());
            for (key, random) in keys {
                partition.rot(&key, random);
            }
        }
    }
}
