//! Bringing members up to date beside the work of clients.
//!
//! For each member that needs it, some partitions at a time are brought up to date, step by step:
//! the next step of each is sent when its last is answered. While no client asks for anything,
//! several steps are under way, so that one is read here while others are on their way and written
//! there. While clients are served, here or there, one step is under way in all, a short one, and
//! three times the time that it took passes before the next: the client, this node and the other
//! one are three at work, and may have two cores. Here is decided what is to be sent when, by times
//! and counts that are passed in; the shard sends it (`shard/resync.rs`).

use std::collections::VecDeque;
use std::time::Duration;

use samite_mirror::durable::PlaceId;
use samite_placement::ClusterMap;
use samite_types::{NodeId, PartitionId, Redundancy, TargetId};
use samite_wire::control::MemberConsistency;

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

/// The turn of a partition whose next step is due, for [`ResyncThrottle::sent`] unless it is done.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ResyncTurn {
    pub id: PlaceId,
    /// The member that is brought up to date.
    pub target: TargetId,
    /// Most bytes of the step.
    pub len_max: usize,
}

/// A node to which the connection was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LostNode {
    pub node: NodeId,
    since: Duration,
    /// When it is tried next.
    at: Duration,
}

/// A member that is not good in a group whose primary is here.
pub(crate) type UnequalMember = (Redundancy, PartitionId, TargetId);

/// Whether clients are being served.
#[derive(Clone, Copy, Debug, Default)]
struct ClientActivity {
    /// Requests served when last looked at.
    requests: u64,
    /// They are taken to be served until then.
    until: Duration,
}

impl ClientActivity {
    /// `requests` were served so far.
    fn look(&mut self, requests: u64, now: Duration) {
        if std::mem::replace(&mut self.requests, requests) != requests {
            self.until = now + QUIET;
        }
    }

    /// Another node serves them, and needs this one for it.
    fn goes_on(&mut self, now: Duration) {
        self.until = now + QUIET;
    }

    /// Whether they are.
    fn is_on(&self, now: Duration) -> bool {
        now < self.until
    }
}

/// The shard's work on members that are not good.
#[derive(Debug, Default)]
pub(crate) struct ResyncThrottle {
    /// The member that is next in turn comes first.
    active: VecDeque<ActiveResync>,
    /// Groups of this shard that have members which the map does not call good.
    unequal: Vec<UnequalMember>,
    /// When to look for partitions to begin with; `None`: all are up to date.
    look_at: Option<Duration>,
    /// Clients of this shard.
    service: ClientActivity,
    /// Clients of a member that is brought up to date are served until then, as far as it has said.
    served_there: Duration,
    /// No step is sent before.
    resume_at: Duration,
    lost: Vec<LostNode>,
}

impl ResyncThrottle {
    /// When something is to be done.
    pub(crate) fn next(&self) -> Option<Duration> {
        let steps = self.active.iter().map(|active| self.due(active));
        steps.chain(self.look_at).chain(self.lost.iter().map(|lost| lost.at)).min()
    }

    /// When a partition is to be looked at.
    fn due(&self, active: &ActiveResync) -> Duration {
        active.sent_at.map_or(self.resume_at, |sent_at| sent_at + LOOK)
    }

    /// Whether clients are served, here or there.
    fn is_throttled(&self, now: Duration) -> bool {
        self.service.is_on(now) || now < self.served_there
    }

    /// A member has answered a step of this partition; `is_busy`: it serves clients.
    pub(crate) fn heard(&mut self, id: PlaceId, is_busy: bool, now: Duration) {
        if is_busy {
            self.served_there = now + QUIET;
        }
        let is_throttled = self.is_throttled(now);
        for active in self.active.iter_mut().filter(|active| active.id == id) {
            if let Some(sent_at) = active.sent_at.take() {
                let took = now.saturating_sub(sent_at);
                self.resume_at = if is_throttled { now + PAUSES * took } else { now };
            }
        }
    }

    /// So many `requests` of clients were served so far.
    pub(crate) fn note_requests(&mut self, requests: u64, now: Duration) {
        self.service.look(requests, now);
    }

