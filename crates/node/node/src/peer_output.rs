//! Messages to other nodes, gathered until the end of the request batch: all that one request makes
//! leave together.

use samite_backend::ValuePiece;
use samite_mirror::PeerPacket;
use samite_transport::server::{ConnId, OutPiece, PIN_LEN_MIN};
use samite_types::{NodeId, ShardId};
use samite_wire::limits::{BODY_LEN_MAX, PAYLOAD_LEN_MAX};
use samite_wire::peer::HEAD_LEN;

/// Where messages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerDestination {
    /// By this shard's own connection to a node.
    Node(NodeId),
    /// Back by the connection of a shard by which a message came.
    Back(ShardId, ConnId),
}

/// Messages that leave in one frame.
#[derive(Debug)]
pub(crate) struct PeerFrame {
    pub(crate) to: PeerDestination,
    pub(crate) body: Vec<u8>,
    /// The payload, in order.
    pub(crate) pieces: Vec<ValuePiece>,
    payload_len: usize,
}

impl PeerFrame {
    /// Bytes.
    pub(crate) const fn len(&self) -> usize {
        self.body.len() + self.payload_len
    }

    /// The message; an empty one is left in its place.
    pub(crate) fn take(&mut self) -> Self {
        let Self { to, payload_len, .. } = *self;
        let (body, pieces) = (std::mem::take(&mut self.body), std::mem::take(&mut self.pieces));
        Self { to, body, pieces, payload_len }
    }

    /// The payload as the transport takes it: long parts are sent from where they lie.
    pub(crate) fn payload(&self) -> impl Iterator<Item = OutPiece<'_>> {
        self.pieces.iter().map(|piece| {
            if piece.len() < PIN_LEN_MIN {
                OutPiece::Copy(piece.as_bytes().unwrap_or_default())
            } else {
                OutPiece::Pinned(Box::new(StablePiece(piece.clone())))
            }
        })
    }
}

/// A piece that does not change while it is on its way.
struct StablePiece(ValuePiece);

impl AsRef<[u8]> for StablePiece {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes().unwrap_or_default()
    }
}

/// Messages that are being written.
#[derive(Debug, Default)]
pub(crate) struct PeerOutput {
    letters: Vec<PeerFrame>,
    /// Message buffers that are sent, to be written on again.
    spare: Vec<PeerFrame>,
}

/// Most message buffers, and most bytes of each, whose memory is kept.
const SPARE_MAX: usize = 4;
const SPARE_LEN_MAX: usize = 64 << 10;

impl PeerOutput {
    pub(crate) fn is_empty(&self) -> bool {
        self.letters.is_empty()
    }

    /// Adds a message.
    pub(crate) fn add(&mut self, to: PeerDestination, packet: &PeerPacket) {
        let (body_len, payload_len) = (HEAD_LEN + packet.body().len(), packet.payload_len());
        let fits = |letter: &PeerFrame| {
            letter.body.len() + body_len <= BODY_LEN_MAX
                && letter.payload_len + payload_len <= PAYLOAD_LEN_MAX
        };
        let last = self.letters.iter().rposition(|letter| letter.to == to);
        let index = match last {
            Some(last) if fits(&self.letters[last]) => last,
            _ => self.begin(to),
        };
        let letter = &mut self.letters[index];
        letter.body.extend_from_slice(packet.head());
        letter.body.extend_from_slice(packet.body());
        letter.pieces.extend_from_slice(packet.payload());
        letter.payload_len += payload_len;
    }

    fn begin(&mut self, to: PeerDestination) -> usize {
        let empty = || PeerFrame { to, body: Vec::new(), pieces: Vec::new(), payload_len: 0 };
        let mut letter = self.spare.pop().unwrap_or_else(empty);
        letter.to = to;
        self.letters.push(letter);
        self.letters.len() - 1
    }

    /// Takes the messages that were written, in order.
    pub(crate) fn take(&mut self) -> Vec<PeerFrame> {
        std::mem::take(&mut self.letters)
    }

    /// Gives back the memory of messages that are sent.
    pub(crate) fn give_back(&mut self, mut letters: Vec<PeerFrame>) {
        for mut letter in letters.drain(..) {
            if self.spare.len() < SPARE_MAX && letter.body.capacity() <= SPARE_LEN_MAX {
                letter.body.clear();
                letter.pieces.clear();
                letter.payload_len = 0;
                self.spare.push(letter);
            }
        }
        if self.letters.is_empty() {
            self.letters = letters;
        }
    }
}
