//! Who may have a worker, and as whom it runs.

use samite_transport::PeerIdentity;
use samite_types::{Error, ErrorKind, Result};

/// As whom a worker runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkerIdentity {
    /// The node's own user.
    Own(u32),
    /// Another user, as whom root starts it.
    Other(u32),
}

impl WorkerIdentity {
    /// For this peer of a node of `own`. `has_guests`: the node knows how workers of other users
    /// reach the store.
    ///
    /// # Errors
    /// `Denied`: the node cannot start a process of that user.
    pub(super) fn of(peer: &PeerIdentity, own: u32, has_guests: bool) -> Result<Self> {
        let uid = peer.uid;
        if uid == own {
            return Ok(Self::Own(uid));
        }
        let words = if own != 0 {
            format!("workers of this node run as its user, uid {own}, and not for uid {uid}")
        } else if !has_guests {
            format!("there are no workers for uid {uid}: the node gives out no tickets (--shared)")
        } else {
            return Ok(Self::Other(uid));
        };
        Err(Error::new(ErrorKind::Denied, words))
    }

    pub(super) const fn uid(self) -> u32 {
        match self {
            Self::Own(uid) | Self::Other(uid) => uid,
        }
    }
}

#[cfg(test)]
mod tests {
    use samite_transport::PeerRole;

    use super::*;

    fn of(uid: u32, own: u32, has_guests: bool) -> Option<WorkerIdentity> {
        let peer = PeerIdentity { uid, role: PeerRole::User, ticket: None };
        WorkerIdentity::of(&peer, own, has_guests).ok()
    }

    #[test]
    fn a_node_of_root_starts_workers_of_all_and_others_their_own() {
        for has_guests in [false, true] {
            assert_eq!(of(1000, 1000, has_guests), Some(WorkerIdentity::Own(1000)));
            assert_eq!(of(0, 0, has_guests), Some(WorkerIdentity::Own(0)));
            assert_eq!(of(1001, 1000, has_guests), None);
            // It would run with fewer rights than root has.
            assert_eq!(of(0, 1000, has_guests), None);
        }
        assert_eq!(of(1001, 0, true), Some(WorkerIdentity::Other(1001)));
        assert_eq!(of(1001, 0, false), None);
    }
}
