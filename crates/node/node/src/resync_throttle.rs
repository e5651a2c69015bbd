//! Bringing members up to date beside the work of clients.
//!
//! For each member that needs it, some partitions at a time are brought up to date, step by step:
//! the next step of each is sent when its last is answered. While no client asks for anything,
//! several steps are under way, so that one is read here while others are on their way and written
//! there. While clients are served, here or there, one step is under way in all, a short one, and
//! three times the time that it took passes before the next: the client, this node and the other
//! one are three at work, and may have two cores.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Duration;

use samite_placement::{ClusterMap, shard_of};
use samite_transport::server::ReplySink;
use samite_types::{Clock, ErrorKind, NodeId, PartitionId, Redundancy, SystemClock, TargetId};
use samite_wire::control::{MemberConsistency, NodeReachability};

use crate::partitions::PlaceId;
use crate::shard::{ShardService, count};

/// Partitions at a time for each member: enough that some of their steps bring records, for which
/// there is work at both ends while others are only asked for their keys.
const ACTIVE_PER_MEMBER: usize = 12;
/// Bytes of a step: while clients are served, and when nobody is.
const STEP_LEN: (usize, usize) = (64 << 10, 512 << 10);
/// While clients are served, a step is followed by a pause of so many times the time that it took.
const PAUSES: u32 = 3;
/// Clients are served as long as a request has come within this time.
const QUIET: Duration = Duration::from_millis(20);
/// Time after which partitions that wait for something are looked at again.
const LOOK: Duration = Duration::from_millis(100);
/// A node to which there is no connection for so long cannot be reached.
const UNREACHABLE: Duration = Duration::from_millis(200);
/// Pause between two tries to reach it.
const TRY: Duration = Duration::from_millis(20);

/// A partition that is being brought up to date elsewhere.
#[derive(Debug)]
struct ActiveResync {
    id: PlaceId,
    target: TargetId,
    /// The last step was sent then, and waits for its answer.
    sent_at: Option<Duration>,
}

/// Whether clients are being served.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ClientActivity {
    /// Requests served when last looked at.
    requests: u64,
    /// They are taken to be served until then.
    until: Duration,
}

impl ClientActivity {
    /// `requests` were served so far.
    pub(crate) fn look(&mut self, requests: u64, now: Duration) {
        if std::mem::replace(&mut self.requests, requests) != requests {
            self.until = now + QUIET;
        }
    }

    /// Another node serves them, and needs this one for it.
    pub(crate) fn goes_on(&mut self, now: Duration) {
        self.until = now + QUIET;
    }

    /// Whether they are.
    pub(crate) fn is_on(&self, now: Duration) -> bool {
        now < self.until
    }
}

/// The shard's work on members that are not good.
#[derive(Debug, Default)]
pub(crate) struct ResyncThrottle {
    /// The member that is next in turn comes first.
    active: VecDeque<ActiveResync>,
    /// Groups of this shard that have members which the map does not call good.
    unequal: Vec<(Redundancy, PartitionId, TargetId)>,
    /// When to look for partitions to begin with; `None`: all are up to date.
    look_at: Option<Duration>,
    /// Clients of this shard.
    pub(crate) service: ClientActivity,
    /// Clients of a member that is brought up to date are served until then, as far as it has said.
    served_there: Duration,
    /// No step is sent before.
    resume_at: Duration,
    /// Nodes to which the connection was lost, since when, and when to look again.
    lost: Vec<(NodeId, Duration, Duration)>,
}

impl ResyncThrottle {
    /// When something is to be done.
    pub(crate) fn next(&self) -> Option<Duration> {
        let steps = self.active.iter().map(|active| self.due(active));
        steps.chain(self.look_at).chain(self.lost.iter().map(|(.., at)| *at)).min()
    }

    /// When a partition is to be looked at.
    fn due(&self, active: &ActiveResync) -> Duration {
        active.sent_at.map_or(self.resume_at, |sent_at| sent_at + LOOK)
    }

    /// Whether clients are served, here or there.
    fn is_polite(&self, now: Duration) -> bool {
        self.service.is_on(now) || now < self.served_there
    }

