//! Another node takes the place of one that is stopped, dead or cut off: calls on mirrored datasets pause and go on. The nodes are played.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::collections::HashSet;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use samite_client::locks::LockSession;
use samite_client::{Client, ClientOperation, ClientOptions, ClusterConfig, Dataset};
use samite_testkit::datasets::{self, block_on};
use samite_transport::ClusterKey;
use samite_transport::server::{
    ConnId, ConnectionPeer, EventLoop, Listener, LoopOptions, LoopWaker, NodeService, ReplySink,
    SharedArena,
};
use samite_types::{
    ClientId, DatasetId, Epoch, ErrorKind, NodeId, Redundancy, RequestId, Result, TargetId, Term,
};
use samite_wire::control::{
    ClusterMapData, ControlReply, ControlRequest, DatasetData, GroupMember, MemberConsistency,
    MirrorGroup, NodeInfo, NodeReachability, NodeState, PartitionTable, TargetInfo, decode, encode,
};
use samite_wire::frame::{CheckedHeader, FrameKind};
use samite_wire::lock::{
    LockAnswer, LockCall, LockFound, LockHolder, LockMode, LockOwner, LockRange, LockRequest,
    LockSpace,
};
use samite_wire::op::{Action, Operation, OperationRequest, ReplyEncoder, ReplyHeader};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Serves,
    /// Takes everything in and says nothing.
    Stopped,
    /// Cannot serve any more, and does not know why.
    CutOff,
}

/// The state that all nodes share: the truth.
struct World {
    epoch: u64,
    primary: usize,
    modes: [Mode; 2],
    map: ClusterMapData,
    /// Numbers of mutations that took effect.
    applied: HashSet<u64>,
    changes: u64,
    /// The holder of the lock, as each node knows.
    locks: [Option<ClientId>; 2],
    /// The waiter for it at each node, and the connection that asked.
    waits: [Vec<(ClientId, ConnId, RequestId)>; 2],
}

impl World {
    fn map(&self) -> ClusterMapData {
        let member = |node: usize| {
            let is_good = node == self.primary || self.modes[node] == Mode::Serves;
            let consistency =
                if is_good { MemberConsistency::Good } else { MemberConsistency::NeedsResync };
            GroupMember { target: TargetId(node as u32), consistency }
        };
        let members = [self.primary, 1 - self.primary].map(member).to_vec();
        let group = MirrorGroup { term: Term(self.epoch as u32), members };
        let good = GroupMember { target: TargetId(0), consistency: MemberConsistency::Good };
        let alone = MirrorGroup { term: Term(0), members: vec![good] };
        let tables = vec![
            PartitionTable { redundancy: Redundancy(1), groups: vec![alone; 4] },
            PartitionTable { redundancy: Redundancy(2), groups: vec![group; 4] },
        ];
        ClusterMapData { epoch: Epoch(self.epoch), tables, ..self.map.clone() }
    }
}

impl World {
    /// `None`: it waits.
    fn lock(
        &mut self,
        node: usize,
        (client, conn, id): (ClientId, ConnId, RequestId),
        request: &LockRequest,
    ) -> Option<ControlReply> {
        if request.is_note == (node == self.primary) {
            return Some(ControlReply::failed(ErrorKind::StaleMap, "another node's"));
        }
        let holder = &mut self.locks[node];
        Some(ControlReply::Lock(match request.call {
            LockCall::Take { .. } if request.is_note || holder.is_none_or(|one| one == client) => {
                *holder = Some(client);
                LockAnswer::Done
            }
            LockCall::Take { wait: Some(_), .. } => {
                self.waits[node].push((client, conn, id));
                return None;
            }
            LockCall::Release { .. } => {
                *holder = holder.filter(|one| *one != client);
                LockAnswer::Done
            }
            LockCall::Take { range, mode, .. } | LockCall::Test { range, mode } => match *holder {
                None => LockAnswer::Done,
                Some(client) => LockAnswer::Held(LockFound {
                    range,
                    mode,
                    owner: LockOwner { client, token: 0 },
                    holder: LockHolder::default(),
                }),
            },
        }))
    }
}

struct Player {
    node: usize,
    world: Arc<Mutex<World>>,
}

impl Player {
    fn control(&self, place: (ClientId, ConnId, RequestId), body: &[u8]) -> Option<ControlReply> {
        let mut world = self.world.lock().unwrap();
        Some(match decode(body) {
            Ok(ControlRequest::Lock(request)) => return world.lock(self.node, place, &request),
            Ok(ControlRequest::Map { known }) => {
                // A node that is cut off learns nothing.
                let is_cut = world.modes[self.node] == Mode::CutOff;
                let map = Some(world.map()).filter(|map| map.epoch > known && !is_cut);
                ControlReply::Map(map)
            }
            Ok(ControlRequest::CreateDataset(spec)) if self.node == world.primary => {
                world.epoch += 1;
                let id = DatasetId(100 + world.epoch as u32);
                world.map.datasets.push(DatasetData { id, spec, wheel: Vec::new(), frozen_by: 0 });
                ControlReply::Map(Some(world.map()))
            }
            Ok(ControlRequest::CreateDataset(_)) => ControlReply::NotLeader { leader: None },
            _ => ControlReply::failed(ErrorKind::Unsupported, "not played"),
        })
    }

