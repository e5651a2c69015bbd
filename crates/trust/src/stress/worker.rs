//! One process of the stress test.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::model::Tree;
use super::own::{Own, Wrong, verify};
use super::shared::{Done, Part, Shared};
use crate::door::Door;
use crate::door::agent::{receive, send};
use crate::rng::Rng;

/// Calls that are told of after a failure.
const RECORD_MAX: usize = 40;

/// A round's work for one process.
#[derive(Debug, Serialize, Deserialize)]
pub struct Order {
    /// Number of the process.
    pub worker: u64,
    /// Number of the round.
    pub round: u64,
    /// The subtree, and what must be there.
    pub root: String,
    /// See `root`.
    pub tree: Tree,
    /// Where the random numbers start.
    pub seed: u64,
    /// How long the round is; 0: the subtree is only compared.
    pub milliseconds: u64,
}

/// How it went.
#[derive(Debug, Serialize, Deserialize)]
pub enum Report {
    /// As expected.
    Right {
        /// What the subtree is now.
        tree: Tree,
        /// What was done in the shared directories.
        done: Done,
        /// Steps made.
        steps: u64,
    },
    /// A difference, and the last calls before it.
    Wrong {
        /// The difference.
        what: Wrong,
        /// The calls.
        calls: Vec<String>,
    },
}

/// Works on orders from standard input until it ends.
///
/// # Errors
/// The driver is gone.
pub fn run(door: &mut dyn Door) -> io::Result<()> {
    let (mut input, mut output) = (io::stdin().lock(), io::stdout().lock());
    while let Some(order) = receive::<Order>(&mut input)? {
        let mut calls = VecDeque::new();
        let mut record = |call: String| {
            if calls.len() == RECORD_MAX {
                calls.pop_front();
            }
            calls.push_back(call);
        };
        let report = match work(door, order, &mut record) {
            Ok(report) => report,
            Err(what) => Report::Wrong { what, calls: calls.into() },
        };
        send(&mut output, &report)?;
    }
    Ok(())
}

fn work(
    door: &mut dyn Door,
    order: Order,
    record: &mut dyn FnMut(String),
) -> Result<Report, Wrong> {
    let Order { worker, round, root, mut tree, seed, milliseconds } = order;
    record(format!("compare {root} as it was taken over"));
    verify(door, &root, &mut tree)?;
    let mut rng = Rng::new(seed);
    let mut steps = 0;
    let end = Instant::now() + Duration::from_millis(milliseconds);
    // Turns of each, so that both have the door.
    let mut shared = Part::default();
    while Instant::now() < end {
        let mut own = Own::new(door, &root, tree, Rng::new(rng.number()));
        for _ in 0..60 {
            steps += 1;
            own.step(record)?;
        }
        tree = own.release()?;
        let mut turn = Shared::new(door, worker, round, std::mem::take(&mut shared));
        for _ in 0..20 {
            steps += 1;
            turn.step(&mut rng, record)?;
        }
        shared = turn.part;
    }
    if let Some(log) = shared.log.take() {
        door.close(log).map_err(|errno| format!("close the log: errno {errno}"))?;
    }
    record(format!("compare {root} before it is handed over"));
    verify(door, &root, &mut tree)?;
    Ok(Report::Right { tree, done: shared.done, steps })
}
