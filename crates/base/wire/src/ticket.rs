//! Tickets: what a user proves in place of the cluster key.
//!
//! A ticket says who its holder is. A holder of the cluster key signs it, every node can check it,
//! and it is worth nothing without the private key whose public key stands in it.

use samite_types::NodeId;
use serde::{Deserialize, Serialize};

use crate::WireError;
use crate::control::{decode, encode};

/// The layout of [`TicketClaims`].
pub const TICKET_VERSION: u8 = 1;
/// Most groups of a ticket's user.
pub const TICKET_GROUPS_MAX: usize = 64;
/// Longest name of a cluster in a ticket, in bytes.
pub const TICKET_CLUSTER_LEN_MAX: usize = 64;
/// Longest encoded [`SignedTicket`], in bytes: it fits into a hello.
pub const TICKET_LEN_MAX: usize = 768;

/// The words of a ticket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TicketClaims {
    /// [`TICKET_VERSION`].
    pub version: u8,
    /// Name of the cluster, for people.
    pub cluster: String,
    /// Number of the cluster key that it is signed by.
    pub key_number: u32,
    /// The user.
    pub uid: u32,
    /// The user's groups, without order.
    pub gids: Vec<u32>,
    /// When it was signed, in seconds since 1970-01-01 UTC.
    pub issued_s: u64,
    /// It is accepted before this time.
    pub expires_s: u64,
    /// It can be renewed up to this time at the latest.
    pub renewable_until_s: u64,
    /// Ed25519 public key of its holder.
    pub public_key: [u8; 32],
}

/// A ticket, as it is kept and sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedTicket {
    /// [`TicketClaims`], encoded: the bytes that are signed.
    pub claims: Vec<u8>,
    /// HMAC-SHA-256 of them under a key that comes of the cluster key.
    pub mac: [u8; 32],
}

/// Numbers of the cluster keys that count at a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyNumbers {
    /// Of the key that connections are made with and tickets are signed with.
    pub current: u32,
    /// Of the key before or after it.
    pub other: Option<u32>,
}

/// A step of a change of the cluster key, at one node. Each may come again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeyStep {
    /// None: only tell.
    Tell,
    /// The key of this number is going to follow.
    Prepare {
        /// Its number.
        number: u32,
        /// The key, sealed by the current one.
        sealed: Vec<u8>,
    },
    /// It is the current one from now on; the one before it counts still.
    Switch {
        /// Its number.
        number: u32,
    },
    /// It is the only one from now on.
    Finish {
        /// Its number.
        number: u32,
    },
}

/// A ticket as a node gives it out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IssuedTicket {
    /// A [`SignedTicket`], encoded.
    pub ticket: Vec<u8>,
    /// Ed25519 public key of the nodes; another one when the cluster key is changed.
    pub node_key: [u8; 32],
    /// Tells the cluster from others of its name; the same when the cluster key is changed.
    pub cluster_id: [u8; 8],
    /// Nodes, and where other hosts reach them, as URLs.
    pub nodes: Vec<(NodeId, String)>,
    /// Authorities that sign the nodes' TLS certificates, as PEM, where they have their own.
    pub authorities: Option<String>,
}

impl TicketClaims {
    /// The bytes to be signed.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        encode(self)
    }

    /// Whether it takes the place of `before`: of the same holder, and by a newer cluster key, or by
    /// the same one and for longer.
    #[must_use]
    pub fn follows(&self, before: &Self) -> bool {
        let order = |claims: &Self| (claims.key_number, claims.expires_s);
        (self.uid, self.public_key) == (before.uid, before.public_key)
            && order(self) > order(before)
    }

    /// The length, in seconds, for which it was signed.
    #[must_use]
    pub const fn life_s(&self) -> u64 {
        self.expires_s.saturating_sub(self.issued_s)
    }
}

