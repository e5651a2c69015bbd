//! What travels between simulated processes: the real bytes, in the envelope that a connection would be.

use std::fmt;

use samite_types::{ClientId, RequestId};
use samite_wire::control::{self, ControlReply, ControlRequest};
use samite_wire::op::{Reply, Request};

/// One message.
#[derive(Clone, PartialEq, Eq)]
pub enum Message {
    /// A data request. The client is the one that a handshake would have named.
    Request {
        /// Matches the reply.
        id: RequestId,
        /// Who asks.
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
}

impl Message {
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

    /// What is different in different messages.
    #[must_use]
    pub fn parts(&self) -> (u8, &[u8], &[u8]) {
        match self {
            Self::Request { body, payload, .. } => (1, body, payload),
            Self::Reply { body, payload, .. } => (2, body, payload),
            Self::Control { body, .. } => (3, body, &[]),
            Self::ControlReply { body, .. } => (4, body, &[]),
        }
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request { id, body, payload, .. } => match Request::decode(body, payload) {
                Ok(request) => {
                    let again = if request.header.is_retry { " again" } else { "" };
                    write!(f, "request {id}{again} by {}:", request.header.map_epoch)?;
                    for operation in &request.operations {
                        write!(
                            f,
                            " {} {} {:?}",
                            operation.partition, operation.seq, operation.actions
                        )?;
                    }
                    Ok(())
                }
                Err(error) => write!(f, "request {id}: {error}"),
            },
            Self::Reply { id, body, payload } => match Reply::decode(body, payload) {
                Ok(reply) => match reply.header.refused {
                    Some(kind) => write!(f, "reply {id}: refused, {kind:?}"),
                    None => write!(f, "reply {id}: {:?}", reply.outcomes),
                },
                Err(error) => write!(f, "reply {id}: {error}"),
            },
            Self::Control { id, body } => match control::decode::<ControlRequest>(body) {
                Ok(request) => write!(f, "control {id}: {request:?}"),
                Err(error) => write!(f, "control {id}: {error}"),
            },
            Self::ControlReply { id, body } => match control::decode::<ControlReply>(body) {
                Ok(ControlReply::Map(Some(map))) => {
                    write!(f, "control reply {id}: map {}", map.epoch)
                }
                Ok(reply) => write!(f, "control reply {id}: {reply:?}"),
                Err(error) => write!(f, "control reply {id}: {error}"),
            },
        }
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
