//! The credential that a session connects with.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use samite_transport::client::NodeLink;
use samite_transport::ticket::UserTicket;
use samite_transport::{Address, Credential, TlsAuthorities};
use samite_types::{ClientId, Clock, Deadline, Error, ErrorKind, Result, SystemClock};
use samite_wire::control::{ControlReply, ControlRequest};
use samite_wire::ticket::{IssuedTicket, TicketClaims};

use crate::runtime::ClusterDir;

/// Shortest time between two tries to renew a ticket, twice.
const RENEWAL_PAUSE: Duration = Duration::from_secs(2);
/// Time that a node has to renew one.
const RENEWAL_TIMEOUT: Duration = Duration::from_secs(5);

/// The credential that a session connects with. Where it has a home it is read again when it is
/// refused: keys are changed and tickets are renewed while clients run.
#[derive(Debug)]
pub(crate) struct CredentialSlot {
    credential: RwLock<Credential>,
    home: Option<ClusterDir>,
    /// That a node renews it no more has been logged since it last did.
    is_refusal_logged: AtomicBool,
    /// That it cannot be written home has been logged since it last was.
    is_unwritten_logged: AtomicBool,
}

impl CredentialSlot {
    pub(crate) const fn new(credential: Credential, home: Option<ClusterDir>) -> Self {
        Self {
            credential: RwLock::new(credential),
            home,
            is_refusal_logged: AtomicBool::new(false),
            is_unwritten_logged: AtomicBool::new(false),
        }
    }

    /// As it is now.
    pub(crate) fn load(&self) -> Credential {
        self.credential.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Connects, and once more with the credential at home if this one is refused and that one is
    /// another.
    ///
    /// # Errors
    /// As [`NodeLink::connect`].
    pub(crate) fn connect(
        &self,
        address: &Address,
        client: ClientId,
        deadline: Deadline,
    ) -> Result<NodeLink> {
        let credential = self.load();
        match NodeLink::connect(address, &credential, client, deadline) {
            Err(error) if error.kind() == ErrorKind::WrongKey => match self.reload(&credential) {
                Ok(Some(other)) => NodeLink::connect(address, &other, client, deadline),
                Ok(None) => Err(error),
                Err(unread) => {
                    let words = format!("{error}; there may be another credential, but: {unread}");
                    Err(Error::new(ErrorKind::WrongKey, words))
                }
            },
            result => result,
        }
    }

    /// When a ticket is to be renewed, on the monotonic clock in nanoseconds; never for a key, nor
    /// for a ticket that lasts as long as any that is renewed. That is when half of what is left of
    /// its life is over.
    pub(crate) fn renewal_due_ns(&self) -> u64 {
        let credential = self.load();
        let Some(ticket) = credential.ticket() else { return u64::MAX };
        let (claims, now) = (ticket.claims(), SystemClock.realtime());
        let end = Duration::from_secs(claims.expires_s);
        if end.max(now) >= Duration::from_secs(claims.renewable_until_s) {
            return u64::MAX;
        }
        let left = end.saturating_sub(now).max(RENEWAL_PAUSE);
        let due = (SystemClock.monotonic() + left / 2).as_nanos();
        u64::try_from(due).unwrap_or(u64::MAX)
    }

    /// Has the node at the other end renew the ticket, by `deadline`, which is that of a call that
    /// waits meanwhile, and within 5 s; keeps the new one, and writes it home. No error: the old
    /// one counts until it ends.
    pub(crate) fn renew(&self, link: &NodeLink, deadline: Deadline) {
        let credential = self.load();
        let Some(ticket) = credential.ticket() else { return };
        let by = deadline.min(Deadline::after(RENEWAL_TIMEOUT));
        match ask_for_renewed(ticket, link, by) {
            Ok((issued, renewed)) => {
                self.is_refusal_logged.store(false, Ordering::Relaxed);
                self.keep(&issued, renewed, by);
            }
            Err(error) if !self.is_refusal_logged.swap(true, Ordering::Relaxed) => {
                let TicketClaims { uid, expires_s, .. } = *ticket.claims();
                tracing::warn!(uid, expires_s, "the ticket was not renewed: {error}");
            }
            Err(_) => {}
        }
    }

    /// Puts a renewed ticket in the place of the one that is used, here and at home, unless that
    /// one has changed meanwhile.
    fn keep(&self, issued: &IssuedTicket, renewed: UserTicket, deadline: Deadline) {
        if !self.replace(renewed) {
            return;
        }
        let Some(home) = &self.home else { return };
        // Others who read the file find the new one, or renew theirs.
        match home.keep_renewed(issued, deadline) {
            Ok(()) => self.is_unwritten_logged.store(false, Ordering::Relaxed),
            Err(error) if !self.is_unwritten_logged.swap(true, Ordering::Relaxed) => {
                tracing::warn!("a renewed ticket was not written: {error}");
            }
            Err(_) => {}
        }
    }

    /// Uses a renewed ticket, if it follows the one that is used now. Whether it does.
    fn replace(&self, renewed: UserTicket) -> bool {
        let mut now = self.credential.write().unwrap_or_else(PoisonError::into_inner);
        let follows = now.ticket().is_some_and(|now| renewed.claims().follows(now.claims()));
        if follows {
            *now = renewed.into();
        }
        follows
    }

    /// The credential at home, if it is another one than `refused`.
    ///
    /// # Errors
    /// As [`ClusterDir::read_credential`].
    fn reload(&self, refused: &Credential) -> Result<Option<Credential>> {
        let Some(home) = &self.home else { return Ok(None) };
        let other = home.read_credential()?;
        if other == *refused {
            return Ok(None);
        }
        *self.credential.write().unwrap_or_else(PoisonError::into_inner) = other.clone();
        Ok(Some(other))
    }
}

/// Asks the node at the other end for a ticket in the place of this one.
fn ask_for_renewed(
    ticket: &UserTicket,
    link: &NodeLink,
    deadline: Deadline,
) -> Result<(IssuedTicket, UserTicket)> {
    let reply = link.control(&ControlRequest::RenewTicket, deadline)?.checked();
    match reply.map_err(|error| error.context(link.node()))? {
        ControlReply::Ticket(issued) => {
            let mut renewed = ticket.renewed(issued.ticket.clone(), issued.node_key)?;
            if let Some(pem) = &issued.authorities {
                let authorities = TlsAuthorities::from_pem(pem.clone().into_bytes())?;
                renewed = renewed.with_authorities(authorities);
            }
            Ok((issued, renewed))
        }
        _ => Err(Error::new(ErrorKind::Corrupt, "the node answers another question")),
    }
}

#[cfg(test)]
mod tests {
    use samite_transport::ticket::issue;
    use samite_transport::{ClusterKey, SigningPair};
    use samite_wire::ticket::TICKET_VERSION;

