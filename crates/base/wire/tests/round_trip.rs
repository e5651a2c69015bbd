//! Every guard, action and result decodes to what was encoded.

mod common;

use common::{EntryValue, OutcomeModel, ResultModel};
use proptest::prelude::*;
use samite_types::{ClientId, Epoch, NodeId, RequestId, Term, Version};
use samite_wire::frame::{
    CheckedHeader, FLAG_PAYLOAD_UNCHECKED, FrameHeader, FrameKind, HEADER_LEN,
};
use samite_wire::lock::{LockCall, LockHolder, LockMode, LockRange, LockRequest, LockSpace};
use samite_wire::op::{
    ActionResult, ListedValue, OperationOutcome, OperationReply, OperationRequest,
};
use samite_wire::{control, hello};
use zerocopy::IntoBytes;

fn assert_same(model: &ResultModel, result: &ActionResult<'_>) {
    match (model, result) {
        (
            ResultModel::Value(version, len, pieces),
            ActionResult::Value { version: v, total_len, data },
        ) => {
            assert_eq!((Version(*version), *len), (*v, *total_len));
            assert_eq!(pieces.as_slice(), data.as_slice());
        }
        (
            ResultModel::Written(version, at, len, new),
            ActionResult::Written { version: v, offset, total_len, created },
        ) => assert_eq!((Version(*version), *at, *len, *new), (*v, *offset, *total_len, *created)),
        (ResultModel::Deleted(model), ActionResult::Deleted { existed }) => {
            assert_eq!(model, existed);
        }
        (ResultModel::Number(model), ActionResult::Number(number)) => assert_eq!(model, number),
        (ResultModel::Listing(complete, entries), ActionResult::Listing(listing)) => {
            assert_eq!(*complete, listing.complete);
            let got: Vec<_> = listing
                .entries()
                .map(|entry| {
                    let value = match entry.value {
                        ListedValue::Bytes(bytes) => EntryValue::Bytes(bytes.to_vec().leak()),
                        ListedValue::Blocks(blocks) => EntryValue::Blocks(blocks.iter().collect()),
                        ListedValue::Left => EntryValue::Left,
                    };
                    (entry.key.to_vec(), entry.version.get(), entry.total_len, value)
                })
                .collect();
            let entries: Vec<_> = entries
                .iter()
                .map(|(key, v, len, value)| (key.to_vec(), *v, *len, value.clone()))
                .collect();
            assert_eq!(entries, got);
        }
        (model, result) => panic!("{model:?} came back as {result:?}"),
    }
}

