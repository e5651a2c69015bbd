//! From an outcome to the bytes of a reply, whole values inline.

use samite_partition::{ActionOutput, AppliedOutcome};
use samite_types::{Epoch, ErrorKind};
use samite_wire::op::{OperationFailure, ReplyEncoder, ReplyHeader};

/// The body and the payload of a reply.
pub type Encoded = (Vec<u8>, Vec<u8>);

/// A reply that says why nothing was tried.
#[must_use]
pub fn refusal(kind: ErrorKind, map_epoch: Epoch) -> Encoded {
    let header = ReplyHeader { refused: Some(kind), map_epoch, name_space_generation: Epoch(0) };
    (ReplyEncoder::new(Vec::new(), &header).finish(&[]), Vec::new())
}

/// The reply with these outcomes.
#[must_use]
pub fn encode(outcomes: &[AppliedOutcome], map_epoch: Epoch) -> Encoded {
    let header = ReplyHeader { refused: None, map_epoch, name_space_generation: Epoch(0) };
    let mut encoder = ReplyEncoder::new(Vec::new(), &header);
    let mut payload = Vec::new();
    for outcome in outcomes {
        match outcome {
            AppliedOutcome::Failed { kind, index, current } => {
                let current = current
                    .as_ref()
                    .map(|(version, total_len, bytes)| (*version, *total_len, &bytes[..]));
                encoder.failed(&OperationFailure { kind: *kind, index: *index, current });
            }
            AppliedOutcome::Done(outputs) => {
                encoder.done(outputs.len());
                outputs.iter().for_each(|output| add(&mut encoder, &mut payload, output));
            }
        }
    }
    (encoder.finish(&[]), payload)
}

fn add(encoder: &mut ReplyEncoder, payload: &mut Vec<u8>, output: &ActionOutput) {
    match output {
        ActionOutput::Value { version, total_len, pieces } => {
            encoder.value(*version, *total_len, pieces.len());
            for piece in pieces {
                encoder.inline(piece.len());
                piece.append_to(payload);
            }
        }
        ActionOutput::Written { version, offset, total_len, created } => {
            encoder.written(*version, *offset, *total_len, *created);
        }
        ActionOutput::Deleted { existed } => encoder.deleted(*existed),
        ActionOutput::Number(number) => encoder.number(*number),
        ActionOutput::Listing { complete, count, entries } => {
            encoder.listing(*complete, *count, entries);
        }
    }
}
