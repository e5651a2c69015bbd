//! Replies become outcomes; values land where their callers want them.

use samite_transport::client::{LinkReply, NodeLink};
use samite_types::{Epoch, Error, ErrorKind, PartitionId, Result};
use samite_wire::frame::FrameKind;
use samite_wire::limits::RECORD_LEN_MAX;
use samite_wire::op::{
    List, OperationFailure, OutcomeHead, PieceHead, ReplyHeader, ReplyReader, ResultHead,
};

use crate::outcome::{GuardedRecord, OwnedEntries, OwnedFailure, OwnedOutcome, OwnedResult};

/// The reply to one operation.
pub(crate) enum OperationAnswer {
    /// Its outcome.
    Outcome(OwnedOutcome),
    /// It took effect, but a value that it read was changed by others during the copy.
    Inconsistent,
}

/// The part of a reply about the whole request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplySummary {
    pub(crate) refused: Option<ErrorKind>,
    pub(crate) name_space_generation: Epoch,
    pub(crate) received_len: usize,
}

/// The operations of a request, counted from 0 as they stand in it.
pub(crate) trait ReplyReceiver {
    /// How many there are.
    fn count(&self) -> usize;
    /// The partition of this one, where it is known.
    fn partition(&self, index: usize) -> Option<PartitionId>;
    /// Where the first value of this one goes; `None` for nowhere in particular.
    fn dest(&mut self, index: usize) -> Option<&mut [u8]>;
    /// The reply to this one.
    fn done(&mut self, index: usize, answer: OperationAnswer);
}

/// Reads a reply.
pub(crate) fn read(
    reply: &mut LinkReply<'_>,
    link: &NodeLink,
    receiver: &mut impl ReplyReceiver,
) -> Result<ReplySummary> {
    if reply.kind() != FrameKind::Reply {
        return Err(corrupt("another kind of frame came for a request"));
    }
    let mut reader = ReplyReader::new(reply.body())?;
    let ReplyHeader { refused, name_space_generation, .. } = *reader.header();
    let expected = if refused.is_some() { 0 } else { receiver.count() };
    if reader.count() != expected {
        return Err(corrupt("a reply has another number of outcomes than its request"));
    }
    let mut values = ReplyValues { reply, link, inconsistent: false, received_len: 0 };
    for index in 0..expected {
        let answer = match reader.outcome()? {
            OutcomeHead::Failed(failure) => {
                OperationAnswer::Outcome(OwnedOutcome::Failed(own_failure(&failure)))
            }
            OutcomeHead::Done(results) => {
                values.inconsistent = false;
                let mut dest = receiver.dest(index);
                let mut owned = List::new();
                for _ in 0..results {
                    owned.push(values.result(&mut reader, &mut dest)?);
                }
                if values.inconsistent {
                    OperationAnswer::Inconsistent
                } else {
                    OperationAnswer::Outcome(OwnedOutcome::Done(owned))
                }
            }
        };
        receiver.done(index, answer);
    }
    let received_len = values.received_len;
    let grants = reader.finish()?;
    if !grants.is_empty() {
        link.grants().add(grants.into_iter().map(Into::into));
    }
    Ok(ReplySummary { refused, name_space_generation, received_len })
}

/// Moves values out of a reply.
struct ReplyValues<'v, 'r> {
    reply: &'v mut LinkReply<'r>,
    link: &'v NodeLink,
    inconsistent: bool,
    received_len: usize,
}

impl ReplyValues<'_, '_> {
    fn result(
        &mut self,
        reader: &mut ReplyReader<'_>,
        dest: &mut Option<&mut [u8]>,
    ) -> Result<OwnedResult> {
        Ok(match reader.result()? {
            ResultHead::Value { version, total_len, pieces } => {
                let (len, data) = match dest.take() {
                    Some(dest) => (self.land(reader, pieces, dest)?, Vec::new()),
                    None => {
                        let data = self.collect(reader, pieces)?;
                        (data.len(), data)
                    }
                };
                self.received_len += len;
                OwnedResult::Value { version, total_len, len, data }
            }
            ResultHead::Written { version, offset, total_len, created } => {
                OwnedResult::Written { version, offset, total_len, created }
            }
            ResultHead::Deleted { existed } => OwnedResult::Deleted { existed },
            ResultHead::Number(value) => OwnedResult::Number(value),
            ResultHead::Listing(listing) => OwnedResult::Listing {
                complete: listing.complete,
                entries: OwnedEntries::new(&listing, || self.link.shared_arena()),
            },
        })
    }

    /// Moves the pieces of a value to the front of `dest`; how many bytes they were.
    fn land(
        &mut self,
        reader: &mut ReplyReader<'_>,
        pieces: usize,
        dest: &mut [u8],
    ) -> Result<usize> {
        let mut len = 0;
        for _ in 0..pieces {
            let piece = reader.piece()?;
            let room = dest
                .get_mut(len..len + piece.len())
                .ok_or_else(|| corrupt("a value is longer than was asked for"))?;
            self.piece(&piece, room)?;
            len += piece.len();
        }
        Ok(len)
    }

    fn collect(&mut self, reader: &mut ReplyReader<'_>, pieces: usize) -> Result<Vec<u8>> {
        let mut data = Vec::new();
        for _ in 0..pieces {
            let piece = reader.piece()?;
            let start = data.len();
            if start + piece.len() > RECORD_LEN_MAX {
                return Err(corrupt("a value is longer than a record can be"));
            }
            data.resize(start + piece.len(), 0);
            self.piece(&piece, &mut data[start..])?;
        }
        Ok(data)
    }

    /// Moves one piece to `room`, which is exactly as long.
    fn piece(&mut self, piece: &PieceHead<'_>, room: &mut [u8]) -> Result<()> {
        match piece {
            PieceHead::Inline(_) => self.reply.read_payload(room)?,
            PieceHead::Zeros(_) => room.fill(0),
            PieceHead::Blocks(blocks) => {
                let arena = self.link.arena().ok_or_else(|| {
                    corrupt("references to shared memory came over a connection without any")
                })?;
                let mut rest = room;
                for block in blocks.iter() {
                    let (part, after) = rest.split_at_mut(block.len as usize);
                    self.inconsistent |= !arena.copy_out(&block, part);
                    rest = after;
                }
            }
        }
        Ok(())
    }
}

fn own_failure(failure: &OperationFailure<'_>) -> OwnedFailure {
    OwnedFailure {
        kind: failure.kind,
        index: failure.index,
        current: failure.current.map(|(version, total_len, bytes)| GuardedRecord {
            version,
            total_len,
            bytes: bytes.to_vec(),
        }),
    }
}

fn corrupt(cause: &'static str) -> Error {
    Error::new(ErrorKind::Corrupt, cause)
}
