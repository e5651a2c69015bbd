//! Requests about tickets and cluster keys.

use samite_transport::server::{ConnId, ConnectionPeer, ReplySink};
use samite_types::{Clock as _, Error, ErrorKind, Result, SystemClock};
use samite_wire::control::{ControlReply, ControlRequest};

use super::ShardService;
use crate::access::{denied, is_trusted};
use crate::control_reply::ReplyTo;
use crate::shared::WorkerJob;

impl ShardService {
    pub(super) fn credential_request(
        &self,
        to: ReplyTo,
        peer: &ConnectionPeer,
        asked: ControlRequest,
        out: &ReplySink,
    ) -> Result<Option<ControlReply>> {
        match asked {
            ControlRequest::IssueTicket { public_key } => {
                self.issue_ticket(to.conn, peer, public_key, out).map(Some)
            }
            ControlRequest::RenewTicket => self.renew_ticket(peer).map(Some),
            ControlRequest::ChangeKey(_) if !is_trusted(peer) => {
                Err(denied(peer, "change the cluster key"))
            }
            ControlRequest::ChangeKey(step) => {
                self.shared.work(WorkerJob::ChangeKey { step, to }).map(|()| None)
            }
            _ => Err(ErrorKind::Internal.into()),
        }
    }

    fn issue_ticket(
        &self,
        conn: ConnId,
        peer: &ConnectionPeer,
        public_key: [u8; 32],
        out: &ReplySink,
    ) -> Result<ControlReply> {
        let socket = out.socket(conn).ok_or_else(|| Error::from(ErrorKind::Unavailable))?;
        let now = SystemClock.realtime();
        let issued = self.shared.tickets.issue(peer, socket, public_key, now)?;
        Ok(ControlReply::Ticket(self.shared.tickets.answer(issued, self.map.as_deref())))
    }

    fn renew_ticket(&self, peer: &ConnectionPeer) -> Result<ControlReply> {
        let ticket = self.shared.tickets.renew(peer, SystemClock.realtime())?;
        Ok(ControlReply::Ticket(self.shared.tickets.answer(ticket, self.map.as_deref())))
    }
}
