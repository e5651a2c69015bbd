//! Where answers to control requests go, and refusals in them.

use samite_transport::server::ConnId;
use samite_types::{Error, ErrorKind, RequestId, ShardId};
use samite_wire::control::ControlReply;

/// Where the answer to a control request goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplyTo {
    pub shard: ShardId,
    pub conn: ConnId,
    pub request: RequestId,
}

/// The answer that refuses a request because of `error`.
pub(crate) fn refused(error: &Error) -> ControlReply {
    ControlReply::failed(error.kind(), error.message())
}

/// The text of an answer that does not fit, or is a refusal.
pub(crate) fn refusal(reply: &ControlReply) -> Error {
    match reply {
        ControlReply::Failed { kind, message } => {
            let kind = ErrorKind::from_code(*kind).unwrap_or(ErrorKind::Internal);
            Error::new(kind, message.clone())
        }
        ControlReply::NotLeader { .. } => {
            Error::new(ErrorKind::Unavailable, "this coordinator does not lead")
        }
        _ => Error::new(ErrorKind::Corrupt, "the coordinator answers another question"),
    }
}
