//! Receiving frames from a socket: small ones through a buffer, the payload of long ones straight to where it belongs.

use std::os::fd::BorrowedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::io::Errno;
use samite_cpu::{PollCost, SpinTime};
use samite_types::{Clock, Deadline, Error, ErrorKind, SystemClock};
use samite_wire::WireError;
use samite_wire::frame::{CheckedHeader, FrameCheck, HEADER_LEN};

use super::sender::SocketSender;
use crate::socket::{WAIT_SLICE, poll_for, receive};
use crate::tls::RecordOpener;

/// Payloads longer than this, in bytes, may have to be read with [`LinkReply::read_payload`](super::LinkReply::read_payload); shorter ones are in place.
pub const STREAM_LEN_MIN: usize = 16 << 10;
/// Bytes received at once while frames are small.
const RECEIVE_LEN: usize = 32 << 10;
/// A buffer grown for a long body is given back above this size.
const KEPT_LEN_MAX: usize = 128 << 10;
/// A long payload is received in pieces of this size, so that it is still in the cache when its checksum is computed.
const PIECE_LEN: usize = 256 << 10;

/// Polling a socket before sleeping, at most.
const SPIN_MAX: Duration = Duration::from_micros(100);

/// For how long requests that were left to leave together wait for more replies, which may bring more requests.
const HOLD: Duration = Duration::from_micros(10);

/// Why reading stops.
#[derive(Debug)]
pub(super) enum ReadStop {
    /// Nothing (more) came in time. The connection is as good as before.
    TimedOut,
    /// The connection is of no use any more.
    Broken(Error),
}

impl From<WireError> for ReadStop {
    fn from(error: WireError) -> Self {
        Self::Broken(error.into())
    }
}

/// How long to wait for bytes.
#[derive(Clone, Copy, Debug)]
pub(super) enum ReadPatience {
    Until(Deadline),
    /// Only bytes that are here already.
    None,
}

/// Parameters of reading besides its buffer.
#[derive(Clone, Copy)]
pub(super) struct ReadLine<'a> {
    pub(super) fd: BorrowedFd<'a>,
    pub(super) sender: &'a SocketSender,
    /// With TLS. Locked by the thread that has the role of the reader, so never waited for.
    pub(super) opener: Option<&'a Mutex<RecordOpener>>,
    pub(super) patience: ReadPatience,
}

impl ReadLine<'_> {
    /// Takes the bytes that are here; with `wait`, waits for them as long as the socket's receive
    /// timeout.
    fn take(&self, buffer: &mut [u8], wait: bool) -> Result<usize, Errno> {
        match self.opener {
            Some(opener) => lock(opener).receive(self.fd, buffer, wait),
            None => receive(self.fd, buffer, wait),
        }
    }

    /// Waits until there is something to take, or the socket is ready for any of `flags`.
    fn poll(&self, flags: PollFlags, timeout: Duration) -> Result<(), ReadStop> {
        if !self.opener.is_some_and(|opener| lock(opener).is_ready()) {
            poll_for(self.fd, flags, timeout).map_err(broken)?;
        }
        Ok(())
    }

    /// Receives at least one byte, polling first. `answered`: replies received so far.
    fn receive_soon(
        &self,
        buffer: &mut [u8],
        spin: &mut SpinTime,
        answered: u32,
    ) -> Result<usize, ReadStop> {
        if matches!(self.patience, ReadPatience::None) {
            return self.receive(buffer);
        }
        let mut hold_until = None;
        loop {
            if self.sender.has_rest() {
                let now = SystemClock.monotonic();
                let hold_until = *hold_until.get_or_insert(now + HOLD);
                if now >= hold_until || self.sender.is_rest_due(answered) {
                    self.sender.send_rest(self.fd).map_err(broken)?;
                }
            }
            match self.take(buffer, false) {
                Ok(len) if len > 0 => {
                    spin.found();
                    return Ok(len);
                }
                Err(Errno::AGAIN) if spin.pass(PollCost::Kernel, false) => {}
                _ => break,
            }
        }
        spin.sleeps();
        let received = self.receive(buffer);
        spin.woke();
        received
    }

    /// Receives at least one byte.
    pub(super) fn receive(&self, buffer: &mut [u8]) -> Result<usize, ReadStop> {
        loop {
            let result = match self.patience {
                ReadPatience::None => self.take(buffer, false),
                ReadPatience::Until(deadline) => {
                    let remaining = deadline.remaining().ok_or(ReadStop::TimedOut)?;
                    if self.sender.has_rest() {
                        self.sender.send_rest(self.fd).map_err(broken)?;
                        let flags = PollFlags::IN | PollFlags::OUT;
                        self.poll(flags, remaining.min(WAIT_SLICE))?;
                        self.take(buffer, false)
                    } else if remaining >= WAIT_SLICE {
                        // The socket's own timeout is one slice: no other call is needed.
                        self.take(buffer, true)
                    } else {
                        self.poll(PollFlags::IN, remaining)?;
                        self.take(buffer, false)
                    }
                }
            };
            match (result, self.patience) {
                (Ok(0), _) => return Err(broken(Errno::CONNRESET)),
                (Ok(len), _) => return Ok(len),
                (Err(Errno::AGAIN), ReadPatience::None) => return Err(ReadStop::TimedOut),
                (Err(Errno::AGAIN), ReadPatience::Until(_)) => {}
                (Err(errno), _) => return Err(broken(errno)),
            }
        }
    }
}

