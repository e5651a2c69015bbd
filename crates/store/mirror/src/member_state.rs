//! The state of a member beside the records: where its log stands, and the partition's own.
//!
//! ```text
//!  term u64 │ position u64 │ delegations may be out u8 │ state of the partition
//! ```

use samite_partition::Partition;
use samite_types::{ErrorKind, Position, Result, Term};
use samite_wire::FieldDecoder;
use samite_wire::peer::LogPoint;

/// Appends the state of a member whose log stands at `at`.
pub(crate) fn export(
    partition: &Partition,
    at: LogPoint,
    grants_delegations: bool,
    out: &mut Vec<u8>,
) {
    out.extend_from_slice(&u64::from(at.term.get()).to_le_bytes());
    out.extend_from_slice(&at.position.get().to_le_bytes());
    out.push(u8::from(grants_delegations));
    partition.export_state(out);
}

/// Takes over the output of [`export`], beside the records as they are. Returns where the log
/// stands then, and whether delegations may be out.
///
/// # Errors
/// `Corrupt`: it is something else; nothing is changed.
pub(crate) fn import(partition: &mut Partition, state: &[u8]) -> Result<(LogPoint, bool)> {
    let mut decoder = FieldDecoder::new(state);
    let term = decoder.u64("term")?;
    let position = Position(decoder.u64("position")?);
    let grants_delegations = decoder.u8("lending")? != 0;
    let term = Term(u32::try_from(term).map_err(|_| ErrorKind::Corrupt)?);
    partition.import_state(decoder.rest())?;
    Ok((LogPoint { term, position, version: partition.version() }, grants_delegations))
}
