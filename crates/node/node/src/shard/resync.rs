//! Resync as the shard does it: takes up the groups of a map, and sends the steps that the
//! [throttle](crate::resync_throttle) lets go.

use std::time::Duration;

use samite_metrics::registry;
use samite_placement::{ClusterMap, shard_of};
use samite_transport::server::ReplySink;
use samite_types::{Clock, SystemClock, TargetId};
use samite_wire::control::NodeReachability;

use super::ShardService;
use crate::resync_throttle::{ResyncTurn, unequal};

impl ShardService {
    /// Takes up the groups of `map`.
    pub(super) fn take_up_groups(&mut self, map: &ClusterMap, out: &mut ReplySink) {
        let now = SystemClock.monotonic();
        self.partitions.configure(map, now);
        self.shared.set_grouped(map);
        self.settle(out);
        let dropped = self.partitions.retain(map);
        self.refresh_durable(map, &dropped.moved);
        self.refresh_targets(map, dropped.cleared);
        for held in dropped.lost {
            self.withdraw(held, out);
        }
        self.channel.retain(map, out);
        let me = TargetId(self.shared.node.get());
        let shards = self.shared.shards();
        let is_mine = |partition| shard_of(partition, shards) == self.id;
        self.resync.take_up(unequal(map, me, is_mine));
        self.open_unequal(map, now);
        self.resync.look_soon(now);
        self.settle(out);
    }

    /// Opens the partitions that other members are to have from here.
    fn open_unequal(&mut self, map: &ClusterMap, now: Duration) {
        for (redundancy, partition, _) in self.resync.unequal() {
            for known in map.datasets().iter().filter(|known| known.spec.redundancy == *redundancy)
            {
                if let Some(slot) = self.partitions.dataset(map, known.id) {
                    // An obstacle is logged, and keeps the member from being reported up to date.
                    let _ = self.partitions.open(slot, *partition, (map, now));
                }
            }
        }
    }

    /// Reports members that are up to date and that the map does not call good yet: an earlier
    /// report may have been lost, or void.
    fn report_ready(&mut self, map: &ClusterMap) {
        for (redundancy, partition, target) in self.resync.unequal().to_vec() {
            let mut same =
                map.datasets().iter().filter(|known| known.spec.redundancy == redundancy);
            if let Some(known) = same.next() {
                self.report_synced((known.id, partition), target);
            }
        }
    }

    /// Does the work that is due on members that are not good.
    pub(super) fn throttle_resync(&mut self, out: &mut ReplySink) {
        let Some(due) = self.resync.next() else { return };
        let now = SystemClock.monotonic();
        if due > now {
            return;
        }
        self.find_unreachable(now);
        self.begin_resyncs(now);
        self.note_service(now);
        for _ in 0..self.resync.len() {
            if let Some(turn) = self.resync.take_turn(now) {
                self.send_step(&turn, now);
            }
            // Each leaves alone, so that it is read there while the next is made here.
            self.settle(out);
        }
    }

    /// Looks whether clients are served.
    pub(super) fn note_service(&mut self, now: Duration) {
        self.resync.note_requests(self.requests_served(), now);
    }

    /// Sends the next step of a partition, if its member still needs one.
    fn send_step(&mut self, turn: &ResyncTurn, now: Duration) {
        let Some(replica) = self.partitions.mark_ready(turn.id) else { return };
        if replica.member.resyncing().all(|target| target != turn.target) {
            return self.resync.ended(now);
        }
        let sent = replica.member.resync_step(turn.len_max, now);
        self.metrics().add(registry::RESYNC_BYTES, sent as u64);
        self.resync.sent(turn, sent, now);
    }

    /// Chooses partitions to begin with.
    fn begin_resyncs(&mut self, now: Duration) {
        if !self.resync.is_look_due(now) {
            return;
        }
        let Some(map) = self.map.clone() else { return };
        self.report_ready(&map);
        let wanting = self.partitions.resyncing();
        self.note_resyncs(wanting.len());
        let is_there = |target: TargetId| {
            let state = map.node_of_target(target).and_then(|node| map.state(node));
            state.is_some_and(|state| state.reachability != NodeReachability::Offline)
        };
        self.resync.looked(now, is_there);
        for (id, target) in wanting {
            if !is_there(target) || !self.resync.may_begin(id, target) {
                continue;
            }
            // A member that cannot be reached keeps no other waiting.
            let node = map.node_of_target(target);
            if node.is_some_and(|node| self.reaches(node, now)) {
                self.resync.begin(id, target);
            }
        }
    }

    /// Lets others see that so many `partitions` are to be brought up to date elsewhere.
    fn note_resyncs(&self, partitions: usize) {
        let lacking = self.partitions.lacking_room() as u64;
        self.metrics().set(registry::RESYNCS_WITHOUT_ROOM, lacking);
        let before = self.metrics().gauge(registry::RESYNCS);
        self.metrics().set(registry::RESYNCS, partitions as u64);
        match (before, partitions) {
            (0, partitions) if partitions > 0 => {
                tracing::info!(shard = %self.id, partitions, "brings members up to date");
            }
            (1.., 0) => tracing::info!(shard = %self.id, "has brought members up to date"),
            _ => {}
        }
    }

    /// Tries to reach nodes again to which the connection was lost, and says which cannot be.
    fn find_unreachable(&mut self, now: Duration) {
        for lost in self.resync.take_lost(now) {
            if !self.reaches(lost.node, now) && self.resync.is_unreachable(lost, now) {
                self.partitions.unreachable(TargetId(lost.node.get()), now);
            }
        }
    }
}
