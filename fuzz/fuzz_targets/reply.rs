//! A reply, walked through to its last listing entry.
#![no_main]

use libfuzzer_sys::fuzz_target;
use samite_wire::op::{ActionResult, OperationOutcome, OperationReply};

fuzz_target!(|input: (&[u8], &[u8])| {
    let (body, payload) = input;
    let Ok(reply) = OperationReply::decode(body, payload) else { return };
    for outcome in &reply.outcomes {
        let OperationOutcome::Done(results) = outcome else { continue };
        for result in results {
            if let ActionResult::Listing(listing) = result {
                assert_eq!(listing.entries().count(), listing.count as usize);
            }
        }
    }
});
