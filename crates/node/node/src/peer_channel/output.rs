//! Messages to other nodes, gathered until the end of the request batch: all that one request makes
//! of a service leaves together.

use samite_backend::ValuePiece;
use samite_transport::server::{ConnId, OutPiece, PIN_LEN_MIN};
use samite_types::{NodeId, ShardId};
use samite_wire::frame::HEADER_LEN;
use samite_wire::limits::{BODY_LEN_MAX, PAYLOAD_LEN_MAX};
use samite_wire::peer::PeerService;

/// Where messages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerDestination {
    /// By this shard's own connection to a node.
    Node(NodeId),
    /// Back by the connection of a shard by which a message came.
    Back(ShardId, ConnId),
}

/// A message of a service, as it is written to a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerMessageParts<'a> {
    /// The message, in two parts.
    pub(crate) head: &'a [u8],
    pub(crate) body: &'a [u8],
    /// Its data, in order; `payload_len` bytes.
    pub(crate) payload: &'a [ValuePiece],
    pub(crate) payload_len: usize,
}

/// Messages of one service that leave in one frame.
#[derive(Debug)]
pub(crate) struct PeerFrame {
    pub(crate) to: PeerDestination,
    pub(crate) service: PeerService,
    /// The number of the service, and the messages.
    pub(crate) body: Vec<u8>,
    /// The payload, in order.
    pub(crate) pieces: Vec<ValuePiece>,
    payload_len: usize,
}

impl PeerFrame {
    /// Bytes of body and payload.
    pub(crate) const fn len(&self) -> usize {
        self.body.len() + self.payload_len
    }

    /// Bytes as it is sent.
    pub(crate) const fn sent_len(&self) -> usize {
        HEADER_LEN + self.len()
    }

    /// The message; an empty one is left in its place.
    pub(crate) fn take(&mut self) -> Self {
        let Self { to, service, payload_len, .. } = *self;
        let (body, pieces) = (std::mem::take(&mut self.body), std::mem::take(&mut self.pieces));
        Self { to, service, body, pieces, payload_len }
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
    frames: Vec<PeerFrame>,
    /// Message buffers that are sent, to be written on again.
    spare: Vec<PeerFrame>,
    /// Where answers of a service go to nodes that have sent something in this request batch.
    ways_back: Vec<(PeerService, NodeId, PeerDestination)>,
}

/// Most message buffers, and most bytes of each, whose memory is kept.
const SPARE_MAX: usize = 4;
const SPARE_LEN_MAX: usize = 64 << 10;

impl PeerOutput {
    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// A message of `node` has come, and answers in this request batch go `back`.
    pub(crate) fn heard(&mut self, service: PeerService, node: NodeId, back: PeerDestination) {
        self.ways_back.push((service, node, back));
    }

    /// Where an answer to `node` goes, if something has come from there in this request batch.
    pub(crate) fn way_back(&self, service: PeerService, node: NodeId) -> Option<PeerDestination> {
        let mut ways = self.ways_back.iter();
        ways.rfind(|(of, from, _)| (*of, *from) == (service, node)).map(|(.., back)| *back)
    }

    /// The request batch has ended.
    pub(crate) fn end_batch(&mut self) {
        self.ways_back.clear();
    }

    /// Adds a message of `service`, behind its others to the same place.
    pub(crate) fn add(
        &mut self,
        service: PeerService,
        to: PeerDestination,
        message: PeerMessageParts<'_>,
    ) {
        let (body_len, payload_len) =
            (message.head.len() + message.body.len(), message.payload_len);
        let fits = |frame: &PeerFrame| {
            frame.body.len() + body_len <= BODY_LEN_MAX
                && frame.payload_len + payload_len <= PAYLOAD_LEN_MAX
        };
        let last = self.frames.iter().rposition(|frame| (frame.to, frame.service) == (to, service));
        let index = match last {
            Some(last) if fits(&self.frames[last]) => last,
            _ => self.begin(service, to),
        };
        let frame = &mut self.frames[index];
        frame.body.extend_from_slice(message.head);
        frame.body.extend_from_slice(message.body);
        frame.pieces.extend_from_slice(message.payload);
        frame.payload_len += payload_len;
    }

    fn begin(&mut self, service: PeerService, to: PeerDestination) -> usize {
        let (body, pieces) = (Vec::new(), Vec::new());
        let empty = PeerFrame { to, service, body, pieces, payload_len: 0 };
        let mut frame = self.spare.pop().unwrap_or(empty);
        (frame.to, frame.service) = (to, service);
        frame.body.push(service.code());
        self.frames.push(frame);
        self.frames.len() - 1
    }

    /// Takes the messages that were written, in order.
    pub(crate) fn take(&mut self) -> Vec<PeerFrame> {
        std::mem::take(&mut self.frames)
    }

    /// Gives back the memory of messages that are sent.
    pub(crate) fn give_back(&mut self, mut frames: Vec<PeerFrame>) {
        for mut frame in frames.drain(..) {
            if self.spare.len() < SPARE_MAX && frame.body.capacity() <= SPARE_LEN_MAX {
                frame.body.clear();
                frame.pieces.clear();
                frame.payload_len = 0;
                self.spare.push(frame);
            }
        }
        if self.frames.is_empty() {
            self.frames = frames;
        }
    }
}
