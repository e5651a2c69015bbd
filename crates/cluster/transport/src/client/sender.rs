//! Sending on a socket from many threads.
//!
//! One thread at a time writes. Others that come meanwhile leave their frames in a queue and go on;
//! the writer takes the queue along before it stops, in one send. If the socket is full, the writer
//! files replies (the node may wait for just that) until its deadline; frames that it could not
//! send, or left on purpose, stay as the *rest*, and the thread that writes or reads next sends it
//! first. With TLS, the writer has the sealer in its hands.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use smallvec::SmallVec;

use crate::socket::{SLICES_MAX, send_now};
use crate::tls::RecordSealer;

/// Bytes that may wait for the writer.
const QUEUE_LEN_MAX: usize = 256 << 10;
/// Bytes that may be left for a later send.
const LEFT_LEN_MAX: usize = 48 << 10;
/// Longer frames wait for the writer to finish rather than be copied to its queue.
const QUEUED_FRAME_LEN_MAX: usize = 32 << 10;

#[derive(Debug, Default)]
struct SenderState {
    writing: bool,
    queue: Vec<u8>,
    /// With TLS, while nobody is writing. Its records that are not sent yet go before the queue.
    sealer: Option<Box<RecordSealer>>,
}

/// The sending side of a socket.
#[derive(Debug, Default)]
pub(super) struct SocketSender {
    state: Mutex<SenderState>,
    /// Bytes of the queue that nobody is writing.
    rest: AtomicBool,
    /// Frames ever sent or left to be sent.
    frames: AtomicU32,
    /// Of those, the ones that were left since the last send.
    left: AtomicU32,
    is_sealed: bool,
}

/// State of frames to send.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SendResult {
    /// All is sent, or in the hands of the writer.
    All,
    /// Nothing is: the writer is busy and its queue is full. Try again.
    Busy,
}

/// Called when the socket is full: waits until it is worth trying again. `false`: give up.
pub(super) type Relief<'a> = &'a mut dyn FnMut() -> Result<bool, Errno>;

impl SocketSender {
    /// For a connection with TLS.
    pub(super) fn sealed(sealer: RecordSealer) -> Self {
        let state = SenderState { sealer: Some(Box::new(sealer)), ..SenderState::default() };
        Self { state: Mutex::new(state), is_sealed: true, ..Self::default() }
    }

    fn lock(&self) -> MutexGuard<'_, SenderState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends frames, given as the slices that they are made of, in order.
    pub(super) fn send(
        &self,
        fd: BorrowedFd<'_>,
        slices: &[&[u8]],
        relief: Relief<'_>,
    ) -> Result<SendResult, Errno> {
        let mut first = Vec::new();
        {
            let mut state = self.lock();
            if state.writing {
                let len: usize = slices.iter().map(|slice| slice.len()).sum();
                if len > QUEUED_FRAME_LEN_MAX || state.queue.len() + len > QUEUE_LEN_MAX {
                    return Ok(SendResult::Busy);
                }
                slices.iter().for_each(|slice| state.queue.extend_from_slice(slice));
                return Ok(SendResult::All);
            }
            state.writing = true;
            if !state.queue.is_empty() || self.has_rest() {
                first = std::mem::take(&mut state.queue);
                self.rest.store(false, Ordering::Relaxed);
                self.left.store(0, Ordering::Relaxed);
            }
        }
        let all: SmallVec<[&[u8]; 8]> =
            std::iter::once(&first[..]).chain(slices.iter().copied()).collect();
        self.write(fd, &all, relief)?;
        self.write_queue(fd, relief).map(|()| SendResult::All)
    }

    /// Leaves a frame to be sent with the next one, or when somebody waits. `false`: there is no room for it; send it now.
    pub(super) fn leave_frames(&self, slices: &[&[u8]]) -> bool {
        let mut state = self.lock();
        let len: usize = slices.iter().map(|slice| slice.len()).sum();
        if len > QUEUED_FRAME_LEN_MAX || state.queue.len() + len > LEFT_LEN_MAX {
            return false;
        }
        slices.iter().for_each(|slice| state.queue.extend_from_slice(slice));
        if !state.writing {
            self.rest.store(true, Ordering::Relaxed);
            self.left.fetch_add(1, Ordering::Relaxed);
        }
        true
    }

