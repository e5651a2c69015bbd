//! A link to one node: requests, and the waits for their replies.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use samite_arena::{ArenaView, GrantPool};
use samite_types::{ClientId, Deadline, Epoch, Error, ErrorKind, NodeId, RequestId, Result};
use samite_wire::frame::{FrameHeader, FrameKind};
use smallvec::SmallVec;
use zerocopy::IntoBytes;

use super::connect::{ConnectIdentity, connect};
use super::reply::LinkReply;
use super::request::OutgoingRequest;
use super::shared::{DriveEnd, LinkShared, ReaderRole, drive_futures};
use super::stream::{ReadLine, ReadPatience, ReadStop};
use super::table::WaitTurn;
use crate::{Address, Credential, TransportKind};

/// Slices of [`NodeLink::submit_many`] that are sent together.
const SLICES_TOGETHER: usize = 192;

/// One connection to a node: many requests in flight, replies in any order, any number of threads.
///
/// The threads that wait for replies read the connection, and no other; each, as it goes, files
/// replies that are not its own. So a thread alone pays one send and one receive for a call.
pub struct NodeLink {
    pub(super) shared: Arc<LinkShared>,
}

impl fmt::Debug for NodeLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Link({} at {})", self.node(), self.address())
    }
}

/// A request in flight. Dropping it gives up the reply, not the request.
#[must_use = "a request's outcome is in its reply"]
pub struct RequestTicket {
    pub(super) shared: Arc<LinkShared>,
    id: RequestId,
    /// The request has left, so that a reply may come.
    is_sent: AtomicBool,
    /// The table has nothing under this id any more.
    is_settled: bool,
}

impl fmt::Debug for RequestTicket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ticket({} to {})", self.id, self.shared.node)
    }
}

impl Drop for RequestTicket {
    fn drop(&mut self) {
        // In a forked child the table's lock may be held for ever.
        if !self.is_settled && self.shared.socket.raw().is_some() {
            self.shared.table.give_up(self.id, *self.is_sent.get_mut());
        }
    }
}

impl NodeLink {
    /// Connects; both sides prove who they are.
    ///
    /// # Errors
    /// `Unavailable` (nobody there), `WrongKey`, `WrongVersion`, `Denied` (shared memory for another user), `Timeout`,
    /// `Corrupt`; each names the address.
    pub fn connect(
        address: &Address,
        credential: impl Into<Credential>,
        client: ClientId,
        deadline: Deadline,
    ) -> Result<Self> {
        Self::connect_as(address, credential, &ConnectIdentity::client(client), deadline)
    }

    /// Connects as this client or node.
    ///
    /// # Errors
    /// As [`NodeLink::connect`].
    pub fn connect_as(
        address: &Address,
        credential: impl Into<Credential>,
        who: &ConnectIdentity,
        deadline: Deadline,
    ) -> Result<Self> {
        Ok(Self { shared: Arc::new(connect(address, &credential.into(), who, deadline)?) })
    }

