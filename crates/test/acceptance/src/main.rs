//! The program that makes calls for tests, and the stress test.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use samite_acceptance::access_path::AccessPath;
use samite_acceptance::access_path::agent::serve;
use samite_acceptance::access_path::library::LibraryPath;
use samite_acceptance::access_path::posix::PosixPath;
use samite_acceptance::chaos::{self, driver::ChaosCoordinator, driver::ChaosFault};
use samite_acceptance::stage::{StagePath, TestWatchdog};
use samite_acceptance::stress::driver::{self, StressPlan};
use samite_acceptance::stress::worker;
use samite_client::Client;
use samite_client::runtime::DEFAULT_CLUSTER;

#[derive(Parser)]
struct AcceptanceArgs {
    #[command(subcommand)]
    command: AcceptanceCommand,
}

#[derive(Subcommand)]
enum AcceptanceCommand {
    /// Make calls for a test, which come on standard input
    Serve {
        /// Files below this directory; without it, those of the store by the library
        #[arg(long)]
        root: Option<String>,
    },
    /// Be one process of the stress test, with orders on standard input
    Work {
        /// As for serve
        #[arg(long)]
        root: Option<String>,
    },
    /// Make random calls from 8 processes, 4 of them preloaded and 4 on a mount, and compare with a model
    Stress {
        /// How long
        #[arg(long, default_value_t = 600)]
        seconds: u64,
        /// Where the random numbers start; the time of day unless given
        #[arg(long)]
        seed: Option<u64>,
        /// Nodes of the cluster
        #[arg(long, default_value_t = 2)]
        nodes: usize,
        /// Nodes that hold each record
        #[arg(long, default_value_t = 1)]
        mirror: u8,
        /// Length of a round, after which everything is compared
        #[arg(long, default_value_t = 2000)]
        round_milliseconds: u64,
        /// The processes: l by the library, p preloaded, m on a mount
        #[arg(long, default_value = "pmpmpmpm")]
        workers: String,
    },
    /// Send bent frames to a node's sockets while a client works, and see that neither minds
    FuzzSocket {
        /// How long
        #[arg(long, default_value_t = 600)]
        seconds: u64,
        /// Where the random numbers start; the time of day unless given
        #[arg(long)]
        seed: Option<u64>,
    },
    /// Be one process of the chaos test
    ChaosWork {
        /// Which
        #[arg(long)]
        number: u64,
        /// Of how many
        #[arg(long)]
        of: u64,
        /// Where the random numbers start
        #[arg(long)]
        seed: u64,
        /// There may be no room for all
        #[arg(long)]
        gets_full: bool,
    },
    /// Be one process of the chaos test, on files by any way
    ChaosFiles {
        /// As for serve
        #[arg(long)]
        root: Option<String>,
        /// Which
        #[arg(long)]
        number: u64,
        /// Where the random numbers start
        #[arg(long)]
        seed: u64,
        /// There may be no room for all
        #[arg(long)]
        gets_full: bool,
    },
    /// Be the process of the chaos test that fills the store and empties it by half, again and again
    ChaosFill {
        /// As for serve
        #[arg(long)]
        root: Option<String>,
        /// Which
        #[arg(long)]
        number: u64,
    },
    /// Let nodes of a mirrored cluster die, stop or be cut off while 12 processes work, and check what they find
    Chaos {
        /// How often, each time with a cluster of its own
        #[arg(long, default_value_t = 10)]
        runs: u64,
        /// Where the random numbers of the first run start; the time of day unless given
        #[arg(long)]
        seed: Option<u64>,
        /// Nodes of the cluster
        #[arg(long, default_value_t = 3)]
        nodes: usize,
        /// Nodes that hold each record
        #[arg(long, default_value_t = 2)]
        mirror: u8,
        /// Where the cluster map is kept
        #[arg(long, value_enum, default_value_t = ChaosCoordinator::Replicated)]
        coordinator: ChaosCoordinator,
        /// What goes wrong
        #[arg(long, value_enum, default_value_t = ChaosFault::Kill)]
        fault: ChaosFault,
        /// How often in each run
        #[arg(long, default_value_t = 2)]
        times: u32,
        /// Where what is known of wrong runs goes: logs, maps, who holds what, and what was done when
        #[arg(long, value_name = "DIR", default_value = "/tmp/samite-chaos")]
        keep: PathBuf,
    },
}

