//! The handshake with peers of [protocol version 3](samite_wire::hello::version_3).

use hmac::{Hmac, Mac};
use samite_types::{Error, ErrorKind, NodeId, Result};
use samite_wire::control::decode;
use samite_wire::frame::FrameKind;
use samite_wire::hello::Welcome;
use samite_wire::hello::version_3::{
    ChallengeVersion3, HelloVersion3, ProofVersion3, VERSION, WelcomeVersion3,
};

use sha2::Sha256;

use super::{NodePlace, NodeStep, frame};
use crate::identity::ProvedCredential;
use crate::key::ClusterKey;
use crate::proof::{Binding, ProofRole};

/// A hello that has come and the challenge that was sent.
#[derive(Debug)]
pub(crate) struct ExchangeVersion3 {
    hello: HelloVersion3,
    challenge: ChallengeVersion3,
}

impl ExchangeVersion3 {
    fn mac(&self, key: &ClusterKey, role: ProofRole, binding: Option<&Binding>) -> Hmac<Sha256> {
        let Self { hello, challenge } = self;
        let label: &[u8] = match role {
            ProofRole::Node => b"samite node proof v1",
            ProofRole::Client => b"samite client proof v1",
        };
        let mut mac = key
            .hmac()
            .chain_update(label)
            .chain_update(hello.nonce)
            .chain_update(challenge.nonce)
            .chain_update([hello.versions.0, hello.versions.1, challenge.version])
            .chain_update([u8::from(hello.wants_rings)])
            .chain_update(hello.client.get().to_le_bytes())
            .chain_update(hello.uid.to_le_bytes());
        if let Some(node) = hello.node {
            mac = mac.chain_update(b"node").chain_update(node.get().to_le_bytes());
        }
        mac = mac.chain_update(challenge.node.get().to_le_bytes());
        match binding {
            Some(binding) => mac.chain_update(b"tls").chain_update(binding),
            None => mac,
        }
    }

    fn prove(&self, key: &ClusterKey, role: ProofRole, binding: Option<&Binding>) -> [u8; 32] {
        self.mac(key, role, binding).finalize().into_bytes().into()
    }

    /// The node's side: takes a hello. Returns the challenge to send with it.
    ///
    /// # Errors
    /// `WrongVersion`: the peer speaks a newer one, too, and is to say so; `Denied`: the socket is
    /// for guests; `WrongKey`: the first cluster key counts no more; `Corrupt`.
    pub(super) fn challenge(body: &[u8], place: &NodePlace<'_>) -> Result<(Self, Vec<u8>)> {
        let hello: HelloVersion3 = decode(body)?;
        if hello.versions != (VERSION, VERSION) {
            // Or somebody between the two could have them speak the older one.
            let (oldest, newest) = hello.versions;
            let words = format!(
                "peer speaks versions {oldest} to {newest} and says so in the words of version {VERSION}"
            );
            return Err(Error::new(ErrorKind::WrongVersion, words));
        }
        Self::answer(hello, place)
    }

    fn answer(hello: HelloVersion3, place: &NodePlace<'_>) -> Result<(Self, Vec<u8>)> {
        if place.is_for_guests {
            let words = "this socket gives out tickets and takes nothing else";
            return Err(Error::new(ErrorKind::Denied, words));
        }
        let key = place.cluster_key(ClusterKey::FIRST)?;
        let mut nonce = [0; 32];
        place.entropy.fill(&mut nonce);
        let node = place.node;
        let challenge = ChallengeVersion3 { version: VERSION, node, nonce, proof: [0; 32] };
        let mut exchange = Self { hello, challenge };
        exchange.challenge.proof = exchange.prove(key, ProofRole::Node, place.binding);
        let bytes = frame(FrameKind::Challenge, &exchange.challenge);
        Ok((exchange, bytes))
    }

