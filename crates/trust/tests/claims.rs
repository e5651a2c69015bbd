//! Every claim of `SEMANTICS.md`, through all doors.
#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

mod common;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use samite_trust::claims::{self, Scene};
use samite_trust::door::agent::Agent;
use samite_trust::stage::{Stage, Watchdog, Way};

const PAGE: &str = include_str!("../../../SEMANTICS.md");

#[test]
fn every_claim_has_a_test_and_every_test_a_claim() {
    let on_page = claims::ids_on_page(PAGE);
    let unique: BTreeSet<&str> = on_page.iter().copied().collect();
    assert_eq!(unique.len(), on_page.len(), "an id is there twice");
    let tested: BTreeSet<&str> = claims::all().iter().map(|claim| claim.id).collect();
    assert_eq!(unique, tested, "page (left) and tests (right)");
}

#[test]
fn claims_hold_through_all_doors() {
    let _watchdog = Watchdog::new("claims", Duration::from_secs(300));
    let stage = Stage::start(2, "256M", &common::helper()).unwrap();
    let only = std::env::var("CLAIM").ok();
    let mut broken = Vec::new();
    for claim in claims::all() {
        if only.as_deref().is_some_and(|only| only != claim.id) {
            continue;
        }
        let pairs = Way::ALL.iter().flat_map(|one| Way::ALL.map(|other| [*one, other]));
        for (index, ways) in pairs.enumerate() {
            let dir = format!("/{}-{index}", claim.id);
            let mut doors: [Agent; 2] = ways.map(|way| stage.door(way));
            let [one, other] = &mut doors;
            let mut scene = Scene::new(&stage, ways, (one, other), &dir);
            if catch_unwind(AssertUnwindSafe(|| (claim.test)(&mut scene))).is_err() {
                broken.push(format!("{} by {ways:?}", claim.id));
            }
        }
    }
    assert!(broken.is_empty(), "claims that do not hold:\n{}", broken.join("\n"));
}
