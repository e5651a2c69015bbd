//! Decoding of messages between members: every length against its limit, every tag known, nothing left over.

use samite_types::{
    ClientId, DatasetId, Epoch, ErrorKind, PartitionId, Position, Seq, TargetId, Term, Version,
};

use super::encode::{data_of, tag};
use super::{EntryEvent, LogPoint, PartitionLogEntry, PeerEnvelope, PeerMessage, RecordCopy};
use crate::codec::{FieldDecoder, WireError};
use crate::limits::{
    ACTIONS_MAX, BLOCKS_MAX, PARTITION_STATE_LEN_MAX, RECORD_LEN_MAX, RESYNC_RECORDS_MAX,
};
use crate::op::{List, PayloadReader, ValueData, flag, key, operation};

/// Most pieces of one value: data and holes by turns, and a block may have both.
const PIECES_MAX: usize = 4 * BLOCKS_MAX;

/// The messages of a frame, one after the other. After an error nothing more comes: the peer does not speak the protocol.
#[derive(Clone, Debug)]
pub struct PeerMessages<'a> {
    body: FieldDecoder<'a>,
    payload: FieldDecoder<'a>,
    is_over: bool,
}

impl<'a> PeerMessages<'a> {
    /// Messages of a frame.
    #[must_use]
    pub const fn new(body: &'a [u8], payload: &'a [u8]) -> Self {
        Self { body: FieldDecoder::new(body), payload: FieldDecoder::new(payload), is_over: false }
    }

    fn read(&mut self) -> Result<(PeerEnvelope, PeerMessage<'a>), WireError> {
        let body_len = self.body.u32("message length")? as usize;
        let payload_len = self.body.u32("message payload length")? as usize;
        let envelope = PeerEnvelope {
            dataset: DatasetId(self.body.u32("dataset")?),
            partition: PartitionId(self.body.u32("partition")?),
            from: TargetId(self.body.u32("sender")?),
            to: TargetId(self.body.u32("receiver")?),
            term: Term(self.body.u32("term")?),
            epoch: Epoch(self.body.u64("map epoch")?),
        };
        let body = self.body.bytes(body_len, "message")?;
        let payload = self.payload.bytes(payload_len, "message payload")?;
        Ok((envelope, PeerMessage::decode(body, payload)?))
    }
}

impl<'a> Iterator for PeerMessages<'a> {
    type Item = Result<(PeerEnvelope, PeerMessage<'a>), WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        if self.body.rest().is_empty() {
            self.is_over = true;
            let is_clean = self.payload.rest().is_empty();
            return (!is_clean).then_some(Err(WireError::Trailing("messages")));
        }
        let message = self.read();
        self.is_over = message.is_err();
        Some(message)
    }
}

impl<'a> PeerMessage<'a> {
    /// Reads one message, from its tag on.
    ///
    /// # Errors
    /// [`WireError`]: the peer does not speak the protocol and is to be disconnected.
    pub fn decode(body: &'a [u8], payload: &'a [u8]) -> Result<Self, WireError> {
        let mut decoder = FieldDecoder::new(body);
        let mut payload = PayloadReader(FieldDecoder::new(payload));
        let message = message(&mut decoder, &mut payload)?;
        decoder.finish("message")?;
        payload.0.finish("message payload")?;
        Ok(message)
    }
}

impl<'a> PartitionLogEntry<'a> {
    /// Reads an entry alone.
    ///
    /// # Errors
    /// [`WireError`]: it is not what [`PartitionLogEntry::encode`] writes.
    pub fn decode(body: &'a [u8], payload: &'a [u8]) -> Result<Self, WireError> {
        let mut decoder = FieldDecoder::new(body);
        let mut payload = PayloadReader(FieldDecoder::new(payload));
        let entry = entry(&mut decoder, &mut payload)?;
        decoder.finish("entry")?;
        payload.0.finish("entry payload")?;
        Ok(entry)
    }
}

fn applied<'a>(decoder: &mut FieldDecoder<'_>) -> Result<PeerMessage<'a>, WireError> {
    Ok(PeerMessage::Applied {
        position: Position(decoder.u64("position")?),
        here: Position(decoder.u64("position")?),
        room: decoder.u64("room")?,
        has_reserve: decoder.u8("reserve")? != 0,
        answers: decoder.u32("number")?,
    })
}

fn ask_room<'a>(decoder: &mut FieldDecoder<'_>) -> Result<PeerMessage<'a>, WireError> {
    Ok(PeerMessage::AskRoom {
        position: Position(decoder.u64("position")?),
        number: decoder.u32("number")?,
        claim: decoder.u64("room")?,
        need: decoder.u64("room")?,
        wanted: decoder.u64("room")?,
    })
}

