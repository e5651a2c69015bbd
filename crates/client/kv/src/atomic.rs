//! Several changes in one partition that take effect together or not at all.

use samite_client::{ClientOperation, OwnedOutcome, OwnedResult, key_text};
use samite_types::{Error, ErrorKind, Result, Version};
use samite_wire::limits::{ACTIONS_MAX, RECORD_LEN_MAX};
use samite_wire::op::{Action, Guard, Operation, ValueData};

use crate::key::KeyPlace;
use crate::view::KvView;

/// Changes under way to be committed together, by one operation. Only small values (one record
/// each) can take part.
#[derive(Debug)]
#[must_use = "nothing happens before commit"]
pub struct AtomicChange<'a> {
    kv: &'a KvView,
    steps: Vec<(&'a [u8], AtomicStep<'a>)>,
}

#[derive(Clone, Copy, Debug)]
enum AtomicStep<'a> {
    ExpectVersion(Version),
    ExpectAbsent,
    Put(&'a [u8]),
    Append(&'a [u8]),
    Delete,
}

impl<'a> AtomicChange<'a> {
    pub(crate) const fn new(kv: &'a KvView) -> Self {
        Self { kv, steps: Vec::new() }
    }

    fn step(mut self, key: &'a [u8], step: AtomicStep<'a>) -> Self {
        self.steps.push((key, step));
        self
    }

    /// Only if the value of `key` has this version.
    pub fn expect_version(self, key: &'a [u8], version: Version) -> Self {
        self.step(key, AtomicStep::ExpectVersion(version))
    }

    /// Only if `key` has no value.
    pub fn expect_absent(self, key: &'a [u8]) -> Self {
        self.step(key, AtomicStep::ExpectAbsent)
    }

    /// Sets the value of `key`.
    pub fn put(self, key: &'a [u8], value: &'a [u8]) -> Self {
        self.step(key, AtomicStep::Put(value))
    }

    /// Appends to the value of `key`.
    pub fn append(self, key: &'a [u8], bytes: &'a [u8]) -> Self {
        self.step(key, AtomicStep::Append(bytes))
    }

    /// Removes `key`.
    pub fn delete(self, key: &'a [u8]) -> Self {
        self.step(key, AtomicStep::Delete)
    }

    /// Does it all: the new versions of the keys that were put or appended to, in the order given.
    ///
    /// # Errors
    /// `Conflict`: an expectation was not true, and nothing was changed; `Invalid`: the keys are
    /// not in one partition, or there is no change; `TooLarge`: more than [`ACTIONS_MAX`] keys or
    /// changes; `Unsupported`: a value lies in chunks; else as [`KvView::put`].
    pub fn commit(self) -> Result<Vec<Version>> {
        let dataset = &self.kv.dataset;
        let places = self.steps.iter().map(|(key, _)| self.kv.place(key));
        let places = places.collect::<Result<Vec<KeyPlace>>>()?;
        let Some(partition) = places.first().map(|place| place.partition) else {
            return Err(Error::new(ErrorKind::Invalid, "nothing to commit"));
        };
        if let Some((key, _)) = self
            .steps
            .iter()
            .zip(&places)
            .find(|(_, place)| place.partition != partition)
            .map(|(step, _)| step)
        {
            let cause = format!("{} is in another partition: use keys of one group", key_text(key));
            return Err(Error::new(ErrorKind::Invalid, cause));
        }
        let mut operation = Operation::new(partition, []);
        let mut large = 0;
        for (index, (place, (key, _))) in places.iter().zip(&self.steps).enumerate() {
            if self.steps[..index].iter().all(|(other, _)| other != key) {
                operation.guards.push(Guard::Absent(&place.manifest));
                large += 1;
            }
        }
        for (place, (_, step)) in places.iter().zip(&self.steps) {
            let key = &place.value;
            match *step {
                AtomicStep::ExpectVersion(version) => {
                    operation.guards.push(Guard::VersionIs(key, version));
                }
                AtomicStep::ExpectAbsent => operation.guards.push(Guard::Absent(key)),
                AtomicStep::Put(value) => {
                    operation.actions.push(Action::Put { key, data: ValueData::Inline(value) });
                }
                AtomicStep::Append(bytes) => operation.actions.push(Action::Append {
                    key,
                    data: ValueData::Inline(bytes),
                    len_max: RECORD_LEN_MAX as u32,
                }),
                AtomicStep::Delete => operation.actions.push(Action::Delete { key }),
            }
        }
        if operation.actions.is_empty() || operation.guards.len() > ACTIONS_MAX {
            let (kind, cause) = match operation.actions.len() {
                0 => (ErrorKind::Invalid, "nothing to change".to_owned()),
                _ => (ErrorKind::TooLarge, format!("more than {ACTIONS_MAX} keys and conditions")),
            };
            return Err(Error::new(kind, cause));
        }
        match dataset.execute_one(ClientOperation::new(operation))? {
            OwnedOutcome::Done(results) => Ok(results
                .iter()
                .filter_map(|result| match result {
                    OwnedResult::Written { version, .. } => Some(*version),
                    _ => None,
                })
                .collect()),
            OwnedOutcome::Failed(failure)
                if failure.kind == ErrorKind::Conflict && usize::from(failure.index) < large =>
            {
                let cause =
                    "a value of more than one record cannot be changed together with others";
                Err(Error::new(ErrorKind::Unsupported, cause))
            }
            OwnedOutcome::Failed(failure) => Err(failure.into_error("commit")),
        }
    }
}
