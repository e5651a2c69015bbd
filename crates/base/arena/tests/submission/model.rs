//! Clients, their node and what they share.

use std::collections::HashSet;

use crate::client::At;
use crate::node::Node;
use crate::rules::Rules;
use crate::told::{DoneDeed, Told, explain};

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
    /// Closes the connection. Its slot is that of the [heir](Model::heir) then.
    Leave,
}

impl Deed {
    /// Whether a client submits it if it can.
    pub const fn is_submitted(self) -> bool {
        matches!(self, Self::Remove | Self::Create | Self::Grant)
    }
}

/// A slot of a client's queue. Threads of one client have slots of their own, which look to each
/// other as those of other clients do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Slot {
    Free,
    Claimed,
    /// It says claimed, and the word is none that the client has written.
    OtherClaimed,
    /// By this client, with this of its deeds.
    Submitted(usize, usize),
    Revoked,
    /// It says submitted, and its checksum is wrong.
    Garbage,
}

/// Whether a slot says that it is about `K`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mark {
    Off,
    On,
    /// By a stray pointer: it is not what the node finds right.
    Stray,
}

impl Slot {
    /// Whether the node takes it for claimed.
    pub const fn is_claimed(self) -> bool {
        matches!(self, Self::Claimed | Self::OtherClaimed)
    }
}

/// Clients that may submit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Open {
    No,
    All,
    Only(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Client {
    pub at: At,
    /// Deeds done.
    pub done: usize,
    pub answer: Option<bool>,
    /// Whether `K` is there, as it knows under a delegation.
    pub delegated: Option<bool>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    pub record: bool,
    pub other: bool,
    pub in_table: bool,
    /// The directory takes nothing new.
    pub has_tombstone: bool,
    pub slots: Vec<Slot>,
    pub marks: Vec<Mark>,
    pub pending: Vec<bool>,
    pub node_lock: bool,
    pub open: Open,
    pub forbidden: bool,
    pub delegation_of: Option<usize>,
    pub queue: Vec<usize>,
    pub node: Node,
    pub clients: Vec<Client>,
    pub history: History,
    /// So many stray writes are left.
    pub strays: u8,
    /// The heir has the slot of the client that left.
    pub inherited: bool,
    /// Something was submitted and cannot be carried out.
    pub is_lost: bool,
}

/// Beginnings and ends of deeds, in order; ends with what the client was told.
pub type History = Vec<(usize, Option<bool>)>;

#[derive(Clone)]
pub struct Model {
    pub deeds: Vec<Vec<Deed>>,
    pub rules: Rules,
    /// So often a stray pointer of the first client writes to its queue.
    pub strays: u8,
    /// The client that gets the slot of the first one when that has left.
    pub heir: Option<usize>,
}

impl Model {
    pub fn deed(&self, world: &World, client: usize) -> Option<Deed> {
        self.deeds[client].get(world.clients[client].done).copied()
    }

    /// The slot of a client.
    pub fn slot(&self, client: usize) -> usize {
        if self.heir == Some(client) { 0 } else { client }
    }

    pub fn answer(&self, world: &mut World, client: usize, told: bool) {
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

    /// A stray pointer of the first client writes to its queue.
    fn stray_writes(&self, world: &World) -> Vec<World> {
        let has_left = self.deeds[0][..world.clients[0].done].contains(&Deed::Leave);
        if world.strays == 0 || has_left && self.rules.client_closes_queue_before_connection {
            return Vec::new();
        }
        let slots = [Slot::Free, Slot::OtherClaimed, Slot::Revoked, Slot::Garbage];
        let marks = [Mark::Off, Mark::Stray];
        let mut all: Vec<World> = vec![world.clone(); slots.len() + marks.len() + 1];
        for (next, slot) in all.iter_mut().zip(slots) {
            next.slots[0] = slot;
        }
        for (next, mark) in all[slots.len()..].iter_mut().zip(marks) {
            next.marks[0] = mark;
        }
        let last = slots.len() + marks.len();
        all[last].pending[0] = !world.pending[0];
        all.retain(|next| next != world);
        all.iter_mut().for_each(|next| next.strays -= 1);
        all
    }

    /// Whether one after the other could have been told all this.
    fn is_explained(&self, history: &[(usize, Option<bool>)]) -> bool {
        let mut deeds: Vec<DoneDeed> = Vec::new();
        let mut open = vec![None; self.deeds.len()];
        let mut counts = vec![0; self.deeds.len()];
        for (at, (client, told)) in history.iter().enumerate() {
            match told {
                None => open[*client] = Some(at),
                Some(told) => {
                    let begun = open[*client].take().unwrap();
                    let deed = self.deeds[*client][counts[*client]];
                    let ended = Some((at, *told)).filter(|_| self.strays == 0 || *client != 0);
                    deeds.push(DoneDeed { deed, begun, ended });
                    counts[*client] += 1;
                }
            }
        }
        explain(&deeds, 0, Told { record: true, ..Told::default() })
    }

    /// Tries all orders. `Some`: a history that cannot be explained.
    pub fn search(&self) -> Option<History> {
        let idle = Client { at: At::Begin, done: 0, answer: None, delegated: None };
        let count = self.deeds.len();
        let first = World {
            record: true,
            other: false,
            in_table: true,
            has_tombstone: false,
            slots: vec![Slot::Free; count],
            marks: vec![Mark::Off; count],
            pending: vec![false; count],
            node_lock: false,
            open: Open::All,
            forbidden: false,
            delegation_of: None,
            queue: Vec::new(),
            node: Node::Idle,
            clients: vec![idle; count],
            history: Vec::new(),
            strays: self.strays,
            inherited: false,
            is_lost: false,
        };
        let mut seen = HashSet::from([first.clone()]);
        let mut rest = vec![first];
        while let Some(world) = rest.pop() {
            let mut steps: Vec<World> = (0..count)
                .filter_map(|client| self.step(&world, client))
                .chain(self.node(&world))
                .collect();
            let is_over = steps.is_empty();
            let all_done = || world.clients.iter().zip(&self.deeds).all(|(c, d)| c.done == d.len());
            assert!(!is_over || all_done(), "stuck: {world:?}");
            if world.is_lost || is_over && !self.is_explained(&world.history) {
                return Some(world.history);
            }
            steps.extend(self.stray_writes(&world));
            for step in steps {
                if !seen.contains(&step) {
                    seen.insert(step.clone());
                    rest.push(step);
                }
            }
        }
        None
    }
}
