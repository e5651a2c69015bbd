//! Bytes from a peer that errs or lies: refused, never a panic, never memory for a length that is not there.

mod common;

use proptest::prelude::*;
use samite_types::{DatasetId, Epoch, PartitionId, RequestId, Seq, Version};
use samite_wire::WireError;
use samite_wire::control::{self, ControlReply, ControlRequest};
use samite_wire::frame::{CheckedHeader, FrameHeader, FrameKind, HEADER_LEN};
use samite_wire::hello::{Challenge, Goodbye, Hello, Proof, Welcome};
use samite_wire::limits::{
    ACTIONS_MAX, BLOCK_LEN, BODY_LEN_MAX, KEY_LEN_MAX, OPERATIONS_MAX, PAYLOAD_LEN_MAX,
    RECORD_LEN_MAX,
};
use samite_wire::op::{
    Action, BlockRef, Guard, ListedValue, Operation, OperationReply, OperationRequest, OutcomeHead,
    PieceHead, ReplyEncoder, ReplyHeader, ReplyReader, RequestHeader, ResultHead, ValueData,
};
use zerocopy::IntoBytes;

const HEADER: RequestHeader = RequestHeader {
    dataset: DatasetId(1),
    map_epoch: Epoch(1),
    name_space_generation: Epoch(u64::MAX),
    answered_below: Seq(1),
    is_retry: false,
};

/// All ways to read a request say the same.
fn decode_request(body: &[u8], payload: &[u8]) {
    let mut one = Operation::default();
    let header = OperationRequest::decode_one(body, payload, &mut one);
    let first = OperationRequest::first_guarded(body);
    let Ok(request) = OperationRequest::decode(body, payload) else {
        assert!(header.is_err());
        return;
    };
    assert_eq!(header.is_ok(), request.operations.len() == 1);
    if let Ok(header) = header {
        assert_eq!((header, &one), (request.header, &request.operations[0]));
    }
    let operation = &request.operations[0];
    let key = operation.guards.first().and_then(Guard::record);
    assert_eq!(first.map(|first| first.key), key);
    assert!(first.is_none_or(|first| first.partition == operation.partition));
}

/// Decodes as everything that a body can be.
fn decode_all(body: &[u8], payload: &[u8]) {
    decode_request(body, payload);
    if let Ok(reply) = OperationReply::decode(body, payload) {
        for outcome in &reply.outcomes {
            let samite_wire::op::OperationOutcome::Done(results) = outcome else { continue };
            for result in results {
                if let samite_wire::op::ActionResult::Listing(listing) = result {
                    assert_eq!(listing.entries().count(), listing.count as usize);
                    for entry in listing.entries() {
                        let ListedValue::Blocks(blocks) = entry.value else { continue };
                        let len: u64 = blocks.iter().map(|block| u64::from(block.len)).sum();
                        assert!(len == u64::from(entry.total_len) && len <= RECORD_LEN_MAX as u64);
                    }
                }
            }
        }
    }
    let _ = control::decode::<ControlRequest>(body);
    let _ = control::decode::<ControlReply>(body);
    let _ = control::decode::<Hello>(body);
    let _ = control::decode::<Challenge>(body);
    let _ = control::decode::<Proof>(body);
    let _ = control::decode::<Welcome>(body);
    let _ = control::decode::<Goodbye>(body);
}

/// Walks through a reply step by step; how many bytes of payload it refers to.
fn walk(body: &[u8]) -> Result<usize, WireError> {
    let mut reader = ReplyReader::new(body)?;
    let mut payload_len = 0;
    for _ in 0..reader.count() {
        let OutcomeHead::Done(results) = reader.outcome()? else { continue };
        for _ in 0..results {
            let ResultHead::Value { pieces, .. } = reader.result()? else { continue };
            for _ in 0..pieces {
                if let PieceHead::Inline(len) = reader.piece()? {
                    payload_len += len;
                }
            }
        }
    }
    reader.finish()?;
    Ok(payload_len)
}

/// Changes `raw` as a broken or malicious peer would: bits, whole bytes, cuts and repetitions.
fn mutate(raw: &mut Vec<u8>, changes: &[(prop::sample::Index, u8, u8)]) {
    for (at, how, value) in changes {
        if raw.is_empty() {
            return;
        }
        let at = at.index(raw.len());
        match how % 5 {
            0 => raw[at] ^= 1 << (value % 8),
            1 => raw[at] = *value,
            2 => raw.truncate(at),
            3 => raw.insert(at, *value),
            _ => {
                let tail = raw[at..].to_vec();
                raw.extend(tail);
            }
        }
    }
}

