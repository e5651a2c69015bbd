//! Builds that follow each other work together: messages between nodes and clients have the bytes
//! that the first build of protocol version 3 sent. What is new has a message of its own, or a
//! field that is not encoded while it says nothing.
#![expect(clippy::unwrap_used, reason = "a test fails by it")]

use samite_types::{ClientId, DatasetId, Epoch, NodeId, PartitionId, Redundancy, TargetId, Term};
use samite_wire::access::DatasetAccess;
use samite_wire::control::*;
use samite_wire::delta::{DatasetChange, GroupChange, MapDelta, NodeChange};
use samite_wire::lock::*;
use samite_wire::membership::*;
use samite_wire::status::{NodeStatus, TargetStatus};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The message has these bytes, in hexadecimal digits, and they are read as it.
#[track_caller]
fn check<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(message: &T, digits: &str) {
    let bytes = encode(message);
    let said: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(said, digits, "{message:?}");
    assert_eq!(&decode::<T>(&bytes).unwrap(), message);
}

fn node() -> NodeInfo {
    NodeInfo {
        node: NodeId(1),
        host: "h".into(),
        rack: String::new(),
        addresses: vec!["tcp://h:1".into()],
        incarnation: 300,
        targets: vec![TargetInfo { target: TargetId(2), capacity_bytes: 1 << 20, storage: 3 }],
    }
}

fn state() -> NodeState {
    NodeState { reachability: NodeReachability::Online, is_draining: true }
}

fn group() -> MirrorGroup {
    let members = [
        MemberConsistency::Good,
        MemberConsistency::Restarted,
        MemberConsistency::NeedsResync,
        MemberConsistency::Bad,
    ];
    let of = |consistency| GroupMember { target: TargetId(2), consistency };
    MirrorGroup { term: Term(9), members: members.map(of).into() }
}

fn dataset() -> DatasetData {
    let spec = DatasetSpec {
        distribution: DistributionKind::Weighted(vec![(TargetId(2), 5)]),
        access: DatasetAccess { owner: 1000, mode: 0o750 },
        reads: ReadsKind::Any,
        durability: DurabilityKind::Logged,
        redundancy: Redundancy(2),
        ..DatasetSpec::new("files")
    };
    DatasetData { id: DatasetId(4), spec, wheel: vec![PartitionId(6)], frozen_by: 0 }
}

fn lost() -> LostRecords {
    let partitions = vec![PartitionRange { first: PartitionId(7), count: 8 }];
    LostRecords { datasets: vec![DatasetId(4)], partitions }
}

fn table() -> PartitionTable {
    PartitionTable { redundancy: Redundancy(2), groups: vec![group()] }
}

fn known_lock() -> KnownLock {
    let owner = LockOwner { client: ClientId(77), token: 5 };
    let holder = LockHolder { host: 6, pid: 7 };
    let (range, mode) = (LockRange::WHOLE, LockMode::Exclusive);
    KnownLock {
        dataset: DatasetId(4),
        partition: PartitionId(6),
        object: 8,
        space: LockSpace::Whole,
        lock: LockFound { range, mode, owner, holder },
        is_here: true,
    }
}

#[test]
fn requests() {
    use ControlRequest as Request;
    check(&Request::Map { known: Epoch(5) }, "0005");
    check(
        &Request::Join { info: node(), before: 4 },
        "0101016801097463703a2f2f683a31ac0201028080400304",
    );
    check(
        &Request::CreateDataset(dataset().spec),
        "020566696c6573066d656d6f7279000201020500808040020101e807e803",
    );
    check(&Request::Status, "04");
    check(&Request::Grant { count: 5 }, "0505");
    check(&Request::Shutdown, "06");
    check(&Request::Watch { node: NodeId(1), known: Epoch(5) }, "070105");
    check(&Request::Revocations { done: 5 }, "0805");
    let call = LockCall::Take {
        range: LockRange { start: 1, last: 2 },
        mode: LockMode::Shared,
        holder: LockHolder { host: 6, pid: 7 },
        wait: Some(3),
        detects_deadlock: true,
    };
    let lock = LockRequest {
        dataset: DatasetId(4),
        partition: PartitionId(6),
        object: 8,
        space: LockSpace::Ranges,
        token: 5,
        term: Term(9),
        epoch: Epoch(5),
        is_note: false,
        call,
    };
    check(&Request::Lock(lock), "090406080005090500000102000607010301");
    let (node, serves) = (NodeId(1), Epoch(5));
    check(
        &Request::Heartbeat(Heartbeat { node, incarnation: 300, serves, is_led: true }),
        "1001ac020501",
    );
    let report = MemberReport {
        redundancy: Redundancy(2),
        partition: PartitionId(6),
        term: Term(9),
        epoch: Epoch(5),
        target: TargetId(2),
        change: MemberChanges::Broken,
    };
    check(&Request::Report { node, known: serves, reports: vec![report] }, "11010501020609050202");
    check(&Request::Wish { node, request: AdminRequest::Remove { force: true } }, "12010301");
    check(
        &Request::KnownLocks { node, epoch: serves, after: Some(known_lock()) },
        "130105010406080100ffffffffffffffff7f014d05060701",
    );
    check(&Request::LockClients(vec![ClientId(77)]), "14014d");
    check(&Request::Metrics, "17");
}

#[test]
fn replies() {
    use ControlReply as Reply;
    let map = ClusterMapData {
        cluster: "c".into(),
        epoch: Epoch(5),
        nodes: vec![node()],
        states: vec![state()],
        tables: vec![table()],
        datasets: vec![dataset()],
        losses: vec![lost()],
    };
    check(
        &Reply::Map(Some(map)),
        "00010163050101016801097463703a2f2f683a31ac020102808040030100010102010904020002010202020301040566696c6573066d656d6f7279000201020500808040020101e807e8030106010104010708",
    );
    let status = NodeStatus { targets: vec![TargetStatus::default()], ..NodeStatus::default() };
    check(
        &Reply::Status(status),
        "01000000000000000000000000000000000000000000000000000001066d656d6f7279000000",
    );
    check(&Reply::Granted(vec![(1, 2)]), "02010102");
    check(&Reply::Ok, "03");
    let standing = NodeStanding::Stranger;
    check(&Reply::Lease(NodeLease { term_us: 9, epoch: Epoch(5), standing }), "0a090502");
    let leader = LeaderAddress { node: NodeId(1), addresses: vec!["tcp://h:1".into()] };
    check(&Reply::NotLeader { leader: Some(leader) }, "0b010101097463703a2f2f683a31");
    check(&Reply::Failed { kind: 3, message: "no".into() }, "0c03026e6f");
    let delta = MapDelta {
        from: Epoch(4),
        to: Epoch(5),
        digest: 6,
        nodes: vec![NodeChange { node: NodeId(1), state: Some(state()), info: Some(node()) }],
        tables: vec![table()],
        groups: vec![GroupChange {
            redundancy: Redundancy(2),
            partition: PartitionId(6),
            group: group(),
        }],
        datasets: vec![DatasetChange { id: DatasetId(4), data: Some(dataset()) }],
        losses: Some(vec![lost()]),
    };
    check(
        &Reply::MapDelta(delta),
        "0d04050601010100010101016801097463703a2f2f683a31ac020102808040030102010904020002010202020301020609040200020102020203010401040566696c6573066d656d6f7279000201020500808040020101e807e803010601010104010708",
    );
    check(
        &Reply::KnownLocks { locks: vec![known_lock()], has_more: true },
        "0e010406080100ffffffffffffffff7f014d0506070101",
    );
}
