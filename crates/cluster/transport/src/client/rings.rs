//! The sending half of a link over shared memory.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use samite_types::RequestId;
use samite_wire::frame::{FrameHeader, HEADER_LEN};
use zerocopy::IntoBytes;

use super::descriptor::LinkDescriptor;
use super::request::OutgoingRequest;
use crate::address::LOCAL_FLAGS;
use crate::doorbell::ring_doorbell;
use crate::shm::ring::{ControlWord, RingKind, RingMemory, RingProducer};

#[derive(Debug)]
pub(super) struct RingSender {
    producer: Mutex<RingProducer>,
    frame_len_max: usize,
    pub(super) memory: Arc<RingMemory>,
    pub(super) doorbell: LinkDescriptor,
}

impl RingSender {
    pub(super) fn new(memory: Arc<RingMemory>, doorbell: LinkDescriptor) -> Self {
        let producer = RingProducer::new(memory.clone(), RingKind::Requests);
        let frame_len_max = producer.frame_len_max();
        Self { producer: Mutex::new(producer), frame_len_max, memory, doorbell }
    }

    /// Whether a request may go through the ring.
    pub(super) fn takes(&self, request: &OutgoingRequest<'_>) -> bool {
        HEADER_LEN + request.body.len() + request.payload_len() <= self.frame_len_max
    }

    /// Publishes a request. `false`: the ring is full.
    pub(super) fn send(&self, id: RequestId, request: &OutgoingRequest<'_>) -> bool {
        let OutgoingRequest { kind, body, payload } = *request;
        let header = FrameHeader::build(kind, id, LOCAL_FLAGS, body, payload);
        self.send_frame(header.as_bytes(), body, payload)
    }

    /// Publishes a frame in its parts. `false`: the ring is full.
    pub(super) fn send_frame(&self, header: &[u8], body: &[u8], payload: &[&[u8]]) -> bool {
        {
            let mut producer = self.producer.lock().unwrap_or_else(PoisonError::into_inner);
            if !producer.write(header, body, payload) {
                return false;
            }
            producer.publish();
        }
        self.call();
        true
    }

    /// Wakes the node if it does not look at the ring.
    pub(super) fn call(&self) {
        let sleeps = self.memory.word(ControlWord::NodeSleeps);
        if sleeps.load(Ordering::SeqCst) == 1
            && sleeps.swap(0, Ordering::SeqCst) == 1
            && let Some(doorbell) = self.doorbell.get()
        {
            ring_doorbell(doorbell);
        }
    }
}
