//! A request, as it is handed to a link.

use samite_wire::frame::FrameKind;

/// A request to send.
#[derive(Clone, Copy, Debug)]
pub struct OutgoingRequest<'a> {
    /// [`FrameKind::Request`] or [`FrameKind::Control`].
    pub kind: FrameKind,
    /// Body, encoded.
    pub body: &'a [u8],
    /// Payload in pieces.
    pub payload: &'a [&'a [u8]],
}

impl OutgoingRequest<'_> {
    /// Length of the payload, in bytes.
    pub(super) fn payload_len(&self) -> usize {
        self.payload.iter().map(|piece| piece.len()).sum()
    }
}
