//! Where the outcomes in a reply go.

use samite_types::{NodeId, PartitionId};

use super::{ResendReason, is_behind, retry_reason};
use crate::ClientOperation;
use crate::outcome::OwnedOutcome;
use crate::reply::{OperationAnswer, ReplyReceiver};

/// Receives the reply to one operation.
pub(super) struct SingleReceiver<'o, 'a> {
    pub(super) op: &'o mut ClientOperation<'a>,
    pub(super) answer: Option<OperationAnswer>,
}

impl ReplyReceiver for SingleReceiver<'_, '_> {
    fn count(&self) -> usize {
        1
    }

    fn partition(&self, _index: usize) -> Option<PartitionId> {
        Some(self.op.operation.partition)
    }

    fn dest(&mut self, _index: usize) -> Option<&mut [u8]> {
        self.op.dest.as_deref_mut()
    }

    fn done(&mut self, _index: usize, answer: OperationAnswer) {
        self.answer = Some(answer);
    }
}

/// Receives the reply to some operations out of many, into their destinations where they have any.
pub(super) struct ScatterReceiver<'o, 'a> {
    pub(super) ops: &'o mut [ClientOperation<'a>],
    pub(super) collected: CollectReceiver<'o>,
}

impl ReplyReceiver for ScatterReceiver<'_, '_> {
    fn count(&self) -> usize {
        self.collected.count()
    }

    fn partition(&self, index: usize) -> Option<PartitionId> {
        Some(self.ops[self.collected.indices[index] as usize].operation.partition)
    }

    fn dest(&mut self, index: usize) -> Option<&mut [u8]> {
        self.ops[self.collected.indices[index] as usize].dest.as_deref_mut()
    }

    fn done(&mut self, index: usize, answer: OperationAnswer) {
        self.collected.done(index, answer);
    }
}

/// Receives the reply to some operations out of many.
pub(crate) struct CollectReceiver<'o> {
    pub(crate) node: NodeId,
    pub(crate) indices: &'o [u32],
    pub(crate) outcomes: &'o mut [Option<OwnedOutcome>],
    /// See [`OperationRun::behind`](super::OperationRun::behind).
    pub(crate) behind: &'o mut Vec<u32>,
    pub(crate) again: Option<ResendReason>,
}

impl ReplyReceiver for CollectReceiver<'_> {
    fn count(&self) -> usize {
        self.indices.len()
    }

    fn partition(&self, _index: usize) -> Option<PartitionId> {
        None
    }

    fn dest(&mut self, _index: usize) -> Option<&mut [u8]> {
        None
    }

    fn done(&mut self, index: usize, answer: OperationAnswer) {
        let again = match answer {
            OperationAnswer::Inconsistent => Some(ResendReason::Inconsistent(self.node)),
            OperationAnswer::Outcome(outcome) => match retry_reason(&outcome, self.node) {
                None => {
                    self.outcomes[self.indices[index] as usize] = Some(outcome);
                    None
                }
                again => {
                    if is_behind(&outcome) {
                        self.behind.push(self.indices[index]);
                    }
                    again
                }
            },
        };
        // A stale map matters more than a busy node: without it the next round asks the wrong one again.
        if !matches!(self.again, Some(ResendReason::Stale(_))) && again.is_some() {
            self.again = again;
        }
    }
}
