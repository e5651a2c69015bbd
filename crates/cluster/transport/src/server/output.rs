//! Bytes on their way to one socket.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use samite_wire::frame::{FrameHeader, HEADER_LEN};
use smallvec::SmallVec;
use zerocopy::IntoBytes;

use crate::socket::{SLICES_MAX, send_now};
use crate::tls::RecordSealer;

/// Memory that stays as it is until it has been sent.
pub type Pinned = Box<dyn AsRef<[u8]> + Send>;

/// A piece of a reply's payload.
pub enum OutPiece<'a> {
    /// Copied at once. For pieces below [`PIN_LEN_MIN`].
    Copy(&'a [u8]),
    /// Held, and sent from where it lies.
    Pinned(Pinned),
}

impl OutPiece<'_> {
    pub(super) fn as_slice(&self) -> &[u8] {
        match self {
            Self::Copy(bytes) => bytes,
            Self::Pinned(pinned) => (**pinned).as_ref(),
        }
    }
}

/// From this length on, in bytes, keeping a piece pinned costs less than copying it.
pub const PIN_LEN_MIN: usize = 8 << 10;

/// Buffers up to this size are kept for the next replies.
const SPARE_LEN_MAX: usize = 64 << 10;

enum OutputSegment {
    /// Headers, bodies and small payloads of any number of frames.
    Bytes(Vec<u8>),
    Pinned(Pinned),
}

impl OutputSegment {
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Pinned(pinned) => (**pinned).as_ref(),
        }
    }
}

/// A queue of frames for a socket. Everything that waits leaves in one vectored send, with TLS as one row of records.
#[derive(Default)]
pub(super) struct SocketQueue {
    segments: VecDeque<OutputSegment>,
    /// Bytes of the first segment that are sent.
    sent: usize,
    /// Bytes of segments that wait.
    len: usize,
    spare: Vec<u8>,
    /// Bytes ever sent, or encrypted.
    progress: u64,
    /// With TLS. Its records that are not sent yet go before the segments.
    sealer: Option<Box<RecordSealer>>,
}

impl SocketQueue {
    /// Bytes that wait.
    pub(super) fn len(&self) -> usize {
        self.len + self.sealer.as_ref().map_or(0, |sealer| sealer.len())
    }

    /// A number that grows as the peer takes bytes.
    pub(super) fn progress(&self) -> u64 {
        self.sealer.as_ref().map_or(self.progress, |sealer| sealer.progress())
    }

    pub(super) fn seal(&mut self, sealer: RecordSealer) {
        self.sealer = Some(Box::new(sealer));
    }

    /// The buffer to append small bytes to.
    fn bytes(&mut self) -> &mut Vec<u8> {
        if !matches!(self.segments.back(), Some(OutputSegment::Bytes(_))) {
            let spare = std::mem::take(&mut self.spare);
            self.segments.push_back(OutputSegment::Bytes(spare));
        }
        match self.segments.back_mut() {
            Some(OutputSegment::Bytes(bytes)) => bytes,
            _ => unreachable!("a byte segment was just put there"),
        }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.len += bytes.len();
        self.bytes().extend_from_slice(bytes);
    }

    /// Adds a frame whose payload is copied; `build` makes the header of body and payload. All of the
    /// payload lies together then, and its checksum is computed at once.
    pub(super) fn push_frame(
        &mut self,
        body: &[u8],
        payload: &[&[u8]],
        build: impl FnOnce(&[u8], &[u8]) -> FrameHeader,
    ) {
        let bytes = self.bytes();
        let start = bytes.len();
        bytes.extend_from_slice(&[0; HEADER_LEN]);
        bytes.extend_from_slice(body);
        payload.iter().for_each(|piece| bytes.extend_from_slice(piece));
        let (header, content) = bytes[start..].split_at_mut(HEADER_LEN);
        let (body, payload) = content.split_at(body.len());
        header.copy_from_slice(build(body, payload).as_bytes());
        self.len += HEADER_LEN + body.len() + payload.len();
    }

    pub(super) fn push_pinned(&mut self, pinned: Pinned) {
        let bytes = (*pinned).as_ref();
        if bytes.len() < PIN_LEN_MIN {
            self.push(bytes);
        } else {
            self.len += bytes.len();
            self.segments.push_back(OutputSegment::Pinned(pinned));
        }
    }

    /// Sends what the socket takes. `Ok(true)`: all of it.
    pub(super) fn flush(&mut self, fd: BorrowedFd<'_>) -> Result<bool, Errno> {
        if let Some(mut sealer) = self.sealer.take() {
            let flushed = self.flush_sealed(&mut sealer, fd);
            self.sealer = Some(sealer);
            return flushed;
        }
        while self.len > 0 {
            let (sent, offered) = match self.send(fd) {
                Ok(counts) => counts,
                Err(Errno::AGAIN) => return Ok(false),
                Err(errno) => return Err(errno),
            };
            self.advance(sent);
            if sent < offered {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn flush_sealed(
        &mut self,
        sealer: &mut RecordSealer,
        fd: BorrowedFd<'_>,
    ) -> Result<bool, Errno> {
        loop {
            if !sealer.send(fd)? {
                return Ok(false);
            }
            if self.len == 0 {
                return Ok(true);
            }
            let sealed = sealer.seal(&self.waiting().collect::<SmallVec<[&[u8]; 8]>>(), 0)?;
            self.advance(sealed);
        }
    }

    /// Bytes that wait, as many pieces as one send takes.
    fn waiting(&self) -> impl Iterator<Item = &[u8]> {
        let skips = std::iter::once(self.sent).chain(std::iter::repeat(0));
        let pieces = self.segments.iter().take(SLICES_MAX).zip(skips);
        pieces.map(|(segment, skip)| &segment.as_slice()[skip..])
    }

    /// One vectored send. Returns the bytes sent and the bytes offered.
    fn send(&self, fd: BorrowedFd<'_>) -> Result<(usize, usize), Errno> {
        let slices: SmallVec<[IoSlice<'_>; 8]> = self.waiting().map(IoSlice::new).collect();
        let offered = slices.iter().map(|slice| slice.len()).sum();
        Ok((send_now(fd, &slices)?, offered))
    }

    fn advance(&mut self, sent: usize) {
        self.len -= sent;
        self.progress += sent as u64;
        self.sent += sent;
        while let Some(first) = self.segments.front() {
            let len = first.as_slice().len();
            if self.sent < len {
                break;
            }
            self.sent -= len;
            if let Some(OutputSegment::Bytes(mut bytes)) = self.segments.pop_front()
                && bytes.capacity() <= SPARE_LEN_MAX
            {
                bytes.clear();
                self.spare = bytes;
            }
        }
    }
}
