//! The handshake of [`samite_wire::hello`], without I/O: the messages of each side, and how it
//! reads the other's.

mod version_3;

use std::sync::Arc;

use samite_types::{ClientId, Entropy, Epoch, Error, ErrorKind, NodeId, RequestId, Result};
use samite_wire::control::{decode, encode};
use samite_wire::frame::{CheckedHeader, FrameHeader, FrameKind, HEADER_LEN};
use samite_wire::hello::version_3::{self as wire_version_3, HelloVersion3, WelcomeVersion3};
use samite_wire::hello::{
    Challenge, Goodbye, HELLO_SINCE, Hello, HelloCredential, Proof, RingLayout, VERSION,
    VERSION_OLDEST, Welcome,
};
use samite_wire::limits::HANDSHAKE_LEN_MAX;
use samite_wire::ticket::TicketClaims;
use version_3::ExchangeVersion3;
use zerocopy::IntoBytes;

use crate::credential::Credential;
use crate::identity::ProvedCredential;
use crate::key::ClusterKey;
use crate::key_set::ClusterKeys;
use crate::proof::{Binding, ProofExchange, ProofRole};
use crate::signing::is_signed;
use crate::ticket;

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

/// The welcome of a peer that speaks this version, ready to send.
pub(crate) fn welcome(map_epoch: Epoch, rings: Option<RingLayout>, version: u8) -> Vec<u8> {
    if version < HELLO_SINCE {
        return frame(FrameKind::Welcome, &WelcomeVersion3 { map_epoch, rings: None });
    }
    frame(FrameKind::Welcome, &Welcome { map_epoch, rings })
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

/// The end of a connection by a client, who may say anything: no refusal of this side.
pub(crate) fn client_goodbye(body: &[u8]) -> Error {
    let error = read_goodbye(body);
    Error::new(ErrorKind::Unavailable, format!("peer said goodbye: {error}"))
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
    /// The same with a peer of version 3.
    ChallengedVersion3(ExchangeVersion3),
}

/// The node's next step.
#[derive(Debug)]
pub(crate) enum NodeStep {
    /// Send these bytes and wait for the proof; `node`: the node that the peer says it is.
    Challenge { bytes: Vec<u8>, node: Option<NodeId> },
    /// The client has proved this.
    Proved {
        client: ClientId,
        node: Option<NodeId>,
        proved: ProvedCredential,
        wants_rings: bool,
        /// The version that both speak.
        version: u8,
    },
}

/// The node and the connection in whose handshake a step is made.
pub(crate) struct NodePlace<'a> {
    pub(crate) node: NodeId,
    pub(crate) keys: &'a ClusterKeys,
    /// Those who have proved nothing may come, and nobody else.
    pub(crate) is_for_guests: bool,
    pub(crate) binding: Option<&'a Binding>,
    /// Seconds since 1970.
    pub(crate) now_s: u64,
    pub(crate) entropy: &'a dyn Entropy,
}

