//! Bytes on their way to one socket.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use smallvec::SmallVec;

use super::{PIN_LEN_MIN, Pinned};
use crate::socket::{SLICES_MAX, send_now};

/// Buffers up to this size are kept for the next replies.
const SPARE_LEN_MAX: usize = 64 << 10;

enum Segment {
    /// Headers, bodies and small payloads of any number of frames.
    Bytes(Vec<u8>),
    Pinned(Pinned),
}

impl Segment {
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Pinned(pinned) => (**pinned).as_ref(),
        }
    }
}

/// A queue of frames for a socket. Everything that waits leaves in one vectored send.
#[derive(Default)]
pub(super) struct SocketQueue {
    segments: VecDeque<Segment>,
    /// Bytes of the first segment that are sent.
    sent: usize,
    /// Bytes that wait.
    len: usize,
    spare: Vec<u8>,
    /// Bytes ever sent: shows progress.
    pub(super) progress: u64,
}

impl SocketQueue {
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// The buffer to append small bytes to.
    fn bytes(&mut self) -> &mut Vec<u8> {
        if !matches!(self.segments.back(), Some(Segment::Bytes(_))) {
            let spare = std::mem::take(&mut self.spare);
            self.segments.push_back(Segment::Bytes(spare));
        }
        match self.segments.back_mut() {
            Some(Segment::Bytes(bytes)) => bytes,
            _ => unreachable!("a byte segment was just put there"),
        }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.len += bytes.len();
        self.bytes().extend_from_slice(bytes);
    }

    pub(super) fn push_pinned(&mut self, pinned: Pinned) {
        let bytes = (*pinned).as_ref();
        if bytes.len() < PIN_LEN_MIN {
            self.push(bytes);
        } else {
            self.len += bytes.len();
            self.segments.push_back(Segment::Pinned(pinned));
        }
    }

    /// Sends what the socket takes. `Ok(true)`: all of it.
    pub(super) fn flush(&mut self, fd: BorrowedFd<'_>) -> Result<bool, Errno> {
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

    /// One vectored send. Returns the bytes sent and the bytes offered.
    fn send(&self, fd: BorrowedFd<'_>) -> Result<(usize, usize), Errno> {
        let mut slices: SmallVec<[IoSlice<'_>; 8]> = SmallVec::new();
        let mut skip = self.sent;
        let mut offered = 0;
        for segment in self.segments.iter().take(SLICES_MAX) {
            let slice = &segment.as_slice()[skip..];
            skip = 0;
            offered += slice.len();
            slices.push(IoSlice::new(slice));
        }
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
            if let Some(Segment::Bytes(mut bytes)) = self.segments.pop_front()
                && bytes.capacity() <= SPARE_LEN_MAX
            {
                bytes.clear();
                self.spare = bytes;
            }
        }
    }
}
