//! The expected state of one partition: the same operations on a plain map.

use std::collections::BTreeMap;

use samite_types::ErrorKind;
use samite_wire::op::{UNLINKED_KEPT, UNLINKED_NONE, UNLINKED_REMOVED};

use crate::losses::PartitionEvent;
use crate::op::{Key, OpCondition, OpOutcome, OpStep, SimOperation, StepResultSeen, name};

/// The state of a partition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PartitionModel {
    records: BTreeMap<Key, Vec<u8>>,
    /// The record of each token.
    holds: BTreeMap<u64, Key>,
    /// How much has happened to all records at once, and whether they are lost since.
    happened: usize,
    is_lost: bool,
}

impl PartitionModel {
    /// Carries `op` out, and returns the answer that its caller must get.
    pub fn apply(&mut self, op: &SimOperation) -> OpOutcome {
        if self.is_lost && self.may_have_had(op) {
            return OpOutcome::Failed(ErrorKind::Lost);
        }
        if !op.conds.iter().all(|cond| self.holds_true(cond)) {
            return OpOutcome::Failed(ErrorKind::Conflict);
        }
        let missing = op.acts.iter().any(|act| match act {
            OpStep::Get(key) | OpStep::Hold(key, _) => !self.records.contains_key(key),
            _ => false,
        });
        if missing {
            return OpOutcome::Failed(ErrorKind::NotFound);
        }
        OpOutcome::Done(op.acts.iter().map(|act| self.step(*act)).collect())
    }

    /// The same for an unlink to an orphan that met an unknown open reference: one that was told to
    /// have failed, or has been released, may have come once more. `None`: it is not of that kind.
    pub fn apply_referenced(&mut self, op: &SimOperation) -> Option<OpOutcome> {
        let [OpStep::Detach(key, to)] = op.acts[..] else { return None };
        let value = self.records.remove(&key)?;
        Some(OpOutcome::Done(vec![StepResultSeen::Number(self.keep(key, to, value))]))
    }

    /// How much has happened to all records at once.
    #[must_use]
    pub const fn happened(&self) -> usize {
        self.happened
    }

    /// Something happens to all records at once.
    pub fn happens(&mut self, what: PartitionEvent) {
        self.is_lost = what == PartitionEvent::Lost;
        if self.is_lost {
            self.records.clear();
            self.holds.clear();
        }
        self.happened += 1;
    }

    /// Whether `op` is about a record that is not there, so that a partition that lost records can not tell.
    #[must_use]
    pub fn may_have_had(&self, op: &SimOperation) -> bool {
        let is_missing = |key: &Key| !self.records.contains_key(key);
        let mut conds = op.conds.iter();
        conds.any(|cond| match cond {
            OpCondition::Exists(key) | OpCondition::Is(key, _) => is_missing(key),
            OpCondition::Absent(_) => false,
        }) || op.acts.iter().any(|act| match act {
            OpStep::Get(key)
            | OpStep::Put(key, _)
            | OpStep::Fill(key, _)
            | OpStep::Append(key, _)
            | OpStep::Add(key, _)
            | OpStep::Hold(key, _) => is_missing(key),
            OpStep::Delete(key) => !op.conds.is_empty() && is_missing(key),
            OpStep::List => self.records.is_empty(),
            OpStep::Release(_) | OpStep::Detach(..) => false,
        })
    }

    fn holds_true(&self, cond: &OpCondition) -> bool {
        match cond {
            OpCondition::Exists(key) => self.records.contains_key(key),
            OpCondition::Absent(key) => !self.records.contains_key(key),
            OpCondition::Is(key, bytes) => {
                self.records.get(key).is_some_and(|value| value.starts_with(bytes))
            }
        }
    }

    fn step(&mut self, act: OpStep) -> StepResultSeen {
        match act {
            OpStep::Get(key) => {
                StepResultSeen::Value(self.records.get(&key).cloned().unwrap_or_default())
            }
            OpStep::Put(key, number) => {
                let value = number.to_le_bytes().to_vec();
                let created = self.records.insert(key, value).is_none();
                StepResultSeen::Written { offset: 0, len: 8, created }
            }
            OpStep::Fill(key, len) => {
                let created = self.records.insert(key, vec![0x5a; len as usize]).is_none();
                StepResultSeen::Written { offset: 0, len, created }
            }
            OpStep::Append(key, number) => {
                let created = !self.records.contains_key(&key);
                let value = self.records.entry(key).or_default();
                let offset = value.len() as u32;
                value.extend_from_slice(&number.to_le_bytes());
                StepResultSeen::Written { offset, len: offset + 8, created }
            }
            OpStep::Add(key, delta) => {
                let value = self.records.entry(key).or_insert_with(|| vec![0; 8]);
                let before = value.first_chunk().map_or(0, |raw| u64::from_le_bytes(*raw));
                *value = before.wrapping_add(delta).to_le_bytes().to_vec();
                StepResultSeen::Number(before)
            }
            OpStep::Delete(key) => {
                self.forget(key);
                StepResultSeen::Deleted(self.records.remove(&key).is_some())
            }
            OpStep::List => {
                let mut entries: Vec<_> = self
                    .records
                    .iter()
                    .map(|(key, value)| (name(*key).to_vec(), value.clone()))
                    .collect();
                entries.sort();
                StepResultSeen::Listing(entries, !self.is_lost)
            }
            OpStep::Hold(key, token) => {
                let key = *self.holds.entry(token).or_insert(key);
                StepResultSeen::Number(self.holders(key))
            }
            OpStep::Release(token) => {
                let key = self.holds.remove(&token);
                StepResultSeen::Number(key.map_or(0, |key| self.holders(key)))
            }
            OpStep::Detach(key, to) => StepResultSeen::Number(self.unlink_to_orphan(key, to)),
        }
    }

    fn unlink_to_orphan(&mut self, key: Key, to: Key) -> u64 {
        let Some(value) = self.records.remove(&key) else { return UNLINKED_NONE };
        if self.holders(key) == 0 {
            return UNLINKED_REMOVED;
        }
        self.keep(key, to, value)
    }

    fn keep(&mut self, key: Key, to: Key, value: Vec<u8>) -> u64 {
        self.forget(to);
        self.records.insert(to, value);
        for holds in self.holds.values_mut().filter(|holds| **holds == key) {
            *holds = to;
        }
        UNLINKED_KEPT
    }

    fn holders(&self, key: Key) -> u64 {
        self.holds.values().filter(|held| **held == key).count() as u64
    }

    fn forget(&mut self, key: Key) {
        self.holds.retain(|_, held| *held != key);
    }
}
