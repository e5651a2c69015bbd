//! Messages to worker processes: the node passes them on and does not look into them.
//!
//! Between a node and a worker they travel by a socket pair, as frames: a header of
//! [`WORKER_HEADER_LEN`] bytes, then the message.

use std::fmt;

use samite_types::ClientId;
use serde::{Deserialize, Serialize};

use crate::WireError;
use crate::limits::WORKER_MESSAGE_LEN_MAX;

/// What a worker process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum WorkerKind {
    /// Modules that are part of the program.
    Native,
}

impl WorkerKind {
    /// All kinds.
    pub const ALL: [Self; 1] = [Self::Native];

    /// Its name, as in `samite worker --kind`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
        }
    }

    /// The kind of this name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

impl fmt::Display for WorkerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A worker process of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// What it runs.
    pub kind: WorkerKind,
    /// Whose it is.
    pub uid: u32,
    /// Process id; 0: it is being started.
    pub pid: u32,
    /// By which nodes know it as a client, once it has said so.
    pub client: Option<ClientId>,
    /// Requests that it has not answered.
    pub under_way: u32,
    /// Requests that were passed on to it.
    pub requests: u64,
    /// Seconds since its start.
    pub uptime_s: u64,
}

/// Length of a [`WorkerFrameHeader`], in bytes.
pub const WORKER_HEADER_LEN: usize = 12;

/// In place of a request's number: the worker is ready, and says as which client, in 8 bytes.
pub const WORKER_READY: u64 = 0;

/// Begins a message between a node and a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerFrameHeader {
    /// Bytes that follow; [`WORKER_MESSAGE_LEN_MAX`] at most.
    pub len: u32,
    /// Number of the request; an answer has that of its request. [`WORKER_READY`]: no answer.
    pub request: u64,
}

impl WorkerFrameHeader {
    /// As it travels.
    #[must_use]
    pub fn encode(self) -> [u8; WORKER_HEADER_LEN] {
        let mut bytes = [0; WORKER_HEADER_LEN];
        bytes[..4].copy_from_slice(&self.len.to_le_bytes());
        bytes[4..].copy_from_slice(&self.request.to_le_bytes());
        bytes
    }

    /// # Errors
    /// A longer message than there may be.
    pub fn decode(bytes: &[u8; WORKER_HEADER_LEN]) -> Result<Self, WireError> {
        let [a, b, c, d, request @ ..] = *bytes;
        let len = u32::from_le_bytes([a, b, c, d]);
        if len as usize > WORKER_MESSAGE_LEN_MAX {
            return Err(WireError::OverLimit("message of a worker"));
        }
        Ok(Self { len, request: u64::from_le_bytes(request) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_back_and_long_messages_are_refused() {
        let most = WORKER_MESSAGE_LEN_MAX as u32;
        for header in [
            WorkerFrameHeader { len: 0, request: 0 },
            WorkerFrameHeader { len: most, request: u64::MAX },
        ] {
            assert_eq!(WorkerFrameHeader::decode(&header.encode()), Ok(header));
        }
        let long = WorkerFrameHeader { len: most + 1, request: 1 };
        assert!(WorkerFrameHeader::decode(&long.encode()).is_err());
    }

    #[test]
    fn kinds_have_names() {
        for kind in WorkerKind::ALL {
            assert_eq!(WorkerKind::of_name(kind.name()), Some(kind));
        }
        assert_eq!(WorkerKind::of_name("other"), None);
    }
}
