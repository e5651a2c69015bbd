//! Runs the processes, and makes things go wrong meanwhile.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use samite_client::kv::Kv;
use samite_client::{Client, Options};
use samite_testkit::ProcessCluster;
use samite_types::{NodeId, Redundancy};

use super::evidence::Evidence;
use super::members;
use super::worker::{COUNTER, DATASET, parse};
use crate::door::library;
use crate::rng::Rng;
use crate::timeline::{Timeline, stamp};
use crate::whole;

/// Processes that work.
const WORKERS: u64 = 8;
/// For how long the cluster is to be seen whole before the next node is harmed: a primary takes 0.6 s to notice that a member does not follow, and the map
/// that says so takes its way through etcd before anybody sees it.
const WHOLE_MIN: Duration = Duration::from_secs(1);
/// How long members may differ once the groups are whole.
const EQUAL_MAX: Duration = Duration::from_secs(5);
/// How often it is looked whether a process has found something wrong.
const LOOK: Duration = Duration::from_millis(50);
/// What is compared in the end.
const DATASETS: [&str; 2] = [DATASET, library::DATASET];
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
    workers: Workers,
    timeline: Timeline,
}

/// Does one run. `helper` is the program `samite-trust`; in `keep` goes what is known of a run that was wrong.
///
/// # Errors
/// What was wrong, in words, and where what is known of it is.
pub fn run(plan: &Plan, helper: &Path, keep: &Path) -> Result<Summary, String> {
    let mirror = plan.mirror.to_string();
    let args = ["--memory", "64M", "--mirror", &mirror, "--coordinator", "etcd"];
    let cluster = ProcessCluster::start(plan.nodes, &args).map_err(|error| error.to_string())?;
    let options = Options { redundancy: Redundancy(plan.mirror), ..Options::default() };
    let client = cluster.client(options).map_err(|error| error.to_string())?;
    let (rng, workers, timeline) = (Rng::new(plan.seed), Workers::default(), Timeline::default());
    let mut run = Run { plan, cluster, client, rng, workers, timeline };
    run.go(helper).map_err(|wrong| {
        run.timeline.note(format_args!("wrong: {wrong}"));
        match run.keep(keep, &wrong) {
            Ok(kept) => format!("{wrong}\n  what is known of it: {}", kept.display()),
            Err(error) => format!("{wrong}\n  nothing of it could be kept: {error}"),
        }
    })
}

/// The processes, each with the file that holds what it says of things that are wrong; killed when dropped.
#[derive(Default)]
struct Workers(Vec<(Child, PathBuf)>);

/// What a process said that found something wrong.
fn words(path: &Path) -> String {
    let said = fs::read_to_string(path).unwrap_or_default();
    let last = said.lines().rev().find_map(|line| line.strip_prefix("samite-trust: "));
    last.unwrap_or("nothing").to_owned()
}

impl Workers {
    /// Whether all are at work still.
    fn look(&mut self) -> Result<(), String> {
        for ((child, path), number) in self.0.iter_mut().zip(0..) {
            if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
                return Err(format!("client {number}: {status}: {}", words(path)));
            }
        }
        Ok(())
    }

    /// Ends all in order: calls, raises of the counter, and the longest call.
    fn finish(&mut self) -> Result<(u64, u64, (Duration, String)), String> {
        for (child, _) in &mut self.0 {
            drop(child.stdin.take());
        }
        let (mut calls, mut raised, mut pause) = (0, 0, (0, String::new()));
        for ((mut child, path), number) in self.0.drain(..).zip(0..) {
            let mut said = String::new();
            let read = child.stdout.take().map(|mut out| out.read_to_string(&mut said));
            read.transpose().map_err(|error| error.to_string())?;
            let status = child.wait().map_err(|error| error.to_string())?;
            let (told, what) = said.split_once('\n').unwrap_or_default();
            let figures: Vec<u64> =
                told.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            match figures[..] {
                [did, counted, longest] if status.success() => {
                    calls += did;
                    raised += counted;
                    pause = pause.max((longest, what.trim().to_owned()));
                }
                _ => return Err(format!("client {number}: {status}: {}", words(&path))),
            }
        }
        Ok((calls, raised, (Duration::from_micros(pause.0), pause.1)))
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for (child, _) in &mut self.0 {
            // It may have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Run<'_> {
    fn go(&mut self, helper: &Path) -> Result<Summary, String> {
        let made = self.client.create_dataset(&self.client.spec(DATASET));
        made.map_err(|error| error.to_string())?;
        for number in 0..WORKERS {
            let worker = self.worker(helper, number).map_err(|error| error.to_string())?;
            self.workers.0.push(worker);
        }
        self.timeline.note("all clients work");
        for _ in 0..self.plan.times {
            self.pause(300, 1500)?;
            self.harm().map_err(|error| format!("{:?}: {error}", self.plan.fault))?;
            self.become_whole()?;
        }
        self.pause(300, 600)?;
        self.timeline.note("the clients are to end");
        let (calls, raised, (pause, what)) = self.workers.finish()?;
        self.become_whole()?;
        self.compare_members()?;
        let dataset = self.client.dataset(DATASET).map_err(|error| error.to_string())?;
        let counter = Kv::new(dataset).get(COUNTER).map_err(|error| error.to_string())?;
        let counted = counter.map_or(Ok(0), |value| parse(&value.bytes))?;
        if counted != raised {
            return Err(format!("the counter is {counted}, and was raised {raised} times"));
        }
        Ok(Summary { calls, pause, what })
    }

    fn keep(&self, parent: &Path, wrong: &str) -> std::io::Result<PathBuf> {
        let evidence = Evidence {
            cluster: &self.cluster,
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

    fn worker(&self, helper: &Path, number: u64) -> std::io::Result<(Child, PathBuf)> {
        let dir = self.cluster.scratch().join("clients");
        fs::create_dir_all(&dir)?;
        let path = dir.join(format!("c{number}.txt"));
        let mut command = Command::new(helper);
        command.env("SAMITE_RUNTIME_DIR", self.cluster.runtime_path()).env_remove("SAMITE_CLUSTER");
        command.args(["chaos-work", "--number", &number.to_string()]);
        command.args(["--of", &WORKERS.to_string(), "--seed", &self.plan.seed.to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(File::create(&path)?);
        Ok((command.spawn()?, path))
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
        let done = self.cluster.run(args).map(drop).map_err(|error| error.to_string());
        self.timeline.note(format_args!("samite {words} has ended"));
        done
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
                self.pause(3000, 5000)?;
                self.samite(&["fault", "clear"])
            }
            Fault::EtcdLeader => {
                self.become_whole()?;
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

    /// Kills a node while no other lacks anything: nobody promises that what one node alone has outlives that.
    fn kill_and_restart(&mut self, node: &str) -> Result<(), String> {
        self.become_whole()?;
        self.samite(&["fault", "kill", node])?;
        self.pause(200, 2500)?;
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
        self.pause(2000, 5000)?;
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
        self.timeline.note(format_args!("kills etcd's process {victim}"));
        rustix::process::kill_process(pid, rustix::process::Signal::KILL)
            .map_err(|errno| errno.to_string())
    }

    /// Every member of every group holds the same, byte for byte.
    fn compare_members(&self) -> Result<(), String> {
        // A primary that has just begun a term is followed at once, but not in the same moment.
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
