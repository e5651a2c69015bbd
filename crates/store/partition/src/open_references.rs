//! Open references: records on which clients rely beyond their names.
//!
//! An open reference is a token on a record. While a record has one, taking its key away
//! ([`samite_wire::op::Action::Detach`]) gives it another key instead of removing it. Open
//! references are volatile and stand beside the records: they end when they are released, when
//! their record is removed, or when the client that took them is gone.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};

use samite_placement::BuildKeyHasher;
use samite_types::{ClientId, ErrorKind};
use samite_wire::limits::KEY_LEN_MAX;
use samite_wire::{FieldDecoder, WireError};
use smallvec::SmallVec;

use crate::fields::{bounded, put_u32, put_u64};
use crate::limits::{OPEN_REFERENCES_MAX, OPEN_REFERENCES_PER_CLIENT_MAX};

type Key = SmallVec<[u8; 32]>;

/// Bytes of an open reference in a list of holders.
pub(crate) const HOLDER_LEN: usize = 16;

/// The open references of a partition.
#[derive(Debug, Default)]
pub(crate) struct OpenReferences {
    tokens: HashMap<u64, (ClientId, Key), BuildKeyHasher>,
    keys: HashMap<Key, ReferencedRecord, BuildKeyHasher>,
    clients: BTreeMap<ClientId, usize>,
    /// Orphans to which there is no open reference any more.
    leaked_orphans: u64,
    /// Open references taken and ended outside of changes of records.
    changes: u64,
}

/// A record that has an open reference, or became an orphan because it had one.
#[derive(Debug, Default)]
struct ReferencedRecord {
    tokens: SmallVec<[u64; 2]>,
    is_orphan: bool,
}

impl ReferencedRecord {
    fn count(&self) -> u64 {
        self.tokens.len() as u64
    }
}

impl OpenReferences {
    /// Orphans to which there is no open reference any more.
    pub(crate) const fn leaked_orphans(&self) -> u64 {
        self.leaked_orphans
    }

    /// Grows with each open reference that is taken, released, or ended with its client.
    pub(crate) const fn changes(&self) -> u64 {
        self.changes
    }

    /// Clients with open references.
    pub(crate) fn clients(&self) -> impl Iterator<Item = ClientId> {
        self.clients.keys().copied()
    }

    /// Appends all open references in the order of keys, for another member of the mirror group.
    pub(crate) fn export(&self, out: &mut Vec<u8>) {
        put_u32(out, self.keys.len());
        let mut all: Vec<_> = self.keys.iter().collect();
        all.sort_unstable_by_key(|(key, _)| *key);
        for (key, referenced) in all {
            // Keys are shorter than 64 KiB.
            out.extend_from_slice(&(key.len() as u16).to_le_bytes());
            out.extend_from_slice(key);
            out.push(u8::from(referenced.is_orphan));
            put_u32(out, referenced.tokens.len());
            for token in &referenced.tokens {
                let client = self.tokens.get(token).map_or(ClientId(0), |(client, _)| *client);
                put_u64(out, *token);
                put_u64(out, client.get());
            }
        }
    }

    /// The output of [`OpenReferences::export`].
    pub(crate) fn import(decoder: &mut FieldDecoder<'_>) -> Result<Self, WireError> {
        let mut imported = Self::default();
        for _ in 0..decoder.u32("held records")? {
            let key = Key::from_slice(decoder.short_bytes(KEY_LEN_MAX, "held key")?);
            let is_orphan = decoder.u8("detached")? != 0;
            let mut referenced = ReferencedRecord { tokens: SmallVec::new(), is_orphan };
            for _ in 0..bounded(decoder, OPEN_REFERENCES_MAX, "holds")? {
                let (token, client) = (decoder.u64("token")?, ClientId(decoder.u64("client")?));
                referenced.tokens.push(token);
                *imported.clients.entry(client).or_default() += 1;
                imported.tokens.insert(token, (client, key.clone()));
            }
            imported.leaked_orphans += u64::from(referenced.tokens.is_empty());
            imported.keys.insert(key, referenced);
        }
        if imported.tokens.len() > OPEN_REFERENCES_MAX {
            return Err(WireError::OverLimit("holds"));
        }
        Ok(imported)
    }