    /// A member has answered a step of this partition; `is_busy`: it serves clients.
    pub(crate) fn heard(&mut self, id: PlaceId, is_busy: bool, now: Duration) {
        if is_busy {
            self.served_there = now + QUIET;
        }
        let is_polite = self.is_polite(now);
        for active in self.active.iter_mut().filter(|active| active.id == id) {
            if let Some(sent_at) = active.sent_at.take() {
                let took = now.saturating_sub(sent_at);
                self.resume_at = if is_polite { now + PAUSES * took } else { now };
            }
        }
    }

    /// The connection to `node` is gone.
    pub(crate) fn lost(&mut self, node: NodeId, now: Duration) {
        self.lost.push((node, now, now));
    }
}

impl ShardService {
    /// Takes up the groups of `map`.
    pub(crate) fn take_up_groups(&mut self, map: &ClusterMap, out: &mut ReplySink) {
        let now = SystemClock.monotonic();
        self.partitions.configure(map, now);
        self.shared.set_grouped(map);
        self.settle(out);
        let dropped = self.partitions.retain(map);
        self.refresh_durable(map, &dropped.moved);
        for held in dropped.lost {
            self.withdraw(held, out);
        }
        for conn in self.peers.retain(map) {
            out.close(conn, ErrorKind::Unavailable, "not a node of the cluster");
        }
        let me = TargetId(self.shared.node.get());
        let shards = self.shared.shards();
        self.pace.unequal = unequal(map, me, |partition| shard_of(partition, shards) == self.id);
        self.open_unequal(map, now);
        if !self.pace.unequal.is_empty() {
            self.pace.look_at = Some(now);
        }
        self.settle(out);
    }

    /// Opens the partitions that other members are to have from here.
    fn open_unequal(&mut self, map: &ClusterMap, now: Duration) {
        for (redundancy, partition, _) in self.pace.unequal.clone() {
            for known in map.datasets().iter().filter(|known| known.spec.redundancy == redundancy) {
                if let Some(slot) = self.partitions.dataset(map, known.id) {
                    // An obstacle is logged, and keeps the member from being reported up to date.
                    let _ = self.partitions.open(slot, partition, (map, now));
                }
            }
        }
    }

    /// Reports members that are up to date and that the map does not call good yet: an earlier report may have been lost, or void.
    fn report_ready(&mut self, map: &ClusterMap) {
        for (redundancy, partition, target) in self.pace.unequal.clone() {
            let mut same =
                map.datasets().iter().filter(|known| known.spec.redundancy == redundancy);
            if let Some(known) = same.next() {
                self.report_synced((known.id, partition), target);
            }
        }
    }

    /// Does the work that is due on members that are not good.
    pub(crate) fn throttle_resync(&mut self, out: &mut ReplySink) {
        let Some(due) = self.pace.next() else { return };
        let now = SystemClock.monotonic();
        if due > now {
            return;
        }
        self.find_unreachable(now);
        self.begin_resyncs(now);
        self.note_service(now);
        for _ in 0..self.pace.active.len() {
            let Some(mut active) = self.pace.active.pop_front() else { break };
            if self.pace.due(&active) > now || self.send_step(&mut active, now) {
                self.pace.active.push_back(active);
            }
            // Each leaves alone, so that it is read there while the next is made here.
            self.settle(out);
        }
    }

    /// Looks whether clients are served.
    pub(crate) fn note_service(&mut self, now: Duration) {
        let requests = self.metrics().requests.load(Ordering::Relaxed);
        self.pace.service.look(requests, now);
    }

    /// Sends the next step of a partition, unless one is under way; `false`: it is done.
    fn send_step(&mut self, active: &mut ActiveResync, now: Duration) -> bool {
        let Some(place) = self.partitions.mark_ready(active.id) else { return false };
        if place.member.resyncing().all(|target| target != active.target) {
            self.pace.look_at = Some(now);
            return false;
        }
        let is_polite = self.pace.is_polite(now);
        let len_max = if is_polite { STEP_LEN.0 } else { STEP_LEN.1 };
        let sent = place.member.resync_step(len_max, now);
        count(&self.metrics().resync_bytes, sent as u64);
        active.sent_at = Some(now);
        if is_polite && sent > 0 {
            // Until its answer has come.
            self.pace.resume_at = now + LOOK;
        }
        true
    }

