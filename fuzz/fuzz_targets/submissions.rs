//! A slot of a submission queue, as a client has left it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use samite_wire::op::OperationRequest;
use samite_arena::submission::{LOCK_WORDS, QUEUE_SLOT_LEN, REQUEST_LEN_MAX, SlotContents};

fuzz_target!(|input: &[u8]| {
    let mut raw = [0; QUEUE_SLOT_LEN];
    let len = input.len().min(QUEUE_SLOT_LEN);
    raw[..len].copy_from_slice(&input[..len]);
    let Some(contents) = SlotContents::read(&raw) else { return };
    assert!(contents.label.lock_word() < LOCK_WORDS && contents.label.len() <= REQUEST_LEN_MAX);
    let _ = OperationRequest::decode(contents.body, contents.payload);
});
