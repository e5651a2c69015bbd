//! One connection: the bytes that have come, and their meaning.

use std::time::Duration;

use rustix::event::epoll;
use samite_types::{Clock, Error, ErrorKind, Result, SystemClock, SystemEntropy};
use samite_wire::WireError;
use samite_wire::frame::{CheckedHeader, FrameCheck, FrameKind, HEADER_LEN};

use super::accept::ConnectionOrigin;
use super::conn_id::ConnId;
use super::dispatch::{LoopContext, serve_reply, serve_request};
use super::layer::ReceiveLayer;
use super::replies::{ReplySink, gone, was_reset};
use super::rings::RingInput;
use super::service::ConnectionPeer;
use crate::address::socket_flags;
use crate::handshake::{NodePlace, NodeSide, NodeStep, check_header};
use crate::identity::PeerIdentity;
use crate::socket;
use crate::tls::begins_handshake;

/// Bytes received at once.
pub(super) const SCRATCH_LEN: usize = 256 << 10;
/// A frame longer than this, in bytes, is received into a buffer of its own.
const LONG_FRAME_LEN: usize = 64 << 10;
/// A frame buffer larger than this, in bytes, is given back after use.
const KEPT_BUFFER_LEN_MAX: usize = 2 << 20;
/// Receives on one connection before the others have their turn.
const RECEIVES_PER_TURN: usize = 4;

/// How far a peer has come.
#[derive(Debug)]
pub(super) enum ConnectionPhase {
    Handshake(NodeSide),
    Open(ConnectionPeer),
    /// Made by this side; the other end is a node.
    Outgoing,
}

/// The receiving half of a connection.
#[derive(Debug)]
pub(super) struct ServerConnection {
    pub(super) id: ConnId,
    pub(super) phase: ConnectionPhase,
    pub(super) origin: ConnectionOrigin,
    pub(super) layer: ReceiveLayer,
    pub(super) rings: Option<RingInput>,
    /// The peer may have mapped memory that is its own to write to, until it closes the connection.
    pub(super) shares_memory: bool,
    /// Bytes of frames that are not complete, or not served yet; at most [`SCRATCH_LEN`].
    partial: Vec<u8>,
    /// A long frame, as far as it has come.
    long: Vec<u8>,
    /// Its whole length; 0 when there is none.
    long_len: usize,
    /// Its header, and the checksum of what has come so far once the body has: computed while the bytes are in the cache.
    long_check: Option<(CheckedHeader, FrameCheck)>,
    /// Complete frames wait because the peer does not take its replies.
    paused: bool,
    /// Bytes ever received: shows progress.
    pub(super) progress: u64,
    /// Progress when last looked at, and since when it has been that.
    pub(super) stalled_since: Option<(u64, Duration)>,
    /// The events that the kernel was told to wait for.
    pub(super) interest: epoll::EventFlags,
}

/// Work for the loop after a connection has been read.
#[derive(Debug)]
pub(super) enum ReadResult {
    /// Nothing.
    Wait,
    /// The peer has proved who it is: welcome it.
    Welcome { peer: ConnectionPeer, wants_rings: bool, version: u8 },
}

impl ServerConnection {
    pub(super) fn new(id: ConnId, origin: ConnectionOrigin, layer: ReceiveLayer) -> Self {
        Self {
            id,
            phase: ConnectionPhase::Handshake(NodeSide::Fresh),
            origin,
            layer,
            rings: None,
            shares_memory: false,
            partial: Vec::new(),
            long: Vec::new(),
            long_len: 0,
            long_check: None,
            paused: false,
            progress: 0,
            stalled_since: None,
            interest: epoll::EventFlags::IN,
        }
    }

    /// The service knows of it.
    pub(super) const fn is_open(&self) -> bool {
        matches!(self.phase, ConnectionPhase::Open(_) | ConnectionPhase::Outgoing)
    }

    /// It was made by this side.
    pub(super) const fn is_outgoing(&self) -> bool {
        matches!(self.phase, ConnectionPhase::Outgoing)
    }

    /// The peer is not read from until it takes the output that waits for it. Frames on a
    /// connection that this side has made are taken always: they make less to send, and two nodes
    /// must not wait for each other.
    pub(super) fn is_held_back(&self, replies: &ReplySink) -> bool {
        !self.is_outgoing() && replies.is_full(self.id)
    }

    /// Frames have come that were not served.
    pub(super) fn has_kept_frames(&self) -> bool {
        self.paused || self.layer.is_ready()
    }

