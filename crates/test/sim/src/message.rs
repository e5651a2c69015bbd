//! Messages between simulated processes: the real bytes, in the envelope that a connection would
//! be.

use std::fmt;

use samite_coordinator::quorum;
use samite_types::{ClientId, RequestId};
use samite_wire::control::{self, ControlReply, ControlRequest};
use samite_wire::op::{OperationReply, OperationRequest};
use samite_wire::peer::{PeerEnvelope, PeerMessages};

use crate::state_request::{StateReply, StateRequest};

/// One message.
#[derive(Clone, PartialEq, Eq)]
pub enum SimMessage {
    /// A data request. The client is the one that a handshake would have named.
    Request {
        /// Matches the reply.
        id: RequestId,
        /// The client that asks.
        client: ClientId,
        /// A request's body.
        body: Vec<u8>,
        /// Its payload.
        payload: Vec<u8>,
    },
    /// The reply to a data request.
    Reply {
        /// That of the request.
        id: RequestId,
        /// A reply's body.
        body: Vec<u8>,
        /// Its payload.
        payload: Vec<u8>,
    },
    /// A [`ControlRequest`].
    Control {
        /// Matches the reply.
        id: RequestId,
        /// As it travels.
        body: Vec<u8>,
    },
    /// A [`ControlReply`].
    ControlReply {
        /// That of the request.
        id: RequestId,
        /// As it travels.
        body: Vec<u8>,
    },
    /// Messages between members of mirror groups ([`samite_wire::peer`]).
    Peer {
        /// A frame's body.
        body: Vec<u8>,
        /// Its payload.
        payload: Vec<u8>,
    },
    /// A [`StateRequest`].
    Keeper {
        /// Matches the reply.
        id: RequestId,
        /// As it travels.
        body: Vec<u8>,
    },
    /// A [`StateReply`].
    KeeperReply {
        /// That of the request.
        id: RequestId,
        /// As it travels.
        body: Vec<u8>,
    },
    /// A message between voters ([`samite_coordinator::quorum`]).
    Vote {
        /// As it travels.
        body: Vec<u8>,
    },
}

impl SimMessage {
    /// A control request.
    #[must_use]
    pub fn control(id: RequestId, request: &ControlRequest) -> Self {
        Self::Control { id, body: control::encode(request) }
    }

    /// The reply to a control request.
    #[must_use]
    pub fn control_reply(id: RequestId, reply: &ControlReply) -> Self {
        Self::ControlReply { id, body: control::encode(reply) }
    }

    /// The parts in which messages differ.
    #[must_use]
    pub fn parts(&self) -> (u8, &[u8], &[u8]) {
        match self {
            Self::Request { body, payload, .. } => (1, body, payload),
            Self::Reply { body, payload, .. } => (2, body, payload),
            Self::Control { body, .. } => (3, body, &[]),
            Self::ControlReply { body, .. } => (4, body, &[]),
            Self::Peer { body, payload } => (5, body, payload),
            Self::Keeper { body, .. } => (6, body, &[]),
            Self::KeeperReply { body, .. } => (7, body, &[]),
            Self::Vote { body } => (8, body, &[]),
        }
    }
}

impl fmt::Display for SimMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = match self {
            Self::Request { id, body, payload, .. } => return show_request(f, *id, body, payload),
            Self::Reply { id, body, payload } => match OperationReply::decode(body, payload) {
                Ok(reply) => match reply.header.refused {
                    Some(kind) => return write!(f, "reply {id}: refused, {kind:?}"),
                    None => return write!(f, "reply {id}: {:?}", reply.outcomes),
                },
                Err(error) => Err(error),
            },
            Self::Control { id, body } => control::decode::<ControlRequest>(body)
                .map(|request| write!(f, "control {id}: {request:?}")),
            Self::ControlReply { id, body } => match control::decode(body) {
                Ok(ControlReply::Map(Some(map))) => Ok(write!(f, "answer {id}: map {}", map.epoch)),
                Ok(ControlReply::MapDelta(delta)) => {
                    Ok(write!(f, "answer {id}: map {} from {}", delta.to, delta.from))
                }
                reply => reply.map(|reply: ControlReply| write!(f, "answer {id}: {reply:?}")),
            },
            Self::Peer { body, payload } => return show_peer(f, body, payload),
            Self::Vote { body } => return f.write_str(&quorum::words(body)),
            Self::Keeper { id, body } => control::decode(body).map(|request| match request {
                StateRequest::Swap { expected, seat, state } => {
                    let with = if state.is_some() { " with a state" } else { "" };
                    write!(f, "store {id}: swap {expected} for {}{with}", seat.beat)
                }
                request => write!(f, "store {id}: {request:?}"),
            }),
            Self::KeeperReply { id, body } => control::decode(body).map(|reply| match reply {
                StateReply::State(_) => write!(f, "stored {id}: the state"),
                reply => write!(f, "stored {id}: {reply:?}"),
            }),
        };
        shown.unwrap_or_else(|error| write!(f, "{error}"))
    }
}

fn show_request(
    f: &mut fmt::Formatter<'_>,
    id: RequestId,
    body: &[u8],
    payload: &[u8],
) -> fmt::Result {
    let request = match OperationRequest::decode(body, payload) {
        Ok(request) => request,
        Err(error) => return write!(f, "request {id}: {error}"),
    };
    let again = if request.header.is_retry { " again" } else { "" };
    write!(f, "request {id}{again} by {}:", request.header.map_epoch)?;
    for operation in &request.operations {
        write!(f, " {} {} {:?}", operation.partition, operation.seq, operation.actions)?;
    }
    Ok(())
}

fn show_peer(f: &mut fmt::Formatter<'_>, body: &[u8], payload: &[u8]) -> fmt::Result {
    f.write_str("peer")?;
    for message in PeerMessages::new(body, payload) {
        match message {
            Ok((envelope, message)) => {
                let PeerEnvelope { partition, term, epoch, .. } = envelope;
                write!(f, "; {partition} {term} {epoch} {message:?}")?;
            }
            Err(error) => write!(f, "; {error}")?,
        }
    }
    Ok(())
}

impl fmt::Debug for SimMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
