//! Strategies for messages.
//!
//! Messages borrow their bytes; here the bytes are leaked, a few KiB for each case, so that a message is a plain value.
//! (A message inside a `SmallVec` cannot shrink its lifetime, so comparing two needs the same one for both.)

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use samite_types::{DatasetId, Epoch, ErrorKind, PartitionId, Seq, Version};
use samite_wire::limits::{BLOCK_LEN, KEY_LEN_MAX};
use samite_wire::op::{
    Action, BlockRef, Guard, Operation, ReplyEncoder, ReplyHeader, RequestEncoder, RequestHeader,
    ValueData,
};

pub type Bytes = &'static [u8];

pub fn leak(bytes: Vec<u8>) -> Bytes {
    Vec::leak(bytes)
}

fn bytes(len_max: usize) -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..=len_max).prop_map(leak)
}

pub fn key() -> impl Strategy<Value = Bytes> {
    prop_oneof![
        8 => bytes(24),
        1 => Just(leak(vec![0xff; KEY_LEN_MAX])),
        1 => Just(leak(Vec::new())),
    ]
}

pub fn block() -> impl Strategy<Value = BlockRef> {
    (any::<u64>(), 0..=BLOCK_LEN as u32, any::<u32>())
        .prop_map(|(offset, len, generation)| BlockRef { offset, len, generation })
}

pub fn data() -> impl Strategy<Value = ValueData<'static>> {
    prop_oneof![
        4 => bytes(200).prop_map(ValueData::Inline),
        1 => vec(block(), 0..6).prop_map(|blocks| ValueData::Blocks(blocks.into())),
        1 => (0..1_u32 << 20).prop_map(ValueData::Zeros),
    ]
}

pub fn guard() -> impl Strategy<Value = Guard<'static>> {
    prop_oneof![
        key().prop_map(Guard::Exists),
        key().prop_map(Guard::Absent),
        (key(), any::<u64>()).prop_map(|(key, version)| Guard::VersionIs(key, Version(version))),
        (key(), any::<u32>(), bytes(40)).prop_map(|(key, offset, bytes)| Guard::BytesAre {
            key,
            offset,
            bytes
        }),
        (key(), any::<u32>()).prop_map(|(key, len)| Guard::LenAtMost(key, len)),
        key().prop_map(Guard::PrefixEmpty),
    ]
}

pub fn action() -> impl Strategy<Value = Action<'static>> {
    prop_oneof![
        (key(), any::<u32>(), any::<u32>()).prop_map(|(key, offset, len)| Action::Get {
            key,
            offset,
            len
        }),
        (key(), data()).prop_map(|(key, data)| Action::Put { key, data }),
        key().prop_map(|key| Action::Delete { key }),
        (key(), any::<u32>()).prop_map(|(prefix, limit)| Action::DeletePrefix { prefix, limit }),
        (key(), any::<u32>(), data()).prop_map(|(key, offset, data)| Action::Write {
            key,
            offset,
            data
        }),
        (key(), data(), any::<u32>()).prop_map(|(key, data, len_max)| Action::Append {
            key,
            data,
            len_max
        }),
        (key(), any::<u32>()).prop_map(|(key, len)| Action::Truncate { key, len }),
        (key(), any::<u32>(), any::<u64>()).prop_map(|(key, offset, delta)| Action::Add {
            key,
            offset,
            delta
        }),
        (key(), any::<u32>(), any::<u64>()).prop_map(|(key, offset, value)| Action::Max {
            key,
            offset,
            value
        }),
        (key(), any::<u32>(), any::<u8>(), any::<i64>(), any::<u64>()).prop_map(
            |(key, offset, count, to, slack)| Action::Advance { key, offset, count, to, slack }
        ),
        (key(), key(), 0..=4096_u32, any::<bool>(), any::<u32>()).prop_map(
            |(prefix, after, limit, reverse, value_len_max)| Action::List {
                prefix,
                after,
                limit,
                reverse,
                value_len_max
            }
        ),
        (key(), any::<u32>(), any::<u32>()).prop_map(|(key, offset, len)| Action::Punch {
            key,
            offset,
            len
        }),
        (key(), key(), 0..=4096_u32).prop_map(|(prefix, after, limit)| Action::Extents {
            prefix,
            after,
            limit
        }),
        any::<u64>().prop_map(|epoch| Action::RaiseLease { epoch: Epoch(epoch) }),
        (key(), any::<u32>()).prop_map(|(key, term_us)| Action::Lease { key, term_us }),
        hold_action(),
    ]
}