fn lock(opener: &Mutex<RecordOpener>) -> MutexGuard<'_, RecordOpener> {
    opener.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn broken(errno: Errno) -> ReadStop {
    ReadStop::Broken(match errno {
        Errno::CONNRESET | Errno::PIPE => {
            Error::new(ErrorKind::Unavailable, "connection closed by the node")
        }
        errno => crate::socket::broken("connection", errno),
    })
}

/// A frame whose payload is still on its way. Its header and body are in the buffer.
#[derive(Debug)]
pub(super) struct PartialFrame {
    check: FrameCheck,
    /// Payload bytes in the buffer, behind the body.
    here: usize,
    /// Payload bytes that were not received yet.
    pub(super) left: usize,
    /// For another thread, which was not there to receive it: body and payload so far.
    collected: Option<Vec<u8>>,
    /// Its owner has begun to take it and gone: the rest is thrown away.
    spoilt: bool,
}

impl PartialFrame {
    /// Receives the next bytes of the payload.
    pub(super) fn receive(
        &mut self,
        line: ReadLine<'_>,
        mut dest: &mut [u8],
    ) -> Result<(), ReadStop> {
        self.spoilt = true;
        while !dest.is_empty() {
            let piece_len = dest.len().min(PIECE_LEN);
            let len = line.receive(&mut dest[..piece_len])?;
            self.check.update(&dest[..len]);
            self.left -= len;
            dest = &mut dest[len..];
        }
        Ok(())
    }

    fn collect(&mut self, line: ReadLine<'_>) -> Result<(), ReadStop> {
        let collected = self.collected.get_or_insert_default();
        while self.left > 0 {
            let start = collected.len();
            collected.resize(start + self.left.min(PIECE_LEN), 0);
            let result = line.receive(&mut collected[start..]);
            let len = *result.as_ref().unwrap_or(&0);
            collected.truncate(start + len);
            result?;
            self.check.update(&collected[start..]);
            self.left -= len;
        }
        Ok(())
    }
}

/// The frame at the front of the buffer.
#[derive(Debug)]
struct FrontFrame {
    header: CheckedHeader,
    /// `None`: all of it is in the buffer, and its checksum is right.
    partial: Option<PartialFrame>,
}

/// The receive buffer of a socket.
#[derive(Debug)]
pub(super) struct ReceiveBuffer {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    current: Option<FrontFrame>,
    /// Flags that frames may have.
    flags: u16,
    spin: SpinTime,
    /// Frames finished.
    answered: u32,
}

/// A frame as its owner sees it.
pub(super) struct FrameView<'a> {
    pub(super) header: CheckedHeader,
    pub(super) body: &'a [u8],
    /// Payload that is in the buffer.
    pub(super) here: &'a [u8],
    /// The payload's remainder.
    pub(super) partial: Option<&'a mut PartialFrame>,
}

impl ReceiveBuffer {
    pub(super) const fn new(flags: u16) -> Self {
        Self {
            buffer: Vec::new(),
            start: 0,
            end: 0,
            current: None,
            flags,
            spin: SpinTime::new(SPIN_MAX),
            answered: 0,
        }
    }