fn changes() -> impl Strategy<Value = Vec<(prop::sample::Index, u8, u8)>> {
    proptest::collection::vec(any::<(prop::sample::Index, u8, u8)>(), 1..5)
}

proptest! {
    #[test]
    fn random_bytes(
        body in proptest::collection::vec(any::<u8>(), 0..300),
        payload in proptest::collection::vec(any::<u8>(), 0..50),
        raw in any::<[u8; HEADER_LEN]>(),
    ) {
        decode_all(&body, &payload);
        prop_assert!(CheckedHeader::parse(&raw).is_err());
    }

    #[test]
    fn bent_requests((header, operations) in common::request(), changes in changes()) {
        let (mut body, mut payload) = common::encode_request(&header, &operations);
        mutate(&mut body, &changes);
        decode_all(&body, &payload);
        // Messages that still decode mean the same after another trip.
        let (bent_body, bent_payload) = (common::leak(body.clone()), common::leak(payload.clone()));
        if let Ok(request) = OperationRequest::decode(bent_body, bent_payload) {
            let (body, payload) = common::encode_request(&request.header, &request.operations);
            let again = OperationRequest::decode(common::leak(body), common::leak(payload));
            prop_assert_eq!(again, Ok(request));
        }
        mutate(&mut payload, &changes);
        decode_all(&body, &payload);
    }

    #[test]
    fn bent_replies(
        header in common::reply_header(),
        outcomes in proptest::collection::vec(common::outcome(), 0..6),
        changes in changes(),
    ) {
        let (mut body, payload) = common::encode_reply(&header, &outcomes, &[]);
        mutate(&mut body, &changes);
        decode_all(&body, &payload);
        // Both ways to read a reply accept the same ones.
        let whole = OperationReply::decode(&body, &payload).is_ok();
        prop_assert_eq!(whole, walk(&body).is_ok_and(|len| len == payload.len()));
    }

    #[test]
    fn bent_headers(at in 0..HEADER_LEN, value in 1_u8..) {
        let frame = FrameHeader::build(FrameKind::Request, RequestId(7), 0, b"body", &[b"payload"]);
        let mut raw: [u8; HEADER_LEN] = frame.as_bytes().try_into().expect("a header has its length");
        raw[at] ^= value;
        // Either the header is refused at once, or the checksum finds it.
        if let Ok(header) = CheckedHeader::parse(&raw) {
            prop_assert!(header.body_len <= BODY_LEN_MAX && header.payload_len <= PAYLOAD_LEN_MAX);
            prop_assert!(header.verify(b"body", &[b"payload"]).is_err());
        }
    }
}

