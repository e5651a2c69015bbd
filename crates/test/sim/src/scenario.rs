//! The parts of a run: everything that a seed decides before the first event.

use std::time::Duration;

use clap::ValueEnum;
use samite_wire::membership::AdminRequest;
use serde::{Deserialize, Serialize};

mod targets;

pub use targets::TargetKind;

use crate::net::{LinkQuality, ProcessPlace};
use crate::rng::SimRng;
use crate::rules::RunRules;

/// Name of the simulated dataset.
pub const DATASET: &str = "sim";

/// A fault, for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ScenarioFault {
    /// Links are worse.
    Links(LinkQuality),
    /// Nothing gets from the first to the second.
    CutOneWay(ProcessPlace, ProcessPlace),
    /// Nothing gets from one to the other.
    Cut(ProcessPlace, ProcessPlace),
    /// Nothing gets to it or from it.
    Isolate(ProcessPlace),
    /// Only clients get to it.
    Seclude(ProcessPlace),
    /// Nothing gets from it to a node, or from a node to it: an instance of the coordinator that still reaches the store.
    Sever(ProcessPlace),
    /// Nothing gets from it to a node.
    Mute(ProcessPlace),
    /// The process dies, and another one starts afterwards, which knows the contents of its disk.
    Crash(ProcessPlace),
    /// As [`Self::Crash`], of an instance of the coordinator, whose disk is lost meanwhile; unless most voters would be lost then.
    Wipe(ProcessPlace),
    /// The process stands still, and goes on where it was.
    Pause(ProcessPlace),
    /// Its clock jumps ahead by half the fault's length, at once.
    Jump(ProcessPlace),
}

/// A fault, when it begins and how long it lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedFault {
    /// The fault.
    pub fault: ScenarioFault,
    /// When, from the start of the run.
    pub at: Duration,
    /// For how long.
    pub lasts: Duration,
}

/// An admin request of the operator, and the earliest time for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedRequest {
    /// When, from the start of the run, and when the request before is done.
    pub at: Duration,
    /// How long after that, at least.
    pub after: Duration,
    /// The request.
    pub want: OperatorRequest,
}

/// The kinds of admin requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperatorRequest {
    /// This of a node.
    Node(u32, AdminRequest),
    /// That losses until then are acknowledged.
    Acknowledge,
}

/// Where the instances of the coordinator keep their state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CoordinatorState {
    /// In a store beside them, as etcd is.
    Store,
    /// In a register of voters, one in each instance.
    Voters,
}

/// The voters of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VoterSettings {
    /// How long a write takes to get to flash, at most, in microseconds.
    pub flash_us: u64,
    /// Entries after which a log is compacted.
    pub log_len_max: usize,
}

/// Everything about a run.
#[derive(Clone, Debug)]
pub struct RunScenario {
    /// The seed of all chance in it.
    pub seed: u64,
    /// Nodes.
    pub nodes: u32,
    /// The first so many of them found the cluster; the others come when they are wanted.
    pub founders: u32,
    /// The admin requests, in this order.
    pub admin_requests: Vec<PlannedRequest>,
    /// Instances of the coordinator.
    pub coordinators: u32,
    /// They have voters; `None`: a store.
    pub voters: Option<VoterSettings>,
    /// Clients.
    pub clients: u32,
    /// Partitions.
    pub partitions: u32,
    /// Members of each mirror group.
    pub redundancy: u8,
    /// Members that are not the primary answer reads, too.
    pub reads_any: bool,
    /// Calls that each client makes.
    pub calls: u32,
    /// Longest pause of a client between two calls, in microseconds.
    pub pause_us: u64,
    /// Links outside of faults.
    pub links: LinkQuality,
    /// Faults, by beginning.
    pub faults: Vec<PlannedFault>,
    /// The dataset is durable; how long a batch takes to get to flash, at most, in microseconds.
    pub flash_us: Option<u64>,
    /// The targets remember; how long a commit takes, at most, in microseconds.
    pub commit_us: Option<u64>,
    /// When the disks of such targets are full: the node, from when, and until when.
    pub full: Vec<(u32, Duration, Duration)>,
    /// One call of the stores of each node fails, in each of its lives: within so many, or, at 0,
    /// none.
    pub failing: Vec<u64>,
    /// Bytes that each node has room for until all faults are over; without an entry, more than is needed.
    pub room: Vec<u64>,
    /// Most bytes in one step of a resync.
    pub resync_step_len: usize,
    /// The rules by which the parts play.
    pub rules: RunRules,
}

