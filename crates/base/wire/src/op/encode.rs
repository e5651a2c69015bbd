//! Encoding of requests and replies. The layout is read back by `decode.rs`; keep the two side by side.

use samite_types::{Epoch, ErrorKind, Seq, Version};

use super::{
    Action, BlockRef, Guard, List, Operation, OperationFailure, ReplyHeader, RequestHeader,
    ValueData,
};
use crate::codec::PutFields;

pub(super) mod tag {
    pub const GUARD_EXISTS: u8 = 1;
    pub const GUARD_ABSENT: u8 = 2;
    pub const GUARD_VERSION_IS: u8 = 3;
    pub const GUARD_BYTES_ARE: u8 = 4;
    pub const GUARD_LEN_AT_MOST: u8 = 5;
    pub const GUARD_PREFIX_EMPTY: u8 = 6;

    pub const GET: u8 = 1;
    pub const PUT: u8 = 2;
    pub const DELETE: u8 = 3;
    pub const DELETE_PREFIX: u8 = 4;
    pub const WRITE: u8 = 5;
    pub const APPEND: u8 = 6;
    pub const TRUNCATE: u8 = 7;
    pub const ADD: u8 = 8;
    pub const MAX: u8 = 9;
    pub const LIST: u8 = 10;
    pub const RAISE_LEASE: u8 = 11;
    pub const HOLD: u8 = 12;
    pub const RELEASE: u8 = 13;
    pub const DETACH: u8 = 14;
    pub const LEASE: u8 = 15;
    pub const LOCATE: u8 = 16;
    pub const HOLDERS: u8 = 17;
    pub const SET_HOLDERS: u8 = 18;
    pub const MOVE_HOLDS: u8 = 19;

    pub const PUNCH: u8 = 30;
    pub const EXTENTS: u8 = 31;
    pub const ADVANCE: u8 = 32;

    pub const VALUE: u8 = 1;
    pub const WRITTEN: u8 = 2;
    pub const DELETED: u8 = 3;
    pub const NUMBER: u8 = 4;
    pub const LISTING: u8 = 5;

    pub const INLINE: u8 = 1;
    pub const BLOCKS: u8 = 2;
    pub const ZEROS: u8 = 3;
    pub const LEFT: u8 = 4;

    pub const DONE: u8 = 0;
    pub const FAILED: u8 = 1;
}

/// Bytes of one block reference.
pub(super) const BLOCK_REF_LEN: usize = 8 + 4 + 4;

fn put_blocks(body: &mut Vec<u8>, blocks: &[BlockRef]) {
    body.put_u16(blocks.len() as u16);
    for block in blocks {
        body.put_u64(block.offset);
        body.put_u32(block.len);
        body.put_u32(block.generation);
    }
}

/// Says in which arena blocks bytes lie, if in any.
type Place<'p, 'a> = dyn FnMut(&'a [u8]) -> Option<List<BlockRef, 16>> + 'p;

/// Builds the body of a request, and the list of slices that make up its payload.
///
/// The caller keeps within [`crate::limits`]; a peer refuses what does not.
#[derive(Debug)]
pub struct RequestEncoder<'a> {
    body: Vec<u8>,
    payload: List<&'a [u8], 4>,
    payload_len: usize,
    count: u16,
    /// All data that has bytes counts as inline, and the caller sees to the payload.
    is_flat: bool,
}

const REQUEST_COUNT_AT: usize = 29;

impl<'a> RequestEncoder<'a> {
    /// Starts a request in `body`, whose old content is dropped and whose memory is used again.
    #[must_use]
    pub fn new(mut body: Vec<u8>, header: &RequestHeader) -> Self {
        body.clear();
        body.put_u32(header.dataset.get());
        body.put_u64(header.map_epoch.get());
        body.put_u64(header.name_space_generation.get());
        body.put_u64(header.answered_below.get());
        body.put_u8(u8::from(header.is_retry));
        debug_assert_eq!(body.len(), REQUEST_COUNT_AT);
        body.put_u16(0);
        Self { body, payload: List::new(), payload_len: 0, count: 0, is_flat: false }
    }

    /// Bytes of body so far.
    #[must_use]
    pub fn body_len(&self) -> usize {
        self.body.len()
    }

    /// Bytes of payload so far.
    #[must_use]
    pub const fn payload_len(&self) -> usize {
        self.payload_len
    }

