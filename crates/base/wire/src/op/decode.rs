//! Decoding of requests and replies: every length against its limit, every tag known, nothing left over.

use samite_types::{DatasetId, Epoch, ErrorKind, PartitionId, Seq, Version};

use super::encode::tag;
use super::{
    Action, ActionResult, BlockRef, Guard, List, ListingEntries, Operation, OperationFailure,
    OperationOutcome, OperationReply, OperationRequest, ReplyReader, RequestHeader, ValueData,
};
use crate::codec::{FieldDecoder, WireError};
use crate::limits::{
    ACTIONS_MAX, BLOCKS_MAX, HOLDERS_LEN_MAX, KEY_LEN_MAX, LIST_ENTRIES_MAX, OPERATIONS_MAX,
    PAYLOAD_LEN_MAX, RECORD_LEN_MAX,
};

/// The payload, handed out front to back as the body refers to it.
pub(crate) struct PayloadReader<'a>(pub(crate) FieldDecoder<'a>);

impl<'a> PayloadReader<'a> {
    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], WireError> {
        self.0.bytes(len, "payload")
    }
}

pub(crate) fn flag(decoder: &mut FieldDecoder<'_>, field: &'static str) -> Result<bool, WireError> {
    match decoder.u8(field)? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(WireError::Unknown(field)),
    }
}

pub(crate) fn key<'a>(decoder: &mut FieldDecoder<'a>) -> Result<&'a [u8], WireError> {
    decoder.short_bytes(KEY_LEN_MAX, "key")
}

pub(super) fn blocks<const N: usize>(
    decoder: &mut FieldDecoder<'_>,
) -> Result<List<BlockRef, N>, WireError>
where
    [BlockRef; N]: smallvec::Array<Item = BlockRef>,
{
    let count = block_count(decoder)?;
    let mut blocks = List::new();
    for _ in 0..count {
        blocks.push(block_ref(decoder)?);
    }
    Ok(blocks)
}

pub(super) fn block_count(decoder: &mut FieldDecoder<'_>) -> Result<usize, WireError> {
    let count = usize::from(decoder.u16("block count")?);
    if count > BLOCKS_MAX.max(256) {
        return Err(WireError::OverLimit("block count"));
    }
    Ok(count)
}

pub(super) fn block_ref(decoder: &mut FieldDecoder<'_>) -> Result<BlockRef, WireError> {
    Ok(BlockRef {
        offset: decoder.u64("block offset")?,
        len: decoder.u32("block length")?,
        generation: decoder.u32("block generation")?,
    })
}

fn data<'a>(
    decoder: &mut FieldDecoder<'a>,
    payload: &mut PayloadReader<'a>,
    len_max: usize,
) -> Result<ValueData<'a>, WireError> {
    let data = match decoder.u8("data tag")? {
        tag::INLINE => ValueData::Inline(payload.take(decoder.u32("data length")? as usize)?),
        tag::BLOCKS => ValueData::Blocks(blocks(decoder)?),
        tag::ZEROS => ValueData::Zeros(decoder.u32("data length")?),
        _ => return Err(WireError::Unknown("data tag")),
    };
    if data.len() > len_max {
        return Err(WireError::OverLimit("data"));
    }
    Ok(data)
}

impl<'a> OperationRequest<'a> {
    /// Reads a request.
    ///
    /// # Errors
    /// [`WireError`]: the peer does not speak the protocol and is to be disconnected.
    pub fn decode(body: &'a [u8], payload: &'a [u8]) -> Result<Self, WireError> {
        let mut decoder = FieldDecoder::new(body);
        let mut payload = PayloadReader(FieldDecoder::new(payload));
        let (header, count) = request_header(&mut decoder)?;
        // An operation is at least 18 bytes: a lying count cannot make us reserve more than the body's own size.
        let mut operations = Vec::with_capacity(count.min(body.len() / 18));
        for _ in 0..count {
            operations.push(operation(&mut decoder, &mut payload)?);
        }
        decoder.finish("request body")?;
        payload.0.finish("request payload")?;
        Ok(Self { header, operations })
    }

