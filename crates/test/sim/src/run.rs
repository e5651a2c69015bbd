//! One run: a scenario from its first event to its verdict.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use samite_coordinator::ClusterTiming;
use samite_coordinator::quorum::{StateRegister, VoterConfiguration};
use samite_placement::ClusterMap;
use samite_types::{ClientId, Epoch, NodeId, PartitionId, TargetId};
use samite_wire::control::{MemberConsistency, NodeInfo, TargetInfo};

use crate::audit::RuleViolation;
use crate::check;
use crate::client::{ClientTask, SimClient};
use crate::coordinator::SimCoordinator;
use crate::leader_state::SimulatedState;
use crate::net::ProcessPlace;
use crate::node::SimNode;
use crate::op::{KEYS, OpStep, SimOperation};
use crate::operator::SimOperator;
use crate::process::SimProcess;
use crate::rng::SimRng;
use crate::scenario::{DATASET, RunScenario};
use crate::state_server::SimulatedEtcd;
use crate::trace::RunTrace;
use crate::voting::SimVoter;
use crate::workload::ClientWorkload;
use crate::world::SimWorld;

/// How long a healed world may need until every call has its answer.
const STUCK_AFTER: Duration = Duration::from_secs(30);
/// How long after that until every member is good.
const RESYNCED_AFTER: Duration = Duration::from_secs(60);
/// The client that reads everything at the end.
pub(crate) const READER: u32 = 1000;
/// The client that sends the admin requests.
const OPERATOR: u32 = 2000;
/// How long nothing may have changed before everything counts as settled.
const QUIET: Duration = Duration::from_millis(500);

/// The results of a run.
#[derive(Debug)]
pub struct RunReport {
    /// The same for equal runs.
    pub hash: u64,
    /// Events.
    pub events: u64,
    /// Calls of clients.
    pub calls: usize,
    /// Simulated time.
    pub time: Duration,
    /// The longest that a call took.
    pub longest_call: Duration,
    /// Newest epoch of the map.
    pub epochs: u64,
    /// Histories that could not be judged in time.
    pub too_hard: u32,
    /// Partitions of which all good members died at one time.
    pub lost: usize,
    /// Events that must never be, and were.
    pub violations: Vec<RuleViolation>,
    /// The trace of events, if it was asked for.
    pub lines: Vec<String>,
}

/// Runs a scenario twice. A second run that is not the same as the first is a violation of its own.
#[must_use]
pub fn run_twice(scenario: &RunScenario) -> RunReport {
    let mut first = run(scenario, false);
    let second = run(scenario, false);
    if (first.hash, first.events) != (second.hash, second.events) {
        first.violations.push(RuleViolation {
            rule: "a seed gives the same run again",
            words: format!(
                "{} events, trace {:016x}; then {} events, trace {:016x}",
                first.events, first.hash, second.events, second.hash
            ),
        });
    }
    first
}

/// Runs a scenario.
#[must_use]
pub fn run(scenario: &RunScenario, readable: bool) -> RunReport {
    let mut world = build(scenario, readable, None);
    world.audit.outlives = scenario.is_durable();
    world.audit.gets_full = !scenario.room.is_empty() || !scenario.full.is_empty();
    world.audit.fails = !scenario.failing.is_empty();
    let clients: Vec<ProcessPlace> = (0..scenario.clients).map(ProcessPlace::Client).collect();
    for planned in &scenario.faults {
        world.plan(planned.fault, planned.at, planned.lasts);
    }
    let well_at = scenario.well_at();
    while world.step(well_at) {}
    world.heal();
    let all_vote = |world: &mut SimWorld| scenario.voters.is_none() || votes(world, scenario);
    if finish(&mut world, &clients)
        && wished(&mut world)
        && all_vote(&mut world)
        && settle(&mut world, scenario)
    {
        world.add(ProcessPlace::Client(READER), Duration::ZERO, 0);
        finish(&mut world, &[ProcessPlace::Client(READER)]);
        compare_members(&mut world, scenario);
    }
    for partition in (0..scenario.partitions).map(PartitionId) {
        check::partition(&world.history, partition, &mut world.audit);
    }
    let took =
        world.history.calls.iter().filter_map(|call| Some(call.ended.as_ref()?.0 - call.begun));
    RunReport {
        hash: world.trace.hash(),
        events: world.trace.events(),
        calls: world.history.calls.len(),
        time: world.now(),
        longest_call: took.max().unwrap_or_default(),
        epochs: newest_map(&world, scenario.nodes).map_or(0, |map| map.epoch().get()),
        too_hard: world.audit.too_hard,
        lost: world.audit.lost().len(),
        violations: world.audit.violations(),
        lines: world.trace.into_lines(),
    }
}

