//! The steps of the node.

use crate::model::{Deed, Mark, Model, Open, Slot, World};

/// Where the node is with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Node {
    Idle,
    /// Looks at the pending bit of a slot, before it serves a request, or for nobody.
    Drain(Option<usize>, usize),
    Close(usize),
    Revoke(usize, usize),
    /// The table is closed: carries out what is submitted.
    DrainClosed(usize, usize),
    /// Checks whether a delegation stands against it.
    Turn(usize),
    Lock(usize),
    /// Has locked: looks at the mark of a slot.
    Scan(usize, usize),
    Apply(usize),
    Raised(usize),
    /// Has copied a slot and locked the record, is about to carry it out, and goes on there.
    Check(usize, Slot, After),
    CarryOut(usize, Slot, After),
    /// Has carried it out, with what is in the slot to be shown, or freed.
    Show(usize, Option<bool>, After),
    Free(usize, After),
    Unmark(usize, After),
    /// Carries out what a client left that is gone.
    Clear,
}

/// The step after something was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum After {
    Drain(Option<usize>, usize),
    DrainClosed(usize, usize),
    Scan(usize, usize),
    Clear,
}

impl From<After> for Node {
    fn from(after: After) -> Self {
        match after {
            After::Drain(request, slot) => Self::Drain(request, slot),
            After::DrainClosed(client, slot) => Self::DrainClosed(client, slot),
            After::Scan(client, slot) => Self::Scan(client, slot),
            After::Clear => Self::Clear,
        }
    }
}

impl Model {
    /// Steps of the node: which request it serves next is one of them.
    pub fn node(&self, world: &World) -> Vec<World> {
        let mut next = world.clone();
        let last = world.slots.len();
        match world.node {
            Node::Idle => return self.begin(world),
            Node::Drain(None, slot) if slot == last => next.node = Node::Idle,
            Node::Drain(Some(client), slot) if slot == last => {
                next.node = self.serve(&mut next, client);
            }
            Node::Drain(request, slot) => self.drain(&mut next, request, slot),
            Node::Close(client) => {
                if self.rules.node_closes_before_it_revokes {
                    next.open = Open::No;
                }
                next.node = Node::Revoke(client, 0);
            }
            Node::Revoke(client, slot) if slot == last => next.node = Node::DrainClosed(client, 0),
            Node::Revoke(client, slot) => {
                let is_claimed = world.slots[slot].is_claimed();
                if is_claimed && world.marks[slot] != Mark::Off && self.rules.node_revokes_on_close
                {
                    next.slots[slot] = Slot::Revoked;
                }
                next.node = Node::Revoke(client, slot + 1);
            }
            Node::DrainClosed(client, slot) if slot == last => next.node = Node::Turn(client),
            Node::DrainClosed(client, slot) => {
                let after = After::DrainClosed(client, slot + 1);
                let is_meant = world.pending[slot] || world.marks[slot] != Mark::Off;
                next.pending[slot] = false;
                next.node = after.into();
                if is_meant && self.rules.node_carries_out_on_close {
                    self.take(&mut next, slot, after);
                }
            }
            Node::Turn(client) if self.is_delayed(world, client) => {
                next.queue.push(client);
                next.node = Node::Idle;
                self.reopen(&mut next);
            }
            Node::Turn(client) => next.node = Node::Apply(client),
            Node::Lock(client) => return self.lock(world, client),
            Node::Scan(client, slot) if slot == last => next.node = Node::Apply(client),
            Node::Scan(client, slot) => self.scan(&mut next, client, slot),
            Node::Apply(client) => self.apply_and_answer(&mut next, client),
            Node::Raised(client) => {
                next.forbidden = true;
                self.reopen(&mut next);
                next.clients[client].answer = Some(true);
                next.node = Node::Idle;
            }
            Node::Clear => self.clear(&mut next),
            _ => self.carry_on(&mut next),
        }
        vec![next]
    }

    fn begin(&self, world: &World) -> Vec<World> {
        let is_meant = |at: &usize| !self.is_delayed(world, world.queue[*at]);
        let mut all: Vec<World> = (0..world.queue.len())
            .filter(is_meant)
            .map(|at| {
                let mut next = world.clone();
                let client = next.queue.remove(at);
                let first = if self.rules.node_carries_out_first { 0 } else { world.slots.len() };
                next.node = Node::Drain(Some(client), first);
                // It closes the table between the two; here it waits until that changes nothing.
                let is_empty = world.marks.iter().all(|mark| *mark == Mark::Off);
                if world.open == Open::No || is_empty && !world.pending.contains(&true) {
                    self.reopen(&mut next);
                }
                next
            })
            .collect();
        if world.pending.contains(&true) && self.deeds.len() < 3 {
            // Also without a request.
            all.push(World { node: Node::Drain(None, 0), ..world.clone() });
        }
        let has_left = self.deeds[0][..world.clients[0].done].contains(&Deed::Leave);
        if self.heir.is_some() && has_left && !world.inherited {
            let node = Node::Clear;
            all.push(World { node, ..world.clone() });
        }
        all
    }

    fn drain(&self, next: &mut World, request: Option<usize>, slot: usize) {
        let after = After::Drain(request, slot + 1);
        next.node = after.into();
        if !std::mem::take(&mut next.pending[slot]) {
            return;
        }
        if next.slots[slot].is_claimed() {
            // Only for a request is it looked at again.
            next.pending[slot] = true;
        } else {
            self.take(next, slot, after);
        }
    }

