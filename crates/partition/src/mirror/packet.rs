//! Messages on their way out, encoded, with their payload where it lies.

use std::sync::Arc;

use samite_backend::Piece;
use samite_types::TargetId;
use samite_wire::peer::{Envelope, HEAD_LEN, Message};
use smallvec::SmallVec;

/// A message to another member. In a frame stand [`head`](Self::head) and [`body`](Self::body) of each message one behind the other, and the payloads in
/// the same order behind all of them.
#[derive(Clone, Debug)]
pub struct Packet {
    to: TargetId,
    head: [u8; HEAD_LEN],
    body: Body,
    payload: Payload,
}

/// Pieces of a payload; bytes of each.
pub(crate) type Payload = Arc<[Piece]>;

#[derive(Clone, Debug)]
enum Body {
    /// Of answers, which are short.
    Small(SmallVec<[u8; 32]>),
    /// Of what may be sent more than once.
    Shared(Arc<[u8]>),
}

impl Packet {
    /// A message without payload.
    pub(crate) fn new(envelope: &Envelope, message: &Message<'_>) -> Self {
        let mut body = Vec::with_capacity(32);
        message.encode(&mut body);
        let head = envelope.encode(body.len(), 0);
        let body = Body::Small(SmallVec::from_vec(body));
        Self { to: envelope.to, head, body, payload: Arc::new([]) }
    }

    /// A message of which others may be made.
    pub(crate) fn shared(envelope: &Envelope, body: &Arc<[u8]>, payload: &Payload) -> Self {
        let len = payload.iter().map(Piece::len).sum();
        let head = envelope.encode(body.len(), len);
        let (body, payload) = (Body::Shared(Arc::clone(body)), Arc::clone(payload));
        Self { to: envelope.to, head, body, payload }
    }

    /// To whom.
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
            Body::Small(body) => body,
            Body::Shared(body) => body,
        }
    }

    /// Its payload, in order: no piece is a hole. Pieces are shared, and stay as they are whatever becomes of the record.
    #[must_use]
    pub fn payload(&self) -> &[Piece] {
        &self.payload
    }

    /// Bytes of payload.
    #[must_use]
    pub fn payload_len(&self) -> usize {
        self.payload.iter().map(Piece::len).sum()
    }

    /// Appends it to the body and the payload of a frame, with a copy of the payload.
    pub fn append(&self, body: &mut Vec<u8>, payload: &mut Vec<u8>) {
        body.extend_from_slice(&self.head);
        body.extend_from_slice(self.body());
        self.payload.iter().for_each(|piece| piece.append_to(payload));
    }
}
