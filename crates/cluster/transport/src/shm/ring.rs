//! The two rings between a client and its node.
//!
//! ```text
//! 0            4 KiB                 4 KiB + request_len      + reply_len
//! ┌────────────┬─────────────────────┬────────────────────────┐
//! │ words      │ requests            │ replies                │
//! └────────────┴─────────────────────┴────────────────────────┘
//! ```
//!
//! Each ring has one producer and one consumer. Head and tail count bytes and never go back (they wrap as numbers do); each
//! is written by one side only. A frame begins at a multiple of 8 and does not wrap around the end of the ring: where it
//! would, the rest of the ring is skipped with a *pad*. A frame that is too long for the ring travels over the socket,
//! and on the reply ring a *marker* tells the client to look there.
//!
//! Sleeping: a side that is about to sleep stores 1 in its word, looks at the ring once more, and
//! sleeps. A side that has published swaps the other's word to 0, and wakes it if it was 1. Both
//! accesses of each side are sequentially consistent, so one of the two always sees the other's.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;
use samite_arena::SharedMapping;
use samite_wire::WireError;
use samite_wire::frame::{CheckedHeader, HEADER_LEN};
use samite_wire::hello::RingLayout;

/// Words lie this far apart, in bytes: two cache lines, because processors fetch them in pairs.
const WORD_STRIDE: usize = 128;
const RINGS_OFFSET: usize = 4096;
/// Frames begin at multiples of this.
const ALIGN: usize = 8;
/// First bytes of a pad.
const PAD: [u8; 2] = [0, 0];
/// First bytes of a marker, which is [`ALIGN`] bytes long.
const MARKER: [u8; 2] = *b"So";
const RING_LEN_MAX: u32 = 1 << 26;

/// Bytes of each ring. A ring fits a core's cache together with its twin.
pub(crate) const RING_LEN: u32 = 256 << 10;

/// Longest frame that goes through a ring of `ring_len` bytes; a pad can never starve it.
pub(crate) const fn frame_len_max(ring_len: usize) -> usize {
    ring_len / 4
}

/// Words of the control page.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ControlWord {
    RequestTail = 0,
    RequestHead = 1,
    ReplyTail = 2,
    ReplyHead = 3,
    ClientSleeps = 4,
    NodeSleeps = 5,
    /// See [`super::cores`].
    NodeCore = 6,
    ClientCore = 7,
}

/// The memory of both rings.
#[derive(Debug)]
pub(crate) struct RingMemory {
    mapping: SharedMapping,
    request_len: usize,
    reply_len: usize,
}

/// Bytes of memory that the rings take.
pub(crate) fn memory_len(layout: &RingLayout) -> Option<usize> {
    let valid = |len: u32| len.is_power_of_two() && (4096..=RING_LEN_MAX).contains(&len);
    (valid(layout.request_len) && valid(layout.reply_len))
        .then(|| RINGS_OFFSET + layout.request_len as usize + layout.reply_len as usize)
}

impl RingMemory {
    /// Maps `fd`, whose length the caller has checked against [`memory_len`].
    pub(crate) fn map(fd: impl std::os::fd::AsFd, layout: &RingLayout) -> Result<Arc<Self>, Errno> {
        let len = memory_len(layout).ok_or(Errno::INVAL)?;
        Ok(Arc::new(Self {
            mapping: SharedMapping::new(fd, len)?,
            request_len: layout.request_len as usize,
            reply_len: layout.reply_len as usize,
        }))
    }

    pub(crate) fn word(&self, word: ControlWord) -> &AtomicU32 {
        self.mapping.word(word as usize * WORD_STRIDE)
    }

    pub(crate) const fn mapping(&self) -> &SharedMapping {
        &self.mapping
    }

    fn words(&self, ring: RingKind) -> (&AtomicU32, &AtomicU32) {
        match ring {
            RingKind::Requests => {
                (self.word(ControlWord::RequestTail), self.word(ControlWord::RequestHead))
            }
            RingKind::Replies => {
                (self.word(ControlWord::ReplyTail), self.word(ControlWord::ReplyHead))
            }
        }
    }

