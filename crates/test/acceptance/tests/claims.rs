//! Every claim of `SEMANTICS.md`, over all access paths.
#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

mod common;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use samite_acceptance::access_path::agent::AgentPath;
use samite_acceptance::claims::{self, ClaimScene};
use samite_acceptance::stage::{AcceptanceStage, StagePath, TestWatchdog};
use samite_types::NodeId;

const PAGE: &str = include_str!("../../../../SEMANTICS.md");

#[test]
fn every_claim_has_a_test_and_every_test_a_claim() {
    let on_page = claims::ids_on_page(PAGE);
    let unique: BTreeSet<&str> = on_page.iter().copied().collect();
    assert_eq!(unique.len(), on_page.len(), "an id is there twice");
    let mirrored = claims::mirrored();
    let mut tested: BTreeSet<&str> = mirrored.iter().map(|claim| claim.id).collect();
    tested.extend(claims::all().iter().map(|claim| claim.id));
    assert_eq!(unique, tested, "page (left) and tests (right)");
}

#[test]
fn claims_hold_through_all_access_paths() {
    let _watchdog = TestWatchdog::new("claims", Duration::from_secs(300));
    let stage = AcceptanceStage::start(2, "256M", &common::helper()).unwrap();
    let only = std::env::var("CLAIM").ok();
    let mut broken = Vec::new();
    for claim in claims::all() {
        if only.as_deref().is_some_and(|only| only != claim.id) {
            continue;
        }
        let pairs = StagePath::ALL.iter().flat_map(|one| StagePath::ALL.map(|other| [*one, other]));
        for (index, ways) in pairs.enumerate() {
            let dir = format!("/{}-{index}", claim.id);
            let mut accesses: [AgentPath; 2] = ways.map(|way| stage.access_path(way));
            let [one, other] = &mut accesses;
            let mut scene = ClaimScene::new(&stage, ways, (one, other), &dir);
            if catch_unwind(AssertUnwindSafe(|| (claim.test)(&mut scene))).is_err() {
                broken.push(format!("{} by {ways:?}", claim.id));
            }
        }
    }
    assert!(broken.is_empty(), "claims that do not hold:\n{}", broken.join("\n"));
}

/// Each node is killed and started again, one after the other, while every claim is tried: calls of
/// all access paths are under way as it dies.
#[test]
fn claims_hold_while_nodes_are_killed() {
    const NODES: u32 = 3;
    let _watchdog = TestWatchdog::new("claims while nodes die", Duration::from_secs(400));
    let stage = AcceptanceStage::mirrored(NODES as usize, 2, "256M", &common::helper()).unwrap();
    let only = std::env::var("CLAIM").ok();
    let (is_over, kills) = (AtomicBool::new(false), AtomicU32::new(0));
    let kill_in_turn = || {
        while !is_over.load(Ordering::Relaxed) {
            let victim = NodeId(kills.load(Ordering::Relaxed) % NODES);
            stage.kill_node(victim)?;
            kills.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(500));
            stage.bring_back(victim)?;
            // Calls go on for a while: not each of them is to meet a death.
            std::thread::sleep(Duration::from_secs(2));
        }
        Ok::<(), samite_types::Error>(())
    };
    let mut broken = Vec::new();
    std::thread::scope(|scope| {
        let killer = scope.spawn(kill_in_turn);
        for (index, claim) in claims::all().into_iter().enumerate() {
            if only.as_deref().is_some_and(|only| only != claim.id) {
                continue;
            }
            let ways = [StagePath::ALL[index % 3], StagePath::ALL[(index / 3) % 3]];
            let died = kills.load(Ordering::Relaxed);
            let dir = format!("/{}", claim.id);
            let mut accesses: [AgentPath; 2] = ways.map(|way| stage.access_path(way));
            let [one, other] = &mut accesses;
            let mut scene = ClaimScene::new(&stage, ways, (one, other), &dir);
            if catch_unwind(AssertUnwindSafe(|| (claim.test)(&mut scene))).is_err() {
                broken.push(format!("{} by {ways:?}, after {died} deaths", claim.id));
            }
        }
        is_over.store(true, Ordering::Relaxed);
        killer.join().unwrap().unwrap();
    });
    assert!(broken.is_empty(), "claims that do not hold:\n{}", broken.join("\n"));
    let kills = kills.into_inner();
    assert!(only.is_some() || kills >= NODES, "only {kills} deaths");
}

#[test]
fn mirrored_records_outlive_a_node_through_all_access_paths() {
    const MIRROR: u8 = 2;
    let _watchdog = TestWatchdog::new("claims of mirrors", Duration::from_secs(300));
    let stage = AcceptanceStage::mirrored(3, MIRROR, "256M", &common::helper()).unwrap();
    let only = std::env::var("CLAIM").ok();
    let mut broken = Vec::new();
    for (index, one) in StagePath::ALL.into_iter().enumerate() {
        let ways = [one, StagePath::ALL[(index + 1) % StagePath::ALL.len()]];
        let mut accesses: [AgentPath; 2] = ways.map(|way| stage.access_path(way));
        let [one, other] = &mut accesses;
        let mut after = Vec::new();
        for claim in claims::mirrored() {
            if only.as_deref().is_none_or(|only| only == claim.id) {
                let dir = format!("/{}-{index}", claim.id);
                let mut scene = ClaimScene::new(&stage, ways, (&mut *one, &mut *other), &dir);
                after.push((claim.id, dir, (claim.test)(&mut scene)));
            }
        }
        // The coordinator lives in node 0.
        let victim = NodeId(1 + index as u32 % 2);
        stage.kill_node(victim).unwrap();
        for (id, dir, look) in after {
            let mut scene = ClaimScene::again(&stage, ways, (&mut *one, &mut *other), &dir);
            if catch_unwind(AssertUnwindSafe(|| look(&mut scene))).is_err() {
                broken.push(format!("{id} by {ways:?}"));
            }
        }
        stage.bring_back(victim).unwrap();
    }
    assert!(broken.is_empty(), "claims that do not hold:\n{}", broken.join("\n"));
}
