//! The handshake as peers of protocol version 3 speak it: only the cluster key can be proved, the
//! client states its user, and nothing else differs.
//!
//! Nodes are upgraded one after the other, so both forms are spoken for a while. A hello tells them
//! apart by its first byte, the oldest version: 3 here, 4 or more in [`super::Hello`].

use samite_types::{ClientId, Epoch, NodeId};
use serde::{Deserialize, Serialize};

/// The version that this is about.
pub const VERSION: u8 = 3;

/// Client's first message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HelloVersion3 {
    /// Oldest and newest version the client speaks; the oldest is [`VERSION`].
    pub versions: (u8, u8),
    /// Session identity.
    pub client: ClientId,
    /// User. Nobody believes it where the kernel tells it or the cluster key is proved.
    pub uid: u32,
    /// Random.
    pub nonce: [u8; 32],
    /// The client asks for shared-memory rings.
    pub wants_rings: bool,
    /// Set by a node that connects to another one.
    pub node: Option<NodeId>,
}

/// Node's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChallengeVersion3 {
    /// [`VERSION`].
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
pub struct ProofVersion3 {
    /// The client's proof.
    pub proof: [u8; 32],
}

/// The session begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WelcomeVersion3 {
    /// Cluster map epoch at the node.
    pub map_epoch: Epoch,
    /// Sizes of the shared memory that comes with it, when there is some; none is ever asked for or
    /// given now: arenas are laid out in another way.
    pub rings: Option<(u32, u32, u64)>,
}

/// Whether this body of a hello frame is a [`HelloVersion3`].
#[must_use]
pub fn is_hello(body: &[u8]) -> bool {
    body.first() == Some(&VERSION)
}
