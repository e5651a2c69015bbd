//! The protocol of [`samite_wire::submission`], step by step: every order of the steps of clients
//! and node is tried, and the answers to the clients must be those that one of them after the other
//! could have got. Each rule of the protocol is left out once, which must be noticed.
#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

mod holds;
mod model;
mod rules;
mod told;

use model::{Deed, History, Model};
use rules::{ALL, Rules};

/// Deeds of clients beside each other.
fn scenes() -> Vec<Vec<Vec<Deed>>> {
    use Deed::{
        Borrow, Create, Forbid, Lease, Look, LookAtOther, Make, Recall, Remove, Rename, Seal,
    };
    vec![
        vec![vec![Remove, Look], vec![Remove, Look]],
        vec![vec![Remove], vec![Remove], vec![Look, Look]],
        vec![vec![Remove, LookAtOther], vec![Rename, Look]],
        vec![vec![Remove], vec![Rename], vec![Look, LookAtOther]],
        vec![vec![Remove, Make], vec![Remove, Look]],
        vec![vec![Remove, Make, Look], vec![Look, Remove]],
        vec![vec![Remove, Look], vec![Lease, Recall]],
        vec![vec![Remove], vec![Lease, Recall, Look], vec![Look]],
        vec![vec![Remove], vec![Forbid, Look], vec![Look]],
        vec![vec![Remove], vec![Forbid, Look], vec![Remove]],
        vec![vec![Remove, Create], vec![Create, Look]],
        vec![vec![Remove, Create], vec![Create], vec![Look]],
        vec![vec![Remove, Create], vec![Make, Look]],
        vec![vec![Remove, Create], vec![Make], vec![Create]],
        vec![vec![Remove, Create], vec![Seal, Look]],
        vec![vec![Remove, Create, Look], vec![Seal], vec![Create]],
        vec![vec![Remove, Create], vec![Rename, Create]],
        vec![vec![Remove, Create], vec![Lease, Recall]],
        vec![vec![Remove, Create], vec![Forbid, Look]],
        vec![vec![Remove, Create], vec![Seal, Forbid]],
        vec![vec![Remove, Create, Look], vec![Seal, Forbid], vec![Create]],
        vec![vec![Lease, Remove, Recall], vec![Remove, Create]],
        vec![vec![Lease, Remove, Borrow, Recall], vec![Remove, Look]],
        vec![vec![Lease, Remove, Borrow, Recall], vec![Create], vec![Remove]],
        vec![vec![Lease, Remove, Recall, Borrow, Recall], vec![Remove, Look]],
        vec![vec![Lease, Remove, Borrow, Recall], vec![Rename]],
        vec![vec![Lease, Remove, Borrow, Recall], vec![Seal, Forbid]],
        vec![vec![Lease, Recall, Remove, Borrow, Recall], vec![Remove], vec![Look]],
    ]
}

fn found(rules: Rules) -> Option<(Vec<Vec<Deed>>, History)> {
    scenes().into_iter().find_map(|deeds| {
        let model = Model { deeds, rules };
        model.search().map(|history| (model.deeds, history))
    })
}

#[test]
fn nobody_can_tell_what_was_posted_from_what_was_asked() {
    assert_eq!(found(ALL), None);
}

#[test]
fn no_rule_can_be_left_out() {
    let without = [
        Rules { reader_looks_at_claim: false, ..ALL },
        Rules { client_looks_at_board_after_claim: false, ..ALL },
        Rules { client_sets_bit_before_posting: false, ..ALL },
        Rules { node_carries_out_first: false, ..ALL },
        Rules { node_revokes: false, ..ALL },
        Rules { node_bars_until_done: false, ..ALL },
        Rules { node_closes_to_seal: false, ..ALL },
        Rules { client_looks_for_seal: false, ..ALL },
        Rules { client_frees_only_its_own: false, ..ALL },
        Rules { node_closes_before_it_revokes: false, ..ALL },
        Rules { node_revokes_on_close: false, ..ALL },
        Rules { node_closes_to_raise: false, ..ALL },
        Rules { node_opens_to_who_has_leases: false, ..ALL },
        Rules { client_looks_for_whom: false, ..ALL },
        Rules { node_grants_what_was_posted: false, ..ALL },
        Rules { node_closes_to_changes_of_others: false, ..ALL },
        Rules { node_closes_where_it_cannot_bar: false, ..ALL },
    ];
    for rules in without {
        assert!(!matches!(std::panic::catch_unwind(|| found(rules)), Ok(None)), "{rules:?}");
    }
}

#[test]
fn a_claim_that_is_barred_over_what_is_posted_shows_readers_what_was_before() {
    let rules = Rules { node_closes_where_it_cannot_bar: false, ..ALL };
    assert!(found(rules).is_some());
}
