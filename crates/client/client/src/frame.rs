//! Requests as frames: which operations go together, and how their data travels.

use std::cell::Cell;

use samite_arena::{ArenaView, BlockGrant, WritableBlock};
use samite_transport::client::{NodeLink, RequestTicket};
use samite_types::{DatasetId, Deadline, Epoch, ErrorKind, Result, Seq};
use samite_wire::control::{ControlReply, ControlRequest};
use samite_wire::frame::FrameKind;
use samite_wire::limits::{BLOCK_LEN, BODY_LEN_MAX, OPERATIONS_MAX, PAYLOAD_LEN_MAX};
use samite_wire::op::{BlockRef, List, RequestEncoder, RequestHeader};

use crate::op::FrameFootprint;
use crate::peer::NodePeer;
use crate::stats::count;
use crate::{Client, ClientOperation};

/// Longest data that goes inside a frame when blocks of a shared arena could carry it, in bytes.
pub(crate) const INLINE_LEN_MAX: usize = 16 << 10;

/// More pieces of payload than this are put together first, if they have no more than
/// [`PIECE_LEN_MAX`] bytes on average: each costs a checksum and a slice by itself.
const PIECES_MAX: usize = 4;
/// See [`PIECES_MAX`].
const PIECE_LEN_MAX: usize = 1024;

/// Fewest blocks to ask for at once: enough for a few large writes under way.
const GRANTS_ASKED: usize = 64;

/// Longest encode buffer that a thread keeps, in bytes.
const SCRATCH_LEN_MAX: usize = 64 << 10;

thread_local! {
    /// The encode buffer of this thread while it encodes nothing.
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

pub(crate) fn take_scratch() -> Vec<u8> {
    SCRATCH.try_with(Cell::take).unwrap_or_default()
}

pub(crate) fn put_scratch(buffer: Vec<u8>) {
    if buffer.capacity() <= SCRATCH_LEN_MAX {
        // A thread that is ending keeps nothing.
        let _ = SCRATCH.try_with(|scratch| scratch.set(buffer));
    }
}

/// Whether an operation still fits into a frame of `sum` already; adds it if so. The first always
/// fits: alone it is within every limit.
pub(crate) fn fits(sum: &mut FrameFootprint, count: usize, next: FrameFootprint) -> bool {
    let all = FrameFootprint {
        body: sum.body + next.body,
        payload: sum.payload + next.payload,
        reply_payload: sum.reply_payload + next.reply_payload,
    };
    let fits = count < OPERATIONS_MAX
        // The request's own header takes some, too.
        && all.body <= BODY_LEN_MAX - 1024
        && all.payload <= PAYLOAD_LEN_MAX
        && all.reply_payload <= PAYLOAD_LEN_MAX;
    if fits || count == 0 {
        *sum = all;
    }
    fits || count == 0
}

/// The common fields of all operations of a frame.
#[derive(Clone, Copy)]
pub(crate) struct FrameShared {
    pub(crate) dataset: DatasetId,
    pub(crate) map_epoch: Epoch,
    pub(crate) answered_below: Seq,
    pub(crate) is_retry: bool,
}

/// Sends operations as one frame.
pub(crate) fn send<'o, 'a: 'o>(
    client: &Client,
    peer: &NodePeer,
    link: &NodeLink,
    shared: FrameShared,
    ops: impl Iterator<Item = &'o ClientOperation<'a>> + Clone,
    deadline: Deadline,
) -> Result<RequestTicket> {
    let name_space_generation =
        ops.clone().map(|op| op.name_space_generation).min().unwrap_or(Epoch(u64::MAX));
    let header = RequestHeader {
        dataset: shared.dataset,
        map_epoch: shared.map_epoch,
        name_space_generation,
        answered_below: shared.answered_below,
        is_retry: shared.is_retry,
    };
    let mut placed = GrantPlacement { client, peer, link, deadline, used: List::new(), len: 0 };
    let mut encoder = RequestEncoder::new(take_scratch(), &header);
    for op in ops {
        encoder.operation_placed(&op.operation, op.operation.seq, &mut |bytes| placed.place(bytes));
    }
    let counters = client.counters();
    count(&counters.requests, 1);
    count(&counters.operations, encoder.count() as u64);
    count(&counters.retries, u64::from(shared.is_retry));
    count(&counters.sent_bytes, (encoder.payload_len() + placed.len) as u64);
    let payload_len = encoder.payload_len();
    let (body, payload) = encoder.finish();
    let ticket = if payload.len() > PIECES_MAX && payload_len <= PIECE_LEN_MAX * payload.len() {
        link.submit(FrameKind::Request, &body, &[&payload.concat()], deadline)
    } else {
        link.submit(FrameKind::Request, &body, &payload, deadline)
    };
    put_scratch(body);
    if matches!(&ticket, Err(error) if error.kind() == ErrorKind::TooLarge) {
        // After any other failure the node may have got the request, and the blocks with it.
        link.grants().add(placed.used);
    }
    ticket
}

/// Moves data into the blocks granted by the node, where there are any.
struct GrantPlacement<'p> {
    client: &'p Client,
    peer: &'p NodePeer,
    link: &'p NodeLink,
    deadline: Deadline,
    used: List<BlockGrant, 16>,
    len: usize,
}

impl GrantPlacement<'_> {
    fn place(&mut self, bytes: &[u8]) -> Option<List<BlockRef, 16>> {
        if bytes.len() <= INLINE_LEN_MAX {
            return None;
        }
        let arena = self.link.arena()?;
        let taken = self.take(arena, bytes.len().div_ceil(BLOCK_LEN))?;
        let grants = taken.iter().copied().map(BlockGrant::from);
        let Some(blocks) = arena.fill(&taken, bytes) else {
            // The data goes inline.
            self.link.grants().add(grants);
            return None;
        };
        self.used.extend(grants);
        self.len += bytes.len();
        Some(blocks)
    }

    fn take(&self, arena: &ArenaView, wanted: usize) -> Option<List<WritableBlock, 16>> {
        let pool = self.link.grants();
        if let Some(grants) = pool.take(arena, wanted) {
            return Some(grants);
        }
        if !self.peer.may_ask_for_grants() {
            return None;
        }
        let request = ControlRequest::Grant { count: wanted.max(GRANTS_ASKED) as u16 };
        // When this fails the data goes inline; if the link is dead, sending it will say so.
        if let Ok(ControlReply::Granted(grants)) =
            self.client.control(self.link, &request, self.deadline)
        {
            pool.add(grants.into_iter().map(BlockGrant::from));
        }
        let grants = pool.take(arena, wanted);
        if grants.is_none() {
            self.peer.pause_grants();
        }
        grants
    }
}
