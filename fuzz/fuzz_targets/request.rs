//! A request; a request that decodes means the same after another trip.
#![no_main]

use libfuzzer_sys::fuzz_target;
use samite_wire::op::{Guard, Operation, OperationRequest, RequestEncoder};

fuzz_target!(|input: (&[u8], &[u8])| {
    let (body, payload) = input;
    let mut one = Operation::default();
    let header = OperationRequest::decode_one(body, payload, &mut one);
    let first = OperationRequest::first_guarded(body);
    let Ok(request) = OperationRequest::decode(body, payload) else {
        assert!(header.is_err());
        return;
    };
    assert_eq!(header.is_ok(), request.operations.len() == 1);
    assert!(header.is_err() || one == request.operations[0]);
    let guard = request.operations[0].guards.first();
    let key = guard.and_then(Guard::record);
    assert_eq!(first.map(|first| first.key), key);
    let mut encoder = RequestEncoder::new(Vec::new(), &request.header);
    for operation in &request.operations {
        encoder.operation(operation);
    }
    let (body, pieces) = encoder.finish();
    let payload = pieces.concat();
    let again = OperationRequest::decode(&body, &payload).expect("what we encode, we decode");
    assert_eq!(format!("{again:?}"), format!("{request:?}"));
});