    const fn bounds(&self, ring: RingKind) -> (usize, usize) {
        match ring {
            RingKind::Requests => (RINGS_OFFSET, self.request_len),
            RingKind::Replies => (RINGS_OFFSET + self.request_len, self.reply_len),
        }
    }
}

/// Which of the two.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RingKind {
    Requests,
    Replies,
}

/// The writing end of a ring.
#[derive(Debug)]
pub(crate) struct RingProducer {
    memory: Arc<RingMemory>,
    ring: RingKind,
    start: usize,
    len: usize,
    tail: u32,
    /// The consumer's position when last looked at.
    head: u32,
}

impl RingProducer {
    pub(crate) fn new(memory: Arc<RingMemory>, ring: RingKind) -> Self {
        let (start, len) = memory.bounds(ring);
        Self { memory, ring, start, len, tail: 0, head: 0 }
    }

    pub(crate) const fn frame_len_max(&self) -> usize {
        frame_len_max(self.len)
    }

    const fn free(&self) -> usize {
        // A consumer that lies about its head gains nothing but a garbled ring of its own.
        self.len.saturating_sub(self.tail.wrapping_sub(self.head) as usize)
    }

    /// Room for `len` bytes without a break, after a pad if need be. `None`: the ring is too full now.
    fn reserve(&mut self, len: usize) -> Option<usize> {
        let len = len.next_multiple_of(ALIGN);
        let at = self.tail as usize & (self.len - 1);
        let to_end = self.len - at;
        let need = if len <= to_end { len } else { to_end + len };
        if self.free() < need {
            self.head = self.memory.words(self.ring).1.load(Ordering::Acquire);
            if self.free() < need {
                return None;
            }
        }
        if len <= to_end {
            return Some(at);
        }
        self.copy(at, &PAD);
        self.tail = self.tail.wrapping_add(to_end as u32);
        Some(0)
    }

    fn copy(&self, at: usize, bytes: &[u8]) {
        let dest = self.memory.mapping.at(self.start + at, bytes.len());
        // SAFETY: in bounds; the range is free (see `reserve`), so that the other side does not look at it
        // until `publish`; `bytes` is memory of this process.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), dest, bytes.len()) };
    }

    /// Writes a frame from its parts. `false`: no room now. The consumer sees it after [`RingProducer::publish`].
    #[must_use]
    pub(crate) fn write(&mut self, header: &[u8], body: &[u8], payload: &[&[u8]]) -> bool {
        let payload_len: usize = payload.iter().map(|piece| piece.len()).sum();
        let len = header.len() + body.len() + payload_len;
        debug_assert!(len <= self.frame_len_max());
        let Some(start) = self.reserve(len) else { return false };
        let mut at = start;
        for piece in [header, body].iter().chain(payload) {
            self.copy(at, piece);
            at += piece.len();
        }
        self.tail = self.tail.wrapping_add(len.next_multiple_of(ALIGN) as u32);
        true
    }

    /// Writes a marker. `false`: no room now.
    #[must_use]
    pub(crate) fn write_marker(&mut self) -> bool {
        let Some(at) = self.reserve(ALIGN) else { return false };
        self.copy(at, &MARKER);
        self.tail = self.tail.wrapping_add(ALIGN as u32);
        true
    }

    /// Publishes to the consumer what was written.
    pub(crate) fn publish(&self) {
        self.memory.words(self.ring).0.store(self.tail, Ordering::SeqCst);
    }
}

/// The item at the head of a ring.
#[derive(Debug)]
pub(crate) enum RingItem {
    /// A frame; body and payload lie behind it.
    Frame(CheckedHeader),
    /// The next frame is on the socket.
    Marker,
}

