//! What a client proves to a node.

use std::fmt;
use std::sync::Arc;

use samite_wire::hello::HelloCredential;

use crate::authorities::TlsAuthorities;
use crate::key::ClusterKey;
use crate::ticket::UserTicket;

/// What a client proves to a node. Cheap to clone.
#[derive(Clone, PartialEq, Eq)]
pub enum Credential {
    /// The cluster key: its holder is the owner of the store, or a node.
    Key(Arc<ClusterKey>),
    /// A ticket: its holder is the user that it names.
    Ticket(Arc<UserTicket>),
    /// Nothing: its holder asks for a ticket.
    Nothing,
}

impl Credential {
    /// The cluster key, if it is one.
    #[must_use]
    pub fn key(&self) -> Option<&ClusterKey> {
        match self {
            Self::Key(key) => Some(key),
            Self::Ticket(_) | Self::Nothing => None,
        }
    }

    /// The ticket, if it is one.
    #[must_use]
    pub const fn ticket(&self) -> Option<&Arc<UserTicket>> {
        match self {
            Self::Ticket(ticket) => Some(ticket),
            Self::Key(_) | Self::Nothing => None,
        }
    }

    /// The same, for a cluster whose nodes show TLS certificates that these authorities have
    /// signed.
    #[must_use]
    pub fn with_authorities(&self, authorities: TlsAuthorities) -> Self {
        match self {
            Self::Key(key) => {
                Self::Key(Arc::new(ClusterKey::clone(key).with_authorities(authorities)))
            }
            Self::Ticket(ticket) => {
                Self::Ticket(Arc::new(UserTicket::clone(ticket).with_authorities(authorities)))
            }
            Self::Nothing => Self::Nothing,
        }
    }

    pub(crate) fn authorities(&self) -> Option<&TlsAuthorities> {
        match self {
            Self::Key(key) => key.authorities(),
            Self::Ticket(ticket) => ticket.authorities(),
            Self::Nothing => None,
        }
    }

    /// As the hello names it.
    pub(crate) fn named(&self) -> HelloCredential {
        match self {
            Self::Key(key) => HelloCredential::ClusterKey { number: key.number() },
            Self::Ticket(ticket) => HelloCredential::Ticket(ticket.bytes().to_vec()),
            Self::Nothing => HelloCredential::Nothing,
        }
    }

    /// Number of the cluster key that it comes of.
    pub(crate) fn key_number(&self) -> Option<u32> {
        match self {
            Self::Key(key) => Some(key.number()),
            Self::Ticket(ticket) => Some(ticket.claims().key_number),
            Self::Nothing => None,
        }
    }

    /// Public key by which the nodes prove themselves.
    pub(crate) fn node_key(&self) -> Option<[u8; 32]> {
        match self {
            Self::Key(key) => Some(key.node_public_key()),
            Self::Ticket(ticket) => Some(*ticket.node_key()),
            Self::Nothing => None,
        }
    }
}

impl From<ClusterKey> for Credential {
    fn from(key: ClusterKey) -> Self {
        Self::Key(Arc::new(key))
    }
}

impl From<&ClusterKey> for Credential {
    fn from(key: &ClusterKey) -> Self {
        Self::from(key.clone())
    }
}

impl From<&Self> for Credential {
    fn from(credential: &Self) -> Self {
        credential.clone()
    }
}

impl From<UserTicket> for Credential {
    fn from(ticket: UserTicket) -> Self {
        Self::Ticket(Arc::new(ticket))
    }
}

impl fmt::Debug for Credential {
    /// Leaves secrets out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(key) => key.fmt(f),
            Self::Ticket(ticket) => write!(f, "Ticket(uid {})", ticket.claims().uid),
            Self::Nothing => f.write_str("Nothing"),
        }
    }
}