    /// The node at the other end.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.shared.node
    }

    /// Address that the link was made to.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.shared.address
    }

    /// How bytes travel.
    #[must_use]
    pub fn transport(&self) -> TransportKind {
        self.address().transport()
    }

    /// Epoch of the cluster map that the node had when the link was made.
    #[must_use]
    pub fn map_epoch_hint(&self) -> Epoch {
        self.shared.map_epoch
    }

    /// The link is of no use any more; make a new one.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.shared.socket.raw().is_none() || self.shared.table.is_dead()
    }

    fn ticket(&self, deadline: Deadline) -> Result<RequestTicket> {
        let id = self.shared.open(deadline)?;
        let shared = self.shared.clone();
        Ok(RequestTicket { shared, id, is_sent: AtomicBool::new(false), is_settled: false })
    }

    /// Sends one request. Frames that wait together leave in one write. When the connection takes no more, or
    /// [`IN_FLIGHT_MAX`](samite_wire::limits::IN_FLIGHT_MAX) requests are in flight, this thread files replies until it does.
    ///
    /// # Errors
    /// `Timeout` (whether the request was sent is not known), `Unavailable`, `TooLarge`.
    pub fn submit(
        &self,
        kind: FrameKind,
        body: &[u8],
        payload: &[&[u8]],
        deadline: Deadline,
    ) -> Result<RequestTicket> {
        self.send(&OutgoingRequest { kind, body, payload }, false, deadline)
    }

    /// Leaves a short request to be sent together with others: with the next [`NodeLink::submit`], when somebody waits for a
    /// reply or polls for one, at [`NodeLink::flush`], or when enough bytes wait. Over shared memory it is sent at once.
    ///
    /// # Errors
    /// As [`NodeLink::submit`].
    pub fn enqueue(
        &self,
        request: OutgoingRequest<'_>,
        deadline: Deadline,
    ) -> Result<RequestTicket> {
        self.send(&request, true, deadline)
    }

    /// Sends what was enqueued.
    ///
    /// # Errors
    /// `Unavailable`: the link is dead.
    pub fn flush(&self) -> Result<()> {
        self.shared.flush()
    }

    fn send(
        &self,
        request: &OutgoingRequest<'_>,
        later: bool,
        deadline: Deadline,
    ) -> Result<RequestTicket> {
        let ticket = self.ticket(deadline)?;
        self.shared.send(ticket.id, request, later, deadline)?;
        ticket.is_sent.store(true, Ordering::Relaxed);
        Ok(ticket)
    }

    /// Sends several requests together.
    ///
    /// # Errors
    /// As [`NodeLink::submit`]; then the replies of the requests that were sent are given up.
    pub fn submit_many(
        &self,
        requests: &[OutgoingRequest<'_>],
        deadline: Deadline,
    ) -> Result<SmallVec<[RequestTicket; 4]>> {
        let mut tickets = SmallVec::with_capacity(requests.len());
        if self.shared.ring.is_some() || self.shared.has_faults() {
            for request in requests {
                tickets.push(self.send(request, false, deadline)?);
            }
            return Ok(tickets);
        }
        let mut rest = requests;
        while !rest.is_empty() {
            let mut slices = 0;
            let fitting = rest.iter().take_while(|request| {
                slices += 2 + request.payload.len();
                slices <= SLICES_TOGETHER
            });
            let (now, later) = rest.split_at(fitting.count().max(1));
            self.submit_together(now, deadline, &mut tickets)?;
            rest = later;
        }
        Ok(tickets)
    }

    fn submit_together(
        &self,
        requests: &[OutgoingRequest<'_>],
        deadline: Deadline,
        tickets: &mut SmallVec<[RequestTicket; 4]>,
    ) -> Result<()> {
        let first = tickets.len();
        let mut headers: SmallVec<[FrameHeader; 8]> = SmallVec::new();
        for request in requests {
            self.shared.check(request)?;
            let ticket = self.ticket(deadline)?;
            let OutgoingRequest { kind, body, payload } = *request;
            headers.push(FrameHeader::build(kind, ticket.id, self.shared.flags(), body, payload));
            tickets.push(ticket);
        }
        let mut slices: SmallVec<[&[u8]; 32]> = SmallVec::new();
        for (request, header) in requests.iter().zip(&headers) {
            slices.extend([header.as_bytes(), request.body]);
            slices.extend_from_slice(request.payload);
        }
        self.shared.sender.count(requests.len());
        self.shared.send_slices(&slices, deadline)?;
        tickets[first..].iter().for_each(|ticket| ticket.is_sent.store(true, Ordering::Relaxed));
        Ok(())
    }

    /// Waits for the reply and lets `read` look at it where it lies. `read` should be brief: other threads' replies
    /// wait behind it; and it must not wait for another reply of this link.
    ///
    /// # Errors
    /// `Timeout`, `Unavailable` (names the address and the node), `Corrupt`; after an error nothing that `read` saw counts.
    pub fn wait<R>(
        &self,
        mut ticket: RequestTicket,
        deadline: Deadline,
        read: impl FnOnce(&mut LinkReply<'_>) -> R,
    ) -> Result<R> {
        let answer = self.wait_until(&mut ticket, deadline, deadline, read)?;
        answer.ok_or_else(|| self.shared.timed_out("no reply in time"))
    }

    /// The same for a caller that may have better to do than wait: `None` when the reply has not
    /// begun to come by `patience`. Then the ticket is as good as before. A reply that has begun to
    /// come is waited for until `deadline`.
    ///
    /// # Errors
    /// As [`NodeLink::wait`], except that `Timeout` means a reply that has begun to come and stopped: it is lost.
    pub fn wait_until<R>(
        &self,
        ticket: &mut RequestTicket,
        patience: Deadline,
        deadline: Deadline,
        read: impl FnOnce(&mut LinkReply<'_>) -> R,
    ) -> Result<Option<R>> {
        let shared = &*self.shared;
        debug_assert!(Arc::ptr_eq(&self.shared, &ticket.shared), "ticket of another link");
        shared.line(ReadPatience::None)?;
        // A reader sends what was enqueued before it receives; one that is receiving already may not look for a while.
        if shared.sender.has_rest() && shared.table.is_being_read() {
            shared.flush()?;
        }
        loop {
            match shared.table.turn(ticket.id, patience) {
                WaitTurn::Filed(filed) => {
                    ticket.is_settled = true;
                    return Ok(Some(read(&mut LinkReply::filed(&filed))));
                }
                WaitTurn::Read => {}
                WaitTurn::TimedOut => return Ok(None),
                WaitTurn::Dead(error) => {
                    ticket.is_settled = true;
                    return Err(error);
                }
            }
            let line = shared.line(ReadPatience::Until(patience))?;
            let mut role = ReaderRole::new(shared);
            match role.drive(Some(ticket.id), line) {
                Ok(DriveEnd::Again) => continue,
                Ok(DriveEnd::Own) => {}
                Err(ReadStop::TimedOut) => return Ok(None),
                Err(stop) => return Err(shared.stopped(stop)),
            }
            let line = ReadLine { patience: ReadPatience::Until(deadline), ..line };
            let Some(view) = role.reader().view() else {
                return Err(ErrorKind::Internal.into());
            };
            let mut reply = LinkReply::new(view, line);
            let result = read(&mut reply);
            let failure = reply.into_failure();
            let finished = match failure {
                Some(stop) => Err(stop),
                None => role.reader().finish(line),
            };
            if let Err(stop) = finished {
                return Err(shared.stopped(stop));
            }
            role.done = Some(ticket.id);
            ticket.is_settled = true;
            return Ok(Some(result));
        }
    }

    /// Submit and wait in one.
    ///
    /// # Errors
    /// As [`NodeLink::submit`] and [`NodeLink::wait`].
    pub fn call<R>(
        &self,
        request: OutgoingRequest<'_>,
        deadline: Deadline,
        read: impl FnOnce(&mut LinkReply<'_>) -> R,
    ) -> Result<R> {
        let ticket = self.submit(request.kind, request.body, request.payload, deadline)?;
        self.wait(ticket, deadline, read)
    }

    /// Whether the reply has come (or the link has died), for futures. `Ready`: [`NodeLink::wait`] returns without waiting.
    /// The first call starts a thread that reads the connection while futures wait on it.
    pub fn poll(&self, ticket: &RequestTicket, context: &mut Context<'_>) -> Poll<()> {
        if self.flush().is_err() {
            return Poll::Ready(());
        }
        let (ready, start) = self.shared.table.watch(ticket.id, context.waker());
        if start {
            let shared = self.shared.clone();
            let name = format!("samite-{}", self.node());
            let spawned =
                std::thread::Builder::new().name(name).spawn(move || drive_futures(&shared));
            if let Err(error) = spawned {
                self.shared.table.no_driver();
                let words = format!("start a thread for futures: {error}");
                self.shared.kill(Error::new(ErrorKind::Busy, words));
                return Poll::Ready(());
            }
        }
        if ready { Poll::Ready(()) } else { Poll::Pending }
    }

    /// The node's arena, over shared memory.
    #[must_use]
    pub fn arena(&self) -> Option<&ArenaView> {
        self.shared.arena.as_deref()
    }

    /// The node's arena, for one who looks at it longer than this link may last.
    #[must_use]
    pub fn shared_arena(&self) -> Option<Arc<ArenaView>> {
        self.shared.arena.clone()
    }

    /// The node's arena, where it may stand in for requests: the link is alive, and no faults are
    /// injected, which apply to requests alone.
    #[must_use]
    pub fn arena_beside_requests(&self) -> Option<&ArenaView> {
        self.arena().filter(|_| !self.is_dead() && !self.shared.has_faults())
    }

    /// Wakes the node, if it sleeps: there is something for it in the arena.
    pub fn wake_node(&self) {
        if let Some(ring) = &self.shared.ring {
            ring.call();
        }
    }

    /// Arena blocks granted to this connection.
    #[must_use]
    pub fn grants(&self) -> &GrantPool {
        &self.shared.grants
    }

    /// In a forked child: closes what was inherited, without a word to the node, which goes on serving the parent.
    /// Takes no lock. The link is dead afterwards. Not for the process that made the link.
    pub fn abandon(&self) {
        self.shared.socket.close();
        if let Some(ring) = &self.shared.ring {
            ring.doorbell.close();
            ring.memory.mapping().detach();
        }
        if let Some(arena) = &self.shared.arena {
            arena.detach();
        }
    }

    /// Its socket, while the link is alive.
    ///
    /// # Errors
    /// The link is dead.
    pub(super) fn borrowed_socket(&self) -> Result<BorrowedFd<'_>> {
        Ok(self.shared.line(ReadPatience::None)?.fd)
    }

    /// Its socket, by whose end the node knows that nobody has the link any more; `None` in a forked child.
    #[must_use]
    pub fn socket(&self) -> Option<i32> {
        self.shared.socket.raw()
    }

    /// Descriptors that the link holds open (for a preloaded library, which must keep the program off them).
    #[must_use]
    pub fn descriptors(&self) -> SmallVec<[i32; 3]> {
        let doorbell = self.shared.ring.as_ref().and_then(|ring| ring.doorbell.raw());
        self.shared.socket.raw().into_iter().chain(doorbell).collect()
    }
}

impl Drop for NodeLink {
    fn drop(&mut self) {
        // A driver thread may hold the other end of `shared`; this lets it go at once. In a forked child nothing is to be told.
        if self.shared.socket.raw().is_some() {
            self.shared.kill(Error::new(ErrorKind::Unavailable, "link was dropped"));
        }
    }
}
