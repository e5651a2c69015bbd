//! Reading a connection: from its ring if it has one, from its socket otherwise or when the ring says so.

use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::thread::futex;
use samite_cpu::{PollCost, SpinTime, this_core, timespec};
use samite_types::{Deadline, Error, ErrorKind};
use samite_wire::frame::{CheckedHeader, FrameKind};

use super::stream::{FrameView, ReadLine, ReadPatience, ReadStop, ReceiveBuffer, broken};
use crate::shm::cores::CoreKnowledge;
use crate::shm::ring::{ControlWord, RingConsumer, RingItem};
use crate::socket::{WAIT_SLICE, is_hung_up};

/// Polling the reply ring before sleeping, at most.
const SPIN_MAX: Duration = Duration::from_micros(200);

/// The receiving half of a link; used by the thread that has the role of the reader.
#[derive(Debug)]
pub(super) struct LinkReader {
    ring: Option<RingReader>,
    stream: ReceiveBuffer,
}

#[derive(Debug)]
struct RingReader {
    consumer: RingConsumer,
    spin: SpinTime,
    cores: CoreKnowledge,
    current: Option<CheckedHeader>,
    /// The next frame is on the socket.
    on_socket: bool,
}

impl LinkReader {
    pub(super) fn new(replies: Option<RingConsumer>, socket_flags: u16) -> Self {
        let ring = replies.map(|consumer| RingReader {
            consumer,
            spin: SpinTime::new(SPIN_MAX),
            cores: CoreKnowledge::of_client(),
            current: None,
            on_socket: false,
        });
        Self { ring, stream: ReceiveBuffer::new(socket_flags) }
    }

    /// Waits for the next frame, which stays the current one until it is finished.
    #[inline]
    pub(super) fn next(&mut self, line: ReadLine<'_>) -> Result<CheckedHeader, ReadStop> {
        match &mut self.ring {
            Some(ring) if !ring.on_socket => match ring.next(line)? {
                Some(header) => Ok(header),
                None => self.stream.next(line),
            },
            _ => self.stream.next(line),
        }
    }

    fn in_ring(&self) -> bool {
        self.ring.as_ref().is_some_and(|ring| !ring.on_socket)
    }

    /// See [`ReceiveBuffer::is_long`].
    pub(super) fn is_long(&self) -> bool {
        !self.in_ring() && self.stream.is_long()
    }

    /// See [`ReceiveBuffer::is_begun`].
    pub(super) fn is_begun(&self) -> bool {
        !self.in_ring() && self.stream.is_begun()
    }

    /// The current frame.
    pub(super) fn view(&mut self) -> Option<FrameView<'_>> {
        match &mut self.ring {
            Some(ring) if !ring.on_socket => {
                let header = ring.current?;
                let (body, here) = ring.consumer.frame(&header);
                Some(FrameView { header, body, here, partial: None })
            }
            _ => self.stream.view(),
        }
    }

    /// See [`ReceiveBuffer::collect`].
    pub(super) fn collect(&mut self, line: ReadLine<'_>) -> Result<Vec<u8>, ReadStop> {
        if self.in_ring() {
            let view = self.view();
            return Ok(view.map(|view| [view.body, view.here].concat()).unwrap_or_default());
        }
        self.stream.collect(line)
    }

    /// Ends the current frame.
    pub(super) fn finish(&mut self, line: ReadLine<'_>) -> Result<(), ReadStop> {
        match &mut self.ring {
            Some(ring) if !ring.on_socket => {
                if let Some(header) = ring.current.take() {
                    ring.consumer.consume(&RingItem::Frame(header));
                }
                Ok(())
            }
            Some(ring) => {
                self.stream.finish(line)?;
                ring.on_socket = false;
                Ok(())
            }
            None => self.stream.finish(line),
        }
    }
}

impl RingReader {
    /// Waits for the next frame in the ring; `None`: it is on the socket.
    fn next(&mut self, line: ReadLine<'_>) -> Result<Option<CheckedHeader>, ReadStop> {
        if let Some(header) = self.current {
            return Ok(Some(header));
        }
        loop {
            match self.consumer.peek()? {
                Some(RingItem::Frame(header)) => {
                    self.spin.found();
                    let (body, payload) = self.consumer.frame(&header);
                    header.verify(body, &[payload])?;
                    self.current = Some(header);
                    return Ok(Some(header));
                }
                Some(RingItem::Marker) => {
                    self.consumer.consume(&RingItem::Marker);
                    self.on_socket = true;
                    return Ok(None);
                }
                None => {}
            }
            match line.patience {
                ReadPatience::None => return Err(ReadStop::TimedOut),
                ReadPatience::Until(deadline) => self.wait(line, deadline)?,
            }
        }
    }

    /// Waits until the ring is not empty.
    fn wait(&mut self, line: ReadLine<'_>, deadline: Deadline) -> Result<(), ReadStop> {
        loop {
            let is_near = self.cores.meet(self.consumer.memory(), this_core());
            if !self.spin.pass(PollCost::Memory, is_near) {
                break;
            }
            if self.consumer.is_ready() {
                return Ok(());
            }
        }
        self.spin.sleeps();
        loop {
            let remaining = deadline.remaining().ok_or(ReadStop::TimedOut)?;
            if line.sender.has_rest() {
                line.sender.send_rest(line.fd).map_err(broken)?;
            }
            let sleeps = self.consumer.memory().word(ControlWord::ClientSleeps);
            sleeps.store(1, Ordering::SeqCst);
            let (tail, seen) = self.consumer.tail_word();
            if tail.load(Ordering::SeqCst) != seen {
                sleeps.store(0, Ordering::Relaxed);
                return Ok(());
            }
            let timeout = timespec(remaining.min(WAIT_SLICE));
            // Not private: the node wakes us from its own process.
            let woken = futex::wait(tail, futex::Flags::empty(), seen, Some(&timeout));
            sleeps.store(0, Ordering::Relaxed);
            if self.consumer.is_ready() {
                self.spin.woke();
                return Ok(());
            }
            if woken == Err(rustix::io::Errno::TIMEDOUT) && is_hung_up(line.fd) {
                return Err(broken(rustix::io::Errno::CONNRESET));
            }
        }
    }
}

/// The error in a node's goodbye.
pub(super) fn goodbye(body: &[u8]) -> Error {
    let error = crate::handshake::read_goodbye(body);
    Error::new(ErrorKind::Unavailable, format!("node ended the connection: {error}"))
}

/// Only replies are for requests to wait for.
pub(super) const fn is_reply(kind: FrameKind) -> bool {
    matches!(kind, FrameKind::Reply | FrameKind::ControlReply)
}
