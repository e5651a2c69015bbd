//! Delegations on records: a client's change waits while others rely on what they have read.
//!
//! A delegation is a grant to one client: until a given time no other client's change of a record
//! takes effect. The table knows the holders of all delegations; the node that carries out
//! operations asks it first ([`RecordLeases::against`]) and waits. It is not part of the
//! partition's state: it is lost with the node, and nothing that an operation does depends on it.
//!
//! A delegation costs others time, so it is refused where that is likely to happen: on a record
//! that another client has changed lately, and on one that a request waits to change. Refusing is
//! always right; so the notes on both may be rough.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use samite_placement::{BuildKeyHasher, hash};
use samite_types::ClientId;
use samite_wire::op::{Operation, TouchedRecords};
use smallvec::SmallVec;

use crate::limits::{DELEGATION_HOLDERS_MAX, DELEGATION_TERM_MAX, DELEGATIONS_MAX};

/// A record that another client changed less than this ago gets no delegation.
const QUIET: Duration = Duration::from_millis(10);
/// How long changes are noted after a client has asked for a delegation.
const NOTING: Duration = Duration::from_secs(1);
/// Time between two looks through a full table.
const SWEEP_EVERY: Duration = Duration::from_millis(50);
/// Notes of changes: those of two records may fall on the same place, and then the later counts for
/// both.
const NOTES: usize = 256;

/// A delegation in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DelegationHolder {
    /// Its holder.
    pub client: ClientId,
    /// When it ends, on the clock of the node.
    pub until: Duration,
}

/// The last changes that fell on a place.
#[derive(Clone, Copy, Debug, Default)]
struct ChangeNote {
    /// The last client that changed it.
    client: u64,
    at: Duration,
    /// When another one was the last.
    other_at: Duration,
}

/// The delegations of one partition.
#[derive(Default)]
pub struct RecordLeases {
    holders: HashMap<Box<[u8]>, SmallVec<[DelegationHolder; 1]>, BuildKeyHasher>,
    /// Delegations in `holders`, those included that have ended and were not swept out yet.
    count: usize,
    /// No delegation lasts longer.
    latest: Duration,
    /// None ends earlier.
    soonest: Duration,
    /// When the table may be swept again for delegations that have ended.
    sweep_from: Duration,
    /// Changes are noted until then.
    noting: Duration,
    notes: Vec<ChangeNote>,
    /// Hashes of keys that somebody waits to change.
    waiting: HashSet<u64, BuildKeyHasher>,
    /// A request waits to change records whose keys are not known in advance.
    waiting_wide: bool,
}

impl RecordLeases {
    /// Grants `client` a delegation on `key` of at most `term` from `now` on, or extends the one it
    /// has. Returns the term; zero: refused.
    pub fn grant(
        &mut self,
        client: ClientId,
        key: &[u8],
        term: Duration,
        now: Duration,
    ) -> Duration {
        self.noting = self.noting.max(now + NOTING);
        let hash = hash(key);
        if self.waiting_wide || self.waiting.contains(&hash) || self.is_busy(client, hash, now) {
            return Duration::ZERO;
        }
        self.grant_term((client, key), term, now, false)
    }

    /// The same for a client that counts on the delegation already: it alone may ask for that, no
    /// request waits, and the table had room. Nothing is refused.
    pub fn grant_certain(&mut self, client: ClientId, key: &[u8], term: Duration, now: Duration) {
        self.noting = self.noting.max(now + NOTING);
        self.grant_term((client, key), term, now, true);
    }

