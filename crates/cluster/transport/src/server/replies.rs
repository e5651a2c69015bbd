//! Where a service sends its replies.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::futex;
use samite_types::fault::{FaultParty, FaultSwitch};
use samite_types::{Error, ErrorKind, RequestId};
use samite_wire::frame::{FrameHeader, FrameKind};
use samite_wire::hello::VERSION;
use samite_wire::limits::{BODY_LEN_MAX, PAYLOAD_LEN_MAX};
use smallvec::SmallVec;
use zerocopy::IntoBytes;

use super::conn_id::ConnId;
use super::delay_queue::DelayQueue;
use super::output::{OutPiece, SocketQueue};
use crate::address::{LOCAL_FLAGS, socket_flags};
use crate::shm::ring::{ControlWord, RingMemory, RingProducer};
use crate::tls::RecordSealer;

/// Replies that wait together are sent when they are this long, in bytes, even if more are coming.
const FLUSH_LEN: usize = 256 << 10;

/// The sending half of a connection.
pub(super) struct ConnectionOutput {
    fd: OwnedFd,
    socket: SocketQueue,
    /// Of frames on the socket.
    flags: u16,
    is_tcp: bool,
    /// The socket has said that it is full; wait until it is writable.
    blocked: bool,
    ring: Option<RingOutput>,
    /// Of the protocol, which the peer speaks.
    version: u8,
    /// Its id is in [`ReplySink::dirty`].
    dirty: bool,
    /// The party whose frames meet faults; `None`: they meet none.
    party: Option<FaultParty>,
    /// A frame was sent with a wrong bit: the receiver that finds that ends the connection, and is
    /// alive.
    is_bent: bool,
}

struct RingOutput {
    memory: Arc<RingMemory>,
    producer: RingProducer,
    /// Replies for which the ring had no room; an empty frame stands for a marker.
    waiting: VecDeque<Vec<u8>>,
    waiting_len: usize,
    progress: u64,
}

impl RingOutput {
    fn publish(&mut self) {
        self.progress += 1;
        self.producer.publish();
        let sleeps = self.memory.word(ControlWord::ClientSleeps);
        if sleeps.load(Ordering::SeqCst) == 1 && sleeps.swap(0, Ordering::SeqCst) == 1 {
            // Not private: the word is shared between processes. Nobody there is no error.
            let _ = futex::wake(self.memory.word(ControlWord::ReplyTail), futex::Flags::empty(), 1);
        }
    }

    fn put(&mut self, frame: &[u8]) -> bool {
        if frame.is_empty() {
            self.producer.write_marker()
        } else {
            self.producer.write(frame, &[], &[])
        }
    }

    /// `false`: the frame has to wait.
    fn send(&mut self, frame: Vec<u8>) -> bool {
        if self.waiting.is_empty() && self.put(&frame) {
            self.publish();
            return true;
        }
        self.waiting_len += frame.len();
        self.waiting.push_back(frame);
        false
    }

    fn flush(&mut self) -> bool {
        while let Some(frame) = self.waiting.pop_front() {
            if !self.put(&frame) {
                self.waiting.push_front(frame);
                return false;
            }
            self.waiting_len -= frame.len();
            self.publish();
        }
        true
    }
}

/// Where replies go.
pub struct ReplySink {
    outputs: Vec<Option<(ConnId, ConnectionOutput)>>,
    dirty: Vec<ConnId>,
    closing: Vec<(ConnId, Error)>,
    output_len_max: usize,
    proved: usize,
    /// A ring was full since the loop last asked.
    ring_waits: bool,
    pub(super) faults: Arc<FaultSwitch>,
    pub(super) holdup: DelayQueue,
    /// A handshake met a fault, and none has come to its end since.
    pub(super) spares_handshake: bool,
}

impl std::fmt::Debug for ReplySink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReplySink").field("connections", &self.proved).finish_non_exhaustive()
    }
}

impl ReplySink {
    pub(super) fn new(output_len_max: usize, faults: Arc<FaultSwitch>) -> Self {
        Self {
            outputs: Vec::new(),
            dirty: Vec::new(),
            closing: Vec::new(),
            output_len_max,
            proved: 0,
            ring_waits: false,
            faults,
            holdup: DelayQueue::default(),
            spares_handshake: false,
        }
    }

