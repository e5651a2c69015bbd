//! How things grow with the number of nodes: the same nodes, coordinator and client as in all runs, on a network where messages cost time.
//!
//! To have in memory the records of 512 nodes, values are [`SHRUNK`] times shorter than they count
//! for on the network.

mod page;

use std::time::Duration;

use samite_placement::{ClusterMap, partitions_for};
use samite_types::{NodeId, PartitionId, RequestId, TargetId};
use samite_wire::control::{self, ControlRequest};
use samite_wire::membership::AdminRequest;
use serde::Serialize;

use crate::client::{ClientTask, SimClient};
use crate::message::SimMessage;
use crate::net::{LinkQuality, MessageCost, ProcessPlace};
use crate::node::SimNode;
use crate::op::{OpCondition, OpStep, SimOperation};
use crate::run;
use crate::scenario::{CoordinatorState, DATASET, RunScenario, ScenarioFault};
use crate::world::SimWorld;

pub use page::{chart, page};

/// Bytes on the network for each byte of a value in memory.
pub const SHRUNK: usize = 1024;
/// Bytes of a value in memory; each partition has two.
const VALUE_LEN: u32 = 8 << 10;
/// 10 Gbit/s, 20 µs from one to the other, and 2 µs of work for each message at both ends.
pub const COST: MessageCost = MessageCost {
    latency: Duration::from_micros(20),
    bytes_per_s: 1.25e9,
    per_message: Duration::from_micros(2),
    peer_payload_factor: SHRUNK,
    counts_maps: true,
};
/// Most calls that are counted.
const CREATES_MAX: u32 = 2048;
/// No step takes longer than this.
const STEP_MAX: Duration = Duration::from_secs(600);

/// The measurements with so many nodes.
#[derive(Clone, Debug, Serialize)]
pub struct ScaleMetrics {
    /// Nodes.
    pub nodes: u32,
    /// Partitions.
    pub partitions: u32,
    /// Most partitions of which a node is the primary, over the mean.
    pub primaries: f64,
    /// Most partitions that a node has a copy of, over the mean.
    pub members: f64,
    /// Most files that a node has to serve, over the mean, when 1,000 for each node are spread by their names.
    pub load: f64,
    /// Other nodes that have the second copies of one node's partitions.
    pub followers: usize,
    /// Messages for each create, all that it causes between nodes included.
    pub messages_per_create: f64,
    /// From a node's death until all of its partitions have another primary, in milliseconds.
    pub failover_ms: u64,
    /// Share of the dead node's load that the busiest of the others has then.
    pub heir_share: f64,
    /// From when the dead node is given up until every partition has two good copies again, in milliseconds.
    pub rebuild_ms: u64,
    /// The same, if maps had no length.
    pub rebuild_without_maps_ms: u64,
    /// Bytes of the map, in KiB.
    pub map_kib: u64,
    /// Bytes that the coordinator sent meanwhile, in KiB.
    pub rebuild_maps_kib: u64,
    /// Data of one node, in MiB.
    pub node_mib: u64,
}

/// Measures with `nodes` nodes.
///
/// # Errors
/// The phase that took too long.
pub fn measure(nodes: u32) -> Result<ScaleMetrics, String> {
    let without = measure_with(nodes, MessageCost { counts_maps: false, ..COST })?;
    let metrics = measure_with(nodes, COST)?;
    Ok(ScaleMetrics { rebuild_without_maps_ms: without.rebuild_ms, ..metrics })
}

fn measure_with(nodes: u32, cost: MessageCost) -> Result<ScaleMetrics, String> {
    let scenario = scenario(nodes);
    let (partitions, scenario_nodes) = (scenario.partitions, scenario.nodes);
    let mut world = run::build_with(&scenario, fill(partitions));
    world.network.set_cost(cost);
    run_until(&mut world, "the first map", |world| {
        map(world, 1).is_some_and(|map| run::is_whole(map, &scenario))
    })?;
    run_until(&mut world, "filling", is_client_over)?;
    let messages_per_create = creates(&mut world, partitions)?;
    let before = map(&world, 1).cloned().ok_or("no map")?;
    let victim = NodeId(0);
    let died = world.now();
    world.plan(ScenarioFault::Crash(ProcessPlace::Node(0)), died, STEP_MAX * 4);
    run_until(&mut world, "failover", |world| {
        map(world, 1).is_some_and(|map| led_by(map, victim) == 0)
    })?;
    let failover_ms = (world.now() - died).as_millis() as u64;
    let after = map(&world, 1).cloned().ok_or("no map")?;
    let (given_up, told) = (world.now(), answered(&world));
    let request =
        ControlRequest::Wish { node: victim, request: AdminRequest::Remove { force: true } };
    let ask = SimMessage::control(RequestId(1), &request);
    world.send(ProcessPlace::Client(0), ProcessPlace::Coordinator(0), ask);
    run_until(&mut world, "rebuild", |world| {
        map(world, 1).is_some_and(|map| map.node(victim).is_none() && run::is_whole(map, &scenario))
    })?;
    let rebuild_ms = (world.now() - given_up).as_millis() as u64;
    let per_node = f64::from(partitions) / f64::from(nodes);
    let lost = led_by(&before, victim) as f64;
    let successor =
        (1..scenario_nodes).map(|id| led_by(&after, NodeId(id)) - led_by(&before, NodeId(id)));
    let node_len = u64::from(VALUE_LEN) * 2 * SHRUNK as u64 * u64::from(partitions) * 2;
    Ok(ScaleMetrics {
        nodes,
        partitions,
        primaries: most(nodes, |node| led_by(&before, node)) / per_node,
        members: most(nodes, |node| held_by(&before, node)) / (per_node * 2.0),
        load: load(&before, nodes),
        followers: followers(&before, victim),
        messages_per_create,
        failover_ms,
        heir_share: successor.max().unwrap_or(0) as f64 / lost,
        rebuild_ms,
        rebuild_without_maps_ms: rebuild_ms,
        map_kib: control::encode(before.data()).len() as u64 >> 10,
        rebuild_maps_kib: (answered(&world) - told) >> 10,
        node_mib: (node_len / u64::from(nodes)) >> 20,
    })
}