    /// Reads a request of one operation into an empty one, which is large to move.
    ///
    /// # Errors
    /// As of [`OperationRequest::decode`]; there are more operations.
    pub fn decode_one(
        body: &'a [u8],
        payload: &'a [u8],
        into: &mut Operation<'a>,
    ) -> Result<RequestHeader, WireError> {
        let mut decoder = FieldDecoder::new(body);
        let mut payload = PayloadReader(FieldDecoder::new(payload));
        let (header, count) = request_header(&mut decoder)?;
        if count > 1 {
            return Err(WireError::OverLimit("operation count"));
        }
        operation_into(&mut decoder, &mut payload, into)?;
        decoder.finish("request body")?;
        payload.0.finish("request payload")?;
        Ok(header)
    }

    /// The record of the first guard of a request, and nothing beyond it: to have the record at
    /// hand when the request is carried out. `None`: there is none, or the request makes no sense
    /// so far.
    #[must_use]
    pub fn first_guarded(body: &'a [u8]) -> Option<GuardedRecordId<'a>> {
        let mut decoder = FieldDecoder::new(body);
        let (header, _) = request_header(&mut decoder).ok()?;
        let mut operation = Operation::default();
        let (guards, _) = operation_head(&mut decoder, &mut operation).ok()?;
        if guards == 0 {
            return None;
        }
        let guard = guard(&mut decoder).ok()?;
        Some(GuardedRecordId {
            dataset: header.dataset,
            partition: operation.partition,
            key: guard.record()?,
            is_there: !matches!(guard, Guard::Absent(_)),
        })
    }
}

/// The record that a guard is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuardedRecordId<'a> {
    /// Its dataset.
    pub dataset: DatasetId,
    /// Its partition.
    pub partition: PartitionId,
    /// Its key.
    pub key: &'a [u8],
    /// The guard does not say that there is none.
    pub is_there: bool,
}

/// The header, and how many operations follow.
fn request_header(decoder: &mut FieldDecoder<'_>) -> Result<(RequestHeader, usize), WireError> {
    let header = RequestHeader {
        dataset: DatasetId(decoder.u32("dataset")?),
        map_epoch: Epoch(decoder.u64("map epoch")?),
        name_space_generation: Epoch(decoder.u64("name-space generation")?),
        answered_below: Seq(decoder.u64("answered below")?),
        is_retry: flag(decoder, "retry flag")?,
    };
    let count = usize::from(decoder.u16("operation count")?);
    if count == 0 || count > OPERATIONS_MAX {
        return Err(WireError::OverLimit("operation count"));
    }
    Ok((header, count))
}

pub(crate) fn operation<'a>(
    decoder: &mut FieldDecoder<'a>,
    payload: &mut PayloadReader<'a>,
) -> Result<Operation<'a>, WireError> {
    let mut operation = Operation::default();
    operation_into(decoder, payload, &mut operation)?;
    Ok(operation)
}

/// The head of an operation, before the guards: how many guards there are, and how many actions.
fn operation_head(
    decoder: &mut FieldDecoder<'_>,
    operation: &mut Operation<'_>,
) -> Result<(usize, usize), WireError> {
    operation.partition = PartitionId(decoder.u32("partition")?);
    operation.seq = Seq(decoder.u64("sequence")?);
    operation.reveal_len = decoder.u32("reveal length")?;
    let guards = usize::from(decoder.u8("guard count")?);
    let actions = usize::from(decoder.u8("action count")?);
    if guards > ACTIONS_MAX || actions > ACTIONS_MAX || actions == 0 {
        return Err(WireError::OverLimit("guard or action count"));
    }
    Ok((guards, actions))
}

fn operation_into<'a>(
    decoder: &mut FieldDecoder<'a>,
    payload: &mut PayloadReader<'a>,
    operation: &mut Operation<'a>,
) -> Result<(), WireError> {
    let (guards, actions) = operation_head(decoder, operation)?;
    for _ in 0..guards {
        operation.guards.push(guard(decoder)?);
    }
    for _ in 0..actions {
        operation.actions.push(action(decoder, payload)?);
    }
    if operation.is_mutation() != (operation.seq != Seq(0)) {
        return Err(WireError::Unknown("sequence"));
    }
    Ok(())
}

