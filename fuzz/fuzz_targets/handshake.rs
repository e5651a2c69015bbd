//! Handshake messages: bytes from anyone who can connect.
#![no_main]

use libfuzzer_sys::fuzz_target;
use samite_wire::control::{decode, encode};
use samite_wire::hello::{Challenge, Goodbye, Hello, Proof, Welcome};
use samite_wire::ticket::SignedTicket;

fuzz_target!(|raw: &[u8]| {
    if let Ok(hello) = decode::<Hello>(raw) {
        assert_eq!(decode(&encode(&hello)), Ok(hello));
    }
    let _ = decode::<Challenge>(raw);
    let _ = decode::<Proof>(raw);
    let _ = decode::<Welcome>(raw);
    let _ = decode::<Goodbye>(raw);
    if let Ok((ticket, claims)) = SignedTicket::parse(raw) {
        assert_eq!(decode(&ticket.claims), Ok(claims));
    }
});
