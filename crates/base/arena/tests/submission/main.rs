//! The protocol of [`samite_arena::submission`], step by step: every order of the steps of clients
//! and node is tried, and the answers to the clients must be those that one of them after the other
//! could have got. Each rule of the protocol is left out once, which must be noticed.
#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

mod model;
mod open_references;
mod rules;
mod told;

use model::{Deed, History, Model};
use rules::{ALL, Rules};

/// Deeds of clients beside each other.
fn scenes() -> Vec<Vec<Vec<Deed>>> {
    use Deed::{
        Create, Delegate, Forbid, Grant, Look, LookAtOther, Make, Recall, Remove, Rename, Tombstone,
    };
    vec![
        vec![vec![Remove, Look], vec![Remove, Look]],
        vec![vec![Remove], vec![Remove], vec![Look, Look]],
        vec![vec![Remove, LookAtOther], vec![Rename, Look]],
        vec![vec![Remove], vec![Rename], vec![Look, LookAtOther]],
        vec![vec![Remove, Make], vec![Remove, Look]],
        vec![vec![Remove, Make, Look], vec![Look, Remove]],
        vec![vec![Remove, Look], vec![Delegate, Recall]],
        vec![vec![Remove], vec![Delegate, Recall, Look], vec![Look]],
        vec![vec![Remove], vec![Forbid, Look], vec![Look]],
        vec![vec![Remove], vec![Forbid, Look], vec![Remove]],
        vec![vec![Remove, Create], vec![Create, Look]],
        vec![vec![Remove, Create], vec![Create], vec![Look]],
        vec![vec![Remove, Create], vec![Make, Look]],
        vec![vec![Remove, Create], vec![Make], vec![Create]],
        vec![vec![Remove, Create], vec![Tombstone, Look]],
        vec![vec![Remove, Create, Look], vec![Tombstone], vec![Create]],
        vec![vec![Remove, Create], vec![Rename, Create]],
        vec![vec![Remove, Create], vec![Delegate, Recall]],
        vec![vec![Remove, Create], vec![Forbid, Look]],
        vec![vec![Remove, Create], vec![Tombstone, Forbid]],
        vec![vec![Remove, Create, Look], vec![Tombstone, Forbid], vec![Create]],
        vec![vec![Delegate, Remove, Recall], vec![Remove, Create]],
        vec![vec![Delegate, Remove, Grant, Recall], vec![Remove, Look]],
        vec![vec![Delegate, Remove, Grant, Recall], vec![Create], vec![Remove]],
        vec![vec![Delegate, Remove, Recall, Grant, Recall], vec![Remove, Look]],
        vec![vec![Delegate, Remove, Grant, Recall], vec![Rename]],
        vec![vec![Delegate, Remove, Grant, Recall], vec![Tombstone, Forbid]],
        vec![vec![Delegate, Recall, Remove, Grant, Recall], vec![Remove], vec![Look]],
    ]
}

fn found(rules: Rules) -> Option<(Vec<Vec<Deed>>, History)> {
    scenes().into_iter().find_map(|deeds| {
        let model = Model { deeds, rules };
        model.search().map(|history| (model.deeds, history))
    })
}

#[test]
fn submitted_and_asked_changes_look_the_same() {
    assert_eq!(found(ALL), None);
}

#[test]
fn no_rule_can_be_left_out() {
    let without = [
        Rules { reader_looks_at_lock_word: false, ..ALL },
        Rules { client_looks_at_table_after_claim: false, ..ALL },
        Rules { client_sets_bit_before_submitting: false, ..ALL },
        Rules { node_carries_out_first: false, ..ALL },
        Rules { node_revokes: false, ..ALL },
        Rules { node_locks_until_done: false, ..ALL },
        Rules { node_closes_to_tombstone: false, ..ALL },
        Rules { client_looks_for_tombstone: false, ..ALL },
        Rules { client_frees_only_its_own: false, ..ALL },
        Rules { node_closes_before_it_revokes: false, ..ALL },
        Rules { node_revokes_on_close: false, ..ALL },
        Rules { node_closes_to_raise: false, ..ALL },
        Rules { node_opens_to_sole_holder: false, ..ALL },
        Rules { client_looks_for_sole_client: false, ..ALL },
        Rules { node_grants_what_was_submitted: false, ..ALL },
        Rules { node_closes_to_changes_of_others: false, ..ALL },
        Rules { node_closes_where_it_cannot_lock: false, ..ALL },
    ];
    for rules in without {
        assert!(!matches!(std::panic::catch_unwind(|| found(rules)), Ok(None)), "{rules:?}");
    }
}

#[test]
fn a_lock_over_a_submission_shows_readers_the_state_before() {
    let rules = Rules { node_closes_where_it_cannot_lock: false, ..ALL };
    assert!(found(rules).is_some());
}