    /// Gives the lock to the first waiter, when it is free.
    fn wake(&self, out: &mut ReplySink) {
        let mut world = self.world.lock().unwrap();
        let node = self.node;
        if world.locks[node].is_none() && !world.waits[node].is_empty() {
            let (client, conn, id) = world.waits[node].remove(0);
            world.locks[node] = Some(client);
            let reply = encode(&ControlReply::Lock(LockAnswer::Done));
            out.send(conn, FrameKind::ControlReply, id, &reply, []);
        }
    }

    fn data(&self, request: &OperationRequest<'_>) -> Vec<u8> {
        let mut world = self.world.lock().unwrap();
        let map_epoch = Epoch(world.epoch);
        let refused = if world.modes[self.node] == Mode::CutOff {
            Some(ErrorKind::Busy)
        } else {
            (request.header.map_epoch < map_epoch).then_some(ErrorKind::StaleMap)
        };
        let header = ReplyHeader { refused, map_epoch, name_space_generation: Epoch(0) };
        let mut reply = ReplyEncoder::new(Vec::new(), &header);
        if refused.is_none() {
            assert_eq!(self.node, world.primary);
            for operation in &request.operations {
                let is_new = world.applied.insert(operation.seq.get());
                world.changes += u64::from(is_new);
                reply.done(1);
                reply.number(operation.seq.get());
            }
        }
        reply.finish(&[])
    }
}

impl NodeService for Player {
    fn request(
        &mut self,
        conn: ConnId,
        peer: &ConnectionPeer,
        header: &CheckedHeader,
        body: &[u8],
        payload: &[u8],
        out: &mut ReplySink,
    ) {
        let is_stopped = self.world.lock().unwrap().modes[self.node] == Mode::Stopped;
        let (kind, reply) = if header.kind == FrameKind::Control {
            if is_stopped {
                return;
            }
            let place = (peer.client, conn, header.request_id);
            let Some(reply) = self.control(place, body) else { return };
            self.wake(out);
            (FrameKind::ControlReply, encode(&reply))
        } else {
            let request = OperationRequest::decode(body, payload).unwrap();
            if is_stopped && self.world.lock().unwrap().primary == self.node {
                // It did its work before it was stopped; the answer is lost. The mirror has it, too.
                self.data(&request);
            }
            if is_stopped {
                return;
            }
            (FrameKind::Reply, self.data(&request))
        };
        if !is_stopped {
            out.send(conn, kind, header.request_id, &reply, []);
        }
    }

    fn closed(&mut self, _conn: ConnId) {}

    fn wakeup(&mut self, _out: &mut ReplySink) {}

    fn map_epoch(&self) -> Epoch {
        Epoch(self.world.lock().unwrap().epoch)
    }

    fn arena(&self) -> Option<SharedArena<'_>> {
        None
    }
}

struct Node {
    stop: Arc<AtomicBool>,
    waker: LoopWaker,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.waker.wake();
        self.thread.take().unwrap().join().unwrap();
    }
}

struct Stage {
    world: Arc<Mutex<World>>,
    nodes: Vec<Option<Node>>,
    config: ClusterConfig,
    _scratch: tempfile::TempDir,
}

