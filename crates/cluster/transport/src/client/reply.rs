//! A reply, as its owner sees it.

use samite_types::{Error, ErrorKind, Result};
use samite_wire::frame::FrameKind;

use super::stream::{FrameView, PartialFrame, ReadLine, ReadStop};
use super::table::FiledReply;

/// Most bytes that are received before they are asked for, when the payload is taken in small
/// pieces: one call to the kernel for many of them.
const AHEAD_LEN: usize = 32 << 10;

/// A reply, seen where it lies: in ring memory, or in the link's receive buffer. Of a large reply on a socket the
/// payload is still in the kernel, and [`LinkReply::read_payload`] receives it straight into its destination.
pub struct LinkReply<'a> {
    kind: FrameKind,
    body: &'a [u8],
    /// Payload that is here and was not read.
    here: &'a [u8],
    /// Payload that was received before it was asked for, and how much of it was read.
    ahead: (Vec<u8>, usize),
    rest: Option<(&'a mut PartialFrame, ReadLine<'a>)>,
    failure: Option<ReadStop>,
}

impl std::fmt::Debug for LinkReply<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (kind, body_len) = (self.kind, self.body.len());
        write!(f, "Reply({kind:?}, {body_len} + {} bytes)", self.payload_left())
    }
}

impl<'a> LinkReply<'a> {
    pub(super) fn new(view: FrameView<'a>, line: ReadLine<'a>) -> Self {
        Self {
            kind: view.header.kind,
            body: view.body,
            here: view.here,
            ahead: (Vec::new(), 0),
            rest: view.partial.map(|partial| (partial, line)),
            failure: None,
        }
    }

    pub(super) fn filed(filed: &'a FiledReply) -> Self {
        let (body, here) = filed.bytes.split_at(filed.body_len);
        let ahead = (Vec::new(), 0);
        Self { kind: filed.kind, body, here, ahead, rest: None, failure: None }
    }

    /// Why reading the payload has stopped.
    pub(super) fn into_failure(self) -> Option<ReadStop> {
        self.failure
    }

    /// Kind of the body.
    #[must_use]
    pub const fn kind(&self) -> FrameKind {
        self.kind
    }

    /// The body.
    #[must_use]
    pub const fn body(&self) -> &'a [u8] {
        self.body
    }

    /// Bytes of payload that were not read yet.
    #[must_use]
    pub fn payload_left(&self) -> usize {
        let ahead = self.ahead.0.len() - self.ahead.1;
        self.here.len() + ahead + self.rest.as_ref().map_or(0, |(partial, _)| partial.left)
    }

    /// The payload that was not read yet, when it is all here already, as is any payload up to
    /// [`STREAM_LEN_MIN`](super::STREAM_LEN_MIN) bytes. `None`: it is to be read with [`LinkReply::read_payload`].
    #[must_use]
    pub fn payload_in_place(&self) -> Option<&'a [u8]> {
        (self.payload_left() == self.here.len()).then_some(self.here)
    }

    /// Moves the next `dest.len()` bytes of the payload to `dest`.
    ///
    /// The checksum is compared after the whole payload has come: when it is wrong, the wait returns an error, and nothing
    /// that was read counts.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] when fewer are left; `Timeout`, `Unavailable` as for [`Link::wait`](super::NodeLink::wait), which
    /// returns the same error, with all names, after this.
    pub fn read_payload(&mut self, dest: &mut [u8]) -> Result<()> {
        if dest.len() > self.payload_left() {
            return Err(Error::new(ErrorKind::Invalid, "reply has less payload than that"));
        }
        let (at_hand, to_come) = dest.split_at_mut(dest.len().min(self.here.len()));
        let (now, later) = self.here.split_at(at_hand.len());
        at_hand.copy_from_slice(now);
        self.here = later;
        if to_come.is_empty() {
            return Ok(());
        }
        self.receive(to_come).map_err(|stop| {
            let error = match &stop {
                ReadStop::TimedOut => Error::new(ErrorKind::Timeout, "reply did not come in time"),
                ReadStop::Broken(error) => error.clone(),
            };
            self.failure = Some(stop);
            error
        })
    }

    /// Moves payload that was not here from the first to `dest`; there is as much.
    fn receive(&mut self, mut dest: &mut [u8]) -> std::result::Result<(), ReadStop> {
        let Some((partial, line)) = &mut self.rest else { return Ok(()) };
        let (ahead, read) = &mut self.ahead;
        while !dest.is_empty() {
            if *read == ahead.len() {
                if dest.len() >= AHEAD_LEN {
                    return partial.receive(*line, dest);
                }
                ahead.resize(partial.left.min(AHEAD_LEN), 0);
                *read = 0;
                partial.receive(*line, ahead)?;
            }
            let len = dest.len().min(ahead.len() - *read);
            let (now, later) = dest.split_at_mut(len);
            now.copy_from_slice(&ahead[*read..*read + len]);
            *read += len;
            dest = later;
        }
        Ok(())
    }
}
