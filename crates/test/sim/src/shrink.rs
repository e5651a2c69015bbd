//! From a scenario that fails to a small one that fails.

use crate::run::{RunReport, run};
use crate::scenario::RunScenario;

/// Most runs that shrinking takes.
const RUNS_MAX: usize = 300;

/// The smallest scenario found that still breaks the rule that `scenario` breaks, and its results.
/// `None`: `scenario` breaks none.
#[must_use]
pub fn shrink(scenario: &RunScenario) -> Option<(RunScenario, RunReport)> {
    let report = run(scenario, false);
    let rule = report.violations.first()?.rule;
    let mut best = (scenario.clone(), report);
    let mut runs = 0;
    loop {
        let before = runs;
        let mut found = None;
        for candidate in smaller(&best.0) {
            if runs == RUNS_MAX {
                return Some(best);
            }
            runs += 1;
            let report = run(&candidate, false);
            if report.violations.iter().any(|violation| violation.rule == rule) {
                found = Some((candidate, report));
                break;
            }
        }
        match found {
            Some(found) => best = found,
            None => return Some(best),
        }
        debug_assert!(runs > before);
    }
}

/// Scenarios one step smaller, the greatest steps first.
fn smaller(scenario: &RunScenario) -> Vec<RunScenario> {
    let mut all = Vec::new();
    for calls in [scenario.calls / 2, scenario.calls * 3 / 4, scenario.calls.saturating_sub(1)] {
        if calls > 0 && calls < scenario.calls {
            all.push(RunScenario { calls, ..scenario.clone() });
        }
    }
    if scenario.clients > 1 {
        all.push(RunScenario { clients: scenario.clients - 1, ..scenario.clone() });
    }
    if scenario.partitions > 1 {
        all.push(RunScenario { partitions: scenario.partitions - 1, ..scenario.clone() });
    }
    if !scenario.room.is_empty() {
        all.push(RunScenario { room: Vec::new(), ..scenario.clone() });
    }
    for without in 0..scenario.faults.len() {
        let mut less = scenario.clone();
        less.faults.remove(without);
        all.push(less);
    }
    all
}
