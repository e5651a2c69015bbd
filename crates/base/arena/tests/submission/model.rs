//! The steps of clients and of their node.

use std::collections::HashSet;

use samite_arena::submission::{LockWord, LockWordState};
use samite_types::ClientId;

use crate::rules::Rules;
use crate::told::{Told, explain};

/// Deeds of clients. `K` and `X` are records, of one directory; at first only `K` is there, and
/// published in the look-up table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Deed {
    /// Removes `K`: by an early completion if it can.
    Remove,
    /// Is `K` there?
    Look,
    /// Is `X` there?
    LookAtOther,
    /// Makes `K`, if it is not there: asks for that.
    Make,
    /// The same: by an early completion if it can.
    Create,
    /// The same, and gets a delegation if it has made `K`.
    Grant,
    /// Makes the directory's tombstone, if `K` is not there: nothing is made in it any more.
    Tombstone,
    /// Gives `K` the name `X`.
    Rename,
    /// Asks whether `K` is there, with a delegation.
    Delegate,
    /// Says again what it was told under the delegation, and gives it back.
    Recall,
    /// Raises the name-space generation: changes of clients under an older one are refused from
    /// then on; a tombstone goes with it.
    Forbid,
}

/// Where a client is in its deed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    Begin,
    Claimed,
    Looked,
    Filled,
    Submitted,
    Failed,
    TableNext,
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
    /// Has carried out what was submitted, which it has yet to say.
    CarriedOut(usize, Next),
    Close(usize),
    RevokeAll(usize),
    /// Checks whether a delegation stands against it.
    Turn(usize),
    Lock(usize),
    /// Has locked a record lock word for exclusive change, under which this was submitted, without
    /// carrying it out before.
    LockedOver(usize, u64),
    Apply(usize),
    Raised(usize),
}

/// The step after something was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Next {
    Serve,
    Apply,
    Tombstone,
}

