//! Floors: the least that the machine itself needs.

use std::io::{Read, Write};
use std::process::{Command, Stdio};

use samite_types::{Error, ErrorKind, Result};

use crate::child::HelperProcess;
use crate::child::failed;
use crate::child::page::SharedPage;
use crate::child::socket::{self, SocketFamily, SocketStream};
use crate::measure::{Workload, steps};
use crate::place::BenchPlace;

const MESSAGE_LEN: usize = 64;
/// Length of one piece of a stream or copy.
pub const PIECE_LEN: usize = 1 << 20;
/// Length of the memory that is summed, and of the values of a scan, in bytes.
pub const SUMMED_LEN: usize = 512 << 20;
/// Length of a buffer that no cache holds.
pub const COLD_LEN: usize = 64 << 20;

/// A buffer that no cache holds, gone through piece by piece. Its pages are in place.
pub struct ColdBuffer {
    bytes: Vec<u8>,
    next: usize,
    piece_len: usize,
}

impl ColdBuffer {
    pub fn new(piece_len: usize) -> Self {
        Self { bytes: vec![0x5a; COLD_LEN], next: 0, piece_len }
    }

    /// The next piece, and its offset.
    pub fn next(&mut self) -> (usize, &mut [u8]) {
        let at = self.next;
        self.next = (at + self.piece_len) % COLD_LEN;
        (at, &mut self.bytes[at..at + self.piece_len])
    }
}

/// A connection to another process. Fields in this order: the end of the stream is what ends the other process.
struct FloorLink {
    stream: Box<dyn SocketStream>,
    _other: HelperProcess,
}

impl FloorLink {
    fn open(what: &str, family: SocketFamily, place: &BenchPlace, len: usize) -> Result<Self> {
        let dir = place.path().to_string_lossy();
        let other = HelperProcess::start(&[what, family.name(), &dir, &len.to_string()])?;
        Ok(Self { stream: socket::connect(family, other.greeting())?, _other: other })
    }

    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream.write_all(bytes).map_err(failed("send"))
    }

    fn receive(&mut self, bytes: &mut [u8]) -> Result<()> {
        self.stream.read_exact(bytes).map_err(failed("receive"))
    }
}

/// Blocking ping-pong of 64 bytes between two processes.
pub fn ping_pong(family: SocketFamily, place: &BenchPlace) -> Result<Box<dyn Workload>> {
    let mut link = FloorLink::open("echo", family, place, MESSAGE_LEN)?;
    let mut message = [1; MESSAGE_LEN];
    Ok(steps(1, 0, move || {
        link.send(&message)?;
        link.receive(&mut message)
    }))
}

/// One process sends pieces of 1 MiB, this one receives them.
pub fn stream(family: SocketFamily, place: &BenchPlace) -> Result<Box<dyn Workload>> {
    let mut link = FloorLink::open("source", family, place, PIECE_LEN)?;
    let mut cold = ColdBuffer::new(PIECE_LEN);
    Ok(steps(1, PIECE_LEN as u64, move || link.receive(cold.next().1)))
}

/// This process sends pieces of 1 MiB, another receives them.
pub fn sink(family: SocketFamily, place: &BenchPlace) -> Result<Box<dyn Workload>> {
    let mut link = FloorLink::open("sink", family, place, PIECE_LEN)?;
    let mut cold = ColdBuffer::new(PIECE_LEN);
    Ok(steps(1, PIECE_LEN as u64, move || link.send(cold.next().1)))
}

/// A page that is shared with another process. Fields in this order: the page's end is what ends the other process.
struct FloorPage {
    page: SharedPage,
    _other: HelperProcess,
    _file: tempfile::NamedTempFile,
}

impl FloorPage {
    fn open(how: &str, place: &BenchPlace) -> Result<Self> {
        let file = tempfile::NamedTempFile::new_in(place.path())
            .map_err(failed("make a file for a shared page"))?;
        let page = SharedPage::open(file.path(), how.parse()?)?;
        let other = HelperProcess::start(&["page", how, &file.path().to_string_lossy()])?;
        Ok(Self { page, _other: other, _file: file })
    }

