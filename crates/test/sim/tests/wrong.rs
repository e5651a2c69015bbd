//! The simulator finds the errors that it is there to find: each of these rules, broken on purpose,
//! shows within so many seeds.

use samite_sim::rules::{BrokenRule, RunRules};
use samite_sim::run::run;
use samite_sim::scenario::{RunScenario, TargetKind};

/// Seeds within which every wrong rule is to be found. One in 230 shows that terms count for
/// nothing: a primary that members do not follow has no room there, and is refused most changes
/// that would do damage.
const SEEDS: u64 = 1500;

fn is_found(wrong: BrokenRule) {
    is_found_on(wrong, None);
}

/// With targets of that kind.
fn is_found_on(wrong: BrokenRule, targets: Option<TargetKind>) {
    let rules = RunRules { wrong: Some(wrong) };
    let broken = (0..SEEDS).find_map(|seed| {
        let report = run(&RunScenario { rules, ..RunScenario::with(seed, None, targets) }, false);
        Some((seed, report.violations.into_iter().next()?))
    });
    let (seed, violation) = broken.unwrap_or_else(|| panic!("{wrong}: not found in {SEEDS} seeds"));
    println!("{wrong}: seed {seed}: {violation}");
}

#[test]
fn replies_that_do_not_wait_for_members() {
    is_found(BrokenRule::EarlyReplies);
}

#[test]
fn going_on_without_a_member_before_the_map_says_so() {
    is_found(BrokenRule::NoRecord);
}

#[test]
fn repetitions_that_are_done_again() {
    is_found(BrokenRule::NoDedupe);
}

#[test]
fn resync_without_its_queue() {
    is_found(BrokenRule::NoQueue);
}

#[test]
fn reads_from_members_that_may_be_behind() {
    is_found(BrokenRule::StaleReads);
}

#[test]
fn members_that_are_waited_for_too_late() {
    is_found(BrokenRule::LateAcks);
}

#[test]
fn messages_whose_terms_count_for_nothing() {
    is_found(BrokenRule::NoTerms);
}

#[test]
fn nodes_that_go_on_without_a_lease() {
    is_found(BrokenRule::NoLease);
}

#[test]
fn replies_that_do_not_wait_for_flash() {
    is_found(BrokenRule::EarlyFlash);
}

#[test]
fn replies_that_do_not_wait_for_a_commit() {
    is_found_on(BrokenRule::EarlyCommit, Some(TargetKind::Remembering));
}

#[test]
fn state_that_is_committed_without_its_records() {
    is_found_on(BrokenRule::StateAlone, Some(TargetKind::Remembering));
}

#[test]
fn partitions_that_go_on_when_their_store_has_failed() {
    is_found_on(BrokenRule::TrustsStore, Some(TargetKind::Failing));
}

#[test]
fn losses_that_partitions_do_not_tell() {
    is_found(BrokenRule::LossUntold);
}

#[test]
fn losses_that_the_coordinator_forgets() {
    is_found(BrokenRule::LossForgotten);
}

#[test]
fn changes_that_do_not_fit_on_all_members() {
    is_found(BrokenRule::NoRoom);
}

#[test]
fn voters_that_vote_again_without_what_they_promised() {
    is_found(BrokenRule::VotesTwice);
}

#[test]
fn voters_that_forget_what_they_accepted() {
    is_found(BrokenRule::ForgetsLog);
}

#[test]
fn leaders_that_do_not_wait_for_most_voters() {
    is_found(BrokenRule::OldTerm);
}
