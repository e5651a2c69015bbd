//! Checksums by which members find that they differ.

use std::ops::ControlFlow;

use samite_placement::hash;
use samite_types::{Error, Result};
use samite_wire::op::{Action, Operation};

use crate::{ActionOutput, Partition};

/// Takes in one number after the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Digest(u64);

impl Digest {
    pub(super) const fn new() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }

    pub(super) const fn add(&mut self, number: u64) {
        let mixed = (self.0 ^ number).wrapping_mul(0xff51_afd7_ed55_8ccd);
        self.0 = mixed ^ (mixed >> 32);
    }

    pub(super) const fn get(self) -> u64 {
        self.0
    }
}

/// Checksum of what came of an operation, as far as it must be the same everywhere: not what was read, and not leases.
pub(super) fn of_outcome(operation: &Operation<'_>, outputs: &[ActionOutput]) -> u32 {
    let mut digest = Digest::new();
    for (action, output) in operation.actions.iter().zip(outputs) {
        match output {
            _ if matches!(action, Action::Lease { .. }) => {}
            ActionOutput::Written { offset, total_len, created, .. } => {
                digest.add(u64::from(*offset) << 32 | u64::from(*total_len));
                digest.add(u64::from(*created));
            }
            ActionOutput::Deleted { existed } => digest.add(2 + u64::from(*existed)),
            ActionOutput::Number(number) => digest.add(*number),
            ActionOutput::Value { .. } | ActionOutput::Listing { .. } => {}
        }
    }
    // Half of it is enough.
    digest.get() as u32
}

/// Digest of the records behind `after` up to and with `upto` (empty: to the last): keys, versions and values.
///
/// # Errors
/// Those of the store.
pub(super) fn of_range(partition: &Partition, after: &[u8], upto: &[u8]) -> Result<u64> {
    let mut digest = Digest::new();
    let mut failure: Option<Error> = None;
    partition.visit_records(after, &mut |key, meta| {
        if !upto.is_empty() && key > upto {
            return ControlFlow::Break(());
        }
        digest.add(hash(key));
        digest.add(meta.version.get());
        digest.add(u64::from(meta.len));
        match partition.read_record(key) {
            Ok(Some((_, pieces))) => {
                // Pieces lie where each member put them: what counts is the bytes.
                let mut value = Vec::with_capacity(meta.len as usize);
                pieces.iter().for_each(|piece| piece.append_to(&mut value));
                digest.add(hash(&value));
                ControlFlow::Continue(())
            }
            Ok(None) => ControlFlow::Continue(()),
            Err(error) => {
                failure = Some(error);
                ControlFlow::Break(())
            }
        }
    })?;
    failure.map_or(Ok(digest.get()), Err)
}