    /// The node's side: takes the proof.
    ///
    /// # Errors
    /// `WrongKey`, `Corrupt`.
    pub(super) fn proved(self, body: &[u8], place: &NodePlace<'_>) -> Result<NodeStep> {
        let ProofVersion3 { proof } = decode(body)?;
        let key = place.cluster_key(ClusterKey::FIRST)?;
        if self.mac(key, ProofRole::Client, place.binding).verify_slice(&proof).is_err() {
            return Err(Error::new(ErrorKind::WrongKey, "peer does not hold the cluster key"));
        }
        let HelloVersion3 { client, node, .. } = self.hello;
        let proved = ProvedCredential::Key;
        Ok(NodeStep::Proved { client, node, proved, wants_rings: false, version: VERSION })
    }

    pub(super) const fn node(&self) -> Option<NodeId> {
        self.hello.node
    }
}

/// The client's side: answers the challenge to its hello.
///
/// # Errors
/// `WrongKey`, `WrongVersion`, `Corrupt`.
pub(super) fn answer(
    hello: &HelloVersion3,
    body: &[u8],
    key: &ClusterKey,
    binding: Option<&Binding>,
) -> Result<(NodeId, Vec<u8>)> {
    let challenge: ChallengeVersion3 = decode(body)?;
    if challenge.version != VERSION {
        let words = format!("node answers by version {} to version {VERSION}", challenge.version);
        return Err(Error::new(ErrorKind::WrongVersion, words));
    }
    let exchange = ExchangeVersion3 { hello: hello.clone(), challenge };
    let proof = exchange.challenge.proof;
    if exchange.mac(key, ProofRole::Node, binding).verify_slice(&proof).is_err() {
        return Err(Error::new(ErrorKind::WrongKey, "node does not hold the cluster key"));
    }
    let proof = exchange.prove(key, ProofRole::Client, binding);
    Ok((exchange.challenge.node, frame(FrameKind::Proof, &ProofVersion3 { proof })))
}

/// Reads the welcome.
///
/// # Errors
/// `Corrupt`.
pub(super) fn welcome(body: &[u8]) -> Result<Welcome> {
    let WelcomeVersion3 { map_epoch, .. } = decode(body)?;
    Ok(Welcome { map_epoch, rings: None })
}

#[cfg(test)]
mod tests {
    use samite_types::{ClientId, Entropy, SystemEntropy};
    use samite_wire::control::encode;

    use super::super::{ClientSide, NodeSide};
    use super::*;
    use crate::credential::Credential;
    use crate::key_set::ClusterKeys;

    /// Only sevens.
    struct Sevens;

    impl Entropy for Sevens {
        fn fill(&self, out: &mut [u8]) {
            out.fill(7);
        }
    }

    fn place<'a>(keys: &'a ClusterKeys, entropy: &'a dyn Entropy) -> NodePlace<'a> {
        let node = NodeId(3);
        NodePlace { node, keys, is_for_guests: false, binding: None, now_s: 1_000_000, entropy }
    }

    fn first_key() -> ClusterKey {
        ClusterKey::new([1; 32])
    }

    fn bytes_of(hex: &str) -> Vec<u8> {
        let digits = hex.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
        digits.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
    }

    /// Body of a frame.
    fn body(frame: &[u8]) -> &[u8] {
        &frame[samite_wire::frame::HEADER_LEN..]
    }

    /// The bytes are not made by this code: they are those of the layout, and proofs of another
    /// implementation of HMAC.
    #[test]
    fn a_node_understands_the_bytes_of_version_3_and_answers_by_them() {
        let keys = ClusterKeys::new(first_key());
        let mut hello = vec![3, 3, 7, 0xe8, 0x07];
        hello.extend([1; 32]);
        hello.extend([1, 1, 9]);
        let mut side = NodeSide::Fresh;
        let step = side.step(FrameKind::Hello, &hello, &place(&keys, &Sevens)).unwrap();
        let NodeStep::Challenge { bytes, node } = step else { panic!("no challenge") };
        assert_eq!(node, Some(NodeId(9)));
        let mut expected = vec![3, 3];
        expected.extend([7; 32]);
        let proof = "2d281fa910d2a4225201871246b57699c9cc1752f1dcb430b00c46b24081247a";
        expected.extend(bytes_of(proof));
        assert_eq!(body(&bytes), expected);
        let proof = "26d92249e5c40dd74822d53bf141db645bc423a93e78b9359865d37d3e4a2bd1";
        let step = side.step(FrameKind::Proof, &bytes_of(proof), &place(&keys, &Sevens)).unwrap();
        let NodeStep::Proved { client, node, proved, wants_rings, version } = step else {
            panic!("nothing proved")
        };
        assert_eq!((client, node, proved), (ClientId(7), Some(NodeId(9)), ProvedCredential::Key));
        assert!(!wants_rings, "the arena is laid out in another way now");
        assert_eq!(version, VERSION);
        let welcome = super::super::welcome(samite_types::Epoch(5), None, version);
        assert_eq!(body(&welcome), [5, 0]);
    }

