//! Single operations that are sent without waiting.

use samite_types::{Error, ErrorKind, Result, Version};

use super::{BatchOutcome, Kv, Value};
use crate::Pending;

impl Kv {
    /// [`Kv::get`] without waiting.
    ///
    /// # Errors
    /// A key that cannot be; as [`crate::Dataset::submit`].
    pub fn submit_get(&self, key: &[u8]) -> Result<Pending<Option<Value>>> {
        let mut batch = self.batch();
        batch.get(key);
        Ok(batch.submit()?.map(|outcomes| match only(outcomes)? {
            BatchOutcome::Got(value) => Ok(value),
            _ => Err(ErrorKind::Internal.into()),
        }))
    }

    /// [`Kv::put`] without waiting, for a value of at most one record.
    ///
    /// # Errors
    /// `TooLarge` for a longer one; as [`Self::submit_get`].
    pub fn submit_put(&self, key: &[u8], value: &[u8]) -> Result<Pending<Version>> {
        let mut batch = self.batch();
        batch.put(key, value);
        Ok(batch.submit()?.map(|outcomes| match only(outcomes)? {
            BatchOutcome::Put(version) => Ok(version),
            _ => Err(ErrorKind::Internal.into()),
        }))
    }

    /// [`Kv::delete`] without waiting.
    ///
    /// # Errors
    /// As [`Self::submit_get`].
    pub fn submit_delete(&self, key: &[u8]) -> Result<Pending<bool>> {
        let mut batch = self.batch();
        batch.delete(key);
        Ok(batch.submit()?.map(|outcomes| match only(outcomes)? {
            BatchOutcome::Deleted(existed) => Ok(existed),
            _ => Err(ErrorKind::Internal.into()),
        }))
    }
}

fn only(mut outcomes: Vec<Result<BatchOutcome>>) -> Result<BatchOutcome> {
    outcomes.pop().unwrap_or_else(|| Err(Error::from(ErrorKind::Internal)))
}