/// Whether a node loses its records in memory.
const fn is_death(fault: &ScenarioFault) -> bool {
    matches!(fault, ScenarioFault::Crash(ProcessPlace::Node(_)))
}

impl RunScenario {
    /// The scenario of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let by_voters = SimRng::new(seed).fork(17).chance(500);
        let state = if by_voters { CoordinatorState::Voters } else { CoordinatorState::Store };
        let mut scenario = Self::keeping_state(seed, state);
        scenario.draw_targets(None);
        scenario
    }

    /// The scenario of a seed, with the coordinator's state there and targets of that kind, if that
    /// is said.
    #[must_use]
    pub fn with(seed: u64, state: Option<CoordinatorState>, targets: Option<TargetKind>) -> Self {
        if state.is_none() && targets.is_none() {
            return Self::new(seed);
        }
        let state = state.unwrap_or_else(|| match Self::new(seed).voters {
            Some(_) => CoordinatorState::Voters,
            None => CoordinatorState::Store,
        });
        let mut scenario = Self::keeping_state(seed, state);
        scenario.draw_targets(targets);
        scenario
    }

    /// The scenario of a seed, with the coordinator's state there, and targets that neither remember
    /// nor fail.
    #[must_use]
    pub fn keeping_state(seed: u64, state: CoordinatorState) -> Self {
        let mut rng = SimRng::new(seed).fork(1);
        let mut deposing = SimRng::new(seed).fork(5);
        let deposes = deposing.chance(250);
        let redundancy = if rng.chance(700) { 2 } else { 3 };
        let nodes = rng.between(u64::from(redundancy), 5) as u32;
        // With few nodes, any of them leads much.
        let nodes = if deposes { nodes.min(u32::from(redundancy) + 1) } else { nodes };
        let mut scenario = Self {
            seed,
            nodes,
            founders: nodes,
            admin_requests: Vec::new(),
            coordinators: if rng.chance(500) { 1 } else { 3 },
            voters: None,
            clients: rng.between(2, 5) as u32,
            partitions: rng.between(1, 4) as u32,
            redundancy,
            reads_any: SimRng::new(seed).fork(13).chance(400),
            calls: rng.between(15, 60) as u32,
            pause_us: *rng.pick(&[1_000, 50_000, 300_000]),
            links: LinkQuality {
                latency_us: *rng.pick(&[200, 1_000, 20_000]),
                ..LinkQuality::GOOD
            },
            faults: Vec::new(),
            flash_us: None,
            commit_us: None,
            full: Vec::new(),
            failing: Vec::new(),
            room: Vec::new(),
            // Few, so that there are many steps.
            resync_step_len: 48,
            rules: RunRules::default(),
        };
        let mut voting = SimRng::new(seed).fork(18);
        if state == CoordinatorState::Voters {
            scenario.vote(&mut voting);
        }
        let faults = if rng.chance(50) { 0 } else { rng.between(1, 6) };
        for _ in 0..faults {
            let planned = scenario.fault(&mut rng);
            scenario.faults.push(planned);
        }
        if deposes {
            scenario.depose(&mut deposing);
        }
        scenario.draw_more(seed);
        if scenario.voters.is_some() && voting.chance(600) {
            scenario.unseat(&mut voting);
        }
        scenario.faults.sort_by_key(|planned| planned.at);
        scenario
    }

    /// The options of some scenarios, each drawn from numbers of its own.
    fn draw_more(&mut self, seed: u64) {
        let mut flash = SimRng::new(seed).fork(6);
        if flash.chance(250) {
            self.endure(&mut flash);
        }
        let mut moving = SimRng::new(seed).fork(7);
        if moving.chance(250) {
            self.change_nodes(&mut moving);
        }
        let mut severing = SimRng::new(seed).fork(9);
        if self.coordinators > 1 && severing.chance(150) {
            self.sever(&mut severing);
        }
        let mut striking = SimRng::new(seed).fork(11);
        if striking.chance(150) {
            self.strike(&mut striking);
        }
        let mut filling = SimRng::new(seed).fork(14);
        if filling.chance(300) {
            self.fill(&mut filling);
        }
        let mut losing = SimRng::new(seed).fork(15);
        if losing.chance(150) {
            self.lose(&mut losing);
        }
        let mut damaging = SimRng::new(seed).fork(16);
        if damaging.chance(250) {
            self.damage(&mut damaging);
        }
    }

    /// The instances of the coordinator vote.
    fn vote(&mut self, rng: &mut SimRng) {
        self.coordinators = if rng.chance(750) { 3 } else { 5 };
        self.voters = Some(VoterSettings {
            flash_us: *rng.pick(&[0, 200, 5_000, 30_000]),
            log_len_max: *rng.pick(&[10, 50, 1000]),
        });
    }

    /// Voters die, at once and one after the other, are cut off from each other, and lose their disks.
    fn unseat(&mut self, rng: &mut SimRng) {
        let mut at = rng.micros(100_000, 2_000_000);
        for _ in 0..rng.between(1, 4) {
            let first = rng.below(self.coordinators.into()) as u32;
            // As many as may be lost, and the others.
            let lost = if rng.chance(700) { 1 } else { (self.coordinators - 1) / 2 };
            let turn = |by: u32| ProcessPlace::Coordinator((first + by) % self.coordinators);
            let (few, rest): (Vec<_>, Vec<_>) =
                ((0..lost).map(turn).collect(), (lost..self.coordinators).map(turn).collect());
            let longest = *rng.pick(&[300_000, 1_500_000, 4_000_000]);
            let mut faults = Vec::new();
            let mut plan = |fault, at, lasts| faults.push(PlannedFault { fault, at, lasts });
            match rng.below(10) {
                // The power fails.
                0..2 => {
                    for place in few.iter().chain(&rest) {
                        let apart = *rng.pick(&[0, 1_000, 100_000]);
                        let begins = at + rng.micros(0, apart);
                        plan(ScenarioFault::Crash(*place), begins, rng.micros(50_000, longest));
                    }
                }
                2..5 => {
                    for place in &few {
                        let begins = at + rng.micros(0, 300_000);
                        plan(ScenarioFault::Wipe(*place), begins, rng.micros(50_000, longest));
                    }
                }
                // Some voters miss the decisions of the others; of those, some are lost; and the
                // decisions that they find when they are back are the ones left.
                5..8 => {
                    let away =
                        if rng.chance(500) { ScenarioFault::Isolate } else { ScenarioFault::Crash };
                    let lasts = rng.micros(300_000, 2_000_000);
                    rest[1..]
                        .iter()
                        .take(few.len())
                        .for_each(|place| plan(away(*place), at, lasts));
                    let meets = at + lasts;
                    let begins = meets - rng.micros(0, 200_000);
                    for place in &few {
                        plan(ScenarioFault::Wipe(*place), begins, rng.micros(10_000, 300_000));
                    }
                    plan(ScenarioFault::Crash(rest[0]), begins, rng.micros(100_000, longest));
                }
                _ => {
                    for (from, to) in
                        few.iter().flat_map(|few| rest.iter().map(move |to| (few, to)))
                    {
                        let cut = if rng.chance(500) {
                            ScenarioFault::Cut
                        } else {
                            ScenarioFault::CutOneWay
                        };
                        if rng.chance(700) {
                            plan(cut(*from, *to), at, rng.micros(100_000, longest));
                        }
                    }
                }
            }
            let ends = faults.iter().map(|planned| planned.at + planned.lasts).max();
            self.faults.append(&mut faults);
            at = ends.unwrap_or(at).max(at) + rng.micros(0, 2_000_000);
        }
    }

    /// Connections end all the time, for bytes of them are damaged.
    fn damage(&mut self, rng: &mut SimRng) {
        for _ in 0..rng.between(1, 2) {
            let corrupt = *rng.pick(&[5, 30, 100]);
            let fault = ScenarioFault::Links(LinkQuality { corrupt, ..self.links });
            let at = rng.micros(0, 4_000_000);
            self.faults.push(PlannedFault { fault, at, lasts: rng.micros(200_000, 5_000_000) });
        }
    }

    /// Nodes get full, some sooner than others.
    fn fill(&mut self, rng: &mut SimRng) {
        (self.calls, self.clients) = (60, self.clients.max(3));
        let partitions = u64::from(self.partitions);
        self.room = (0..self.nodes).map(|_| rng.between(60, 100 + 250 * partitions)).collect();
    }

    /// Nodes are added, drained, removed and added again while all goes on.
    fn change_nodes(&mut self, rng: &mut SimRng) {
        let late = rng.below(3) as u32;
        let mut at = Duration::ZERO;
        // The request before may come a second time, late: an operator that takes it back waits for
        // that.
        let late_for = Duration::from_millis(2_500);
        let mut admin_requests = Vec::new();
        let mut want = |rng: &mut SimRng, node, request, after| {
            at += rng.micros(100_000, 1_500_000);
            admin_requests.push(PlannedRequest {
                at,
                after,
                want: OperatorRequest::Node(node, request),
            });
            at
        };
        self.nodes = self.founders + late;
        // The first node that comes founds the cluster: when things go wrong, one that was to come
        // later.
        for node in 0..self.nodes {
            let lasts = want(rng, node, AdminRequest::Add, Duration::ZERO);
            if node >= self.founders {
                let fault = ScenarioFault::Crash(ProcessPlace::Node(node));
                self.faults.push(PlannedFault { fault, at: Duration::ZERO, lasts });
            }
        }
        for _ in 0..rng.between(1, 2) {
            // The nodes that stay are enough.
            if self.nodes <= u32::from(self.redundancy) {
                break;
            }
            let node = rng.below(self.nodes.into()) as u32;
            want(rng, node, AdminRequest::Drain, Duration::ZERO);
            if rng.chance(600) {
                want(rng, node, AdminRequest::Remove { force: false }, Duration::ZERO);
                want(rng, node, AdminRequest::Add, late_for);
            } else {
                want(rng, node, AdminRequest::Undrain, late_for);
            }
        }
        admin_requests.extend((0..self.nodes).map(|node| {
            let after = if node == 0 { late_for } else { Duration::ZERO };
            PlannedRequest { at, after, want: OperatorRequest::Node(node, AdminRequest::Add) }
        }));
        self.admin_requests = admin_requests;
    }

    /// An acknowledged change is on flash, so that all nodes may die at once.
    fn endure(&mut self, rng: &mut SimRng) {
        self.flash_us = Some(*rng.pick(&[200, 5_000, 30_000]));
        // Long enough for something to be under way at any time.
        (self.calls, self.pause_us) = (60, *rng.pick(&[50_000, 300_000]));
        self.clients = self.clients.max(3);
        self.cut_power(rng);
    }

    /// All nodes die.
    fn cut_power(&mut self, rng: &mut SimRng) {
        for _ in 0..rng.below(3) {
            let latest = if self.pause_us > 100_000 { 8_000_000 } else { 2_000_000 };
            let at = rng.micros(400_000, latest);
            for node in (0..self.nodes).map(ProcessPlace::Node) {
                // Not quite at once, and some are back much sooner than others.
                let apart = *rng.pick(&[0, 0, 1_000, 300_000]);
                let longest = *rng.pick(&[200_000, 3_000_000]);
                let at = at + rng.micros(0, apart);
                let lasts = rng.micros(50_000, longest);
                self.faults.push(PlannedFault { fault: ScenarioFault::Crash(node), at, lasts });
            }
        }
    }

    /// Records in memory go with all nodes that have them, and mostly an operator acknowledges
    /// that, sooner or later.
    fn lose(&mut self, rng: &mut SimRng) {
        self.flash_us = None;
        if rng.chance(600) {
            self.redundancy = 1;
        }
        // Something is under way at any time.
        (self.calls, self.pause_us) = (60, *rng.pick(&[50_000, 300_000]));
        self.clients = self.clients.max(3);
        let latest = if self.pause_us > 100_000 { 8_000_000 } else { 2_000_000 };
        for _ in 0..rng.between(1, 2) {
            let at = rng.micros(400_000, latest);
            let dies = if self.redundancy == 1 { *rng.pick(&[500, 1000]) } else { 1000 };
            let mut well_at = at;
            for node in (0..self.nodes).map(ProcessPlace::Node) {
                let (begins, lasts) = (at + rng.micros(0, 1_000), rng.micros(50_000, 1_000_000));
                if rng.chance(dies) {
                    self.faults.push(PlannedFault {
                        fault: ScenarioFault::Crash(node),
                        at: begins,
                        lasts,
                    });
                    well_at = well_at.max(begins + lasts);
                }
            }
            if rng.chance(700) {
                let at = well_at + rng.micros(0, 4_000_000);
                self.admin_requests.push(PlannedRequest {
                    at,
                    after: Duration::ZERO,
                    want: OperatorRequest::Acknowledge,
                });
            }
        }
        self.admin_requests.sort_by_key(|wished| wished.at);
    }

    /// All instances of the coordinator but one are cut off from the nodes for a while, and not from the store.
    fn sever(&mut self, rng: &mut SimRng) {
        let spared = rng.below(self.coordinators.into()) as u32;
        for id in (0..self.coordinators).filter(|id| *id != spared) {
            let place = ProcessPlace::Coordinator(id);
            let fault = if rng.chance(500) {
                ScenarioFault::Sever(place)
            } else {
                ScenarioFault::Mute(place)
            };
            let at = rng.micros(200_000, 4_000_000);
            let lasts = rng.micros(2_000_000, 15_000_000);
            self.faults.push(PlannedFault { fault, at, lasts });
        }
    }

    /// A node dies and comes back, and about when it has been brought up to date another one hears nothing of the coordinator any more, cannot reach it either, and
    /// dies in its turn.
    fn strike(&mut self, rng: &mut SimRng) {
        // Something is under way at any time.
        (self.calls, self.pause_us, self.partitions) = (60, 50_000, 1);
        self.clients = self.clients.max(4);
        let node = rng.below(self.nodes.into()) as u32;
        let other = (node + 1 + rng.below(u64::from(self.nodes) - 1) as u32) % self.nodes;
        let (node, other) = (ProcessPlace::Node(node), ProcessPlace::Node(other));
        let mut plan = |fault, at, lasts| self.faults.push(PlannedFault { fault, at, lasts });
        let (at, lasts) = (rng.micros(100_000, 800_000), rng.micros(50_000, 400_000));
        plan(ScenarioFault::Crash(node), at, lasts);
        let deaf_at = at + lasts + rng.micros(50_000, 700_000);
        let cut_at = deaf_at + rng.micros(0, 300_000);
        let dies_at = cut_at + rng.micros(0, 300_000);
        for id in 0..self.coordinators {
            let deaf = ScenarioFault::CutOneWay(ProcessPlace::Coordinator(id), other);
            plan(deaf, deaf_at, dies_at - deaf_at);
        }
        plan(ScenarioFault::CutOneWay(other, node), cut_at, dies_at - cut_at);
        plan(ScenarioFault::Crash(other), dies_at, rng.micros(1_000_000, 3_000_000));
    }

    /// A node is away until others have its place, while some clients go on there, and some, after
    /// they stood still, take it for the primary that it was.
    fn depose(&mut self, rng: &mut SimRng) {
        self.pause_us = 300_000;
        self.calls = 60;
        self.clients = self.clients.max(3);
        let node = ProcessPlace::Node(rng.below(u64::from(self.nodes)) as u32);
        let at = rng.micros(500_000, 2_500_000);
        let lasts = rng.micros(2_500_000, 4_500_000);
        let mut plan = |fault, at, lasts| self.faults.push(PlannedFault { fault, at, lasts });
        plan(ScenarioFault::Seclude(node), at, lasts);
        if rng.chance(500) {
            // The other members hear of it before it hears of the map.
            let longer = lasts + rng.micros(300_000, 1_500_000);
            (0..self.coordinators).for_each(|id| {
                plan(ScenarioFault::Cut(node, ProcessPlace::Coordinator(id)), at, longer)
            });
        }
        for client in (0..self.clients).map(ProcessPlace::Client) {
            let begins = at + rng.micros(0, 1_200_000);
            let heals = at + lasts;
            match rng.below(10) {
                0..4 => plan(ScenarioFault::Cut(node, client), at, lasts),
                4..7 => plan(ScenarioFault::Pause(client), at, rng.micros(1_800_000, 2_800_000)),
                7..9 => plan(
                    ScenarioFault::Pause(client),
                    begins,
                    heals - begins + rng.micros(0, 1_000_000),
                ),
                _ => {}
            }
        }
    }

    fn fault(&self, rng: &mut SimRng) -> PlannedFault {
        let node = ProcessPlace::Node(rng.below(u64::from(self.nodes)) as u32);
        let place = self.place(rng);
        let other = self.place(rng);
        let fault = match rng.below(100) {
            0..15 => ScenarioFault::Links(LinkQuality {
                loss: rng.between(0, 150) as u16,
                duplicate: rng.between(0, 150) as u16,
                reorder: rng.between(0, 300) as u16,
                corrupt: 0,
                latency_us: *rng.pick(&[500, 5_000, 50_000]),
            }),
            15..25 => ScenarioFault::CutOneWay(node, other),
            25..40 => ScenarioFault::Cut(node, other),
            40..50 => ScenarioFault::Isolate(place),
            50..75 => ScenarioFault::Crash(if rng.chance(750) { node } else { place }),
            75..92 => ScenarioFault::Pause(if rng.chance(700) { node } else { place }),
            _ => ScenarioFault::Jump(place),
        };
        let mut at = Duration::from_micros(rng.below(8_000_000));
        let longest = *rng.pick(&[100_000, 1_000_000, 3_000_000, 6_000_000]);
        // Memory is lost for good when all members die at one time; mostly the one before has come back.
        let before = self.faults.iter().filter(|planned| is_death(&planned.fault));
        let before = before.map(|planned| planned.at + planned.lasts).max();
        if let Some(before) = before.filter(|_| is_death(&fault) && rng.chance(850)) {
            at = at.max(before + rng.micros(3_000_000, 6_000_000));
        }
        PlannedFault { fault, at, lasts: rng.micros(longest / 20, longest) }
    }

    fn place(&self, rng: &mut SimRng) -> ProcessPlace {
        match rng.below(100) {
            0..60 => ProcessPlace::Node(rng.below(self.nodes.into()) as u32),
            60..75 => ProcessPlace::Coordinator(rng.below(self.coordinators.into()) as u32),
            75..80 if self.voters.is_none() => ProcessPlace::Store,
            75..80 => ProcessPlace::Coordinator(rng.below(self.coordinators.into()) as u32),
            _ => ProcessPlace::Client(rng.below(self.clients.into()) as u32),
        }
    }

    /// When the last fault is over.
    #[must_use]
    pub fn well_at(&self) -> Duration {
        let ends = self.faults.iter().map(|planned| planned.at + planned.lasts);
        let admin_requests = self.admin_requests.last().map(|wished| wished.at);
        let full = self.full.iter().map(|(_, _, until)| *until);
        ends.chain(admin_requests).chain(full).max().unwrap_or_default()
    }
}
