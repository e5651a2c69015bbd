//! The object view: named byte ranges of any size over chunks.

use samite_types::Result;

use crate::Dataset;

/// One object of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Name.
    pub name: Vec<u8>,
    /// Length, in bytes.
    pub len: u64,
}

/// Part of a listing, in name order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Entries.
    pub entries: Vec<Entry>,
    /// There is nothing after the last entry.
    pub complete: bool,
}

/// Objects in a dataset.
#[derive(Clone)]
pub struct Objects {
    dataset: Dataset,
}

/// One object, open.
#[derive(Clone)]
pub struct Object {
    dataset: Dataset,
}

#[allow(clippy::todo, clippy::missing_errors_doc, unused_variables)]
impl Objects {
    /// The view over `dataset`.
    #[must_use]
    pub const fn new(dataset: Dataset) -> Self {
        Self { dataset }
    }

    /// Makes an object; `Exists` if there is one of this name.
    pub fn create(&self, name: &[u8]) -> Result<Object> {
        todo!()
    }

    /// Opens an object; `NotFound` if there is none.
    pub fn open(&self, name: &[u8]) -> Result<Object> {
        todo!()
    }

    /// Opens an object, making it if there is none.
    pub fn open_or_create(&self, name: &[u8]) -> Result<Object> {
        todo!()
    }

    /// Removes an object; whether it was there.
    pub fn delete(&self, name: &[u8]) -> Result<bool> {
        todo!()
    }

    /// At most `limit` objects whose names start with `prefix` and come after `after` (empty: from the first), in name order.
    pub fn list(&self, prefix: &[u8], after: &[u8], limit: usize) -> Result<Page> {
        todo!()
    }
}

#[allow(clippy::todo, clippy::missing_errors_doc, unused_variables)]
impl Object {
    /// Length, in bytes.
    pub fn len(&self) -> Result<u64> {
        todo!()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Reads from `offset` into `dest`; short only at the end of the object. Holes read as zeros.
    pub fn read_at(&self, dest: &mut [u8], offset: u64) -> Result<usize> {
        todo!()
    }

    /// Writes all of `data` at `offset`.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        todo!()
    }

    /// Writes all of `data` at the end; the offset at which it went.
    pub fn append(&self, data: &[u8]) -> Result<u64> {
        todo!()
    }

    /// Cuts the object to `len` bytes, or extends it with a hole.
    pub fn truncate(&self, len: u64) -> Result<()> {
        todo!()
    }
}
