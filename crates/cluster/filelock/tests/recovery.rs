//! What a node knows of locks over connections that end, waits, and changes of the primary.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::time::Duration;

use samite_filelock::{
    AnsweringNode, HolderReports, LockAudience, NodeLocks, RecoveryQuestions, WaitAnswer,
    answer_to_wait, check_request, granter,
};
use samite_placement::ClusterMap;
use samite_types::{
    ClientId, DatasetId, Epoch, ErrorKind, NodeId, PartitionId, Redundancy, TargetId, Term,
};
use samite_wire::control::{
    ClusterMapData, DatasetData, DatasetSpec, GroupMember, MemberConsistency, MirrorGroup,
    NodeInfo, NodeReachability, NodeState, PartitionTable, TargetInfo,
};
use samite_wire::lock::{
    KnownLock, LockAnswer, LockCall, LockHolder, LockMode, LockRange, LockRequest, LockSpace,
};

const ALONE: DatasetId = DatasetId(1);
const MIRRORED: DatasetId = DatasetId(2);
const PARTITION: PartitionId = PartitionId(0);
const A: ClientId = ClientId(1);
const B: ClientId = ClientId(2);
const GOOD: MemberConsistency = MemberConsistency::Good;

/// Connections and answers are told by numbers.
type Locks = NodeLocks<u32, u32>;

/// A map of four nodes with one partition. The mirrored dataset's is in `members`, by node.
fn map(epoch: u64, term: u32, members: &[(u32, MemberConsistency)]) -> ClusterMap {
    let info = |node: u32| NodeInfo {
        node: NodeId(node),
        host: format!("host-{node}"),
        rack: String::new(),
        addresses: vec![format!("tcp://127.0.0.1:{}", 7000 + node)],
        incarnation: 1,
        targets: vec![TargetInfo { target: TargetId(node), capacity_bytes: 1 << 20, storage: 0 }],
    };
    let member =
        |(node, consistency): (u32, _)| GroupMember { target: TargetId(node), consistency };
    let group = |members: &[(u32, MemberConsistency)]| MirrorGroup {
        term: Term(term),
        members: members.iter().copied().map(member).collect(),
    };
    let table = |redundancy, group| PartitionTable {
        redundancy: Redundancy(redundancy),
        groups: vec![group],
    };
    let dataset = |id, name: &str, redundancy| {
        let spec = DatasetSpec { redundancy: Redundancy(redundancy), ..DatasetSpec::new(name) };
        DatasetData { id, spec, wheel: Vec::new(), frozen_by: 0 }
    };
    let online = NodeState { reachability: NodeReachability::Online, is_draining: false };
    ClusterMap::new(ClusterMapData {
        cluster: "test".into(),
        epoch: Epoch(epoch),
        nodes: (0..4).map(info).collect(),
        states: vec![online; 4],
        tables: vec![table(1, group(&members[..1])), table(2, group(members))],
        datasets: vec![dataset(ALONE, "alone", 1), dataset(MIRRORED, "mirrored", 2)],
        losses: Vec::new(),
    })
    .unwrap()
}

fn take(dataset: DatasetId, wait: Option<u64>) -> LockRequest {
    let call = LockCall::Take {
        range: LockRange::WHOLE,
        mode: LockMode::Exclusive,
        holder: LockHolder::default(),
        wait,
        detects_deadlock: false,
    };
    LockRequest {
        dataset,
        partition: PARTITION,
        object: 7,
        space: LockSpace::Whole,
        token: 1,
        term: Term(1),
        epoch: Epoch(1),
        is_note: false,
        call,
    }
}

fn release(dataset: DatasetId) -> LockRequest {
    LockRequest { call: LockCall::Release { range: LockRange::WHOLE }, ..take(dataset, None) }
}

/// Asks on the connection that has the client's number.
fn ask(
    locks: &mut Locks,
    client: ClientId,
    request: &LockRequest,
) -> (Option<LockAnswer>, Vec<WaitAnswer<u32>>) {
    let number = client.get() as u32;
    locks.request((number, number + 100), client, request, Some(Redundancy(2))).unwrap()
}

/// Client A has the lock, and B waits for it under number 5.
fn taken() -> Locks {
    let mut locks = Locks::default();
    assert_eq!(ask(&mut locks, A, &take(MIRRORED, None)).0, Some(LockAnswer::Done));
    let held = ask(&mut locks, B, &take(MIRRORED, None)).0;
    assert!(matches!(held, Some(LockAnswer::Held(_))));
    assert_eq!(ask(&mut locks, B, &take(MIRRORED, Some(5))), (None, Vec::new()));
    locks
}

