//! The protocol of [`samite_wire::posts`], step by step: every order of the steps of clients and node is tried, and what the clients were
//! told must be what one of them after the other could have been told. Each rule of the protocol is left out once, which must be noticed.
#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

use std::collections::HashSet;

use samite_types::ClientId;
use samite_wire::posts::{Claim, State};

/// What clients do. `K` and `X` are records, of one directory; at first only `K` is there, and shown on the board.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Deed {
    /// Removes `K`: posts that if it can.
    Remove,
    /// Is `K` there?
    Look,
    /// Is `X` there?
    LookAtOther,
    /// Makes `K`, if it is not there: asks for that.
    Make,
    /// The same: posts that if it can.
    Create,
    /// Seals the directory, if `K` is not there: nothing is made in it any more.
    Seal,
    /// Gives `K` the name `X`.
    Rename,
    /// Asks whether `K` is there, with a lease.
    Lease,
    /// Says again what it was told under the lease, and gives it back.
    Recall,
    /// Changes what clients stand on, whose changes are refused from then on; a seal goes with it.
    Forbid,
}

/// Rules that are kept, or not.
#[derive(Clone, Copy, Debug)]
struct Rules {
    reader_looks_at_claim: bool,
    client_looks_at_board_after_claim: bool,
    client_sets_bit_before_posting: bool,
    node_carries_out_first: bool,
    node_revokes: bool,
    node_bars_until_done: bool,
    node_closes_to_seal: bool,
    client_looks_for_seal: bool,
    client_frees_only_its_own: bool,
    node_closes_before_it_revokes: bool,
    node_revokes_on_close: bool,
    node_closes_to_raise: bool,
}

const ALL: Rules = Rules {
    reader_looks_at_claim: true,
    client_looks_at_board_after_claim: true,
    client_sets_bit_before_posting: true,
    node_carries_out_first: true,
    node_revokes: true,
    node_bars_until_done: true,
    node_closes_to_seal: true,
    client_looks_for_seal: true,
    client_frees_only_its_own: true,
    node_closes_before_it_revokes: true,
    node_revokes_on_close: true,
    node_closes_to_raise: true,
};

/// Where a client is in its deed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    Begin,
    Claimed,
    Looked,
    Filled,
    Posted,
    Failed,
    BoardNext,
    Asked,
}

/// Where the node is with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Node {
    Idle,
    /// Looks at the pending bit; then goes on there.
    Pending(usize),
    /// Has taken the bit.
    Taken(usize),
    /// Has carried out what was posted, which it has yet to say.
    CarriedOut(usize, Next),
    Close(usize),
    RevokeAll(usize),
    Bar(usize),
    Apply(usize),
    Raised(usize),
}

/// What comes after something was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Next {
    Serve,
    Apply,
    Seal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Client {
    at: At,
    /// Deeds done.
    done: usize,
    answer: Option<bool>,
    leased: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    record: bool,
    other: bool,
    on_board: bool,
    /// The directory takes nothing new.
    sealed: bool,
    claim: u64,
    pending: bool,
    open: bool,
    forbidden: bool,
    lease_of: Option<usize>,
    queue: Vec<usize>,
    node: Node,
    clients: Vec<Client>,
    history: History,
}

/// Beginnings and ends of deeds, in order; ends with what the client was told.
type History = Vec<(usize, Option<bool>)>;

struct Model {
    deeds: Vec<Vec<Deed>>,
    rules: Rules,
}

impl Model {
    fn deed(&self, world: &World, client: usize) -> Option<Deed> {
        self.deeds[client].get(world.clients[client].done).copied()
    }

    fn answer(world: &mut World, client: usize, told: bool) {
        let one = &mut world.clients[client];
        (one.at, one.answer, one.done) = (At::Begin, None, one.done + 1);
        world.history.push((client, Some(told)));
    }

    fn ask(world: &mut World, client: usize) {
        world.clients[client].at = At::Asked;
        world.queue.push(client);
    }