    /// Another node serves clients, and needs this one for it.
    pub(crate) fn note_entry(&mut self, now: Duration) {
        self.service.goes_on(now);
    }

    /// Whether clients are served here.
    pub(crate) fn serves_clients(&self, now: Duration) -> bool {
        self.service.is_on(now)
    }

    /// There is a new map: these members are not good by it.
    pub(crate) fn take_up(&mut self, unequal: Vec<UnequalMember>) {
        self.unequal = unequal;
    }

    /// Members that the map does not call good.
    pub(crate) fn unequal(&self) -> &[UnequalMember] {
        &self.unequal
    }

    /// Has partitions looked for, if there are members that are not good.
    pub(crate) fn look_soon(&mut self, now: Duration) {
        if !self.unequal.is_empty() {
            self.look_at = Some(now);
        }
    }

    /// Whether partitions are to be looked for now.
    pub(crate) fn is_look_due(&self, now: Duration) -> bool {
        self.look_at.is_some_and(|at| at <= now)
    }

    /// Partitions are being looked for. `is_there`: whether a member's node is not offline; while
    /// it is, nothing changes for the member, until a map says that it is there again.
    pub(crate) fn looked(&mut self, now: Duration, is_there: impl Fn(TargetId) -> bool) {
        let looks = self.unequal.iter().any(|(.., target)| is_there(*target));
        self.look_at = looks.then_some(now + LOOK);
        self.active.retain(|active| is_there(active.target));
    }

    /// Whether a partition may be begun with for a member.
    pub(crate) fn may_begin(&self, id: PlaceId, target: TargetId) -> bool {
        let of_target = self.active.iter().filter(|active| active.target == target);
        let is_known = self.active.iter().any(|active| active.id == id);
        !is_known && of_target.count() < ACTIVE_PER_MEMBER
    }

    /// Begins with a partition.
    pub(crate) fn begin(&mut self, id: PlaceId, target: TargetId) {
        self.active.push_back(ActiveResync { id, target, sent_at: None });
    }

    /// Partitions that are being brought up to date.
    pub(crate) fn len(&self) -> usize {
        self.active.len()
    }

    /// Passes the turn on to the next partition, and takes that if its step is due.
    pub(crate) fn take_turn(&mut self, now: Duration) -> Option<ResyncTurn> {
        let active = self.active.pop_front()?;
        if self.due(&active) > now {
            self.active.push_back(active);
            return None;
        }
        let ActiveResync { id, target, .. } = active;
        let len_max = if self.is_throttled(now) { STEP_LEN.0 } else { STEP_LEN.1 };
        Some(ResyncTurn { id, target, len_max })
    }

    /// A step of `len` bytes was sent.
    pub(crate) fn sent(&mut self, turn: &ResyncTurn, len: usize, now: Duration) {
        let ResyncTurn { id, target, .. } = *turn;
        self.active.push_back(ActiveResync { id, target, sent_at: Some(now) });
        if self.is_throttled(now) && len > 0 {
            // Until its answer has come.
            self.resume_at = now + LOOK;
        }
    }

    /// A member has everything of a partition: there may be another one to begin with.
    pub(crate) const fn ended(&mut self, now: Duration) {
        self.look_at = Some(now);
    }

    /// The connection to `node` is gone.
    pub(crate) fn lost(&mut self, node: NodeId, now: Duration) {
        self.lost.push(LostNode { node, since: now, at: now });
    }

    /// Takes the lost nodes that are to be tried now.
    pub(crate) fn take_lost(&mut self, now: Duration) -> Vec<LostNode> {
        self.lost.extract_if(.., |lost| lost.at <= now).collect()
    }

    /// There is still no connection to a node. Whether it cannot be reached; else it is tried
    /// again.
    pub(crate) fn is_unreachable(&mut self, lost: LostNode, now: Duration) -> bool {
        let is_over = now >= lost.since + UNREACHABLE;
        if !is_over {
            self.lost.push(LostNode { at: now + TRY, ..lost });
        }
        is_over
    }
}

