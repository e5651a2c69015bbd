//! What one partition must amount to: the same operations on a plain map.

use std::collections::BTreeMap;

use samite_types::ErrorKind;
use samite_wire::op::{DETACHED_KEPT, DETACHED_NONE, DETACHED_REMOVED};

use crate::losses::What;
use crate::op::{Act, Cond, Key, Op, Outcome, Seen, name};

/// The state of a partition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Model {
    records: BTreeMap<Key, Vec<u8>>,
    /// Which token holds which record.
    holds: BTreeMap<u64, Key>,
    /// How much has happened to all records at once, and whether they are lost since.
    happened: usize,
    is_lost: bool,
}

impl Model {
    /// Carries `op` out, and says what its caller must be told.
    pub fn apply(&mut self, op: &Op) -> Outcome {
        if self.is_lost && self.may_have_had(op) {
            return Outcome::Failed(ErrorKind::Lost);
        }
        if !op.conds.iter().all(|cond| self.holds_true(cond)) {
            return Outcome::Failed(ErrorKind::Conflict);
        }
        let missing = op.acts.iter().any(|act| match act {
            Act::Get(key) | Act::Hold(key, _) => !self.records.contains_key(key),
            _ => false,
        });
        if missing {
            return Outcome::Failed(ErrorKind::NotFound);
        }
        Outcome::Done(op.acts.iter().map(|act| self.step(*act)).collect())
    }

    /// The same for a detach that met a hold nobody knows of: one that was told to have failed, or has been released, may have come once more.
    /// `None`: it is not of that kind.
    pub fn apply_held(&mut self, op: &Op) -> Option<Outcome> {
        let [Act::Detach(key, to)] = op.acts[..] else { return None };
        let value = self.records.remove(&key)?;
        Some(Outcome::Done(vec![Seen::Number(self.keep(key, to, value))]))
    }

    /// How much has happened to all records at once.
    #[must_use]
    pub const fn happened(&self) -> usize {
        self.happened
    }

    /// Something happens to all records at once.
    pub fn happens(&mut self, what: What) {
        self.is_lost = what == What::Lost;
        if self.is_lost {
            self.records.clear();
            self.holds.clear();
        }
        self.happened += 1;
    }

    /// Whether `op` is about a record that is not there, so that a partition that lost records can not tell.
    #[must_use]
    pub fn may_have_had(&self, op: &Op) -> bool {
        let is_missing = |key: &Key| !self.records.contains_key(key);
        let mut conds = op.conds.iter();
        conds.any(|cond| match cond {
            Cond::Exists(key) | Cond::Is(key, _) => is_missing(key),
            Cond::Absent(_) => false,
        }) || op.acts.iter().any(|act| match act {
            Act::Get(key)
            | Act::Put(key, _)
            | Act::Fill(key, _)
            | Act::Append(key, _)
            | Act::Add(key, _)
            | Act::Hold(key, _) => is_missing(key),
            Act::Delete(key) => !op.conds.is_empty() && is_missing(key),
            Act::List => self.records.is_empty(),
            Act::Release(_) | Act::Detach(..) => false,
        })
    }

    fn holds_true(&self, cond: &Cond) -> bool {
        match cond {
            Cond::Exists(key) => self.records.contains_key(key),
            Cond::Absent(key) => !self.records.contains_key(key),
            Cond::Is(key, bytes) => {
                self.records.get(key).is_some_and(|value| value.starts_with(bytes))
            }
        }
    }

    fn step(&mut self, act: Act) -> Seen {
        match act {
            Act::Get(key) => Seen::Value(self.records.get(&key).cloned().unwrap_or_default()),
            Act::Put(key, number) => {
                let value = number.to_le_bytes().to_vec();
                let created = self.records.insert(key, value).is_none();
                Seen::Written { offset: 0, len: 8, created }
            }
            Act::Fill(key, len) => {
                let created = self.records.insert(key, vec![0x5a; len as usize]).is_none();
                Seen::Written { offset: 0, len, created }
            }
            Act::Append(key, number) => {
                let created = !self.records.contains_key(&key);
                let value = self.records.entry(key).or_default();
                let offset = value.len() as u32;
                value.extend_from_slice(&number.to_le_bytes());
                Seen::Written { offset, len: offset + 8, created }
            }
            Act::Add(key, delta) => {
                let value = self.records.entry(key).or_insert_with(|| vec![0; 8]);
                let before = value.first_chunk().map_or(0, |raw| u64::from_le_bytes(*raw));
                *value = before.wrapping_add(delta).to_le_bytes().to_vec();
                Seen::Number(before)
            }
            Act::Delete(key) => {
                self.forget(key);
                Seen::Deleted(self.records.remove(&key).is_some())
            }
            Act::List => {
                let mut entries: Vec<_> = self
                    .records
                    .iter()
                    .map(|(key, value)| (name(*key).to_vec(), value.clone()))
                    .collect();
                entries.sort();
                Seen::Listing(entries, !self.is_lost)
            }
            Act::Hold(key, token) => {
                let key = *self.holds.entry(token).or_insert(key);
                Seen::Number(self.holders(key))
            }
            Act::Release(token) => {
                let key = self.holds.remove(&token);
                Seen::Number(key.map_or(0, |key| self.holders(key)))
            }
            Act::Detach(key, to) => Seen::Number(self.detach(key, to)),
        }
    }

    fn detach(&mut self, key: Key, to: Key) -> u64 {
        let Some(value) = self.records.remove(&key) else { return DETACHED_NONE };
        if self.holders(key) == 0 {
            return DETACHED_REMOVED;
        }
        self.keep(key, to, value)
    }

    fn keep(&mut self, key: Key, to: Key, value: Vec<u8>) -> u64 {
        self.forget(to);
        self.records.insert(to, value);
        for holds in self.holds.values_mut().filter(|holds| **holds == key) {
            *holds = to;
        }
        DETACHED_KEPT
    }

    fn holders(&self, key: Key) -> u64 {
        self.holds.values().filter(|held| **held == key).count() as u64
    }

    fn forget(&mut self, key: Key) {
        self.holds.retain(|_, held| *held != key);
    }
}