impl Stage {
    fn new() -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let host = samite_transport::host::host_identity().unwrap();
        let paths = [0, 1].map(|node| scratch.path().join(format!("n{node}.sock")));
        let addresses = paths.each_ref().map(|path| format!("unix://{}", path.display()));
        let info = |node: usize| NodeInfo {
            node: NodeId(node as u32),
            host: host.clone(),
            rack: String::new(),
            addresses: vec![addresses[node].clone()],
            incarnation: 1,
            targets: vec![TargetInfo {
                target: TargetId(node as u32),
                capacity_bytes: 1 << 20,
                storage: 0,
            }],
        };
        let spec = |name: &str, redundancy: u8| samite_wire::control::DatasetSpec {
            redundancy: Redundancy(redundancy),
            ..datasets::spec(name)
        };
        let dataset =
            |id, spec| DatasetData { id: DatasetId(id), spec, wheel: Vec::new(), frozen_by: 0 };
        let online = NodeState { reachability: NodeReachability::Online, is_draining: false };
        let map = ClusterMapData {
            cluster: "stage".into(),
            epoch: Epoch(1),
            nodes: vec![info(0), info(1)],
            states: vec![online; 2],
            tables: Vec::new(),
            datasets: vec![dataset(1, spec("mirrored", 2)), dataset(2, spec("alone", 1))],
            losses: Vec::new(),
        };
        let world = World {
            epoch: 1,
            primary: 0,
            modes: [Mode::Serves; 2],
            map,
            applied: HashSet::new(),
            changes: 0,
            locks: [None; 2],
            waits: [Vec::new(), Vec::new()],
        };
        let world = Arc::new(Mutex::new(world));
        let nodes = [0, 1].map(|node| {
            let listener = Listener::unix(&paths[node]).unwrap();
            let key = ClusterKey::new([7; 32]);
            let id = NodeId(node as u32);
            let event_loop =
                EventLoop::new(id, key, vec![listener], LoopOptions::default()).unwrap();
            let stop = Arc::new(AtomicBool::new(false));
            let (waker, stopped) = (event_loop.waker(), Arc::clone(&stop));
            let mut player = Player { node, world: Arc::clone(&world) };
            let thread = std::thread::spawn(move || event_loop.run(&mut player, &stopped).unwrap());
            Some(Node { stop, waker, thread: Some(thread) })
        });
        let config = ClusterConfig {
            cluster: "stage".into(),
            addresses: addresses.to_vec(),
            credential: ClusterKey::new([7; 32]).into(),
            home: None,
        };
        Self { world, nodes: nodes.into(), config, _scratch: scratch }
    }

    fn client(&self) -> Client {
        let options =
            ClientOptions { timeout: Duration::from_secs(20), ..ClientOptions::default() };
        Client::connect(&self.config, options).unwrap()
    }

    fn set(&self, node: usize, mode: Mode) {
        self.world.lock().unwrap().modes[node] = mode;
    }

    fn changes(&self) -> u64 {
        self.world.lock().unwrap().changes
    }

    /// After a while the other node is the primary.
    fn fail_over(&self, delay: Duration) -> JoinHandle<()> {
        let world = Arc::clone(&self.world);
        std::thread::spawn(move || {
            std::thread::sleep(delay);
            let mut world = world.lock().unwrap();
            world.epoch += 1;
            world.primary = 1 - world.primary;
        })
    }
}

fn add(dataset: &Dataset) -> Operation<'static> {
    Operation::new(dataset.partition_of(b"k"), [Action::Add { key: b"k", offset: 0, delta: 1 }])
}

/// The ways in which calls wait, and how many changes each makes.
type Call<'d> = (Box<dyn Fn() -> Result<()> + 'd>, u64);

fn calls(dataset: &Dataset) -> [Call<'_>; 4] {
    [
        (Box::new(|| dataset.execute_one(add(dataset).into()).map(drop)), 1),
        (
            Box::new(|| {
                let mut ops =
                    [ClientOperation::new(add(dataset)), ClientOperation::new(add(dataset))];
                dataset.execute(&mut ops, dataset.client().deadline()).map(drop)
            }),
            2,
        ),
        (Box::new(|| dataset.submit(&[add(dataset)])?.wait().map(drop)), 1),
        (Box::new(|| block_on(dataset.submit(&[add(dataset)])?).map(drop)), 1),
    ]
}

/// Each kind of call goes on at the other node, and takes effect once.
fn goes_on_when(mode: Mode) {
    let stage = Stage::new();
    let dataset = stage.client().dataset("mirrored").unwrap();
    for (index, (call, count)) in calls(&dataset).iter().enumerate() {
        call().unwrap();
        let (before, primary) = (stage.changes(), stage.world.lock().unwrap().primary);
        stage.set(primary, mode);
        let change = stage.fail_over(Duration::from_millis(500));
        let start = Instant::now();
        call().unwrap();
        let took = start.elapsed();
        assert!(took >= Duration::from_millis(400), "call {index}: {took:?}");
        assert!(took < Duration::from_secs(10), "call {index}: {took:?}");
        assert_eq!(stage.changes() - before, *count, "call {index}");
        change.join().unwrap();
        stage.set(primary, Mode::Serves);
    }
}

#[test]
fn a_node_that_is_stopped_is_a_pause() {
    goes_on_when(Mode::Stopped);
}

#[test]
fn a_node_that_is_cut_off_is_a_pause() {
    goes_on_when(Mode::CutOff);
}

