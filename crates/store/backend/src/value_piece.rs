//! Bytes of values as they are read and as they are given to be stored.

use samite_arena::ArenaExtent;

use crate::bytes::SharedBytes;

/// A piece of a value that was read. Owned: it stays as it is, whatever happens to the record.
#[derive(Clone, Debug)]
pub enum ValuePiece {
    /// Bytes of a small value.
    Bytes(SharedBytes),
    /// Bytes in the arena. A change of the record meanwhile goes to another place.
    Extent {
        /// Where.
        extent: ArenaExtent,
        /// First byte within the extent.
        offset: u32,
        /// Bytes.
        len: u32,
    },
    /// This many zeros: a hole.
    Zeros(u32),
}

impl ValuePiece {
    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Extent { len, .. } | Self::Zeros(len) => *len as usize,
        }
    }

    /// No bytes at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes; `None` for a hole.
    #[must_use]
    pub fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Extent { extent, offset, len } => {
                Some(&extent.as_slice()[*offset as usize..][..*len as usize])
            }
            Self::Zeros(_) => None,
        }
    }

    /// The bytes where they are.
    #[must_use]
    pub fn seen(&self) -> ValueView<'_> {
        self.as_bytes().map_or(ValueView::Zeros(self.len() as u32), ValueView::Bytes)
    }

    /// Appends the bytes, zeros of a hole included, to `out`.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        self.seen().append_to(out);
    }
}

/// Bytes of a value where they are.
#[derive(Clone, Copy, Debug)]
pub enum ValueView<'a> {
    /// Bytes.
    Bytes(&'a [u8]),
    /// This many zeros: a hole.
    Zeros(u32),
}

impl ValueView<'_> {
    /// Bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Zeros(len) => *len as usize,
        }
    }

    /// No bytes at all.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the bytes, zeros of a hole included, to `out`.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        match self {
            Self::Bytes(bytes) => out.extend_from_slice(bytes),
            Self::Zeros(len) => out.resize(out.len() + *len as usize, 0),
        }
    }
}

/// Bytes to store.
#[derive(Debug)]
pub enum WriteSource<'a> {
    /// Bytes to copy.
    Bytes(&'a [u8]),
    /// Whole arena blocks that were granted to the writer, each with the number of bytes that it filled from the block's
    /// start. Where they fit the record's grid of blocks they become its storage without a copy.
    Blocks(Vec<(ArenaExtent, u32)>),
    /// This many zeros; they take no space where they cover whole blocks.
    Zeros(u32),
}

impl WriteSource<'_> {
    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Blocks(blocks) => blocks.iter().map(|(_, len)| *len as usize).sum(),
            Self::Zeros(len) => *len as usize,
        }
    }

    /// No bytes at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
