//! Starts the processes, gives them their rounds, compares.

use std::io;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use super::model::ModelTree;
use super::own::{Wrong, verify};
use super::shared::{self, SharedEffect};
use super::worker::{RoundOrder, RoundReport};
use crate::access_path::AccessPath;
use crate::access_path::agent::{AgentPath, receive, send};
use crate::rng::AcceptanceRng;
use crate::stage::{AcceptanceStage, StagePath};

/// How long a process may take for a round beyond its length.
const ROUND_EXTRA: Duration = Duration::from_secs(60);

/// The plan of a run.
#[derive(Clone, Debug)]
pub struct StressPlan {
    /// Nodes of the cluster.
    pub nodes: usize,
    /// Nodes that hold each record.
    pub mirror: u8,
    /// The processes, by way.
    pub workers: Vec<StagePath>,
    /// How long, all in all.
    pub length: Duration,
    /// Length of a round.
    pub round: Duration,
    /// Where the random numbers start.
    pub seed: u64,
}

/// The work that was done.
#[derive(Clone, Copy, Debug, Default)]
pub struct StressSummary {
    /// Rounds.
    pub rounds: u64,
    /// Steps of all processes; one is one call or a few.
    pub steps: u64,
    /// Calls that were made again because the kernel of a mount said ESTALE.
    pub stale: u64,
}

/// Runs a plan with the program `helper` (`samite-acceptance`).
///
/// # Errors
/// The differences, with the last calls of the process that saw them.
pub fn run(
    plan: &StressPlan,
    helper: &Path,
    tell: &mut dyn FnMut(StressSummary),
) -> Result<StressSummary, Wrong> {
    let stage = AcceptanceStage::mirrored(plan.nodes, plan.mirror, "1G", helper);
    let stage = stage.map_err(|error| error.to_string())?;
    let mut accesses = StagePath::ALL.map(|way| stage.access_path(way));
    shared::set_up(&mut accesses[0])?;
    let mut workers: Vec<StressWorker> = Vec::new();
    for (index, way) in plan.workers.iter().enumerate() {
        accesses[0].mkdir(&root(index)).map_err(|errno| format!("mkdir: errno {errno}"))?;
        workers.push(StressWorker::start(&stage, *way).map_err(|error| error.to_string())?);
    }
    let mut trees = vec![ModelTree::default(); workers.len()];
    let mut rng = AcceptanceRng::new(plan.seed);
    let (start, mut summary) = (Instant::now(), StressSummary::default());
    while start.elapsed() < plan.length {
        let round = summary.rounds;
        shared::begin_round(&mut accesses[0], round)?;
        let done = play(plan, &mut workers, &mut trees, round, (&mut rng, &mut summary))
            .map_err(|wrong| format!("round {round}: {wrong}"))?;
        compare(&mut accesses, round, &mut trees, &done)
            .map_err(|wrong| format!("after round {round}: {wrong}"))?;
        summary.rounds += 1;
        tell(summary);
    }
    // Everything once more, over every access path.
    for access in &mut accesses {
        for (index, tree) in trees.iter_mut().enumerate() {
            verify(access, &root(index), tree)?;
        }
    }
    Ok(summary)
}

/// One round: every process has a subtree, another one than before.
fn play(
    plan: &StressPlan,
    workers: &mut [StressWorker],
    trees: &mut [ModelTree],
    round: u64,
    (rng, summary): (&mut AcceptanceRng, &mut StressSummary),
) -> Result<Vec<SharedEffect>, Wrong> {
    let subtree = |worker: usize| (worker + round as usize) % trees.len();
    for (index, worker) in workers.iter_mut().enumerate() {
        let order = RoundOrder {
            worker: index as u64,
            round,
            root: root(subtree(index)),
            tree: trees[subtree(index)].clone(),
            seed: rng.number(),
            milliseconds: plan.round.as_millis() as u64,
        };
        worker.order(&order).map_err(|error| format!("process {index}: {error}"))?;
    }
    let until = Instant::now() + plan.round + ROUND_EXTRA;
    let mut done = Vec::new();
    for (index, worker) in workers.iter().enumerate() {
        let who = format!("process {index} by {:?}", worker.way);
        match worker.report(until) {
            Some(RoundReport::Right { tree, done: its, steps }) => {
                trees[(index + round as usize) % plan.workers.len()] = tree;
                summary.stale += its.stale;
                summary.steps += steps;
                done.push(its);
            }
            Some(RoundReport::Wrong { what, calls }) => {
                return Err(format!("{who}: {what}\nits last calls:\n  {}", calls.join("\n  ")));
            }
            None => return Err(format!("{who} died, or hangs")),
        }
    }
    Ok(done)
}

/// Compares after a round, over the access paths in turn.
fn compare(
    accesses: &mut [AgentPath],
    round: u64,
    trees: &mut [ModelTree],
    done: &[SharedEffect],
) -> Result<(), Wrong> {
    let index = round as usize % accesses.len();
    shared::end_round(&mut accesses[index], round, done)?;
    let index = round as usize % trees.len();
    verify(&mut accesses[round as usize % 3], &root(index), &mut trees[index])
}

fn root(index: usize) -> String {
    format!("/own{index}")
}

/// A process under way.
struct StressWorker {
    way: StagePath,
    child: Child,
    input: ChildStdin,
    reports: Receiver<RoundReport>,
}

impl StressWorker {
    fn start(stage: &AcceptanceStage, way: StagePath) -> io::Result<Self> {
        let mut command = stage.helper(way, &["work"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("a child without pipes"));
        };
        let (sender, reports) = channel();
        std::thread::spawn(move || pass_on(output, &sender));
        Ok(Self { way, child, input, reports })
    }

    fn order(&mut self, order: &RoundOrder) -> io::Result<()> {
        send(&mut self.input, order)
    }

    /// The reports that it makes in time.
    fn report(&self, until: Instant) -> Option<RoundReport> {
        self.reports.recv_timeout(until.saturating_duration_since(Instant::now())).ok()
    }
}

/// Reads reports until the process has ended, or nobody wants them.
fn pass_on(mut output: ChildStdout, reports: &std::sync::mpsc::Sender<RoundReport>) {
    while let Ok(Some(report)) = receive(&mut output) {
        if reports.send(report).is_err() {
            return;
        }
    }
}

impl Drop for StressWorker {
    fn drop(&mut self) {
        // It may have died before.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
