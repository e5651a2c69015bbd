//! State that a link, its tickets and its driver thread share.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::io::Errno;
use samite_arena::{ArenaView, GrantPool};
use samite_cpu::timespec;
use samite_types::fault::FaultSwitch;
use samite_types::{Deadline, Epoch, Error, ErrorKind, NodeId, RequestId, Result};
use samite_wire::frame::{FrameHeader, FrameKind};
use samite_wire::limits::{BODY_LEN_MAX, PAYLOAD_LEN_MAX};
use smallvec::SmallVec;
use zerocopy::IntoBytes;

use super::descriptor::LinkDescriptor;
use super::reader::{LinkReader, goodbye, is_reply};
use super::request::OutgoingRequest;
use super::rings::RingSender;
use super::sender::{SendResult, SocketSender};
use super::stream::{ReadLine, ReadPatience, ReadStop, broken};
use super::table::{FiledReply, ReplyClaim, RequestTable};
use crate::Address;
use crate::address::socket_flags;
use crate::socket::{WAIT_SLICE, poll_for};
use crate::tls::RecordOpener;

/// A pause before looking again whether another thread has made room.
const ROOM_PAUSE: Duration = Duration::from_micros(50);

/// The state of a link.
pub(super) struct LinkShared {
    pub(super) address: Address,
    pub(super) node: NodeId,
    pub(super) map_epoch: Epoch,
    /// Of the protocol, which both ends speak.
    pub(super) version: u8,
    pub(super) socket: LinkDescriptor,
    pub(super) table: RequestTable,
    pub(super) sender: SocketSender,
    /// With TLS; see [`ReadLine`].
    pub(super) opener: Option<Mutex<RecordOpener>>,
    pub(super) ring: Option<RingSender>,
    /// Locked by the thread that has the role of the reader; never waited for.
    pub(super) reader: Mutex<LinkReader>,
    pub(super) arena: Option<Arc<ArenaView>>,
    pub(super) grants: GrantPool,
    /// Of the node whose link this is.
    pub(super) faults: Option<Arc<FaultSwitch>>,
}

impl Drop for LinkShared {
    fn drop(&mut self) {
        // Before the socket is closed: the node may give the memory to others then, and data that
        // was found in the arena keeps it mapped.
        if let Some(arena) = &self.arena {
            arena.give_back();
        }
    }
}

/// The role of the reader. Handed on when dropped.
pub(super) struct ReaderRole<'a> {
    shared: &'a LinkShared,
    reader: Option<MutexGuard<'a, LinkReader>>,
    /// The role has gone to another thread already.
    handed_over: bool,
    /// Own request whose reply was taken.
    pub(super) done: Option<RequestId>,
}

impl<'a> ReaderRole<'a> {
    /// For a thread to which the table has given the role.
    pub(super) fn new(shared: &'a LinkShared) -> Self {
        // The thread that had the role before may be about to let go of the lock. After a panic of a caller's closure the
        // reader is sound: the frame is still its current one.
        let reader = shared.reader.lock().unwrap_or_else(PoisonError::into_inner);
        Self { shared, reader: Some(reader), handed_over: false, done: None }
    }

    pub(super) fn reader(&mut self) -> &mut LinkReader {
        self.reader.as_mut().expect("the lock is held until the role is dropped")
    }

    /// Reads until the reply to `own` is the current frame. Files the replies of others.
    pub(super) fn drive(
        &mut self,
        own: Option<RequestId>,
        line: ReadLine<'_>,
    ) -> Result<DriveEnd, ReadStop> {
        loop {
            if let Some(drive) = self.step(own, line)? {
                return Ok(drive);
            }
        }
    }

