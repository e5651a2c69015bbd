//! Members of a mirror group against the answers to their clients: over a network that loses,
//! repeats and reorders, with nodes that die, come back empty, are cut off, or are brought up to
//! date meanwhile.
//!
//! Records only grow: each operation appends bytes of its own. So a record in the end is the order
//! of all operations on it, and tells whether an acknowledged one is missing, one was done twice, a
//! refused one was done after all, or a read saw a state that never was.

mod client;
mod commits;
mod granted_reads;
mod lost;
mod node;
mod promise;
mod rng;
mod turn;
mod world;

use samite_mirror::MirrorRules;
use world::{Plan, World};

const SEEDS: u64 = 60;

/// Runs worlds until one finds a mistake; says which.
fn first_mistake(plan: &Plan, rules: MirrorRules, seeds: u64) -> Option<String> {
    (0..seeds).find_map(|seed| {
        let mut world = World::new(seed, plan, rules);
        world.run().err().map(|mistake| format!("seed {seed}: {mistake}"))
    })
}

fn assert_right(plan: &Plan) {
    if let Some(mistake) = first_mistake(plan, MirrorRules::default(), SEEDS) {
        panic!("{mistake}");
    }
}

fn assert_found_out(plan: &Plan, rules: MirrorRules) {
    assert!(first_mistake(plan, rules, 600).is_some(), "nobody has noticed {rules:?}");
}

#[test]
fn two_members_on_a_bad_network() {
    assert_right(&Plan { members: 2, ..Plan::QUIET });
}

#[test]
fn two_members_that_die_and_come_back() {
    assert_right(&Plan { members: 2, ..Plan::ROUGH });
}

#[test]
fn three_members_that_die_and_come_back() {
    assert_right(&Plan { members: 3, ..Plan::ROUGH });
}

#[test]
fn members_with_many_records_are_brought_up_to_date_under_load() {
    assert_right(&Plan { members: 2, keys: 400, ..Plan::ROUGH });
}

#[test]
fn members_that_take_turns() {
    assert_right(&Plan { members: 2, turns: 30, ..Plan::QUIET });
    assert_right(&Plan { members: 2, turns: 30, ..Plan::ROUGH });
    assert_right(&Plan { members: 3, turns: 30, ..Plan::ROUGH });
}

#[test]
fn members_that_answer_reads() {
    assert_right(&Plan { members: 2, ..READING });
    assert_right(&READING);
}

#[test]
fn members_that_answer_reads_and_clocks_that_jump() {
    assert_right(&JUMPING);
}

const READING: Plan =
    Plan { members: 3, keys: 2, reads: 700, reads_any: true, breaks: 20, turns: 5, ..Plan::ROUGH };

const JUMPING: Plan = Plan { jumps: 30, ..READING };

#[test]
fn wrong_ways_of_reading_are_found_out() {
    let right = MirrorRules::default();
    assert_found_out(&READING, MirrorRules { ignores_granted_reads: true, ..right });
    assert_found_out(&READING, MirrorRules { reads_forever: true, ..right });
    assert_found_out(&READING, MirrorRules { reads_uncommitted: true, ..right });
}

#[test]
fn wrong_ways_are_found_out() {
    let plan = Plan { members: 3, ..Plan::ROUGH };
    let right = MirrorRules::default();
    assert_found_out(&plan, MirrorRules { replies_early: true, ..right });
    assert_found_out(&plan, MirrorRules { drops_unrecorded: true, ..right });
    assert_found_out(&plan, MirrorRules { ignores_terms: true, ..right });
    assert_found_out(&plan, MirrorRules { forgets_results: true, ..right });
    assert_found_out(&plan, MirrorRules { resyncs_without_queue: true, ..right });
    assert_found_out(&plan, MirrorRules { reads_anywhere: true, ..right });
    // An old primary that is asked to change something notices that it is alone.
    let reading = Plan { reads: 970, cuts: 20, ..plan };
    assert_found_out(&reading, MirrorRules { ignores_lease: true, ..right });
    assert_found_out(&plan, MirrorRules { requires_late: true, ..right });
}