    /// Operations so far.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.count as usize
    }

    /// Adds one operation.
    pub fn operation(&mut self, operation: &Operation<'a>) {
        self.operation_placed(operation, operation.seq, &mut |_| None);
    }

    /// Adds one operation with `seq` in place of its own number. For each inline data `place` may say that the bytes lie
    /// in these arena blocks; then they do not become part of the payload.
    pub fn operation_placed(
        &mut self,
        operation: &Operation<'a>,
        seq: Seq,
        place: &mut Place<'_, 'a>,
    ) {
        self.count += 1;
        self.body.put_u32(operation.partition.get());
        self.body.put_u64(seq.get());
        self.body.put_u32(operation.reveal_len);
        self.body.put_u8(operation.guards.len() as u8);
        self.body.put_u8(operation.actions.len() as u8);
        for guard in &operation.guards {
            self.guard(guard);
        }
        for action in &operation.actions {
            self.action(action, place);
        }
    }

    fn guard(&mut self, guard: &Guard<'a>) {
        let body = &mut self.body;
        match guard {
            Guard::Exists(key) => {
                body.put_u8(tag::GUARD_EXISTS);
                body.put_short_bytes(key);
            }
            Guard::Absent(key) => {
                body.put_u8(tag::GUARD_ABSENT);
                body.put_short_bytes(key);
            }
            Guard::VersionIs(key, version) => {
                body.put_u8(tag::GUARD_VERSION_IS);
                body.put_short_bytes(key);
                body.put_u64(version.get());
            }
            Guard::BytesAre { key, offset, bytes } => {
                body.put_u8(tag::GUARD_BYTES_ARE);
                body.put_short_bytes(key);
                body.put_u32(*offset);
                body.put_short_bytes(bytes);
            }
            Guard::LenAtMost(key, len) => {
                body.put_u8(tag::GUARD_LEN_AT_MOST);
                body.put_short_bytes(key);
                body.put_u32(*len);
            }
            Guard::PrefixEmpty(prefix) => {
                body.put_u8(tag::GUARD_PREFIX_EMPTY);
                body.put_short_bytes(prefix);
            }
        }
    }

    fn action(&mut self, action: &Action<'a>, place: &mut Place<'_, 'a>) {
        match action {
            Action::Get { key, offset, len } => {
                self.head(tag::GET, key);
                self.body.put_u32(*offset);
                self.body.put_u32(*len);
            }
            Action::Put { key, data } => {
                self.head(tag::PUT, key);
                self.data(data, place);
            }
            Action::Delete { key } => self.head(tag::DELETE, key),
            Action::DeletePrefix { prefix, limit } => {
                self.head(tag::DELETE_PREFIX, prefix);
                self.body.put_u32(*limit);
            }
            Action::Write { key, offset, data } => {
                self.head(tag::WRITE, key);
                self.body.put_u32(*offset);
                self.data(data, place);
            }
            Action::Append { key, data, len_max } => {
                self.head(tag::APPEND, key);
                self.body.put_u32(*len_max);
                self.data(data, place);
            }
            Action::Truncate { key, len } => {
                self.head(tag::TRUNCATE, key);
                self.body.put_u32(*len);
            }
            Action::Add { key, offset, delta } => self.number(tag::ADD, key, *offset, *delta),
            Action::Max { key, offset, value } => self.number(tag::MAX, key, *offset, *value),
            Action::Advance { key, offset, count, to, slack } => {
                self.head(tag::ADVANCE, key);
                self.body.put_u32(*offset);
                self.body.put_u8(*count);
                self.body.put_u64(to.cast_unsigned());
                self.body.put_u64(*slack);
            }
            Action::List { prefix, after, limit, reverse, value_len_max } => {
                self.head(tag::LIST, prefix);
                self.body.put_short_bytes(after);
                self.body.put_u32(*limit);
                self.body.put_u8(u8::from(*reverse));
                self.body.put_u32(*value_len_max);
            }
            Action::Punch { key, offset, len } => {
                self.head(tag::PUNCH, key);
                self.body.put_u32(*offset);
                self.body.put_u32(*len);
            }
            Action::Extents { prefix, after, limit } => {
                self.head(tag::EXTENTS, prefix);
                self.body.put_short_bytes(after);
                self.body.put_u32(*limit);
            }
            Action::RaiseLease { .. }
            | Action::Lease { .. }
            | Action::Hold { .. }
            | Action::Release { .. }
            | Action::Locate { .. }
            | Action::Detach { .. }
            | Action::Holders { .. }
            | Action::SetHolders { .. }
            | Action::MoveHolds { .. } => self.promise(action),
        }
    }

    /// The actions that are about delegations and open references.
    fn promise(&mut self, action: &Action<'a>) {
        match action {
            Action::RaiseLease { epoch } => {
                self.body.put_u8(tag::RAISE_LEASE);
                self.body.put_u64(epoch.get());
            }
            Action::Lease { key, term_us } => {
                self.head(tag::LEASE, key);
                self.body.put_u32(*term_us);
            }
            Action::Hold { key, token } => {
                self.head(tag::HOLD, key);
                self.body.put_u64(*token);
            }
            Action::Release { token } => self.token(tag::RELEASE, *token),
            Action::Locate { token } => self.token(tag::LOCATE, *token),
            Action::Detach { key, to } => self.pair(tag::DETACH, key, to),
            Action::Holders { key } => self.head(tag::HOLDERS, key),
            Action::SetHolders { key, holders } => {
                self.head(tag::SET_HOLDERS, key);
                self.body.put_u32(holders.len() as u32);
                self.body.extend_from_slice(holders);
            }
            Action::MoveHolds { from, to } => self.pair(tag::MOVE_HOLDS, from, to),
            Action::Get { .. }
            | Action::Put { .. }
            | Action::Delete { .. }
            | Action::DeletePrefix { .. }
            | Action::Write { .. }
            | Action::Append { .. }
            | Action::Truncate { .. }
            | Action::Add { .. }
            | Action::Max { .. }
            | Action::Advance { .. }
            | Action::List { .. }
            | Action::Punch { .. }
            | Action::Extents { .. } => {}
        }
    }

    fn token(&mut self, tag: u8, token: u64) {
        self.body.put_u8(tag);
        self.body.put_u64(token);
    }

    fn pair(&mut self, tag: u8, key: &[u8], other: &[u8]) {
        self.head(tag, key);
        self.body.put_short_bytes(other);
    }

    fn number(&mut self, tag: u8, key: &[u8], offset: u32, number: u64) {
        self.head(tag, key);
        self.body.put_u32(offset);
        self.body.put_u64(number);
    }

    fn head(&mut self, tag: u8, key: &[u8]) {
        self.body.put_u8(tag);
        self.body.put_short_bytes(key);
    }

    fn data(&mut self, data: &ValueData<'a>, place: &mut Place<'_, 'a>) {
        match data {
            ValueData::Inline(_) | ValueData::Blocks(_) if self.is_flat => {
                self.body.put_u8(tag::INLINE);
                self.body.put_u32(data.len() as u32);
            }
            ValueData::Inline(bytes) => {
                if let Some(blocks) = place(bytes) {
                    self.body.put_u8(tag::BLOCKS);
                    put_blocks(&mut self.body, &blocks);
                    return;
                }
                self.body.put_u8(tag::INLINE);
                self.body.put_u32(bytes.len() as u32);
                self.payload_len += bytes.len();
                if !bytes.is_empty() {
                    self.payload.push(bytes);
                }
            }
            ValueData::Blocks(blocks) => {
                self.body.put_u8(tag::BLOCKS);
                put_blocks(&mut self.body, blocks);
            }
            ValueData::Zeros(len) => {
                self.body.put_u8(tag::ZEROS);
                self.body.put_u32(*len);
            }
        }
    }

    /// The finished body, and the payload as the slices it is made of.
    #[must_use]
    pub fn finish(mut self) -> (Vec<u8>, List<&'a [u8], 4>) {
        self.body[REQUEST_COUNT_AT..REQUEST_COUNT_AT + 2]
            .copy_from_slice(&self.count.to_le_bytes());
        (self.body, self.payload)
    }
}

