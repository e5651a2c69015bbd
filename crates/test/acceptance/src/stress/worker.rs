//! One process of the stress test.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::model::ModelTree;
use super::own::{OwnSubtree, Wrong, verify};
use super::shared::{RoundPart, SharedCalls, SharedEffect};
use crate::access_path::AccessPath;
use crate::access_path::agent::{receive, send};
use crate::rng::AcceptanceRng;

/// Calls that are told of after a failure.
const RECORD_MAX: usize = 40;

/// A round's work for one process.
#[derive(Debug, Serialize, Deserialize)]
pub struct RoundOrder {
    /// Number of the process.
    pub worker: u64,
    /// Number of the round.
    pub round: u64,
    /// The subtree, and what must be there.
    pub root: String,
    /// See `root`.
    pub tree: ModelTree,
    /// Where the random numbers start.
    pub seed: u64,
    /// How long the round is; 0: the subtree is only compared.
    pub milliseconds: u64,
}

/// How it went.
#[derive(Debug, Serialize, Deserialize)]
pub enum RoundReport {
    /// As expected.
    Right {
        /// The present contents of the subtree.
        tree: ModelTree,
        /// The work in the shared directories.
        done: SharedEffect,
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
pub fn run(access: &mut dyn AccessPath) -> io::Result<()> {
    let (mut input, mut output) = (io::stdin().lock(), io::stdout().lock());
    while let Some(order) = receive::<RoundOrder>(&mut input)? {
        let mut calls = VecDeque::new();
        let mut record = |call: String| {
            if calls.len() == RECORD_MAX {
                calls.pop_front();
            }
            calls.push_back(call);
        };
        let report = match work(access, order, &mut record) {
            Ok(report) => report,
            Err(what) => RoundReport::Wrong { what, calls: calls.into() },
        };
        send(&mut output, &report)?;
    }
    Ok(())
}

fn work(
    access: &mut dyn AccessPath,
    order: RoundOrder,
    record: &mut dyn FnMut(String),
) -> Result<RoundReport, Wrong> {
    let RoundOrder { worker, round, root, mut tree, seed, milliseconds } = order;
    record(format!("compare {root} as it was taken over"));
    verify(access, &root, &mut tree)?;
    let mut rng = AcceptanceRng::new(seed);
    let mut steps = 0;
    let end = Instant::now() + Duration::from_millis(milliseconds);
    // Turns of each, so that both have the access path.
    let mut shared = RoundPart::default();
    while Instant::now() < end {
        let mut own = OwnSubtree::new(access, &root, tree, AcceptanceRng::new(rng.number()));
        for _ in 0..60 {
            steps += 1;
            own.step(record)?;
        }
        tree = own.release()?;
        let mut turn = SharedCalls::new(access, worker, round, std::mem::take(&mut shared));
        for _ in 0..20 {
            steps += 1;
            turn.step(&mut rng, record)?;
        }
        shared = turn.part;
    }
    if let Some(log) = shared.log.take() {
        access.close(log).map_err(|errno| format!("close the log: errno {errno}"))?;
    }
    record(format!("compare {root} before it is handed over"));
    verify(access, &root, &mut tree)?;
    Ok(RoundReport::Right { tree, done: shared.done, steps })
}
