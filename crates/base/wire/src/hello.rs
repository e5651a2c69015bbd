//! The handshake: versions, then mutual proof of the cluster key.
//!
//! ```text
//! client                                   node
//!   Hello {versions, client, …}       ──▶
//!                                     ◀──  Challenge {version, node, nonce, proof over both nonces}
//!   Proof {proof over both nonces}    ──▶
//!                                     ◀──  Welcome {…}        (shared memory: with descriptors)
//! ```
//!
//! Proofs are HMAC-SHA-256 under the cluster key, over a role label and both nonces, so that neither side's
//! proof can be replayed as the other's.
//!
//! Nodes connect to each other in the same way, and say which one they are. A peer that holds the
//! key is believed: the key is what makes a node one of the cluster. Where the kernel tells the
//! user, only the node's own user (or root) can be a node.

use samite_types::{ClientId, Epoch, NodeId};
use serde::{Deserialize, Serialize};

/// Client's first message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Oldest and newest protocol version the client speaks.
    pub versions: (u8, u8),
    /// Session identity.
    pub client: ClientId,
    /// User. Where the kernel tells the peer's user, that one counts.
    pub uid: u32,
    /// Random.
    pub nonce: [u8; 32],
    /// The client asks for shared-memory rings (unix sockets only).
    pub wants_rings: bool,
    /// The node that connects, if it is one.
    pub node: Option<NodeId>,
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
    /// The node's proof.
    pub proof: [u8; 32],
}

/// Client's proof.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    /// The client's proof.
    pub proof: [u8; 32],
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
