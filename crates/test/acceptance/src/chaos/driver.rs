//! Runs the processes, and makes things go wrong meanwhile.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use samite_client::{Client, ClientOptions};
use samite_kv::KvView;
use samite_types::{NodeId, Redundancy};

use super::evidence::ChaosEvidence;
use super::members;
use super::worker::{COUNTER, DATASET, parse};
use crate::access_path::library;
use crate::rng::AcceptanceRng;
use crate::stage::{AcceptanceStage, StagePath};
use crate::timeline::{Timeline, stamp};
use crate::whole;

/// Processes that work by the library, and on files by each other way.
const WORKERS: u64 = 8;
const FILE_WORKERS: u64 = 2;
/// A run counts when so many calls of each way were answered, and so many nodes had a fault
/// meanwhile; and the store was full as often, where it is to be.
const CALLS_MIN: u64 = 1000;
const INJECTED_MIN: u32 = 2;
/// For how long the cluster is to be seen whole before the next node gets a fault: a primary takes
/// 0.6 s to notice that a member does not follow, and the map that says so takes its way through
/// etcd before anybody sees it.
const WHOLE_MIN: Duration = Duration::from_secs(1);
/// How long members may differ once the groups are whole.
const EQUAL_MAX: Duration = Duration::from_secs(5);
/// How often it is looked whether a process has found something wrong.
const LOOK: Duration = Duration::from_millis(50);
/// The data that are compared in the end.
const DATASETS: [&str; 2] = [DATASET, library::DATASET];
/// How long a stopped node sleeps.
const STOP: &str = "10s";

/// The faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ChaosFault {
    /// A node is killed and started again.
    Kill,
    /// A node is stopped for 10 s and goes on.
    Stop,
    /// A node gets no lease, map or answer from the coordinator that leads, while it and the other
    /// members of its groups still reach each other.
    CutCoordinator,
    /// Two nodes hear nothing of each other as members of groups, while both hear the coordinator.
    CutPeer,
    /// Two nodes hear nothing of each other.
    Cut,
    /// All links lose, double and reorder frames.
    Lossy,
    /// Frames on all links are damaged, which ends their connections.
    Corrupt,
    /// Connections are reset at random.
    Reset,
    /// A member of etcd is killed, and then the node whose coordinator leads.
    EtcdLeader,
    /// The node whose coordinator leads is killed and started again.
    Coordinator,
    /// The node whose coordinator leads and another one are killed within one lease, and started again.
    Two,
    /// A node is killed and started again while the store gets full, is so for a while, and is emptied by half.
    Full,
}

/// Where the cluster map is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ChaosCoordinator {
    /// Where `samite up` has it unless told otherwise.
    Replicated,
    /// In an etcd that is started along.
    Etcd,
}

/// One run.
#[derive(Clone, Debug)]
pub struct ChaosPlan {
    /// Nodes.
    pub nodes: usize,
    /// Redundancy.
    pub mirror: u8,
    /// Where the cluster map is kept.
    pub coordinator: ChaosCoordinator,
    /// The faults.
    pub fault: ChaosFault,
    /// How often.
    pub times: u32,
    /// Where the random numbers start.
    pub seed: u64,
}

/// The result of a run without errors.
#[derive(Clone, Debug)]
pub struct ChaosSummary {
    /// Calls of all processes.
    pub calls: u64,
    /// Whether enough of them went every way, and enough went wrong, to say anything.
    pub counts: bool,
    /// The longest of them.
    pub pause: Duration,
    /// Which that was.
    pub what: String,
}

struct ChaosRun<'a> {
    plan: &'a ChaosPlan,
    stage: AcceptanceStage,
    client: Client,
    rng: AcceptanceRng,
    /// Nodes that have not had a fault yet, in the order in which they get one.
    victims: Vec<u32>,
    workers: ChaosWorkers,
    timeline: Timeline,
}

