//! An open reference that ends while the change that takes it is under way: every order of the
//! steps of client and node, and of the client that uses the slot next.

use std::collections::HashSet;

/// Tokens of two open references, by two entries that are left in one slot.
const TOKENS: [u8; 2] = [1, 2];

/// Rules that are followed, or not.
#[derive(Clone, Copy, Debug)]
struct Rules {
    /// Both sides change the word from the token to 0 in one step.
    client_swaps: bool,
    node_swaps: bool,
    /// The client ends its own open reference alone, whichever client has the slot.
    client_compares: bool,
    /// A client that came too late asks for the end, behind what was submitted.
    client_asks: bool,
}

const ALL: Rules =
    Rules { client_swaps: true, node_swaps: true, client_compares: true, client_asks: true };

/// Where a client is with one of the entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum At {
    #[default]
    Begin,
    /// Submitted, or found.
    There,
    /// Has read the word: the token was there.
    Found,
    /// Has yet to ask.
    Late,
    Done,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct World {
    /// The token's word in the slot.
    word: u8,
    /// Which entry is in the slot.
    full: Option<usize>,
    clients: [At; 2],
    node: At,
    taken: [bool; 2],
}

impl World {
    /// The steps that can come next.
    fn next(&self, rules: Rules) -> Vec<Self> {
        let clients = (0..2).filter_map(|entry| self.client(entry, rules));
        clients.chain(self.node(rules)).collect()
    }

    fn client(&self, entry: usize, rules: Rules) -> Option<Self> {
        let (mut next, token) = (self.clone(), TOKENS[entry]);
        let is_there = if rules.client_compares { self.word == token } else { self.word != 0 };
        next.clients[entry] = match self.clients[entry] {
            At::Begin if self.full.is_none() => {
                (next.word, next.full) = (token, Some(entry));
                At::There
            }
            At::There if !is_there => At::Late,
            At::There if rules.client_swaps => {
                next.word = 0;
                At::Done
            }
            At::There => At::Found,
            At::Found => {
                next.word = 0;
                At::Done
            }
            // Its request is served once what was submitted is carried out.
            At::Late if rules.client_asks && self.full != Some(entry) => {
                next.taken[entry] = false;
                At::Done
            }
            At::Late if !rules.client_asks => At::Done,
            _ => return None,
        };
        Some(next)
    }

    fn node(&self, rules: Rules) -> Option<Self> {
        let (mut next, entry) = (self.clone(), self.full?);
        let is_there = self.word == TOKENS[entry];
        next.node = match self.node {
            At::Begin if is_there && rules.node_swaps => {
                (next.word, next.taken[entry]) = (0, true);
                At::Done
            }
            At::Begin if is_there => At::Found,
            At::Begin => At::Done,
            At::Found => {
                (next.word, next.taken[entry]) = (0, true);
                At::Done
            }
            _ => {
                next.full = None;
                At::Begin
            }
        };
        Some(next)
    }
}

/// A world in which nothing happens any more, and an open reference is left that nobody has open,
/// or one was lost that is open.
fn found(rules: Rules) -> Option<World> {
    let (mut left, mut seen) = (vec![World::default()], HashSet::new());
    while let Some(world) = left.pop() {
        // Each client ends its own open reference alone, when it closes what it has made.
        let robbed = (0..2).any(|entry| {
            world.clients[entry] == At::There && world.word != TOKENS[entry] && !world.taken[entry]
        });
        let next = world.next(rules);
        let is_over = next.is_empty();
        if robbed || is_over && (world.taken != [false; 2] || world.full.is_some()) {
            return Some(world);
        }
        left.extend(next.into_iter().filter(|next| seen.insert(next.clone())));
    }
    None
}

#[test]
fn each_open_reference_ends_once_and_nobody_elses() {
    assert_eq!(found(ALL), None);
}

#[test]
fn no_rule_of_open_references_can_be_left_out() {
    let without = [
        Rules { client_swaps: false, ..ALL },
        Rules { node_swaps: false, ..ALL },
        Rules { client_compares: false, ..ALL },
        Rules { client_asks: false, ..ALL },
    ];
    for rules in without {
        assert!(found(rules).is_some(), "{rules:?}");
    }
}