    /// Whether there is no room for more delegations.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.count >= DELEGATIONS_MAX
    }

    fn grant_term(
        &mut self,
        (client, key): (ClientId, &[u8]),
        term: Duration,
        now: Duration,
        is_certain: bool,
    ) -> Duration {
        if self.is_full() && self.soonest.max(self.sweep_from) <= now {
            self.sweep(now);
        }
        let term = term.min(DELEGATION_TERM_MAX);
        let until = now + term;
        let is_full = !is_certain && self.is_full();
        match self.holders.get_mut(key) {
            Some(holders) => {
                let before = holders.len();
                holders.retain(|holder| holder.client == client || holder.until > now);
                self.count -= before - holders.len();
                let is_full = is_full || !is_certain && holders.len() >= DELEGATION_HOLDERS_MAX;
                match holders.iter_mut().find(|holder| holder.client == client) {
                    Some(own) => own.until = own.until.max(until),
                    None if is_full => return Duration::ZERO,
                    None => {
                        holders.push(DelegationHolder { client, until });
                        self.count += 1;
                    }
                }
            }
            None if is_full => return Duration::ZERO,
            None => {
                let holders = SmallVec::from_elem(DelegationHolder { client, until }, 1);
                self.holders.insert(key.into(), holders);
                self.count += 1;
            }
        }
        self.latest = self.latest.max(until);
        self.soonest = if self.count == 1 { until } else { self.soonest.min(until) };
        term
    }

    /// Until when delegations of others stand against a change by `client`; `None`: they do not.
    /// `visit` is told of each.
    pub fn against(
        &mut self,
        client: ClientId,
        operation: &Operation<'_>,
        now: Duration,
        visit: &mut dyn FnMut(&[u8], DelegationHolder),
    ) -> Option<Duration> {
        if self.latest <= now {
            self.holders.clear();
            self.count = 0;
            return None;
        }
        let mut last: Option<Duration> = None;
        let mut look = |key: &[u8], holders: &[DelegationHolder]| {
            for holder in holders {
                if holder.client != client && holder.until > now {
                    last = last.max(Some(holder.until));
                    visit(key, *holder);
                }
            }
        };
        for action in &operation.actions {
            match action.touched() {
                TouchedRecords::Nothing => {}
                // The other key is not known before.
                TouchedRecords::Key(key) | TouchedRecords::Moved(key, _) => {
                    if let Some(holders) = self.holders.get(key) {
                        look(key, holders);
                    }
                }
                TouchedRecords::Prefix(prefix) => {
                    for (key, holders) in &self.holders {
                        if key.starts_with(prefix) {
                            look(key, holders);
                        }
                    }
                }
            }
        }
        last
    }

    /// Notes the changes of an operation of `client`.
    pub fn changed(&mut self, client: ClientId, operation: &Operation<'_>, now: Duration) {
        if self.noting <= now {
            return;
        }
        self.notes.resize(NOTES, ChangeNote::default());
        for action in &operation.actions {
            if let TouchedRecords::Key(key) | TouchedRecords::Moved(key, _) = action.touched() {
                let note = &mut self.notes[place(hash(key))];
                if note.client != client.get() {
                    note.other_at = note.at;
                    note.client = client.get();
                }
                note.at = now;
            }
        }
    }

    /// Gives back the delegation of `client` on `key`, unless it was extended beyond `until` since.
    pub fn release(&mut self, client: ClientId, key: &[u8], until: Duration) {
        let Some(holders) = self.holders.get_mut(key) else { return };
        let before = holders.len();
        holders.retain(|holder| holder.client != client || holder.until > until);
        self.count -= before - holders.len();
        if holders.is_empty() {
            self.holders.remove(key);
        }
    }

    /// A request waits to carry out `operation`: no delegation is granted on what it changes until
    /// [`RecordLeases::clear_waits`].
    pub fn wait_for(&mut self, operation: &Operation<'_>) {
        for action in &operation.actions {
            match action.touched() {
                TouchedRecords::Nothing => {}
                TouchedRecords::Key(key) | TouchedRecords::Moved(key, _) => {
                    self.waiting.insert(hash(key));
                }
                TouchedRecords::Prefix(_) => self.waiting_wide = true,
            }
        }
    }

    /// Whether a request waits to change a record that `operation` changes.
    #[must_use]
    pub fn is_awaited(&self, operation: &Operation<'_>) -> bool {
        if self.waiting.is_empty() && !self.waiting_wide {
            return false;
        }
        operation.actions.iter().any(|action| match action.touched() {
            TouchedRecords::Nothing => false,
            TouchedRecords::Key(key) | TouchedRecords::Moved(key, _) => {
                self.waiting_wide || self.waiting.contains(&hash(key))
            }
            TouchedRecords::Prefix(_) => true,
        })
    }

    /// No request waits any more.
    pub fn clear_waits(&mut self) {
        self.waiting.clear();
        self.waiting_wide = false;
    }

    /// From then on the table says nothing, until a client asks for a delegation again.
    #[must_use]
    pub fn live_until(&self) -> Duration {
        self.latest.max(self.noting)
    }

    /// Another client has changed the record lately.
    fn is_busy(&self, client: ClientId, hash: u64, now: Duration) -> bool {
        self.notes.get(place(hash)).is_some_and(|note| {
            let other_at = if note.client == client.get() { note.other_at } else { note.at };
            other_at > Duration::ZERO && now < other_at + QUIET
        })
    }

    /// Forgets delegations that have ended.
    fn sweep(&mut self, now: Duration) {
        self.holders.retain(|_, holders| {
            holders.retain(|holder| holder.until > now);
            !holders.is_empty()
        });
        let left = || self.holders.values().flatten();
        self.count = left().count();
        self.soonest = left().map(|holder| holder.until).min().unwrap_or_default();
        self.sweep_from = now + SWEEP_EVERY;
    }
}