    /// Waits for the next frame: for all of it, or for its header and body when the payload is long. It stays the current one
    /// until it is finished.
    pub(super) fn next(&mut self, line: ReadLine<'_>) -> Result<CheckedHeader, ReadStop> {
        loop {
            if let Some(current) = &self.current {
                return Ok(current.header);
            }
            let bytes = &self.buffer[self.start..self.end];
            let Some((raw, after)) = bytes.split_first_chunk::<HEADER_LEN>() else {
                self.fill(HEADER_LEN, line)?;
                continue;
            };
            let header = CheckedHeader::parse(raw)?;
            if header.flags & !self.flags != 0 {
                return Err(WireError::Unknown("frame flags").into());
            }
            if let Some(content) = after.get(..header.len_after()) {
                let (body, payload) = content.split_at(header.body_len);
                header.verify(body, &[payload])?;
                self.current = Some(FrontFrame { header, partial: None });
            } else if header.payload_len <= STREAM_LEN_MIN {
                self.fill(HEADER_LEN + header.len_after(), line)?;
            } else if after.len() < header.body_len {
                self.fill(HEADER_LEN + header.body_len, line)?;
            } else {
                let (body, here) = after.split_at(header.body_len);
                let mut check = header.check(body);
                check.update(here);
                let partial = PartialFrame {
                    check,
                    here: here.len(),
                    left: header.payload_len - here.len(),
                    collected: None,
                    spoilt: false,
                };
                self.current = Some(FrontFrame { header, partial: Some(partial) });
            }
        }
    }

    /// Receives until `need` bytes are there.
    fn fill(&mut self, need: usize, line: ReadLine<'_>) -> Result<(), ReadStop> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        if self.start + need > self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            if need > self.buffer.len() || self.buffer.len() < RECEIVE_LEN {
                self.buffer.resize(need.max(RECEIVE_LEN), 0);
            }
        }
        while self.end - self.start < need {
            self.end +=
                line.receive_soon(&mut self.buffer[self.end..], &mut self.spin, self.answered)?;
        }
        Ok(())
    }

    /// The current frame is long and has not been touched: its owner should receive it.
    pub(super) fn is_long(&self) -> bool {
        let partial = self.current.as_ref().and_then(|current| current.partial.as_ref());
        partial.is_some_and(|partial| partial.collected.is_none() && !partial.spoilt)
    }

    /// Its owner cannot take the current frame in pieces any more.
    pub(super) fn is_begun(&self) -> bool {
        let partial = self.current.as_ref().and_then(|current| current.partial.as_ref());
        partial.is_some_and(|partial| partial.collected.is_some() || partial.spoilt)
    }

    /// The current frame.
    pub(super) fn view(&mut self) -> Option<FrameView<'_>> {
        let FrontFrame { header, partial } = self.current.as_mut()?;
        let body_at = self.start + HEADER_LEN;
        let payload_at = body_at + header.body_len;
        let here = partial.as_ref().map_or(header.payload_len, |partial| partial.here);
        Some(FrameView {
            header: *header,
            body: &self.buffer[body_at..payload_at],
            here: &self.buffer[payload_at..payload_at + here],
            partial: partial.as_mut(),
        })
    }

    /// Body and payload of the current frame, for another thread. May be called again after it has
    /// stopped.
    pub(super) fn collect(&mut self, line: ReadLine<'_>) -> Result<Vec<u8>, ReadStop> {
        let Some(view) = self.view() else { return Ok(Vec::new()) };
        let Some(partial) = view.partial else {
            return Ok([view.body, view.here].concat());
        };
        if partial.collected.is_none() {
            let mut bytes = Vec::with_capacity(view.header.len_after());
            bytes.extend_from_slice(view.body);
            bytes.extend_from_slice(view.here);
            partial.collected = Some(bytes);
        }
        partial.collect(line)?;
        Ok(partial.collected.take().unwrap_or_default())
    }

    /// Ends the current frame: receives the bytes that nobody has taken, and compares the checksum.
    pub(super) fn finish(&mut self, line: ReadLine<'_>) -> Result<(), ReadStop> {
        let Some(current) = &mut self.current else { return Ok(()) };
        let mut here = current.header.payload_len;
        if let Some(partial) = &mut current.partial {
            let mut waste = [0; 4096];
            while partial.left > 0 {
                let len = partial.left.min(waste.len());
                partial.receive(line, &mut waste[..len])?;
            }
            partial.check.finish()?;
            here = partial.here;
        }
        self.start += HEADER_LEN + current.header.body_len + here;
        self.current = None;
        self.answered = self.answered.wrapping_add(1);
        if self.buffer.len() > KEPT_LEN_MAX && self.end - self.start <= RECEIVE_LEN {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            self.buffer.truncate(RECEIVE_LEN);
            self.buffer.shrink_to_fit();
        }
        Ok(())
    }
}