    /// One step of a client; `None`: it has nothing to do now.
    fn step(&self, world: &World, client: usize) -> Option<World> {
        let deed = self.deed(world, client)?;
        let mut next = world.clone();
        match (deed, world.clients[client].at) {
            (_, At::Asked) => {
                let told = world.clients[client].answer?;
                Self::answer(&mut next, client, told);
                next.clients[client].leased |= deed == Deed::Lease;
            }
            (Deed::Recall, _) => {
                next.history.push((client, None));
                let told = world.clients[client].leased && world.lease_of == Some(client);
                next.lease_of = next.lease_of.filter(|one| *one != client);
                // The lease was given with what `K` was then; it cannot have changed.
                let before =
                    world.history.iter().rev().find(|(one, told)| *one == client && told.is_some());
                let was = before.and_then(|(_, told)| *told)?;
                assert!(told, "nobody takes a lease away");
                Self::answer(&mut next, client, was);
            }
            (Deed::Remove | Deed::Create, at) => self.post(world, &mut next, (client, at)),
            (Deed::Look, At::Begin) => {
                next.history.push((client, None));
                let is_posted =
                    Claim::read(world.claim).is_some_and(|claim| claim.state == State::Posted);
                if is_posted && self.rules.reader_looks_at_claim {
                    Self::ask(&mut next, client);
                } else {
                    next.clients[client].at = At::BoardNext;
                }
            }
            (Deed::Look, At::BoardNext) => {
                if world.on_board {
                    Self::answer(&mut next, client, true);
                } else {
                    Self::ask(&mut next, client);
                }
            }
            (_, At::Begin) => {
                next.history.push((client, None));
                Self::ask(&mut next, client);
            }
            (deed, at) => unreachable!("{deed:?} at {at:?}"),
        }
        Some(next)
    }

    /// Whether the outcome is certain of what a client posts.
    fn is_certain(&self, world: &World, client: usize) -> bool {
        match self.deed(world, client) {
            Some(Deed::Create) => {
                !world.record && (!world.sealed || !self.rules.client_looks_for_seal)
            }
            _ => world.on_board,
        }
    }

    /// One step of what is posted.
    fn post(&self, world: &World, next: &mut World, (client, at): (usize, At)) {
        let claim = Claim::new(ClientId(client as u64 + 1), client);
        let posted = claim.in_state(State::Posted).word();
        let go = |next: &mut World, at| next.clients[client].at = at;
        match at {
            At::Begin => {
                next.history.push((client, None));
                if world.claim == 0 && self.rules.client_looks_at_board_after_claim {
                    next.claim = claim.word();
                    go(next, At::Claimed);
                } else if world.claim == 0 && self.is_certain(world, client) {
                    // The wrong order: it claims what it has seen before.
                    go(next, At::BoardNext);
                } else {
                    Self::ask(next, client);
                }
            }
            At::BoardNext => {
                if world.claim == 0 {
                    next.claim = claim.word();
                    go(next, At::Looked);
                } else {
                    Self::ask(next, client);
                }
            }
            At::Claimed => {
                let may = world.open && self.is_certain(world, client) && !world.forbidden;
                go(next, if may { At::Looked } else { At::Failed });
            }
            At::Looked => {
                next.pending |= self.rules.client_sets_bit_before_posting;
                go(next, At::Filled);
            }
            At::Filled => {
                if world.claim != claim.word() {
                    go(next, At::Failed);
                } else {
                    next.claim = posted;
                    if self.rules.client_sets_bit_before_posting {
                        Self::answer(next, client, true);
                    } else {
                        // It meant to set the bit now, and does not come to it.
                        go(next, At::Posted);
                    }
                }
            }
            At::Posted => Self::answer(next, client, true),
            At::Failed => {
                if world.claim == claim.word() || !self.rules.client_frees_only_its_own {
                    next.claim = 0;
                }
                Self::ask(next, client);
            }
            At::Asked => unreachable!("it has been asked for"),
        }
    }