proptest! {
    #[test]
    fn requests((header, operations) in common::request()) {
        let (body, payload) = common::encode_request(&header, &operations);
        let (body, payload) = (common::leak(body), common::leak(payload));
        let request = OperationRequest::decode(body, payload).expect("what we encode, we decode");
        prop_assert_eq!(request.header, header);
        prop_assert_eq!(request.operations, operations);
    }

    #[test]
    fn replies(
        header in common::reply_header(),
        outcomes in proptest::collection::vec(common::outcome(), 0..6),
        grants in proptest::collection::vec(common::block(), 0..5),
    ) {
        let (body, payload) = common::encode_reply(&header, &outcomes, &grants);
        let reply = OperationReply::decode(&body, &payload).expect("what we encode, we decode");
        prop_assert_eq!(reply.header, header);
        prop_assert_eq!(reply.grants.as_slice(), grants.as_slice());
        prop_assert_eq!(reply.outcomes.len(), outcomes.len());
        for (model, outcome) in outcomes.iter().zip(&reply.outcomes) {
            match (model, outcome) {
                (OutcomeModel::Done(models), OperationOutcome::Done(results)) => {
                    prop_assert_eq!(models.len(), results.len());
                    models.iter().zip(results).for_each(|(model, result)| assert_same(model, result));
                }
                (OutcomeModel::Failed(kind, index, current), OperationOutcome::Failed(failure)) => {
                    prop_assert_eq!((*kind, *index, *current), (failure.kind, failure.index, failure.current));
                }
                (model, outcome) => prop_assert!(false, "{:?} came back as {:?}", model, outcome),
            }
        }
    }

    #[test]
    fn frames(
        id in any::<u64>(),
        body in proptest::collection::vec(any::<u8>(), 0..100),
        payload in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..100), 0..4),
        unchecked in any::<bool>(),
        at in any::<prop::sample::Index>(),
    ) {
        let pieces: Vec<&[u8]> = payload.iter().map(Vec::as_slice).collect();
        let flags = if unchecked { FLAG_PAYLOAD_UNCHECKED } else { 0 };
        let built = FrameHeader::build(FrameKind::Request, RequestId(id), flags, &body, &pieces);
        let raw: [u8; HEADER_LEN] = built.as_bytes().try_into().expect("a header has its length");
        let header = CheckedHeader::parse(&raw).expect("what we build, we parse");
        prop_assert_eq!((header.kind, header.request_id), (FrameKind::Request, RequestId(id)));
        prop_assert_eq!(header.len_after(), body.len() + payload.concat().len());
        prop_assert!(header.verify(&body, &pieces).is_ok());
        // The payload may be handed over in any cut.
        prop_assert!(header.verify(&body, &[&payload.concat()]).is_ok());
        if !body.is_empty() {
            let mut bent = body.clone();
            bent[at.index(body.len())] ^= 1;
            prop_assert!(header.verify(&bent, &pieces).is_err());
        }
    }

    #[test]
    fn handshakes(client in any::<u64>(), node in any::<u32>(), nonce in any::<[u8; 32]>(), wants_rings in any::<bool>()) {
        let credential = hello::HelloCredential::ClusterKey { number: node };
        let hello = hello::Hello { versions: (1, 1), client: ClientId(client), credential, nonce, wants_rings, node: Some(NodeId(3)) };
        prop_assert_eq!(control::decode::<hello::Hello>(&control::encode(&hello)), Ok(hello));
        let challenge = hello::Challenge { version: 1, node: NodeId(node), nonce, proof: nonce.to_vec() };
        let raw = control::encode(&challenge);
        prop_assert!(raw.len() <= samite_wire::limits::HANDSHAKE_LEN_MAX);
        prop_assert_eq!(control::decode::<hello::Challenge>(&raw), Ok(challenge));
    }
}

fn lock_range() -> impl Strategy<Value = LockRange> {
    (any::<u64>(), any::<u64>()).prop_map(|(start, last)| LockRange { start, last })
}

fn lock_call() -> impl Strategy<Value = LockCall> {
    let mode = || prop_oneof![Just(LockMode::Shared), Just(LockMode::Exclusive)];
    prop_oneof![
        (lock_range(), mode(), any::<(u64, u32)>(), any::<Option<u64>>(), any::<bool>()).prop_map(
            |(range, mode, (host, pid), wait, detects_deadlock)| LockCall::Take {
                range,
                mode,
                holder: LockHolder { host, pid },
                wait,
                detects_deadlock,
            }
        ),
        lock_range().prop_map(|range| LockCall::Release { range }),
        (lock_range(), mode()).prop_map(|(range, mode)| LockCall::Test { range, mode }),
    ]
}

proptest! {
    #[test]
    fn lock_messages_round_trip_and_mangled_ones_are_refused_or_decode(
        call in lock_call(), numbers in any::<(u32, u32, u64, u64)>(), whole in any::<bool>(),
        at in any::<prop::sample::Index>(), byte in any::<u8>(),
    ) {
        let request = control::ControlRequest::Lock(LockRequest {
            dataset: numbers.0.into(),
            partition: numbers.1.into(),
            object: numbers.2,
            space: if whole { LockSpace::Whole } else { LockSpace::Ranges },
            token: numbers.3,
            term: Term(numbers.1),
            epoch: Epoch(numbers.2),
            is_note: !whole,
            call,
        });
        let mut raw = control::encode(&request);
        prop_assert_eq!(control::decode(&raw), Ok(request));
        let at = at.index(raw.len());
        raw[at] = byte;
        let _ = control::decode::<control::ControlRequest>(&raw);
    }
}
