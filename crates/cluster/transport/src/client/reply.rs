//! A reply, as its owner sees it.

use samite_types::{Error, ErrorKind, Result};
use samite_wire::frame::FrameKind;

use super::stream::{FrameView, PartialFrame, ReadLine, ReadStop};
use super::table::FiledReply;

/// A reply, seen where it lies: in ring memory, or in the link's receive buffer. Of a large reply on a socket the
/// payload is still in the kernel, and [`LinkReply::read_payload`] receives it straight into its destination.
pub struct LinkReply<'a> {
    kind: FrameKind,
    body: &'a [u8],
    /// Payload that is here and was not read.
    here: &'a [u8],
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
            rest: view.partial.map(|partial| (partial, line)),
            failure: None,
        }
    }

    pub(super) fn filed(filed: &'a FiledReply) -> Self {
        let (body, here) = filed.bytes.split_at(filed.body_len);
        Self { kind: filed.kind, body, here, rest: None, failure: None }
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
        self.here.len() + self.rest.as_ref().map_or(0, |(partial, _)| partial.left)
    }

    /// The payload that was not read yet, when it is all here already, as is any payload up to
    /// [`STREAM_LEN_MIN`](super::STREAM_LEN_MIN) bytes. `None`: it is to be read with [`LinkReply::read_payload`].
    #[must_use]
    pub fn payload_in_place(&self) -> Option<&'a [u8]> {
        self.rest.as_ref().is_none_or(|(partial, _)| partial.left == 0).then_some(self.here)
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
        if let Some((partial, line)) = &mut self.rest
            && !to_come.is_empty()
            && let Err(stop) = partial.receive(*line, to_come)
        {
            let error = match &stop {
                ReadStop::TimedOut => Error::new(ErrorKind::Timeout, "reply did not come in time"),
                ReadStop::Broken(error) => error.clone(),
            };
            self.failure = Some(stop);
            return Err(error);
        }
        Ok(())
    }
}