impl SignedTicket {
    /// The bytes that are kept and sent.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        encode(self)
    }

    /// Reads a ticket and its words; whether it is signed rightly is another question.
    ///
    /// # Errors
    /// [`WireError`]: over a limit, of another version, malformed, or bytes left over.
    pub fn parse(bytes: &[u8]) -> Result<(Self, TicketClaims), WireError> {
        if bytes.len() > TICKET_LEN_MAX {
            return Err(WireError::OverLimit("ticket"));
        }
        let ticket: Self = decode(bytes).map_err(|_| WireError::Unknown("ticket"))?;
        if ticket.claims.first() != Some(&TICKET_VERSION) {
            return Err(WireError::Unknown("ticket version"));
        }
        let claims: TicketClaims =
            decode(&ticket.claims).map_err(|_| WireError::Unknown("ticket"))?;
        if claims.gids.len() > TICKET_GROUPS_MAX {
            return Err(WireError::OverLimit("groups of a ticket"));
        }
        if claims.cluster.len() > TICKET_CLUSTER_LEN_MAX {
            return Err(WireError::OverLimit("cluster name of a ticket"));
        }
        Ok((ticket, claims))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::hello::{Hello, HelloCredential};
    use crate::limits::HANDSHAKE_LEN_MAX;

    fn claims(gids: Vec<u32>, cluster: String) -> TicketClaims {
        TicketClaims {
            version: TICKET_VERSION,
            cluster,
            key_number: u32::MAX,
            uid: u32::MAX,
            gids,
            issued_s: u64::MAX,
            expires_s: u64::MAX,
            renewable_until_s: u64::MAX,
            public_key: [255; 32],
        }
    }

    fn signed(claims: &TicketClaims) -> Vec<u8> {
        SignedTicket { claims: claims.to_bytes(), mac: [255; 32] }.to_bytes()
    }

    #[test]
    fn the_longest_ticket_fits_into_a_hello() {
        let gids = vec![u32::MAX; TICKET_GROUPS_MAX];
        let bytes = signed(&claims(gids, "x".repeat(TICKET_CLUSTER_LEN_MAX)));
        assert!(bytes.len() <= TICKET_LEN_MAX, "{}", bytes.len());
        SignedTicket::parse(&bytes).unwrap();
        let hello = Hello {
            versions: (255, 255),
            client: samite_types::ClientId(u64::MAX),
            nonce: [255; 32],
            wants_rings: true,
            node: Some(samite_types::NodeId(u32::MAX)),
            credential: HelloCredential::Ticket(vec![255; TICKET_LEN_MAX]),
        };
        assert!(encode(&hello).len() <= HANDSHAKE_LEN_MAX);
    }

    #[test]
    fn limits_and_versions_are_checked() {
        let more = signed(&claims(vec![0; TICKET_GROUPS_MAX + 1], String::new()));
        assert!(SignedTicket::parse(&more).is_err());
        let long = signed(&claims(Vec::new(), "x".repeat(TICKET_CLUSTER_LEN_MAX + 1)));
        assert!(SignedTicket::parse(&long).is_err());
        let newer = TicketClaims { version: 2, ..claims(Vec::new(), String::new()) };
        assert!(SignedTicket::parse(&signed(&newer)).is_err());
        let mut trailing = signed(&claims(Vec::new(), String::new()));
        trailing.push(0);
        assert!(SignedTicket::parse(&trailing).is_err());
    }

    proptest! {
        #[test]
        fn garbage_is_refused_or_within_limits(
            bytes in proptest::collection::vec(any::<u8>(), 0..1000),
        ) {
            if let Ok((ticket, claims)) = SignedTicket::parse(&bytes) {
                prop_assert!(claims.gids.len() <= TICKET_GROUPS_MAX);
                prop_assert!(ticket.claims.len() <= TICKET_LEN_MAX);
            }
        }
    }

    #[test]
    fn a_ticket_follows_one_of_its_holder_by_an_older_key_or_for_a_shorter_time() {
        let ticket = |key_number, expires_s| TicketClaims {
            key_number,
            expires_s,
            ..claims(vec![7], "weave".into())
        };
        let now = ticket(2, 100);
        assert!(ticket(2, 101).follows(&now) && ticket(3, 50).follows(&now));
        assert!(!now.follows(&now), "the same one");
        assert!(!ticket(1, 200).follows(&now), "of the key before");
        let others = [
            TicketClaims { uid: 7, ..ticket(3, 200) },
            TicketClaims { public_key: [1; 32], ..ticket(3, 200) },
        ];
        assert!(others.iter().all(|other| !other.follows(&now)));
    }

    #[test]
    fn a_ticket_with_any_bit_changed_is_refused_or_says_something_else() {
        let original = signed(&claims(vec![1, 2, 3], "weave".into()));
        let (first, first_claims) = SignedTicket::parse(&original).unwrap();
        let mut parsed = 0;
        for bit in 0..original.len() * 8 {
            let mut bent = original.clone();
            bent[bit / 8] ^= 1_u8 << (bit % 8);
            let Ok((ticket, claims)) = SignedTicket::parse(&bent) else { continue };
            parsed += 1;
            assert_eq!(ticket.to_bytes(), bent, "bit {bit}");
            assert!(ticket.mac != first.mac || claims != first_claims, "bit {bit}");
        }
        assert!(parsed > 32 * 8, "at least where the signature was changed: {parsed}");
    }
}
