//! A node that does not answer, or does not want to: played by a service that the test controls.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use samite_client::{Client, ClientOperation, ClientOptions, ClusterConfig, Dataset, OwnedResult};
use samite_testkit::datasets::{block_on, spec};
use samite_transport::ClusterKey;
use samite_transport::server::{
    ConnId, ConnectionPeer, EventLoop, Listener, LoopOptions, NodeService, ReplySink, SharedArena,
};
use samite_types::{DatasetId, Epoch, ErrorKind, NodeId, Redundancy, TargetId, Term};
use samite_wire::control::{
    ClusterMapData, ControlReply, ControlRequest, DatasetData, GroupMember, MemberConsistency,
    MirrorGroup, NodeInfo, NodeReachability, NodeState, PartitionTable, TargetInfo, decode, encode,
};
use samite_wire::frame::{CheckedHeader, FrameKind};
use samite_wire::op::{
    Action, Operation, OperationFailure, OperationRequest, ReplyEncoder, ReplyHeader,
};

/// The node's treatment of the next requests.
#[derive(Debug, Default)]
struct Script {
    silent: AtomicBool,
    /// Refuse so many more as too busy.
    busy: AtomicU64,
    /// Answer so many more operations as sent too late.
    behind: AtomicU64,
    /// Epoch of the map; older requests are refused.
    epoch: AtomicU64,
    /// Requests seen.
    requests: AtomicU64,
}

struct Player {
    script: Arc<Script>,
    map: ClusterMapData,
}

impl Player {
    fn control(&self, body: &[u8]) -> ControlReply {
        let Ok(ControlRequest::Map { known }) = decode(body) else {
            return ControlReply::failed(ErrorKind::Unsupported, "only maps");
        };
        let epoch = self.map_epoch();
        let map = ClusterMapData { epoch, ..self.map.clone() };
        ControlReply::Map((epoch > known).then_some(map))
    }

    fn data(&self, request: &OperationRequest<'_>) -> Vec<u8> {
        let map_epoch = self.map_epoch();
        let refused = if request.header.map_epoch < map_epoch {
            Some(ErrorKind::StaleMap)
        } else {
            take(&self.script.busy).then_some(ErrorKind::Busy)
        };
        let header = ReplyHeader { refused, map_epoch, name_space_generation: Epoch(9) };
        let mut reply = ReplyEncoder::new(Vec::new(), &header);
        if refused.is_none() {
            for operation in &request.operations {
                if take(&self.script.behind) {
                    let kind = ErrorKind::Busy;
                    reply.failed(&OperationFailure { kind, index: 0, current: None });
                } else {
                    reply.done(1);
                    reply.number(operation.seq.get());
                }
            }
        }
        reply.finish(&[])
    }
}

/// One less, if there was one.
fn take(count: &AtomicU64) -> bool {
    count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
}

impl NodeService for Player {
    fn request(
        &mut self,
        conn: ConnId,
        _peer: &ConnectionPeer,
        header: &CheckedHeader,
        body: &[u8],
        payload: &[u8],
        out: &mut ReplySink,
    ) {
        let (kind, body) = if header.kind == FrameKind::Control {
            (FrameKind::ControlReply, encode(&self.control(body)))
        } else {
            self.script.requests.fetch_add(1, Ordering::SeqCst);
            if self.script.silent.load(Ordering::SeqCst) {
                return;
            }
            (FrameKind::Reply, self.data(&OperationRequest::decode(body, payload).unwrap()))
        };
        out.send(conn, kind, header.request_id, &body, []);
    }

    fn closed(&mut self, _conn: ConnId) {}

    fn wakeup(&mut self, _out: &mut ReplySink) {}

    fn map_epoch(&self) -> Epoch {
        Epoch(self.script.epoch.load(Ordering::SeqCst))
    }

    fn arena(&self) -> Option<SharedArena<'_>> {
        None
    }
}

struct Stage {
    script: Arc<Script>,
    stop: Arc<AtomicBool>,
    waker: samite_transport::server::LoopWaker,
    thread: Option<JoinHandle<()>>,
    config: ClusterConfig,
    _scratch: tempfile::TempDir,
}

