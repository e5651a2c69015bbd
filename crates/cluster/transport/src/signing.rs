//! Ed25519 key pairs: of a cluster's nodes, and of the holder of a ticket.

use std::fmt;

use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use samite_types::Entropy;

/// A key pair that signs.
#[derive(Clone, PartialEq, Eq)]
pub struct SigningPair {
    seed: [u8; 32],
}

impl SigningPair {
    /// A new pair.
    pub fn generate(entropy: &dyn Entropy) -> Self {
        let mut seed = [0; 32];
        entropy.fill(&mut seed);
        Self { seed }
    }

    /// The pair of this private key (RFC 8032).
    #[must_use]
    pub const fn from_seed(seed: [u8; 32]) -> Self {
        Self { seed }
    }

    /// The private key, to be written to a file that only its owner can read.
    #[must_use]
    pub const fn seed(&self) -> &[u8; 32] {
        &self.seed
    }

    fn pair(&self) -> Ed25519KeyPair {
        Ed25519KeyPair::from_seed_unchecked(&self.seed).expect("32 bytes are a private key")
    }

    /// The public key.
    #[must_use]
    pub fn public_key(&self) -> [u8; 32] {
        let pair = self.pair();
        pair.public_key().as_ref().try_into().expect("a public key has 32 bytes")
    }

    pub(crate) fn sign(&self, message: &[u8]) -> Vec<u8> {
        self.pair().sign(message).as_ref().to_vec()
    }
}

impl fmt::Debug for SigningPair {
    /// Leaves the private key out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningPair(…)")
    }
}

/// Whether `signature` over `message` was made by the private key of this public key.
pub(crate) fn is_signed(public_key: &[u8; 32], message: &[u8], signature: &[u8]) -> bool {
    UnparsedPublicKey::new(&ED25519, public_key).verify(message, signature).is_ok()
}