/// Appends one operation to `body`. Whether its data lies in the frame or in arena blocks, it is written as inline: the caller puts the
/// bytes into the payload, in order.
pub(crate) fn operation_flat(body: &mut Vec<u8>, operation: &Operation<'_>) {
    let mut encoder = RequestEncoder {
        body: std::mem::take(body),
        payload: List::new(),
        payload_len: 0,
        count: 0,
        is_flat: true,
    };
    encoder.operation(operation);
    *body = encoder.body;
}

/// Builds the body of a reply. The payload's bytes stay with the caller, who sends them, in the order of the
/// `inline` lengths it gave, behind the body.
#[derive(Debug)]
pub struct ReplyEncoder {
    body: Vec<u8>,
    count: u16,
}

const REPLY_LEASE_AT: usize = 9;
const REPLY_COUNT_AT: usize = 17;

impl ReplyEncoder {
    /// Starts a reply in `body`, whose old content is dropped and whose memory is used again.
    #[must_use]
    pub fn new(mut body: Vec<u8>, header: &ReplyHeader) -> Self {
        body.clear();
        body.put_u8(header.refused.map_or(0, ErrorKind::code));
        body.put_u64(header.map_epoch.get());
        body.put_u64(header.name_space_generation.get());
        debug_assert_eq!(body.len(), REPLY_COUNT_AT);
        body.put_u16(0);
        Self { body, count: 0 }
    }

    /// Changes the name-space generation that the header gave, now that the operations have run.
    pub fn set_name_space_generation(&mut self, epoch: Epoch) {
        self.body[REPLY_LEASE_AT..REPLY_COUNT_AT].copy_from_slice(&epoch.get().to_le_bytes());
    }

