//! The steps of clients.

use crate::model::{Deed, Mark, Model, Open, Slot, World};

/// Where a client is in its deed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum At {
    Begin,
    /// The wrong order: it has looked at the table already.
    ClaimNext,
    /// Looks for a mark in this slot.
    Scan(usize),
    NodeLock,
    Table,
    Looked,
    Filled,
    /// The wrong order: it meant to set the bit now, and does not come to it.
    Submitted,
    Failed,
    Asked,
}

impl Model {
    fn ask(world: &mut World, client: usize) {
        world.clients[client].at = At::Asked;
        world.queue.push(client);
    }

    /// One step of a client; `None`: it has nothing to do now.
    pub fn step(&self, world: &World, client: usize) -> Option<World> {
        let deed = self.deed(world, client)?;
        if self.heir == Some(client) && !world.inherited {
            return None;
        }
        let mut next = world.clone();
        let at = world.clients[client].at;
        if at == At::Begin {
            next.history.push((client, None));
        }
        match (deed, at) {
            (_, At::Asked) => {
                let told = world.clients[client].answer?;
                self.answer(&mut next, client, told);
            }
            (Deed::Recall, _) => {
                let is_known = world.queue.iter().all(|one| *one != client);
                assert!(is_known, "it does one thing after the other");
                // Nobody takes a delegation away, and what the client knew under it cannot have
                // changed. A client that never had one has nothing to say.
                let was = world.clients[client].delegated.unwrap_or(world.record);
                next.delegation_of = next.delegation_of.filter(|one| *one != client);
                self.answer(&mut next, client, was);
            }
            (Deed::Leave, _) => self.answer(&mut next, client, true),
            (deed, at) if deed.is_submitted() => self.submit(world, &mut next, (client, at)),
            (Deed::Look, at) => self.look(world, &mut next, (client, at)),
            (_, At::Begin) => Self::ask(&mut next, client),
            (deed, at) => unreachable!("{deed:?} at {at:?}"),
        }
        Some(next)
    }

    fn look(&self, world: &World, next: &mut World, (client, at): (usize, At)) {
        let go = |next: &mut World, at| next.clients[client].at = at;
        match at {
            At::Begin if self.rules.reader_looks_for_marks => go(next, At::Scan(0)),
            At::Begin => go(next, At::Table),
            At::Scan(slot) => {
                let is_submitted = matches!(world.slots[slot], Slot::Submitted(..) | Slot::Garbage);
                if world.marks[slot] != Mark::Off && is_submitted {
                    Self::ask(next, client);
                } else if slot + 1 == world.slots.len() {
                    go(next, At::Table);
                } else {
                    go(next, At::Scan(slot + 1));
                }
            }
            _ if world.in_table => self.answer(next, client, true),
            _ => Self::ask(next, client),
        }
    }

    /// Whether the outcome is certain of what a client submits.
    fn is_certain(&self, world: &World, client: usize) -> bool {
        match self.deed(world, client) {
            // The index of the look-up table has a word for each record.
            Some(Deed::Create | Deed::Grant) => {
                !world.in_table && (!world.has_tombstone || !self.rules.client_looks_for_tombstone)
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
        let own = self.slot(client);
        let go = |next: &mut World, at| next.clients[client].at = at;
        match at {
            At::Begin if world.slots[own] != Slot::Free => Self::ask(next, client),
            At::Begin if !self.rules.client_looks_at_table_after_claim => {
                if self.is_certain(world, client) {
                    go(next, At::ClaimNext);
                } else {
                    Self::ask(next, client);
                }
            }
            At::Begin | At::ClaimNext => {
                (next.slots[own], next.marks[own]) = (Slot::Claimed, Mark::On);
                go(next, self.after_scan(0, own));
            }
            At::Scan(slot) if world.marks[slot] != Mark::Off => go(next, At::Failed),
            At::Scan(slot) => go(next, self.after_scan(slot + 1, own)),
            At::NodeLock if world.node_lock && self.rules.client_looks_at_node_locks => {
                go(next, At::Failed);
            }
            At::NodeLock => go(next, At::Table),
            At::Table => {
                let is_certain =
                    self.is_certain(world, client) || !self.rules.client_looks_at_table_after_claim;
                let may = self.may_submit(world, client) && is_certain && !world.forbidden;
                go(next, if may { At::Looked } else { At::Failed });
            }
            At::Looked => {
                next.pending[own] |= self.rules.client_sets_bit_before_submitting;
                go(next, At::Filled);
            }
            At::Filled if world.slots[own] != Slot::Claimed => go(next, At::Failed),
            At::Filled => {
                next.slots[own] = Slot::Submitted(client, world.clients[client].done);
                if self.rules.client_sets_bit_before_submitting {
                    self.answer(next, client, true);
                } else {
                    go(next, At::Submitted);
                }
            }
            At::Submitted => self.answer(next, client, true),
            At::Failed => {
                (next.slots[own], next.marks[own]) = (Slot::Free, Mark::Off);
                Self::ask(next, client);
            }
            At::Asked => unreachable!("it has been asked for"),
        }
    }

    /// The next slot at which a client looks that has claimed its own.
    fn after_scan(&self, slot: usize, own: usize) -> At {
        let slot = if slot == own { slot + 1 } else { slot };
        let is_over = slot >= self.deeds.len() || !self.rules.client_looks_for_marks;
        if is_over { At::NodeLock } else { At::Scan(slot) }
    }
}
