//! The protocol of [`samite_arena::submission`], step by step: every order of the steps of clients
//! and node is tried, and the answers to the clients must be those that one of them after the other
//! could have got. Each rule of the protocol is left out once, which must be noticed.
#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

mod client;
mod model;
mod node;
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
        vec![vec![Remove, Create], vec![Tombstone, Forbid], vec![Create]],
        vec![vec![Delegate, Remove, Recall], vec![Remove, Create]],
        vec![vec![Delegate, Remove, Grant, Recall], vec![Remove, Look]],
        vec![vec![Delegate, Remove, Grant, Recall], vec![Create], vec![Remove]],
        vec![vec![Delegate, Remove, Recall, Grant, Recall], vec![Remove, Look]],
        vec![vec![Delegate, Remove, Grant, Recall], vec![Rename]],
        vec![vec![Delegate, Remove, Grant, Recall], vec![Tombstone, Forbid]],
        vec![vec![Delegate, Recall, Remove, Grant, Recall], vec![Remove], vec![Look]],
    ]
}

/// The first client has a stray pointer, and works at the same time.
fn scenes_with_strays() -> Vec<Vec<Vec<Deed>>> {
    use Deed::{Create, Delegate, Look, Make, Recall, Remove, Rename};
    vec![
        vec![vec![], vec![Remove, Create, Look]],
        vec![vec![Remove], vec![Remove, Create]],
        vec![vec![Remove, Create], vec![Remove, Look]],
        vec![vec![Create], vec![Remove, Look]],
        vec![vec![Remove], vec![Delegate, Recall, Look]],
        vec![vec![Remove], vec![Rename, Create]],
        vec![vec![Remove], vec![Make, Look]],
        vec![vec![Remove], vec![Remove], vec![Look]],
    ]
}

/// The first client leaves, and the last one gets its queue.
fn scenes_with_heir() -> Vec<Vec<Vec<Deed>>> {
    use Deed::{Create, Leave, Look, Remove};
    vec![
        vec![vec![Remove, Leave], vec![Create, Look]],
        vec![vec![Remove, Leave], vec![Look], vec![Create]],
        vec![vec![Leave], vec![Remove, Look]],
    ]
}

/// Which scenes.
#[derive(Clone, Copy)]
enum Scenes {
    Plain,
    Strays,
    Heir,
}

fn models(scenes_of: Scenes, rules: Rules) -> Vec<Model> {
    let model = |strays: u8, heir: bool, deeds: Vec<Vec<Deed>>| {
        let heir = heir.then_some(deeds.len() - 1);
        // With three clients there are millions of states.
        Model { strays: strays.min(4 - deeds.len() as u8), deeds, rules, heir }
    };
    let heirs =
        |strays| scenes_with_heir().into_iter().map(move |deeds| model(strays, true, deeds));
    match scenes_of {
        Scenes::Plain => scenes().into_iter().map(|deeds| model(0, false, deeds)).collect(),
        Scenes::Strays => {
            scenes_with_strays().into_iter().map(|deeds| model(2, false, deeds)).collect()
        }
        Scenes::Heir => heirs(0).chain(heirs(1)).collect(),
    }
}

fn found(scenes_of: Scenes, rules: Rules) -> Option<(Vec<Vec<Deed>>, History)> {
    let mut models = models(scenes_of, rules);
    // Those that are over soon come first.
    models.sort_by_key(|model| (model.deeds.len(), model.deeds.concat().len()));
    models.into_iter().find_map(|model| {
        let history = model.search()?;
        Some((model.deeds, history))
    })
}

#[test]
fn submitted_and_asked_changes_look_the_same() {
    assert_eq!(found(Scenes::Plain, ALL), None);
}

#[test]
fn stray_pointers_of_one_client_change_nothing_for_others() {
    assert_eq!(found(Scenes::Strays, ALL), None);
}

#[test]
fn a_queue_that_another_connection_gets_is_as_a_new_one() {
    assert_eq!(found(Scenes::Heir, ALL), None);
}

fn assert_noticed(without: &[(Scenes, Rules)]) {
    let unnoticed: Vec<String> = without
        .iter()
        .filter(|(scenes, rules)| {
            matches!(std::panic::catch_unwind(|| found(*scenes, *rules)), Ok(None))
        })
        .map(|(_, rules)| format!("{rules:?}"))
        .collect();
    assert!(unnoticed.is_empty(), "{unnoticed:#?}");
}

#[test]
fn no_rule_of_clients_can_be_left_out() {
    assert_noticed(&[
        (Scenes::Plain, Rules { reader_looks_for_marks: false, ..ALL }),
        (Scenes::Plain, Rules { client_looks_for_marks: false, ..ALL }),
        (Scenes::Plain, Rules { client_looks_at_node_locks: false, ..ALL }),
        (Scenes::Plain, Rules { client_looks_at_table_after_claim: false, ..ALL }),
        (Scenes::Plain, Rules { client_sets_bit_before_submitting: false, ..ALL }),
        (Scenes::Plain, Rules { client_looks_for_tombstone: false, ..ALL }),
        (Scenes::Plain, Rules { client_looks_for_sole_client: false, ..ALL }),
        (Scenes::Heir, Rules { client_closes_queue_before_connection: false, ..ALL }),
    ]);
}

#[test]
fn no_rule_of_the_node_about_a_slot_can_be_left_out() {
    assert_noticed(&[
        (Scenes::Plain, Rules { node_carries_out_first: false, ..ALL }),
        (Scenes::Plain, Rules { node_locks_until_done: false, ..ALL }),
        (Scenes::Strays, Rules { node_locks_what_it_carries_out: false, ..ALL }),
        (Scenes::Strays, Rules { node_checks_marks: false, ..ALL }),
        (Scenes::Plain, Rules { node_revokes: false, ..ALL }),
        (Scenes::Plain, Rules { node_carries_out_before_change: false, ..ALL }),
        (Scenes::Plain, Rules { node_shows_before_it_unmarks: false, ..ALL }),
        (Scenes::Plain, Rules { node_unmarks_before_it_frees: false, ..ALL }),
        (Scenes::Heir, Rules { node_clears_a_queue_before_it_gives_it: false, ..ALL }),
    ]);
}

#[test]
fn no_rule_of_the_node_about_the_table_can_be_left_out() {
    assert_noticed(&[
        (Scenes::Plain, Rules { node_closes_where_it_cannot_lock: false, ..ALL }),
        (Scenes::Plain, Rules { node_closes_before_it_revokes: false, ..ALL }),
        (Scenes::Plain, Rules { node_revokes_on_close: false, ..ALL }),
        (Scenes::Plain, Rules { node_carries_out_on_close: false, ..ALL }),
        (Scenes::Plain, Rules { node_closes_to_tombstone: false, ..ALL }),
        (Scenes::Plain, Rules { node_closes_to_raise: false, ..ALL }),
        (Scenes::Plain, Rules { node_closes_to_changes_of_others: false, ..ALL }),
        (Scenes::Plain, Rules { node_opens_to_sole_holder: false, ..ALL }),
        (Scenes::Plain, Rules { node_grants_what_was_submitted: false, ..ALL }),
    ]);
}