/// Does one run. `helper` is the program `samite-acceptance`; in `keep` goes the evidence of a failed
/// run.
///
/// # Errors
/// The errors, in words, and the place of the evidence.
pub fn run(plan: &ChaosPlan, helper: &Path, keep: &Path) -> Result<ChaosSummary, String> {
    let mirror = plan.mirror.to_string();
    let memory = if plan.fault == ChaosFault::Full { "24M" } else { "64M" };
    let mut args = vec!["--memory", memory, "--mirror", &mirror];
    // Its member cannot be killed where there is none.
    if plan.coordinator == ChaosCoordinator::Etcd || plan.fault == ChaosFault::EtcdLeader {
        args.extend(["--coordinator", "etcd"]);
    }
    let stage =
        AcceptanceStage::with(plan.nodes, &args, helper).map_err(|error| error.to_string())?;
    let options = ClientOptions { redundancy: Redundancy(plan.mirror), ..ClientOptions::default() };
    let client = stage.cluster.client(options).map_err(|error| error.to_string())?;
    let (rng, workers, timeline) =
        (AcceptanceRng::new(plan.seed), ChaosWorkers::default(), Timeline::default());
    let victims = Vec::new();
    let mut run = ChaosRun { plan, stage, client, rng, victims, workers, timeline };
    run.go().map_err(|wrong| {
        run.timeline.note(format_args!("wrong: {wrong}"));
        match run.keep(keep, &wrong) {
            Ok(kept) => format!("{wrong}\n  what is known of it: {}", kept.display()),
            Err(error) => format!("{wrong}\n  nothing of it could be kept: {error}"),
        }
    })
}

/// The processes, each with the file of its error messages; killed when dropped.
#[derive(Default)]
struct ChaosWorkers(Vec<(Child, PathBuf, StagePath)>);

/// The messages of a process that found an error.
fn words(path: &Path) -> String {
    let said = fs::read_to_string(path).unwrap_or_default();
    let last = said.lines().rev().find_map(|line| line.strip_prefix("samite-acceptance: "));
    last.unwrap_or("nothing").to_owned()
}

impl ChaosWorkers {
    /// Whether all are at work still.
    fn look(&mut self) -> Result<(), String> {
        for ((child, path, _), number) in self.0.iter_mut().zip(0..) {
            if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
                return Err(format!("client {number}: {status}: {}", words(path)));
            }
        }
        Ok(())
    }

    /// Ends all in order.
    fn finish(&mut self) -> Result<ChaosTotals, String> {
        for (child, ..) in &mut self.0 {
            drop(child.stdin.take());
        }
        let mut all = ChaosTotals::default();
        for ((mut child, path, way), number) in self.0.drain(..).zip(0..) {
            let mut said = String::new();
            let read = child.stdout.take().map(|mut out| out.read_to_string(&mut said));
            read.transpose().map_err(|error| error.to_string())?;
            let status = child.wait().map_err(|error| error.to_string())?;
            let (told, what) = said.split_once('\n').unwrap_or_default();
            let numbers: Vec<u64> =
                told.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            match numbers[..] {
                [calls, raised, full, longest] if status.success() => {
                    *all.calls.entry(way.name()).or_default() += calls;
                    all.raised += raised;
                    all.full += full;
                    let longest = Duration::from_micros(longest);
                    all.pause = std::mem::take(&mut all.pause).max((longest, what.trim().into()));
                }
                _ => return Err(format!("client {number}: {status}: {}", words(&path))),
            }
        }
        Ok(all)
    }
}

/// The work of all processes.
#[derive(Default)]
struct ChaosTotals {
    /// Calls by each way.
    calls: BTreeMap<&'static str, u64>,
    /// Raises of the counter.
    raised: u64,
    /// Times that the store was full.
    full: u64,
    /// The longest call, and which it was.
    pause: (Duration, String),
}

