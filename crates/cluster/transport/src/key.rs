//! The cluster key and the proofs of holding it.

use std::fmt;

use hmac::{Hmac, Mac};
use samite_types::{Entropy, Error, ErrorKind, Result};
use samite_wire::hello::{Challenge, Hello};
use sha2::Sha256;

use crate::tls::{Binding, TlsAuthorities};

/// The secret that every node and client of a cluster holds: 32 random bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterKey {
    bytes: [u8; Self::LEN],
    authorities: Option<TlsAuthorities>,
}

/// Which side a proof is made by; in the MAC, so that one side's proof never passes as the other's.
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

impl ClusterKey {
    /// Length, in bytes.
    pub const LEN: usize = 32;

    /// The key made of these bytes.
    #[must_use]
    pub const fn new(bytes: [u8; Self::LEN]) -> Self {
        Self { bytes, authorities: None }
    }

    /// The same key, for a cluster whose nodes show TLS certificates that these authorities have signed.
    #[must_use]
    pub fn with_authorities(self, authorities: TlsAuthorities) -> Self {
        Self { authorities: Some(authorities), ..self }
    }

    pub(crate) const fn authorities(&self) -> Option<&TlsAuthorities> {
        self.authorities.as_ref()
    }

    /// The key as read from a file.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] unless there are exactly 32 bytes.
    pub fn from_slice(bytes: &[u8]) -> Result<Self> {
        bytes.try_into().map(Self::new).map_err(|_| {
            let len = bytes.len();
            Error::new(ErrorKind::Invalid, format!("cluster key has {len} bytes instead of 32"))
        })
    }

    /// A new key.
    pub fn generate(entropy: &dyn Entropy) -> Self {
        let mut bytes = [0; Self::LEN];
        entropy.fill(&mut bytes);
        Self::new(bytes)
    }

    /// The bytes, to be written to a file that only its owner can read.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.bytes
    }

    fn hmac(&self) -> Hmac<Sha256> {
        Hmac::<Sha256>::new_from_slice(&self.bytes).expect("HMAC takes keys of any length")
    }

    /// Seed of the key pair of a side in TLS.
    pub(crate) fn derive_tls_seed(&self, role: ProofRole) -> [u8; 32] {
        let mut mac = self.hmac();
        mac.update(match role {
            ProofRole::Node => &b"samite tls node key v1"[..],
            ProofRole::Client => b"samite tls client key v1",
        });
        mac.finalize().into_bytes().into()
    }

    fn mac(&self, role: ProofRole, exchange: &ProofExchange<'_>) -> Hmac<Sha256> {
        let ProofExchange { hello, challenge, binding } = exchange;
        let mut mac = self.hmac();
        mac.update(match role {
            ProofRole::Node => b"samite node proof v1",
            ProofRole::Client => b"samite client proof v1",
        });
        mac.update(&hello.nonce);
        mac.update(&challenge.nonce);
        // Everything the two have agreed on is under the proof, so that nobody between them can change it.
        mac.update(&[hello.versions.0, hello.versions.1, challenge.version]);
        mac.update(&[u8::from(hello.wants_rings)]);
        mac.update(&hello.client.get().to_le_bytes());
        mac.update(&hello.uid.to_le_bytes());
        if let Some(node) = hello.node {
            mac.update(b"node");
            mac.update(&node.get().to_le_bytes());
        }
        mac.update(&challenge.node.get().to_le_bytes());
        if let Some(binding) = binding {
            mac.update(b"tls");
            mac.update(&binding[..]);
        }
        mac
    }

    /// Proof that its maker, in `role`, holds the key in this exchange.
    pub(crate) fn prove(&self, role: ProofRole, exchange: &ProofExchange<'_>) -> [u8; 32] {
        self.mac(role, exchange).finalize().into_bytes().into()
    }

    /// Checks the other side's proof, in constant time.
    pub(crate) fn proves(
        &self,
        role: ProofRole,
        exchange: &ProofExchange<'_>,
        proof: &[u8; 32],
    ) -> bool {
        self.mac(role, exchange).verify_slice(proof).is_ok()
    }
}

impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterKey(…)")
    }
}
