//! `samite-sim`: runs seeds, and shows their results.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use samite_sim::audit::RuleViolation;
use samite_sim::rules::{BrokenRule, RunRules};
use samite_sim::run::{RunReport, run, run_twice};
use samite_sim::scale::{chart, measure, page};
use samite_sim::scenario::{CoordinatorState, RunScenario, TargetKind};
use samite_sim::shrink::shrink;
use serde_json::json;

/// Tries the store's own decisions on a simulated network, simulated clocks and simulated disks.
///
/// Every run follows from its seed. A run that breaks a rule is made smaller and shown; its seed shows it again.
#[derive(Debug, Parser)]
#[command(
    name = "samite-sim",
    after_help = "Examples:\n  samite-sim --seeds 10000 --jobs 2\n  samite-sim --seed 42\n  samite-sim --seed 42 --calls 7 --faults 1,3\n  samite-sim --seeds 1000 --wrong no-dedupe\n  samite-sim --seeds 1000 --twice\n  samite-sim --scale 4..512"
)]
struct SimArgs {
    /// How many seeds to run
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first of them
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Threads; every run has one of its own
    #[arg(long)]
    jobs: Option<usize>,
    /// Run this seed alone, and show everything that happens
    #[arg(long)]
    seed: Option<u64>,
    /// With --seed: so many calls for each client
    #[arg(long, requires = "seed")]
    calls: Option<u32>,
    /// With --seed: so many clients
    #[arg(long, requires = "seed")]
    clients: Option<u32>,
    /// With --seed: so many partitions
    #[arg(long, requires = "seed")]
    partitions: Option<u32>,
    /// With --seed: only these of its faults, counted from 0; "none" for none
    #[arg(long, requires = "seed")]
    faults: Option<String>,
    /// Break a rule on purpose: a failure is expected then
    #[arg(long, value_parser = wrong)]
    wrong: Option<BrokenRule>,
    /// Keep the coordinator's state there; by default that is up to the seed
    #[arg(long, value_enum)]
    coordinator: Option<CoordinatorState>,
    /// Have targets of that kind in all seeds; by default that is up to the seed
    #[arg(long, value_enum)]
    targets: Option<TargetKind>,
    /// Run each seed twice: the two runs must be the same, event by event
    #[arg(long, conflicts_with = "seed")]
    twice: bool,
    /// Measure how things grow with the nodes, from the first number to the second by doubling, in place of seeds; writes docs/scale.md
    #[arg(long, value_name = "FROM..TO", value_parser = range)]
    scale: Option<(u32, u32)>,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
}

fn wrong(name: &str) -> Result<BrokenRule, String> {
    let names = || BrokenRule::ALL.map(BrokenRule::name).join(", ");
    BrokenRule::ALL
        .into_iter()
        .find(|wrong| wrong.name() == name)
        .ok_or_else(|| format!("one of {}", names()))
}

fn range(text: &str) -> Result<(u32, u32), String> {
    let parsed =
        text.split_once("..").and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
    parsed.filter(|(from, to)| (2..=*to).contains(from)).ok_or_else(|| "as in 4..512".to_owned())
}

/// Measures with more and more nodes, and writes the page.
fn scale((from, to): (u32, u32), as_json: bool) -> Result<(), String> {
    let mut all = Vec::new();
    let mut nodes = from;
    while nodes <= to {
        let begun = Instant::now();
        let metrics = measure(nodes).map_err(|cause| format!("{nodes} nodes: {cause}"))?;
        if as_json {
            println!("{}", json!(metrics));
        } else {
            println!("{metrics:?} in {:.1} s", begun.elapsed().as_secs_f64());
        }
        all.push(metrics);
        nodes *= 2;
    }
    let written = std::fs::write("docs/scale.md", page(&all))
        .and_then(|()| std::fs::write("docs/scale.svg", chart(&all)));
    written.map_err(|error| format!("docs/scale.md: {error}; run it at the top of the tree"))
}