    /// One step of the node; `None`: it has nothing to do.
    fn node(&self, world: &World) -> Option<World> {
        let mut next = world.clone();
        let claim = Claim::read(world.claim);
        match world.node {
            Node::Idle => {
                // What waits for a lease to end waits.
                let held = |client: &usize| {
                    let deed = self.deed(world, *client);
                    let changes = matches!(deed, Some(Deed::Remove | Deed::Rename | Deed::Create));
                    world.lease_of.is_some() && changes
                };
                let at = world.queue.iter().position(|client| !held(client))?;
                let client = next.queue.remove(at);
                next.node = Node::Pending(client);
                next.open |= world.lease_of.is_none();
            }
            Node::Pending(client) => {
                next.node = if world.pending && self.rules.node_carries_out_first {
                    next.pending = false;
                    Node::Taken(client)
                } else {
                    self.serve(world, client)
                };
            }
            Node::Taken(client) => self.take(&mut next, client),
            Node::CarriedOut(client, then) => {
                next.claim = 0;
                next.node = match then {
                    Next::Serve => self.serve(world, client),
                    Next::Apply => Node::Bar(client),
                    Next::Seal => Node::Apply(client),
                };
            }
            Node::Close(client) => {
                next.open &= !self.rules.node_closes_before_it_revokes;
                next.node = Node::RevokeAll(client);
            }
            Node::RevokeAll(client) => self.revoke(&mut next, client),
            Node::Bar(client) => self.bar(&mut next, client),
            Node::Apply(client) => {
                let told = self.apply(&mut next, client);
                next.clients[client].answer = Some(told);
                next.node = Node::Idle;
                if claim.is_some_and(|claim| claim.state == State::Barred) {
                    next.claim = 0;
                }
                next.open |= self.deed(world, client) == Some(Deed::Seal);
                if self.deed(world, client) == Some(Deed::Forbid) {
                    next.clients[client].answer = None;
                    next.node = Node::Raised(client);
                }
            }
            Node::Raised(client) => {
                (next.forbidden, next.open) = (true, true);
                next.clients[client].answer = Some(true);
                next.node = Node::Idle;
            }
        }
        Some(next)
    }

    /// Looks at what its bit says is pending.
    fn take(&self, next: &mut World, client: usize) {
        next.node = self.serve(next, client);
        let Some(claim) = Claim::read(next.claim) else { return };
        match claim.state {
            State::Posted => {
                self.carry_out(next, claim);
                next.node = Node::CarriedOut(client, Next::Serve);
            }
            State::Claimed => next.pending = true,
            State::Barred => {}
        }
    }

    /// Carries out what was posted, by a client that may have gone on.
    fn carry_out(&self, next: &mut World, claim: Claim) {
        let poster = claim.number;
        let done = next.clients[poster].done;
        let at = (0..=done).rev().find(|at| {
            matches!(self.deeds[poster].get(*at), Some(Deed::Remove | Deed::Create))
                && (*at < done || matches!(next.clients[poster].at, At::Posted))
        });
        let creates = self.deeds[poster][at.unwrap()] == Deed::Create;
        assert!(next.record != creates && !(creates && next.sealed), "it can be carried out");
        (next.record, next.on_board) = (creates, creates);
    }

    /// Takes the claim from a client that has not posted, and carries out what is posted.
    fn revoke(&self, next: &mut World, client: usize) {
        next.node = Node::Apply(client);
        match Claim::read(next.claim).filter(|_| self.rules.node_revokes_on_close) {
            Some(claim) if claim.state == State::Claimed => next.claim = 0,
            Some(claim) if claim.state == State::Posted => {
                self.carry_out(next, claim);
                next.node = Node::CarriedOut(client, Next::Seal);
            }
            _ => {}
        }
    }

    /// Bars the claim, or carries out what was posted under it and looks again.
    fn bar(&self, next: &mut World, client: usize) {
        next.node = Node::Apply(client);
        match Claim::read(next.claim) {
            Some(claim) if claim.state == State::Posted => {
                self.carry_out(next, claim);
                next.node = Node::CarriedOut(client, Next::Apply);
            }
            Some(claim) if claim.state == State::Claimed && !self.rules.node_revokes => {}
            Some(claim) if claim.state == State::Claimed && !self.rules.node_bars_until_done => {
                next.claim = 0;
            }
            _ if !self.rules.node_bars_until_done => {}
            _ => next.claim = Claim::BARRED.word(),
        }
    }

    /// Where a request begins, once what was pending is carried out.
    fn serve(&self, world: &World, client: usize) -> Node {
        match self.deed(world, client) {
            Some(Deed::Lease) => Node::Close(client),
            Some(Deed::Seal) if self.rules.node_closes_to_seal => Node::Close(client),
            Some(Deed::Forbid) if self.rules.node_closes_to_raise => Node::Close(client),
            Some(Deed::Remove | Deed::Rename | Deed::Make | Deed::Create) => Node::Bar(client),
            _ => Node::Apply(client),
        }
    }

