//! A whole frame: its header, and a body and payload cut by the lengths that the header gives.
#![no_main]

use libfuzzer_sys::fuzz_target;
use samite_wire::frame::{HEADER_LEN, CheckedHeader};
use samite_wire::limits::{BODY_LEN_MAX, PAYLOAD_LEN_MAX};

fuzz_target!(|raw: &[u8]| {
    let Some((header, rest)) = raw.split_first_chunk::<HEADER_LEN>() else { return };
    let Ok(header) = CheckedHeader::parse(header) else { return };
    assert!(header.body_len <= BODY_LEN_MAX && header.payload_len <= PAYLOAD_LEN_MAX);
    let Some((body, rest)) = rest.split_at_checked(header.body_len) else { return };
    let Some(payload) = rest.get(..header.payload_len) else { return };
    let _ = header.verify(body, &[payload]);
});
