//! Shared, immutable bytes of a small value.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// A slice of shared bytes. Cloning it copies nothing; while it lives, the record it came from does not change under it.
#[derive(Clone)]
pub struct SharedBytes {
    data: Arc<[u8]>,
    start: u32,
    len: u32,
}

impl SharedBytes {
    /// `len` bytes of `data` from `start`. The caller keeps within the slice.
    pub(crate) fn slice(data: &Arc<[u8]>, start: u32, len: u32) -> Self {
        debug_assert!(start as usize + len as usize <= data.len());
        Self { data: Arc::clone(data), start, len }
    }
}

impl From<&[u8]> for SharedBytes {
    fn from(bytes: &[u8]) -> Self {
        Self { data: Arc::from(bytes), start: 0, len: bytes.len() as u32 }
    }
}

impl Deref for SharedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.data[self.start as usize..][..self.len as usize]
    }
}

impl fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({})", self.len)
    }
}