fn scenario(nodes: u32) -> RunScenario {
    RunScenario {
        nodes,
        founders: nodes,
        admin_requests: Vec::new(),
        flash_us: None,
        commit_us: None,
        full: Vec::new(),
        failing: Vec::new(),
        room: Vec::new(),
        coordinators: 1,
        clients: 1,
        partitions: partitions_for(nodes as usize),
        redundancy: 2,
        calls: 0,
        pause_us: 1,
        links: LinkQuality::GOOD,
        faults: Vec::new(),
        resync_step_len: VALUE_LEN as usize,
        ..RunScenario::keeping_state(1, CoordinatorState::Store)
    }
}

/// Two values in each partition.
fn fill(partitions: u32) -> ClientTask {
    let of = |partition| {
        [0, 1].map(|key| (PartitionId(partition), SimOperation::of([OpStep::Fill(key, VALUE_LEN)])))
    };
    ClientTask::Script((0..partitions).flat_map(of).collect())
}

fn map(world: &SimWorld, node: u32) -> Option<&ClusterMap> {
    world.process::<SimNode>(ProcessPlace::Node(node))?.map().map(|map| &**map)
}

/// Bytes of answers to questions that are not about data.
fn answered(world: &SimWorld) -> u64 {
    world.counts.get(&4).map_or(0, |counted| counted.1)
}

fn is_client_over(world: &SimWorld) -> bool {
    world.process(ProcessPlace::Client(0)).is_some_and(SimClient::is_over)
}

fn run_until(
    world: &mut SimWorld,
    what: &str,
    holds: impl Fn(&SimWorld) -> bool,
) -> Result<(), String> {
    let until = world.now() + STEP_MAX;
    while !holds(world) {
        let pause = world.now() + Duration::from_millis(1);
        let mut is_moving = false;
        while world.step(pause) {
            is_moving = true;
        }
        if world.now() >= until || (!is_moving && !world.step(until)) {
            return Err(format!("{what}: not within {STEP_MAX:?}"));
        }
    }
    Ok(())
}

/// Messages of requests, replies and members for each of many creates.
fn creates(world: &mut SimWorld, partitions: u32) -> Result<f64, String> {
    let count = partitions.min(CREATES_MAX);
    let create = |partition| {
        (PartitionId(partition), SimOperation::of([OpStep::Put(5, 1)]).when(OpCondition::Absent(5)))
    };
    let sent = |world: &SimWorld| -> u64 {
        [1, 2, 5].iter().filter_map(|kind| world.counts.get(kind)).map(|counted| counted.0).sum()
    };
    let before = sent(world);
    let task = ClientTask::Script((0..count).map(create).collect());
    if let Some(client) = world.process_mut::<SimClient>(ProcessPlace::Client(0)) {
        client.go_on_with(task);
    }
    world.rouse(ProcessPlace::Client(0));
    run_until(world, "creates", is_client_over)?;
    // The last acknowledgements.
    let soon = world.now() + Duration::from_millis(50);
    while world.step(soon) {}
    Ok((sent(world) - before) as f64 / f64::from(count))
}

fn groups(map: &ClusterMap) -> impl Iterator<Item = &samite_wire::control::MirrorGroup> {
    let table = map.dataset(DATASET).and_then(|dataset| map.table(dataset.spec.redundancy));
    table.into_iter().flat_map(|table| &table.groups)
}

/// Partitions of which `node` is the primary. Targets and nodes have the same numbers here.
fn led_by(map: &ClusterMap, node: NodeId) -> i64 {
    let target = TargetId(node.get());
    groups(map).filter(|group| group.members[0].target == target).count() as i64
}

fn held_by(map: &ClusterMap, node: NodeId) -> i64 {
    let target = TargetId(node.get());
    groups(map).filter(|group| group.members.iter().any(|m| m.target == target)).count() as i64
}

fn most(nodes: u32, of: impl Fn(NodeId) -> i64) -> f64 {
    (0..nodes).map(|node| of(NodeId(node))).max().unwrap_or(0) as f64
}

fn followers(map: &ClusterMap, node: NodeId) -> usize {
    let target = TargetId(node.get());
    let led = groups(map).filter(|group| group.members[0].target == target);
    let others = led.flat_map(|group| group.members[1..].iter().map(|member| member.target));
    others.collect::<std::collections::BTreeSet<_>>().len()
}

fn load(map: &ClusterMap, nodes: u32) -> f64 {
    let mut loads = vec![0u64; nodes as usize];
    let groups: Vec<_> = groups(map).collect();
    for file in 0..u64::from(nodes) * 1000 {
        let partition = map.partition_of(format!("/data/file.{file}").as_bytes());
        let primary = groups[partition.get() as usize].members[0].target;
        loads[primary.get() as usize] += 1;
    }
    loads.iter().max().copied().unwrap_or(0) as f64 / 1000.0
}
