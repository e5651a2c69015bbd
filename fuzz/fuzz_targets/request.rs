//! A request; what decodes means the same after another trip.
#![no_main]

use libfuzzer_sys::fuzz_target;
use samite_wire::op::{Request, RequestEncoder};

fuzz_target!(|input: (&[u8], &[u8])| {
    let (body, payload) = input;
    let Ok(request) = Request::decode(body, payload) else { return };
    let mut encoder = RequestEncoder::new(Vec::new(), &request.header);
    for operation in &request.operations {
        encoder.operation(operation);
    }
    let (body, pieces) = encoder.finish();
    let payload = pieces.concat();
    let again = Request::decode(&body, &payload).expect("what we encode, we decode");
    assert_eq!(format!("{again:?}"), format!("{request:?}"));
});
