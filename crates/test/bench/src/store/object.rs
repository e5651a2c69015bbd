//! Objects of 64 MiB, read and written in pieces between buffers that no cache holds.

use samite_client::TransportKind;
use samite_object::ObjectView;
use samite_types::{Error, ErrorKind, Result};
use samite_wire::control::MEMORY_BACKEND;

use crate::floor::{COLD_LEN, ColdBuffer, PIECE_LEN};
use crate::measure::{Workload, steps};
use crate::place::BenchPlace;
use crate::store::RecordHost;

/// Direction of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteDirection {
    Read,
    Write,
}

impl ByteDirection {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// Calls that move `pieces` pieces of 1 MiB each.
pub fn pieces(
    direction: ByteDirection,
    transport: TransportKind,
    (pieces, host): (usize, RecordHost),
    place: &mut BenchPlace,
) -> Result<Box<dyn Workload>> {
    let store = place.store(host)?;
    let dataset = store.dataset("bench-objects", transport, MEMORY_BACKEND, host)?;
    let name = format!("bench-{}", direction.name());
    let object = ObjectView::new(dataset).open_or_create(name.as_bytes())?;
    let mut all = ColdBuffer::new(PIECE_LEN);
    for _ in 0..COLD_LEN / PIECE_LEN {
        let (at, piece) = all.next();
        object.write_at(piece, at as u64)?;
    }
    let call_len = pieces * PIECE_LEN;
    let mut cold = ColdBuffer::new(call_len);
    Ok(steps(pieces as u64, call_len as u64, move || {
        let (at, piece) = cold.next();
        match direction {
            ByteDirection::Write => object.write_at(piece, at as u64),
            ByteDirection::Read if object.read_at(piece, at as u64)? == call_len => Ok(()),
            ByteDirection::Read => {
                Err(Error::new(ErrorKind::Corrupt, "read: the object ends early"))
            }
        }
    }))
}