fn hold_action() -> impl Strategy<Value = Action<'static>> {
    prop_oneof![
        (key(), any::<u64>()).prop_map(|(key, token)| Action::Hold { key, token }),
        any::<u64>().prop_map(|token| Action::Release { token }),
        any::<u64>().prop_map(|token| Action::Locate { token }),
        (key(), key()).prop_map(|(key, to)| Action::Detach { key, to }),
        key().prop_map(|key| Action::Holders { key }),
        (key(), bytes(100)).prop_map(|(key, holders)| Action::SetHolders { key, holders }),
        (key(), key()).prop_map(|(from, to)| Action::MoveHolds { from, to }),
    ]
}

pub fn operation() -> impl Strategy<Value = Operation<'static>> {
    (any::<u32>(), 1..=u64::MAX, any::<u32>(), vec(guard(), 0..4), vec(action(), 1..4)).prop_map(
        |(partition, seq, reveal_len, guards, actions)| {
            let mut operation = Operation::new(PartitionId(partition), actions).reveal(reveal_len);
            operation.guards = guards.into();
            if operation.is_mutation() {
                operation.seq = Seq(seq);
            }
            operation
        },
    )
}

pub fn request() -> impl Strategy<Value = (RequestHeader, Vec<Operation<'static>>)> {
    let header = (any::<u32>(), any::<u64>(), any::<u64>(), any::<u64>(), any::<bool>()).prop_map(
        |(dataset, map_epoch, name_space_generation, answered_below, is_retry)| RequestHeader {
            dataset: DatasetId(dataset),
            map_epoch: Epoch(map_epoch),
            name_space_generation: Epoch(name_space_generation),
            answered_below: Seq(answered_below),
            is_retry,
        },
    );
    (header, vec(operation(), 1..6))
}

/// Body and payload of a request.
pub fn encode_request(header: &RequestHeader, operations: &[Operation<'_>]) -> (Vec<u8>, Vec<u8>) {
    let mut encoder = RequestEncoder::new(Vec::new(), header);
    for operation in operations {
        encoder.operation(operation);
    }
    let payload_len = encoder.payload_len();
    let (body, payload) = encoder.finish();
    let payload = payload.concat();
    assert_eq!(payload.len(), payload_len);
    (body, payload)
}

/// An entry of a listing: key, version, whole length, value.
pub type Entry = (Bytes, u64, u32, EntryValue);

/// The value of an entry, as a plain value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryValue {
    Bytes(Bytes),
    Blocks(Vec<BlockRef>),
    Left,
}

/// References to a whole value go with its length.
fn entry() -> impl Strategy<Value = Entry> {
    let value = prop_oneof![
        4 => (any::<u32>(), bytes(30)).prop_map(|(len, bytes)| (len, EntryValue::Bytes(bytes))),
        2 => vec(block(), 0..6).prop_map(|blocks| {
            (blocks.iter().map(|block| block.len).sum(), EntryValue::Blocks(blocks))
        }),
        1 => any::<u32>().prop_map(|len| (len, EntryValue::Left)),
    ];
    (key(), any::<u64>(), value).prop_map(|(key, version, (len, value))| (key, version, len, value))
}