    fn call(&self, number: u32) {
        self.page.call(number);
    }
}

/// Ping-pong of 64 bytes over a page that two processes share.
pub fn shared_page(how: &str, place: &BenchPlace) -> Result<Box<dyn Workload>> {
    let shared = FloorPage::open(how, place)?;
    let mut number = 0_u32;
    // Looking at the clock costs a good part of one spinning round trip.
    let calls = if how == "spin" { 64 } else { 1 };
    Ok(steps(calls, 0, move || {
        for _ in 0..calls {
            number = number.wrapping_add(1);
            shared.call(number);
        }
        Ok(())
    }))
}

/// `memcpy` of 1 MiB between two buffers that no cache holds.
pub fn copy() -> Box<dyn Workload> {
    let mut from = ColdBuffer::new(PIECE_LEN);
    let mut to = ColdBuffer::new(PIECE_LEN);
    steps(1, PIECE_LEN as u64, move || {
        to.next().1.copy_from_slice(from.next().1);
        Ok(())
    })
}

/// The sum of a piece of memory, as words: the least that somebody does who looks at all of it.
pub fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks();
    let rest = rest.iter().map(|byte| u64::from(*byte)).sum();
    words.iter().fold(rest, |sum: u64, word| sum.wrapping_add(u64::from_le_bytes(*word)))
}

/// Looking at memory that no cache holds, once in each step.
pub fn sum_of_memory() -> Box<dyn Workload> {
    let memory = vec![0x5a; SUMMED_LEN];
    steps(1, SUMMED_LEN as u64, move || {
        std::hint::black_box(sum(&memory));
        Ok(())
    })
}

/// Appending `len` bytes to a file and waiting until they are on the disk, in the directory of durable datasets.
pub fn append_synced(len: usize, place: &BenchPlace) -> Result<Box<dyn Workload>> {
    let dir = place.flash();
    std::fs::create_dir_all(&dir).map_err(failed("make a directory"))?;
    let mut options = std::fs::File::options();
    let file = options.create(true).append(true).open(dir.join("floor"));
    let mut file = file.map_err(failed("make a file"))?;
    let bytes = vec![0x5a; len];
    Ok(steps(1, 0, move || {
        file.write_all(&bytes).and_then(|()| file.sync_data()).map_err(failed("append"))
    }))
}

/// Starting a program that does nothing, and waiting for its end.
pub fn start_program(mut command: impl FnMut() -> Command + 'static) -> Box<dyn Workload> {
    steps(1, 0, move || {
        let mut command = command();
        let status = command.stdin(Stdio::null()).status().map_err(failed("start a program"))?;
        if status.success() {
            Ok(())
        } else {
            Err(Error::new(ErrorKind::Io, format!("{command:?}: {status}")))
        }
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_cold_buffer_is_gone_through_and_begun_again() {
        let mut cold = ColdBuffer::new(COLD_LEN / 2);
        assert_eq!(cold.next().0, 0);
        assert_eq!(cold.next().0, COLD_LEN / 2);
        assert_eq!(cold.next().0, 0);
    }

    #[test]
    fn a_sum_has_every_byte() {
        assert_eq!(sum(&[]), 0);
        let mut bytes = vec![0; 21];
        for (at, weight) in [(0, 1), (9, 1 << 8), (15, 1 << 56), (20, 1)] {
            bytes[at] = 3;
            assert_eq!(sum(&bytes), 3 * weight, "byte {at}");
            bytes[at] = 0;
        }
    }

    #[test]
    fn programs_are_started_and_a_failing_one_is_told() {
        let mut good = start_program(|| Command::new("true"));
        assert!(good.round(Duration::from_millis(1)).expect("runs").ops >= 1);
        let mut bad = start_program(|| Command::new("false"));
        assert!(bad.round(Duration::from_millis(1)).is_err());
    }
}
