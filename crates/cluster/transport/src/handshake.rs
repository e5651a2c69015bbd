//! The handshake of [`samite_wire::hello`], without I/O: the messages of each side, and how it
//! reads the other's.

use samite_types::{ClientId, Entropy, Error, ErrorKind, NodeId, RequestId, Result};
use samite_wire::control::{decode, encode};
use samite_wire::frame::{
    CheckedHeader, FrameHeader, FrameKind, HEADER_LEN, VERSION, VERSION_OLDEST,
};
use samite_wire::hello::{Challenge, Goodbye, Hello, Proof, Welcome};
use samite_wire::limits::HANDSHAKE_LEN_MAX;
use zerocopy::IntoBytes;

use crate::key::{ClusterKey, ProofExchange, ProofRole};
use crate::tls::Binding;

/// Longest reason in a goodbye that is recorded, in bytes.
const REASON_LEN_MAX: usize = 512;

/// A handshake frame, ready to send.
pub(crate) fn frame<T: serde::Serialize>(kind: FrameKind, message: &T) -> Vec<u8> {
    let body = encode(message);
    let mut bytes = Vec::with_capacity(HEADER_LEN + body.len());
    bytes.extend_from_slice(FrameHeader::build(kind, RequestId(0), 0, &body, &[]).as_bytes());
    bytes.extend_from_slice(&body);
    bytes
}

/// A goodbye, ready to send.
pub(crate) fn goodbye(error: &Error) -> Vec<u8> {
    let mut reason = error.message().to_owned();
    let mut len = reason.len().min(REASON_LEN_MAX);
    while !reason.is_char_boundary(len) {
        len -= 1;
    }
    reason.truncate(len);
    frame(FrameKind::Goodbye, &Goodbye { kind: error.kind().code(), reason })
}

/// The peer's reason for hanging up.
pub(crate) fn read_goodbye(body: &[u8]) -> Error {
    match decode::<Goodbye>(body) {
        Ok(Goodbye { kind, reason }) => {
            let kind = ErrorKind::from_code(kind).unwrap_or(ErrorKind::Unavailable);
            let reason: String = reason.chars().take(REASON_LEN_MAX).collect();
            Error::new(kind, reason)
        }
        Err(error) => Error::from(error).context("goodbye"),
    }
}

/// Checks the header of a frame that comes before the peer has proved anything.
pub(crate) fn check_header(header: &CheckedHeader) -> Result<()> {
    if header.payload_len > 0 || header.body_len > HANDSHAKE_LEN_MAX {
        let len = header.len_after();
        return Err(Error::new(ErrorKind::TooLarge, format!("frame of {len} bytes in handshake")));
    }
    Ok(())
}

fn unexpected(kind: FrameKind) -> Error {
    Error::new(ErrorKind::Corrupt, format!("unexpected {kind:?} frame in handshake"))
}

/// The node's last message, and the one that it expects.
#[derive(Debug)]
pub(crate) enum NodeSide {
    /// Nothing; a hello.
    Fresh,
    /// A challenge; a proof.
    Challenged { hello: Hello, challenge: Challenge },
}

/// The node's next step.
#[derive(Debug)]
pub(crate) enum NodeStep {
    /// Send these bytes and wait for the proof; `node`: the node that the peer says it is.
    Challenge { bytes: Vec<u8>, node: Option<NodeId> },
    /// The client holds the key.
    Proved { client: ClientId, node: Option<NodeId>, uid: u32, wants_rings: bool },
}

impl NodeSide {
    /// Takes the client's next frame.
    ///
    /// # Errors
    /// `WrongVersion`, `WrongKey`, `Corrupt`: say goodbye.
    pub(crate) fn step(
        &mut self,
        kind: FrameKind,
        body: &[u8],
        node: NodeId,
        key: &ClusterKey,
        binding: Option<&Binding>,
        entropy: &dyn Entropy,
    ) -> Result<NodeStep> {
        match (std::mem::replace(self, Self::Fresh), kind) {
            (Self::Fresh, FrameKind::Hello) => {
                let hello: Hello = decode(body)?;
                let version = common_version(hello.versions)?;
                let mut nonce = [0; 32];
                entropy.fill(&mut nonce);
                let mut challenge = Challenge { version, node, nonce, proof: [0; 32] };
                let exchange = ProofExchange { hello: &hello, challenge: &challenge, binding };
                challenge.proof = key.prove(ProofRole::Node, &exchange);
                let bytes = frame(FrameKind::Challenge, &challenge);
                let node = hello.node;
                *self = Self::Challenged { hello, challenge };
                Ok(NodeStep::Challenge { bytes, node })
            }
            (Self::Challenged { hello, challenge }, FrameKind::Proof) => {
                let Proof { proof } = decode(body)?;
                let exchange = ProofExchange { hello: &hello, challenge: &challenge, binding };
                if !key.proves(ProofRole::Client, &exchange, &proof) {
                    return Err(Error::new(
                        ErrorKind::WrongKey,
                        "peer does not hold the cluster key",
                    ));
                }
                let Hello { client, node, uid, wants_rings, .. } = hello;
                Ok(NodeStep::Proved { client, node, uid, wants_rings })
            }
            (_, FrameKind::Goodbye) => Err(read_goodbye(body)),
            (_, kind) => Err(unexpected(kind)),
        }
    }
}

