//! Operations on any keys that travel together: one request per node.

use samite_client::{
    ClientOperation, FinishStep, OwnedOutcome, OwnedResult, PendingOperations, key_text,
};
use samite_types::{Error, ErrorKind, Result, Version};
use samite_wire::limits::RECORD_LEN_MAX;
use samite_wire::op::{Action, Guard, Operation, ValueData};

use crate::key::KeyPlace;
use crate::view::{KvView, VersionedValue, check_value_len};

/// Operations on any keys. Those on one key happen in the order given, as long as all of its values
/// are small; each by itself is atomic, the batch is not.
#[derive(Debug)]
#[must_use = "nothing happens before it is executed or submitted"]
pub struct KvBatch<'a> {
    kv: &'a KvView,
    items: Vec<BatchItem<'a>>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum BatchItem<'a> {
    Get(&'a [u8]),
    Put(&'a [u8], &'a [u8]),
    Delete(&'a [u8]),
}

/// The kind of an item.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BatchItemKind {
    Get,
    Put,
    Delete,
}

/// The outcome of one operation of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchOutcome {
    /// Of a get.
    Got(Option<VersionedValue>),
    /// Of a put: the version after.
    Put(Version),
    /// Of a delete: whether there was a value.
    Deleted(bool),
}

/// One outcome for each operation, in their order.
pub type BatchOutcomes = Vec<Result<BatchOutcome>>;

impl<'a> KvBatch<'a> {
    pub(crate) const fn new(kv: &'a KvView) -> Self {
        Self { kv, items: Vec::new() }
    }

    /// Adds a [`KvView::get`].
    pub fn get(&mut self, key: &'a [u8]) -> &mut Self {
        self.items.push(BatchItem::Get(key));
        self
    }

    /// Adds a [`KvView::put`].
    pub fn put(&mut self, key: &'a [u8], value: &'a [u8]) -> &mut Self {
        self.items.push(BatchItem::Put(key, value));
        self
    }

    /// Adds a [`KvView::delete`].
    pub fn delete(&mut self, key: &'a [u8]) -> &mut Self {
        self.items.push(BatchItem::Delete(key));
        self
    }

    /// How many operations there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.items.len()
    }

    /// None yet.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Carries all out.
    ///
    /// # Errors
    /// As [`samite_client::Dataset::execute`], or a key or value over its limit: then nothing was
    /// sent. An error of one operation only is in its outcome.
    pub fn execute(&self) -> Result<BatchOutcomes> {
        let places = self.places()?;
        let (indices, mut ops) = self.operations(&places, ClientOperation::new);
        let outcomes = self.kv.dataset.execute(&mut ops, self.kv.dataset.client().deadline())?;
        let mut by_item: Vec<Option<OwnedOutcome>> = vec![None; self.items.len()];
        for (index, outcome) in indices.into_iter().zip(outcomes) {
            by_item[index] = Some(outcome);
        }
        Ok(by_item
            .into_iter()
            .zip(&self.items)
            .map(|(outcome, item)| self.kv.finish_item(*item, outcome))
            .collect())
    }

    /// Sends all without waiting. Values of more than one record cannot be in it.
    ///
    /// # Errors
    /// As [`Self::execute`] and [`samite_client::Dataset::submit`].
    pub fn submit(&self) -> Result<PendingOperations<BatchOutcomes>> {
        let places = self.places()?;
        let (indices, operations) = self.operations(&places, |operation| operation);
        if indices.len() < self.items.len() {
            let cause = "a value of more than one record is put by itself";
            return Err(Error::new(ErrorKind::TooLarge, cause));
        }
        let kv = self.kv.clone();
        let items: Vec<OwnedItem> = self.items.iter().map(|item| item.own()).collect();
        self.kv.dataset.submit_then(&operations, move |outcomes| {
            let needs_more = outcomes.iter().any(meets_manifest);
            let finish = move || {
                let pairs = items.iter().zip(outcomes);
                Ok(pairs.map(|(item, outcome)| item.finish(&kv, outcome)).collect())
            };
            if needs_more {
                FinishStep::Follow(Box::new(finish))
            } else {
                FinishStep::Ready(finish())
            }
        })
    }

    fn places(&self) -> Result<Vec<KeyPlace>> {
        self.items
            .iter()
            .map(|item| {
                if let BatchItem::Put(_, value) = item {
                    check_value_len(value.len() as u64)?;
                }
                self.kv.place(item.key())
            })
            .collect()
    }

    /// The operations of those items that one operation can carry out, and which items these are.
    fn operations<'p, T>(
        &self,
        places: &'p [KeyPlace],
        make: impl Fn(Operation<'p>) -> T,
    ) -> (Vec<usize>, Vec<T>)
    where
        'a: 'p,
    {
        // Operations are large: they are made where they stay.
        let mut indices = Vec::with_capacity(places.len());
        let mut operations = Vec::with_capacity(places.len());
        for (index, (item, place)) in self.items.iter().zip(places).enumerate() {
            if let Some(operation) = item.operation(place) {
                indices.push(index);
                operations.push(make(operation));
            }
        }
        (indices, operations)
    }
}