fn guard<'a>(decoder: &mut FieldDecoder<'a>) -> Result<Guard<'a>, WireError> {
    Ok(match decoder.u8("guard tag")? {
        tag::GUARD_EXISTS => Guard::Exists(key(decoder)?),
        tag::GUARD_ABSENT => Guard::Absent(key(decoder)?),
        tag::GUARD_VERSION_IS => {
            Guard::VersionIs(key(decoder)?, Version(decoder.u64("guard version")?))
        }
        tag::GUARD_BYTES_ARE => Guard::BytesAre {
            key: key(decoder)?,
            offset: decoder.u32("guard offset")?,
            bytes: decoder.short_bytes(KEY_LEN_MAX, "guard bytes")?,
        },
        tag::GUARD_LEN_AT_MOST => Guard::LenAtMost(key(decoder)?, decoder.u32("guard length")?),
        tag::GUARD_PREFIX_EMPTY => Guard::PrefixEmpty(key(decoder)?),
        _ => return Err(WireError::Unknown("guard tag")),
    })
}

fn holders<'a>(decoder: &mut FieldDecoder<'a>) -> Result<&'a [u8], WireError> {
    let len = decoder.u32("holders length")? as usize;
    if len > HOLDERS_LEN_MAX {
        return Err(WireError::OverLimit("holders"));
    }
    decoder.bytes(len, "holders")
}

/// The actions on numbers in a value.
fn number<'a>(tag: u8, decoder: &mut FieldDecoder<'a>) -> Result<Action<'a>, WireError> {
    let (key, offset) = (key(decoder)?, decoder.u32("offset")?);
    Ok(match tag {
        tag::ADD => Action::Add { key, offset, delta: decoder.u64("delta")? },
        tag::MAX => Action::Max { key, offset, value: decoder.u64("value")? },
        _ => {
            let count = decoder.u8("count")?;
            let to = decoder.u64("time")?.cast_signed();
            Action::Advance { key, offset, count, to, slack: decoder.u64("slack")? }
        }
    })
}

fn action<'a>(
    decoder: &mut FieldDecoder<'a>,
    payload: &mut PayloadReader<'a>,
) -> Result<Action<'a>, WireError> {
    Ok(match decoder.u8("action tag")? {
        tag::GET => Action::Get {
            key: key(decoder)?,
            offset: decoder.u32("offset")?,
            len: decoder.u32("length")?,
        },
        tag::PUT => {
            Action::Put { key: key(decoder)?, data: data(decoder, payload, RECORD_LEN_MAX)? }
        }
        tag::DELETE => Action::Delete { key: key(decoder)? },
        tag::DELETE_PREFIX => {
            Action::DeletePrefix { prefix: key(decoder)?, limit: decoder.u32("limit")? }
        }
        tag::WRITE => Action::Write {
            key: key(decoder)?,
            offset: decoder.u32("offset")?,
            data: data(decoder, payload, RECORD_LEN_MAX)?,
        },
        tag::APPEND => {
            let key = key(decoder)?;
            let len_max = decoder.u32("length limit")?;
            Action::Append { key, data: data(decoder, payload, RECORD_LEN_MAX)?, len_max }
        }
        tag::TRUNCATE => Action::Truncate { key: key(decoder)?, len: decoder.u32("length")? },
        tag @ (tag::ADD | tag::MAX | tag::ADVANCE) => number(tag, decoder)?,
        tag::LIST => Action::List {
            prefix: key(decoder)?,
            after: key(decoder)?,
            limit: decoder.u32("limit")?.min(LIST_ENTRIES_MAX),
            reverse: flag(decoder, "reverse flag")?,
            value_len_max: decoder.u32("value length limit")?,
        },
        tag::PUNCH => Action::Punch {
            key: key(decoder)?,
            offset: decoder.u32("offset")?,
            len: decoder.u32("length")?,
        },
        tag::EXTENTS => Action::Extents {
            prefix: key(decoder)?,
            after: key(decoder)?,
            limit: decoder.u32("limit")?.min(LIST_ENTRIES_MAX),
        },
        tag::RAISE_LEASE => {
            Action::RaiseLease { epoch: Epoch(decoder.u64("name-space generation")?) }
        }
        tag::LEASE => Action::Lease { key: key(decoder)?, term_us: decoder.u32("lease term")? },
        tag::HOLD => Action::Hold { key: key(decoder)?, token: decoder.u64("token")? },
        tag::RELEASE => Action::Release { token: decoder.u64("token")? },
        tag::LOCATE => Action::Locate { token: decoder.u64("token")? },
        tag::DETACH => Action::Detach { key: key(decoder)?, to: key(decoder)? },
        tag::HOLDERS => Action::Holders { key: key(decoder)? },
        tag::SET_HOLDERS => Action::SetHolders { key: key(decoder)?, holders: holders(decoder)? },
        tag::MOVE_HOLDS => Action::MoveHolds { from: key(decoder)?, to: key(decoder)? },
        _ => return Err(WireError::Unknown("action tag")),
    })
}

