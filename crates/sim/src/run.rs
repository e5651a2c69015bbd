//! One run: a scenario from its first event to its verdict.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use samite_coordinator::Coordinator;
use samite_placement::ClusterMap;
use samite_types::{ClientId, NodeId, PartitionId, Redundancy, TargetId};
use samite_wire::control::{DatasetSpec, NodeInfo, TargetInfo};

use crate::audit::Violation;
use crate::check;
use crate::client::{SimClient, Task};
use crate::net::Place;
use crate::node::{DATASET, SimNode};
use crate::op::{Act, KEYS, Op};
use crate::process::Process;
use crate::rng::Rng;
use crate::scenario::Scenario;
use crate::trace::Trace;
use crate::workload::Workload;
use crate::world::World;

/// How long a healed world may need until every call has its answer.
const STUCK_AFTER: Duration = Duration::from_secs(30);
/// The client that reads everything at the end.
const READER: u32 = 1000;

/// What came of a run.
#[derive(Debug)]
pub struct Report {
    /// The same for equal runs.
    pub hash: u64,
    /// Events.
    pub events: u64,
    /// Calls of clients.
    pub calls: usize,
    /// Simulated time.
    pub time: Duration,
    /// Histories that could not be judged in time.
    pub too_hard: u32,
    /// What must never be, and was.
    pub violations: Vec<Violation>,
    /// What happened, if it was asked for.
    pub lines: Vec<String>,
}

/// Runs a scenario.
#[must_use]
pub fn run(scenario: &Scenario, readable: bool) -> Report {
    let mut world = build(scenario, readable);
    let clients: Vec<Place> = (0..scenario.clients).map(Place::Client).collect();
    for planned in &scenario.faults {
        world.plan(planned.fault, planned.at, planned.lasts);
    }
    let well_at = scenario.well_at();
    while world.step(well_at) {}
    world.heal();
    let finished = finish(&mut world, &clients);
    if finished {
        read_all(&mut world);
    }
    for partition in 0..scenario.partitions {
        check::partition(&world.history, PartitionId(partition), &mut world.audit);
    }
    Report {
        hash: world.trace.hash(),
        events: world.trace.events(),
        calls: world.history.calls.len(),
        time: world.now(),
        too_hard: world.audit.too_hard,
        violations: world.audit.violations().to_vec(),
        lines: world.trace.into_lines(),
    }
}

/// Lets events happen until these clients have done everything.
fn finish(world: &mut World, clients: &[Place]) -> bool {
    let until = world.now() + STUCK_AFTER;
    let is_over = |world: &World, place| {
        world.process(place).is_some_and(|client: &SimClient| client.is_over())
    };
    loop {
        if clients.iter().all(|place| is_over(world, *place)) {
            return true;
        }
        if !world.step(until) {
            break;
        }
    }
    for place in clients {
        let doing = world.process(*place).filter(|client: &&SimClient| !client.is_over());
        if let Some(words) = doing.map(SimClient::doing) {
            world.audit.violate("nothing gets stuck", format!("{place}: {words}"));
        }
    }
    false
}

/// Reads everything once more, through a client like all others.
fn read_all(world: &mut World) {
    let reader = Place::Client(READER);
    world.add(reader, Duration::ZERO, 0);
    finish(world, &[reader]);
}

fn build(scenario: &Scenario, readable: bool) -> World {
    let map = found(scenario);
    let parts = Rc::new(scenario.clone());
    let boot = move |place: Place, number: u64| -> Box<dyn Process> {
        match place {
            Place::Node(id) => Box::new(SimNode::new(NodeId(id), parts.rules, Arc::clone(&map))),
            Place::Client(id) => {
                let session = ClientId(number);
                let task = if id == READER {
                    last_calls(parts.partitions)
                } else {
                    calls(&parts, id, number)
                };
                Box::new(SimClient::new(id, session, parts.nodes, parts.pause_us, task))
            }
            Place::Coordinator(_) | Place::Store => unreachable!("no such place yet"),
        }
    };
    let mut world = World::new(scenario.seed, scenario.links, Trace::new(readable), Box::new(boot));
    let mut rng = Rng::new(scenario.seed).fork(4);
    for node in 0..scenario.nodes {
        world.add(Place::Node(node), rng.micros(0, 10_000_000), rng.between(0, 2000) as i64 - 1000);
    }
    for client in 0..scenario.clients {
        world.add(Place::Client(client), Duration::ZERO, 0);
    }
    world
}

fn calls(scenario: &Scenario, client: u32, number: u64) -> Task {
    // Small enough to be read, and never the same for two processes.
    let first = u64::from(client + 1) * 1_000_000_000 + (number % 10_000) * 10_000;
    Task::Random(Workload::new(scenario.partitions, first), scenario.calls)
}

fn last_calls(partitions: u32) -> Task {
    let of = |partition| {
        let reads = (0..KEYS.len() as u8).map(|key| Op::of([Act::Get(key)]));
        reads.chain([Op::of([Act::List])]).map(move |op| (PartitionId(partition), op))
    };
    Task::Script((0..partitions).flat_map(of).collect::<VecDeque<_>>())
}

fn found(scenario: &Scenario) -> Arc<ClusterMap> {
    let coordinator = Coordinator::new("sim", scenario.nodes as usize)
        .and_then(|coordinator| coordinator.with_partitions(scenario.partitions));
    let mut coordinator = coordinator.expect("a scenario is lawful");
    for node in 0..scenario.nodes {
        coordinator.join(info(node, 1), Duration::ZERO).expect("a node of a scenario is lawful");
    }
    let spec = DatasetSpec { redundancy: Redundancy(1), ..DatasetSpec::new(DATASET) };
    coordinator.create_dataset(spec).expect("the dataset is lawful")
}

fn info(node: u32, incarnation: u64) -> NodeInfo {
    NodeInfo {
        node: NodeId(node),
        host: "sim".into(),
        addresses: vec![format!("tcp://n{node}:1")],
        incarnation,
        targets: vec![TargetInfo { target: TargetId(node), capacity_bytes: 1 << 30, storage: 0 }],
    }
}