/// The one answer, for B.
fn assert_answer(answers: &[WaitAnswer<u32>], answer: LockAnswer) {
    let request = take(MIRRORED, Some(5));
    assert_eq!(answers, [WaitAnswer { to: 102, request, answer }]);
}

#[test]
fn a_wait_ends_by_release_by_cancel_or_with_its_connection() {
    let mut locks = taken();
    let (answer, others) = ask(&mut locks, A, &release(MIRRORED));
    assert_eq!(answer, Some(LockAnswer::Done));
    assert_answer(&others, LockAnswer::Done);

    let mut locks = taken();
    assert!(locks.cancel(2, 4).is_empty() && locks.cancel(1, 5).is_empty());
    assert_answer(&locks.cancel(2, 5), LockAnswer::Cancelled);
    assert!(locks.cancel(2, 5).is_empty());

    let mut locks = taken();
    assert_eq!(locks.left(2, false), (Vec::new(), None));
    assert_eq!(ask(&mut locks, A, &release(MIRRORED)).1, Vec::new());
}

#[test]
fn locks_go_with_the_last_connection_unless_it_broke() {
    let mut locks = taken();
    let (answers, back) = locks.left(1, false);
    assert_answer(&answers, LockAnswer::Done);
    assert_eq!(back, None);
    assert!(!locks.is_here(A));

    let mut locks = taken();
    assert_eq!(locks.left(1, true), (Vec::new(), Some(A)));
    assert!(locks.is_here(A), "it may come back");
    assert_answer(&locks.should_be_back(A), LockAnswer::Done);
    assert!(!locks.is_here(A));

    let mut locks = taken();
    assert_eq!(locks.left(1, true), (Vec::new(), Some(A)));
    assert_eq!(ask(&mut locks, A, &take(MIRRORED, None)).0, Some(LockAnswer::Done));
    assert_eq!(locks.should_be_back(A), Vec::new(), "it is back");
}

const SECOND: Duration = Duration::from_secs(1);
const NEXT_PRIMARY: NodeId = NodeId(1);

/// What node 0 knows when the lock is A's, as node 0 tells it to the next primary.
fn known() -> Vec<KnownLock> {
    let before = map(1, 1, &[(0, GOOD), (1, GOOD)]);
    let (known, has_more) = taken().known(&before, NEXT_PRIMARY, None);
    assert_eq!((known.len(), has_more), (1, false));
    assert!(known[0].is_here && known[0].lock.owner.client == A);
    known
}

/// Node 1 has become the primary, and asks the others.
fn recovering() -> (Locks, ClusterMap) {
    let before = map(1, 1, &[(0, GOOD), (1, GOOD)]);
    let after = map(2, 2, &[(1, GOOD), (0, GOOD)]);
    let mut locks = Locks::default();
    assert!(locks.see_map(None, &before, NEXT_PRIMARY, SECOND).is_empty());
    assert!(!locks.expects(Redundancy(2), PARTITION));
    assert!(locks.see_map(Some(&before), &after, NEXT_PRIMARY, SECOND).is_empty());
    (locks, after)
}

#[test]
fn a_new_primary_grants_nothing_before_the_others_have_told() {
    let (mut locks, after) = recovering();
    assert!(locks.expects_any() && locks.expects(Redundancy(2), PARTITION));
    let request = take(MIRRORED, None);
    let refused = locks.request((2, 102), B, &request, Some(Redundancy(2)));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Busy);
    let nodes = [0, 2, 3].map(NodeId);
    let asked = RecoveryQuestions { nodes: nodes.to_vec(), given_up: Vec::new() };
    assert_eq!(locks.questions(SECOND), asked);

    assert!(locks.take_over(&after, (NodeId(0), 1), &known(), SECOND).is_empty());
    for node in nodes {
        assert!(locks.expects_any());
        locks.answered(node, after.epoch());
    }
    assert!(!locks.expects_any());
    assert!(matches!(ask(&mut locks, B, &request).0, Some(LockAnswer::Held(_))));
    assert_eq!(locks.absent_clients(), [A]);
    assert_eq!(ask(&mut locks, A, &take(MIRRORED, None)).0, Some(LockAnswer::Done));
    assert!(!locks.has_absent(), "it is connected now");
}

#[test]
fn a_lock_that_was_let_go_of_meanwhile_is_not_taken_over() {
    let (mut locks, after) = recovering();
    let note = LockRequest { is_note: true, ..release(MIRRORED) };
    assert_eq!(ask(&mut locks, A, &note).0, Some(LockAnswer::Done));
    assert!(locks.take_over(&after, (NodeId(0), 1), &known(), SECOND).is_empty());
    for node in [0, 2, 3].map(NodeId) {
        locks.answered(node, after.epoch());
    }
    assert_eq!(ask(&mut locks, B, &take(MIRRORED, None)).0, Some(LockAnswer::Done));
}