/// The newest version that both sides speak.
fn common_version((oldest, newest): (u8, u8)) -> Result<u8> {
    let version = newest.min(VERSION);
    if version < oldest.max(VERSION_OLDEST) {
        return Err(Error::new(
            ErrorKind::WrongVersion,
            format!(
                "peer speaks versions {oldest} to {newest}, this is {VERSION_OLDEST} to {VERSION}"
            ),
        ));
    }
    Ok(version)
}

/// The client's side.
#[derive(Debug)]
pub(crate) struct ClientSide {
    hello: Hello,
}

impl ClientSide {
    /// Starts, with the bytes to send first. `node`: the node that connects, if it is one.
    pub(crate) fn start(
        client: ClientId,
        node: Option<NodeId>,
        wants_rings: bool,
        entropy: &dyn Entropy,
    ) -> (Self, Vec<u8>) {
        let mut nonce = [0; 32];
        entropy.fill(&mut nonce);
        let versions = (VERSION_OLDEST, VERSION);
        let uid = rustix::process::geteuid().as_raw();
        let hello = Hello { versions, client, uid, nonce, wants_rings, node };
        let bytes = frame(FrameKind::Hello, &hello);
        (Self { hello }, bytes)
    }

    /// Checks the node's challenge. Returns the node, and the proof to send.
    ///
    /// # Errors
    /// `WrongVersion`, `WrongKey`, `Corrupt`, or the error in the node's goodbye.
    pub(crate) fn challenged(
        &self,
        kind: FrameKind,
        body: &[u8],
        key: &ClusterKey,
        binding: Option<&Binding>,
    ) -> Result<(NodeId, Vec<u8>)> {
        match kind {
            FrameKind::Challenge => {}
            FrameKind::Goodbye => return Err(read_goodbye(body)),
            kind => return Err(unexpected(kind)),
        }
        let challenge: Challenge = decode(body)?;
        common_version((challenge.version, challenge.version))?;
        let exchange = ProofExchange { hello: &self.hello, challenge: &challenge, binding };
        if !key.proves(ProofRole::Node, &exchange, &challenge.proof) {
            return Err(Error::new(ErrorKind::WrongKey, "node does not hold the cluster key"));
        }
        let proof = key.prove(ProofRole::Client, &exchange);
        Ok((challenge.node, frame(FrameKind::Proof, &Proof { proof })))
    }

    /// Reads the welcome.
    ///
    /// # Errors
    /// `Corrupt`, or the error in the node's goodbye.
    pub(crate) fn welcomed(kind: FrameKind, body: &[u8]) -> Result<Welcome> {
        match kind {
            FrameKind::Welcome => Ok(decode(body)?),
            FrameKind::Goodbye => Err(read_goodbye(body)),
            kind => Err(unexpected(kind)),
        }
    }
}

