//! Tickets that a node gives out and renews.

use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt;
use samite_placement::ClusterMap;
use samite_transport::server::{ConnectionPeer, TicketLives};
use samite_transport::{ClusterKeys, PeerRole, SharedKeys, TlsAuthorities, ticket};
use samite_types::{Error, ErrorKind, Result};
use samite_wire::ticket::{
    IssuedTicket, KeyNumbers, KeyStep, TICKET_GROUPS_MAX, TICKET_VERSION, TicketClaims,
};

use crate::access::denied;
use crate::key_file;

/// Life of a ticket that a node gives out by itself.
pub(crate) const TICKET_LIFE: Duration = Duration::from_secs(24 * 3600);
/// Time for which such a ticket can be renewed.
pub(crate) const TICKET_RENEWABLE: Duration = Duration::from_secs(7 * 24 * 3600);

/// The user that the kernel names in place of one who has no number in the node's user namespace.
const OVERFLOW_UID: u32 = 65_534;

/// How a node gives out tickets.
#[derive(Debug)]
pub(crate) struct TicketOffice {
    pub cluster: String,
    pub keys: SharedKeys,
    /// Who signs the nodes' TLS certificates, where they have their own.
    pub authorities: Option<TlsAuthorities>,
    /// Where they are kept; `None`: nowhere, and they do not change.
    pub key_file: Option<PathBuf>,
    /// What is renewed, for the event loops.
    pub lives: Arc<TicketLives>,
}

impl TicketOffice {
    /// The answer with a ticket for a store with these nodes.
    pub fn answer(
        &self,
        (ticket, node_key): (Vec<u8>, [u8; 32]),
        map: Option<&ClusterMap>,
    ) -> IssuedTicket {
        let is_for_hosts = |url: &&String| url.starts_with("tcp://") || url.starts_with("tls://");
        let nodes = map.into_iter().flat_map(ClusterMap::nodes).filter_map(|node| {
            let url = node.addresses.iter().find(is_for_hosts)?;
            Some((node.node, url.clone()))
        });
        let authorities = self.authorities.as_ref();
        let authorities =
            authorities.map(|authorities| String::from_utf8_lossy(authorities.pem()).into_owned());
        let (cluster_id, nodes) = (*self.keys.load().id(), nodes.collect());
        IssuedTicket { ticket, node_key, cluster_id, nodes, authorities }
    }

    /// A ticket for the user at the other end of `socket`, at this time since 1970.
    ///
    /// # Errors
    /// `Denied`: not where tickets are given out; what the system says.
    pub fn issue(
        &self,
        peer: &ConnectionPeer,
        socket: BorrowedFd<'_>,
        public_key: [u8; 32],
        now: Duration,
    ) -> Result<(Vec<u8>, [u8; 32])> {
        if peer.identity.role != PeerRole::Guest {
            return Err(denied(peer, "ask for a ticket here: it has proved who it is"));
        }
        if peer.identity.uid == OVERFLOW_UID {
            let words = "the kernel does not tell the user: no number here, or uid 65534 itself";
            return Err(Error::new(ErrorKind::Denied, words));
        }
        let failed = |errno| Error::io("ask for the peer's groups", errno);
        let credentials = sockopt::socket_peercred(socket).map_err(failed)?;
        let mut gids = peer_groups(socket).map_err(failed)?;
        gids.insert(0, credentials.gid.as_raw());
        gids.truncate(TICKET_GROUPS_MAX);
        let issued_s = now.as_secs();
        let expires_s = issued_s + TICKET_LIFE.as_secs();
        let claims = TicketClaims {
            version: TICKET_VERSION,
            cluster: self.cluster.clone(),
            key_number: 0,
            uid: peer.identity.uid,
            gids,
            issued_s,
            expires_s,
            renewable_until_s: issued_s + TICKET_RENEWABLE.as_secs(),
            public_key,
        };
        let (ticket, node_key) = self.sign(claims)?;
        tracing::info!(uid = peer.identity.uid, expires_s, "gave out a ticket");
        Ok((ticket, node_key))
    }

    /// The ticket of `peer`, for as long a time from now as it was made for, and signed by the
    /// current key.
    ///
    /// # Errors
    /// `Denied`: it has none, or it cannot be renewed any more.
    pub fn renew(&self, peer: &ConnectionPeer, now: Duration) -> Result<(Vec<u8>, [u8; 32])> {
        let Some(claims) = &peer.identity.ticket else {
            return Err(denied(peer, "renew a ticket that it has not shown"));
        };
        let number = claims.key_number;
        if self.keys.load().find(number).is_none() {
            let words = format!("the ticket was signed by cluster key {number}, which is dropped");
            return Err(Error::new(ErrorKind::Denied, words));
        }
        let claims = renewed(claims, now.as_secs())?;
        let ticket = self.sign(claims.clone())?;
        self.lives.renewed(&claims, now.as_secs());
        Ok(ticket)
    }