fn decoded(operations: &[Operation<'_>]) -> Result<usize, WireError> {
    let (body, payload) = common::encode_request(&HEADER, operations);
    OperationRequest::decode(&body, &payload).map(|request| request.operations.len())
}

fn mutation(action: Action<'_>) -> Operation<'_> {
    let mut operation = Operation::new(PartitionId(0), [action]);
    operation.seq = Seq(1);
    operation
}

#[test]
fn a_key_at_its_limit_passes_and_one_more_byte_is_refused() {
    let key = vec![1; KEY_LEN_MAX + 1];
    assert_eq!(decoded(&[Operation::get(PartitionId(0), &key[1..])]), Ok(1));
    let refused = Err(WireError::OverLimit("key"));
    assert_eq!(decoded(&[Operation::get(PartitionId(0), &key)]), refused);
    let guarded = Operation::get(PartitionId(0), b"k").guard(Guard::Absent(&key));
    assert_eq!(decoded(&[guarded]), refused);
}

#[test]
fn a_record_of_1_mib_passes_and_one_more_byte_is_refused() {
    let value = vec![1; RECORD_LEN_MAX + 1];
    let put = |data| [mutation(Action::Put { key: b"k", data })];
    assert_eq!(decoded(&put(ValueData::Inline(&value[1..]))), Ok(1));
    assert_eq!(decoded(&put(ValueData::Inline(&value))), Err(WireError::OverLimit("data")));
    let zeros = ValueData::Zeros(RECORD_LEN_MAX as u32 + 1);
    assert_eq!(decoded(&put(zeros)), Err(WireError::OverLimit("data")));
}

#[test]
fn counts_over_their_limits_are_refused() {
    let one = Operation::get(PartitionId(0), b"k");
    assert_eq!(decoded(&vec![one.clone(); OPERATIONS_MAX]), Ok(OPERATIONS_MAX));
    let refused = Err(WireError::OverLimit("operation count"));
    assert_eq!(decoded(&vec![one.clone(); OPERATIONS_MAX + 1]), refused);
    assert_eq!(decoded(&[]), refused);

    let many = |count: usize| {
        let get = Action::Get { key: b"k", offset: 0, len: 1 };
        [Operation::new(PartitionId(0), vec![get; count])]
    };
    assert_eq!(decoded(&many(ACTIONS_MAX)), Ok(1));
    let refused = Err(WireError::OverLimit("guard or action count"));
    assert_eq!(decoded(&many(ACTIONS_MAX + 1)), refused);
    assert_eq!(decoded(&many(0)), refused);
}

#[test]
fn a_count_without_its_operations_costs_nothing() {
    let (mut body, _) = common::encode_request(&HEADER, &[Operation::get(PartitionId(0), b"k")]);
    let count_at = 29;
    body[count_at..count_at + 2].copy_from_slice(&4096_u16.to_le_bytes());
    assert_eq!(OperationRequest::decode(&body, &[]).err(), Some(WireError::Short("partition")));
}

#[test]
fn frame_lengths_over_their_limits_are_refused() {
    let frame = FrameHeader::build(FrameKind::Hello, RequestId(0), 0, b"", &[]);
    let raw: [u8; HEADER_LEN] = frame.as_bytes().try_into().expect("a header has its length");
    let with = |at: usize, len: u32| {
        let mut raw = raw;
        raw[at..at + 4].copy_from_slice(&len.to_le_bytes());
        CheckedHeader::parse(&raw)
    };
    assert!(with(4, BODY_LEN_MAX as u32).is_ok());
    assert_eq!(with(4, BODY_LEN_MAX as u32 + 1), Err(WireError::OverLimit("frame body")));
    assert_eq!(with(4, u32::MAX), Err(WireError::OverLimit("frame body")));
    assert!(with(16, PAYLOAD_LEN_MAX as u32).is_ok());
    assert_eq!(with(16, u32::MAX), Err(WireError::OverLimit("frame payload")));
}

#[test]
fn a_mutation_without_a_sequence_number_is_refused() {
    let mut put = Operation::put(PartitionId(0), b"k", b"v");
    assert_eq!(decoded(&[put.clone()]), Err(WireError::Unknown("sequence")));
    put.seq = Seq(1);
    assert_eq!(decoded(&[put]), Ok(1));
    let mut get = Operation::get(PartitionId(0), b"k");
    get.seq = Seq(1);
    assert_eq!(decoded(&[get]), Err(WireError::Unknown("sequence")));
}

#[test]
fn control_messages_over_the_limit_or_with_a_tail_are_refused() {
    let status = control::encode(&ControlRequest::Status);
    assert_eq!(control::decode(&status), Ok(ControlRequest::Status));
    let tail = [status, vec![0]].concat();
    assert_eq!(
        control::decode::<ControlRequest>(&tail),
        Err(WireError::Trailing("control message"))
    );
    let huge = vec![0; BODY_LEN_MAX + 1];
    assert_eq!(
        control::decode::<ControlRequest>(&huge),
        Err(WireError::OverLimit("control message"))
    );
}

#[test]
fn references_in_a_listing_are_to_a_whole_value_of_a_record() {
    let decoded = |total_len: u32, lens: &[u32]| {
        let block = |len: &u32| BlockRef { offset: 0, len: *len, generation: 2 };
        let blocks: Vec<BlockRef> = lens.iter().map(block).collect();
        let (mut entries, version) = (Vec::new(), Version(1));
        ReplyEncoder::encode_referring_entry(&mut entries, b"k", version, total_len, &blocks);
        let header =
            ReplyHeader { refused: None, map_epoch: Epoch(1), name_space_generation: Epoch(0) };
        let mut encoder = ReplyEncoder::new(Vec::new(), &header);
        encoder.done(1);
        encoder.listing(true, 1, &entries);
        OperationReply::decode(&encoder.finish(&[]), &[]).map(|reply| reply.outcomes.len())
    };
    let block = BLOCK_LEN as u32;
    assert_eq!(decoded(block + 9, &[block, 9]), Ok(1));
    assert_eq!(decoded(RECORD_LEN_MAX as u32, &[block; 16]), Ok(1));
    assert_eq!(decoded(10, &[9]), Err(WireError::Unknown("block references")));
    assert_eq!(decoded(1, &[u32::MAX, 2]), Err(WireError::OverLimit("block length")));
    assert_eq!(decoded(17 * block, &[block; 17]), Err(WireError::OverLimit("value length")));
    assert_eq!(decoded(0, &[0; 257]), Err(WireError::OverLimit("block count")));
}