fn message<'a>(
    decoder: &mut FieldDecoder<'a>,
    payload: &mut PayloadReader<'a>,
) -> Result<PeerMessage<'a>, WireError> {
    Ok(match decoder.u8("message tag")? {
        tag::ENTRY => PeerMessage::Entry(entry(decoder, payload)?),
        tag::TAIL => PeerMessage::Tail(entry(decoder, payload)?),
        tag::ASK_TAIL => PeerMessage::AskTail { have: Position(decoder.u64("position")?) },
        tag::TAIL_END => PeerMessage::TailEnd { upto: Position(decoder.u64("position")?) },
        tag::APPLIED => applied(decoder)?,
        tag::ASK_ROOM => ask_room(decoder)?,
        tag::GAP => PeerMessage::Gap { have: Position(decoder.u64("position")?) },
        tag::UNFIT => {
            let position = Position(decoder.u64("position")?);
            PeerMessage::Unfit { position, kind: kind(decoder)? }
        }
        tag::DIFFERS => PeerMessage::Differs { after: key(decoder)?, upto: key(decoder)? },
        tag::ASK_READS => PeerMessage::AskReads {
            asked: decoder.u64("time")?,
            position: Position(decoder.u64("position")?),
        },
        tag::LEND_READS => PeerMessage::LendReads {
            asked: decoder.u64("time")?,
            position: Position(decoder.u64("position")?),
        },
        tag::FETCH => PeerMessage::Fetch { key: some_key(decoder)? },
        tag::FETCHED => PeerMessage::Fetched { record: record(decoder, payload)? },
        tag::STALE => PeerMessage::Stale,
        tag::BEGIN => PeerMessage::Begin { attempt: decoder.u32("attempt")? },
        tag::COMPARE => {
            let (attempt, step) = step(decoder)?;
            let (after, upto) = (key(decoder)?, key(decoder)?);
            let count = record_count(decoder)?;
            // A record is at least 10 bytes: a lying count takes no more memory than the message has.
            let mut records = Vec::with_capacity(count.min(decoder.rest().len() / 10));
            for _ in 0..count {
                records.push((key(decoder)?, Version(decoder.u64("version")?)));
            }
            PeerMessage::Compare { attempt, step, after, upto, records }
        }
        tag::RECORDS => {
            let (attempt, step) = step(decoder)?;
            PeerMessage::Records { attempt, step, records: records(decoder, payload)? }
        }
        tag::STATE => {
            let (attempt, step) = step(decoder)?;
            let total_len = decoder.u32("state length")?;
            let offset = decoder.u32("state offset")?;
            let bytes = payload.take(decoder.u32("state part length")? as usize)?;
            let end = offset as usize + bytes.len();
            if total_len as usize > PARTITION_STATE_LEN_MAX || end > total_len as usize {
                return Err(WireError::OverLimit("state"));
            }
            PeerMessage::State { attempt, step, total_len, offset, bytes }
        }
        tag::DONE => {
            let (attempt, step) = step(decoder)?;
            let again = flag(decoder, "again flag")?;
            let is_busy = flag(decoder, "busy flag")?;
            let wanted = decoder.short_bytes(RESYNC_RECORDS_MAX.div_ceil(8), "wanted")?;
            PeerMessage::Done { attempt, step, again, is_busy, wanted }
        }
        tag::LOST => PeerMessage::Lost { attempt: decoder.u32("attempt")?, kind: kind(decoder)? },
        _ => return Err(WireError::Unknown("message tag")),
    })
}

fn entry<'a>(
    decoder: &mut FieldDecoder<'a>,
    payload: &mut PayloadReader<'a>,
) -> Result<PartitionLogEntry<'a>, WireError> {
    let (before, after) = (point(decoder)?, point(decoder)?);
    if before.position.get().checked_add(1) != Some(after.position.get())
        || before.term > after.term
        || before.version > after.version
    {
        return Err(WireError::Unknown("position"));
    }
    let outcome = decoder.u32("outcome")?;
    let event = event(decoder, payload)?;
    Ok(PartitionLogEntry { before, after, outcome, event })
}

