//! The cluster key: the proofs of holding it, and the keys that come of it.

use std::fmt;

use hmac::{Hmac, Mac};
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use samite_types::{Entropy, Error, ErrorKind, Result};
use sha2::{Digest, Sha256};

use crate::authorities::TlsAuthorities;
use crate::proof::{ProofExchange, ProofRole};
use crate::signing::SigningPair;

/// The secret that the nodes and the owner of a cluster hold: 32 random bytes, and the number that
/// tells it from the keys before and after it.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterKey {
    bytes: [u8; Self::LEN],
    number: u32,
    authorities: Option<TlsAuthorities>,
}

impl ClusterKey {
    /// Length, in bytes.
    pub const LEN: usize = 32;
    /// Number of a cluster's first key.
    pub const FIRST: u32 = 1;

    /// The first key of a cluster, made of these bytes.
    #[must_use]
    pub const fn new(bytes: [u8; Self::LEN]) -> Self {
        Self::numbered(bytes, Self::FIRST)
    }

    /// The key of this number.
    #[must_use]
    pub const fn numbered(bytes: [u8; Self::LEN], number: u32) -> Self {
        Self { bytes, number, authorities: None }
    }

    /// Which of the cluster's keys it is.
    #[must_use]
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// The same key, for a cluster whose nodes show TLS certificates that these authorities have
    /// signed.
    #[must_use]
    pub fn with_authorities(self, authorities: TlsAuthorities) -> Self {
        Self { authorities: Some(authorities), ..self }
    }

    pub(crate) const fn authorities(&self) -> Option<&TlsAuthorities> {
        self.authorities.as_ref()
    }

    /// A new first key.
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

    pub(crate) fn hmac(&self) -> Hmac<Sha256> {
        Hmac::<Sha256>::new_from_slice(&self.bytes).expect("HMAC takes keys of any length")
    }

    /// A key for one purpose, which `label` names.
    fn derive(&self, label: &[u8]) -> [u8; 32] {
        self.hmac().chain_update(label).finalize().into_bytes().into()
    }

    /// Tells the cluster whose first key this is from others of the same name.
    pub(crate) fn cluster_id(&self) -> [u8; 8] {
        let digest = Sha256::new().chain_update(b"samite cluster id").chain_update(self.bytes);
        let digest: [u8; 32] = digest.finalize().into();
        *digest.first_chunk().expect("a digest is longer")
    }

    /// The key pair of the cluster's nodes, by which holders of tickets know them.
    pub(crate) fn node_pair(&self) -> SigningPair {
        SigningPair::from_seed(self.derive(b"samite node key pair v1"))
    }

    /// Public key of the pair that the cluster's nodes have in common, which a ticket's holder is
    /// given.
    #[must_use]
    pub fn node_public_key(&self) -> [u8; 32] {
        self.node_pair().public_key()
    }

    fn ticket_mac(&self, claims: &[u8]) -> Hmac<Sha256> {
        let key = self.derive(b"samite ticket key v1");
        Hmac::<Sha256>::new_from_slice(&key)
            .expect("HMAC takes keys of any length")
            .chain_update(claims)
    }

    /// Signs the words of a ticket.
    pub(crate) fn sign_ticket(&self, claims: &[u8]) -> [u8; 32] {
        self.ticket_mac(claims).finalize().into_bytes().into()
    }

    /// Whether the words of a ticket are signed by this key, in constant time.
    pub(crate) fn has_signed_ticket(&self, claims: &[u8], mac: &[u8; 32]) -> bool {
        self.ticket_mac(claims).verify_slice(mac).is_ok()
    }

    fn sealing_key(&self) -> LessSafeKey {
        let key = self.derive(b"samite next key v1");
        let key = UnboundKey::new(&CHACHA20_POLY1305, &key).expect("32 bytes are a key");
        LessSafeKey::new(key)
    }

    /// The key that follows this one, encrypted so that only holders of this one can read it.
    #[must_use]
    pub fn seal_next(&self, next: &Self, entropy: &dyn Entropy) -> Vec<u8> {
        let mut nonce = [0; NONCE_LEN];
        entropy.fill(&mut nonce);
        let (mut bytes, mut sealed) = (nonce.to_vec(), next.bytes.to_vec());
        let number = Aad::from(next.number.to_le_bytes());
        self.sealing_key()
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), number, &mut sealed)
            .expect("a short message can be sealed");
        bytes.append(&mut sealed);
        bytes
    }

    /// Reads what [`ClusterKey::seal_next`] has made of the key of this number.
    ///
    /// # Errors
    /// [`ErrorKind::WrongKey`]: another key has sealed it, or it was changed.
    pub fn open_next(&self, number: u32, bytes: &[u8]) -> Result<Self> {
        let refused = || Error::new(ErrorKind::WrongKey, "the next key is not sealed by this one");
        let (nonce, sealed) = bytes.split_first_chunk::<NONCE_LEN>().ok_or_else(refused)?;
        let mut sealed = sealed.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let opened = self
            .sealing_key()
            .open_in_place(nonce, Aad::from(number.to_le_bytes()), &mut sealed)
            .map_err(|_| refused())?;
        let bytes = (&*opened).try_into().map_err(|_| refused())?;
        Ok(Self { bytes, number, authorities: self.authorities.clone() })
    }

    fn mac(&self, role: ProofRole, exchange: &ProofExchange<'_>) -> Hmac<Sha256> {
        self.hmac().chain_update(exchange.transcript(role))
    }

    /// Proof that its maker, in `role`, holds the key in this exchange.
    pub(crate) fn prove(&self, role: ProofRole, exchange: &ProofExchange<'_>) -> Vec<u8> {
        self.mac(role, exchange).finalize().into_bytes().to_vec()
    }

    /// Checks the other side's proof, in constant time.
    pub(crate) fn proves(
        &self,
        role: ProofRole,
        exchange: &ProofExchange<'_>,
        proof: &[u8],
    ) -> bool {
        self.mac(role, exchange).verify_slice(proof).is_ok()
    }
}

impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClusterKey({}, …)", self.number)
    }
}
