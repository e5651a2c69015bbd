//! Frames on their way to the service, whichever way they came.

use samite_types::{Error, ErrorKind, NodeId, Result};
use samite_wire::frame::{CheckedHeader, FrameKind};

use super::conn_id::ConnId;
use super::injected_fault::is_request_harmed;
use super::replies::ReplySink;
use super::service::{ConnectionPeer, NodeService};
use crate::handshake::{client_goodbye, read_goodbye};
use crate::identity::PeerRole;
use crate::key_set::SharedKeys;

/// State that every connection of a loop needs.
pub(super) struct LoopContext<'a> {
    pub(super) node: NodeId,
    pub(super) keys: &'a SharedKeys,
    pub(super) service: &'a mut dyn NodeService,
    pub(super) replies: &'a mut ReplySink,
}

/// Hands a frame that came by a connection of this side's making to the service.
pub(super) fn serve_reply(
    id: ConnId,
    header: &CheckedHeader,
    body: &[u8],
    payload: &[u8],
    place: &mut LoopContext<'_>,
) -> Result<()> {
    match header.kind {
        FrameKind::PeerReply => {
            place.service.reply(id, header, body, payload, place.replies);
            Ok(())
        }
        FrameKind::Goodbye => {
            let error = read_goodbye(body);
            Err(Error::new(ErrorKind::Unavailable, format!("node said goodbye: {error}")))
        }
        kind => {
            Err(Error::new(ErrorKind::Corrupt, format!("unexpected {kind:?} frame from a node")))
        }
    }
}

/// Hands a frame of a peer that has proved who it is to the service.
pub(super) fn serve_request(
    id: ConnId,
    peer: &ConnectionPeer,
    header: &CheckedHeader,
    body: &[u8],
    payload: &[u8],
    place: &mut LoopContext<'_>,
) -> Result<()> {
    match header.kind {
        FrameKind::Peer if peer.node.is_none() => {
            Err(Error::new(ErrorKind::Denied, "a client sends what only nodes may"))
        }
        FrameKind::Request if peer.identity.role == PeerRole::Guest => {
            Err(Error::new(ErrorKind::Denied, "this socket gives out tickets and nothing else"))
        }
        FrameKind::Request | FrameKind::Control | FrameKind::Peer => {
            if place.replies.faults.is_active()
                && is_request_harmed(
                    id,
                    peer,
                    header,
                    (body, payload),
                    place.service,
                    place.replies,
                )?
            {
                return Ok(());
            }
            place.service.request(id, peer, header, body, payload, place.replies);
            Ok(())
        }
        FrameKind::Goodbye => Err(client_goodbye(body)),
        kind => {
            Err(Error::new(ErrorKind::Corrupt, format!("unexpected {kind:?} frame from a client")))
        }
    }
}
