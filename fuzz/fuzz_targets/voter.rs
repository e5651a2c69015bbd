//! The input of a voter: its file with any content, and messages that no voter has sent. It gets a
//! voter or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use samite_coordinator::quorum::{VoterConfiguration, VoterHost, VoterState, StateRegister, VoterFile};
use samite_types::NodeId;

fuzz_target!(|input: (&[u8], Vec<&[u8]>)| {
    let (file, messages) = input;
    let nodes = [NodeId(0), NodeId(1), NodeId(2)];
    let kept = match VoterFile::parse(file) {
        Ok((len, kept)) => {
            assert!(len <= file.len());
            kept
        }
        Err(_) => {
            let first = VoterConfiguration::first(&nodes).expect("three nodes");
            (1, VoterState::new(first, StateRegister::default()))
        }
    };
    let Ok(mut host) = VoterHost::new((nodes[0], 7), Some(kept), nodes.to_vec()) else { return };
    for (message, sender) in messages.into_iter().zip([1, 2].iter().cycle()) {
        let _ = host.receive(NodeId(*sender), message);
        let _ = host.output(8);
    }
});
