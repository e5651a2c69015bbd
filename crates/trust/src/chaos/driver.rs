//! Runs the processes, and makes things go wrong meanwhile.

use std::io::Read as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use samite_client::kv::Kv;
use samite_client::{Client, Options};
use samite_testkit::ProcessCluster;
use samite_types::{NodeId, PartitionId, Redundancy};
use samite_wire::control::Member;

use super::worker::{COUNTER, DATASET, parse};
use crate::rng::Rng;
use crate::whole::wait_whole;

/// Processes that work.
const WORKERS: u64 = 8;
/// How long members may differ once the groups are whole.
const EQUAL_MAX: Duration = Duration::from_secs(5);
/// How long a stopped node sleeps.
const STOP: &str = "10s";

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Fault {
    /// A node is killed and started again.
    Kill,
    /// A node is stopped for 10 s and goes on.
    Stop,
    /// A node gets no lease, map or answer from the coordinator that leads, while it and the other members of its groups hear each other.
    CutCoordinator,
    /// Two nodes hear nothing of each other as members of groups, while both hear the coordinator.
    CutPeer,
    /// Two nodes hear nothing of each other.
    Cut,
    /// All links lose, double and reorder frames.
    Lossy,
    /// A member of etcd is killed, and then the node whose coordinator leads.
    EtcdLeader,
    /// The node whose coordinator leads is killed and started again.
    Coordinator,
}

/// One run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Nodes.
    pub nodes: usize,
    /// Redundancy.
    pub mirror: u8,
    /// What goes wrong.
    pub fault: Fault,
    /// How often.
    pub times: u32,
    /// Where the random numbers start.
    pub seed: u64,
}

/// What came of a run in which nothing was wrong.
#[derive(Clone, Debug)]
pub struct Summary {
    /// Calls of all processes.
    pub calls: u64,
    /// The longest of them.
    pub pause: Duration,
    /// Which that was.
    pub what: String,
}

struct Run<'a> {
    plan: &'a Plan,
    cluster: ProcessCluster,
    client: Client,
    rng: Rng,
}

/// Does one run. `helper` is the program `samite-trust`.
///
/// # Errors
/// What was wrong, in words.
pub fn run(plan: &Plan, helper: &Path) -> Result<Summary, String> {
    let mirror = plan.mirror.to_string();
    let args = ["--memory", "64M", "--mirror", &mirror, "--coordinator", "etcd"];
    let cluster = ProcessCluster::start(plan.nodes, &args).map_err(|error| error.to_string())?;
    let options = Options { redundancy: Redundancy(plan.mirror), ..Options::default() };
    let client = cluster.client(options).map_err(|error| error.to_string())?;
    client.create_dataset(&client.spec(DATASET)).map_err(|error| error.to_string())?;
    let mut run = Run { plan, cluster, client, rng: Rng::new(plan.seed) };
    let mut workers = Workers(Vec::new());
    for number in 0..WORKERS {
        workers.0.push(run.worker(helper, number)?);
    }
    for _ in 0..plan.times {
        run.pause(300, 1500);
        run.harm().map_err(|error| format!("{:?}: {error}", plan.fault))?;
        wait_whole(&run.client)?;
    }
    run.pause(300, 600);
    let (calls, raised, (pause, what)) = workers.finish()?;
    wait_whole(&run.client)?;
    run.compare_members()?;
    let counter = Kv::new(run.client.dataset(DATASET).map_err(|error| error.to_string())?)
        .get(COUNTER)
        .map_err(|error| error.to_string())?;
    let counted = counter.map_or(Ok(0), |value| parse(&value.bytes))?;
    if counted != raised {
        return Err(format!("the counter is {counted}, and was raised {raised} times"));
    }
    Ok(Summary { calls, pause, what })
}

/// The processes; killed when dropped.
struct Workers(Vec<Child>);

