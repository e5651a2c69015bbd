//! The reply budget: the bytes that the reply to a request may take, settled before any operation
//! runs.
//!
//! A reply is bounded like every frame, and an operation that has taken effect must get its result
//! out. So the results of mutations are counted in advance; the rest is for reads, and a read that
//! no longer fits has had no effect: it is answered [`ErrorKind::Busy`], and the client asks again
//! in another request.

use std::time::Duration;

use samite_metrics::registry::RequestKind;
use samite_types::ErrorKind;
use samite_wire::limits::{
    BLOCKS_MAX, BODY_LEN_MAX, HOLDERS_LEN_MAX, PAYLOAD_LEN_MAX, RECORD_LEN_MAX,
};
use samite_wire::op::{Action, Operation, OperationRequest, ValueData};

use crate::grants::GRANTS_PER_CONNECTION;

/// Bytes of body for the header, and for the grants at the end.
const FRAME_BODY_LEN: usize = 64 + 16 * GRANTS_PER_CONNECTION;
/// Bytes of body for an operation that fails, without the record it reveals; more than a success needs beside its results.
const FAILURE_LEN: usize = 20;
/// Bytes of body of a piece in the payload: counted with the value for its first one.
pub(crate) const FIRST_PIECE_LEN: usize = 5;
/// Bytes of body of a value with one piece in the payload.
const VALUE_LEN: usize = 15 + FIRST_PIECE_LEN;
/// Bytes of body of each further piece of a value: one reference to a block.
pub(crate) const PIECE_LEN: usize = 19;

/// Limits of one reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplyBudget {
    /// Most bytes of body that the listings and the revealed record of one operation may take.
    pub share: usize,
    /// Bytes of body for pieces of values beyond the first of each.
    pub extra_body: usize,
    /// Bytes of payload for operations that only read.
    pub read_payload: usize,
    /// The request names blocks.
    pub has_blocks: bool,
    /// Longest term of the delegations that the request asks for; zero: it asks for none.
    pub lease_term: Duration,
    /// What the request is counted as.
    pub kind: RequestKind,
    /// Bytes of the values that it brings.
    pub written: usize,
}

impl ReplyBudget {
    /// The budget of `request`, whose frames may have `payload_max` bytes of payload.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`]: the results of its mutations could be more than a reply has room
    /// for.
    pub(crate) fn of(
        request: &OperationRequest<'_>,
        payload_max: usize,
    ) -> Result<Self, ErrorKind> {
        let mut body = FRAME_BODY_LEN;
        let mut payload = 0usize;
        let mut sharers = 0usize;
        let (mut has_values, mut has_blocks) = (false, false);
        let (mut lease_term, mut written) = (Duration::ZERO, 0usize);
        let (mut has_mutation, mut has_lists) = (false, false);
        for operation in &request.operations {
            let mutates = operation.is_mutation();
            has_mutation |= mutates;
            body += FAILURE_LEN;
            sharers += usize::from(shares(operation));
            for action in &operation.actions {
                body += result_len(action, mutates);
                match action {
                    Action::Get { len, .. } => {
                        has_values = true;
                        if mutates {
                            payload = payload.saturating_add((*len as usize).min(RECORD_LEN_MAX));
                        }
                    }
                    Action::Put { data, .. }
                    | Action::Write { data, .. }
                    | Action::Append { data, .. } => {
                        has_blocks |= matches!(data, ValueData::Blocks(_));
                        written += data.len();
                    }
                    Action::List { .. } => has_lists = true,
                    Action::Locate { .. } => has_values = true,
                    Action::Holders { .. } => {
                        has_values = true;
                        if mutates {
                            payload += HOLDERS_LEN_MAX;
                        }
                    }
                    Action::Lease { term_us, .. } => {
                        lease_term = lease_term.max(Duration::from_micros(u64::from(*term_us)));
                    }
                    _ => {}
                }
            }
        }
        let payload_max = payload_max.min(PAYLOAD_LEN_MAX);
        if body > BODY_LEN_MAX || payload > payload_max {
            return Err(ErrorKind::TooLarge);
        }
        let free = BODY_LEN_MAX - body;
        // Values and listings in one request share the rest.
        let extra_body = match (has_values, sharers) {
            (_, 0) => free,
            (true, _) => free / 2,
            (false, _) => 0,
        };
        Ok(Self {
            share: (free - extra_body) / sharers.max(1),
            extra_body,
            read_payload: payload_max - payload,
            has_blocks,
            lease_term,
            kind: match (has_mutation, has_lists) {
                (true, _) => RequestKind::Write,
                (false, true) => RequestKind::List,
                (false, false) => RequestKind::Read,
            },
            written,
        })
    }
}

