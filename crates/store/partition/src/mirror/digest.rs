//! Checksums by which members find that they differ.

use samite_wire::op::{Action, Operation};

use crate::ActionOutput;

/// Takes in one number after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StateDigest(u64);

impl StateDigest {
    pub(crate) const fn new() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }

    pub(crate) const fn add(&mut self, number: u64) {
        let mixed = (self.0 ^ number).wrapping_mul(0xff51_afd7_ed55_8ccd);
        self.0 = mixed ^ (mixed >> 32);
    }

    pub(crate) const fn get(self) -> u64 {
        self.0
    }
}

/// Checksum of the results of an operation, as far as they must be the same everywhere: not of
/// values that were read, and not of delegations.
pub(super) fn of_outcome(operation: &Operation<'_>, outputs: &[ActionOutput]) -> u32 {
    let mut digest = StateDigest::new();
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