    /// Bytes of body so far; a listing keeps it within [`crate::limits::BODY_LEN_MAX`].
    #[must_use]
    pub fn body_len(&self) -> usize {
        self.body.len()
    }

    /// Begins the outcome of an operation that took effect; exactly `results` results follow.
    pub fn done(&mut self, results: usize) {
        self.count += 1;
        self.body.put_u8(tag::DONE);
        self.body.put_u8(results as u8);
    }

    /// The outcome of an operation that had no effect.
    pub fn failed(&mut self, failure: &OperationFailure<'_>) {
        self.count += 1;
        self.body.put_u8(tag::FAILED);
        self.body.put_u8(failure.kind.code());
        self.body.put_u16(failure.index);
        match failure.current {
            None => self.body.put_u8(0),
            Some((version, total_len, bytes)) => {
                self.body.put_u8(1);
                self.body.put_u64(version.get());
                self.body.put_u32(total_len);
                self.body.put_short_bytes(bytes);
            }
        }
    }

    /// Begins a [`super::ActionResult::Value`]; exactly `pieces` pieces follow.
    pub fn value(&mut self, version: Version, total_len: u32, pieces: usize) {
        self.body.put_u8(tag::VALUE);
        self.body.put_u64(version.get());
        self.body.put_u32(total_len);
        self.body.put_u16(pieces as u16);
    }

    /// One piece of a value: `len` bytes that the caller adds to the payload.
    pub fn inline(&mut self, len: usize) {
        self.body.put_u8(tag::INLINE);
        self.body.put_u32(len as u32);
    }

    /// One piece of a value: bytes in the shared arena.
    pub fn blocks(&mut self, blocks: &[BlockRef]) {
        self.body.put_u8(tag::BLOCKS);
        put_blocks(&mut self.body, blocks);
    }

    /// One piece of a value: zeros.
    pub fn zeros(&mut self, len: u32) {
        self.body.put_u8(tag::ZEROS);
        self.body.put_u32(len);
    }

    /// A [`super::ActionResult::Written`].
    pub fn written(&mut self, version: Version, offset: u32, total_len: u32, created: bool) {
        self.body.put_u8(tag::WRITTEN);
        self.body.put_u64(version.get());
        self.body.put_u32(offset);
        self.body.put_u32(total_len);
        self.body.put_u8(u8::from(created));
    }

    /// A [`super::ActionResult::Deleted`].
    pub fn deleted(&mut self, existed: bool) {
        self.body.put_u8(tag::DELETED);
        self.body.put_u8(u8::from(existed));
    }

    /// A [`super::ActionResult::Number`].
    pub fn number(&mut self, value: u64) {
        self.body.put_u8(tag::NUMBER);
        self.body.put_u64(value);
    }

    /// A [`super::ActionResult::Listing`] from entries that [`encode_list_entry`](Self::encode_list_entry) wrote.
    pub fn listing(&mut self, complete: bool, count: u32, entries: &[u8]) {
        self.body.put_u8(tag::LISTING);
        self.body.put_u8(u8::from(complete));
        self.body.put_u32(count);
        self.body.put_u32(entries.len() as u32);
        self.body.extend_from_slice(entries);
    }

    /// Appends one listing entry with the first bytes of its value to `entries`.
    pub fn encode_list_entry(
        entries: &mut Vec<u8>,
        key: &[u8],
        version: Version,
        total_len: u32,
        value: &[u8],
    ) {
        Self::encode_entry_head(entries, key, version, total_len);
        entries.put_u8(tag::INLINE);
        entries.put_u32(value.len() as u32);
        entries.extend_from_slice(value);
    }

    /// The same with references to its whole value.
    pub fn encode_referring_entry(
        entries: &mut Vec<u8>,
        key: &[u8],
        version: Version,
        total_len: u32,
        blocks: &[BlockRef],
    ) {
        Self::encode_entry_head(entries, key, version, total_len);
        entries.put_u8(tag::BLOCKS);
        put_blocks(entries, blocks);
    }

    /// The same without its value, which was asked for and has no room.
    pub fn encode_left_entry(entries: &mut Vec<u8>, key: &[u8], version: Version, total_len: u32) {
        Self::encode_entry_head(entries, key, version, total_len);
        entries.put_u8(tag::LEFT);
    }

    fn encode_entry_head(entries: &mut Vec<u8>, key: &[u8], version: Version, total_len: u32) {
        entries.put_short_bytes(key);
        entries.put_u64(version.get());
        entries.put_u32(total_len);
    }

    /// The finished body, with newly granted blocks at its end.
    #[must_use]
    pub fn finish(mut self, grants: &[BlockRef]) -> Vec<u8> {
        self.body[REPLY_COUNT_AT..REPLY_COUNT_AT + 2].copy_from_slice(&self.count.to_le_bytes());
        put_blocks(&mut self.body, grants);
        self.body
    }
}