    /// Makes a step of a change of the cluster key, and writes it to the key file first. The key that
    /// is dropped ends no connection.
    ///
    /// # Errors
    /// `Conflict`: the step does not follow; `WrongKey`: the key is not sealed by the current one;
    /// `Unsupported`: there is no key file; the error of the system.
    pub fn change_key(&self, step: &KeyStep) -> Result<KeyNumbers> {
        let before = self.keys.load();
        let after = match step {
            KeyStep::Tell => ClusterKeys::clone(&before),
            KeyStep::Prepare { number, sealed } => {
                // A step that comes again is sealed by a key that may be the one before by now.
                let opened = before.current().open_next(*number, sealed).or_else(|error| {
                    let other = before.other().ok_or(error)?;
                    other.open_next(*number, sealed)
                });
                before.with_next(&opened?)?
            }
            KeyStep::Switch { number } => before.switched(*number)?,
            KeyStep::Finish { number } => before.finished(*number)?,
        };
        if after != *before {
            let path = self.key_file.as_ref().ok_or_else(|| {
                Error::new(ErrorKind::Unsupported, "this node has no file for its key")
            })?;
            key_file::write(path, &after.to_bytes())?;
            let KeyNumbers { current, other } = after.numbers();
            tracing::info!(current, other, "cluster keys");
            self.keys.store(after.clone());
        }
        Ok(after.numbers())
    }

    fn sign(&self, claims: TicketClaims) -> Result<(Vec<u8>, [u8; 32])> {
        let keys = self.keys.load();
        Ok((ticket::issue(keys.current(), claims)?, keys.current().node_public_key()))
    }
}

/// The words of a ticket that is renewed at `now_s`, in seconds since 1970.
fn renewed(claims: &TicketClaims, now_s: u64) -> Result<TicketClaims> {
    let until = claims.renewable_until_s;
    let expires_s = now_s.saturating_add(claims.life_s()).min(until);
    if expires_s <= claims.expires_s {
        let words = format!("the ticket of uid {} cannot be renewed any more", claims.uid);
        return Err(Error::new(ErrorKind::Denied, words));
    }
    let issued_s = expires_s - claims.life_s();
    Ok(TicketClaims { issued_s, expires_s, ..claims.clone() })
}

/// Supplementary groups of the process at the other end of a unix socket, as the kernel tells.
fn peer_groups(socket: BorrowedFd<'_>) -> std::result::Result<Vec<u32>, Errno> {
    // One more than are wanted: who has more than fit gets the first ones.
    let mut gids = vec![0_u32; 1 << 16];
    let mut len = (gids.len() * size_of::<u32>()) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to the vector, which has as many, and the
    // length to `len`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERGROUPS,
            gids.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if result != 0 {
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    }
    gids.truncate(len as usize / size_of::<u32>());
    Ok(gids)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_kernel_tells_this_process_its_own_groups() {
        let (near, _far) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut told = peer_groups(std::os::fd::AsFd::as_fd(&near)).unwrap();
        let mut own: Vec<u32> =
            rustix::process::getgroups().unwrap().iter().map(|gid| gid.as_raw()).collect();
        told.sort_unstable();
        own.sort_unstable();
        assert_eq!(told, own);
    }

    proptest! {
        #[test]
        fn a_ticket_is_renewed_for_no_longer_than_its_owner_allowed(
            life in 1u64..1000,
            renewable in 0u64..5000,
            steps in proptest::collection::vec(0u64..700, 0..30),
        ) {
            let until = 1000 + life.max(renewable);
            let mut claims = TicketClaims {
                version: TICKET_VERSION,
                cluster: "weave".into(),
                key_number: 1,
                uid: 7,
                gids: vec![7],
                issued_s: 1000,
                expires_s: 1000 + life,
                renewable_until_s: until,
                public_key: [1; 32],
            };
            let mut now = 1000;
            for step in steps {
                now += step;
                if now >= claims.expires_s {
                    // No node takes it, so nobody can renew it.
                    break;
                }
                let Ok(next) = renewed(&claims, now) else {
                    prop_assert!(claims.expires_s >= until.min(now + life));
                    continue;
                };
                prop_assert!(next.expires_s > claims.expires_s && next.expires_s <= until);
                prop_assert!(next.expires_s <= now + life);
                prop_assert_eq!(next.life_s(), life, "the next one lasts as long");
                let same = TicketClaims {
                    issued_s: claims.issued_s,
                    expires_s: claims.expires_s,
                    ..next.clone()
                };
                prop_assert_eq!(&same, &claims);
                claims = next;
            }
        }
    }
}