impl<'a> BatchItem<'a> {
    pub(crate) const fn key(self) -> &'a [u8] {
        match self {
            Self::Get(key) | Self::Put(key, _) | Self::Delete(key) => key,
        }
    }

    pub(crate) const fn kind(self) -> BatchItemKind {
        match self {
            Self::Get(_) => BatchItemKind::Get,
            Self::Put(..) => BatchItemKind::Put,
            Self::Delete(_) => BatchItemKind::Delete,
        }
    }

    /// `None`: the value does not fit a record.
    fn operation<'p>(self, place: &'p KeyPlace) -> Option<Operation<'p>>
    where
        'a: 'p,
    {
        let key = &place.value;
        let action = match self {
            Self::Get(_) => Action::Get { key, offset: 0, len: u32::MAX },
            Self::Put(_, value) if value.len() > RECORD_LEN_MAX => return None,
            Self::Put(_, value) => Action::Put { key, data: ValueData::Inline(value) },
            Self::Delete(_) => Action::Delete { key },
        };
        Some(Operation::new(place.partition, [action]).guard(Guard::Absent(&place.manifest)))
    }

    fn own(self) -> OwnedItem {
        match self {
            Self::Get(key) => OwnedItem::Get(key.into()),
            Self::Put(key, value) => OwnedItem::Put(key.into(), value.into()),
            Self::Delete(key) => OwnedItem::Delete(key.into()),
        }
    }
}

/// An item that outlives its caller, in case it has to be carried out another way.
enum OwnedItem {
    Get(Box<[u8]>),
    Put(Box<[u8]>, Box<[u8]>),
    Delete(Box<[u8]>),
}

impl OwnedItem {
    fn finish(&self, kv: &KvView, outcome: OwnedOutcome) -> Result<BatchOutcome> {
        let item = match self {
            Self::Get(key) => BatchItem::Get(key),
            Self::Put(key, value) => BatchItem::Put(key, value),
            Self::Delete(key) => BatchItem::Delete(key),
        };
        kv.finish_item(item, Some(outcome))
    }
}

/// Whether an operation failed because its key has a manifest.
pub(crate) fn meets_manifest(outcome: &OwnedOutcome) -> bool {
    outcome
        .failure()
        .is_some_and(|failure| failure.kind == ErrorKind::Conflict && failure.index == 0)
}

impl KvView {
    /// Makes an item's outcome of its operation's; carries it out by itself if that did not do it.
    fn finish_item(
        &self,
        item: BatchItem<'_>,
        outcome: Option<OwnedOutcome>,
    ) -> Result<BatchOutcome> {
        match outcome.filter(|outcome| !meets_manifest(outcome)) {
            Some(outcome) => item.kind().outcome(outcome).map_err(|error| {
                error.context(format_args!("{} {}", item.kind().name(), key_text(item.key())))
            }),
            None => match item {
                BatchItem::Get(key) => self.get(key).map(BatchOutcome::Got),
                BatchItem::Put(key, value) => self.put(key, value).map(BatchOutcome::Put),
                BatchItem::Delete(key) => self.delete(key).map(BatchOutcome::Deleted),
            },
        }
    }
}

impl BatchItemKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Put => "put",
            Self::Delete => "delete",
        }
    }

    /// The result of an operation of this kind, from its outcome.
    pub(crate) fn outcome(self, outcome: OwnedOutcome) -> Result<BatchOutcome> {
        let mut results = match outcome {
            OwnedOutcome::Done(results) => results,
            OwnedOutcome::Failed(failure)
                if matches!(self, Self::Get) && failure.kind == ErrorKind::NotFound =>
            {
                return Ok(BatchOutcome::Got(None));
            }
            OwnedOutcome::Failed(failure) => return Err(failure.into_error("the operation")),
        };
        let result = results.pop().ok_or(ErrorKind::Internal)?;
        Ok(match (self, result) {
            (Self::Get, OwnedResult::Value { version, data, .. }) => {
                BatchOutcome::Got(Some(VersionedValue { version, bytes: data }))
            }
            (Self::Get, _) => return Err(ErrorKind::Corrupt.into()),
            (Self::Put, result) => BatchOutcome::Put(result.written()?.0),
            (Self::Delete, result) => BatchOutcome::Deleted(result.existed()?),
        })
    }
}
