//! Bringing members up to date beside the work of clients.
//!
//! For each member that needs it, a few partitions at a time are brought up to date, step by step: the next is sent when the last is answered. When
//! clients were served meanwhile, as much time passes before the next step as the last one took, here, on the way and there;
//! otherwise it follows at once.

use std::sync::atomic::Ordering;
use std::time::Duration;

use samite_placement::{ClusterMap, shard_of};
use samite_transport::server::Replies;
use samite_types::{Clock, ErrorKind, NodeId, PartitionId, Redundancy, SystemClock, TargetId};
use samite_wire::control::{Consistency, Reachability};

use crate::partitions::PlaceId;
use crate::shard::Shard;

/// Partitions at a time for each member: while one is read here, another is written there.
const ACTIVE_PER_MEMBER: usize = 2;
/// Bytes of a step: while clients are served, and when nobody is.
const STEP_LEN: (usize, usize) = (64 << 10, 256 << 10);
/// Time after which partitions that wait for something are looked at again.
const LOOK: Duration = Duration::from_millis(100);
/// A node to which there is no connection for so long cannot be reached.
const UNREACHABLE: Duration = Duration::from_millis(200);
/// Pause between two tries to reach it.
const TRY: Duration = Duration::from_millis(20);

/// A partition that is being brought up to date elsewhere.
#[derive(Debug)]
struct Active {
    id: PlaceId,
    target: TargetId,
    /// The last step was sent then, and waits for its answer.
    sent_at: Option<Duration>,
    /// The next step may be sent then.
    next_at: Duration,
}

/// What the shard does about members that are not good.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    active: Vec<Active>,
    /// Groups of this shard that have members which the map does not call good.
    unequal: Vec<(Redundancy, PartitionId, TargetId)>,
    /// When to look for partitions to begin with; `None`: all are up to date.
    look_at: Option<Duration>,
    /// Requests served when the last step was sent.
    requests: u64,
    /// Nodes to which the connection was lost, since when, and when to look again.
    lost: Vec<(NodeId, Duration, Duration)>,
}

impl Pace {
    /// When something is to be done.
    pub(crate) fn next(&self) -> Option<Duration> {
        let steps = self.active.iter().map(|active| match active.sent_at {
            Some(sent_at) => sent_at + LOOK,
            None => active.next_at,
        });
        steps.chain(self.look_at).chain(self.lost.iter().map(|(.., at)| *at)).min()
    }

    /// Something has come from a member for this partition; `requests` were served so far.
    pub(crate) fn heard(&mut self, id: PlaceId, requests: u64, now: Duration) {
        let is_busy = requests != self.requests;
        for active in self.active.iter_mut().filter(|active| active.id == id) {
            if let Some(sent_at) = active.sent_at.take() {
                let pause = if is_busy { now.saturating_sub(sent_at) } else { Duration::ZERO };
                active.next_at = now + pause;
            }
        }
    }

    /// The connection to `node` is gone.
    pub(crate) fn lost(&mut self, node: NodeId, now: Duration) {
        self.lost.push((node, now, now));
    }
}

impl Shard {
    /// Takes up what `map` says about groups.
    pub(crate) fn take_up_groups(&mut self, map: &ClusterMap, out: &mut Replies) {
        let now = SystemClock.monotonic();
        for client in self.partitions.configure(map, now) {
            self.inherited.inherit(client, now);
        }
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
                    // What stands in the way is logged, and keeps the member from being reported up to date.
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

    /// Does what is due about members that are not good.
    pub(crate) fn keep_pace(&mut self, out: &mut Replies) {
        let Some(due) = self.pace.next() else { return };
        let now = SystemClock.monotonic();
        if due > now {
            return;
        }
        self.find_unreachable(now);
        self.begin_resyncs(now);
        let requests = self.figures().requests.load(Ordering::Relaxed);
        let is_busy = std::mem::replace(&mut self.pace.requests, requests) != requests;
        let len = if is_busy { STEP_LEN.0 } else { STEP_LEN.1 };
        let mut active = std::mem::take(&mut self.pace.active);
        active.retain_mut(|active| {
            let is_due = active.sent_at.map_or(active.next_at, |sent_at| sent_at + LOOK) <= now;
            if !is_due {
                return true;
            }
            let Some(place) = self.partitions.stirred(active.id) else { return false };
            if place.member.resyncing().all(|target| target != active.target) {
                self.pace.look_at = Some(now);
                return false;
            }
            let sent = place.member.resync_step(len, now);
            let bytes = &self.figures().resync_bytes;
            bytes.store(bytes.load(Ordering::Relaxed) + sent as u64, Ordering::Relaxed);
            active.sent_at = Some(now);
            true
        });
        self.pace.active = active;
        self.settle(out);
    }

    /// Chooses partitions to begin with.
    fn begin_resyncs(&mut self, now: Duration) {
        if self.pace.look_at.is_none_or(|at| at > now) {
            return;
        }
        let Some(map) = self.map.clone() else { return };
        self.report_ready(&map);
        let wanting = self.partitions.resyncing();
        self.figures().resyncs.store(wanting.len() as u64, Ordering::Relaxed);
        // While a member's node is offline nothing changes for it, until a map says that it is there again.
        let is_there = |target: TargetId| {
            let state = map.node_of_target(target).and_then(|node| map.state(node));
            state.is_some_and(|state| state.reachability != Reachability::Offline)
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
            // Whoever cannot be reached keeps nobody else waiting.
            let node = map.node_of_target(target);
            if node.and_then(|node| self.way_to(node, now)).is_some() {
                self.pace.active.push(Active { id, target, sent_at: None, next_at: now });
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
                let others = members.filter(|member| member.consistency != Consistency::Good);
                all.extend(others.map(|member| (table.redundancy, partition, member.target)));
            }
        }
    }
    all
}