impl Stage {
    fn new() -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("n0.sock");
        let key = ClusterKey::new([7; 32]);
        let listener = Listener::unix(&path).unwrap();
        let host = samite_transport::host::host_identity().unwrap();
        let address = format!("unix://{}", path.display());
        let target = TargetInfo { target: TargetId(0), capacity_bytes: 1 << 20, storage: 0 };
        let node = NodeInfo {
            node: NodeId(0),
            host: host.clone(),
            rack: String::new(),
            addresses: vec![address.clone()],
            incarnation: 1,
            targets: vec![target],
        };
        let dataset =
            DatasetData { id: DatasetId(1), spec: spec("played"), wheel: Vec::new(), frozen_by: 0 };
        let online = NodeState { reachability: NodeReachability::Online, is_draining: false };
        let member = GroupMember { target: TargetId(0), consistency: MemberConsistency::Good };
        let group = MirrorGroup { term: Term(0), members: vec![member] };
        let map = ClusterMapData {
            cluster: "stage".into(),
            epoch: Epoch(1),
            nodes: vec![node],
            states: vec![online],
            tables: vec![PartitionTable { redundancy: Redundancy(1), groups: vec![group; 4] }],
            datasets: vec![dataset],
            losses: Vec::new(),
        };
        let script = Arc::new(Script { epoch: AtomicU64::new(1), ..Script::default() });
        let mut player = Player { script: Arc::clone(&script), map };
        let event_loop =
            EventLoop::new(NodeId(0), key, vec![listener], LoopOptions::default()).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (waker, stopped) = (event_loop.waker(), Arc::clone(&stop));
        let thread = std::thread::spawn(move || event_loop.run(&mut player, &stopped).unwrap());
        let config = ClusterConfig {
            cluster: "stage".into(),
            addresses: vec![address],
            credential: ClusterKey::new([7; 32]).into(),
            home: None,
        };
        Self { script, stop, waker, thread: Some(thread), config, _scratch: scratch }
    }

    fn dataset(&self, timeout: Duration) -> Dataset {
        let options = ClientOptions { timeout, ..ClientOptions::default() };
        Client::connect(&self.config, options).unwrap().dataset("played").unwrap()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.waker.wake();
        self.thread.take().unwrap().join().unwrap();
    }
}

fn add(dataset: &Dataset) -> Operation<'static> {
    Operation::new(dataset.partition_of(b"k"), [Action::Add { key: b"k", offset: 0, delta: 1 }])
}

#[test]
fn silence_ends_at_the_deadline_with_the_node_and_the_operation_named() {
    let stage = Stage::new();
    let dataset = stage.dataset(Duration::from_millis(80));
    stage.script.silent.store(true, Ordering::SeqCst);
    let calls: [&dyn Fn() -> samite_types::Error; 4] = [
        &|| dataset.execute_one(add(&dataset).into()).unwrap_err(),
        &|| {
            let mut ops =
                [ClientOperation::new(add(&dataset)), ClientOperation::new(add(&dataset))];
            dataset.execute(&mut ops, dataset.client().deadline()).unwrap_err()
        },
        &|| dataset.submit(&[add(&dataset)]).unwrap().wait().unwrap_err(),
        &|| block_on(dataset.submit(&[add(&dataset)]).unwrap()).unwrap_err(),
    ];
    for (index, call) in calls.iter().enumerate() {
        let start = Instant::now();
        let error = call();
        assert_eq!(error.kind(), ErrorKind::Timeout, "call {index}: {error}");
        let words = error.message();
        assert!(words.contains("n0") && words.contains("add"), "call {index}: {words}");
        let took = start.elapsed();
        assert!(took >= Duration::from_millis(70) && took < Duration::from_secs(10), "{took:?}");
    }
    // The connection lives on.
    stage.script.silent.store(false, Ordering::SeqCst);
    dataset.execute_one(add(&dataset).into()).unwrap();
}

#[test]
fn refused_requests_come_again_with_the_same_number() {
    let stage = Stage::new();
    let dataset = stage.dataset(Duration::from_secs(10));
    let seq = |results: &[OwnedResult]| results[0].number().unwrap();
    let first = dataset.execute_one(add(&dataset).into()).unwrap().into_results("add").unwrap();

    stage.script.busy.store(3, Ordering::SeqCst);
    let second = dataset.execute_one(add(&dataset).into()).unwrap().into_results("add").unwrap();
    assert_eq!(seq(&second), seq(&first) + 1);
    assert_eq!(stage.script.requests.load(Ordering::SeqCst), 5);
    assert_eq!(dataset.client().stats().retries, 3);

    stage.script.epoch.store(5, Ordering::SeqCst);
    let third = dataset.submit(&[add(&dataset)]).unwrap().wait().unwrap();
    assert_eq!(seq(&third[0].clone().into_results("add").unwrap()), seq(&second) + 1);
    assert_eq!(dataset.client().map().unwrap().epoch(), Epoch(5));
    assert_eq!(dataset.name_space_generation(), Epoch(9));
}

#[test]
fn what_came_too_late_comes_again_under_a_new_number() {
    let stage = Stage::new();
    let dataset = stage.dataset(Duration::from_secs(10));
    stage.script.behind.store(2, Ordering::SeqCst);
    let mut ops = [
        ClientOperation::new(add(&dataset)),
        ClientOperation::new(add(&dataset)),
        ClientOperation::new(add(&dataset)),
    ];
    let outcomes = dataset.execute(&mut ops, dataset.client().deadline()).unwrap();
    let numbers: Vec<u64> = outcomes
        .into_iter()
        .map(|outcome| outcome.into_results("add").unwrap()[0].number().unwrap())
        .collect();
    assert_eq!(numbers, [4, 5, 3]);
    for wait in [true, false] {
        stage.script.behind.store(1, Ordering::SeqCst);
        let pending = dataset.submit(&[add(&dataset)]).unwrap();
        let outcomes = if wait { pending.wait() } else { block_on(pending) }.unwrap();
        let results = outcomes[0].clone().into_results("add").unwrap();
        assert_eq!(results[0].number().unwrap(), if wait { 7 } else { 9 });
    }
}
