//! Messages on their way out, encoded, with their payload where it lies.

use std::sync::Arc;

use samite_backend::ValuePiece;
use samite_types::TargetId;
use samite_wire::peer::{HEAD_LEN, PeerEnvelope, PeerMessage};
use smallvec::SmallVec;

/// A message to another member. In a frame stand [`head`](Self::head) and [`body`](Self::body) of
/// each message one behind the other, and the payloads in the same order behind all of them.
#[derive(Clone, Debug)]
pub struct PeerPacket {
    to: TargetId,
    head: [u8; HEAD_LEN],
    body: PacketBody,
    payload: Payload,
}

/// Pieces of a payload; bytes of each.
pub(crate) type Payload = Arc<[ValuePiece]>;

#[derive(Clone, Debug)]
enum PacketBody {
    /// Of answers, which are short.
    Small(SmallVec<[u8; 32]>),
    /// Of messages that may be sent more than once.
    Shared(Arc<[u8]>),
}

impl PeerPacket {
    /// A message without payload.
    pub(crate) fn new(envelope: &PeerEnvelope, message: &PeerMessage<'_>) -> Self {
        let mut body = Vec::with_capacity(32);
        message.encode(&mut body);
        let head = envelope.encode(body.len(), 0);
        let body = PacketBody::Small(SmallVec::from_vec(body));
        Self { to: envelope.to, head, body, payload: Arc::new([]) }
    }

    /// A message of which others may be made.
    pub(crate) fn shared(envelope: &PeerEnvelope, body: &Arc<[u8]>, payload: &Payload) -> Self {
        let len = payload.iter().map(ValuePiece::len).sum();
        let head = envelope.encode(body.len(), len);
        let (body, payload) = (PacketBody::Shared(Arc::clone(body)), Arc::clone(payload));
        Self { to: envelope.to, head, body, payload }
    }

    /// The receiver.
    #[must_use]
    pub const fn to(&self) -> TargetId {
        self.to
    }

    /// Its head.
    #[must_use]
    pub const fn head(&self) -> &[u8; HEAD_LEN] {
        &self.head
    }

    /// Its body.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        match &self.body {
            PacketBody::Small(body) => body,
            PacketBody::Shared(body) => body,
        }
    }

    /// Its payload, in order: no piece is a hole. Pieces are shared, and stay as they are whatever
    /// becomes of the record.
    #[must_use]
    pub fn payload(&self) -> &[ValuePiece] {
        &self.payload
    }

    /// Bytes of payload.
    #[must_use]
    pub fn payload_len(&self) -> usize {
        self.payload.iter().map(ValuePiece::len).sum()
    }

    /// Appends it to the body and the payload of a frame, with a copy of the payload.
    pub fn append(&self, body: &mut Vec<u8>, payload: &mut Vec<u8>) {
        body.extend_from_slice(&self.head);
        body.extend_from_slice(self.body());
        self.payload.iter().for_each(|piece| piece.append_to(payload));
    }
}
