//! Observers that see what no process may: they compare what different ones did.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use samite_types::{DatasetId, Epoch, PartitionId, Term};

use crate::net::Place;

/// Something that must never be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which rule.
    pub rule: &'static str,
    /// What was seen.
    pub words: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.words)
    }
}

/// All observers.
#[derive(Debug, Default)]
pub struct Audit {
    violations: Vec<Violation>,
    /// Newest map that each process has shown, since it was started.
    epochs: BTreeMap<Place, Epoch>,
    /// Each published map, as bytes.
    maps: BTreeMap<Epoch, Vec<u8>>,
    /// Who acknowledged changes in a term of a partition.
    primaries: BTreeMap<(DatasetId, PartitionId, Term), Place>,
    /// Histories that were too long to be judged.
    pub too_hard: u32,
}

/// Violations that are kept; one is enough to fail.
const VIOLATIONS_MAX: usize = 8;

impl Audit {
    /// Something that must never be has happened.
    pub fn violate(&mut self, rule: &'static str, words: String) {
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(Violation { rule, words });
        }
    }

    /// What happened that must never be.
    #[must_use]
    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }

    /// A client was given an error that no program should see.
    pub fn erred(&mut self, words: String) {
        self.violate("no error", words);
    }

    /// A process was started anew.
    pub fn restarted(&mut self, place: Place) {
        self.epochs.remove(&place);
    }

    /// A process serves or works by this map.
    pub fn saw_map(&mut self, place: Place, epoch: Epoch, now: Duration) {
        let before = self.epochs.insert(place, epoch);
        if before.is_some_and(|before| before > epoch) {
            self.violate("map epochs grow", format!("{place} went back to {epoch} at {now:?}"));
        }
    }

    /// A map was published.
    pub fn published(&mut self, epoch: Epoch, bytes: Vec<u8>, now: Duration) {
        match self.maps.get(&epoch) {
            None => drop(self.maps.insert(epoch, bytes)),
            Some(other) if *other == bytes => {}
            Some(_) => {
                self.violate("one map for each epoch", format!("two of {epoch} at {now:?}"));
            }
        }
    }

    /// A node has told a client that its change is done.
    pub fn acknowledged(
        &mut self,
        node: Place,
        dataset: DatasetId,
        partition: PartitionId,
        term: Term,
        now: Duration,
    ) {
        let first = *self.primaries.entry((dataset, partition, term)).or_insert(node);
        if first != node {
            self.violate(
                "one primary for each term",
                format!("{first} and {node} acknowledged in {term} of {partition}, at {now:?}"),
            );
        }
    }
}
