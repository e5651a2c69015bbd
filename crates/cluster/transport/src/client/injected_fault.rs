//! Faults on the way out of a node's link.

use samite_cpu::timespec;
use samite_types::fault::FaultParty;
use samite_types::{Deadline, Error, ErrorKind, RequestId, Result};

use super::request::OutgoingRequest;
use super::shared::LinkShared;
use super::stream::ReadPatience;
use crate::fault::{bend, reset, whole, words};

impl LinkShared {
    /// Whether a request meets a fault; then this has done with it what is to be done. A late one is waited for by the thread that sends it;
    /// others overtake it.
    #[cold]
    pub(super) fn is_harmed(
        &self,
        id: RequestId,
        request: &OutgoingRequest<'_>,
        deadline: Deadline,
    ) -> Result<bool> {
        let Some(faults) = &self.faults else { return Ok(false) };
        let OutgoingRequest { kind, body, payload } = *request;
        let verdict =
            faults.frame(FaultParty::Node(self.node), true, words(kind, id, body, payload));
        if verdict.is_nothing() || verdict.lost.is_some() {
            return Ok(verdict.lost.is_some());
        }
        if verdict.is_reset {
            let fd = self.line(ReadPatience::None)?.fd;
            reset(fd);
            // Others have it open; the end of it is told all the same.
            let _ = rustix::net::shutdown(fd, rustix::net::Shutdown::Both);
            return Err(self.kill(Error::new(ErrorKind::Unavailable, "reset on purpose")));
        }
        let by_ring = self.ring.as_ref().filter(|ring| ring.takes(request));
        let flags = self.flags();
        let mut frame = whole(kind, id, flags, body, payload);
        if let Some(random) = verdict.corrupt {
            bend(&mut frame, flags, body.len(), random);
        }
        if let Some(left) = deadline.remaining().filter(|_| !verdict.delay.is_zero()) {
            let _ = rustix::thread::nanosleep(&timespec(verdict.delay.min(left)));
        }
        for _ in 0..=usize::from(verdict.is_doubled) {
            match by_ring {
                Some(ring) => {
                    while !ring.send_frame(&frame, &[], &[]) {
                        self.make_room(deadline)?;
                    }
                }
                None => {
                    self.sender.count(1);
                    self.send_slices(&[&frame], deadline)?;
                }
            }
        }
        Ok(true)
    }
}