/// The reading end of a ring.
#[derive(Debug)]
pub(crate) struct RingConsumer {
    memory: Arc<RingMemory>,
    ring: RingKind,
    start: usize,
    len: usize,
    head: u32,
    /// The producer's position when last looked at.
    tail: u32,
}

impl RingConsumer {
    pub(crate) fn new(memory: Arc<RingMemory>, ring: RingKind) -> Self {
        let (start, len) = memory.bounds(ring);
        Self { memory, ring, start, len, head: 0, tail: 0 }
    }

    /// Something is there to be read.
    #[inline]
    pub(crate) fn is_ready(&mut self) -> bool {
        if self.tail == self.head {
            self.tail = self.memory.words(self.ring).0.load(Ordering::SeqCst);
        }
        self.tail != self.head
    }

    /// The word that changes when something comes, and its value now that nothing is there.
    pub(crate) fn tail_word(&self) -> (&AtomicU32, u32) {
        (self.memory.words(self.ring).0, self.head)
    }

    pub(crate) const fn memory(&self) -> &Arc<RingMemory> {
        &self.memory
    }

    const fn at(&self) -> usize {
        self.head as usize & (self.len - 1)
    }

    fn bytes(&self, skip: usize, len: usize) -> &[u8] {
        let bytes = self.memory.mapping.at(self.start + self.at() + skip, len);
        // SAFETY: in bounds. The range lies between head and tail, where an honest producer writes no more. A dishonest one is
        // of our own user (checked before the memory was shared); what it changes under us can only be bytes that
        // are parsed with bounds checks, never a length or an offset that is read twice.
        unsafe { std::slice::from_raw_parts(bytes, len) }
    }

    /// The next item; `None` when the ring is empty.
    ///
    /// # Errors
    /// The producer does not keep to the layout.
    pub(crate) fn peek(&mut self) -> Result<Option<RingItem>, WireError> {
        while self.is_ready() {
            let available = self.tail.wrapping_sub(self.head) as usize;
            let to_end = self.len - self.at();
            if available > self.len || !available.is_multiple_of(ALIGN) {
                return Err(WireError::OverLimit("ring position"));
            }
            let here = available.min(to_end);
            let first = self.bytes(0, 2);
            if first == PAD && available >= to_end {
                self.advance(to_end);
                continue;
            }
            if first == MARKER {
                return Ok(Some(RingItem::Marker));
            }
            if here < HEADER_LEN {
                return Err(WireError::Short("ring frame header"));
            }
            let mut raw = [0; HEADER_LEN];
            raw.copy_from_slice(self.bytes(0, HEADER_LEN));
            let header = CheckedHeader::parse(&raw)?;
            if here - HEADER_LEN < header.len_after() {
                return Err(WireError::Short("ring frame"));
            }
            return Ok(Some(RingItem::Frame(header)));
        }
        Ok(None)
    }

    /// Body and payload of the frame that [`RingConsumer::peek`] has found, in place.
    pub(crate) fn frame(&self, header: &CheckedHeader) -> (&[u8], &[u8]) {
        self.bytes(HEADER_LEN, header.len_after()).split_at(header.body_len)
    }

    /// Gives the frame's bytes back to the producer.
    pub(crate) fn consume(&mut self, item: &RingItem) {
        match item {
            RingItem::Frame(header) => self.advance(HEADER_LEN + header.len_after()),
            RingItem::Marker => self.advance(ALIGN),
        }
    }