    /// Whether `client` may take `more` open references.
    pub(crate) fn check_room(&self, client: ClientId, more: usize) -> Result<(), ErrorKind> {
        let of_client = self.clients.get(&client).copied().unwrap_or(0);
        let fits = self.tokens.len() + more <= OPEN_REFERENCES_MAX
            && of_client + more <= OPEN_REFERENCES_PER_CLIENT_MAX;
        if fits { Ok(()) } else { Err(ErrorKind::TooManyOpen) }
    }

    /// Opens a reference to `key` for `client`; a token that has a record stays there. Returns how
    /// many open references the record of the token has.
    pub(crate) fn open_reference(&mut self, client: ClientId, key: &[u8], token: u64) -> u64 {
        match self.tokens.entry(token) {
            Entry::Occupied(known) => {
                let (_, key) = known.get();
                return self.keys.get(key).map_or(0, ReferencedRecord::count);
            }
            Entry::Vacant(free) => free.insert((client, Key::from_slice(key))),
        };
        self.changes += 1;
        *self.clients.entry(client).or_default() += 1;
        self.attach(Key::from_slice(key), token)
    }

    /// Ends an open reference. Returns how many its record still has.
    pub(crate) fn release(&mut self, token: u64) -> u64 {
        let Some((client, key)) = self.tokens.remove(&token) else { return 0 };
        self.changes += 1;
        self.uncount(client);
        self.let_go(&key, token)
    }

    /// The key of the record that `token` refers to.
    pub(crate) fn locate(&self, token: u64) -> Option<&[u8]> {
        self.tokens.get(&token).map(|(_, key)| key.as_slice())
    }

    pub(crate) fn is_referenced(&self, key: &[u8]) -> bool {
        self.holders_of(key) > 0
    }

    /// The record at `key`, which has open references, has the key `to` now.
    pub(crate) fn became_orphan(&mut self, key: &[u8], to: &[u8]) {
        if key != to {
            self.forget(to);
            self.move_all(key, to);
        }
        if let Some(referenced) = self.keys.get_mut(to) {
            referenced.is_orphan = true;
        }
    }

    /// The record at `key` is gone.
    pub(crate) fn forget(&mut self, key: &[u8]) {
        // Mostly there are no open references, and an empty map hashes the key all the same.
        if self.keys.is_empty() {
            return;
        }
        let Some(referenced) = self.keys.remove(key) else { return };
        if referenced.tokens.is_empty() {
            self.leaked_orphans -= 1;
        }
        for token in referenced.tokens {
            if let Some((client, _)) = self.tokens.remove(&token) {
                self.uncount(client);
            }
        }
    }

    /// Holders of open references to `key`: token and client of each, 8 bytes little-endian.
    pub(crate) fn list(&self, key: &[u8]) -> Vec<u8> {
        let tokens = self.keys.get(key).map_or(&[][..], |referenced| &referenced.tokens);
        let mut list = Vec::with_capacity(tokens.len() * HOLDER_LEN);
        for token in tokens {
            let client = self.tokens.get(token).map_or(ClientId(0), |(client, _)| *client);
            list.extend_from_slice(&token.to_le_bytes());
            list.extend_from_slice(&client.get().to_le_bytes());
        }
        list
    }

    /// Lets exactly the tokens in `list` refer to `key`. Returns how many did.
    pub(crate) fn set(&mut self, key: &[u8], list: &[u8]) -> u64 {
        let before = self.holders_of(key);
        self.forget(key);
        for holder in list.as_chunks::<HOLDER_LEN>().0 {
            let (token, client) = holder.split_at(8);
            let number = |raw: &[u8]| raw.first_chunk().map_or(0, |raw| u64::from_le_bytes(*raw));
            let token = number(token);
            self.release(token);
            self.open_reference(ClientId(number(client)), key, token);
        }
        before
    }