/// Whether a user may map this node's memory, and be a node: the node's own user, and root, which
/// can anyway.
pub(crate) const fn is_trusted(peer_uid: u32, own_uid: u32) -> bool {
    peer_uid == own_uid || peer_uid == 0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use samite_types::SystemEntropy;

    use super::*;

    fn body(frame: &[u8]) -> (FrameKind, &[u8]) {
        let (raw, rest) = frame.split_first_chunk().unwrap();
        let header = CheckedHeader::parse(raw).unwrap();
        check_header(&header).unwrap();
        header.verify(rest, &[]).unwrap();
        (header.kind, rest)
    }

    fn key(byte: u8) -> ClusterKey {
        ClusterKey::new([byte; 32])
    }

    fn exchange(client_key: &ClusterKey, node_key: &ClusterKey) -> Result<NodeStep> {
        let (client, hello) = ClientSide::start(ClientId(7), Some(NodeId(9)), true, &SystemEntropy);
        let mut node = NodeSide::Fresh;
        let (kind, bytes) = body(&hello);
        let NodeStep::Challenge { bytes: challenge, .. } =
            node.step(kind, bytes, NodeId(3), node_key, None, &SystemEntropy)?
        else {
            panic!("no challenge");
        };
        let (kind, bytes) = body(&challenge);
        let (id, proof) = client.challenged(kind, bytes, client_key, None)?;
        assert_eq!(id, NodeId(3));
        let (kind, bytes) = body(&proof);
        node.step(kind, bytes, NodeId(3), node_key, None, &SystemEntropy)
    }

    #[test]
    fn both_sides_prove_the_key() {
        let step = exchange(&key(1), &key(1)).unwrap();
        let NodeStep::Proved { client, node, uid, wants_rings } = step else { panic!("no proof") };
        assert_eq!((client, node, wants_rings), (ClientId(7), Some(NodeId(9)), true));
        assert_eq!(uid, rustix::process::geteuid().as_raw());
        assert_eq!(exchange(&key(1), &key(2)).unwrap_err().kind(), ErrorKind::WrongKey);
    }

    #[test]
    fn a_client_that_skips_its_own_check_is_refused_by_the_node() {
        let (_, hello) = ClientSide::start(ClientId(7), None, false, &SystemEntropy);
        let mut node = NodeSide::Fresh;
        let (kind, bytes) = body(&hello);
        node.step(kind, bytes, NodeId(0), &key(1), None, &SystemEntropy).unwrap();
        let proof = frame(FrameKind::Proof, &Proof { proof: [0; 32] });
        let (kind, bytes) = body(&proof);
        let error = node.step(kind, bytes, NodeId(0), &key(1), None, &SystemEntropy).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WrongKey);
    }

    #[test]
    fn a_proof_sent_back_to_its_maker_is_no_proof() {
        let (_, hello) = ClientSide::start(ClientId(7), None, false, &SystemEntropy);
        let mut node = NodeSide::Fresh;
        let (kind, bytes) = body(&hello);
        let step = node.step(kind, bytes, NodeId(0), &key(1), None, &SystemEntropy).unwrap();
        let NodeStep::Challenge { bytes: challenge, .. } = step else { panic!("no challenge") };
        let Challenge { proof, .. } = decode(body(&challenge).1).unwrap();
        let echoed = frame(FrameKind::Proof, &Proof { proof });
        let (kind, bytes) = body(&echoed);
        assert!(node.step(kind, bytes, NodeId(0), &key(1), None, &SystemEntropy).is_err());
    }

    #[test]
    fn versions_that_do_not_meet_are_refused() {
        assert_eq!(common_version((1, VERSION + 9)).unwrap(), VERSION);
        let refused = [(VERSION + 1, VERSION + 9), (0, VERSION_OLDEST - 1)];
        for versions in refused {
            let error = common_version(versions).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::WrongVersion);
        }
    }

    #[test]
    fn only_the_own_user_and_root_are_trusted() {
        assert!(is_trusted(1000, 1000));
        assert!(is_trusted(0, 1000));
        assert!(!is_trusted(1001, 1000));
        assert!(!is_trusted(1000, 0));
    }

    #[test]
    fn a_goodbye_keeps_its_kind_and_a_bounded_reason() {
        let long = goodbye(&Error::new(ErrorKind::WrongKey, "ä".repeat(600)));
        assert!(long.len() <= HEADER_LEN + HANDSHAKE_LEN_MAX);
        let error = read_goodbye(body(&long).1);
        assert_eq!((error.kind(), error.message().len()), (ErrorKind::WrongKey, 512));
    }

    proptest! {
        #[test]
        fn no_bytes_upset_either_side(
            kind in 1u8..=11,
            challenged in any::<bool>(),
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let kinds = [
                FrameKind::Hello, FrameKind::Challenge, FrameKind::Proof, FrameKind::Welcome,
                FrameKind::Goodbye, FrameKind::Request, FrameKind::Reply, FrameKind::Control,
                FrameKind::ControlReply, FrameKind::Peer, FrameKind::PeerReply,
            ];
            let kind = kinds[usize::from(kind) - 1];
            let (client, hello) = ClientSide::start(ClientId(7), None, false, &SystemEntropy);
            let mut node = NodeSide::Fresh;
            if challenged {
                let (kind, bytes) = body(&hello);
                node.step(kind, bytes, NodeId(0), &key(1), None, &SystemEntropy).unwrap();
            }
            let step = node.step(kind, &bytes, NodeId(0), &key(1), None, &SystemEntropy);
            let proved = matches!(step, Ok(NodeStep::Proved { .. }));
            prop_assert!(!proved);
            prop_assert!(client.challenged(kind, &bytes, &key(1), None).is_err());
            let _ = ClientSide::welcomed(kind, &bytes);
        }
    }
}
