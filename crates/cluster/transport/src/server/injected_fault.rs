//! Faults on the way out of an event loop, and in.

use samite_types::fault::{FaultParty, LinkVerdict};
use samite_types::{Clock, ErrorKind, NodeId, RequestId, Result, SystemClock};
use samite_wire::WireError;
use samite_wire::frame::{CheckedHeader, FrameKind, HEADER_LEN};

use super::conn_id::ConnId;
use super::delay_queue::{DelayedFrame, DelayedItem};
use super::replies::ReplySink;
use super::service::{ConnectionPeer, NodeService};
use crate::fault::{bend, reset, whole, words};

impl ReplySink {
    /// Injects the fault that a frame to send meets, if any, and returns whether it did. Only asked
    /// while there are faults.
    #[cold]
    pub(super) fn is_harmed(
        &mut self,
        conn: ConnId,
        kind: FrameKind,
        id: RequestId,
        body: &[u8],
        payload: &[&[u8]],
    ) -> bool {
        let Some(party) = self.party(conn) else { return false };
        let verdict = self.faults.frame(party, true, words(kind, id, body, payload));
        if verdict.is_nothing() {
            return false;
        }
        if verdict.lost.is_some() {
            return true;
        }
        if verdict.is_reset {
            self.reset(conn);
            return true;
        }
        let len = HEADER_LEN + body.len() + payload.iter().map(|piece| piece.len()).sum::<usize>();
        let (by_ring, flags) = self.way(conn, len);
        let mut frame = whole(kind, id, flags, body, payload);
        if let Some(random) = verdict.corrupt {
            bend(&mut frame, flags, body.len(), random);
            self.bent(conn);
        }
        if verdict.is_doubled {
            self.put_late(conn, &verdict, frame.clone(), by_ring);
        }
        self.put_late(conn, &verdict, frame, by_ring);
        true
    }

    /// Ends a connection with a reset.
    fn reset(&mut self, conn: ConnId) {
        if let Some(fd) = self.fd(conn) {
            reset(fd);
        }
        self.close(conn, ErrorKind::Interrupted, "reset on purpose");
    }

    /// Whether a handshake with `node`, or with a client, ends here because of a fault that meets
    /// the frame that has come, or the one to send: `frame`. A fault that meets the latter with a
    /// wrong bit only puts that in. After a handshake with an injected fault, there are none until
    /// another one comes to its end, so that a client that has set `corrupt 100%` can still clear
    /// it.
    ///
    /// # Errors
    /// The frame came with a wrong bit.
    pub(super) fn ends_handshake(
        &mut self,
        conn: ConnId,
        node: Option<NodeId>,
        kind: FrameKind,
        frame: Option<&mut [u8]>,
    ) -> Result<bool> {
        if !self.faults.is_active() || self.spares_handshake {
            self.spares_handshake &= kind != FrameKind::Welcome;
            return Ok(false);
        }
        let party = node.map_or(FaultParty::Client, FaultParty::Node);
        let words = words(kind, RequestId(0), &[], &[]);
        let verdict = self.faults.handshake(party, frame.is_some(), words);
        self.spares_handshake = !verdict.is_nothing();
        if verdict.is_reset {
            self.reset(conn);
        } else if let Some(random) = verdict.corrupt {
            let Some(frame) = frame else { return Err(WireError::Checksum("frame").into()) };
            let body_len = frame.len() - HEADER_LEN;
            bend(frame, 0, body_len, random);
        }
        Ok(verdict.is_reset)
    }

    fn put_late(&mut self, conn: ConnId, verdict: &LinkVerdict, frame: Vec<u8>, by_ring: bool) {
        let held = DelayedFrame { conn, what: DelayedItem::Output { frame, by_ring } };
        if let Err(DelayedFrame { what: DelayedItem::Output { frame, by_ring }, .. }) =
            self.hold(verdict, held)
        {
            self.put_whole(conn, frame, by_ring);
        }
    }

    /// Keeps a late frame; gives it back when it is not late, or finds no room.
    fn hold(&mut self, verdict: &LinkVerdict, held: DelayedFrame) -> Result<(), DelayedFrame> {
        if verdict.delay.is_zero() {
            return Err(held);
        }
        self.holdup.delay(SystemClock.monotonic() + verdict.delay, held)
    }

    /// A late request whose time has come. Late replies are sent on the way.
    pub(super) fn next_late_request(&mut self) -> Option<(ConnId, CheckedHeader, Vec<u8>)> {
        // Mostly there is none, and then no clock is looked at.
        self.holdup.next()?;
        let now = SystemClock.monotonic();
        while let Some(held) = self.holdup.take(now) {
            match held.what {
                DelayedItem::Output { frame, by_ring } => self.put_whole(held.conn, frame, by_ring),
                DelayedItem::Input { header, content } => {
                    return Some((held.conn, header, content));
                }
            }
        }
        None
    }
}

/// Injects the fault that a request meets, if any, and returns whether it did. Only asked while
/// there are faults.
///
/// # Errors
/// It came with a wrong bit.
#[cold]
pub(super) fn is_request_harmed(
    conn: ConnId,
    peer: &ConnectionPeer,
    header: &CheckedHeader,
    (body, payload): (&[u8], &[u8]),
    service: &mut dyn NodeService,
    replies: &mut ReplySink,
) -> Result<bool> {
    if replies.party(conn).is_none() {
        return Ok(false);
    }
    if service.is_about_faults(header, body) {
        replies.spare(conn);
        return Ok(false);
    }
    let party = peer.node.map_or(FaultParty::Client, FaultParty::Node);
    let words = words(header.kind, header.request_id, body, &[payload]);
    let verdict = replies.faults.frame(party, false, words);
    if verdict.lost.is_some() {
        return Ok(true);
    }
    if verdict.is_reset {
        replies.reset(conn);
        return Ok(true);
    }
    if let Some(random) = verdict.corrupt {
        // The checksum was right when it came; now it is asked once more.
        let mut content = [body, payload].concat();
        if let Some(byte) = (random as usize).checked_rem(body.len()).map(|at| &mut content[at]) {
            *byte ^= 1 << (random >> 61);
            let (body, payload) = content.split_at(body.len());
            header.verify(body, &[payload])?;
        }
        return Err(WireError::Checksum("frame").into());
    }
    if !verdict.delay.is_zero() {
        for _ in 0..=usize::from(verdict.is_doubled) {
            let what = DelayedItem::Input { header: *header, content: [body, payload].concat() };
            if replies.hold(&verdict, DelayedFrame { conn, what }).is_err() {
                return Ok(false);
            }
        }
        return Ok(true);
    }
    if verdict.is_doubled {
        service.request(conn, peer, header, body, payload, replies);
    }
    Ok(false)
}
