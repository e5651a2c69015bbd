//! From outcomes to a reply.

use samite_backend::ValuePiece;
use samite_partition::{ActionOutput, AppliedOutcome};
use samite_transport::server::{OutPiece, PIN_LEN_MIN};
use samite_types::{Epoch, ErrorKind};
use samite_wire::op::{BlockRef, OperationFailure, ReplyEncoder, ReplyHeader};

use crate::budget::{FIRST_PIECE_LEN, PIECE_LEN, ReplyBudget};

/// A value of more bytes than this goes by reference to a peer that has mapped the arena.
const INLINE_LEN_MAX: usize = 16 << 10;
/// Pieces below this length go inline even then: a reference costs a look at the generation table.
const REFERENCE_LEN_MIN: usize = 2 << 10;

/// Memory that one reply after another is built in.
#[derive(Debug, Default)]
pub(crate) struct ReplyBuffers {
    body: Vec<u8>,
    pieces: Vec<ValuePiece>,
}

/// A reply under construction.
#[derive(Debug)]
pub(crate) struct ReplyBuilder {
    encoder: ReplyEncoder,
    /// The payload, in order.
    pieces: Vec<ValuePiece>,
    by_reference: bool,
    /// The bytes left for reads, and those there were at first.
    left: ReplyRoom,
    whole: ReplyRoom,
    /// Bytes of values.
    read_len: usize,
    /// Operations that were refused for want of space.
    without_space: usize,
}

/// Room for values in a reply, in bytes.
#[derive(Clone, Copy, Debug)]
struct ReplyRoom {
    body: usize,
    payload: usize,
}

impl ReplyRoom {
    fn less(self, taken: Self) -> Option<Self> {
        Some(Self {
            body: self.body.checked_sub(taken.body)?,
            payload: self.payload.checked_sub(taken.payload)?,
        })
    }
}

impl ReplyBuilder {
    /// Begins a reply. `by_reference`: the peer has mapped the arena.
    pub(crate) fn new(
        buffers: ReplyBuffers,
        header: &ReplyHeader,
        budget: &ReplyBudget,
        by_reference: bool,
    ) -> Self {
        let room = ReplyRoom { body: budget.extra_body, payload: budget.read_payload };
        Self {
            encoder: ReplyEncoder::new(buffers.body, header),
            pieces: buffers.pieces,
            by_reference,
            left: room,
            whole: room,
            read_len: 0,
            without_space: 0,
        }
    }

    /// Adds the outcome of the next operation.
    pub(crate) fn outcome(&mut self, outcome: AppliedOutcome, mutation: bool) {
        let outputs = match outcome {
            AppliedOutcome::Done(outputs) => outputs,
            AppliedOutcome::Failed { kind, index, current } => {
                self.without_space += usize::from(kind == ErrorKind::NoSpace);
                let current = current.as_ref().map(|(version, total_len, bytes)| {
                    let len = bytes.len().min(usize::from(u16::MAX));
                    (*version, *total_len, &bytes[..len])
                });
                return self.encoder.failed(&OperationFailure { kind, index, current });
            }
        };
        if !mutation && let Err(kind) = self.admit(&outputs) {
            return self.encoder.failed(&OperationFailure { kind, index: 0, current: None });
        }
        self.encoder.done(outputs.len());
        for output in outputs {
            match output {
                ActionOutput::Value { version, total_len, pieces } => {
                    self.encoder.value(version, total_len, pieces.len());
                    let refer = self.refers(&pieces);
                    for piece in pieces {
                        self.piece(piece, refer);
                    }
                }
                ActionOutput::Written { version, offset, total_len, created } => {
                    self.encoder.written(version, offset, total_len, created);
                }
                ActionOutput::Deleted { existed } => self.encoder.deleted(existed),
                ActionOutput::Number(number) => self.encoder.number(number),
                ActionOutput::Listing { complete, count, entries } => {
                    self.encoder.listing(complete, count, &entries);
                }
            }
        }
    }

