//! A short run: some hundreds of seeds. `make sim` runs many.

use samite_sim::run::run;
use samite_sim::scenario::Scenario;

#[test]
fn seeds_break_no_rule() {
    for seed in 0..300 {
        let report = run(&Scenario::new(seed), false);
        assert!(report.violations.is_empty(), "seed {seed}: {:?}", report.violations);
        assert_eq!(report.too_hard, 0, "seed {seed}");
    }
}
