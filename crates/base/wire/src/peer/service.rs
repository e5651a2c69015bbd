//! Services between nodes: what the messages of a frame are about.

use crate::WireError;

/// A service of the connections between nodes. Its number is the first byte of the body of a frame
/// ([`FrameKind::Peer`](crate::frame::FrameKind::Peer),
/// [`FrameKind::PeerReply`](crate::frame::FrameKind::PeerReply)); the messages of the service
/// follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PeerService {
    /// Messages between the members of a mirror group ([`PeerMessages`](super::PeerMessages)).
    Mirror = 1,
}

impl PeerService {
    /// All services.
    pub const ALL: [Self; 1] = [Self::Mirror];

    /// The first byte of a frame's body.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The service that the body of a frame is for, and the rest of the body.
    ///
    /// # Errors
    /// [`WireError`]: the body is empty, or no service has this number.
    pub fn split(body: &[u8]) -> Result<(Self, &[u8]), WireError> {
        let (code, messages) = body.split_first().ok_or(WireError::Short("peer service"))?;
        let service = Self::ALL.into_iter().find(|service| service.code() == *code);
        Ok((service.ok_or(WireError::Unknown("peer service"))?, messages))
    }
}
