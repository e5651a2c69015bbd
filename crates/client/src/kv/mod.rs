//! The key-value view: values of 0 bytes to 1 GiB under keys of 1 byte to 4 KiB.

use samite_types::{Result, Version};

use crate::Dataset;

/// A value with its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// Changes with every change of the value; for [`Kv::compare_and_swap`].
    pub version: Version,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// One key of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Key.
    pub key: Vec<u8>,
    /// Version of its value.
    pub version: Version,
    /// Length of its value, in bytes.
    pub len: u64,
}

/// Part of a listing, in key order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Entries.
    pub entries: Vec<Entry>,
    /// There is nothing after the last entry.
    pub complete: bool,
}

/// Keys and values in a dataset.
#[derive(Clone)]
pub struct Kv {
    dataset: Dataset,
}

#[allow(clippy::todo, clippy::missing_errors_doc, unused_variables)]
impl Kv {
    /// The view over `dataset`.
    #[must_use]
    pub const fn new(dataset: Dataset) -> Self {
        Self { dataset }
    }

    /// The dataset.
    #[must_use]
    pub const fn dataset(&self) -> &Dataset {
        &self.dataset
    }

    /// The value of `key`, or `None`.
    pub fn get(&self, key: &[u8]) -> Result<Option<Value>> {
        todo!()
    }

    /// Sets the value of `key`.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<Version> {
        todo!()
    }

    /// Sets the value of `key` if it has none; otherwise fails with `Exists`.
    pub fn put_if_absent(&self, key: &[u8], value: &[u8]) -> Result<Version> {
        todo!()
    }

    /// Sets the value of `key` if its version is still `expected`; otherwise fails with `Conflict`.
    pub fn compare_and_swap(&self, key: &[u8], expected: Version, value: &[u8]) -> Result<Version> {
        todo!()
    }

    /// Removes `key`; whether it was there.
    pub fn delete(&self, key: &[u8]) -> Result<bool> {
        todo!()
    }

    /// Appends to the value of `key` (absent counts as empty); the length after.
    pub fn append(&self, key: &[u8], bytes: &[u8]) -> Result<u64> {
        todo!()
    }

    /// Reads from `offset` into `dest`; how many bytes there were, or `None` without a value.
    pub fn read_range(&self, key: &[u8], offset: u64, dest: &mut [u8]) -> Result<Option<usize>> {
        todo!()
    }

    /// Writes at `offset` (a gap becomes zeros, absent counts as empty); the length after.
    pub fn write_range(&self, key: &[u8], offset: u64, bytes: &[u8]) -> Result<u64> {
        todo!()
    }

    /// At most `limit` keys that start with `prefix` and come after `after` (empty: from the first), over all partitions in key order.
    pub fn list(&self, prefix: &[u8], after: &[u8], limit: usize) -> Result<Page> {
        todo!()
    }
}
