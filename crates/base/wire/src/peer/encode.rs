//! Encoding of messages between members. The layout is read back by `decode.rs`; keep the two side by side.

use samite_types::Position;

use super::{
    EntryEvent, HEAD_LEN, LogPoint, PartitionLogEntry, PeerEnvelope, PeerMessage, RecordCopy,
};
use samite_types::Version;

use crate::codec::PutFields;
use crate::op::{Action, Operation, ValueData, operation_flat};

pub(super) mod tag {
    pub const ENTRY: u8 = 1;
    pub const APPLIED: u8 = 2;
    pub const GAP: u8 = 3;
    pub const UNFIT: u8 = 4;
    pub const STALE: u8 = 5;
    pub const BEGIN: u8 = 6;
    pub const COMPARE: u8 = 7;
    pub const RECORDS: u8 = 8;
    pub const STATE: u8 = 9;
    pub const DONE: u8 = 10;
    pub const LOST: u8 = 11;
    pub const DIFFERS: u8 = 12;
    pub const ASK_READS: u8 = 13;
    pub const LEND_READS: u8 = 14;
    pub const FETCH: u8 = 15;
    pub const FETCHED: u8 = 16;
    pub const ASK_TAIL: u8 = 17;
    pub const TAIL: u8 = 18;
    pub const TAIL_END: u8 = 19;
    pub const ASK_ROOM: u8 = 20;

    pub const OPENED: u8 = 1;
    pub const OPERATION: u8 = 2;
    pub const REFUSED: u8 = 3;
    pub const GONE: u8 = 4;
    pub const LENDING: u8 = 5;
    pub const DIGEST: u8 = 6;
    pub const RANGE: u8 = 7;

    pub const RECORD_GONE: u8 = 0;
    pub const RECORD_KEPT: u8 = 1;
    pub const INLINE: u8 = 1;
    pub const ZEROS: u8 = 2;
}

impl PeerEnvelope {
    /// The head of a message whose body and payload have these lengths.
    #[must_use]
    pub fn encode(&self, body_len: usize, payload_len: usize) -> [u8; HEAD_LEN] {
        let mut head = [0; HEAD_LEN];
        let numbers = [
            body_len as u32,
            payload_len as u32,
            self.dataset.get(),
            self.partition.get(),
            self.from.get(),
            self.to.get(),
            self.term.get(),
        ];
        for (place, number) in head.chunks_exact_mut(4).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        head[28..].copy_from_slice(&self.epoch.get().to_le_bytes());
        head
    }
}

impl<'a> PeerMessage<'a> {
    /// Appends the body, from the tag on. The inline data is not in it: see [`PeerMessage::payload`].
    pub fn encode(&self, body: &mut Vec<u8>) {
        match self {
            Self::Entry(entry) => put_entry(body, tag::ENTRY, entry),
            Self::Tail(entry) => put_entry(body, tag::TAIL, entry),
            Self::AskTail { have } => put_position(body, tag::ASK_TAIL, *have),
            Self::TailEnd { upto } => put_position(body, tag::TAIL_END, *upto),
            Self::Applied { position, here, room, has_reserve, answers } => {
                put_applied(body, [*position, *here], *room, (*has_reserve, *answers));
            }
            Self::AskRoom { number, position, claim, need, wanted } => {
                put_position(body, tag::ASK_ROOM, *position);
                put_question(body, *number, [*claim, *need, *wanted]);
            }
            Self::Gap { have } => put_position(body, tag::GAP, *have),
            Self::Unfit { position, kind } => {
                body.put_u8(tag::UNFIT);
                body.put_u64(position.get());
                body.put_u8(kind.code());
            }
            Self::Differs { after, upto } => {
                body.put_u8(tag::DIFFERS);
                body.put_short_bytes(after);
                body.put_short_bytes(upto);
            }
            Self::AskReads { asked, position } => {
                put_reads(body, tag::ASK_READS, *asked, *position);
            }
            Self::LendReads { asked, position } => {
                put_reads(body, tag::LEND_READS, *asked, *position);
            }
            Self::Fetch { key } => {
                body.put_u8(tag::FETCH);
                body.put_short_bytes(key);
            }
            Self::Fetched { record } => {
                body.put_u8(tag::FETCHED);
                put_record(body, record);
            }
            Self::Stale => body.put_u8(tag::STALE),
            Self::Begin { attempt } => {
                body.put_u8(tag::BEGIN);
                body.put_u32(*attempt);
            }
            Self::Compare { attempt, step, after, upto, records } => {
                put_step(body, tag::COMPARE, *attempt, *step);
                put_versions(body, (after, upto), records);
            }
            Self::Records { attempt, step, records } => {
                put_step(body, tag::RECORDS, *attempt, *step);
                put_records(body, records);
            }
            Self::State { attempt, step, total_len, offset, bytes } => {
                put_step(body, tag::STATE, *attempt, *step);
                body.put_u32(*total_len);
                body.put_u32(*offset);
                body.put_u32(bytes.len() as u32);
            }
            Self::Done { attempt, step, again, is_busy, wanted } => {
                put_step(body, tag::DONE, *attempt, *step);
                body.put_u8(u8::from(*again));
                body.put_u8(u8::from(*is_busy));
                body.put_short_bytes(wanted);
            }
            Self::Lost { attempt, kind } => {
                body.put_u8(tag::LOST);
                body.put_u32(*attempt);
                body.put_u8(kind.code());
            }
        }
    }