/// One result of an action, as a plain value.
#[derive(Clone, Debug)]
pub enum ResultModel {
    Value(u64, u32, Vec<ValueData<'static>>),
    Written(u64, u32, u32, bool),
    Deleted(bool),
    Number(u64),
    Listing(bool, Vec<Entry>),
}

/// One outcome, as a plain value.
#[derive(Clone, Debug)]
pub enum OutcomeModel {
    Done(Vec<ResultModel>),
    Failed(ErrorKind, u16, Option<(Version, u32, Bytes)>),
}

fn result() -> impl Strategy<Value = ResultModel> {
    prop_oneof![
        (any::<u64>(), any::<u32>(), vec(data(), 0..4))
            .prop_map(|(version, len, pieces)| ResultModel::Value(version, len, pieces)),
        (any::<u64>(), any::<u32>(), any::<u32>(), any::<bool>()).prop_map(
            |(version, at, len, created)| ResultModel::Written(version, at, len, created)
        ),
        any::<bool>().prop_map(ResultModel::Deleted),
        any::<u64>().prop_map(ResultModel::Number),
        (any::<bool>(), vec(entry(), 0..5))
            .prop_map(|(complete, entries)| ResultModel::Listing(complete, entries)),
    ]
}

pub fn kind() -> impl Strategy<Value = ErrorKind> {
    (1..=27_u8).prop_map(|code| ErrorKind::from_code(code).expect("codes 1 to 27 are known"))
}

pub fn outcome() -> impl Strategy<Value = OutcomeModel> {
    let current = (any::<u64>(), any::<u32>(), bytes(60))
        .prop_map(|(version, len, bytes)| (Version(version), len, bytes));
    prop_oneof![
        3 => vec(result(), 0..3).prop_map(OutcomeModel::Done),
        1 => (kind(), any::<u16>(), option::of(current))
            .prop_map(|(kind, index, current)| OutcomeModel::Failed(kind, index, current)),
    ]
}

pub fn reply_header() -> impl Strategy<Value = ReplyHeader> {
    (option::of(kind()), any::<u64>(), any::<u64>()).prop_map(|(refused, map, name_space)| {
        ReplyHeader { refused, map_epoch: Epoch(map), name_space_generation: Epoch(name_space) }
    })
}

/// Body and payload of a reply.
pub fn encode_reply(
    header: &ReplyHeader,
    outcomes: &[OutcomeModel],
    grants: &[BlockRef],
) -> (Vec<u8>, Vec<u8>) {
    let mut encoder = ReplyEncoder::new(Vec::new(), header);
    let mut payload = Vec::new();
    for outcome in outcomes {
        match outcome {
            OutcomeModel::Failed(kind, index, current) => {
                encoder.failed(&samite_wire::op::OperationFailure {
                    kind: *kind,
                    index: *index,
                    current: *current,
                });
            }
            OutcomeModel::Done(results) => {
                encoder.done(results.len());
                for result in results {
                    encode_result(&mut encoder, &mut payload, result);
                }
            }
        }
    }
    (encoder.finish(grants), payload)
}

fn encode_result(encoder: &mut ReplyEncoder, payload: &mut Vec<u8>, result: &ResultModel) {
    match result {
        ResultModel::Value(version, len, pieces) => {
            encoder.value(Version(*version), *len, pieces.len());
            for piece in pieces {
                match piece {
                    ValueData::Inline(bytes) => {
                        encoder.inline(bytes.len());
                        payload.extend_from_slice(bytes);
                    }
                    ValueData::Blocks(blocks) => encoder.blocks(blocks),
                    ValueData::Zeros(len) => encoder.zeros(*len),
                }
            }
        }
        ResultModel::Written(version, at, len, created) => {
            encoder.written(Version(*version), *at, *len, *created);
        }
        ResultModel::Deleted(existed) => encoder.deleted(*existed),
        ResultModel::Number(number) => encoder.number(*number),
        ResultModel::Listing(complete, entries) => {
            let mut raw = Vec::new();
            for (key, version, len, value) in entries {
                let version = Version(*version);
                match value {
                    EntryValue::Bytes(bytes) => {
                        ReplyEncoder::encode_list_entry(&mut raw, key, version, *len, bytes);
                    }
                    EntryValue::Blocks(blocks) => {
                        ReplyEncoder::encode_referring_entry(&mut raw, key, version, *len, blocks);
                    }
                    EntryValue::Left => {
                        ReplyEncoder::encode_left_entry(&mut raw, key, version, *len);
                    }
                }
            }
            encoder.listing(*complete, entries.len() as u32, &raw);
        }
    }
}
