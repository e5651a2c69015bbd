//! Who the peer of a connection is.

use std::sync::Arc;

use samite_types::{Error, ErrorKind, Result};
use samite_wire::ticket::TicketClaims;

/// What a peer may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerRole {
    /// The store's owner: proves the cluster key, and is the node's own user (or root) where the
    /// kernel tells.
    Owner,
    /// A node of the cluster: the same, and says that it is one.
    Node,
    /// A user.
    User,
    /// Somebody who has proved nothing, and may ask for a ticket.
    Guest,
}

/// Who the peer of a connection is: as the kernel tells and as it has proved, never as it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerIdentity {
    /// The user.
    pub uid: u32,
    /// What it may be.
    pub role: PeerRole,
    /// The ticket that was proved, if one was.
    pub ticket: Option<Arc<TicketClaims>>,
}

/// What a peer has proved in the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProvedCredential {
    Nothing,
    Key,
    Ticket(Arc<TicketClaims>),
}

impl PeerIdentity {
    /// The user's groups, as far as they are known.
    #[must_use]
    pub fn gids(&self) -> &[u32] {
        self.ticket.as_ref().map_or(&[], |ticket| &ticket.gids)
    }

    /// Whether the peer may map the node's memory. `kernel_uid`: its user where the kernel tells;
    /// `own_uid`: the node's.
    ///
    /// # Errors
    /// `Denied`: another user, or the cluster key was not proved.
    pub(crate) fn check_memory_access(
        &self,
        (kernel_uid, own_uid): (Option<u32>, u32),
    ) -> Result<()> {
        let is_own = kernel_uid.is_some_and(|uid| is_trusted(uid, own_uid));
        let is_by_key = matches!(self.role, PeerRole::Owner | PeerRole::Node);
        let words = match kernel_uid {
            Some(_) if is_own && is_by_key => return Ok(()),
            Some(uid) if is_own => {
                format!("uid {uid} has to prove the cluster key for that: no ticket is enough")
            }
            Some(uid) => format!("it is for uid {own_uid}, as which the node runs, not for {uid}"),
            None => format!("it is for uid {own_uid} on the node's host alone"),
        };
        Err(Error::new(ErrorKind::Denied, format!("shared memory: {words}")))
    }