    /// The body of the [`PeerMessage::Tail`] whose entry is encoded so.
    #[must_use]
    pub fn tail_of(entry: &[u8]) -> Vec<u8> {
        let mut body = Vec::with_capacity(entry.len() + 1);
        body.put_u8(tag::TAIL);
        body.extend_from_slice(entry);
        body
    }

    /// Hands the inline data to `visit`, in order: it is the payload.
    pub fn payload(&self, visit: &mut dyn FnMut(&'a [u8])) {
        match self {
            Self::Entry(entry) | Self::Tail(entry) => entry.payload(visit),
            Self::Records { records, .. } => records_payload(records, visit),
            Self::Fetched { record } => records_payload(std::slice::from_ref(record), visit),
            Self::State { bytes, .. } => visit(bytes),
            _ => {}
        }
    }

    /// Appends the whole message to the body and the payload of a frame.
    pub fn append(&self, envelope: &PeerEnvelope, body: &mut Vec<u8>, payload: &mut Vec<u8>) {
        let (start, payload_start) = (body.len(), payload.len());
        body.extend_from_slice(&[0; HEAD_LEN]);
        self.encode(body);
        self.payload(&mut |piece| payload.extend_from_slice(piece));
        let head = envelope.encode(body.len() - start - HEAD_LEN, payload.len() - payload_start);
        body[start..start + HEAD_LEN].copy_from_slice(&head);
    }
}

impl<'a> PartitionLogEntry<'a> {
    /// Appends the entry alone, as a log may keep it; [`PartitionLogEntry::decode`] reads it.
    pub fn encode(&self, body: &mut Vec<u8>) {
        put_point(body, &self.before);
        put_point(body, &self.after);
        body.put_u32(self.outcome);
        match &self.event {
            EntryEvent::Opened => body.put_u8(tag::OPENED),
            EntryEvent::Applied {
                client,
                answered_below,
                is_retry,
                name_space_generation,
                operation,
            } => {
                body.put_u8(tag::OPERATION);
                body.put_u64(client.get());
                body.put_u64(answered_below.get());
                body.put_u8(u8::from(*is_retry));
                body.put_u64(name_space_generation.get());
                operation_flat(body, operation);
            }
            EntryEvent::Refused { client, answered_below, seq, kind, index } => {
                body.put_u8(tag::REFUSED);
                body.put_u64(client.get());
                body.put_u64(answered_below.get());
                body.put_u64(seq.get());
                body.put_u8(kind.code());
                body.put_u16(*index);
            }
            EntryEvent::Gone { client } => {
                body.put_u8(tag::GONE);
                body.put_u64(client.get());
            }
            EntryEvent::Lending { on } => {
                body.put_u8(tag::LENDING);
                body.put_u8(u8::from(*on));
            }
            EntryEvent::Digest { after, upto, digest } => {
                body.put_u8(tag::DIGEST);
                body.put_short_bytes(after);
                body.put_short_bytes(upto);
                body.put_u64(*digest);
            }
            EntryEvent::Range { after, upto, records } => {
                body.put_u8(tag::RANGE);
                body.put_short_bytes(after);
                body.put_short_bytes(upto);
                put_records(body, records);
            }
        }
    }

