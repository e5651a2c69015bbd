//! The same seed gives the same run, down to every byte that was delivered.

use samite_sim::run::run;
use samite_sim::scenario::{CoordinatorState, RunScenario};

#[test]
fn equal_seeds_give_equal_runs_and_others_do_not() {
    for state in [CoordinatorState::Store, CoordinatorState::Voters] {
        let hash = |seed, readable| run(&RunScenario::keeping_state(seed, state), readable).hash;
        for seed in 0..20 {
            assert_eq!(hash(seed, false), hash(seed, true), "seed {seed}, {state:?}");
            assert_ne!(hash(seed, false), hash(seed + 1, false), "seed {seed}, {state:?}");
        }
    }
}