/// Clients that may submit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Open {
    No,
    All,
    Only(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Client {
    at: At,
    /// Deeds done.
    done: usize,
    answer: Option<bool>,
    /// Whether `K` is there, as it knows under a delegation.
    delegated: Option<bool>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    record: bool,
    other: bool,
    in_table: bool,
    /// The directory takes nothing new.
    has_tombstone: bool,
    lock_word: u64,
    pending: bool,
    open: Open,
    forbidden: bool,
    delegation_of: Option<usize>,
    queue: Vec<usize>,
    node: Node,
    clients: Vec<Client>,
    history: History,
}

/// Beginnings and ends of deeds, in order; ends with what the client was told.
pub type History = Vec<(usize, Option<bool>)>;

pub struct Model {
    pub deeds: Vec<Vec<Deed>>,
    pub rules: Rules,
}

impl Model {
    fn deed(&self, world: &World, client: usize) -> Option<Deed> {
        self.deeds[client].get(world.clients[client].done).copied()
    }

    fn answer(&self, world: &mut World, client: usize, told: bool) {
        let deed = self.deed(world, client);
        let one = &mut world.clients[client];
        one.delegated = match deed {
            Some(Deed::Delegate) => Some(told),
            Some(Deed::Grant) if told => Some(true),
            // It knows what it changes itself under its delegation.
            Some(Deed::Create | Deed::Make) if told => one.delegated.map(|_| true),
            Some(Deed::Remove | Deed::Rename) if told => one.delegated.map(|_| false),
            Some(Deed::Recall) => None,
            _ => one.delegated,
        };
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
                self.answer(&mut next, client, told);
            }
            (Deed::Recall, _) => {
                next.history.push((client, None));
                let is_known = world.queue.iter().all(|one| *one != client);
                assert!(is_known, "it does one thing after the other");
                // Nobody takes a delegation away, and what the client knew under it cannot have
                // changed. A client that never had one has nothing to say.
                let was = world.clients[client].delegated.unwrap_or(world.record);
                next.delegation_of = next.delegation_of.filter(|one| *one != client);
                self.answer(&mut next, client, was);
            }
            (Deed::Remove | Deed::Create | Deed::Grant, at) => {
                self.submit(world, &mut next, (client, at))
            }
            (Deed::Look, At::Begin) => {
                next.history.push((client, None));
                let is_submitted = LockWord::read(world.lock_word)
                    .is_some_and(|lock_word| lock_word.state == LockWordState::Posted);
                if is_submitted && self.rules.reader_looks_at_lock_word {
                    Self::ask(&mut next, client);
                } else {
                    next.clients[client].at = At::TableNext;
                }
            }
            (Deed::Look, At::TableNext) => {
                if world.in_table {
                    self.answer(&mut next, client, true);
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

    /// Whether the outcome is certain of what a client submits.
    fn is_certain(&self, world: &World, client: usize) -> bool {
        match self.deed(world, client) {
            Some(Deed::Create | Deed::Grant) => {
                !world.record && (!world.has_tombstone || !self.rules.client_looks_for_tombstone)
            }
            _ => world.in_table,
        }
    }

    /// Whether it finds that it may submit.
    fn may_submit(&self, world: &World, client: usize) -> bool {
        match world.open {
            Open::No => false,
            Open::All => {
                self.deed(world, client) != Some(Deed::Grant)
                    || !self.rules.client_looks_for_sole_client
            }
            Open::Only(one) => one == client || !self.rules.client_looks_for_sole_client,
        }
    }

    /// One step of a submission.
    fn submit(&self, world: &World, next: &mut World, (client, at): (usize, At)) {
        let lock_word = LockWord::new(ClientId(client as u64 + 1), client);
        let submitted = lock_word.in_state(LockWordState::Posted).word();
        let go = |next: &mut World, at| next.clients[client].at = at;
        match at {
            At::Begin => {
                next.history.push((client, None));
                if world.lock_word == 0 && self.rules.client_looks_at_table_after_claim {
                    next.lock_word = lock_word.word();
                    go(next, At::Claimed);
                } else if world.lock_word == 0 && self.is_certain(world, client) {
                    // The wrong order: it claims the lock word after it has looked at the table.
                    go(next, At::TableNext);
                } else {
                    Self::ask(next, client);
                }
            }
            At::TableNext => {
                if world.lock_word == 0 {
                    next.lock_word = lock_word.word();
                    go(next, At::Looked);
                } else {
                    Self::ask(next, client);
                }
            }
            At::Claimed => {
                let may = self.may_submit(world, client)
                    && self.is_certain(world, client)
                    && !world.forbidden;
                go(next, if may { At::Looked } else { At::Failed });
            }
            At::Looked => {
                next.pending |= self.rules.client_sets_bit_before_submitting;
                go(next, At::Filled);
            }
            At::Filled => {
                if world.lock_word != lock_word.word() {
                    go(next, At::Failed);
                } else {
                    next.lock_word = submitted;
                    if self.rules.client_sets_bit_before_submitting {
                        self.answer(next, client, true);
                    } else {
                        // It meant to set the bit now, and does not come to it.
                        go(next, At::Submitted);
                    }
                }
            }
            At::Submitted => self.answer(next, client, true),
            At::Failed => {
                if world.lock_word == lock_word.word() || !self.rules.client_frees_only_its_own {
                    next.lock_word = 0;
                }
                Self::ask(next, client);
            }
            At::Asked => unreachable!("it has been asked for"),
        }
    }

    /// One step of the node; `None`: it has nothing to do.
    fn node(&self, world: &World) -> Option<World> {
        let mut next = world.clone();
        let lock_word = LockWord::read(world.lock_word);
        match world.node {
            Node::Idle => {
                let at = world.queue.iter().position(|client| !self.is_delayed(world, *client))?;
                let client = next.queue.remove(at);
                next.node = Node::Pending(client);
                // It closes the table between the two; here it waits until that changes nothing.
                if world.open == Open::No || world.lock_word == 0 && !world.pending {
                    self.reopen(&mut next);
                }
            }
            Node::Pending(client) => {
                next.node = if world.pending && self.rules.node_carries_out_first {
                    next.pending = false;
                    Node::Taken(client)
                } else {
                    self.serve(&mut next, client)
                };
            }
            Node::Taken(client) => self.take(&mut next, client),
            Node::CarriedOut(client, then) => {
                let stays_locked = then == Next::Apply && self.rules.node_locks_until_done;
                next.lock_word = if stays_locked { LockWord::LOCKED.word() } else { 0 };
                next.node = match then {
                    Next::Serve => self.serve(&mut next, client),
                    Next::Apply => Node::Apply(client),
                    Next::Tombstone => Node::Turn(client),
                };
            }
            Node::Close(client) => {
                if self.rules.node_closes_before_it_revokes {
                    next.open = Open::No;
                }
                next.node = Node::RevokeAll(client);
            }
            Node::RevokeAll(client) => self.revoke(&mut next, client),
            Node::Lock(client) => self.lock(&mut next, client),
            Node::LockedOver(client, submitted) => self.catch_up(&mut next, client, submitted),
            Node::Turn(client) if self.is_delayed(world, client) => {
                next.queue.push(client);
                next.node = Node::Idle;
                self.reopen(&mut next);
            }
            Node::Turn(client) => next.node = Node::Apply(client),
            Node::Apply(client) => {
                let told = self.apply(&mut next, client);
                next.clients[client].answer = Some(told);
                next.node = Node::Idle;
                if lock_word.is_some_and(|lock_word| lock_word.state == LockWordState::Barred) {
                    next.lock_word = 0;
                }
                if next.open == Open::No && self.deed(world, client) != Some(Deed::Forbid) {
                    self.reopen(&mut next);
                }
                if self.deed(world, client) == Some(Deed::Forbid) {
                    next.clients[client].answer = None;
                    next.node = Node::Raised(client);
                }
            }
            Node::Raised(client) => {
                next.forbidden = true;
                self.reopen(&mut next);
                next.clients[client].answer = Some(true);
                next.node = Node::Idle;
            }
        }
        Some(next)
    }

    /// The step where the node goes on to lock a word that has changed hands at each of its tries.
    fn cannot_lock(&self, world: &World) -> Option<World> {
        let Node::Lock(client) = world.node else { return None };
        let mut next = world.clone();
        if self.rules.node_closes_where_it_cannot_lock {
            next.node = Node::Close(client);
        } else {
            next.node = Node::LockedOver(client, world.lock_word);
            next.lock_word = LockWord::LOCKED.word();
        }
        Some(next)
    }

    /// Carries out what was submitted under a lock word that is locked already.
    fn catch_up(&self, next: &mut World, client: usize, submitted: u64) {
        if let Some(lock_word) =
            LockWord::read(submitted).filter(|one| one.state == LockWordState::Posted)
        {
            self.carry_out(next, lock_word);
        }
        next.node = Node::Apply(client);
    }

    /// Carries out the entry whose pending bit was taken, if it is submitted.
    fn take(&self, next: &mut World, client: usize) {
        let lock_word = LockWord::read(next.lock_word);
        if let Some(lock_word) =
            lock_word.filter(|lock_word| lock_word.state == LockWordState::Posted)
        {
            self.carry_out(next, lock_word);
            next.node = Node::CarriedOut(client, Next::Serve);
            return;
        }
        next.pending |=
            lock_word.is_some_and(|lock_word| lock_word.state == LockWordState::Claimed);
        next.node = self.serve(next, client);
    }

    /// Whether what a client asks for has to wait for a delegation of another one to end.
    fn is_delayed(&self, world: &World, client: usize) -> bool {
        let changes = matches!(
            self.deed(world, client),
            Some(Deed::Remove | Deed::Rename | Deed::Make | Deed::Create | Deed::Grant)
        );
        changes && world.delegation_of.is_some_and(|one| one != client)
    }

    /// Lets those clients submit whose delegations allow it.
    fn reopen(&self, next: &mut World) {
        next.open = match next.delegation_of {
            Some(client) if self.rules.node_opens_to_sole_holder => Open::Only(client),
            _ => Open::All,
        };
    }

    /// Carries out what was submitted, by a client that may have gone on.
    fn carry_out(&self, next: &mut World, lock_word: LockWord) {
        let submitter = lock_word.number;
        let done = next.clients[submitter].done;
        let at = (0..=done).rev().find(|at| {
            let deed = self.deeds[submitter].get(*at);
            matches!(deed, Some(Deed::Remove | Deed::Create | Deed::Grant))
                && (*at < done || matches!(next.clients[submitter].at, At::Submitted))
        });
        let deed = self.deeds[submitter][at.unwrap()];
        let creates = deed != Deed::Remove;
        // Delegations end by themselves, if nobody relies on them any more.
        let relies = next.clients[submitter].delegated.is_some();
        if deed == Deed::Grant && relies && self.rules.node_grants_what_was_submitted {
            next.delegation_of = Some(submitter);
        }
        assert!(
            next.record != creates && !(creates && next.has_tombstone),
            "it can be carried out"
        );
        (next.record, next.in_table) = (creates, creates);
    }

    /// Takes the lock word from a client that has not submitted, and carries out what is submitted.
    fn revoke(&self, next: &mut World, client: usize) {
        next.node = Node::Turn(client);
        match LockWord::read(next.lock_word).filter(|_| self.rules.node_revokes_on_close) {
            Some(lock_word) if lock_word.state == LockWordState::Claimed => next.lock_word = 0,
            Some(lock_word) if lock_word.state == LockWordState::Posted => {
                self.carry_out(next, lock_word);
                next.node = Node::CarriedOut(client, Next::Tombstone);
            }
            _ => {}
        }
    }

    /// Locks the word for exclusive change, or carries out what was submitted under it and locks it
    /// with that.
    fn lock(&self, next: &mut World, client: usize) {
        next.node = Node::Apply(client);
        match LockWord::read(next.lock_word) {
            Some(lock_word) if lock_word.state == LockWordState::Posted => {
                self.carry_out(next, lock_word);
                next.node = Node::CarriedOut(client, Next::Apply);
            }
            Some(lock_word)
                if lock_word.state == LockWordState::Claimed && !self.rules.node_revokes => {}
            Some(lock_word)
                if lock_word.state == LockWordState::Claimed
                    && !self.rules.node_locks_until_done =>
            {
                next.lock_word = 0;
            }
            _ if !self.rules.node_locks_until_done => {}
            _ => next.lock_word = LockWord::LOCKED.word(),
        }
    }

    /// Where a request begins, once what was pending is carried out.
    fn serve(&self, next: &mut World, client: usize) -> Node {
        if self.is_delayed(next, client) {
            next.queue.push(client);
            return Node::Idle;
        }
        let is_anothers = matches!(next.open, Open::Only(one) if one != client);
        match self.deed(next, client) {
            Some(Deed::Delegate | Deed::Grant) => Node::Close(client),
            Some(Deed::Remove | Deed::Rename | Deed::Make | Deed::Create)
                if is_anothers && self.rules.node_closes_to_changes_of_others =>
            {
                Node::Close(client)
            }
            Some(Deed::Tombstone) if self.rules.node_closes_to_tombstone => Node::Close(client),
            Some(Deed::Forbid) if self.rules.node_closes_to_raise => Node::Close(client),
            Some(Deed::Remove | Deed::Rename | Deed::Make | Deed::Create) => Node::Lock(client),
            _ => Node::Apply(client),
        }
    }

    fn apply(&self, next: &mut World, client: usize) -> bool {
        match self.deed(next, client) {
            Some(Deed::Remove) => {
                let told = next.record && !next.forbidden;
                next.record &= !told;
                next.in_table &= next.record;
                told
            }
            Some(Deed::Rename) => {
                let told = next.record;
                next.in_table = false;
                (next.record, next.other) = (false, next.other || told);
                told
            }
            Some(deed @ (Deed::Make | Deed::Create | Deed::Grant)) => {
                let told = !next.record && !next.has_tombstone && !next.forbidden;
                (next.record, next.in_table) = (next.record || told, next.in_table || told);
                if told && deed == Deed::Grant {
                    next.delegation_of = Some(client);
                }
                told
            }
            Some(Deed::Tombstone) => {
                let told = !next.record;
                next.has_tombstone |= told;
                told
            }
            Some(Deed::Look) => {
                next.in_table = next.record;
                next.record
            }
            Some(Deed::LookAtOther) => next.other,
            Some(Deed::Delegate) => {
                next.delegation_of = Some(client);
                next.record
            }
            Some(Deed::Forbid) => {
                next.has_tombstone = false;
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
    pub fn search(&self) -> Option<History> {
        let idle = Client { at: At::Begin, done: 0, answer: None, delegated: None };
        let first = World {
            record: true,
            other: false,
            in_table: true,
            has_tombstone: false,
            lock_word: 0,
            pending: false,
            open: Open::All,
            forbidden: false,
            delegation_of: None,
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
                .chain(self.cannot_lock(&world))
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