    /// The peer is in the middle of a frame.
    pub(super) fn is_inside_frame(&self) -> bool {
        self.long_len > 0
            || (!self.partial.is_empty() && !self.paused)
            || self.layer.is_inside_record()
    }

    /// Receives and serves what has come.
    ///
    /// # Errors
    /// Why the connection is to be ended.
    pub(super) fn read(
        &mut self,
        scratch: &mut [u8],
        place: &mut LoopContext<'_>,
    ) -> Result<ReadResult> {
        if !self.layer.advance(self.id, scratch, place.replies)? {
            return Ok(ReadResult::Wait);
        }
        if self.paused && !self.is_held_back(place.replies) {
            self.paused = false;
            let kept = std::mem::take(&mut self.partial);
            let next = self.serve(&kept, place)?;
            if !matches!(next, ReadResult::Wait) {
                return Ok(next);
            }
        }
        let mut turns = 0;
        // The kernel does not tell again of bytes that lie in the layer.
        while turns < RECEIVES_PER_TURN || self.layer.is_ready() {
            turns += 1;
            if self.is_held_back(place.replies) {
                return Ok(ReadResult::Wait);
            }
            let Some(fd) = place.replies.fd(self.id) else { return Ok(ReadResult::Wait) };
            let kept = self.partial.len();
            let received = if self.long_len > 0 {
                let left = self.long_len - self.long.len();
                self.layer.receive_append(fd, &mut self.long, left)
            } else {
                scratch[..kept].copy_from_slice(&self.partial);
                self.layer.receive(fd, &mut scratch[kept..])
            };
            let received = match received {
                // Within a host the peer has died, mostly: see `was_reset`.
                Ok(0) if self.origin.is_tcp && self.is_inside_frame() => {
                    return Err(Error::new(ErrorKind::Corrupt, "closed in the middle of a frame"));
                }
                Ok(0) => return Err(gone()),
                Err(rustix::io::Errno::CONNRESET) => return Err(was_reset(self.origin.is_tcp)),
                Ok(received) => received,
                Err(rustix::io::Errno::AGAIN) => return Ok(ReadResult::Wait),
                Err(errno) => return Err(socket::broken("receive", errno)),
            };
            self.progress += received as u64;
            if self.long_len > 0 {
                self.check_long(received)?;
                if self.long.len() < self.long_len {
                    continue;
                }
                self.serve_long(place)?;
                continue;
            }
            self.partial.clear();
            let filled = kept + received;
            let next = self.serve(&scratch[..filled], place)?;
            if !matches!(next, ReadResult::Wait) || filled < scratch.len() {
                return Ok(next);
            }
        }
        Ok(ReadResult::Wait)
    }

    /// Serves the complete frames of `bytes` and keeps the rest.
    fn serve(&mut self, bytes: &[u8], place: &mut LoopContext<'_>) -> Result<ReadResult> {
        let mut rest = bytes;
        while let Some((raw, after)) = rest.split_first_chunk::<HEADER_LEN>() {
            if self.is_held_back(place.replies) || place.replies.is_closing(self.id) {
                self.paused = true;
                break;
            }
            if !self.is_open() && begins_handshake(raw) && self.layer.binding().is_none() {
                let words = "this address takes no TLS; connect by tcp://…";
                return Err(Error::new(ErrorKind::Denied, words));
            }
            let header = CheckedHeader::parse(raw)?;
            if !self.is_open() {
                check_header(&header)?;
            }
            if header.flags & !socket_flags(self.origin.is_tcp) != 0 {
                return Err(WireError::Unknown("frame flags").into());
            }
            let Some((content, behind)) = after.split_at_checked(header.len_after()) else {
                if HEADER_LEN + header.len_after() > LONG_FRAME_LEN {
                    self.long_len = HEADER_LEN + header.len_after();
                    self.long.clear();
                    self.long.extend_from_slice(rest);
                    return Ok(ReadResult::Wait);
                }
                break;
            };
            rest = behind;
            let next = self.frame(&header, content, place)?;
            if !matches!(next, ReadResult::Wait) {
                self.paused = !rest.is_empty();
                self.partial.extend_from_slice(rest);
                return Ok(next);
            }
        }
        self.partial.extend_from_slice(rest);
        Ok(ReadResult::Wait)
    }

