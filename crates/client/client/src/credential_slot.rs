//! The credential that a session connects with.

use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use samite_transport::client::{NodeLink, OutgoingRequest};
use samite_transport::{Address, Credential};
use samite_types::{ClientId, Clock, Deadline, ErrorKind, Result, SystemClock};
use samite_wire::control::{ControlReply, ControlRequest, decode, encode};
use samite_wire::frame::FrameKind;

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
}

impl CredentialSlot {
    pub(crate) const fn new(credential: Credential, home: Option<ClusterDir>) -> Self {
        Self { credential: RwLock::new(credential), home }
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
                Some(other) => NodeLink::connect(address, &other, client, deadline),
                None => Err(error),
            },
            result => result,
        }
    }

    /// When a ticket is to be renewed, on the monotonic clock in nanoseconds; never for a key. That
    /// is when half of what is left of its life is over.
    pub(crate) fn renewal_due_ns(&self) -> u64 {
        let credential = self.load();
        let Some(ticket) = credential.ticket() else { return u64::MAX };
        let end = Duration::from_secs(ticket.claims().expires_s);
        let left = end.saturating_sub(SystemClock.realtime()).max(RENEWAL_PAUSE);
        let due = (SystemClock.monotonic() + left / 2).as_nanos();
        u64::try_from(due).unwrap_or(u64::MAX)
    }

    /// Has the node at the other end renew the ticket; keeps the new one, and writes it home. No
    /// error: the old one counts until it ends.
    pub(crate) fn renew(&self, link: &NodeLink) {
        let credential = self.load();
        let Some(ticket) = credential.ticket() else { return };
        let body = encode(&ControlRequest::RenewTicket);
        let request = OutgoingRequest { kind: FrameKind::Control, body: &body, payload: &[] };
        let by = Deadline::after(RENEWAL_TIMEOUT);
        let reply = link.call(request, by, |reply| decode::<ControlReply>(reply.body()));
        let Ok(Ok(ControlReply::Ticket(issued))) = reply else { return };
        let Ok(renewed) = ticket.renewed(issued.ticket.clone(), issued.node_key) else { return };
        if renewed.claims().expires_s > ticket.claims().expires_s {
            *self.credential.write().unwrap_or_else(PoisonError::into_inner) = renewed.into();
            // Others who read the file find the new one, or renew theirs.
            let _ = self.home.as_ref().map(|home| home.keep_renewed(&issued, by));
        }
    }

    /// The credential at home, if it is another one than `refused`.
    fn reload(&self, refused: &Credential) -> Option<Credential> {
        let other = self.home.as_ref()?.read_credential().ok()?;
        if other == *refused {
            return None;
        }
        *self.credential.write().unwrap_or_else(PoisonError::into_inner) = other.clone();
        Some(other)
    }
}