impl Workers {
    /// Ends all in order: calls, raises of the counter, and the longest call.
    fn finish(&mut self) -> Result<(u64, u64, (Duration, String)), String> {
        for child in &mut self.0 {
            drop(child.stdin.take());
        }
        let (mut calls, mut raised, mut pause) = (0, 0, (0, String::new()));
        for (mut child, number) in self.0.drain(..).zip(0..) {
            let mut said = String::new();
            let read = child.stdout.take().map(|mut out| out.read_to_string(&mut said));
            read.transpose().map_err(|error| error.to_string())?;
            let status = child.wait().map_err(|error| error.to_string())?;
            let (figures, what) = said.split_once('\n').unwrap_or_default();
            let figures: Vec<u64> =
                figures.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            match figures[..] {
                [did, counted, longest] if status.success() => {
                    calls += did;
                    raised += counted;
                    pause = pause.max((longest, what.trim().to_owned()));
                }
                _ => return Err(format!("client {number}: {status}: {said}")),
            }
        }
        Ok((calls, raised, (Duration::from_micros(pause.0), pause.1)))
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // It may have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Run<'_> {
    fn worker(&self, helper: &Path, number: u64) -> Result<Child, String> {
        let mut command = Command::new(helper);
        command.env("SAMITE_RUNTIME_DIR", self.cluster.runtime_path()).env_remove("SAMITE_CLUSTER");
        command.args(["chaos-work", "--number", &number.to_string()]);
        command.args(["--of", &WORKERS.to_string(), "--seed", &self.plan.seed.to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.spawn().map_err(|error| format!("start a client: {error}"))
    }

    fn pause(&mut self, least_ms: u64, most_ms: u64) {
        let length = least_ms + self.rng.below(most_ms - least_ms);
        std::thread::sleep(Duration::from_millis(length));
    }

    fn samite(&self, args: &[&str]) -> Result<(), String> {
        self.cluster.run(args).map(drop).map_err(|error| error.to_string())
    }

    fn any_node(&mut self) -> String {
        self.rng.below(self.plan.nodes as u64).to_string()
    }

    /// Node of the coordinator that leads, as the nodes say.
    fn leader(&self) -> Result<NodeId, String> {
        (0..self.plan.nodes as u32)
            .find_map(|node| self.client.node_status(NodeId(node)).ok()?.leader)
            .ok_or_else(|| "nobody leads".to_owned())
    }

    fn harm(&mut self) -> Result<(), String> {
        match self.plan.fault {
            Fault::Kill => {
                let node = self.any_node();
                self.kill_and_restart(&node)
            }
            Fault::Stop => {
                let node = self.any_node();
                self.samite(&["fault", "pause", &node, "--for", STOP])
            }
            Fault::CutCoordinator => {
                let leader = self.leader()?.get().to_string();
                self.cut_off_from(&leader, "cut-coordinator")
            }
            Fault::CutPeer => {
                let node = self.any_node();
                self.cut_off_from(&node, "cut-peer")
            }
            Fault::Cut => {
                let node = self.any_node();
                self.cut_off_from(&node, "cut")
            }
            Fault::Lossy => {
                let rules = ["drop 5% * *", "duplicate 5% * *", "reorder 5% * *"];
                self.samite(&["fault", "set", rules[0], rules[1], rules[2]])?;
                self.pause(3000, 5000);
                self.samite(&["fault", "clear"])
            }
            Fault::EtcdLeader => {
                self.kill_etcd()?;
                self.kill_leader()
            }
            Fault::Coordinator => self.kill_leader(),
        }
    }

    fn kill_leader(&mut self) -> Result<(), String> {
        let leader = self.leader()?.get().to_string();
        self.kill_and_restart(&leader)
    }

    fn kill_and_restart(&mut self, node: &str) -> Result<(), String> {
        self.samite(&["fault", "kill", node])?;
        self.pause(200, 2500);
        self.samite(&["node", "restart", node])
    }

    /// `node` and another one hear nothing of each other for a while, or nothing of some kind.
    fn cut_off_from(&mut self, node: &str, cut: &str) -> Result<(), String> {
        let other = loop {
            let other = self.any_node();
            if other != node {
                break other;
            }
        };
        let (there, back) = (format!("{cut} {node} {other}"), format!("{cut} {other} {node}"));
        self.samite(&["fault", "set", &there, &back])?;
        self.pause(2000, 5000);
        self.samite(&["fault", "clear"])
    }

    /// Kills one of etcd's members: over several runs, each of them was its leader now and then. Two have to live.
    fn kill_etcd(&mut self) -> Result<(), String> {
        let file = self.cluster.file().map_err(|error| error.to_string())?;
        let members = file.setup.etcd_members;
        let is_whole = members.iter().all(|member| is_alive(member.pid, member.start_ticks));
        if !is_whole {
            return Ok(());
        }
        let victim = self.rng.pick(&members).pid;
        let pid = i32::try_from(victim).ok().and_then(rustix::process::Pid::from_raw);
        let pid = pid.ok_or("a member of etcd has no pid")?;
        rustix::process::kill_process(pid, rustix::process::Signal::KILL)
            .map_err(|errno| errno.to_string())
    }

    /// Every member of every group holds the same, byte for byte.
    fn compare_members(&self) -> Result<(), String> {
        // A primary that has just begun a term is followed at once, but not in the same moment.
        let begun = Instant::now();
        loop {
            match self.differing_members() {
                Err(words) if begun.elapsed() > EQUAL_MAX => return Err(words),
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
                Ok(()) => return Ok(()),
            }
        }
    }

    fn differing_members(&self) -> Result<(), String> {
        let dataset = self.client.dataset(DATASET).map_err(|error| error.to_string())?;
        let map = self.client.map().map_err(|error| error.to_string())?;
        let table = map.table(Redundancy(self.plan.mirror)).ok_or("no table of mirror groups")?;
        for (group, partition) in table.groups.iter().zip(0..) {
            let copy_at = |member: &Member| {
                let node = map.node_of_target(member.target).ok_or("a target without node")?;
                self.client
                    .partition_copy(node, dataset.id(), PartitionId(partition))
                    .map_err(|error| error.to_string())
            };
            let copies: Result<Vec<_>, String> = group.members.iter().map(copy_at).collect();
            let copies = copies?;
            if copies.windows(2).any(|pair| pair[0] != pair[1]) {
                return Err(format!("members of partition {partition} differ: {copies:?}"));
            }
        }
        Ok(())
    }
}

/// Whether the process still runs that had `pid` when it started at `start_ticks`, and is no zombie.
fn is_alive(pid: u32, start_ticks: u64) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    let Some((_, rest)) = stat.rsplit_once(')') else { return false };
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks = fields.get(19).and_then(|ticks| ticks.parse::<u64>().ok());
    fields.first() != Some(&"Z") && ticks == Some(start_ticks)
}