fn main() -> ExitCode {
    let args = SimArgs::parse();
    if let Some(range) = args.scale {
        return match scale(range, args.json) {
            Ok(()) => ExitCode::SUCCESS,
            Err(cause) => {
                eprintln!("samite-sim: {cause}");
                ExitCode::FAILURE
            }
        };
    }
    let rules = RunRules { wrong: args.wrong };
    let is_fine = match args.seed {
        Some(seed) => match one(seed, rules, &args) {
            Ok(is_fine) => is_fine,
            Err(cause) => {
                eprintln!("samite-sim: {cause}");
                return ExitCode::from(2);
            }
        },
        None => many(rules, &args),
    };
    if is_fine { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs one seed and shows it.
fn one(seed: u64, rules: RunRules, args: &SimArgs) -> Result<bool, String> {
    let mut scenario =
        RunScenario { rules, ..RunScenario::with(seed, args.coordinator, args.targets) };
    scenario.calls = args.calls.unwrap_or(scenario.calls);
    scenario.clients = args.clients.unwrap_or(scenario.clients);
    scenario.partitions = args.partitions.unwrap_or(scenario.partitions);
    if let Some(kept) = &args.faults {
        scenario.faults = chosen(kept, &scenario)?;
    }
    println!(
        "seed {seed}: {} nodes, {} coordinators, {} clients with {} calls, {} partitions of {} members",
        scenario.nodes,
        scenario.coordinators,
        scenario.clients,
        scenario.calls,
        scenario.partitions,
        scenario.redundancy
    );
    if let Some(flash_us) = scenario.flash_us {
        println!("durable: a batch takes up to {flash_us} us to get to flash");
    }
    if let Some(commit_us) = scenario.commit_us {
        println!("targets remember: a commit takes up to {commit_us} us");
    }
    for (node, from, to) in &scenario.full {
        println!("full: the disk of n{node} from {from:?} to {to:?}");
    }
    if !scenario.failing.is_empty() {
        println!("failing: one call of each life, within {:?}", scenario.failing);
    }
    if !scenario.room.is_empty() {
        println!("full: nodes have room for {:?} bytes", scenario.room);
    }
    if let Some(voters) = scenario.voters {
        println!("voters: a write takes up to {} us to get to flash", voters.flash_us);
    }
    for wished in &scenario.admin_requests {
        println!("wish: from {:?} on: {:?}", wished.at, wished.want);
    }
    for (index, planned) in scenario.faults.iter().enumerate() {
        println!("fault {index}: at {:?} for {:?}: {:?}", planned.at, planned.lasts, planned.fault);
    }
    let report = run(&scenario, true);
    for line in &report.lines {
        println!("{line}");
    }
    for violation in &report.violations {
        println!("VIOLATION {violation}");
    }
    println!(
        "{} events, {} calls, {:?} simulated, trace {:016x}",
        report.events, report.calls, report.time, report.hash
    );
    Ok(report.violations.is_empty())
}

fn chosen(
    kept: &str,
    scenario: &RunScenario,
) -> Result<Vec<samite_sim::scenario::PlannedFault>, String> {
    if kept == "none" {
        return Ok(Vec::new());
    }
    kept.split(',')
        .map(|index| {
            let index: usize =
                index.trim().parse().map_err(|_| format!("--faults: {index:?} is no number"))?;
            let fault = scenario.faults.get(index).copied();
            fault.ok_or_else(|| format!("--faults: there are {}", scenario.faults.len()))
        })
        .collect()
}

/// The totals of all runs together.
#[derive(Debug, Default)]
struct RunTotals {
    seeds: u64,
    events: u64,
    calls: u64,
    too_hard: u64,
    simulated: Duration,
    failed: BTreeMap<u64, RuleViolation>,
}

impl RunTotals {
    fn add(&mut self, seed: u64, report: RunReport) {
        self.seeds += 1;
        self.events += report.events;
        self.calls += report.calls as u64;
        self.too_hard += u64::from(report.too_hard);
        self.simulated += report.time;
        if let Some(violation) = report.violations.into_iter().next() {
            self.failed.insert(seed, violation);
        }
    }

    fn merge(&mut self, other: Self) {
        self.seeds += other.seeds;
        self.events += other.events;
        self.calls += other.calls;
        self.too_hard += other.too_hard;
        self.simulated += other.simulated;
        self.failed.extend(other.failed);
    }
}

/// Failures after which no more seeds are run.
const FAILURES_MAX: u64 = 20;

fn many(rules: RunRules, args: &SimArgs) -> bool {
    let jobs = args.jobs.or_else(|| std::thread::available_parallelism().ok().map(Into::into));
    let (next, failures) = (AtomicU64::new(args.from), AtomicU64::new(0));
    let is_over = AtomicBool::new(false);
    let end = args.from.saturating_add(args.seeds);
    let begun = Instant::now();
    let work = || {
        let mut totals = RunTotals::default();
        while !is_over.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end {
                break;
            }
            let whole = RunScenario::with(seed, args.coordinator, args.targets);
            let scenario = RunScenario { rules, ..whole };
            let report = if args.twice { run_twice(&scenario) } else { run(&scenario, false) };
            if !report.violations.is_empty()
                && failures.fetch_add(1, Ordering::Relaxed) + 1 >= FAILURES_MAX
            {
                is_over.store(true, Ordering::Relaxed);
            }
            totals.add(seed, report);
        }
        totals
    };
    let mut totals = RunTotals::default();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs.unwrap_or(1).max(1)).map(|_| scope.spawn(work)).collect();
        for thread in threads {
            if let Ok(part) = thread.join() {
                totals.merge(part);
            } else {
                failures.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    show(&totals, begun.elapsed(), rules, args);
    failures.into_inner() == 0
}

fn show(totals: &RunTotals, took: Duration, rules: RunRules, args: &SimArgs) {
    let per_minute = totals.seeds as f64 * 60.0 / took.as_secs_f64().max(1e-9);
    if args.json {
        let failed: Vec<_> = totals
            .failed
            .iter()
            .map(|(seed, violation)| {
                json!({"seed": seed, "rule": violation.rule, "words": violation.words})
            })
            .collect();
        let summary = json!({
            "seeds": totals.seeds,
            "failed": failed,
            "calls": totals.calls,
            "events": totals.events,
            "not_judged": totals.too_hard,
            "simulated_s": totals.simulated.as_secs(),
            "took_s": took.as_secs_f64(),
            "seeds_per_minute": per_minute.round(),
        });
        println!("{summary}");
        return;
    }
    for (seed, violation) in &totals.failed {
        println!("seed {seed}: {violation}");
    }
    if let Some(seed) = totals.failed.keys().next() {
        show_small(*seed, rules, args);
    }
    println!(
        "{} seeds, {} failed; {} calls, {} events, {} h simulated in {:.1} s ({per_minute:.0} seeds/min), {} histories too long to judge",
        totals.seeds,
        totals.failed.len(),
        totals.calls,
        totals.events,
        totals.simulated.as_secs() / 3600,
        took.as_secs_f64(),
        totals.too_hard
    );
}

/// Says how to see the first failure, as small as it can be made.
fn show_small(seed: u64, rules: RunRules, args: &SimArgs) {
    let whole = RunScenario { rules, ..RunScenario::with(seed, args.coordinator, args.targets) };
    let Some((small, report)) = shrink(&whole) else { return };
    let kept: Vec<String> = whole
        .faults
        .iter()
        .enumerate()
        .filter(|(_, fault)| small.faults.contains(fault))
        .map(|(index, _)| index.to_string())
        .collect();
    let kept = if kept.is_empty() { "none".to_owned() } else { kept.join(",") };
    let wrong = rules.wrong.map_or(String::new(), |wrong| format!(" --wrong {wrong}"));
    let state = args.coordinator.and_then(|state| state.to_possible_value());
    let state = state.map_or(String::new(), |state| format!(" --coordinator {}", state.get_name()));
    let targets = args.targets.and_then(|targets| targets.to_possible_value());
    let targets = targets.map_or(String::new(), |kind| format!(" --targets {}", kind.get_name()));
    println!(
        "smallest: samite-sim --seed {seed} --calls {} --clients {} --partitions {} --faults {kept}{wrong}{state}{targets}",
        small.calls, small.clients, small.partitions
    );
    for violation in &report.violations {
        println!("  {violation}");
    }
}