impl NodePlace<'_> {
    fn cluster_key(&self, number: u32) -> Result<&ClusterKey> {
        self.keys.find(number).ok_or_else(|| {
            let current = self.keys.current().number();
            let words = format!("cluster key {number} does not count here; key {current} does");
            Error::new(ErrorKind::WrongKey, words)
        })
    }

    /// The ticket's words and the key that it was signed by, if it counts now.
    fn ticket(&self, bytes: &[u8]) -> Result<(TicketClaims, &ClusterKey)> {
        let (claims, key) = ticket::check(bytes, |number| self.keys.find(number))?;
        ticket::check_time(&claims, self.now_s)?;
        Ok((claims, key))
    }

    fn check_kind(&self, credential: &HelloCredential) -> Result<()> {
        let words = match (credential, self.is_for_guests) {
            (HelloCredential::Nothing, false) => "the cluster key or a ticket is needed here",
            (HelloCredential::Nothing, true) | (_, false) => return Ok(()),
            (_, true) => "this socket gives out tickets and takes nothing else",
        };
        Err(Error::new(ErrorKind::Denied, words))
    }

    fn prove(&self, exchange: &ProofExchange<'_>) -> Result<Vec<u8>> {
        let transcript = || exchange.transcript(ProofRole::Node);
        Ok(match &exchange.hello.credential {
            HelloCredential::Nothing => Vec::new(),
            HelloCredential::ClusterKey { number } => {
                self.cluster_key(*number)?.prove(ProofRole::Node, exchange)
            }
            HelloCredential::Ticket(bytes) => self.ticket(bytes)?.1.node_pair().sign(&transcript()),
        })
    }

    fn proved(&self, exchange: &ProofExchange<'_>, proof: &[u8]) -> Result<ProvedCredential> {
        let refused = |words| Err(Error::new(ErrorKind::WrongKey, words));
        match &exchange.hello.credential {
            HelloCredential::Nothing => Ok(ProvedCredential::Nothing),
            HelloCredential::ClusterKey { number } => {
                if !self.cluster_key(*number)?.proves(ProofRole::Client, exchange, proof) {
                    return refused("peer does not hold the cluster key".to_owned());
                }
                Ok(ProvedCredential::Key)
            }
            HelloCredential::Ticket(bytes) => {
                let (claims, _) = self.ticket(bytes)?;
                let transcript = exchange.transcript(ProofRole::Client);
                if !is_signed(&claims.public_key, &transcript, proof) {
                    let uid = claims.uid;
                    return refused(format!(
                        "peer does not hold the private key of the ticket of uid {uid}"
                    ));
                }
                Ok(ProvedCredential::Ticket(Arc::new(claims)))
            }
        }
    }
}

impl NodeSide {
    /// Takes the client's next frame.
    ///
    /// # Errors
    /// `WrongVersion`, `WrongKey`, `Denied`, `Corrupt`: say goodbye. `Unavailable`: the client has.
    pub(crate) fn step(
        &mut self,
        kind: FrameKind,
        body: &[u8],
        place: &NodePlace<'_>,
    ) -> Result<NodeStep> {
        let binding = place.binding;
        match (std::mem::replace(self, Self::Fresh), kind) {
            (Self::Fresh, FrameKind::Hello) if wire_version_3::is_hello(body) => {
                let (exchange, bytes) = ExchangeVersion3::challenge(body, place)?;
                let node = exchange.node();
                *self = Self::ChallengedVersion3(exchange);
                Ok(NodeStep::Challenge { bytes, node })
            }
            (Self::ChallengedVersion3(exchange), FrameKind::Proof) => exchange.proved(body, place),
            (Self::Fresh, FrameKind::Hello) => {
                let hello: Hello = decode(body)?;
                let version = common_version(hello.versions)?;
                place.check_kind(&hello.credential)?;
                let mut nonce = [0; 32];
                place.entropy.fill(&mut nonce);
                let node = place.node;
                let mut challenge = Challenge { version, node, nonce, proof: Vec::new() };
                let exchange = ProofExchange { hello: &hello, challenge: &challenge, binding };
                challenge.proof = place.prove(&exchange)?;
                let bytes = frame(FrameKind::Challenge, &challenge);
                let node = hello.node;
                *self = Self::Challenged { hello, challenge };
                Ok(NodeStep::Challenge { bytes, node })
            }
            (Self::Challenged { hello, challenge }, FrameKind::Proof) => {
                let Proof { proof } = decode(body)?;
                let exchange = ProofExchange { hello: &hello, challenge: &challenge, binding };
                let proved = place.proved(&exchange, &proof)?;
                let Hello { client, node, wants_rings, .. } = hello;
                let version = challenge.version;
                Ok(NodeStep::Proved { client, node, proved, wants_rings, version })
            }
            (_, FrameKind::Goodbye) => Err(client_goodbye(body)),
            (_, kind) => Err(unexpected(kind)),
        }
    }
}

/// The newest version that both sides speak.
fn common_version((oldest, newest): (u8, u8)) -> Result<u8> {
    let version = newest.min(VERSION);
    if version < oldest.max(HELLO_SINCE) {
        return Err(Error::new(
            ErrorKind::WrongVersion,
            format!(
                "peer speaks versions {oldest} to {newest}, this is {VERSION_OLDEST} to {VERSION}"
            ),
        ));
    }
    Ok(version)
}

/// A client's first message.
#[derive(Debug)]
enum SentHello {
    Own(Hello),
    Version3(HelloVersion3),
}