    /// Is about to carry out a slot, if it is submitted.
    fn take(&self, next: &mut World, slot: usize, after: After) {
        match next.slots[slot] {
            Slot::Garbage => (next.slots[slot], next.marks[slot]) = (Slot::Free, Mark::Off),
            copy @ Slot::Submitted(..) => {
                next.node_lock |= self.rules.node_locks_what_it_carries_out;
                next.node = Node::Check(slot, copy, after);
            }
            _ => {}
        }
    }

    /// The steps from the lock to the free slot.
    fn carry_on(&self, next: &mut World) {
        match next.node {
            Node::Check(slot, copy, after) => {
                let is_submitted = next.slots[slot] == copy;
                let is_marked = next.marks[slot] == Mark::On || !self.rules.node_checks_marks;
                if is_submitted && is_marked {
                    next.node = Node::CarryOut(slot, copy, after);
                } else {
                    (next.slots[slot], next.marks[slot]) = (Slot::Free, Mark::Off);
                    self.go_on(next, after);
                }
            }
            Node::CarryOut(slot, copy, after) => self.carry_out(next, (slot, copy), after),
            Node::Show(slot, Some(is_there), after) => {
                next.in_table = is_there;
                if self.rules.node_shows_before_it_unmarks {
                    self.unmark(next, slot, after);
                } else {
                    self.go_on(next, after);
                }
            }
            Node::Free(slot, after) => {
                next.slots[slot] = Slot::Free;
                self.go_on(next, after);
            }
            Node::Unmark(slot, after) => {
                next.marks[slot] = Mark::Off;
                self.go_on(next, after);
            }
            node => unreachable!("{node:?}"),
        }
    }

    /// Takes the mark away and frees the slot, in two steps.
    fn unmark(&self, next: &mut World, slot: usize, after: After) {
        if self.rules.node_unmarks_before_it_frees {
            next.marks[slot] = Mark::Off;
            next.node = Node::Free(slot, after);
        } else {
            next.slots[slot] = Slot::Free;
            next.node = Node::Unmark(slot, after);
        }
    }

    /// Nothing is carried out any more.
    fn go_on(&self, next: &mut World, after: After) {
        if !matches!(after, After::Scan(..)) {
            next.node_lock = false;
        }
        next.node = after.into();
    }

    /// Carries out what was submitted, by a client that may have gone on.
    fn carry_out(&self, next: &mut World, (slot, copy): (usize, Slot), after: After) {
        let Slot::Submitted(submitter, at) = copy else { unreachable!("{copy:?}") };
        let deed = self.deeds[submitter][at];
        let creates = deed != Deed::Remove;
        // Delegations end by themselves, if nobody relies on them any more.
        let relies = next.clients[submitter].delegated.is_some();
        if deed == Deed::Grant && relies && self.rules.node_grants_what_was_submitted {
            next.delegation_of = Some(submitter);
        }
        next.is_lost |= next.record == creates || creates && next.has_tombstone;
        next.record = creates;
        if self.rules.node_shows_before_it_unmarks {
            next.node = Node::Show(slot, Some(creates), after);
        } else {
            (next.slots[slot], next.marks[slot]) = (Slot::Free, Mark::Off);
            next.node = Node::Show(slot, Some(creates), after);
        }
    }

    /// The client that left has a slot, in which something may be: another one gets it.
    fn clear(&self, next: &mut World) {
        if matches!(next.slots[0], Slot::Submitted(..))
            && self.rules.node_clears_a_queue_before_it_gives_it
        {
            next.pending[0] = false;
            self.take(next, 0, After::Clear);
            return;
        }
        if self.rules.node_clears_a_queue_before_it_gives_it {
            (next.slots[0], next.marks[0], next.pending[0]) = (Slot::Free, Mark::Off, false);
        } else if matches!(next.slots[0], Slot::Submitted(..)) {
            // It is not the new owner's.
            next.slots[0] = Slot::Garbage;
        }
        next.inherited = true;
        next.node = Node::Idle;
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

    /// Locks the record, or goes on where there are not enough locks.
    fn lock(&self, world: &World, client: usize) -> Vec<World> {
        let mut locked = World { node: Node::Scan(client, 0), ..world.clone() };
        let mut cannot = locked.clone();
        locked.node_lock = self.rules.node_locks_until_done;
        if self.rules.node_closes_where_it_cannot_lock {
            cannot.open = Open::No;
        }
        vec![locked, cannot]
    }

    /// Looks at the mark of a slot, with the record locked.
    fn scan(&self, next: &mut World, client: usize, slot: usize) {
        let after = After::Scan(client, slot + 1);
        next.node = after.into();
        if next.marks[slot] == Mark::Off {
            return;
        }
        if next.slots[slot].is_claimed() && self.rules.node_revokes {
            next.slots[slot] = Slot::Revoked;
        } else if self.rules.node_carries_out_before_change {
            let lock = next.node_lock;
            self.take(next, slot, after);
            next.node_lock = lock;
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

    fn apply_and_answer(&self, next: &mut World, client: usize) {
        let is_raise = self.deed(next, client) == Some(Deed::Forbid);
        let told = self.apply(next, client);
        next.node_lock = false;
        if is_raise {
            next.node = Node::Raised(client);
            return;
        }
        if next.open == Open::No {
            self.reopen(next);
        }
        next.clients[client].answer = Some(told);
        next.node = Node::Idle;
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
            Some(Deed::Recall | Deed::Leave) | None => unreachable!("nothing is asked for"),
        }
    }
}
