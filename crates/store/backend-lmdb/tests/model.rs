//! Stores in LMDB against their reference model.

use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use samite_backend::ordered::OrderedMap;
use samite_backend_lmdb::{LmdbMap, LmdbOptions, TargetRoot};

mod support;

fn open(dir: &Path) -> Arc<dyn OrderedMap> {
    let root = TargetRoot::open(dir).expect("the directory");
    Arc::new(LmdbMap::open(root, &LmdbOptions::new(64 << 20)).expect("an environment"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn what_was_committed_is_there_and_nothing_else(steps in support::steps()) {
        support::run(open, &steps);
    }

    #[test]
    fn a_call_that_fails_changes_nothing(steps in support::steps(), nth in 1..5_u64) {
        support::run_failing(open, &steps, nth);
    }
}