    /// Takes the `received` bytes at the end of a long frame into its checksum.
    fn check_long(&mut self, received: usize) -> Result<()> {
        if let Some((_, check)) = &mut self.long_check {
            check.update(&self.long[self.long.len() - received..]);
        } else if let Some((raw, content)) = self.long.split_first_chunk::<HEADER_LEN>() {
            let header = CheckedHeader::parse(raw)?;
            if let Some((body, payload)) = content.split_at_checked(header.body_len) {
                let mut check = header.check(body);
                check.update(payload);
                self.long_check = Some((header, check));
            }
        }
        Ok(())
    }

    fn serve_long(&mut self, place: &mut LoopContext<'_>) -> Result<()> {
        let mut long = std::mem::take(&mut self.long);
        self.long_len = 0;
        if let Some((header, check)) = self.long_check.take() {
            check.finish()?;
            let (body, payload) = long[HEADER_LEN..].split_at(header.body_len);
            match &self.phase {
                ConnectionPhase::Open(peer) => {
                    serve_request(self.id, peer, &header, body, payload, place)?
                }
                ConnectionPhase::Outgoing => serve_reply(self.id, &header, body, payload, place)?,
                // Only a peer that has proved the key may send long frames.
                ConnectionPhase::Handshake(_) => {}
            }
        }
        if long.capacity() <= KEPT_BUFFER_LEN_MAX {
            long.clear();
            self.long = long;
        }
        Ok(())
    }

    /// Serves one frame that has come by socket.
    fn frame(
        &mut self,
        header: &CheckedHeader,
        content: &[u8],
        place: &mut LoopContext<'_>,
    ) -> Result<ReadResult> {
        let (body, payload) = content.split_at(header.body_len);
        header.verify(body, &[payload])?;
        match &mut self.phase {
            ConnectionPhase::Open(peer) => {
                serve_request(self.id, peer, header, body, payload, place)?;
                Ok(ReadResult::Wait)
            }
            ConnectionPhase::Outgoing => {
                serve_reply(self.id, header, body, payload, place)?;
                Ok(ReadResult::Wait)
            }
            ConnectionPhase::Handshake(_) => self.handshake(header, body, place),
        }
    }

    /// Takes a frame of a peer that has not proved yet who it is.
    fn handshake(
        &mut self,
        header: &CheckedHeader,
        body: &[u8],
        place: &mut LoopContext<'_>,
    ) -> Result<ReadResult> {
        let ConnectionPhase::Handshake(side) = &mut self.phase else {
            return Err(ErrorKind::Internal.into());
        };
        let keys = place.keys.load();
        let handshake = NodePlace {
            node: place.node,
            keys: &keys,
            is_for_guests: self.origin.is_for_guests,
            binding: self.layer.binding(),
            now_s: SystemClock.realtime().as_secs(),
            entropy: &SystemEntropy,
        };
        match side.step(header.kind, body, &handshake)? {
            NodeStep::Challenge { node, .. }
                if node.is_some_and(|node| place.replies.faults.is_cut(node)) =>
            {
                Ok(ReadResult::Wait)
            }
            NodeStep::Challenge { mut bytes, node } => {
                let (id, challenge) = (self.id, FrameKind::Challenge);
                // Only a network can damage them.
                let is_over = self.origin.is_tcp
                    && (place.replies.ends_handshake(id, node, header.kind, None)?
                        || place.replies.ends_handshake(id, node, challenge, Some(&mut bytes))?);
                if !is_over {
                    place.replies.push_raw(id, &bytes);
                }
                Ok(ReadResult::Wait)
            }
            NodeStep::Proved { client, node, proved, wants_rings, version } => {
                let own = rustix::process::geteuid().as_raw();
                let users = (self.origin.uid, own);
                let identity = PeerIdentity::of(proved, users, node.is_some())?;
                let kind = header.kind;
                if self.origin.is_tcp && place.replies.ends_handshake(self.id, node, kind, None)? {
                    return Ok(ReadResult::Wait);
                }
                let has_tls = self.layer.binding().is_some();
                let transport = match (has_tls, self.origin.is_tcp, wants_rings) {
                    (true, ..) => crate::TransportKind::Tls,
                    (_, true, _) => crate::TransportKind::Tcp,
                    (.., true) => crate::TransportKind::Shm,
                    _ => crate::TransportKind::Unix,
                };
                let peer = ConnectionPeer { client, node, identity, transport };
                Ok(ReadResult::Welcome { peer, wants_rings, version })
            }
        }
    }
}