/// Where the note on a key is.
const fn place(hash: u64) -> usize {
    // The remainder is below NOTES.
    (hash % NOTES as u64) as usize
}

#[cfg(test)]
mod tests {
    use samite_types::PartitionId;
    use samite_wire::op::{Action, ValueData};

    use super::*;

    const A: ClientId = ClientId(1);
    const B: ClientId = ClientId(2);
    const TERM: Duration = Duration::from_millis(2);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn put(key: &[u8]) -> Operation<'_> {
        Operation::new(PartitionId(0), [Action::Put { key, data: ValueData::Zeros(1) }])
    }

    fn against(
        delegations: &mut RecordLeases,
        client: ClientId,
        op: &Operation<'_>,
        now: u64,
    ) -> Option<Duration> {
        delegations.against(client, op, ms(now), &mut |_, _| {})
    }

    #[test]
    fn records_changed_lately_or_waited_for_are_not_delegated() {
        let mut delegations = RecordLeases::default();
        assert_eq!(delegations.grant(A, b"k", TERM, ms(1)), TERM);
        delegations.changed(B, &put(b"k"), ms(5));
        assert_eq!(delegations.grant(A, b"k", TERM, ms(6)), Duration::ZERO);
        assert_eq!(delegations.grant(B, b"k", TERM, ms(6)), TERM);
        delegations.changed(A, &put(b"k"), ms(7));
        assert_eq!(delegations.grant(A, b"k", TERM, ms(14)), Duration::ZERO);
        assert_eq!(delegations.grant(A, b"k", TERM, ms(15)), TERM);
        delegations.wait_for(&put(b"k"));
        assert!(delegations.is_awaited(&put(b"k")) && !delegations.is_awaited(&put(b"other")));
        assert_eq!(delegations.grant(A, b"k", TERM, ms(16)), Duration::ZERO);
        delegations.clear_waits();
        assert_eq!(delegations.grant(A, b"k", TERM, ms(16)), TERM);
        let wipe = Action::DeletePrefix { prefix: b"x", limit: 1 };
        delegations.wait_for(&Operation::new(PartitionId(0), [wipe]));
        assert_eq!(delegations.grant(A, b"k", TERM, ms(17)), Duration::ZERO);
    }

    #[test]
    fn what_was_promised_is_given_whatever_stands_in_the_way() {
        let mut delegations = RecordLeases::default();
        let key = |index: usize| (index as u64).to_le_bytes();
        for index in 0..DELEGATIONS_MAX {
            delegations.grant(A, &key(index), TERM, ms(1));
        }
        delegations.changed(B, &put(b"k"), ms(1));
        delegations.wait_for(&put(b"k"));
        assert!(delegations.is_full());
        delegations.grant_certain(A, b"k", TERM, ms(2));
        assert_eq!(against(&mut delegations, B, &put(b"k"), 3), Some(ms(4)));
        assert_eq!(against(&mut delegations, A, &put(b"k"), 3), None);
        for client in 2..2 * DELEGATION_HOLDERS_MAX as u64 {
            delegations.grant_certain(ClientId(client), b"k", TERM, ms(2));
        }
        assert_eq!(against(&mut delegations, A, &put(b"k"), 3), Some(ms(4)));
        delegations.grant_certain(A, b"k", 2 * DELEGATION_TERM_MAX, ms(5));
        assert_eq!(against(&mut delegations, B, &put(b"k"), 6), Some(ms(5) + DELEGATION_TERM_MAX));
        assert!(!delegations.is_full(), "the others have ended");
    }

    #[test]
    fn a_released_delegation_is_in_nobodys_way_but_an_extended_one_is() {
        let mut delegations = RecordLeases::default();
        delegations.grant(A, b"k", TERM, ms(1));
        delegations.grant(A, b"k", TERM, ms(2));
        delegations.release(A, b"k", ms(3));
        assert_eq!(against(&mut delegations, B, &put(b"k"), 2), Some(ms(4)));
        delegations.release(A, b"k", ms(4));
        assert_eq!(against(&mut delegations, B, &put(b"k"), 2), None);
        assert_eq!(delegations.count, 0);
    }

    #[test]
    fn a_full_table_refuses_and_forgets_what_has_ended() {
        let mut delegations = RecordLeases::default();
        let key = |index: usize| (index as u64).to_le_bytes();
        for index in 0..DELEGATIONS_MAX {
            assert_eq!(delegations.grant(A, &key(index), TERM, ms(1)), TERM);
        }
        assert_eq!(delegations.grant(A, b"more", TERM, ms(2)), Duration::ZERO);
        assert_eq!(delegations.grant(A, &key(0), TERM, ms(2)), TERM);
        assert_eq!(delegations.grant(B, b"more", TERM, ms(3)), TERM);
        assert_eq!(delegations.count, 2);
        for index in 0..DELEGATIONS_MAX - 2 {
            delegations.grant(A, &key(index + 1), ms(index as u64 % 100), ms(4));
        }
        assert_eq!(delegations.count, DELEGATIONS_MAX);
        assert_eq!(
            delegations.grant(A, b"soon", TERM, ms(10)),
            Duration::ZERO,
            "looked just before"
        );
        assert_eq!(delegations.grant(A, b"soon", TERM, ms(60)), TERM);
        assert_eq!(
            delegations.holders.values().map(SmallVec::len).sum::<usize>(),
            delegations.count
        );
        assert_eq!(delegations.grant(B, b"more", TERM, ms(200)), TERM);
        for client in 2..2 * DELEGATION_HOLDERS_MAX as u64 {
            delegations.grant(ClientId(client), b"more", TERM, ms(3));
        }
        assert_eq!(delegations.holders[b"more".as_slice()].len(), DELEGATION_HOLDERS_MAX);
        assert_eq!(delegations.grant(A, b"x", 2 * DELEGATION_TERM_MAX, ms(3)), DELEGATION_TERM_MAX);
        assert_eq!(against(&mut delegations, A, &put(b"x"), 1 << 20), None);
        assert_eq!(delegations.count, 0);
    }
}
