//! Names of the connections of an event loop.

use std::fmt;

/// A connection of one event loop. Never used again after the connection has closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(u64);

impl ConnId {
    pub(super) const fn new(serial: u32, index: usize) -> Self {
        Self((serial as u64) << 32 | index as u64)
    }

    pub(super) const fn serial(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Place in the loop's tables.
    pub(super) const fn index(self) -> usize {
        (self.0 & 0xffff_ffff) as usize
    }
}

impl fmt::Display for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connection {}", self.0 >> 32)
    }
}