impl<'a> OperationReply<'a> {
    /// Reads a reply.
    ///
    /// # Errors
    /// [`WireError`]: the peer does not speak the protocol and is to be disconnected.
    pub fn decode(body: &'a [u8], payload: &'a [u8]) -> Result<Self, WireError> {
        let ReplyReader { mut decoder, header, count } = ReplyReader::new(body)?;
        let mut payload = PayloadReader(FieldDecoder::new(payload));
        let mut outcomes = Vec::with_capacity(count.min(body.len() / 2));
        for _ in 0..count {
            outcomes.push(outcome(&mut decoder, &mut payload)?);
        }
        let grants = blocks(&mut decoder)?;
        decoder.finish("reply body")?;
        payload.0.finish("reply payload")?;
        Ok(Self { header, outcomes, grants })
    }
}

fn outcome<'a>(
    decoder: &mut FieldDecoder<'a>,
    payload: &mut PayloadReader<'a>,
) -> Result<OperationOutcome<'a>, WireError> {
    match decoder.u8("outcome tag")? {
        tag::DONE => {
            let count = usize::from(decoder.u8("result count")?);
            let mut results = List::new();
            for _ in 0..count {
                results.push(result(decoder, payload)?);
            }
            Ok(OperationOutcome::Done(results))
        }
        tag::FAILED => Ok(OperationOutcome::Failed(failure(decoder)?)),
        _ => Err(WireError::Unknown("outcome tag")),
    }
}

pub(super) fn failure<'a>(
    decoder: &mut FieldDecoder<'a>,
) -> Result<OperationFailure<'a>, WireError> {
    let code = decoder.u8("failure kind")?;
    let kind = ErrorKind::from_code(code).ok_or(WireError::Unknown("failure kind"))?;
    let index = decoder.u16("failure index")?;
    let current = if flag(decoder, "failure record")? {
        let version = Version(decoder.u64("version")?);
        let total_len = decoder.u32("value length")?;
        Some((version, total_len, decoder.short_bytes(usize::from(u16::MAX), "value")?))
    } else {
        None
    };
    Ok(OperationFailure { kind, index, current })
}

fn result<'a>(
    decoder: &mut FieldDecoder<'a>,
    payload: &mut PayloadReader<'a>,
) -> Result<ActionResult<'a>, WireError> {
    Ok(match decoder.u8("result tag")? {
        tag::VALUE => {
            let version = Version(decoder.u64("version")?);
            let total_len = decoder.u32("value length")?;
            let mut pieces = List::new();
            for _ in 0..decoder.u16("piece count")? {
                pieces.push(data(decoder, payload, PAYLOAD_LEN_MAX)?);
            }
            ActionResult::Value { version, total_len, data: pieces }
        }
        tag::WRITTEN => ActionResult::Written {
            version: Version(decoder.u64("version")?),
            offset: decoder.u32("offset")?,
            total_len: decoder.u32("value length")?,
            created: flag(decoder, "created flag")?,
        },
        tag::DELETED => ActionResult::Deleted { existed: flag(decoder, "existed flag")? },
        tag::NUMBER => ActionResult::Number(decoder.u64("number")?),
        tag::LISTING => ActionResult::Listing(listing(decoder)?),
        _ => return Err(WireError::Unknown("result tag")),
    })
}

pub(super) fn listing<'a>(decoder: &mut FieldDecoder<'a>) -> Result<ListingEntries<'a>, WireError> {
    let complete = flag(decoder, "complete flag")?;
    let count = decoder.u32("entry count")?;
    let len = decoder.u32("entries length")? as usize;
    ListingEntries::checked(complete, count, decoder.bytes(len, "entries")?)
}