fn shares(operation: &Operation<'_>) -> bool {
    operation.reveal_len > 0
        || operation
            .actions
            .iter()
            .any(|action| matches!(action, Action::List { .. } | Action::Extents { .. }))
}

/// Most bytes of body that the result of `action` takes, shares and extra pieces of pure reads apart.
fn result_len(action: &Action<'_>, in_mutation: bool) -> usize {
    match action {
        Action::Get { .. } if in_mutation => VALUE_LEN + (BLOCKS_MAX + 1) * PIECE_LEN,
        Action::Get { .. } | Action::Locate { .. } | Action::Holders { .. } => VALUE_LEN,
        Action::List { .. } | Action::Extents { .. } => 12,
        _ => 20,
    }
}

#[cfg(test)]
mod tests {
    use samite_types::{DatasetId, Epoch, PartitionId, Seq};
    use samite_wire::op::RequestHeader;

    use super::*;

    fn request<'a>(operations: impl IntoIterator<Item = Vec<Action<'a>>>) -> OperationRequest<'a> {
        let header = RequestHeader {
            dataset: DatasetId(1),
            map_epoch: Epoch(1),
            name_space_generation: Epoch(0),
            answered_below: Seq(0),
            is_retry: false,
        };
        let operations = operations.into_iter();
        let operations = operations.map(|actions| Operation::new(PartitionId(0), actions));
        OperationRequest { header, operations: operations.collect() }
    }

    fn list() -> Vec<Action<'static>> {
        vec![Action::List { prefix: b"", after: b"", limit: 9, reverse: false, value_len_max: 0 }]
    }

    fn get() -> Vec<Action<'static>> {
        vec![Action::Get { key: b"k", offset: 0, len: u32::MAX }]
    }

    #[test]
    fn shares_fill_the_body_and_no_more() {
        for lists in [1, 7, 64, 4096] {
            let budget =
                ReplyBudget::of(&request((0..lists).map(|_| list())), PAYLOAD_LEN_MAX).unwrap();
            assert!(budget.share * lists <= BODY_LEN_MAX);
            assert!(budget.share * lists > BODY_LEN_MAX / 2);
            assert_eq!(budget.extra_body, 0);
        }
        let mixed = ReplyBudget::of(&request([list(), get()]), PAYLOAD_LEN_MAX).unwrap();
        assert!(mixed.share + mixed.extra_body <= BODY_LEN_MAX && mixed.extra_body > 1 << 18);
        assert_eq!(mixed.read_payload, PAYLOAD_LEN_MAX);
    }

    #[test]
    fn reads_are_free_to_be_many_and_reads_in_mutations_are_not() {
        assert!(ReplyBudget::of(&request((0..4096).map(|_| get())), PAYLOAD_LEN_MAX).is_ok());
        let update = || [get(), vec![Action::Delete { key: b"k" }]].concat();
        let some = ReplyBudget::of(&request((0..8).map(|_| update())), PAYLOAD_LEN_MAX).unwrap();
        assert_eq!(some.read_payload, 0);
        let many = ReplyBudget::of(&request((0..9).map(|_| update())), PAYLOAD_LEN_MAX);
        assert_eq!(many.unwrap_err(), ErrorKind::TooLarge);
    }
}
