//! The loop of a shard: receive, serve, send, on one thread.
//!
//! A request over a socket costs one `epoll_wait`, one receive and one send. Rings of clients that sent something lately are
//! polled; when nothing has come for a while, the loop tells them that it sleeps, looks once more, and waits
//! in `epoll_wait` for a doorbell. A ring that stays quiet while others are busy is put to sleep alone, so that polling costs
//! nothing for clients that do nothing.

mod ending;
mod polled;

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::epoll;
use rustix::io::Errno;
use samite_cpu::{CoreLeaving, CoreSharers, PollCost, SpinTime, this_core, timespec};
use samite_types::fault::{FaultParty, FaultSwitch};
use samite_types::{Clock, Error, ErrorKind, NodeId, Result, SystemClock};
use samite_wire::frame::FrameKind;
use smallvec::SmallVec;

use super::accept::{AcceptedConnection, ConnectionAcceptor};
use super::conn_id::ConnId;
use super::connection::{ConnectionPhase, ReadResult, SCRATCH_LEN, ServerConnection};
use super::dial::{DialResult, NodeDialler};
use super::dispatch::LoopContext;
use super::layer::{LayerStart, ReceiveLayer};
use super::listener::Listener;
use super::options::LoopOptions;
use super::replies::{ReplySink, gone};
use super::rings::{NewRings, RingInput};
use super::service::{ConnectionPeer, NodeService, SharedMemoryWork};
use super::source::{EventSource, token};
use super::waker::LoopWaker;
use super::watch::LoopTimer;
use crate::handshake;
use crate::identity::PeerRole;
use crate::key_set::SharedKeys;
use crate::socket;

/// Events taken from the kernel at once.
const EVENTS_MAX: usize = 64;
/// Turns over the rings between two looks at the sockets, when there was something in the rings and when not.
const BUSY_TURNS_PER_LOOK: u32 = 16;
const IDLE_TURNS_PER_LOOK: u32 = 64;
/// Turns over quiet rings between two looks at the arena: each takes a cache line away
/// from the clients.
const IDLE_TURNS_PER_POLL: u32 = 4;
/// Turns over the rings alone between two looks at the timers: such a look costs about as much as a
/// small request.
const RING_TURNS_PER_TIMER: u32 = 8;
/// Turns over the rings after which the quiet ones are put to sleep.
const RING_TURNS_PER_SORTING: u32 = 1024;

/// Receives requests and sends replies, on the thread that runs it.
pub struct EventLoop {
    node: NodeId,
    keys: SharedKeys,
    options: LoopOptions,
    epoll: OwnedFd,
    acceptor: ConnectionAcceptor,
    waker: LoopWaker,
    dialler: NodeDialler,
    connections: Vec<Option<ServerConnection>>,
    free: Vec<usize>,
    /// Sockets of connections that ended and shared memory which the peer may still write to: it
    /// has yet to close them. They count as connections.
    lingering: Vec<(ConnId, OwnedFd)>,
    serial: u32,
    replies: ReplySink,
    /// Connections whose rings are polled.
    awake: Vec<usize>,
    /// Sockets are polled, for something came lately.
    sockets_awake: bool,
    scratch: Vec<u8>,
    watch: LoopTimer,
    spin: SpinTime,
    /// A client whose ring is polled waits on this thread's core.
    is_near: bool,
    leaving: CoreLeaving,
    /// Clients have left something in shared memory since the rings were last sorted.
    polled: bool,
}

impl std::fmt::Debug for EventLoop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventLoop").field("node", &self.node).finish_non_exhaustive()
    }
}

