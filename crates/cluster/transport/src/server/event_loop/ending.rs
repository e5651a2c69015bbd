//! How connections end, and the loop.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFlags, epoll};
use samite_cpu::timespec;
use samite_types::{Clock, Error, ErrorKind, SystemClock};

use super::super::ration::RationedLine;
use super::{ConnId, ConnectionPhase, EventLoop, EventSource, NodeService, PeerRole, token};
use crate::handshake::goodbye;
use crate::socket::poll_for;
use crate::ticket::ended;

/// Time to send what is left when the loop ends.
const LAST_FLUSH: Duration = Duration::from_secs(1);

impl EventLoop {
    /// Ends a connection and logs why.
    pub(super) fn end(&mut self, index: usize, error: &Error, service: &mut dyn NodeService) {
        let Some(connection) = self.connections.get_mut(index).and_then(Option::take) else {
            return;
        };
        let id = connection.id;
        let is_closed = error.kind() == ErrorKind::Unavailable;
        if is_closed || error.kind() == ErrorKind::Interrupted {
            tracing::debug!("{id} ended: {error}");
        } else {
            let uid = match &connection.phase {
                ConnectionPhase::Open(peer) => Some(peer.identity.uid),
                ConnectionPhase::Outgoing | ConnectionPhase::Handshake(_) => connection.origin.uid,
            };
            let is_stranger = match &connection.phase {
                ConnectionPhase::Open(peer) => peer.identity.role == PeerRole::Guest,
                ConnectionPhase::Outgoing => false,
                ConnectionPhase::Handshake(_) => true,
            };
            let line = is_stranger.then(|| self.stranger_line(uid, error));
            match line {
                None => tracing::warn!(kind = ?error.kind(), uid, "{id} dropped: {error}"),
                Some(Some(more)) => {
                    tracing::warn!(kind = ?error.kind(), uid, "{id} dropped: {error}{more}");
                }
                Some(None) => {}
            }
            // A courtesy; whether it arrives does not matter.
            if !connection.layer.is_begun() {
                self.replies.push_raw(id, &goodbye(error));
            }
            self.replies.flush(id);
        }
        if let Some(rings) = &connection.rings {
            // The client holds this descriptor too, so that closing it here would not end the watch.
            let _ = epoll::delete(&self.epoll, rings.doorbell());
            self.awake.retain(|awake| *awake != index);
        }
        self.watch.forget_handshake(id);
        let is_broken = !is_closed || self.replies.is_bent(id);
        let socket = self.replies.remove(id, matches!(connection.phase, ConnectionPhase::Open(_)));
        self.free.push(index);
        if connection.is_open() {
            if is_broken {
                service.broken(id);
            }
            service.closed(id);
        }
        if connection.shares_memory {
            match socket.filter(|socket| self.linger(id, socket)) {
                Some(socket) => self.lingering.push((id, socket)),
                None => service.released(id),
            }
        }
    }

    /// Keeps a socket whose peer may be alive, until it closes it: it sees that this side has
    /// nothing more to say. `false`: it has closed it.
    fn linger(&self, id: ConnId, socket: &OwnedFd) -> bool {
        let hung_up = |flags: PollFlags| flags.intersects(PollFlags::HUP | PollFlags::ERR);
        let data = token(EventSource::Lingering, id.serial(), id.index());
        // The kernel tells of both without being asked for them, also if they came before.
        let is_watched = epoll::modify(&self.epoll, socket, data, epoll::EventFlags::empty());
        let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Write);
        let now = poll_for(socket.as_fd(), PollFlags::empty(), Duration::ZERO);
        // Where it cannot be watched, what it shares is never used again.
        !now.is_ok_and(hung_up) || is_watched.is_err()
    }

    /// The peer of a connection that ended earlier has closed it, too.
    pub(super) fn lingering_closed(
        &mut self,
        serial: u32,
        index: usize,
        service: &mut dyn NodeService,
    ) {
        let is_meant =
            |(id, _): &(ConnId, OwnedFd)| id.index() == index && id.serial() & 0xff_ffff == serial;
        if let Some(at) = self.lingering.iter().position(is_meant) {
            let (id, _) = self.lingering.swap_remove(at);
            service.released(id);
        }
    }

    /// Whether a refusal of a stranger is worth a line in the log: the same one of the same user is
    /// so once in a minute, whichever thread it meets.
    fn stranger_line(&mut self, uid: Option<u32>, error: &Error) -> Option<RationedLine> {
        let now = SystemClock.monotonic();
        let is_refusal = matches!(error.kind(), ErrorKind::WrongKey | ErrorKind::Denied);
        if is_refusal && !self.options.refusals.is_first(uid, error.message(), now) {
            return None;
        }
        self.acceptor.ration.line(now)
    }

    /// Ends the connections whose tickets have ended.
    pub(super) fn end_tickets(&mut self, service: &mut dyn NodeService) {
        let now_s = SystemClock.realtime().as_secs();
        for index in 0..self.connections.len() {
            let Some(Some(connection)) = self.connections.get(index) else { continue };
            let ConnectionPhase::Open(peer) = &connection.phase else { continue };
            let Some(ticket) = &peer.identity.ticket else { continue };
            let expires_s = self.options.ticket_lives.expires_s(ticket);
            if now_s < expires_s {
                self.watch.ticket(expires_s);
            } else {
                let error = ended(ticket);
                self.end(index, &error, service);
            }
        }
    }

    /// Sends what is left, for a limited time.
    pub(super) fn finish(&mut self, service: &mut dyn NodeService) {
        let end = SystemClock.monotonic() + LAST_FLUSH;
        loop {
            let mut left = false;
            for index in 0..self.connections.len() {
                let Some(id) = self.id(index) else { continue };
                self.replies.flush(id);
                self.replies.flush_ring(id);
                left |= self.replies.stalled(id).is_some();
            }
            while let Some((id, error)) = self.replies.next_closing() {
                if self.id(id.index()) == Some(id) {
                    self.end(id.index(), &error, service);
                }
            }
            if !left || SystemClock.monotonic() >= end {
                return;
            }
            let _ = rustix::thread::nanosleep(&timespec(Duration::from_millis(1)));
        }
    }
}