    use super::*;

    /// A ticket by the key of this number, which counts up to `expires_s`.
    fn ticket(key: u32, expires_s: u64, renewable_until_s: u64) -> UserTicket {
        let (key, pair) = (ClusterKey::numbered([1; 32], key), SigningPair::from_seed([2; 32]));
        let claims = TicketClaims {
            version: TICKET_VERSION,
            cluster: "weave".into(),
            key_number: 0,
            uid: 7,
            gids: vec![7],
            issued_s: 0,
            expires_s,
            renewable_until_s,
            public_key: pair.public_key(),
        };
        UserTicket::new(issue(&key, claims).unwrap(), pair, key.node_public_key()).unwrap()
    }

    #[test]
    fn a_renewed_ticket_does_not_replace_what_has_come_meanwhile() {
        let slot = CredentialSlot::new(ticket(1, 100, 1000).into(), None);
        assert!(slot.replace(ticket(1, 200, 1000)));
        assert!(!slot.replace(ticket(1, 150, 1000)), "another thread has a later one");
        assert!(slot.replace(ticket(2, 150, 1000)), "by a newer key");
        assert!(!slot.replace(ticket(1, 900, 1000)), "by the key before");
        assert_eq!(slot.load().ticket().unwrap().claims().expires_s, 150);
        let key = CredentialSlot::new(ClusterKey::new([1; 32]).into(), None);
        assert!(!key.replace(ticket(1, 200, 1000)), "the key was read at home meanwhile");
        assert!(key.load().key().is_some());
    }

    #[test]
    fn no_renewal_is_due_that_would_be_refused() {
        let now_s = SystemClock.realtime().as_secs();
        let due = |expires_s, until_s| {
            CredentialSlot::new(ticket(1, expires_s, until_s).into(), None).renewal_due_ns()
        };
        let half = (SystemClock.monotonic() + Duration::from_secs(500)).as_nanos() as u64;
        let second = Duration::from_secs(10).as_nanos() as u64;
        assert!(due(now_s + 1000, now_s + 2000).abs_diff(half) < second);
        assert_eq!(due(now_s + 1000, now_s + 1000), u64::MAX);
        assert_eq!(due(now_s - 10, now_s - 5), u64::MAX, "it cannot be renewed any more");
    }
}
