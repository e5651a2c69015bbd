//! Checksums of outcomes, by which members find that they differ.

use samite_partition::{ActionOutput, StateDigest};
use samite_wire::op::{Action, Operation};

/// Checksum of the results of an operation, as far as they must be the same everywhere: not of
/// values that were read, and not of delegations.
pub(crate) fn of_outcome(operation: &Operation<'_>, outputs: &[ActionOutput]) -> u32 {
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