    fn advance(&mut self, len: usize) {
        self.head = self.head.wrapping_add(len.next_multiple_of(ALIGN) as u32);
        self.memory.words(self.ring).1.store(self.head, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;
    use samite_types::RequestId;
    use samite_wire::frame::{FrameHeader, FrameKind};
    use zerocopy::IntoBytes;

    use super::*;
    use crate::address::LOCAL_FLAGS;
    use samite_arena::memory_file;

    fn rings() -> Arc<RingMemory> {
        let layout = RingLayout { request_len: 4096, reply_len: 8192, arena_len: 0, queue: None };
        let file = memory_file("test-rings", memory_len(&layout).unwrap()).unwrap();
        RingMemory::map(&file, &layout).unwrap()
    }

    fn ends(ring: RingKind) -> (RingProducer, RingConsumer) {
        let memory = rings();
        (RingProducer::new(memory.clone(), ring), RingConsumer::new(memory, ring))
    }

    #[test]
    fn layouts_that_make_no_sense_are_refused() {
        for (request_len, reply_len) in [(0, 4096), (4096, 5000), (1 << 31, 4096), (64, 64)] {
            assert_eq!(
                memory_len(&RingLayout { request_len, reply_len, arena_len: 0, queue: None }),
                None
            );
        }
    }

    proptest! {
        /// A ring is a queue: what goes in comes out, in order, whatever the lengths; a full ring takes nothing.
        #[test]
        fn a_ring_is_a_queue(
            steps in proptest::collection::vec(proptest::option::of(0usize..900), 1..300),
            replies in any::<bool>(),
        ) {
            let (mut producer, mut consumer) =
                ends(if replies { RingKind::Replies } else { RingKind::Requests });
            let mut model: VecDeque<Option<(u64, usize)>> = VecDeque::new();
            let mut number = 0;
            for step in steps {
                if let Some(len) = step {
                    number += 1;
                    if len == 0 {
                        if producer.write_marker() {
                            model.push_back(None);
                        }
                    } else {
                        let body = vec![number as u8; len / 2];
                        let payload = vec![!number as u8; len - len / 2];
                        let (kind, id) = (FrameKind::Request, RequestId(number));
                        let header =
                            FrameHeader::build(kind, id, LOCAL_FLAGS, &body, &[&payload]);
                        let (start, end) = payload.split_at(payload.len() / 3);
                        if producer.write(header.as_bytes(), &body, &[start, end]) {
                            model.push_back(Some((number, len)));
                        } else {
                            prop_assert!(!model.is_empty(), "an empty ring takes any frame");
                        }
                    }
                    producer.publish();
                    continue;
                }
                let item = consumer.peek().unwrap();
                match (&item, model.pop_front()) {
                    (None, None) => continue,
                    (Some(RingItem::Marker), Some(None)) => {}
                    (Some(RingItem::Frame(header)), Some(Some((number, len)))) => {
                        let (body, payload) = consumer.frame(header);
                        header.verify(body, &[payload]).unwrap();
                        prop_assert_eq!(header.request_id, RequestId(number));
                        prop_assert_eq!(body.len() + payload.len(), len);
                        prop_assert!(body.iter().all(|byte| *byte == number as u8));
                        prop_assert!(payload.iter().all(|byte| *byte == !number as u8));
                    }
                    (item, expected) => prop_assert!(false, "{:?} for {:?}", item, expected),
                }
                consumer.consume(&item.unwrap());
            }
        }

        /// A client may write anything into its ring: the node sees an error or a frame inside the
        /// ring.
        #[test]
        fn garbage_in_a_ring_is_no_danger(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            frame_first in any::<bool>(),
            at in 0usize..4000,
            tail in any::<u32>(),
        ) {
            let (mut producer, mut consumer) = ends(RingKind::Requests);
            if frame_first {
                let (kind, id) = (FrameKind::Request, RequestId(1));
                let header = FrameHeader::build(kind, id, LOCAL_FLAGS, &[1; 50], &[]);
                prop_assert!(producer.write(header.as_bytes(), &[1; 50], &[]));
            }
            producer.copy(at.min(4096 - bytes.len()), &bytes);
            consumer.memory().word(ControlWord::RequestTail).store(tail, Ordering::SeqCst);
            for _ in 0..600 {
                let Ok(Some(item)) = consumer.peek() else { break };
                if let RingItem::Frame(header) = &item {
                    let (body, payload) = consumer.frame(header);
                    prop_assert!(body.len() + payload.len() < 4096);
                }
                consumer.consume(&item);
            }
        }
    }
}
