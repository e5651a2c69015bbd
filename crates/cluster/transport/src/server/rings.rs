//! The node's side of a connection's rings.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::event::EventfdFlags;
use samite_arena::memory_file;
use samite_types::{Clock, Error, ErrorKind, Result, SystemClock};
use samite_wire::WireError;
use samite_wire::hello::RingLayout;

use super::conn_id::ConnId;
use super::dispatch::{LoopContext, serve_request};
use super::service::ConnectionPeer;
use crate::shm::cores::CoreKnowledge;
use crate::shm::ring::{
    ControlWord, RING_LEN, RingConsumer, RingItem, RingKind, RingMemory, memory_len,
};

/// So soon after its last request a client on the node's core is thought to need the core for the next one.
const NEAR_FOR: Duration = Duration::from_micros(100);
/// Requests taken from one ring before the others have their turn.
const REQUESTS_PER_TURN: usize = 64;

/// The receiving half of a connection over shared memory.
#[derive(Debug)]
pub(super) struct RingInput {
    consumer: RingConsumer,
    doorbell: OwnedFd,
    /// Polled by the loop; otherwise the client rings the doorbell.
    pub(super) awake: bool,
    /// Something came since the loop last sorted out the quiet ones.
    pub(super) used: bool,
    cores: CoreKnowledge,
    /// When something was in the ring, if that was lately.
    used_at: Option<Duration>,
}

/// Memory and descriptors for a new client of shared memory.
pub(super) struct NewRings {
    pub(super) layout: RingLayout,
    pub(super) memory: Arc<RingMemory>,
    pub(super) file: OwnedFd,
    pub(super) input: RingInput,
}

impl NewRings {
    /// For a node with an arena of so many bytes, which has given the client this submission queue.
    pub(super) fn make(arena_len: u64, queue: Option<u16>) -> Result<Self> {
        let layout = RingLayout { request_len: RING_LEN, reply_len: RING_LEN, arena_len, queue };
        let failed = |errno| Error::io("make rings", errno);
        let len = memory_len(&layout)
            .ok_or_else(|| Error::new(ErrorKind::Internal, "ring layout is not valid"))?;
        let file = memory_file("samite-rings", len).map_err(failed)?;
        let memory = RingMemory::map(&file, &layout).map_err(failed)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let doorbell = rustix::event::eventfd(0, flags).map_err(failed)?;
        // Asleep until the first ring of the doorbell.
        memory.word(ControlWord::NodeSleeps).store(1, Ordering::SeqCst);
        let consumer = RingConsumer::new(memory.clone(), RingKind::Requests);
        let cores = CoreKnowledge::of_node();
        let input =
            RingInput { consumer, doorbell, awake: false, used: false, cores, used_at: None };
        Ok(Self { layout, memory, file, input })
    }
}

impl RingInput {
    pub(super) fn doorbell(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }

    /// The doorbell was rung: poll from now on.
    pub(super) fn wake(&mut self) {
        self.awake = true;
        self.consumer.memory().word(ControlWord::NodeSleeps).store(0, Ordering::SeqCst);
    }

    /// Stops polling. `false`: something has just come, go on.
    pub(super) fn sleep(&mut self) -> bool {
        let word = self.consumer.memory().word(ControlWord::NodeSleeps);
        word.store(1, Ordering::SeqCst);
        if self.consumer.is_ready() {
            // The client may have seen the word and ring as well; then the doorbell is one wake-up for nothing.
            self.consumer.memory().word(ControlWord::NodeSleeps).store(0, Ordering::SeqCst);
            return false;
        }
        self.awake = false;
        self.cores.leave_core(self.consumer.memory());
        true
    }

    /// Says that the node polls on `core`; returns whether the client does, too. A client that has
    /// asked for nothing for a while works on something else there.
    pub(super) fn meet(&mut self, core: u32) -> bool {
        if !self.cores.meet(self.consumer.memory(), core) {
            return false;
        }
        // A look at the clock takes longer than the rest: none without a request lately.
        self.used_at = if self.consumer.is_ready() {
            Some(SystemClock.monotonic())
        } else {
            self.used_at.filter(|at| SystemClock.monotonic().saturating_sub(*at) < NEAR_FOR)
        };
        self.used_at.is_some()
    }

    /// Serves the requests in the ring. Returns whether there was anything.
    ///
    /// # Errors
    /// Why the connection is to be ended.
    pub(super) fn serve(
        &mut self,
        id: ConnId,
        peer: &ConnectionPeer,
        place: &mut LoopContext<'_>,
    ) -> Result<bool> {
        let mut served = false;
        for _ in 0..REQUESTS_PER_TURN {
            if place.replies.is_full(id) || place.replies.is_closing(id) {
                break;
            }
            let Some(item) = self.consumer.peek()? else { break };
            let RingItem::Frame(header) = &item else {
                return Err(WireError::Unknown("ring item").into());
            };
            let (body, payload) = self.consumer.frame(header);
            header.verify(body, &[payload])?;
            serve_request(id, peer, header, body, payload, place)?;
            self.consumer.consume(&item);
            served = true;
        }
        self.used |= served;
        Ok(served)
    }
}