#[test]
fn a_node_that_is_dead_is_a_pause_for_what_is_mirrored_and_an_error_for_what_is_not() {
    let mut stage = Stage::new();
    let client = stage.client();
    let (dataset, alone) = (client.dataset("mirrored").unwrap(), client.dataset("alone").unwrap());
    calls(&dataset).iter().for_each(|(call, _)| call().unwrap());
    calls(&alone).iter().for_each(|(call, _)| call().unwrap());
    let before = stage.changes();
    stage.nodes[0] = None;
    let change = stage.fail_over(Duration::from_millis(500));
    let start = Instant::now();
    for (call, _) in calls(&alone) {
        assert_eq!(call().unwrap_err().kind(), ErrorKind::Unavailable);
    }
    assert!(start.elapsed() < Duration::from_secs(15));
    for (call, _) in calls(&dataset) {
        call().unwrap();
    }
    assert_eq!(stage.changes() - before, 5);
    change.join().unwrap();
}

#[test]
fn many_futures_outlive_a_node_together() {
    const COUNT: u64 = 300;
    let stage = Stage::new();
    let dataset = stage.client().dataset("mirrored").unwrap();
    block_on(dataset.submit(&[add(&dataset)]).unwrap()).unwrap();
    stage.set(0, Mode::Stopped);
    let change = stage.fail_over(Duration::from_millis(700));
    let pending: Vec<_> = (0..COUNT).map(|_| dataset.submit(&[add(&dataset)]).unwrap()).collect();
    let mut pending: Vec<_> = pending.into_iter().map(Box::pin).collect();
    // All are polled before any is done.
    block_on(std::future::poll_fn(|context| {
        pending.retain_mut(|one| match one.as_mut().poll(context) {
            std::task::Poll::Ready(result) => {
                result.unwrap();
                false
            }
            std::task::Poll::Pending => true,
        });
        if pending.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    }));
    assert_eq!(stage.changes(), COUNT + 1);
    change.join().unwrap();
}

#[test]
fn a_client_finds_its_cluster_past_a_node_that_is_stopped() {
    let stage = Stage::new();
    stage.set(0, Mode::Stopped);
    stage.world.lock().unwrap().primary = 1;
    let start = Instant::now();
    let client = stage.client();
    let spec =
        samite_wire::control::DatasetSpec { redundancy: Redundancy(2), ..datasets::spec("made") };
    let dataset = client.create_dataset(&spec).unwrap();
    dataset.execute_one(add(&dataset).into()).unwrap();
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
}

fn lock_request(dataset: &Dataset, call: LockCall) -> LockRequest {
    LockRequest {
        dataset: dataset.id(),
        partition: dataset.partition_of(b"k"),
        object: 7,
        space: LockSpace::Whole,
        token: 0,
        term: Term(0),
        epoch: Epoch(0),
        is_note: false,
        call,
    }
}

fn take() -> LockCall {
    LockCall::Take {
        range: LockRange::WHOLE,
        mode: LockMode::Exclusive,
        holder: LockHolder::default(),
        wait: None,
        detects_deadlock: false,
    }
}

/// A lock outlives the node that granted it; a waiter for it goes on waiting at the next one.
fn locks_last_when(stops: impl Fn(&mut Stage)) {
    let mut stage = Stage::new();
    let (client, other) = (stage.client(), stage.client());
    let dataset = client.dataset("mirrored").unwrap();
    let (holder, waiter) = (LockSession::new(&client), LockSession::new(&other));
    let request = lock_request(&dataset, take());
    assert_eq!(holder.ask(&request).unwrap(), LockAnswer::Done);
    assert_eq!(stage.world.lock().unwrap().locks, [Some(holder.id()); 2]);
    assert!(matches!(waiter.ask(&request).unwrap(), LockAnswer::Held(_)));
    std::thread::scope(|scope| {
        let wait = scope.spawn(|| {
            let mut wait = waiter.begin(request).unwrap();
            let woken = wait.block_until(&|| false).unwrap();
            wait.finish(woken).unwrap();
        });
        while stage.world.lock().unwrap().waits[0].is_empty() {
            std::thread::sleep(Duration::from_millis(1));
        }
        stops(&mut stage);
        stage.fail_over(Duration::from_millis(300)).join().unwrap();
        // No other client gets it from the next node.
        assert!(matches!(LockSession::new(&other).ask(&request).unwrap(), LockAnswer::Held(_)));
        while stage.world.lock().unwrap().waits[1].is_empty() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let release = LockCall::Release { range: LockRange::WHOLE };
        assert_eq!(holder.ask(&lock_request(&dataset, release)).unwrap(), LockAnswer::Done);
        wait.join().unwrap();
    });
    assert_eq!(stage.world.lock().unwrap().locks[1], Some(waiter.id()));
}

#[test]
fn locks_outlive_a_node_that_dies() {
    locks_last_when(|stage| {
        stage.set(0, Mode::Stopped);
        stage.nodes[0] = None;
    });
}

#[test]
fn locks_outlive_a_node_that_is_stopped() {
    locks_last_when(|stage| stage.set(0, Mode::Stopped));
}