    /// Reads one frame. `None`: it was another thread's and has been filed.
    pub(super) fn step(
        &mut self,
        own: Option<RequestId>,
        line: ReadLine<'_>,
    ) -> Result<Option<DriveEnd>, ReadStop> {
        let header = self.reader().next(line)?;
        let id = header.request_id;
        if !is_reply(header.kind) {
            return Err(ReadStop::Broken(self.refuse(header.kind)));
        }
        if Some(id) == own && !self.reader().is_begun() {
            return Ok(Some(DriveEnd::Own));
        }
        let is_long = self.reader().is_long();
        match self.shared.table.claim_reply(id, is_long) {
            ReplyClaim::HandedOver => {
                self.handed_over = true;
                return Ok(Some(DriveEnd::Again));
            }
            ReplyClaim::Discard => {
                self.reader().finish(line)?;
                self.shared.table.discarded(id);
            }
            ReplyClaim::Again => self.reader().finish(line)?,
            ReplyClaim::File => {
                let bytes = self.reader().collect(line)?;
                self.reader().finish(line)?;
                let filed = FiledReply { kind: header.kind, body_len: header.body_len, bytes };
                self.shared.table.file(id, filed);
            }
            ReplyClaim::Unknown => {
                let words = format!("node answered a request that is not in flight ({id})");
                return Err(ReadStop::Broken(Error::new(ErrorKind::Corrupt, words)));
            }
        }
        Ok((Some(id) == own).then_some(DriveEnd::Again))
    }

    fn refuse(&mut self, kind: FrameKind) -> Error {
        match self.reader().view() {
            Some(view) if kind == FrameKind::Goodbye => goodbye(view.body),
            _ => Error::new(ErrorKind::Corrupt, format!("unexpected {kind:?} frame from a node")),
        }
    }
}

impl Drop for ReaderRole<'_> {
    fn drop(&mut self) {
        // First the lock, so that the next reader does not wait for it.
        self.reader = None;
        if !self.handed_over {
            self.shared.table.release(self.done);
        }
    }
}

/// How a reader's drive has ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum DriveEnd {
    /// The current frame is the one that was asked for.
    Own,
    /// The own reply was filed, or the role handed over: look at the table again.
    Again,
}

impl LinkShared {
    /// The same error, naming the node.
    fn named(&self, error: Error) -> Error {
        error.context(format_args!("{} at {}", self.node, self.address))
    }

    /// Whether frames that are sent may meet faults.
    pub(super) fn has_faults(&self) -> bool {
        self.faults.as_ref().is_some_and(|faults| faults.is_active())
    }

    /// Ends the link for everybody. The reason (it was closed or reset, bytes of it are damaged,
    /// the node says goodbye) is in the words, for people. To a thread that waits for an answer it
    /// means one thing: there is none from this link. So it is always `Unavailable`, and never
    /// taken for what the node says to the request.
    pub(super) fn kill(&self, error: Error) -> Error {
        let error = self.named(Error::new(ErrorKind::Unavailable, error.message().to_owned()));
        self.table.kill(error.clone());
        self.table.death().unwrap_or(error)
    }

    fn closed(&self) -> Error {
        self.named(Error::new(ErrorKind::Unavailable, "link is closed"))
    }

    pub(super) fn timed_out(&self, what: &'static str) -> Error {
        self.named(Error::new(ErrorKind::Timeout, what))
    }

