//! Reading a reply step by step, for a receiver that knows where each value shall land and has the payload elsewhere:
//! still in the socket, or behind references. [`Reply::decode`](super::OperationReply::decode) is the same for one who has it all in memory.

use samite_types::{Epoch, ErrorKind, Version};

use super::decode::{block_count, block_ref, blocks, failure, flag, listing};
use super::encode::{BLOCK_REF_LEN, tag};
use super::{BlockRef, List, ListingEntries, OperationFailure, ReplyHeader};
use crate::codec::{FieldDecoder, WireError};
use crate::limits::{OPERATIONS_MAX, PAYLOAD_LEN_MAX};

/// Result of [`ReplyReader::outcome`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutcomeHead<'a> {
    /// Took effect; read this many results with [`ReplyReader::result`].
    Done(usize),
    /// Had no effect.
    Failed(OperationFailure<'a>),
}

/// Result of [`ReplyReader::result`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResultHead<'a> {
    /// See [`super::ActionResult::Value`]; read this many pieces with [`ReplyReader::piece`].
    Value {
        /// Version of the record.
        version: Version,
        /// Whole length of its value, in bytes.
        total_len: u32,
        /// How many pieces follow.
        pieces: usize,
    },
    /// See [`super::ActionResult::Written`].
    Written {
        /// Version of the record after.
        version: Version,
        /// Offset at which the bytes went.
        offset: u32,
        /// Length of the value after.
        total_len: u32,
        /// The record did not exist before.
        created: bool,
    },
    /// See [`super::ActionResult::Deleted`].
    Deleted {
        /// The record existed.
        existed: bool,
    },
    /// See [`super::ActionResult::Number`].
    Number(u64),
    /// See [`super::ActionResult::Listing`].
    Listing(ListingEntries<'a>),
}

/// One piece of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PieceHead<'a> {
    /// The next so many bytes of the payload.
    Inline(usize),
    /// Bytes in arena blocks.
    Blocks(BlockRefs<'a>),
    /// So many zeros.
    Zeros(usize),
}

/// References to arena blocks, decoded as they are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRefs<'a> {
    /// [`BLOCK_REF_LEN`] bytes for each.
    raw: &'a [u8],
}

impl<'a> BlockRefs<'a> {
    /// From a multiple of [`BLOCK_REF_LEN`] bytes.
    pub(super) const fn of(raw: &'a [u8]) -> Self {
        Self { raw }
    }

    /// The references, in the order of the value.
    pub fn iter(&self) -> impl Iterator<Item = BlockRef> + use<'a> {
        let mut decoder = FieldDecoder::new(self.raw);
        // The length is a multiple of a reference's: none can fail before the end.
        std::iter::from_fn(move || block_ref(&mut decoder).ok())
    }
}

/// Reads a reply's body in order.
#[derive(Clone, Debug)]
pub struct ReplyReader<'a> {
    pub(super) decoder: FieldDecoder<'a>,
    pub(super) header: ReplyHeader,
    pub(super) count: usize,
}

impl<'a> ReplyReader<'a> {
    /// Reads the shared fields.
    ///
    /// # Errors
    /// [`WireError`]: the peer does not speak the protocol. So for all methods.
    pub fn new(body: &'a [u8]) -> Result<Self, WireError> {
        let mut decoder = FieldDecoder::new(body);
        let refused = match decoder.u8("status")? {
            0 => None,
            code => Some(ErrorKind::from_code(code).ok_or(WireError::Unknown("status"))?),
        };
        let header = ReplyHeader {
            refused,
            map_epoch: Epoch(decoder.u64("map epoch")?),
            name_space_generation: Epoch(decoder.u64("name-space generation")?),
        };
        let count = usize::from(decoder.u16("outcome count")?);
        if count > OPERATIONS_MAX {
            return Err(WireError::OverLimit("outcome count"));
        }
        Ok(Self { decoder, header, count })
    }

    /// The shared fields.
    #[must_use]
    pub const fn header(&self) -> &ReplyHeader {
        &self.header
    }

    /// How many outcomes there are; call [`Self::outcome`] that often.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.count
    }

    /// The next outcome.
    ///
    /// # Errors
    /// [`WireError`].
    pub fn outcome(&mut self) -> Result<OutcomeHead<'a>, WireError> {
        match self.decoder.u8("outcome tag")? {
            tag::DONE => Ok(OutcomeHead::Done(usize::from(self.decoder.u8("result count")?))),
            tag::FAILED => Ok(OutcomeHead::Failed(failure(&mut self.decoder)?)),
            _ => Err(WireError::Unknown("outcome tag")),
        }
    }

    /// The next result of an outcome that is done.
    ///
    /// # Errors
    /// [`WireError`].
    pub fn result(&mut self) -> Result<ResultHead<'a>, WireError> {
        let decoder = &mut self.decoder;
        Ok(match decoder.u8("result tag")? {
            tag::VALUE => ResultHead::Value {
                version: Version(decoder.u64("version")?),
                total_len: decoder.u32("value length")?,
                pieces: usize::from(decoder.u16("piece count")?),
            },
            tag::WRITTEN => ResultHead::Written {
                version: Version(decoder.u64("version")?),
                offset: decoder.u32("offset")?,
                total_len: decoder.u32("value length")?,
                created: flag(decoder, "created flag")?,
            },
            tag::DELETED => ResultHead::Deleted { existed: flag(decoder, "existed flag")? },
            tag::NUMBER => ResultHead::Number(decoder.u64("number")?),
            tag::LISTING => ResultHead::Listing(listing(decoder)?),
            _ => return Err(WireError::Unknown("result tag")),
        })
    }

    /// The next piece of a value.
    ///
    /// # Errors
    /// [`WireError`].
    pub fn piece(&mut self) -> Result<PieceHead<'a>, WireError> {
        let decoder = &mut self.decoder;
        let piece = match decoder.u8("data tag")? {
            tag::INLINE => PieceHead::Inline(decoder.u32("data length")? as usize),
            tag::BLOCKS => {
                let len = block_count(decoder)? * BLOCK_REF_LEN;
                PieceHead::Blocks(BlockRefs::of(decoder.bytes(len, "block references")?))
            }
            tag::ZEROS => PieceHead::Zeros(decoder.u32("data length")? as usize),
            _ => return Err(WireError::Unknown("data tag")),
        };
        if piece.len() > PAYLOAD_LEN_MAX {
            return Err(WireError::OverLimit("data"));
        }
        Ok(piece)
    }

    /// After the last outcome: the blocks newly granted. Nothing may be left over.
    ///
    /// # Errors
    /// [`WireError`].
    pub fn finish(mut self) -> Result<List<BlockRef, 16>, WireError> {
        let grants = blocks(&mut self.decoder)?;
        self.decoder.finish("reply body")?;
        Ok(grants)
    }
}

impl PieceHead<'_> {
    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Inline(len) | Self::Zeros(len) => *len,
            Self::Blocks(blocks) => blocks.iter().map(|block| block.len as usize).sum(),
        }
    }

    /// No bytes at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