    /// Sends a reply; nothing happens if the connection is gone. Bytes that the peer does not take
    /// at once are queued, up to [`Options::output_len_max`](super::LoopOptions::output_len_max)
    /// and one reply more; then the peer is not read from, and after
    /// [`Options::stall_timeout`](super::LoopOptions::stall_timeout) it is dropped.
    pub fn send<'a>(
        &mut self,
        conn: ConnId,
        kind: FrameKind,
        request_id: RequestId,
        body: &[u8],
        payload: impl IntoIterator<Item = OutPiece<'a>>,
    ) {
        if self.output(conn).is_none() {
            return;
        }
        let pieces: SmallVec<[OutPiece<'a>; 2]> = payload.into_iter().collect();
        let slices: SmallVec<[&[u8]; 2]> = pieces.iter().map(OutPiece::as_slice).collect();
        let payload_len: usize = slices.iter().map(|slice| slice.len()).sum();
        if body.len() > BODY_LEN_MAX || payload_len > PAYLOAD_LEN_MAX {
            self.close(conn, ErrorKind::Internal, "reply is over the limits of a frame");
            return;
        }
        if self.faults.is_active() && self.is_harmed(conn, kind, request_id, body, &slices) {
            return;
        }
        let Some(output) = get(&mut self.outputs, conn) else { return };
        let build = |flags| FrameHeader::build(kind, request_id, flags, body, &slices);
        if let Some(ring) = &mut output.ring {
            let frame_len = size_of::<FrameHeader>() + body.len() + payload_len;
            if frame_len <= ring.producer.frame_len_max() {
                let header = build(LOCAL_FLAGS);
                if ring.waiting.is_empty() && ring.producer.write(header.as_bytes(), body, &slices)
                {
                    ring.publish();
                } else {
                    let frame = [header.as_bytes(), body, &slices.concat()].concat();
                    self.ring_waits |= !ring.send(frame);
                }
                return;
            }
            self.ring_waits |= !ring.send(Vec::new());
        }
        if pieces.iter().all(|piece| matches!(piece, OutPiece::Copy(_))) {
            let flags = output.flags;
            output.socket.push_frame(body, &slices, |body, payload| {
                FrameHeader::build(kind, request_id, flags, body, &[payload])
            });
            return self.queued(conn);
        }
        output.socket.push(build(output.flags).as_bytes());
        output.socket.push(body);
        drop(slices);
        for piece in pieces {
            match piece {
                OutPiece::Copy(bytes) => output.socket.push(bytes),
                OutPiece::Pinned(pinned) => output.socket.push_pinned(pinned),
            }
        }
        self.queued(conn);
    }

    /// How a frame of `len` bytes goes: by ring or not, and with which flags.
    pub(super) fn way(&self, conn: ConnId, len: usize) -> (bool, u16) {
        let Some(output) = self.output(conn) else { return (false, 0) };
        let ring = output.ring.as_ref();
        let by_ring = ring.is_some_and(|ring| len <= ring.producer.frame_len_max());
        (by_ring, if by_ring { LOCAL_FLAGS } else { output.flags })
    }

    /// Sends a frame that is whole already.
    pub(super) fn put_whole(&mut self, conn: ConnId, frame: Vec<u8>, by_ring: bool) {
        let Some(output) = get(&mut self.outputs, conn) else { return };
        if let Some(ring) = &mut output.ring {
            if by_ring {
                self.ring_waits |= !ring.send(frame);
                return;
            }
            self.ring_waits |= !ring.send(Vec::new());
        }
        output.socket.push(&frame);
        self.queued(conn);
    }

    /// From now on its frames are those of `party`, and meet faults.
    pub(super) fn meets(&mut self, conn: ConnId, party: FaultParty) {
        if let Some(output) = get(&mut self.outputs, conn) {
            output.party = Some(party);
        }
    }

    /// From now on the frames of this connection meet no faults: see [`Service::is_about_faults`](super::NodeService::is_about_faults).
    pub fn spare(&mut self, conn: ConnId) {
        if let Some(output) = get(&mut self.outputs, conn) {
            output.party = None;
        }
    }

    /// The party at the other end, if its frames meet faults.
    pub(super) fn party(&self, conn: ConnId) -> Option<FaultParty> {
        self.output(conn)?.party
    }

    /// A frame with a wrong bit was sent on purpose.
    pub(super) fn bent(&mut self, conn: ConnId) {
        if let Some(output) = get(&mut self.outputs, conn) {
            output.is_bent = true;
        }
    }

    /// Whether a frame was sent by it with a wrong bit.
    pub(super) fn is_bent(&self, conn: ConnId) -> bool {
        self.output(conn).is_some_and(|output| output.is_bent)
    }

    /// When the next late frame is due.
    pub(super) fn next_late(&self) -> Option<Duration> {
        self.holdup.next()
    }

    /// Ends a connection, telling the peer why.
    pub fn close(&mut self, conn: ConnId, kind: ErrorKind, reason: &str) {
        self.closing.push((conn, Error::new(kind, reason.to_owned())));
    }

    /// Whether the connection is over shared memory, so that its peer can follow references into the arena.
    #[must_use]
    pub fn shares_arena(&self, conn: ConnId) -> bool {
        self.output(conn).is_some_and(|output| output.ring.is_some())
    }

    /// The version of the protocol that the peer speaks; the newest before it has said so.
    #[must_use]
    pub fn version(&self, conn: ConnId) -> u8 {
        self.output(conn).map_or(VERSION, |output| output.version)
    }

    /// Connections that have proved the key.
    #[must_use]
    pub const fn connections(&self) -> usize {
        self.proved
    }

    /// Bytes were queued: send them soon, or at once when they are many.
    fn queued(&mut self, conn: ConnId) {
        let Some(output) = get(&mut self.outputs, conn) else { return };
        if !output.dirty {
            output.dirty = true;
            self.dirty.push(conn);
        }
        if output.socket.len() >= FLUSH_LEN && !output.blocked {
            self.flush(conn);
        }
    }

    /// A connection is there.
    pub(super) fn open(&mut self, conn: ConnId, fd: OwnedFd, is_tcp: bool) {
        let index = conn.index();
        if self.outputs.len() <= index {
            self.outputs.resize_with(index + 1, || None);
        }
        let socket = SocketQueue::default();
        let output = ConnectionOutput {
            version: VERSION,
            fd,
            socket,
            flags: socket_flags(is_tcp),
            is_tcp,
            blocked: false,
            ring: None,
            dirty: false,
            party: None,
            is_bent: false,
        };
        self.outputs[index] = Some((conn, output));
    }

    /// From now on everything is encrypted. Nothing waits to be sent: the peer has answered all
    /// there was.
    pub(super) fn seal(&mut self, conn: ConnId, sealer: RecordSealer) {
        if let Some(output) = get(&mut self.outputs, conn) {
            debug_assert_eq!(output.socket.len(), 0, "sealed in the middle");
            output.socket.seal(sealer);
        }
    }

    /// The peer has proved the key, and may have rings from now on. `version`: of the protocol.
    pub(super) fn proved(&mut self, conn: ConnId, memory: Option<Arc<RingMemory>>, version: u8) {
        self.proved += 1;
        let Some(output) = get(&mut self.outputs, conn) else { return };
        output.version = version;
        output.ring = memory.map(|memory| RingOutput {
            producer: RingProducer::new(memory.clone(), crate::shm::ring::RingKind::Replies),
            memory,
            waiting: VecDeque::new(),
            waiting_len: 0,
            progress: 0,
        });
    }

    /// Forgets the connection. Returns its socket, which is closed when that is dropped.
    pub(super) fn remove(&mut self, conn: ConnId, was_proved: bool) -> Option<OwnedFd> {
        self.proved -= usize::from(was_proved);
        get(&mut self.outputs, conn)?;
        self.outputs[conn.index()].take().map(|(_, output)| output.fd)
    }

    fn output(&self, conn: ConnId) -> Option<&ConnectionOutput> {
        match self.outputs.get(conn.index()) {
            Some(Some((id, output))) if *id == conn => Some(output),
            _ => None,
        }
    }

    /// The socket of a connection, to ask the kernel about its peer.
    #[must_use]
    pub fn socket(&self, conn: ConnId) -> Option<BorrowedFd<'_>> {
        self.fd(conn)
    }

    pub(super) fn fd(&self, conn: ConnId) -> Option<BorrowedFd<'_>> {
        Some(self.output(conn)?.fd.as_fd())
    }

    /// So much output waits that no more requests should be taken.
    pub(super) fn is_full(&self, conn: ConnId) -> bool {
        self.output(conn).is_none_or(|output| {
            let ring_len = output.ring.as_ref().map_or(0, |ring| ring.waiting_len);
            output.socket.len().max(ring_len) > self.output_len_max
        })
    }

    /// Bytes that wait for the peer to take them from its socket.
    #[must_use]
    pub fn waiting_len(&self, conn: ConnId) -> usize {
        self.output(conn).map_or(0, |output| output.socket.len())
    }

    /// Output waits for the peer, and a number that grows as it takes some.
    pub(super) fn stalled(&self, conn: ConnId) -> Option<u64> {
        let output = self.output(conn)?;
        let ring = output.ring.as_ref().filter(|ring| !ring.waiting.is_empty());
        (output.socket.len() > 0 || ring.is_some())
            .then(|| output.socket.progress() + ring.map_or(0, |ring| ring.progress))
    }

    pub(super) fn is_blocked(&self, conn: ConnId) -> bool {
        self.output(conn).is_some_and(|output| output.blocked)
    }

    /// Queues bytes that are a frame already.
    pub(super) fn push_raw(&mut self, conn: ConnId, frame: &[u8]) {
        if let Some(output) = get(&mut self.outputs, conn) {
            output.socket.push(frame);
            self.queued(conn);
        }
    }

    /// Sends the output that waits for the socket; an error ends the connection.
    pub(super) fn flush(&mut self, conn: ConnId) {
        let Some(output) = get(&mut self.outputs, conn) else { return };
        match output.socket.flush(output.fd.as_fd()) {
            Ok(all) => output.blocked = !all,
            Err(errno) => {
                let error = match errno {
                    Errno::PIPE | Errno::CONNRESET => was_reset(output.is_tcp),
                    errno => crate::socket::broken("send", errno),
                };
                self.closing.push((conn, error));
            }
        }
    }

    /// Moves the replies that wait for the ring. `true`: nothing waits any more.
    pub(super) fn flush_ring(&mut self, conn: ConnId) -> bool {
        get(&mut self.outputs, conn)
            .and_then(|output| output.ring.as_mut())
            .is_none_or(RingOutput::flush)
    }

    /// A connection with output to send since the last call.
    pub(super) fn next_dirty(&mut self) -> Option<ConnId> {
        let conn = self.dirty.pop()?;
        if let Some(output) = get(&mut self.outputs, conn) {
            output.dirty = false;
        }
        Some(conn)
    }

    /// A connection to end, and why.
    pub(super) fn next_closing(&mut self) -> Option<(ConnId, Error)> {
        self.closing.pop()
    }

    pub(super) fn take_ring_waits(&mut self) -> bool {
        std::mem::take(&mut self.ring_waits)
    }

    pub(super) fn is_closing(&self, conn: ConnId) -> bool {
        self.closing.iter().any(|(closing, _)| *closing == conn)
    }
}

/// The peer has closed its end, which is its right.
pub(super) fn gone() -> Error {
    Error::new(ErrorKind::Unavailable, "closed by the peer")
}

/// The connection was reset: by the peer, or with tcp by the network between. Within a host nothing
/// does: a peer that has closed its end, or has died, with something not received yet looks like
/// that, too.
pub(super) fn was_reset(is_tcp: bool) -> Error {
    if is_tcp { Error::new(ErrorKind::Interrupted, "connection reset") } else { gone() }
}

fn get(
    outputs: &mut [Option<(ConnId, ConnectionOutput)>],
    conn: ConnId,
) -> Option<&mut ConnectionOutput> {
    match outputs.get_mut(conn.index()) {
        Some(Some((id, output))) if *id == conn => Some(output),
        _ => None,
    }
}
