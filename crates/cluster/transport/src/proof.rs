//! The proofs of a handshake, and what they cover.

use samite_wire::control::encode;
use samite_wire::hello::{Challenge, Hello};

/// Hash of all bytes of a TLS handshake. The same at both ends, and at no other connection: both
/// sides' ephemeral keys are in it.
pub(crate) type Binding = [u8; 32];

/// Which side a proof is made by; under the proof, so that one side's never passes as the other's.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ProofRole {
    Node,
    Client,
}

/// The exchange that a proof is about.
pub(crate) struct ProofExchange<'a> {
    pub(crate) hello: &'a Hello,
    /// [`Challenge::proof`] is no part of it.
    pub(crate) challenge: &'a Challenge,
    /// The TLS connection that it came by; so a proof is worth nothing by any other.
    pub(crate) binding: Option<&'a Binding>,
}

impl ProofExchange<'_> {
    /// The bytes that a proof by `role` covers: everything the two have agreed on, so that nobody
    /// between them can change it.
    pub(crate) fn transcript(&self, role: ProofRole) -> Vec<u8> {
        let Self { hello, challenge, binding } = self;
        let mut bytes = match role {
            ProofRole::Node => b"samite node proof v2".to_vec(),
            ProofRole::Client => b"samite client proof v2".to_vec(),
        };
        let unproved = Challenge { proof: Vec::new(), ..(*challenge).clone() };
        for part in [encode(hello), encode(&unproved)] {
            bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
            bytes.extend_from_slice(&part);
        }
        if let Some(binding) = binding {
            bytes.extend_from_slice(b"tls");
            bytes.extend_from_slice(&binding[..]);
        }
        bytes
    }
}
