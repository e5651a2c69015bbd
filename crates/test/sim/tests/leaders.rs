//! Coordinators that reach the store and not the nodes: another one takes their place, and calls wait for seconds only.

use std::time::Duration;

use samite_sim::net::ProcessPlace;
use samite_sim::run::{RunReport, run};
use samite_sim::scenario::{CoordinatorState, PlannedFault, RunScenario, ScenarioFault};

/// Longer than anything that a call has to wait for, unless it is for the end of the cut.
const LASTS: Duration = Duration::from_secs(25);

/// Two of three instances, one of which leads or comes to lead, are cut off while everything is well otherwise.
fn report(
    seed: u64,
    state: CoordinatorState,
    fault: fn(ProcessPlace) -> ScenarioFault,
    coordinators: u32,
) -> RunReport {
    let cut = |id| PlannedFault {
        fault: fault(ProcessPlace::Coordinator(id)),
        at: Duration::from_secs(2),
        lasts: LASTS,
    };
    let well = RunScenario::keeping_state(seed, state);
    let scenario = RunScenario {
        nodes: 3,
        founders: 3,
        admin_requests: Vec::new(),
        coordinators,
        redundancy: 2,
        calls: 40,
        pause_us: 300_000,
        faults: (0..coordinators.min(2)).map(cut).collect(),
        flash_us: None,
        commit_us: None,
        full: Vec::new(),
        failing: Vec::new(),
        ..well
    };
    run(&scenario, false)
}

#[test]
fn a_leader_that_reaches_no_node_is_replaced() {
    for seed in 0..20 {
        let faults = [ScenarioFault::Sever, ScenarioFault::Mute]
            .map(|fault| (CoordinatorState::Store, fault));
        let voters =
            (CoordinatorState::Voters, ScenarioFault::Sever as fn(ProcessPlace) -> ScenarioFault);
        for (state, fault) in faults.into_iter().chain([voters]) {
            let report = report(seed, state, fault, 3);
            assert!(report.violations.is_empty(), "seed {seed}: {:?}", report.violations);
            // Lease, silence, and the former leader's time; twice, when the second is cut off, too.
            assert!(
                report.longest_call < Duration::from_secs(16),
                "seed {seed}: {:?}",
                report.longest_call
            );
        }
        // Without another one, all wait.
        let alone = report(seed, CoordinatorState::Store, ScenarioFault::Sever, 1);
        assert!(alone.violations.is_empty(), "seed {seed}: {:?}", alone.violations);
        assert!(alone.longest_call > LASTS / 2, "seed {seed}: {:?}", alone.longest_call);
    }
}
