//! Peer messages between members of a mirror group; a message that decodes means the same after
//! another trip.
#![no_main]

use libfuzzer_sys::fuzz_target;
use samite_wire::peer::{PartitionLogEntry, PeerMessages};

fuzz_target!(|input: (&[u8], &[u8])| {
    let (body, payload) = input;
    let _ = PartitionLogEntry::decode(body, payload);
    let Ok(messages) = PeerMessages::new(body, payload).collect::<Result<Vec<_>, _>>() else { return };
    let (mut body, mut payload) = (Vec::new(), Vec::new());
    for (envelope, message) in &messages {
        message.append(envelope, &mut body, &mut payload);
    }
    let again: Result<Vec<_>, _> = PeerMessages::new(&body, &payload).collect();
    assert_eq!(format!("{:?}", again.expect("what we encode, we decode")), format!("{messages:?}"));
});