    /// The peer that has proved this. `kernel_uid`: its user where the kernel tells; `own_uid`: the
    /// node's; `is_node`: it says that it is a node.
    ///
    /// # Errors
    /// `Denied`: a node without the key or of another user; a ticket of another user than the
    /// kernel tells.
    pub(crate) fn of(
        proved: ProvedCredential,
        (kernel_uid, own_uid): (Option<u32>, u32),
        is_node: bool,
    ) -> Result<Self> {
        let is_trusted = kernel_uid.is_none_or(|uid| is_trusted(uid, own_uid));
        let refused = |words: String| Err(Error::new(ErrorKind::Denied, words));
        match proved {
            ProvedCredential::Key if is_node && !is_trusted => {
                let uid = kernel_uid.unwrap_or(own_uid);
                refused(format!("nodes run as the same user: this one as uid {own_uid}, not {uid}"))
            }
            ProvedCredential::Key => {
                let role = match (is_trusted, is_node) {
                    (_, true) => PeerRole::Node,
                    (true, false) => PeerRole::Owner,
                    (false, false) => PeerRole::User,
                };
                Ok(Self { uid: kernel_uid.unwrap_or(own_uid), role, ticket: None })
            }
            _ if is_node => refused("a node proves the cluster key".into()),
            ProvedCredential::Ticket(ticket) => {
                let uid = ticket.uid;
                if let Some(kernel_uid) = kernel_uid
                    && kernel_uid != uid
                    && !is_trusted
                {
                    return refused(format!("uid {kernel_uid} shows the ticket of uid {uid}"));
                }
                Ok(Self { uid, role: PeerRole::User, ticket: Some(ticket) })
            }
            ProvedCredential::Nothing => match kernel_uid {
                Some(uid) => Ok(Self { uid, role: PeerRole::Guest, ticket: None }),
                None => refused("nothing is proved".into()),
            },
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
    use super::*;

    const OWN: u32 = 1000;

    fn ticket(uid: u32) -> ProvedCredential {
        ProvedCredential::Ticket(Arc::new(TicketClaims {
            version: 1,
            cluster: "c".into(),
            key_number: 1,
            uid,
            gids: vec![7, 8],
            issued_s: 0,
            expires_s: 1,
            renewable_until_s: 1,
            public_key: [0; 32],
        }))
    }

    fn of(proved: ProvedCredential, kernel: Option<u32>, is_node: bool) -> Option<(u32, PeerRole)> {
        let identity = PeerIdentity::of(proved, (kernel, OWN), is_node).ok()?;
        Some((identity.uid, identity.role))
    }

    #[test]
    fn only_the_own_user_and_root_are_trusted() {
        assert!(is_trusted(1000, 1000));
        assert!(is_trusted(0, 1000));
        assert!(!is_trusted(1001, 1000));
        assert!(!is_trusted(1000, 0));
    }

    #[test]
    fn the_key_makes_an_owner_or_a_node_unless_the_kernel_tells_another_user() {
        let key = || ProvedCredential::Key;
        assert_eq!(of(key(), None, false), Some((OWN, PeerRole::Owner)));
        assert_eq!(of(key(), None, true), Some((OWN, PeerRole::Node)));
        assert_eq!(of(key(), Some(0), false), Some((0, PeerRole::Owner)));
        assert_eq!(of(key(), Some(OWN), true), Some((OWN, PeerRole::Node)));
        assert_eq!(of(key(), Some(1001), false), Some((1001, PeerRole::User)));
        assert_eq!(of(key(), Some(1001), true), None);
        let error = PeerIdentity::of(key(), (Some(1001), OWN), true).unwrap_err();
        assert!(error.message().contains("1000") && error.message().contains("1001"), "{error}");
    }

    #[test]
    fn memory_is_for_the_own_user_with_the_key_and_a_refusal_says_what_is_missing() {
        let check = |proved, kernel_uid: Option<u32>| {
            let identity = PeerIdentity::of(proved, (kernel_uid, OWN), false).unwrap();
            identity.check_memory_access((kernel_uid, OWN)).map_err(|error| error.to_string())
        };
        let key = || ProvedCredential::Key;
        assert_eq!((check(key(), Some(OWN)), check(key(), Some(0))), (Ok(()), Ok(())));
        let by_ticket = check(ticket(OWN), Some(OWN)).unwrap_err();
        assert!(by_ticket.contains("uid 1000 has to prove the cluster key"), "{by_ticket}");
        let other = check(key(), Some(1001)).unwrap_err();
        assert!(other.contains("for uid 1000") && other.contains("not for 1001"), "{other}");
        assert!(check(key(), None).is_err(), "over the network");
        assert!(check(ticket(1001), Some(1001)).is_err());
    }

    #[test]
    fn a_ticket_makes_its_user_and_nothing_more() {
        assert_eq!(of(ticket(1001), None, false), Some((1001, PeerRole::User)));
        assert_eq!(of(ticket(1001), Some(1001), false), Some((1001, PeerRole::User)));
        assert_eq!(of(ticket(OWN), None, false), Some((OWN, PeerRole::User)));
        assert_eq!(of(ticket(1001), Some(1002), false), None, "another user's");
        assert_eq!(of(ticket(1001), Some(0), false), Some((1001, PeerRole::User)));
        assert_eq!(of(ticket(OWN), None, true), None, "no node");
        let identity = PeerIdentity::of(ticket(1001), (None, OWN), false).unwrap();
        assert_eq!(identity.gids(), [7, 8]);
    }

    #[test]
    fn nothing_makes_a_guest_whom_the_kernel_names() {
        let nothing = || ProvedCredential::Nothing;
        assert_eq!(of(nothing(), Some(1001), false), Some((1001, PeerRole::Guest)));
        assert_eq!(of(nothing(), None, false), None);
        assert_eq!(of(nothing(), Some(OWN), true), None);
    }
}
