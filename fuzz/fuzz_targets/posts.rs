//! A box of the table of posts, as a client has left it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use samite_wire::op::Request;
use samite_wire::posts::{BOX_LEN, CLAIMS, Contents, REQUEST_LEN_MAX};

fuzz_target!(|input: &[u8]| {
    let mut raw = [0; BOX_LEN];
    let len = input.len().min(BOX_LEN);
    raw[..len].copy_from_slice(&input[..len]);
    let Some(contents) = Contents::read(&raw) else { return };
    assert!(contents.label.claim < CLAIMS && contents.label.len() <= REQUEST_LEN_MAX);
    let _ = Request::decode(contents.body, contents.payload);
});