    #[test]
    fn both_sides_speak_version_3() {
        let keys = ClusterKeys::new(first_key());
        let at = place(&keys, &SystemEntropy);
        for (key, is_right) in [(first_key(), true), (ClusterKey::new([2; 32]), false)] {
            let credential = Credential::from(key);
            let names = (ClientId(7), None);
            let (client, hello) = ClientSide::start_version_3(names, &credential, &SystemEntropy);
            let refused = NodeSide::Fresh.step(FrameKind::Hello, body(&hello), &at).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::WrongVersion, "both know newer words");
            let hello: HelloVersion3 = decode(body(&hello)).unwrap();
            let (exchange, bytes) = ExchangeVersion3::answer(hello.clone(), &at).unwrap();
            let mut side = NodeSide::ChallengedVersion3(exchange);
            match client.challenged(FrameKind::Challenge, body(&bytes), None) {
                Ok((node, proof)) => {
                    assert!(is_right);
                    assert_eq!(node, NodeId(3));
                    let mut bent = body(&proof).to_vec();
                    assert!(matches!(
                        side.step(FrameKind::Proof, &bent, &at),
                        Ok(NodeStep::Proved { .. })
                    ));
                    bent[0] ^= 1;
                    let (exchange, _) = ExchangeVersion3::answer(hello, &at).unwrap();
                    let mut side = NodeSide::ChallengedVersion3(exchange);
                    let error = side.step(FrameKind::Proof, &bent, &at).unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::WrongKey);
                }
                Err(error) => {
                    assert!(!is_right);
                    assert_eq!(error.kind(), ErrorKind::WrongKey);
                }
            }
            let welcome = super::super::welcome(samite_types::Epoch(5), None, VERSION);
            let welcome = client.welcomed(FrameKind::Welcome, body(&welcome)).unwrap();
            assert_eq!((welcome.map_epoch, welcome.rings), (samite_types::Epoch(5), None));
        }
    }

    #[test]
    fn the_words_of_version_3_are_for_those_that_know_no_newer_ones() {
        let hello = |versions| HelloVersion3 {
            versions,
            client: ClientId(7),
            uid: 0,
            nonce: [1; 32],
            wants_rings: false,
            node: None,
        };
        let refusal = |versions, place: &NodePlace<'_>| {
            let step = NodeSide::Fresh.step(FrameKind::Hello, &encode(&hello(versions)), place);
            step.unwrap_err().kind()
        };
        let keys = ClusterKeys::new(first_key());
        let at = place(&keys, &SystemEntropy);
        assert_eq!(refusal((3, 4), &at), ErrorKind::WrongVersion);
        let guests = NodePlace { is_for_guests: true, ..place(&keys, &SystemEntropy) };
        assert_eq!(refusal((3, 3), &guests), ErrorKind::Denied);
        let changed = ClusterKeys::new(ClusterKey::numbered([1; 32], 2));
        assert_eq!(refusal((3, 3), &place(&changed, &SystemEntropy)), ErrorKind::WrongKey);
        let (client, _) =
            ClientSide::start_version_3((ClientId(7), None), &Credential::Nothing, &SystemEntropy);
        let error = client.challenged(FrameKind::Challenge, &[3], None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WrongVersion);
    }
}
