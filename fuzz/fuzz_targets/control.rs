//! Control-plane messages, both ways; a message that decodes encodes to one that decodes to the
//! same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use samite_wire::control::{ControlReply, ControlRequest, decode, encode};

fuzz_target!(|raw: &[u8]| {
    if let Ok(request) = decode::<ControlRequest>(raw) {
        assert_eq!(decode(&encode(&request)), Ok(request));
    }
    if let Ok(reply) = decode::<ControlReply>(raw) {
        assert_eq!(decode(&encode(&reply)), Ok(reply));
    }
});