/// Lets events happen until these clients have done everything.
fn finish(world: &mut SimWorld, clients: &[ProcessPlace]) -> bool {
    let until = world.now() + STUCK_AFTER;
    let is_over = |world: &SimWorld, place| {
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

/// Lets events happen until nodes are as they are wanted.
fn wished(world: &mut SimWorld) -> bool {
    let until = world.now() + RESYNCED_AFTER;
    loop {
        let operator: Option<&SimOperator> = world.process(ProcessPlace::Client(OPERATOR));
        let Some(words) = operator.filter(|one| !one.is_over()).map(SimOperator::doing) else {
            return true;
        };
        if !world.step(until) {
            world.audit.violate("wishes come true", words);
            return false;
        }
    }
}

/// Lets events happen until every instance of the coordinator has a voter, and all have one register.
fn votes(world: &mut SimWorld, scenario: &RunScenario) -> bool {
    let until = world.now() + RESYNCED_AFTER;
    let shown = |world: &SimWorld| -> Vec<_> {
        let instances = (0..scenario.coordinators).map(ProcessPlace::Coordinator);
        let of = |place| world.process(place).and_then(SimCoordinator::voting)?.shown();
        let number = |shown: Option<(&VoterConfiguration, &StateRegister)>| {
            shown.map(|(configuration, register)| (configuration.number, register.changes()))
        };
        instances.map(|place| number(of(place))).collect()
    };
    loop {
        let all = shown(world);
        if all.iter().all(|one| one.is_some() && *one == all[0]) {
            return true;
        }
        if !world.step(until) {
            world.audit.violate("every instance votes", format!("{all:?}"));
            return false;
        }
    }
}

/// Lets events happen until every member of every group is good, and nothing moves.
fn settle(world: &mut SimWorld, scenario: &RunScenario) -> bool {
    let until = world.now() + RESYNCED_AFTER;
    let mut whole: Option<(Duration, Option<Epoch>)> = None;
    loop {
        let pause = world.now() + Duration::from_millis(50);
        while world.step(pause) {}
        let map = newest_map(world, scenario.nodes);
        // A node that was started again may not have joined yet: then the map still speaks of the one before.
        let epoch = map.map(ClusterMap::epoch);
        let are_current = (0..scenario.nodes).all(|id| {
            let node = world.process::<SimNode>(ProcessPlace::Node(id));
            node.and_then(|node| node.map()).map(|map| map.epoch()) == epoch
        });
        if !are_current || !map.is_some_and(|map| is_whole(map, scenario)) {
            whole = None;
        } else if let Some((since, _)) = whole.filter(|(_, before)| *before == epoch) {
            if scenario.admin_requests.is_empty() || world.now() >= since + QUIET {
                return true;
            }
        } else if scenario.admin_requests.is_empty() {
            return true;
        } else {
            whole = Some((world.now(), epoch));
        }
        if world.now() >= until || !world.step(until) {
            let words = newest_map(world, scenario.nodes)
                .map_or_else(|| "no map".into(), |map| crate::leader_state::words(map.data()));
            world.audit.violate("members become good", words);
            return false;
        }
    }
}

/// Members of a partition differ while an entry is under way to some of them, as when another one has just become the primary. Without faults and clients they have to
/// be equal soon.
fn compare_members(world: &mut SimWorld, scenario: &RunScenario) {
    let differ = |world: &SimWorld| check::members(world, scenario.nodes, scenario.partitions);
    let until = world.now() + QUIET;
    while !differ(world).is_empty() && world.step(until) {}
    for words in differ(world) {
        world.audit.violate("members are equal", words);
    }
}

fn newest_map(world: &SimWorld, nodes: u32) -> Option<&ClusterMap> {
    let nodes = (0..nodes).filter_map(|id| world.process::<SimNode>(ProcessPlace::Node(id)));
    let maps = nodes.filter_map(|node| node.map());
    maps.max_by_key(|map| map.epoch()).map(|map| &**map)
}

pub(crate) fn is_whole(map: &ClusterMap, scenario: &RunScenario) -> bool {
    let dataset = map.dataset(DATASET);
    let table = dataset.and_then(|dataset| map.table(dataset.spec.redundancy));
    table.is_some_and(|table| {
        table.groups.iter().all(|group| {
            group.members.len() == usize::from(scenario.redundancy)
                && group.members.iter().all(|member| member.consistency == MemberConsistency::Good)
        })
    })
}

/// A world in which the first client has this to do.
pub(crate) fn build_with(scenario: &RunScenario, task: ClientTask) -> SimWorld {
    build(scenario, false, Some(task))
}

fn build(scenario: &RunScenario, readable: bool, task: Option<ClientTask>) -> SimWorld {
    let parts = Rc::new(scenario.clone());
    let task = RefCell::new(task);
    let boot = move |place: ProcessPlace, number: u64| -> Box<dyn SimProcess> {
        match (place, task.take()) {
            (ProcessPlace::Client(id), Some(task)) => {
                Box::new(SimClient::new(id, ClientId(number), &parts, task))
            }
            (place, kept) => {
                task.replace(kept);
                boot(&parts, place, number)
            }
        }
    };
    let mut world =
        SimWorld::new(scenario.seed, scenario.links, RunTrace::new(readable), Box::new(boot));
    let mut rng = SimRng::new(scenario.seed).fork(4);
    // Clocks show different times, and one is a little faster than another.
    let mut clock = || (rng.micros(0, 10_000_000), rng.between(0, 400) as i64 - 200);
    let mut add = |place| {
        let (ahead, drift_ppm) = clock();
        world.add(place, ahead, drift_ppm);
    };
    if scenario.voters.is_none() {
        add(ProcessPlace::Store);
    }
    (0..scenario.coordinators).map(ProcessPlace::Coordinator).for_each(&mut add);
    (0..scenario.nodes).map(ProcessPlace::Node).for_each(&mut add);
    (0..scenario.clients).map(ProcessPlace::Client).for_each(&mut add);
    if !scenario.admin_requests.is_empty() {
        add(ProcessPlace::Client(OPERATOR));
    }
    world
}

fn boot(scenario: &Rc<RunScenario>, place: ProcessPlace, number: u64) -> Box<dyn SimProcess> {
    match place {
        ProcessPlace::Node(id) => {
            let storage = if scenario.is_durable() { u64::from(id) + 1 } else { 0 };
            Box::new(SimNode::new(info(id, number, storage), scenario))
        }
        ProcessPlace::Client(OPERATOR) => Box::new(SimOperator::new(scenario, number)),
        ProcessPlace::Client(id) => {
            let session = ClientId(number);
            let task = if id == READER {
                last_calls(scenario.partitions)
            } else {
                calls(scenario, id, number)
            };
            Box::new(SimClient::new(id, session, scenario, task))
        }
        ProcessPlace::Coordinator(id) => {
            let parts = Rc::clone(scenario);
            let fresh = move |saved: Option<&[u8]>, now| SimulatedState::new(&parts, saved, now);
            let nodes = scenario.nodes as usize;
            let instance =
                SimCoordinator::new(id, number, nodes, ClusterTiming::DEFAULT, Box::new(fresh));
            Box::new(match scenario.voters {
                Some(voters) => {
                    let instances = scenario.coordinators;
                    instance.with_voter(SimVoter::new(id, instances, voters, scenario.rules))
                }
                None => instance,
            })
        }
        ProcessPlace::Store => Box::new(SimulatedEtcd::default()),
    }
}

fn calls(scenario: &RunScenario, client: u32, number: u64) -> ClientTask {
    // Small enough to be read, and never the same for two processes.
    let first = u64::from(client + 1) * 1_000_000_000 + (number % 10_000) * 10_000;
    ClientTask::Random(ClientWorkload::new(scenario.partitions, first), scenario.calls)
}

fn last_calls(partitions: u32) -> ClientTask {
    let of = |partition| {
        let reads = (0..KEYS.len() as u8).map(|key| SimOperation::of([OpStep::Get(key)]));
        reads.chain([SimOperation::of([OpStep::List])]).map(move |op| (PartitionId(partition), op))
    };
    ClientTask::Script((0..partitions).flat_map(of).collect::<VecDeque<_>>())
}

fn info(node: u32, incarnation: u64, storage: u64) -> NodeInfo {
    NodeInfo {
        node: NodeId(node),
        host: format!("h{node}"),
        rack: String::new(),
        addresses: vec![format!("tcp://n{node}:1")],
        incarnation,
        targets: vec![TargetInfo { target: TargetId(node), capacity_bytes: 1 << 30, storage }],
    }
}