    fn apply(&self, next: &mut World, client: usize) -> bool {
        match self.deed(next, client) {
            Some(Deed::Remove) => {
                let told = next.record && !next.forbidden;
                next.record &= !told;
                next.on_board &= next.record;
                told
            }
            Some(Deed::Rename) => {
                let told = next.record;
                next.on_board = false;
                (next.record, next.other) = (false, next.other || told);
                told
            }
            Some(Deed::Make | Deed::Create) => {
                let told = !next.record && !next.sealed && !next.forbidden;
                (next.record, next.on_board) = (next.record || told, next.on_board || told);
                told
            }
            Some(Deed::Seal) => {
                let told = !next.record;
                next.sealed |= told;
                told
            }
            Some(Deed::Look) => {
                next.on_board = next.record;
                next.record
            }
            Some(Deed::LookAtOther) => next.other,
            Some(Deed::Lease) => {
                (next.open, next.lease_of) = (false, Some(client));
                next.record
            }
            Some(Deed::Forbid) => {
                next.sealed = false;
                true
            }
            Some(Deed::Recall) | None => unreachable!("nothing is asked for"),
        }
    }

    /// Whether one after the other could have been told all this.
    fn is_explained(&self, history: &[(usize, Option<bool>)]) -> bool {
        // Deeds with their beginnings, ends and answers.
        let mut deeds = Vec::new();
        let mut open = vec![None; self.deeds.len()];
        let mut counts = vec![0; self.deeds.len()];
        for (at, (client, told)) in history.iter().enumerate() {
            match told {
                None => open[*client] = Some(at),
                Some(told) => {
                    let begun = open[*client].take().unwrap();
                    deeds.push((self.deeds[*client][counts[*client]], begun, at, *told));
                    counts[*client] += 1;
                }
            }
        }
        explain(&deeds, 0, Told { record: true, ..Told::default() })
    }

    /// Tries all orders. `Some`: a history that cannot be explained.
    fn search(&self) -> Option<History> {
        let idle = Client { at: At::Begin, done: 0, answer: None, leased: false };
        let first = World {
            record: true,
            other: false,
            on_board: true,
            sealed: false,
            claim: 0,
            pending: false,
            open: true,
            forbidden: false,
            lease_of: None,
            queue: Vec::new(),
            node: Node::Idle,
            clients: vec![idle; self.deeds.len()],
            history: Vec::new(),
        };
        let mut seen = HashSet::from([first.clone()]);
        let mut rest = vec![first];
        while let Some(world) = rest.pop() {
            let steps = (0..self.deeds.len())
                .filter_map(|client| self.step(&world, client))
                .chain(self.node(&world))
                .collect::<Vec<_>>();
            if steps.is_empty() {
                let all_done =
                    world.clients.iter().zip(&self.deeds).all(|(c, d)| c.done == d.len());
                assert!(all_done, "stuck: {world:?}");
                if !self.is_explained(&world.history) {
                    return Some(world.history);
                }
            }
            for step in steps {
                if seen.insert(step.clone()) {
                    rest.push(step);
                }
            }
        }
        None
    }
}

/// What there is, one deed after the other.
#[derive(Clone, Copy, Default)]
struct Told {
    record: bool,
    other: bool,
    forbidden: bool,
    sealed: bool,
}

/// Whether the deeds that are not in `used` can come after the others, in an order that keeps those apart which were apart in time.
fn explain(deeds: &[(Deed, usize, usize, bool)], used: u32, was: Told) -> bool {
    if used.count_ones() as usize == deeds.len() {
        return true;
    }
    let left = || (0..deeds.len()).filter(|at| used & 1 << at == 0);
    let first_end = left().map(|at| deeds[at].2).min().unwrap();
    left().filter(|at| deeds[*at].1 <= first_end).any(|at| {
        let (deed, _, _, told) = deeds[at];
        let Told { record, other, forbidden, sealed } = was;
        let (expected, after) = match deed {
            Deed::Remove | Deed::Make | Deed::Create if forbidden => (false, was),
            Deed::Remove => (record, Told { record: false, ..was }),
            Deed::Look | Deed::Lease | Deed::Recall => (record, was),
            Deed::LookAtOther => (other, was),
            Deed::Make | Deed::Create if sealed => (false, was),
            Deed::Make | Deed::Create => (!record, Told { record: true, ..was }),
            Deed::Rename => (record, Told { record: false, other: other || record, ..was }),
            Deed::Forbid => (true, Told { forbidden: true, sealed: false, ..was }),
            Deed::Seal => (!record, Told { sealed: sealed || !record, ..was }),
        };
        told == expected && explain(deeds, used | 1 << at, after)
    })
}

/// What clients do beside each other.
fn scenes() -> Vec<Vec<Vec<Deed>>> {
    use Deed::{Create, Forbid, Lease, Look, LookAtOther, Make, Recall, Remove, Rename, Seal};
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
    ];
    for rules in without {
        assert!(!matches!(std::panic::catch_unwind(|| found(rules)), Ok(None)), "{rules:?}");
    }
}