    /// Counts frames that are about to be sent or left.
    pub(super) fn count(&self, frames: usize) {
        self.frames.fetch_add(frames as u32, Ordering::Relaxed);
    }

    /// The rest should be sent now: it is as much as the node still works on, or more. `answered`:
    /// replies received.
    pub(super) fn is_rest_due(&self, answered: u32) -> bool {
        let unanswered = self.frames.load(Ordering::Relaxed).wrapping_sub(answered);
        self.has_rest() && self.left.load(Ordering::Relaxed) >= unanswered / 2
    }

    /// Sends what others have left while this thread was writing, and stops writing.
    fn write_queue(&self, fd: BorrowedFd<'_>, relief: Relief<'_>) -> Result<(), Errno> {
        loop {
            let queue = {
                let mut state = self.lock();
                if state.queue.is_empty() || self.rest.load(Ordering::Relaxed) {
                    state.writing = false;
                    return Ok(());
                }
                std::mem::take(&mut state.queue)
            };
            self.write(fd, &[&queue], relief)?;
        }
    }

    /// Writes it all, or leaves what could not be written as the rest.
    fn write(&self, fd: BorrowedFd<'_>, slices: &[&[u8]], relief: Relief<'_>) -> Result<(), Errno> {
        if self.is_sealed {
            self.write_sealed(fd, slices, relief)
        } else {
            self.write_plain(fd, slices, relief)
        }
    }

    fn write_sealed(
        &self,
        fd: BorrowedFd<'_>,
        slices: &[&[u8]],
        relief: Relief<'_>,
    ) -> Result<(), Errno> {
        // It is not there only after an error, which has ended the connection.
        let mut sealer = self.lock().sealer.take().ok_or(Errno::CONNRESET)?;
        let len: usize = slices.iter().map(|slice| slice.len()).sum();
        let mut at = 0;
        loop {
            if sealer.send(fd)? {
                if at == len {
                    self.lock().sealer = Some(sealer);
                    return Ok(());
                }
                at += sealer.seal(slices, at)?;
            } else if !relief()? {
                let mut rest = slices.concat().split_off(at);
                let mut state = self.lock();
                rest.append(&mut state.queue);
                state.queue = rest;
                state.sealer = Some(sealer);
                self.rest.store(true, Ordering::Relaxed);
                return Ok(());
            }
        }
    }

    fn write_plain(
        &self,
        fd: BorrowedFd<'_>,
        slices: &[&[u8]],
        relief: Relief<'_>,
    ) -> Result<(), Errno> {
        let mut at = 0;
        let mut skip = 0;
        loop {
            while at < slices.len() && skip >= slices[at].len() {
                skip -= slices[at].len();
                at += 1;
            }
            if at == slices.len() {
                return Ok(());
            }
            let mut offer: SmallVec<[IoSlice<'_>; 8]> = SmallVec::new();
            offer.push(IoSlice::new(&slices[at][skip..]));
            let others = slices[at + 1..].iter().filter(|slice| !slice.is_empty());
            offer.extend(others.take(SLICES_MAX - 1).map(|slice| IoSlice::new(slice)));
            match send_now(fd, &offer) {
                Ok(sent) => skip += sent,
                Err(Errno::AGAIN) => {
                    if !relief()? {
                        let mut rest = slices[at][skip..].to_vec();
                        slices[at + 1..].iter().for_each(|slice| rest.extend_from_slice(slice));
                        let mut state = self.lock();
                        rest.append(&mut state.queue);
                        state.queue = rest;
                        self.rest.store(true, Ordering::Relaxed);
                        return Ok(());
                    }
                }
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Something is left to send that nobody is sending.
    pub(super) fn has_rest(&self) -> bool {
        self.rest.load(Ordering::Relaxed)
    }

    /// Sends what is left, as far as the socket takes it now.
    pub(super) fn send_rest(&self, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        {
            let state = self.lock();
            if state.writing || !self.has_rest() {
                return Ok(());
            }
        }
        self.send(fd, &[], &mut || Ok(false)).map(drop)
    }
}
