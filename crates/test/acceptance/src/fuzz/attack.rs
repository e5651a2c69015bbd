//! The attackers.

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use samite_client::ClusterConfig;
use samite_transport::client::NodeLink;
use samite_transport::{Address, Credential};
use samite_types::{ClientId, Deadline};

use super::record::FrameRecording;
use super::{FuzzCounts, mutate};
use crate::rng::AcceptanceRng;

/// Longest time that a node may take to make room for more; then this connection is given up.
const STUCK: Duration = Duration::from_millis(200);
/// Most frames on one connection.
const FRAMES_MAX: u64 = 200;
/// Pause after a connection, so that one processor is left for honest clients.
const PAUSE: Duration = Duration::from_millis(1);

/// One attacker.
pub struct FrameAttacker<'a> {
    addresses: Vec<Address>,
    credential: Credential,
    holds_key: bool,
    recording: &'a FrameRecording,
    rng: AcceptanceRng,
}

impl<'a> FrameAttacker<'a> {
    pub fn new(
        config: Option<&ClusterConfig>,
        recording: &'a FrameRecording,
        number: u64,
        seed: u64,
    ) -> Self {
        let addresses = config.map_or(&[][..], |config| &config.addresses);
        let addresses = addresses.iter().filter_map(|address| address.parse().ok());
        Self {
            // The bytes that are sent on the socket beside rings are no less strange.
            addresses: addresses.collect(),
            credential: config.map_or(Credential::Nothing, |config| config.credential.clone()),
            holds_key: number.is_multiple_of(2),
            recording,
            rng: AcceptanceRng::new(seed.wrapping_add(number)),
        }
    }

    /// Until it is told to stop.
    pub fn run(mut self, counts: &FuzzCounts) {
        while !counts.stop.load(Ordering::Relaxed) && !self.addresses.is_empty() {
            counts.connections.fetch_add(1, Ordering::Relaxed);
            if self.holds_key {
                let address = self.rng.pick(&self.addresses).clone();
                let client = ClientId(self.rng.number());
                let deadline = Deadline::after(Duration::from_secs(5));
                if let Ok(link) = NodeLink::connect(&address, &self.credential, client, deadline)
                    && let Some(raw) = link.descriptors().first()
                {
                    // SAFETY: the link holds the descriptor open, and lives until the end of this block.
                    let fd = unsafe { BorrowedFd::borrow_raw(*raw) };
                    counts.admitted.fetch_add(1, Ordering::Relaxed);
                    let sent = self.attack(fd, counts);
                    counts.admitted_frames.fetch_add(sent, Ordering::Relaxed);
                }
            } else {
                self.knock(counts);
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Without the key: a replayed handshake, sound or not, and then the rest.
    fn knock(&mut self, counts: &FuzzCounts) {
        let sockets = self.addresses.iter().filter_map(|address| match address {
            Address::Unix(path) => std::os::unix::net::UnixStream::connect(path).ok(),
            Address::Shm(_) | Address::Tcp(..) | Address::Tls(..) => None,
        });
        let Some(socket) = sockets.into_iter().next() else { return };
        let mut hello = self.recording.handshake.clone();
        match self.rng.below(4) {
            0 => {}
            1 => hello.truncate(self.rng.below(hello.len() as u64 + 1) as usize),
            2 => hello = (0..self.rng.below(2000)).map(|_| self.rng.number() as u8).collect(),
            _ => {
                let at = self.rng.below(hello.len() as u64) as usize;
                hello[at] ^= 1 << self.rng.below(8);
            }
        }
        let fd = std::os::fd::AsFd::as_fd(&socket);
        if send(fd, &hello) {
            self.attack(fd, counts);
        }
    }

    /// Sends strange frames until the node ends the connection. Returns how many were sent whole.
    fn attack(&mut self, fd: BorrowedFd<'_>, counts: &FuzzCounts) -> u64 {
        let wanted = 1 + self.rng.below(FRAMES_MAX);
        for sent in 0..wanted {
            if counts.stop.load(Ordering::Relaxed) {
                return sent;
            }
            counts.frames.fetch_add(1, Ordering::Relaxed);
            if !send(fd, &mutate::next(self.recording, &mut self.rng)) {
                return sent;
            }
        }
        wanted
    }
}

/// Sends all of it, and throws away what comes. `false`: the node has ended the connection, or takes no more.
fn send(fd: BorrowedFd<'_>, mut bytes: &[u8]) -> bool {
    let mut waste = [0; 16 << 10];
    let start = Instant::now();
    while !bytes.is_empty() {
        match rustix::net::send(fd, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(len) => bytes = &bytes[len..],
            Err(Errno::AGAIN) if start.elapsed() < STUCK => {
                std::thread::sleep(Duration::from_micros(100));
            }
            Err(_) => return false,
        }
        if let Ok((0, _)) = rustix::net::recv(fd, &mut waste[..], RecvFlags::DONTWAIT) {
            return false;
        }
    }
    true
}