    /// Chooses partitions to begin with.
    fn begin_resyncs(&mut self, now: Duration) {
        if self.pace.look_at.is_none_or(|at| at > now) {
            return;
        }
        let Some(map) = self.map.clone() else { return };
        self.report_ready(&map);
        let wanting = self.partitions.resyncing();
        let lacking = self.partitions.lacking_room() as u64;
        self.metrics().resyncs_without_room.store(lacking, Ordering::Relaxed);
        let before = self.metrics().resyncs.swap(wanting.len() as u64, Ordering::Relaxed);
        match (before, wanting.len()) {
            (0, partitions) if partitions > 0 => {
                tracing::info!(shard = %self.id, partitions, "brings members up to date");
            }
            (1.., 0) => tracing::info!(shard = %self.id, "has brought members up to date"),
            _ => {}
        }
        // While a member's node is offline nothing changes for it, until a map says that it is there again.
        let is_there = |target: TargetId| {
            let state = map.node_of_target(target).and_then(|node| map.state(node));
            state.is_some_and(|state| state.reachability != NodeReachability::Offline)
        };
        let mut waited_for = self.pace.unequal.iter();
        let looks = waited_for.any(|(.., target)| is_there(*target));
        self.pace.look_at = looks.then_some(now + LOOK);
        self.pace.active.retain(|active| is_there(active.target));
        for (id, target) in wanting {
            let of_target = self.pace.active.iter().filter(|active| active.target == target);
            let known = self.pace.active.iter().any(|active| active.id == id);
            if known || !is_there(target) || of_target.count() >= ACTIVE_PER_MEMBER {
                continue;
            }
            // A member that cannot be reached keeps no other waiting.
            let node = map.node_of_target(target);
            if node.and_then(|node| self.way_to(node, now)).is_some() {
                self.pace.active.push_back(ActiveResync { id, target, sent_at: None });
            }
        }
    }

    /// Tries to reach nodes again to which the connection was lost, and says which cannot be.
    fn find_unreachable(&mut self, now: Duration) {
        for (node, since, at) in std::mem::take(&mut self.pace.lost) {
            if at > now {
                self.pace.lost.push((node, since, at));
            } else if self.way_to(node, now).is_none() {
                if now < since + UNREACHABLE {
                    self.pace.lost.push((node, since, now + TRY));
                } else {
                    self.partitions.unreachable(TargetId(node.get()), now);
                }
            }
        }
    }
}

/// Members that are not good in groups whose primary is `me`, of partitions that are `mine`.
fn unequal(
    map: &ClusterMap,
    me: TargetId,
    mine: impl Fn(PartitionId) -> bool,
) -> Vec<(Redundancy, PartitionId, TargetId)> {
    let mut all = Vec::new();
    for table in &map.data().tables {
        for (group, partition) in table.groups.iter().zip((0..).map(PartitionId)) {
            let leads = group.members.first().is_some_and(|first| first.target == me);
            if leads && mine(partition) {
                let members = group.members.iter();
                let others = members.filter(|member| member.consistency != MemberConsistency::Good);
                all.extend(others.map(|member| (table.redundancy, partition, member.target)));
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use samite_types::DatasetId;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn id(partition: u32) -> PlaceId {
        (DatasetId(1), PartitionId(partition))
    }

    /// Three partitions, each with a step that was sent at 0.
    fn three() -> ResyncThrottle {
        let active = |partition| ActiveResync {
            id: id(partition),
            target: TargetId(1),
            sent_at: Some(Duration::ZERO),
        };
        ResyncThrottle { active: (0..3).map(active).collect(), ..ResyncThrottle::default() }
    }

    #[test]
    fn without_clients_the_next_step_follows_at_once() {
        let mut pace = three();
        assert_eq!(pace.next(), Some(LOOK));
        pace.heard(id(1), false, 5 * MS);
        assert_eq!(pace.next(), Some(5 * MS));
    }

    #[test]
    fn with_clients_a_step_is_followed_by_a_pause() {
        for there in [false, true] {
            let mut pace = three();
            if !there {
                pace.service.look(1, 4 * MS);
            }
            pace.heard(id(1), there, 5 * MS);
            assert_eq!(pace.next(), Some(5 * MS + PAUSES * 5 * MS), "there: {there}");
        }
    }

    #[test]
    fn clients_count_for_a_while_after_their_last_request() {
        let mut service = ClientActivity::default();
        assert!(!service.is_on(Duration::ZERO));
        service.look(7, MS);
        service.look(7, 2 * MS);
        assert!(service.is_on(MS + QUIET - MS / 2) && !service.is_on(MS + QUIET));
        service.goes_on(60 * MS);
        assert!(service.is_on(61 * MS));
    }
}