    pub(super) fn line(&self, patience: ReadPatience) -> Result<ReadLine<'_>> {
        let fd = self.socket.get().ok_or_else(|| self.closed())?;
        Ok(ReadLine { fd, sender: &self.sender, opener: self.opener.as_ref(), patience })
    }

    /// The error for the caller of a stopped reader.
    pub(super) fn stopped(&self, stop: ReadStop) -> Error {
        match stop {
            ReadStop::TimedOut => self.timed_out("no reply in time"),
            ReadStop::Broken(error) => self.kill(error),
        }
    }

    /// Files frames that have come, if no other thread is reading.
    ///
    /// # Errors
    /// The link is dead.
    fn file_arrived(&self, patience: ReadPatience) -> Result<()> {
        if self.table.try_read() {
            match ReaderRole::new(self).drive(None, self.line(patience)?) {
                Ok(_) | Err(ReadStop::TimedOut) => {}
                Err(ReadStop::Broken(error)) => return Err(self.kill(error)),
            }
        }
        Ok(())
    }

    /// Passes time until there may be room in a ring or a table that was full, filing replies meanwhile.
    pub(super) fn make_room(&self, deadline: Deadline) -> Result<()> {
        let remaining =
            deadline.remaining().ok_or_else(|| self.timed_out("node takes no more requests"))?;
        self.file_arrived(ReadPatience::None)?;
        if let Some(error) = self.table.death() {
            return Err(error);
        }
        if self.ring.is_some() {
            let fd = self.line(ReadPatience::None)?.fd;
            if crate::socket::is_hung_up(fd) {
                return Err(self.stopped(broken(Errno::CONNRESET)));
            }
        }
        let _ = rustix::thread::nanosleep(&timespec(ROOM_PAUSE.min(remaining)));
        Ok(())
    }

    /// Makes room for a request to be in flight.
    pub(super) fn open(&self, deadline: Deadline) -> Result<RequestId> {
        // Before any lock: a forked child has inherited them in whatever state they were.
        self.line(ReadPatience::None)?;
        loop {
            if let Some(id) = self.table.open()? {
                return Ok(id);
            }
            self.make_room(deadline)?;
        }
    }

    /// Sends one request. `later`: with the next one, or when a thread waits, if it is short and
    /// goes by socket.
    pub(super) fn send(
        &self,
        id: RequestId,
        request: &OutgoingRequest<'_>,
        later: bool,
        deadline: Deadline,
    ) -> Result<()> {
        self.check(request)?;
        if self.has_faults() && self.is_harmed(id, request, deadline)? {
            return Ok(());
        }
        if let Some(ring) = &self.ring
            && ring.takes(request)
        {
            while !ring.send(id, request) {
                self.make_room(deadline)?;
            }
            return Ok(());
        }
        let header =
            FrameHeader::build(request.kind, id, self.flags(), request.body, request.payload);
        let mut slices: SmallVec<[&[u8]; 8]> = SmallVec::new();
        slices.extend([header.as_bytes(), request.body]);
        slices.extend_from_slice(request.payload);
        self.sender.count(1);
        if later && self.sender.leave_frames(&slices) {
            return Ok(());
        }
        self.send_slices(&slices, deadline)
    }

    /// Flags of frames to the node.
    pub(super) const fn flags(&self) -> u16 {
        socket_flags(self.address.is_tcp())
    }

    /// Sends frames on the socket, in one write if it takes them.
    pub(super) fn send_slices(&self, slices: &[&[u8]], deadline: Deadline) -> Result<()> {
        let fd = self.line(ReadPatience::None)?.fd;
        let mut relief = || self.relieve(fd, deadline);
        loop {
            match self.sender.send(fd, slices, &mut relief) {
                Ok(SendResult::All) => return Ok(()),
                Ok(SendResult::Busy) => self.make_room(deadline)?,
                Err(errno) => return Err(self.stopped(broken(errno))),
            }
        }
    }

    /// The socket is full: files replies, for the node may wait for just that, and waits until the socket is writable.
    fn relieve(&self, fd: BorrowedFd<'_>, deadline: Deadline) -> Result<bool, Errno> {
        let Some(remaining) = deadline.remaining() else { return Ok(false) };
        if self.file_arrived(ReadPatience::None).is_err() {
            return Err(Errno::CONNRESET);
        }
        // Another thread may read the input; then waiting for it here would only burn time.
        let flags = if self.table.is_being_read() {
            PollFlags::OUT
        } else {
            PollFlags::OUT | PollFlags::IN
        };
        poll_for(fd, flags, remaining.min(WAIT_SLICE))?;
        Ok(true)
    }

    /// Sends what was left to be sent.
    pub(super) fn flush(&self) -> Result<()> {
        if self.sender.has_rest() {
            let fd = self.line(ReadPatience::None)?.fd;
            self.sender.send_rest(fd).map_err(|errno| self.stopped(broken(errno)))?;
        }
        Ok(())
    }

    pub(super) fn check(&self, request: &OutgoingRequest<'_>) -> Result<()> {
        if request.body.len() > BODY_LEN_MAX || request.payload_len() > PAYLOAD_LEN_MAX {
            let words = format!(
                "request of {} + {} bytes is over the limits of a frame",
                request.body.len(),
                request.payload_len()
            );
            return Err(self.named(Error::new(ErrorKind::TooLarge, words)));
        }
        Ok(())
    }
}

/// Reads the connection while futures wait for replies.
pub(super) fn drive_futures(shared: &Arc<LinkShared>) {
    while shared.table.driver_turn() {
        let mut role = ReaderRole::new(shared);
        while shared.table.is_watched() {
            let patience = ReadPatience::Until(Deadline::after(WAIT_SLICE));
            let Ok(line) = shared.line(patience) else { return };
            match role.step(None, line) {
                Ok(None) | Err(ReadStop::TimedOut) => {}
                Ok(Some(_)) => break,
                Err(ReadStop::Broken(error)) => {
                    shared.kill(error);
                    break;
                }
            }
        }
    }
}
