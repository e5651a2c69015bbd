//! Objects of 64 MiB, read and written in pieces between buffers that no cache holds.

use samite_client::Transport;
use samite_client::object::Objects;
use samite_types::{Error, ErrorKind, Result};
use samite_wire::control::BackendKind;

use crate::floor::{COLD_LEN, Cold, PIECE_LEN};
use crate::measure::{Workload, steps};
use crate::place::Place;
use crate::store::Home;

/// Direction of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Read,
    Write,
}

impl Direction {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// Calls that move `pieces` pieces of 1 MiB each.
pub fn pieces(
    direction: Direction,
    transport: Transport,
    (pieces, home): (usize, Home),
    place: &mut Place,
) -> Result<Box<dyn Workload>> {
    let store = place.store(home)?;
    let dataset = store.dataset("bench-objects", transport, BackendKind::Memory, home)?;
    let name = format!("bench-{}", direction.name());
    let object = Objects::new(dataset).open_or_create(name.as_bytes())?;
    let mut all = Cold::new(PIECE_LEN);
    for _ in 0..COLD_LEN / PIECE_LEN {
        let (at, piece) = all.next();
        object.write_at(piece, at as u64)?;
    }
    let call_len = pieces * PIECE_LEN;
    let mut cold = Cold::new(call_len);
    Ok(steps(pieces as u64, call_len as u64, move || {
        let (at, piece) = cold.next();
        match direction {
            Direction::Write => object.write_at(piece, at as u64),
            Direction::Read if object.read_at(piece, at as u64)? == call_len => Ok(()),
            Direction::Read => Err(Error::new(ErrorKind::Corrupt, "read: the object ends early")),
        }
    }))
}