/// The client's side.
#[derive(Debug)]
pub(crate) struct ClientSide<'c> {
    hello: SentHello,
    credential: &'c Credential,
}

impl<'c> ClientSide<'c> {
    /// Begins, in the words of the newest version. Returns the hello to send.
    pub(crate) fn start(
        (client, node): (ClientId, Option<NodeId>),
        wants_rings: bool,
        credential: &'c Credential,
        entropy: &dyn Entropy,
    ) -> (Self, Vec<u8>) {
        let mut nonce = [0; 32];
        entropy.fill(&mut nonce);
        let versions = (HELLO_SINCE, VERSION);
        let hello =
            Hello { versions, client, credential: credential.named(), nonce, wants_rings, node };
        let bytes = frame(FrameKind::Hello, &hello);
        (Self { hello: SentHello::Own(hello), credential }, bytes)
    }

    /// Begins in the words of version 3, with the first cluster key. It says that this side knows
    /// newer ones: a node that does, too, refuses it.
    pub(crate) fn start_version_3(
        (client, node): (ClientId, Option<NodeId>),
        credential: &'c Credential,
        entropy: &dyn Entropy,
    ) -> (Self, Vec<u8>) {
        let mut nonce = [0; 32];
        entropy.fill(&mut nonce);
        let versions = (VERSION_OLDEST, VERSION);
        let uid = rustix::process::geteuid().as_raw();
        let hello = HelloVersion3 { versions, client, uid, nonce, wants_rings: false, node };
        let bytes = frame(FrameKind::Hello, &hello);
        (Self { hello: SentHello::Version3(hello), credential }, bytes)
    }

    /// Checks the node's challenge. Returns the node, and the proof to send.
    ///
    /// # Errors
    /// `WrongVersion`, `WrongKey`, `Corrupt`, or the error in the node's goodbye.
    pub(crate) fn challenged(
        &self,
        kind: FrameKind,
        body: &[u8],
        binding: Option<&Binding>,
    ) -> Result<(NodeId, Vec<u8>)> {
        match kind {
            FrameKind::Challenge => {}
            FrameKind::Goodbye => return Err(read_goodbye(body)),
            kind => return Err(unexpected(kind)),
        }
        let hello = match (&self.hello, self.credential) {
            (SentHello::Own(hello), _) => hello,
            (SentHello::Version3(hello), Credential::Key(key)) => {
                return version_3::answer(hello, body, key, binding);
            }
            (SentHello::Version3(_), _) => {
                return Err(Error::new(
                    ErrorKind::WrongVersion,
                    "node knows the cluster key alone",
                ));
            }
        };
        let challenge: Challenge = decode(body)?;
        common_version((challenge.version, challenge.version))?;
        let exchange = ProofExchange { hello, challenge: &challenge, binding };
        let transcript = |role| exchange.transcript(role);
        let (is_proved, proof, what) = match self.credential {
            Credential::Nothing => (true, Vec::new(), ""),
            Credential::Key(key) => (
                key.proves(ProofRole::Node, &exchange, &challenge.proof),
                key.prove(ProofRole::Client, &exchange),
                "the cluster key",
            ),
            Credential::Ticket(ticket) => (
                is_signed(ticket.node_key(), &transcript(ProofRole::Node), &challenge.proof),
                ticket.pair().sign(&transcript(ProofRole::Client)),
                "the key of the nodes that the ticket was made for",
            ),
        };
        if !is_proved {
            return Err(Error::new(ErrorKind::WrongKey, format!("node does not hold {what}")));
        }
        Ok((challenge.node, frame(FrameKind::Proof, &Proof { proof })))
    }

    /// Reads the welcome.
    ///
    /// # Errors
    /// `Corrupt`, or the error in the node's goodbye.
    pub(crate) fn welcomed(&self, kind: FrameKind, body: &[u8]) -> Result<Welcome> {
        match kind {
            FrameKind::Welcome if matches!(self.hello, SentHello::Version3(_)) => {
                version_3::welcome(body)
            }
            FrameKind::Welcome => Ok(decode(body)?),
            FrameKind::Goodbye => Err(read_goodbye(body)),
            kind => Err(unexpected(kind)),
        }
    }
}

#[cfg(test)]
mod tests;
