//! Single operations that are sent without waiting.

use samite_client::{FinishStep, PendingOperations};
use samite_types::{Error, ErrorKind, Result, Version};
use samite_wire::limits::RECORD_LEN_MAX;
use samite_wire::op::{Action, Guard, Operation, ValueData};

use crate::batch::{BatchItem, BatchOutcome, meets_manifest};
use crate::view::{KvView, VersionedValue};

impl KvView {
    /// [`KvView::get`] without waiting.
    ///
    /// # Errors
    /// A key that cannot be; as [`samite_client::Dataset::submit`].
    pub fn submit_get(&self, key: &[u8]) -> Result<PendingOperations<Option<VersionedValue>>> {
        let owned: Box<[u8]> = key.into();
        self.submit(
            BatchItem::Get(key),
            move |kv| kv.get(&owned),
            |outcome| match outcome {
                BatchOutcome::Got(value) => Some(value),
                _ => None,
            },
        )
    }

    /// [`KvView::put`] without waiting, for a value of at most one record.
    ///
    /// # Errors
    /// `TooLarge` for a longer one; as [`Self::submit_get`].
    pub fn submit_put(&self, key: &[u8], value: &[u8]) -> Result<PendingOperations<Version>> {
        let owned: (Box<[u8]>, Box<[u8]>) = (key.into(), value.into());
        let put = move |kv: &Self| kv.put(&owned.0, &owned.1);
        self.submit(BatchItem::Put(key, value), put, |outcome| match outcome {
            BatchOutcome::Put(version) => Some(version),
            _ => None,
        })
    }

    /// [`KvView::delete`] without waiting.
    ///
    /// # Errors
    /// As [`Self::submit_get`].
    pub fn submit_delete(&self, key: &[u8]) -> Result<PendingOperations<bool>> {
        let owned: Box<[u8]> = key.into();
        self.submit(
            BatchItem::Delete(key),
            move |kv| kv.delete(&owned),
            |outcome| match outcome {
                BatchOutcome::Deleted(existed) => Some(existed),
                _ => None,
            },
        )
    }

    /// Submits `item`. If its key turns out to have a manifest, `otherwise` does it in calls that
    /// block; else `pick` takes the result out of the item's outcome.
    fn submit<T>(
        &self,
        item: BatchItem<'_>,
        otherwise: impl FnOnce(&Self) -> Result<T> + Send + 'static,
        pick: impl FnOnce(BatchOutcome) -> Option<T> + Send + 'static,
    ) -> Result<PendingOperations<T>> {
        let place = self.place(item.key())?;
        let key = &place.value;
        let action = match item {
            BatchItem::Get(_) => Action::Get { key, offset: 0, len: u32::MAX },
            BatchItem::Put(_, value) if value.len() > RECORD_LEN_MAX => {
                let cause = "a value of more than one record is put by waiting for it";
                return Err(Error::new(ErrorKind::TooLarge, cause));
            }
            BatchItem::Put(_, value) => Action::Put { key, data: ValueData::Inline(value) },
            BatchItem::Delete(_) => Action::Delete { key },
        };
        let operation =
            Operation::new(place.partition, [action]).guard(Guard::Absent(&place.manifest));
        let kv = self.clone();
        let kind = item.kind();
        self.dataset.submit_then(std::slice::from_ref(&operation), move |mut outcomes| {
            let Some(outcome) = outcomes.pop() else {
                return FinishStep::Ready(Err(ErrorKind::Internal.into()));
            };
            if meets_manifest(&outcome) {
                return FinishStep::Follow(Box::new(move || otherwise(&kv)));
            }
            let picked = kind
                .outcome(outcome)
                .and_then(|outcome| pick(outcome).ok_or_else(|| ErrorKind::Internal.into()));
            FinishStep::Ready(picked)
        })
    }
}