    /// Hands the inline data to `visit`, in order.
    pub fn payload(&self, visit: &mut dyn FnMut(&'a [u8])) {
        match &self.event {
            EntryEvent::Applied { operation, .. } => {
                data_of(operation).for_each(|(_, data)| data_payload(data, visit));
            }
            EntryEvent::Range { records, .. } => records_payload(records, visit),
            _ => {}
        }
    }
}

/// The data of an operation that lies in a payload, or in arena blocks, in order: and which action has it.
pub fn data_of<'o, 'a>(
    operation: &'o Operation<'a>,
) -> impl Iterator<Item = (usize, &'o ValueData<'a>)> {
    operation.actions.iter().enumerate().filter_map(|(index, action)| match action {
        Action::Put { data, .. } | Action::Write { data, .. } | Action::Append { data, .. } => {
            (!matches!(data, ValueData::Zeros(_))).then_some((index, data))
        }
        _ => None,
    })
}

fn data_payload<'a>(data: &ValueData<'a>, visit: &mut dyn FnMut(&'a [u8])) {
    if let ValueData::Inline(bytes) = data {
        visit(bytes);
    }
}

fn records_payload<'a>(records: &[RecordCopy<'a>], visit: &mut dyn FnMut(&'a [u8])) {
    let pieces = records.iter().filter_map(|record| record.value.as_ref()).flatten();
    pieces.for_each(|piece| data_payload(piece, visit));
}

fn put_entry(body: &mut Vec<u8>, tag: u8, entry: &PartitionLogEntry<'_>) {
    body.put_u8(tag);
    entry.encode(body);
}

fn put_position(body: &mut Vec<u8>, tag: u8, position: Position) {
    body.put_u8(tag);
    body.put_u64(position.get());
}

fn put_applied(
    body: &mut Vec<u8>,
    positions: [Position; 2],
    room: u64,
    (reserve, answers): (bool, u32),
) {
    body.put_u8(tag::APPLIED);
    positions.into_iter().for_each(|position| body.put_u64(position.get()));
    body.put_u64(room);
    body.put_u8(u8::from(reserve));
    body.put_u32(answers);
}

fn put_question(body: &mut Vec<u8>, number: u32, bytes: [u64; 3]) {
    body.put_u32(number);
    bytes.into_iter().for_each(|bytes| body.put_u64(bytes));
}

fn put_reads(body: &mut Vec<u8>, tag: u8, asked: u64, position: Position) {
    body.put_u8(tag);
    body.put_u64(asked);
    body.put_u64(position.get());
}

fn put_step(body: &mut Vec<u8>, tag: u8, attempt: u32, step: u32) {
    body.put_u8(tag);
    body.put_u32(attempt);
    body.put_u32(step);
}

fn put_versions(body: &mut Vec<u8>, (after, upto): (&[u8], &[u8]), records: &[(&[u8], Version)]) {
    body.put_short_bytes(after);
    body.put_short_bytes(upto);
    body.put_u16(records.len() as u16);
    for (key, version) in records {
        body.put_short_bytes(key);
        body.put_u64(version.get());
    }
}

fn put_point(body: &mut Vec<u8>, point: &LogPoint) {
    body.put_u32(point.term.get());
    body.put_u64(point.position.get());
    body.put_u64(point.version.get());
}

fn put_records(body: &mut Vec<u8>, records: &[RecordCopy<'_>]) {
    body.put_u16(records.len() as u16);
    records.iter().for_each(|record| put_record(body, record));
}

fn put_record(body: &mut Vec<u8>, record: &RecordCopy<'_>) {
    body.put_short_bytes(record.key);
    body.put_u64(record.version.get());
    let Some(pieces) = &record.value else { return body.put_u8(tag::RECORD_GONE) };
    body.put_u8(tag::RECORD_KEPT);
    body.put_u16(pieces.len() as u16);
    for piece in pieces {
        let is_zeros = matches!(piece, ValueData::Zeros(_));
        body.put_u8(if is_zeros { tag::ZEROS } else { tag::INLINE });
        body.put_u32(piece.len() as u32);
    }
}