#[test]
fn silent_nodes_are_given_up_after_ten_seconds() {
    let (mut locks, _) = recovering();
    assert!(locks.questions(10 * SECOND).given_up.is_empty());
    let questions = locks.questions(11 * SECOND);
    assert!(questions.nodes.is_empty() && !locks.expects_any());
    let silent: Vec<&[NodeId]> = questions.given_up.iter().map(|over| &over.silent[..]).collect();
    assert!(silent.contains(&&[0, 2, 3].map(NodeId)[..]));
}

#[test]
fn absent_holders_are_gone_when_nobody_has_a_connection_or_after_a_minute() {
    let adopted = || {
        let (mut locks, after) = recovering();
        assert!(locks.take_over(&after, (NodeId(0), 1), &known(), SECOND).is_empty());
        locks
    };
    let gone = |locks: &Locks| !locks.has_absent();

    // A process that has a connection of it.
    let mut locks = adopted();
    let mut reports = HolderReports::default();
    reports.add(NodeId(2), 1, vec![A]);
    assert!(locks.heard(&reports, |_| false, 200 * SECOND).is_empty());
    assert!(!gone(&locks));

    // The process that had it says that it has none any more.
    let mut reports = HolderReports::default();
    reports.add(NodeId(2), 1, Vec::new());
    let _ = locks.heard(&reports, |_| false, 200 * SECOND);
    assert!(gone(&locks));

    // That process has ended with its node: the holder may sleep, for a minute.
    let mut locks = adopted();
    let _ = locks.heard(&HolderReports::default(), |_| true, 60 * SECOND);
    assert!(!gone(&locks));
    let _ = locks.heard(&HolderReports::default(), |_| true, 61 * SECOND);
    assert!(gone(&locks));
}

#[test]
fn members_note_what_the_primary_grants_and_one_beside_them() {
    let map = map(3, 2, &[(1, GOOD), (0, GOOD)]);
    let request = take(MIRRORED, None);
    let (node, asked) = granter(&map, &request).unwrap();
    assert_eq!((node, asked.term, asked.epoch), (NodeId(1), Term(2), Epoch(3)));
    assert_eq!(LockAudience::of(&map, &request), None, "another term");
    let mut audience = LockAudience::of(&map, &asked).unwrap();
    audience.witnesses.sort_unstable();
    assert_eq!(audience.members, [NodeId(0)]);
    assert_eq!(audience.witnesses, [NodeId(2), NodeId(3)]);
    let audience = LockAudience::of(&map, &LockRequest { dataset: ALONE, ..asked }).unwrap();
    assert!(audience.members.is_empty() && audience.witnesses.is_empty());
}

#[test]
fn only_the_primary_grants_and_only_others_note() {
    let map = map(3, 2, &[(1, GOOD), (0, GOOD)]);
    let at = |node| AnsweringNode { node: NodeId(node), now: SECOND, lease_until: 2 * SECOND };
    let kind = |asked: &AnsweringNode, request: &LockRequest| {
        check_request(asked, Some(&map), request).err().map(|error| error.kind())
    };
    let (_, take) = granter(&map, &take(MIRRORED, None)).unwrap();
    let note = LockRequest { is_note: true, ..take };
    assert_eq!(kind(&at(1), &take), None);
    assert_eq!(kind(&at(0), &take), Some(ErrorKind::StaleMap));
    assert_eq!(kind(&at(0), &note), None);
    assert_eq!(kind(&at(1), &note), Some(ErrorKind::StaleMap));
    let old = LockRequest { term: Term(1), ..take };
    assert_eq!(kind(&at(1), &old), Some(ErrorKind::StaleMap));
    let old = LockRequest { epoch: Epoch(2), ..take };
    assert_eq!(kind(&at(1), &old), Some(ErrorKind::StaleMap));
    let new = LockRequest { term: Term(3), ..take };
    assert_eq!(kind(&at(1), &new), Some(ErrorKind::Busy));
    let late = AnsweringNode { now: 2 * SECOND, ..at(1) };
    assert_eq!(kind(&late, &take), Some(ErrorKind::Busy), "another node may grant it");
    assert_eq!(check_request(&at(1), None, &take).unwrap_err().kind(), ErrorKind::Busy);

    let waited = answer_to_wait(&at(0), Some(&map), &take, LockAnswer::Done);
    assert_eq!(waited.unwrap_err().kind(), ErrorKind::StaleMap);
    let cancelled = answer_to_wait(&at(0), Some(&map), &take, LockAnswer::Cancelled);
    assert_eq!(cancelled.unwrap(), LockAnswer::Cancelled);
}