fn main() -> ExitCode {
    let done = match AcceptanceArgs::parse().command {
        AcceptanceCommand::Serve { root } => access_path(root)
            .and_then(|mut access| serve(&mut *access).map_err(|error| error.to_string())),
        AcceptanceCommand::Work { root } => access_path(root)
            .and_then(|mut access| worker::run(&mut *access).map_err(|error| error.to_string())),
        AcceptanceCommand::Stress { seconds, seed, nodes, mirror, round_milliseconds, workers } => {
            ways(&workers).and_then(|workers| {
                let round = Duration::from_millis(round_milliseconds);
                let length = Duration::from_secs(seconds);
                let seed = seed.unwrap_or_else(clock);
                stress(&StressPlan { nodes, mirror, workers, length, round, seed })
            })
        }
        AcceptanceCommand::FuzzSocket { seconds, seed } => {
            fuzz_socket(Duration::from_secs(seconds), seed.unwrap_or_else(clock))
        }
        AcceptanceCommand::ChaosWork { number, of, seed, gets_full } => {
            Client::from_runtime(DEFAULT_CLUSTER)
                .map_err(|error| error.to_string())
                .and_then(|client| chaos::worker::run(&client, (number, of), seed, gets_full))
                .map(|told| told.tell())
        }
        AcceptanceCommand::ChaosFiles { root, number, seed, gets_full } => access_path(root)
            .and_then(|mut access| {
                let is_over = chaos::worker::until_input_ends();
                chaos::files::run(&mut *access, (number, seed), gets_full, &is_over)
            })
            .map(|told| told.tell()),
        AcceptanceCommand::ChaosFill { root, number } => access_path(root)
            .and_then(|mut access| {
                let is_over = chaos::worker::until_input_ends();
                chaos::files::fill(&mut *access, number, &is_over)
            })
            .map(|told| told.tell()),
        AcceptanceCommand::Chaos { runs, seed, nodes, mirror, coordinator, fault, times, keep } => {
            let first = seed.unwrap_or_else(clock);
            let plan = |run| {
                let seed = first + run;
                chaos::driver::ChaosPlan { nodes, mirror, coordinator, fault, times, seed }
            };
            try_chaos((0..runs).map(plan), &keep)
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("samite-acceptance: {error}");
            ExitCode::FAILURE
        }
    }
}

fn access_path(root: Option<String>) -> Result<Box<dyn AccessPath>, String> {
    if let Some(root) = root {
        return Ok(Box::new(PosixPath::new(&root)));
    }
    let client = Client::from_runtime(DEFAULT_CLUSTER).map_err(|error| error.to_string())?;
    Ok(Box::new(LibraryPath::open(&client).map_err(|error| error.to_string())?))
}

fn clock() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

fn ways(workers: &str) -> Result<Vec<StagePath>, String> {
    let way = |letter| match letter {
        'l' => Ok(StagePath::Library),
        'p' => Ok(StagePath::Preload),
        'm' => Ok(StagePath::Mount),
        other => Err(format!("--workers: {other:?} is none of l, p and m")),
    };
    workers.chars().map(way).collect()
}

fn fuzz_socket(length: Duration, seed: u64) -> Result<(), String> {
    let _watchdog = TestWatchdog::new("fuzz-socket", length * 2 + Duration::from_secs(60));
    println!("fuzz-socket: seed {seed}, {} s", length.as_secs());
    match samite_acceptance::fuzz::run(length, seed) {
        Ok(done) => {
            let (before, after) = done.resident_kib;
            println!(
                "fuzz-socket: {} connections, {} of them with the key; {} frames, {} of them past the handshake; {} calls of others; the node had {before} KiB, has {after}",
                done.connections, done.admitted, done.frames, done.admitted_frames, done.calls
            );
            Ok(())
        }
        Err(error) => Err(format!("seed {seed}: {error}")),
    }
}

fn try_chaos(
    plans: impl Iterator<Item = chaos::driver::ChaosPlan>,
    keep: &Path,
) -> Result<(), String> {
    const RUN_MAX: Duration = Duration::from_secs(300);
    let helper = std::env::current_exe().map_err(|error| error.to_string())?;
    let (mut pauses, mut wrong, mut counted) = (Vec::new(), 0, 0);
    for plan in plans {
        let _watchdog = TestWatchdog::new("chaos", RUN_MAX);
        match chaos::driver::run(&plan, &helper, keep) {
            Ok(summary) => {
                let pause = summary.pause.as_millis();
                let (calls, what) = (summary.calls, summary.what);
                let none = if summary.counts { "" } else { " (too little to count)" };
                println!("seed {}: {calls} calls{none}, longest {pause} ms: {what}", plan.seed);
                counted += u32::from(summary.counts);
                pauses.push(pause);
            }
            Err(error) => {
                println!("seed {}: WRONG: {error}", plan.seed);
                wrong += 1;
            }
        }
    }
    pauses.sort_unstable();
    for percent in [50, 95, 100] {
        if let Some(pause) = pauses.get((pauses.len() * percent).div_ceil(100).saturating_sub(1)) {
            println!("longest call: {percent} % of the runs up to {pause} ms");
        }
    }
    println!("{counted} runs count");
    match (wrong, counted) {
        (0, 1..) => Ok(()),
        (0, 0) => Err("no run had enough calls and faults to count".to_owned()),
        _ => Err(format!("{wrong} runs were wrong")),
    }
}

fn stress(plan: &StressPlan) -> Result<(), String> {
    /// Between two lines about how far it is.
    const TELL_EVERY: Duration = Duration::from_secs(30);
    let _watchdog = TestWatchdog::new("stress", plan.length * 2 + Duration::from_secs(180));
    let helper = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut told = Instant::now();
    let (nodes, mirror) = (plan.nodes, plan.mirror);
    println!(
        "stress: seed {}, {} s, {nodes} nodes, mirror {mirror}",
        plan.seed,
        plan.length.as_secs()
    );
    let result = driver::run(plan, &helper, &mut |summary| {
        if told.elapsed() > TELL_EVERY {
            told = Instant::now();
            println!("stress: {}", words(&summary));
        }
    });
    match result {
        Ok(summary) => {
            println!("stress: {}: no difference", words(&summary));
            Ok(())
        }
        Err(wrong) => Err(format!("seed {}: {wrong}", plan.seed)),
    }
}

/// The progress of a stress test.
fn words(summary: &driver::StressSummary) -> String {
    let driver::StressSummary { rounds, steps, stale } = summary;
    format!("{rounds} rounds, {steps} steps, {stale} calls made again after ESTALE")
}
