//! Killed processes and full disks.

use std::path::Path;
use std::sync::Arc;

use samite_backend::ordered::OrderedMap;
use samite_backend_lmdb::{LmdbMap, LmdbOptions, TargetRoot};

mod support;

use support::crash;

fn open(dir: &Path) -> Arc<dyn OrderedMap> {
    let root = TargetRoot::open(dir).expect("the directory");
    Arc::new(LmdbMap::open(root, &LmdbOptions::new(64 << 20)).expect("the map"))
}

#[test]
fn a_killed_process_leaves_one_of_its_commits() {
    match crash::child_dir() {
        Some(dir) => crash::commit_until_killed(open, &dir),
        None => crash::kill_many(open, "a_killed_process_leaves_one_of_its_commits"),
    }
}

#[test]
fn a_full_disk_refuses_growth_and_can_be_emptied() {
    match crash::child_dir() {
        Some(dir) => crash::fill_disk(open, &dir),
        None => crash::run_on_small_disk("a_full_disk_refuses_growth_and_can_be_emptied"),
    }
}