    /// Counts the bytes that were read.
    ///
    /// # Errors
    /// It does not fit: [`ErrorKind::Busy`] when it would if it came alone, otherwise [`ErrorKind::TooLarge`].
    fn admit(&mut self, outputs: &[ActionOutput]) -> Result<(), ErrorKind> {
        let mut taken = ReplyRoom { body: 0, payload: 0 };
        for output in outputs {
            if let ActionOutput::Value { pieces, .. } = output {
                let refer = self.refers(pieces);
                let inline = pieces.iter().filter(|piece| {
                    !goes_by_reference(piece, refer) && !matches!(piece, ValuePiece::Zeros(_))
                });
                taken.payload += inline.map(ValuePiece::len).sum::<usize>();
                taken.body += (pieces.len() * PIECE_LEN).saturating_sub(FIRST_PIECE_LEN);
            }
        }
        match self.left.less(taken) {
            Some(left) => self.left = left,
            None if self.whole.less(taken).is_some() => return Err(ErrorKind::Busy),
            None => return Err(ErrorKind::TooLarge),
        }
        Ok(())
    }

    fn refers(&self, pieces: &[ValuePiece]) -> bool {
        self.by_reference && pieces.iter().map(ValuePiece::len).sum::<usize>() > INLINE_LEN_MAX
    }

    fn piece(&mut self, piece: ValuePiece, refer: bool) {
        self.read_len += piece.len();
        match &piece {
            ValuePiece::Zeros(len) => return self.encoder.zeros(*len),
            ValuePiece::Extent { extent, offset, len } if goes_by_reference(&piece, refer) => {
                let block = extent.block_ref(*offset..offset + len);
                return self.encoder.blocks(&[block]);
            }
            ValuePiece::Bytes(_) | ValuePiece::Extent { .. } => {}
        }
        self.encoder.inline(piece.len());
        if !piece.is_empty() {
            self.pieces.push(piece);
        }
    }

    /// Bytes of values so far, by reference or not.
    pub(crate) const fn read_len(&self) -> usize {
        self.read_len
    }

    /// Operations that were refused for want of space.
    pub(crate) const fn without_space(&self) -> usize {
        self.without_space
    }

    /// Ends the reply.
    pub(crate) fn finish(
        mut self,
        name_space_generation: Epoch,
        grants: &[BlockRef],
    ) -> ReplyBuffers {
        self.encoder.set_name_space_generation(name_space_generation);
        ReplyBuffers { body: self.encoder.finish(grants), pieces: self.pieces }
    }
}

fn goes_by_reference(piece: &ValuePiece, refer: bool) -> bool {
    refer && matches!(piece, ValuePiece::Extent { .. }) && piece.len() >= REFERENCE_LEN_MIN
}

/// A piece on its way out: the record it came from does not change under it.
struct ReplyPiece(ValuePiece);

impl AsRef<[u8]> for ReplyPiece {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes().unwrap_or_default()
    }
}

impl ReplyBuffers {
    /// A reply that says why nothing was tried.
    pub(crate) fn refusal(self, header: &ReplyHeader, grants: &[BlockRef]) -> Self {
        Self { body: ReplyEncoder::new(self.body, header).finish(grants), pieces: self.pieces }
    }

    /// The body.
    pub(crate) fn body(&self) -> &[u8] {
        &self.body
    }

    /// The payload, in order.
    pub(crate) fn payload(&self) -> impl Iterator<Item = OutPiece<'_>> {
        self.pieces.iter().map(|piece| {
            if piece.len() < PIN_LEN_MIN {
                OutPiece::Copy(piece.as_bytes().unwrap_or_default())
            } else {
                OutPiece::Pinned(Box::new(ReplyPiece(piece.clone())))
            }
        })
    }

    /// Lets go of the blocks that were sent.
    pub(crate) fn clear(&mut self) {
        /// Memory for a body beyond this is not kept for the next reply.
        const KEEP_LEN_MAX: usize = 64 << 10;
        self.pieces.clear();
        self.body.clear();
        self.body.shrink_to(KEEP_LEN_MAX);
    }
}