impl Drop for ChaosWorkers {
    fn drop(&mut self) {
        for (child, ..) in &mut self.0 {
            // It may have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl ChaosRun<'_> {
    fn go(&mut self) -> Result<ChaosSummary, String> {
        let made = self.client.create_dataset(&self.client.spec(DATASET));
        made.map_err(|error| error.to_string())?;
        for number in 0..WORKERS {
            self.start_worker(StagePath::Library, "chaos-work", number)?;
        }
        for (way, number) in [StagePath::Preload, StagePath::Mount].into_iter().zip(0..) {
            for worker in 0..FILE_WORKERS {
                self.start_worker(way, "chaos-files", number * FILE_WORKERS + worker)?;
            }
            if self.plan.fault == ChaosFault::Full {
                self.start_worker(way, "chaos-fill", number)?;
            }
        }
        self.timeline.note("all clients work");
        for _ in 0..self.plan.times {
            self.pause(300, 1500)?;
            self.inject_fault().map_err(|error| format!("{:?}: {error}", self.plan.fault))?;
            self.become_whole()?;
        }
        self.pause(300, 600)?;
        self.timeline.note("the clients are to end");
        let ChaosTotals { calls, raised, full, pause: (pause, what) } = self.workers.finish()?;
        self.become_whole()?;
        self.compare_members()?;
        let dataset = self.client.dataset(DATASET).map_err(|error| error.to_string())?;
        let counter = KvView::new(dataset).get(COUNTER).map_err(|error| error.to_string())?;
        let counted = counter.map_or(Ok(0), |value| parse(&value.bytes))?;
        if counted != raised {
            return Err(format!("the counter is {counted}, and was raised {raised} times"));
        }
        let is_full = self.plan.fault != ChaosFault::Full || u64::from(self.plan.times) <= full;
        let is_long = calls.values().all(|did| *did >= CALLS_MIN);
        let counts = self.plan.times >= INJECTED_MIN && is_long && is_full;
        println!("calls: {calls:?}; {full} times full");
        Ok(ChaosSummary { calls: calls.values().sum(), counts, pause, what })
    }

    fn keep(&self, parent: &Path, wrong: &str) -> std::io::Result<PathBuf> {
        let evidence = ChaosEvidence {
            cluster: &self.stage.cluster,
            client: &self.client,
            nodes: self.plan.nodes,
            datasets: &DATASETS,
            timeline: &self.timeline,
            words: format!("{:?}\n{wrong}\n", self.plan),
        };
        let (fault, seed) = (self.plan.fault, self.plan.seed);
        let at = stamp().replace([':', '.'], "-");
        evidence.keep(parent, &format!("{fault:?}-{seed}-{at}").to_lowercase())
    }

    fn start_worker(&mut self, way: StagePath, work: &str, number: u64) -> Result<(), String> {
        let dir = self.stage.cluster.scratch().join("clients");
        let path = dir.join(format!("{work}-{number}.txt"));
        let said = fs::create_dir_all(&dir).and_then(|()| File::create(&path));
        let said = said.map_err(|error| error.to_string())?;
        let (number, of) = (number.to_string(), WORKERS.to_string());
        let seed = self.plan.seed.to_string();
        let mut args = vec![work, "--number", &number];
        if work != "chaos-fill" {
            args.extend(["--seed", &seed]);
            if self.plan.fault == ChaosFault::Full {
                args.push("--gets-full");
            }
        }
        if work == "chaos-work" {
            args.extend(["--of", &of]);
        }
        let mut command = self.stage.helper(way, &args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(said);
        let child = command.spawn().map_err(|error| error.to_string())?;
        self.workers.0.push((child, path, way));
        Ok(())
    }

    /// Lets some time pass, while nothing is found wrong.
    fn pause(&mut self, least_ms: u64, most_ms: u64) -> Result<(), String> {
        let length = least_ms + self.rng.below(most_ms - least_ms);
        let until = Instant::now() + Duration::from_millis(length);
        loop {
            self.workers.look()?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(LOOK));
        }
    }

    /// Waits until the cluster has been whole for a while.
    fn become_whole(&mut self) -> Result<(), String> {
        let begun = Instant::now();
        let mut whole_since = None;
        loop {
            self.workers.look()?;
            match whole::look(&self.client) {
                Err(lacks) if begun.elapsed() > whole::HEAL_MAX => {
                    let seconds = whole::HEAL_MAX.as_secs();
                    return Err(format!("not whole after {seconds} s: {lacks}"));
                }
                Err(_) => whole_since = None,
                Ok(epoch) => {
                    let since = *whole_since.get_or_insert_with(Instant::now);
                    if since.elapsed() >= WHOLE_MIN {
                        self.timeline.note(format_args!("whole by the map of {epoch}"));
                        return Ok(());
                    }
                }
            }
            std::thread::sleep(LOOK);
        }
    }

    fn samite(&mut self, args: &[&str]) -> Result<(), String> {
        let words = args.join(" ");
        self.timeline.note(format_args!("samite {words} begins"));
        let done = self.stage.cluster.run(args).map(drop).map_err(|error| error.to_string());
        self.timeline.note(format_args!("samite {words} has ended"));
        done
    }

    /// The next node that gets a fault: each has its turn before any has another.
    fn any_node(&mut self) -> String {
        if self.victims.is_empty() {
            self.victims = (0..self.plan.nodes as u32).collect();
        }
        let index = self.rng.below(self.victims.len() as u64) as usize;
        self.victims.swap_remove(index).to_string()
    }

    fn any_node_but(&mut self, node: &str) -> String {
        loop {
            let other = self.any_node();
            if other != node {
                return other;
            }
        }
    }

    /// Node of the coordinator that leads, as the nodes say.
    fn leader(&self) -> Result<NodeId, String> {
        (0..self.plan.nodes as u32)
            .find_map(|node| self.client.node_status(NodeId(node)).ok()?.leader)
            .ok_or_else(|| "nobody leads".to_owned())
    }

    fn inject_fault(&mut self) -> Result<(), String> {
        match self.plan.fault {
            ChaosFault::Kill | ChaosFault::Full => {
                let node = self.any_node();
                self.kill_and_restart(&node)
            }
            ChaosFault::Stop => {
                let node = self.any_node();
                self.samite(&["fault", "pause", &node, "--for", STOP])
            }
            ChaosFault::CutCoordinator => {
                let leader = self.leader()?.get().to_string();
                self.cut_off_from(&leader, "cut-coordinator")
            }
            ChaosFault::CutPeer => {
                let node = self.any_node();
                self.cut_off_from(&node, "cut-peer")
            }
            ChaosFault::Cut => {
                let node = self.any_node();
                self.cut_off_from(&node, "cut")
            }
            ChaosFault::Lossy => {
                let rules = ["drop 5% * *", "duplicate 5% * *", "reorder 5% * *"];
                self.samite(&["fault", "set", rules[0], rules[1], rules[2]])?;
                self.pause(3000, 5000)?;
                self.samite(&["fault", "clear"])
            }
            ChaosFault::Corrupt => self.for_a_while("corrupt 3% * *"),
            ChaosFault::Reset => self.for_a_while("reset 3% * *"),
            ChaosFault::EtcdLeader => {
                self.become_whole()?;
                self.kill_etcd()?;
                self.kill_leader()
            }
            ChaosFault::Coordinator => self.kill_leader(),
            ChaosFault::Two => self.kill_two(),
        }
    }

    /// All links are so for some seconds.
    fn for_a_while(&mut self, rule: &str) -> Result<(), String> {
        self.samite(&["fault", "set", rule])?;
        self.pause(3000, 5000)?;
        self.samite(&["fault", "clear"])
    }

    fn kill_leader(&mut self) -> Result<(), String> {
        let leader = self.leader()?.get().to_string();
        self.kill_and_restart(&leader)
    }

    /// Kills the node whose coordinator leads, and another one shortly after.
    fn kill_two(&mut self) -> Result<(), String> {
        self.become_whole()?;
        let leader = self.leader()?.get().to_string();
        let other = self.any_node_but(&leader);
        self.samite(&["fault", "kill", &leader])?;
        self.pause(0, 1000)?;
        self.samite(&["fault", "kill", &other])?;
        self.pause(200, 2500)?;
        self.samite(&["node", "restart", &leader])?;
        self.samite(&["node", "restart", &other])
    }

    /// Kills a node while no other lacks anything: records that one node alone has need not outlive
    /// that.
    fn kill_and_restart(&mut self, node: &str) -> Result<(), String> {
        self.become_whole()?;
        self.samite(&["fault", "kill", node])?;
        self.pause(200, 2500)?;
        self.samite(&["node", "restart", node])
    }

    /// `node` and another one hear nothing of each other for a while, or nothing of some kind.
    fn cut_off_from(&mut self, node: &str, cut: &str) -> Result<(), String> {
        let other = self.any_node_but(node);
        let (there, back) = (format!("{cut} {node} {other}"), format!("{cut} {other} {node}"));
        self.samite(&["fault", "set", &there, &back])?;
        self.pause(2000, 5000)?;
        self.samite(&["fault", "clear"])
    }

    /// Kills one of etcd's members: over several runs, each of them was its leader now and then. Two have to live.
    fn kill_etcd(&mut self) -> Result<(), String> {
        let file = self.stage.cluster.file().map_err(|error| error.to_string())?;
        let members = file.setup.etcd_members;
        let is_whole = members.iter().all(|member| is_alive(member.pid, member.start_ticks));
        if !is_whole {
            return Ok(());
        }
        let victim = self.rng.pick(&members).pid;
        let pid = i32::try_from(victim).ok().and_then(rustix::process::Pid::from_raw);
        let pid = pid.ok_or("a member of etcd has no pid")?;
        self.timeline.note(format_args!("kills etcd's process {victim}"));
        rustix::process::kill_process(pid, rustix::process::Signal::KILL)
            .map_err(|errno| errno.to_string())
    }

    /// Every member of every group holds the same, byte for byte.
    fn compare_members(&self) -> Result<(), String> {
        // A primary that has just begun a term is followed at once, but not at the same time.
        let begun = Instant::now();
        loop {
            match members::compare(&self.client, &DATASETS) {
                Err(words) if begun.elapsed() > EQUAL_MAX => return Err(words),
                Err(_) => std::thread::sleep(LOOK),
                Ok(()) => return Ok(()),
            }
        }
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
