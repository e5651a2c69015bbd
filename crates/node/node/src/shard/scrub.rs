//! Scrubbing as the shard does it: steps through the records of its partitions, when the
//! [schedule](crate::scrub) says so, and the findings ([`MirroredPartition::scrub_step`]).
//!
//! [`MirroredPartition::scrub_step`]: samite_mirror::MirroredPartition::scrub_step

use std::time::Duration;

use samite_metrics::registry;
use samite_mirror::MirrorEffect;
use samite_mirror::durable::PlaceId;
use samite_placement::hash;
use samite_transport::server::ReplySink;
use samite_types::{Clock, DatasetId, SystemClock};
use samite_wire::control::ControlReply;

use super::ShardService;
use crate::inbox::ShardInbox;
use crate::scrub::ScrubPosition;

/// Bytes of a step.
const STEP_LEN: u64 = 256 << 10;

impl ShardService {
    /// Somebody asks for a walk through a dataset, or all.
    pub(super) fn scrub_asked(&self, dataset: Option<DatasetId>) -> ControlReply {
        let number = self.shared.wanted_scrub.ask(dataset);
        self.shared.inboxes.iter().for_each(ShardInbox::wake);
        ControlReply::Scrubbing { number }
    }

    /// A table of faults was set: memory is to be damaged as it says.
    pub(super) fn rot_asked(&self) {
        self.shared.wanted_scrub.ask_rot();
        self.shared.inboxes.iter().for_each(ShardInbox::wake);
    }

    /// Takes up the requests.
    pub(super) fn note_scrub(&mut self) {
        if !self.scrub.is_asked(&self.shared.wanted_scrub) {
            return;
        }
        let (now, requests) = (SystemClock.monotonic(), self.requests_served());
        if self.scrub.take_up(&self.shared.wanted_scrub, now, requests) {
            self.rot();
        }
    }

    /// Makes the next step, when its time has come.
    pub(super) fn keep_scrubbing(&mut self, out: &mut ReplySink) {
        let now = SystemClock.monotonic();
        let due = self.scrub.due(now, self.requests_served());
        if due.is_new_round && self.id.get() == 0 {
            self.arena.next_round();
        }
        let Some(position) = due.step else { return };
        match self.scrub_on(position, now) {
            Some(position) => {
                let times = (now, SystemClock.monotonic());
                self.scrub.stepped(position, times, self.requests_served());
            }
            None => {
                let asked = self.scrub.ended();
                self.note_damaged();
                self.metrics().add(registry::SCRUB_WALKS, 1);
                if let Some(number) = asked {
                    self.metrics().set(registry::SCRUB_DONE, number);
                }
            }
        }
        self.settle(out);
    }

    /// One step of a walk. Returns where the next begins; `None`: the walk has ended.
    fn scrub_on(&mut self, mut walk: ScrubPosition, now: Duration) -> Option<ScrubPosition> {
        if walk.place.is_none_or(|place| self.partitions.replica(place).is_none()) {
            walk.enter(self.partitions.place_after(walk.place, walk.dataset)?);
        }
        let Some((id, replica)) =
            walk.place.and_then(|id| Some((id, self.partitions.mark_ready(id)?)))
        else {
            return Some(walk);
        };
        let mut next = None;
        if !replica.member.is_led() {
            match replica.member.scrub_step(&walk.key, STEP_LEN, now) {
                Ok(step) => {
                    self.metrics().add(registry::SCRUB_RECORDS, step.records);
                    self.metrics().add(registry::SCRUB_BYTES, step.len);
                    next = step.next;
                }
                Err(error) => {
                    tracing::warn!(dataset = %id.0, partition = %id.1, %error, "scrub");
                }
            }
        }
        match next {
            Some(key) => walk.key = key,
            None => walk.enter(self.partitions.place_after(Some(id), walk.dataset)?),
        }
        Some(walk)
    }

    /// Reports the findings.
    pub(super) fn scrub_found(&self, (dataset, partition): PlaceId, found: &MirrorEffect) {
        let metrics = self.metrics();
        match found {
            MirrorEffect::Damaged { key } => {
                metrics.add(registry::SCRUB_DAMAGED, 1);
                let key = hash(key);
                tracing::warn!(%dataset, %partition, key, "a record is damaged in memory");
            }
            MirrorEffect::Mended { key } => {
                metrics.add(registry::SCRUB_REPAIRED, 1);
                tracing::warn!(%dataset, %partition, key = hash(key), "the record is right again");
            }
            MirrorEffect::Evened { .. } => {
                metrics.add(registry::SCRUB_EVENED, 1);
                tracing::warn!(%dataset, %partition, "members held different records; they have the primary's now");
            }
            _ => {}
        }
        self.note_damaged();
    }

    /// Lets others see how much is damaged.
    fn note_damaged(&self) {
        self.metrics().set(registry::SCRUB_LEFT, self.partitions.damaged());
    }

    /// Damages records in memory, as the table of faults says.
    fn rot(&mut self) {
        let mut after = None;
        let mut record = u64::from(self.id.get()) << 40;
        while let Some(id) = self.partitions.place_after(after, None) {
            after = Some(id);
            let Some(replica) = self.partitions.replica(id) else { continue };
            let partition = replica.member.partition_mut();
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