/// Members that are not good in groups whose primary is `me`, of partitions that are `mine`.
pub(crate) fn unequal(
    map: &ClusterMap,
    me: TargetId,
    mine: impl Fn(PartitionId) -> bool,
) -> Vec<UnequalMember> {
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
        let mut resync = three();
        assert_eq!(resync.next(), Some(LOOK));
        resync.heard(id(1), false, 5 * MS);
        assert_eq!(resync.next(), Some(5 * MS));
    }

    #[test]
    fn with_clients_a_step_is_followed_by_a_pause() {
        for there in [false, true] {
            let mut resync = three();
            if !there {
                resync.service.look(1, 4 * MS);
            }
            resync.heard(id(1), there, 5 * MS);
            assert_eq!(resync.next(), Some(5 * MS + PAUSES * 5 * MS), "there: {there}");
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

    #[test]
    fn partitions_take_turns_and_a_step_without_an_answer_is_due_again() {
        let mut resync = ResyncThrottle::default();
        (0..2).for_each(|partition| resync.begin(id(partition), TargetId(1)));
        let turn = resync.take_turn(MS).expect("it was never sent");
        assert_eq!((turn.id, turn.len_max), (id(0), STEP_LEN.1));
        resync.sent(&turn, 9, MS);
        let second = resync.take_turn(MS).expect("nor was this");
        assert_eq!(second.id, id(1), "the next in turn");
        resync.ended(MS);
        assert!(resync.is_look_due(MS));
        assert_eq!((resync.len(), resync.take_turn(MS)), (1, None), "the first waits");
        assert_eq!(resync.take_turn(MS + LOOK).map(|turn| turn.id), Some(id(0)));
    }

    #[test]
    fn with_clients_one_short_step_is_under_way() {
        let mut resync = ResyncThrottle::default();
        (0..2).for_each(|partition| resync.begin(id(partition), TargetId(1)));
        resync.note_entry(MS);
        let turn = resync.take_turn(MS).expect("it was never sent");
        assert_eq!(turn.len_max, STEP_LEN.0);
        resync.sent(&turn, 9, MS);
        assert_eq!(resync.take_turn(MS), None, "until the answer has come");
    }

    #[test]
    fn members_share_what_is_begun_and_those_offline_wait_for_a_map() {
        let mut resync = ResyncThrottle::default();
        let member = |target| (Redundancy(2), PartitionId(0), TargetId(target));
        resync.look_soon(MS);
        assert!(!resync.is_look_due(MS), "all are good");
        resync.take_up(vec![member(1), member(2)]);
        resync.look_soon(MS);
        assert!(resync.is_look_due(MS));
        for partition in 0..ACTIVE_PER_MEMBER as u32 {
            assert!(resync.may_begin(id(partition), TargetId(1)));
            resync.begin(id(partition), TargetId(1));
        }
        assert!(!resync.may_begin(id(99), TargetId(1)) && resync.may_begin(id(99), TargetId(2)));
        assert!(!resync.may_begin(id(0), TargetId(2)), "one member at a time");
        resync.looked(MS, |target| target == TargetId(2));
        assert_eq!((resync.len(), resync.next()), (0, Some(MS + LOOK)));
        resync.looked(MS, |_| false);
        assert_eq!(resync.next(), None);
    }

    #[test]
    fn a_lost_node_is_tried_for_a_while_and_then_cannot_be_reached() {
        let mut resync = ResyncThrottle::default();
        resync.lost(NodeId(4), MS);
        let lost = resync.take_lost(MS);
        assert_eq!((lost.len(), lost[0].node), (1, NodeId(4)));
        assert!(!resync.is_unreachable(lost[0], MS));
        assert_eq!((resync.take_lost(MS), resync.next()), (vec![], Some(MS + TRY)));
        let lost = resync.take_lost(MS + UNREACHABLE);
        assert!(resync.is_unreachable(lost[0], MS + UNREACHABLE));
        assert_eq!(resync.next(), None);
    }
}
