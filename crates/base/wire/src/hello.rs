//! The handshake: versions, then mutual proof of what each side holds.
//!
//! ```text
//! client                                   node
//!   Hello {versions, client, credential …} ──▶
//!                                     ◀──  Challenge {version, node, nonce, proof}
//!   Proof {proof}                     ──▶
//!                                     ◀──  Welcome {…}        (shared memory: with descriptors)
//! ```
//!
//! A proof covers a label of its maker's role, the whole hello, the whole challenge but the proof
//! in it, and the TLS connection if there is one. So neither side's proof can be replayed as the
//! other's, or by another connection, and nobody between them can change what they agree on.
//!
//! - With the **cluster key**, both proofs are HMAC-SHA-256 under it.
//! - With a **ticket** ([`crate::ticket`]), the node's proof is an Ed25519 signature by the key pair
//!   of the cluster's nodes, whose public key the holder got along with the ticket; the client's is
//!   one by the private key of the ticket.
//! - With **nothing**, by a socket where tickets are given out, both proofs are empty.
//!
//! Nodes connect to each other in the same way, and say which one they are. A peer that holds the
//! key is believed: the key is what makes a node one of the cluster. Where the kernel tells the
//! user, only the node's own user (or root) can be a node.

pub mod version_3;

use samite_types::{ClientId, Epoch, NodeId};
use serde::{Deserialize, Serialize};

/// Newest protocol version this build speaks.
pub const VERSION: u8 = 4;
/// Oldest protocol version this build speaks.
pub const VERSION_OLDEST: u8 = version_3::VERSION;
/// Oldest protocol version whose peers shake hands with these messages; before: [`version_3`].
pub const HELLO_SINCE: u8 = 4;

/// Client's first message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Oldest and newest protocol version that the client speaks; the oldest is [`HELLO_SINCE`] or
    /// newer.
    pub versions: (u8, u8),
    /// Session identity.
    pub client: ClientId,
    /// What the client is going to prove.
    pub credential: HelloCredential,
    /// Random.
    pub nonce: [u8; 32],
    /// The client asks for shared-memory rings (unix sockets only).
    pub wants_rings: bool,
    /// The node that connects, if it is one.
    pub node: Option<NodeId>,
}

/// The credential that a client names in its hello.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HelloCredential {
    /// None: it asks for a ticket, where tickets are given out.
    Nothing,
    /// The cluster key of this number.
    ClusterKey {
        /// Which of the cluster's keys.
        number: u32,
    },
    /// A [`SignedTicket`](crate::ticket::SignedTicket), encoded.
    Ticket(Vec<u8>),
}

/// Node's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Challenge {
    /// The version both will speak: the newest that both know.
    pub version: u8,
    /// The node that answers.
    pub node: NodeId,
    /// Random.
    pub nonce: [u8; 32],
    /// The node's proof: 32 bytes by the cluster key, 64 for a ticket, none for nothing.
    pub proof: Vec<u8>,
}

/// Client's proof.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    /// The client's proof, as long as the node's.
    pub proof: Vec<u8>,
}

/// The session begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// Cluster map epoch at the node.
    pub map_epoch: Epoch,
    /// Shared memory, if asked for and given; its descriptors come with this message, in the order
    /// rings, doorbell (eventfd), arena.
    pub rings: Option<RingLayout>,
}

/// Sizes of the shared memory that comes with a [`Welcome`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingLayout {
    /// Bytes of the ring for requests; a power of two.
    pub request_len: u32,
    /// Bytes of the ring for replies; a power of two.
    pub reply_len: u32,
    /// Bytes of the arena; 0 if the node shares none.
    pub arena_len: u64,
    /// The submission queue in the arena that is the client's own; `None`: there is none left.
    pub queue: Option<u16>,
}

/// Why a side ends a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Goodbye {
    /// Code of a [`samite_types::ErrorKind`].
    pub kind: u8,
    /// Words for the log; at most 512 bytes are kept.
    pub reason: String,
}