impl EventLoop {
    /// A loop that serves connections to `listeners`.
    ///
    /// # Errors
    /// Errors of the system (no descriptors left); `Invalid` for TLS files that do not make sense.
    pub fn new(
        node: NodeId,
        keys: impl Into<SharedKeys>,
        listeners: Vec<Listener>,
        options: LoopOptions,
    ) -> Result<Self> {
        let keys = keys.into();
        let failed = |errno| Error::io("make an event loop", errno);
        let faults = options.faults.clone().unwrap_or_else(|| FaultSwitch::new(node, None));
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        let waker = LoopWaker::new().map_err(failed)?;
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, waker.wake_descriptor(), token(EventSource::Waker, 0, 0), edge)
            .map_err(failed)?;
        for (index, listener) in listeners.iter().enumerate() {
            let flags = epoll::EventFlags::IN | epoll::EventFlags::EXCLUSIVE;
            let data = token(EventSource::Listener, 0, index);
            epoll::add(&epoll, listener.fd(), data, flags).map_err(failed)?;
        }
        Ok(Self {
            node,
            epoll,
            acceptor: ConnectionAcceptor::new(listeners, &keys, options.tls.as_deref())?,
            dialler: NodeDialler::new(Arc::clone(&faults), keys.clone(), waker.clone()),
            keys,
            waker,
            connections: Vec::new(),
            free: Vec::new(),
            lingering: Vec::new(),
            serial: 0,
            replies: ReplySink::new(options.output_len_max, faults),
            awake: Vec::new(),
            sockets_awake: false,
            scratch: vec![0; SCRATCH_LEN],
            watch: LoopTimer::new(options.tick),
            spin: SpinTime::serving(options.spin),
            is_near: false,
            leaving: CoreLeaving::new(),
            polled: false,
            options,
        })
    }

    /// A handle to wake this loop.
    #[must_use]
    pub fn waker(&self) -> LoopWaker {
        self.waker.clone()
    }

    /// A handle by which the service has connections to other nodes made.
    #[must_use]
    pub fn dialler(&self) -> NodeDialler {
        self.dialler.clone()
    }

    /// Serves until `stop` is set (and the waker used, to have it seen at once). Then sends what is left, for at most a second.
    ///
    /// # Errors
    /// Only when the loop itself cannot go on; a peer's errors end that peer's connection.
    pub fn run(mut self, service: &mut dyn NodeService, stop: &AtomicBool) -> Result<()> {
        let mut turns = 0u32;
        while !stop.load(Ordering::Relaxed) {
            let mut has_looked = false;
            if self.awake.is_empty() && !self.sockets_awake {
                // Clients that left something before they were told that this loop sleeps have rung no doorbell.
                let timeout = match service.poll() {
                    SharedMemoryWork::Nothing => self.watch.timeout(
                        service.timer_at().into_iter().chain(self.replies.next_late()).min(),
                    ),
                    _ => Some(Duration::ZERO),
                };
                self.look(timeout, service)?;
                self.spin.woke();
                has_looked = true;
            } else {
                turns = turns.wrapping_add(1);
                let mut served = self.serve_rings(service);
                let poll = if self.sockets_awake { PollCost::Kernel } else { PollCost::Memory };
                let turns_per_look = match (self.sockets_awake, served) {
                    (true, _) => 1,
                    (false, true) => BUSY_TURNS_PER_LOOK,
                    (false, false) => IDLE_TURNS_PER_LOOK,
                };
                if turns.is_multiple_of(turns_per_look) || self.waker.is_rung() {
                    has_looked = self.look(Some(Duration::ZERO), service)?;
                    served |= has_looked;
                }
                let left = match served || !turns.is_multiple_of(IDLE_TURNS_PER_POLL) {
                    true => SharedMemoryWork::Nothing,
                    false => service.poll(),
                };
                if left != SharedMemoryWork::Nothing {
                    self.polled = true;
                    self.spin.found();
                    if let SharedMemoryWork::ByNear { are_others } = left {
                        self.leaving.served_on_core(CoreSharers::of(are_others));
                        self.spin.hand_over();
                    }
                } else if served {
                    self.spin.found();
                    self.send_all(service);
                    self.leaving.served(self.is_near);
                    self.spin.share(self.is_near);
                } else if !self.spin.pass(poll, self.is_near)
                    || self.is_near && self.spin.yields_in_vain()
                {
                    self.sleep();
                }
                if turns.is_multiple_of(RING_TURNS_PER_SORTING) {
                    self.sort_rings();
                }
            }
            if !has_looked && !turns.is_multiple_of(RING_TURNS_PER_TIMER) {
                continue;
            }
            self.serve_late(service);
            self.send_all(service);
            if self.watch.is_due() {
                self.keep_watch(service);
            }
            if service.timer_at().is_some_and(|at| at <= SystemClock.monotonic()) {
                service.timer_due(&mut self.replies);
                self.send_all(service);
            }
        }
        self.finish(service);
        Ok(())
    }

    /// Sends replies and serves requests that were late on purpose.
    fn serve_late(&mut self, service: &mut dyn NodeService) {
        while let Some((id, header, content)) = self.replies.next_late_request() {
            let Some(Some(connection)) = self.connections.get(id.index()) else { continue };
            if let ConnectionPhase::Open(peer) = &connection.phase
                && connection.id == id
            {
                let (body, payload) = content.split_at(header.body_len);
                service.request(id, peer, &header, body, payload, &mut self.replies);
            }
        }
    }

    /// Takes what the kernel has, waiting for it up to `timeout`, and serves it. Returns whether there was anything.
    fn look(&mut self, timeout: Option<Duration>, service: &mut dyn NodeService) -> Result<bool> {
        let timeout = if self.waker.may_sleep() { timeout } else { Some(Duration::ZERO) };
        // Not stored in the loop: events have a pointer-sized union, which would tie the loop to
        // one thread.
        let mut space = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS_MAX];
        let waited = epoll::wait(&self.epoll, &mut space[..], timeout.map(timespec).as_ref());
        self.waker.awake();
        let events: &[epoll::Event] = match waited {
            Ok((events, _)) => events,
            Err(Errno::INTR) => &[],
            Err(errno) => return Err(Error::io("wait for events", errno)),
        };
        if self.waker.take() {
            while let Some(dialled) = self.dialler.take() {
                self.adopt(dialled, service);
            }
            service.wakeup(&mut self.replies);
        }
        for event in events {
            self.event(event.data.u64(), event.flags, service);
        }
        self.send_all(service);
        Ok(!events.is_empty())
    }

    fn event(&mut self, data: u64, flags: epoll::EventFlags, service: &mut dyn NodeService) {
        let index = (data & 0xffff_ffff) as usize;
        let serial = (data >> 32 & 0xff_ffff) as u32;
        let source = data >> 56;
        if source == EventSource::Listener as u64 {
            self.accept(index, service);
            return;
        }
        if source == EventSource::Lingering as u64 {
            self.lingering_closed(serial, index, service);
            return;
        }
        // The connection may have ended earlier in the same batch of events.
        let Some(Some(connection)) = self.connections.get_mut(index) else { return };
        if connection.id.serial() & 0xff_ffff != serial {
            return;
        }
        if source == EventSource::Doorbell as u64 {
            self.wake_rings(index);
        } else if source == EventSource::Socket as u64 {
            let id = connection.id;
            self.sockets_awake = true;
            if flags.contains(epoll::EventFlags::OUT) {
                self.replies.flush(id);
                self.set_interest(index);
                self.wake_rings(index);
            }
            self.read(index, service);
            let hung_up = epoll::EventFlags::HUP | epoll::EventFlags::ERR;
            if flags.intersects(hung_up) && !flags.contains(epoll::EventFlags::IN) {
                self.end(index, &gone(), service);
            }
        }
    }

    fn accept(&mut self, listener: usize, service: &mut dyn NodeService) {
        let mut accepted: SmallVec<[AcceptedConnection; 16]> = SmallVec::new();
        self.acceptor.accept(listener, |connection| accepted.push(connection));
        for connection in accepted {
            self.add(connection, service);
        }
    }

    /// Takes up a connection that was made for the service, or tells it why there is none.
    fn adopt(&mut self, dialled: DialResult, service: &mut dyn NodeService) {
        let made = dialled.made.and_then(|(accepted, node)| {
            let id = self
                .enter(accepted)
                .map_err(|errno| Error::io(format_args!("watch node {node}"), errno))?;
            if let Some(Some(connection)) = self.connections.get_mut(id.index()) {
                connection.phase = ConnectionPhase::Outgoing;
            }
            self.replies.meets(id, FaultParty::Node(node));
            tracing::debug!("{id}: to node {node}");
            Ok((id, node))
        });
        service.connected(dialled.ticket, made, &mut self.replies);
    }

    fn add(&mut self, accepted: AcceptedConnection, service: &mut dyn NodeService) {
        let open = self.connections.len() - self.free.len() + self.lingering.len();
        if open >= self.options.connections_max {
            if let Some(more) = self.acceptor.ration.line(SystemClock.monotonic()) {
                tracing::warn!("refused a connection: there are {open} already{more}");
            }
            let error = format!("too many connections: there are {open} already");
            accepted.refuse(&Error::new(ErrorKind::Busy, error));
            return;
        }
        if self.watch.handshakes() >= self.options.handshakes_max
            && let Some(oldest) = self.watch.oldest_handshake()
        {
            let error =
                Error::new(ErrorKind::Busy, "too many connections that have proved nothing");
            self.end(oldest.index(), &error, service);
        }
        match self.enter(accepted) {
            Ok(id) => self.watch.handshake(id, self.options.handshake_timeout),
            Err(errno) => {
                if let Some(more) = self.acceptor.ration.line(SystemClock.monotonic()) {
                    tracing::warn!("refused a connection: {errno}{more}");
                }
            }
        }
    }

    /// Gives a socket its place.
    fn enter(&mut self, accepted: AcceptedConnection) -> std::result::Result<ConnId, Errno> {
        let index = self.free.pop().unwrap_or(self.connections.len());
        self.serial = self.serial.wrapping_add(1);
        let id = ConnId::new(self.serial, index);
        let data = token(EventSource::Socket, self.serial, index);
        if let Err(errno) = epoll::add(&self.epoll, &accepted.fd, data, epoll::EventFlags::IN) {
            if index < self.connections.len() {
                self.free.push(index);
            }
            return Err(errno);
        }
        if index == self.connections.len() {
            self.connections.push(None);
        }
        self.replies.open(id, accepted.fd, accepted.origin.is_tcp);
        let layer = match accepted.start {
            LayerStart::Plain => ReceiveLayer::Plain,
            LayerStart::Accept(handshake) => ReceiveLayer::Begun(handshake),
            LayerStart::Made(session) => {
                self.replies.seal(id, session.sealer);
                ReceiveLayer::Sealed(Box::new(session.opener), session.binding)
            }
        };
        self.connections[index] = Some(ServerConnection::new(id, accepted.origin, layer));
        Ok(id)
    }

    /// Receives from a connection's socket and serves what has come.
    fn read(&mut self, index: usize, service: &mut dyn NodeService) {
        let Some(Some(connection)) = self.connections.get_mut(index) else { return };
        let mut place = LoopContext {
            node: self.node,
            keys: &self.keys,
            service: &mut *service,
            replies: &mut self.replies,
        };
        let result = connection.read(&mut self.scratch, &mut place);
        if connection.is_inside_frame() {
            self.watch.soon();
        }
        let result = match result {
            Ok(ReadResult::Wait) => Ok(()),
            Ok(ReadResult::Welcome { peer, wants_rings, version }) => {
                self.welcome(index, peer, (wants_rings, version), service)
            }
            Err(error) => Err(error),
        };
        match result {
            Ok(()) => {
                if let Some(id) = self.id(index)
                    && self.replies.is_full(id)
                {
                    self.set_interest(index);
                }
            }
            Err(error) => self.end(index, &error, service),
        }
    }

    fn id(&self, index: usize) -> Option<ConnId> {
        self.connections.get(index)?.as_ref().map(|connection| connection.id)
    }

    /// Lets a peer in that has proved who it is.
    fn welcome(
        &mut self,
        index: usize,
        peer: ConnectionPeer,
        (wants_rings, version): (bool, u8),
        service: &mut dyn NodeService,
    ) -> Result<()> {
        let Some(Some(connection)) = self.connections.get_mut(index) else { return Ok(()) };
        let id = connection.id;
        let arena_len = service.arena().map_or(0, |arena| arena.len);
        let new = if wants_rings {
            let own = rustix::process::geteuid().as_raw();
            peer.identity.check_memory_access((connection.origin.uid, own))?;
            connection.shares_memory = true;
            let queue = if arena_len > 0 { service.give_queue(id, &peer) } else { None };
            Some(NewRings::make(arena_len, queue)?)
        } else {
            None
        };
        let rings = new.as_ref().map(|new| new.layout);
        let mut bytes = handshake::welcome(service.map_epoch(), rings, version);
        let memory = new.as_ref().map(|new| new.memory.clone());
        if let Some(new) = new {
            let failed = |errno| Error::io("send shared memory", errno);
            let Some(fd) = self.replies.fd(id) else { return Ok(()) };
            let (doorbell, arena) = (new.input.doorbell(), service.arena());
            let all = [new.file.as_fd(), doorbell, arena.map_or(doorbell, |arena| arena.fd)];
            let descriptors = &all[..if arena.is_some() { 3 } else { 2 }];
            // The socket is empty: the peer has answered all that was sent before.
            let sent = socket::send_with_descriptors(fd, &bytes, descriptors).map_err(failed)?;
            if sent != bytes.len() {
                return Err(failed(Errno::AGAIN));
            }
            let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
            let data = token(EventSource::Doorbell, id.serial(), index);
            epoll::add(&self.epoll, new.input.doorbell(), data, edge).map_err(failed)?;
            connection.rings = Some(new.input);
        } else {
            let kind = FrameKind::Welcome;
            if connection.origin.is_tcp
                && self.replies.ends_handshake(id, peer.node, kind, Some(&mut bytes))?
            {
                return Ok(());
            }
            self.replies.push_raw(id, &bytes);
        }
        service.opened(id, &peer);
        self.replies.meets(id, peer.node.map_or(FaultParty::Client, FaultParty::Node));
        self.replies.proved(id, memory, version);
        // A guest has as much time for all that it asks as others have for their proof.
        if peer.identity.role != PeerRole::Guest {
            self.watch.forget_handshake(id);
        }
        if let Some(ticket) = &peer.identity.ticket {
            self.watch.ticket(ticket.expires_s);
        }
        let more = connection.has_kept_frames();
        tracing::debug!("{id}: {} over {}", peer.client, peer.transport);
        connection.phase = ConnectionPhase::Open(peer);
        if more {
            self.read(index, service);
        }
        Ok(())
    }

    /// Sends what has been queued, and ends what is to be ended.
    fn send_all(&mut self, service: &mut dyn NodeService) {
        while let Some(id) = self.replies.next_dirty() {
            if !self.replies.is_blocked(id) {
                self.replies.flush(id);
            }
            if self.replies.is_blocked(id) {
                self.set_interest(id.index());
                self.watch.soon();
            }
        }
        if self.replies.take_ring_waits() {
            self.watch.retry();
            self.watch.soon();
        }
        while let Some((id, error)) = self.replies.next_closing() {
            if self.id(id.index()) == Some(id) {
                self.end(id.index(), &error, service);
            }
        }
    }

    /// Tells the kernel what this connection waits for.
    fn set_interest(&mut self, index: usize) {
        let Some(Some(connection)) = self.connections.get_mut(index) else { return };
        let id = connection.id;
        let mut interest = epoll::EventFlags::empty();
        interest.set(epoll::EventFlags::IN, !connection.is_held_back(&self.replies));
        interest.set(epoll::EventFlags::OUT, self.replies.is_blocked(id));
        let Some(fd) = self.replies.fd(id) else { return };
        if interest != connection.interest {
            connection.interest = interest;
            let data = token(EventSource::Socket, id.serial(), index);
            // It can only fail for lack of memory; then the watch drops the connection as stalled.
            let _ = epoll::modify(&self.epoll, fd, data, interest);
        }
    }

    /// Serves the timers that are due.
    fn keep_watch(&mut self, service: &mut dyn NodeService) {
        if self.watch.take_tick() {
            service.tick(&mut self.replies);
        }
        if self.watch.take_retry() {
            self.retry_rings();
        }
        if self.watch.take_ticket_check() {
            self.end_tickets(service);
        }
        if !self.watch.take_check() {
            return;
        }
        while let Some(id) = self.watch.late_handshake() {
            let error = Error::new(ErrorKind::Timeout, "no proof of a key or a ticket in time");
            self.end(id.index(), &error, service);
        }
        let now = SystemClock.monotonic();
        for index in 0..self.connections.len() {
            let Some(Some(connection)) = self.connections.get_mut(index) else { continue };
            let stalled = self.replies.stalled(connection.id);
            if stalled.is_none() && !connection.is_inside_frame() {
                connection.stalled_since = None;
                continue;
            }
            self.watch.soon();
            let progress = connection.progress + stalled.unwrap_or(0);
            match connection.stalled_since {
                Some((seen, since)) if seen == progress => {
                    if now.saturating_sub(since) >= self.options.stall_timeout {
                        let what = if stalled.is_some() {
                            "takes no replies"
                        } else {
                            "stopped in the middle of a frame"
                        };
                        let error = Error::new(ErrorKind::Timeout, format!("peer {what}"));
                        self.end(index, &error, service);
                    }
                }
                _ => connection.stalled_since = Some((progress, now)),
            }
        }
    }
}