fn event<'a>(
    decoder: &mut FieldDecoder<'a>,
    payload: &mut PayloadReader<'a>,
) -> Result<EntryEvent<'a>, WireError> {
    Ok(match decoder.u8("event tag")? {
        tag::OPENED => EntryEvent::Opened,
        tag::OPERATION => {
            let client = ClientId(decoder.u64("client")?);
            let answered_below = Seq(decoder.u64("answered below")?);
            let is_retry = flag(decoder, "retry flag")?;
            let name_space_generation = Epoch(decoder.u64("name-space generation")?);
            let operation = operation(decoder, payload)?;
            if data_of(&operation).any(|(_, data)| matches!(data, ValueData::Blocks(_))) {
                return Err(WireError::Unknown("data tag"));
            }
            EntryEvent::Applied {
                client,
                answered_below,
                is_retry,
                name_space_generation,
                operation,
            }
        }
        tag::REFUSED => EntryEvent::Refused {
            client: ClientId(decoder.u64("client")?),
            answered_below: Seq(decoder.u64("answered below")?),
            seq: Seq(decoder.u64("sequence")?),
            kind: kind(decoder)?,
            index: index(decoder)?,
        },
        tag::GONE => EntryEvent::Gone { client: ClientId(decoder.u64("client")?) },
        tag::LENDING => EntryEvent::Lending { on: flag(decoder, "lending flag")? },
        tag::DIGEST => EntryEvent::Digest {
            after: key(decoder)?,
            upto: key(decoder)?,
            digest: decoder.u64("digest")?,
        },
        tag::RANGE => EntryEvent::Range {
            after: key(decoder)?,
            upto: key(decoder)?,
            records: records(decoder, payload)?,
        },
        _ => return Err(WireError::Unknown("event tag")),
    })
}

fn records<'a>(
    decoder: &mut FieldDecoder<'a>,
    payload: &mut PayloadReader<'a>,
) -> Result<Vec<RecordCopy<'a>>, WireError> {
    let count = record_count(decoder)?;
    // A record is at least 11 bytes.
    let mut records = Vec::with_capacity(count.min(decoder.rest().len() / 11));
    for _ in 0..count {
        records.push(record(decoder, payload)?);
    }
    Ok(records)
}

fn record<'a>(
    decoder: &mut FieldDecoder<'a>,
    payload: &mut PayloadReader<'a>,
) -> Result<RecordCopy<'a>, WireError> {
    let key = some_key(decoder)?;
    let version = Version(decoder.u64("version")?);
    let value = match decoder.u8("record tag")? {
        tag::RECORD_GONE => None,
        tag::RECORD_KEPT => Some(pieces(decoder, payload)?),
        _ => return Err(WireError::Unknown("record tag")),
    };
    Ok(RecordCopy { key, version, value })
}

/// The key of a record, which is not empty.
fn some_key<'a>(decoder: &mut FieldDecoder<'a>) -> Result<&'a [u8], WireError> {
    let key = key(decoder)?;
    if key.is_empty() { Err(WireError::Unknown("key")) } else { Ok(key) }
}

fn pieces<'a>(
    decoder: &mut FieldDecoder<'a>,
    payload: &mut PayloadReader<'a>,
) -> Result<List<ValueData<'a>, 1>, WireError> {
    let count = usize::from(decoder.u16("piece count")?);
    if count > PIECES_MAX {
        return Err(WireError::OverLimit("piece count"));
    }
    let (mut pieces, mut total) = (List::new(), 0);
    for _ in 0..count {
        let tag = decoder.u8("piece tag")?;
        let len = decoder.u32("piece length")?;
        total += len as usize;
        if total > RECORD_LEN_MAX {
            return Err(WireError::OverLimit("record"));
        }
        pieces.push(match tag {
            tag::INLINE => ValueData::Inline(payload.take(len as usize)?),
            tag::ZEROS => ValueData::Zeros(len),
            _ => return Err(WireError::Unknown("piece tag")),
        });
    }
    Ok(pieces)
}

fn record_count(decoder: &mut FieldDecoder<'_>) -> Result<usize, WireError> {
    let count = usize::from(decoder.u16("record count")?);
    if count > RESYNC_RECORDS_MAX {
        return Err(WireError::OverLimit("record count"));
    }
    Ok(count)
}

fn step(decoder: &mut FieldDecoder<'_>) -> Result<(u32, u32), WireError> {
    Ok((decoder.u32("attempt")?, decoder.u32("step")?))
}

fn point(decoder: &mut FieldDecoder<'_>) -> Result<LogPoint, WireError> {
    Ok(LogPoint {
        term: Term(decoder.u32("term")?),
        position: Position(decoder.u64("position")?),
        version: Version(decoder.u64("version")?),
    })
}

fn kind(decoder: &mut FieldDecoder<'_>) -> Result<ErrorKind, WireError> {
    ErrorKind::from_code(decoder.u8("error kind")?).ok_or(WireError::Unknown("error kind"))
}

fn index(decoder: &mut FieldDecoder<'_>) -> Result<u16, WireError> {
    let index = decoder.u16("index")?;
    if usize::from(index) > ACTIONS_MAX {
        return Err(WireError::OverLimit("index"));
    }
    Ok(index)
}