    /// The tokens that refer to `from` refer to `to` instead. Returns how many they are.
    pub(crate) fn move_all(&mut self, from: &[u8], to: &[u8]) -> u64 {
        if from == to {
            return self.holders_of(from);
        }
        let Some(referenced) = self.keys.remove(from) else { return 0 };
        if referenced.tokens.is_empty() {
            self.leaked_orphans -= 1;
        }
        let to = Key::from_slice(to);
        for token in &referenced.tokens {
            if let Some((_, key)) = self.tokens.get_mut(token) {
                key.clone_from(&to);
            }
            self.attach(to.clone(), *token);
        }
        referenced.count()
    }

    /// Ends all open references of a client that is gone.
    pub(crate) fn drop_client(&mut self, client: ClientId) {
        if self.clients.remove(&client).is_none() {
            return;
        }
        self.changes += 1;
        let gone: Vec<(u64, Key)> = self
            .tokens
            .iter()
            .filter(|(_, (owner, _))| *owner == client)
            .map(|(token, (_, key))| (*token, key.clone()))
            .collect();
        for (token, key) in gone {
            self.tokens.remove(&token);
            self.let_go(&key, token);
        }
    }

    fn holders_of(&self, key: &[u8]) -> u64 {
        self.keys.get(key).map_or(0, ReferencedRecord::count)
    }

    fn attach(&mut self, key: Key, token: u64) -> u64 {
        let referenced = self.keys.entry(key).or_default();
        if referenced.is_orphan && referenced.tokens.is_empty() {
            self.leaked_orphans -= 1;
        }
        referenced.tokens.push(token);
        referenced.count()
    }

    fn let_go(&mut self, key: &[u8], token: u64) -> u64 {
        let Some(referenced) = self.keys.get_mut(key) else { return 0 };
        referenced.tokens.retain(|other| *other != token);
        let left = referenced.count();
        if left == 0 {
            if referenced.is_orphan {
                self.leaked_orphans += 1;
            } else {
                self.keys.remove(key);
            }
        }
        left
    }

    fn uncount(&mut self, client: ClientId) {
        if let Some(count) = self.clients.get_mut(&client) {
            *count -= 1;
            if *count == 0 {
                self.clients.remove(&client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: ClientId = ClientId(1);
    const TWO: ClientId = ClientId(2);

    #[test]
    fn an_orphan_leaks_with_its_last_open_reference() {
        let mut open_references = OpenReferences::default();
        assert_eq!(open_references.open_reference(ONE, b"e", 10), 1);
        assert_eq!(open_references.open_reference(TWO, b"e", 20), 2);
        open_references.became_orphan(b"e", b"o");
        assert!(!open_references.is_referenced(b"e") && open_references.is_referenced(b"o"));
        assert_eq!(open_references.locate(10), Some(&b"o"[..]));
        assert_eq!((open_references.release(10), open_references.leaked_orphans()), (1, 0));
        open_references.drop_client(TWO);
        assert_eq!(
            (open_references.is_referenced(b"o"), open_references.leaked_orphans()),
            (false, 1)
        );
        open_references.forget(b"o");
        assert_eq!(open_references.leaked_orphans(), 0);
        assert!(
            open_references.keys.is_empty()
                && open_references.tokens.is_empty()
                && open_references.clients.is_empty()
        );
    }

    #[test]
    fn open_references_of_a_client_are_bounded_and_those_of_others_stay() {
        let mut open_references = OpenReferences::default();
        for token in 1..=OPEN_REFERENCES_PER_CLIENT_MAX as u64 {
            assert_eq!(open_references.check_room(ONE, 1), Ok(()));
            open_references.open_reference(ONE, &token.to_le_bytes(), token);
        }
        assert_eq!(open_references.check_room(ONE, 1), Err(ErrorKind::TooManyOpen));
        assert_eq!(open_references.check_room(TWO, 1), Ok(()));
        open_references.open_reference(TWO, b"two", u64::MAX);
        open_references.drop_client(ONE);
        assert_eq!((open_references.tokens.len(), open_references.keys.len()), (1, 1));
        assert_eq!(open_references.check_room(ONE, 1), Ok(()));
    }
}
