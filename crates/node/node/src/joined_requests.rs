//! Requests whose operations are on partitions of several shards: which answers are missing.
//!
//! The shard that received the request keeps it here until every shard concerned has answered, and
//! then answers itself with the outcomes in the order of the request.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use samite_partition::AppliedOutcome;
use samite_transport::server::ConnId;
use samite_types::{Epoch, ErrorKind, RequestId};

use crate::budget::ReplyBudget;
use crate::grants::NamedBlocks;
use crate::request_account::RequestAccount;

/// A client that asked, and what its reply needs.
#[derive(Debug)]
pub(crate) struct JoinedAsker {
    pub conn: ConnId,
    pub request: RequestId,
    pub budget: ReplyBudget,
    pub blocks: NamedBlocks,
    pub account: RequestAccount,
}

/// A request that waits for shards.
#[derive(Debug)]
struct WaitingJoin<A> {
    asker: A,
    /// One for each operation, and whether it is a mutation.
    outcomes: Vec<(Option<AppliedOutcome>, bool)>,
    /// Shards that have not answered.
    waiting: usize,
    name_space_generation: Epoch,
    /// A shard does not serve a partition of it any more, or cannot now.
    refused: Option<ErrorKind>,
}

/// The answer of one shard.
#[derive(Debug)]
pub(crate) struct PartialOutcome {
    /// By position in the request.
    pub outcomes: Vec<(usize, AppliedOutcome)>,
    /// Highest name-space generation of the partitions.
    pub name_space_generation: Epoch,
    /// The client is to be told this instead, whatever was done.
    pub refused: Option<ErrorKind>,
}

/// A request that all shards have answered.
#[derive(Debug)]
pub(crate) struct JoinedOutcome<A> {
    pub asker: A,
    pub name_space_generation: Epoch,
    pub refused: Option<ErrorKind>,
    outcomes: Vec<(Option<AppliedOutcome>, bool)>,
}

impl<A> JoinedOutcome<A> {
    /// The outcomes in the order of the request, and whether each is of a mutation.
    pub(crate) fn outcomes(self) -> impl Iterator<Item = (AppliedOutcome, bool)> {
        let missing =
            || AppliedOutcome::Failed { kind: ErrorKind::Internal, index: 0, current: None };
        self.outcomes
            .into_iter()
            .map(move |(outcome, is_mutation)| (outcome.unwrap_or_else(missing), is_mutation))
    }
}

/// The requests of one shard that wait for others. `A`: who asked, and what the reply needs.
#[derive(Debug)]
pub(crate) struct JoinedRequests<A> {
    /// By age.
    requests: BTreeMap<u64, WaitingJoin<A>>,
    next: u64,
}

impl<A> Default for JoinedRequests<A> {
    fn default() -> Self {
        Self { requests: BTreeMap::new(), next: 0 }
    }
}

impl<A> JoinedRequests<A> {
    /// A request goes to so many `shards`, this one included. `mutations`: of each operation
    /// whether it is one. Returns the number under which the shards answer.
    pub(crate) fn begin(
        &mut self,
        asker: A,
        mutations: impl Iterator<Item = bool>,
        shards: usize,
    ) -> u64 {
        let number = self.next;
        self.next += 1;
        let outcomes = mutations.map(|is_mutation| (None, is_mutation)).collect();
        let (waiting, name_space_generation, refused) = (shards, Epoch(0), None);
        let request = WaitingJoin { asker, outcomes, waiting, name_space_generation, refused };
        self.requests.insert(number, request);
        number
    }

    /// How many wait.
    pub(crate) fn count(&self) -> usize {
        self.requests.len()
    }

    /// Who asked first of those that wait.
    pub(crate) fn oldest(&self) -> Option<&A> {
        self.requests.first_key_value().map(|(_, request)| &request.asker)
    }

    /// Who asked, if the request waits.
    pub(crate) fn asker(&self, number: u64) -> Option<&A> {
        self.requests.get(&number).map(|request| &request.asker)
    }

    /// One shard has answered. Returns the request when that was the last.
    pub(crate) fn answered(
        &mut self,
        number: u64,
        answer: PartialOutcome,
    ) -> Option<JoinedOutcome<A>> {
        let Entry::Occupied(mut entry) = self.requests.entry(number) else { return None };
        let request = entry.get_mut();
        request.name_space_generation =
            request.name_space_generation.max(answer.name_space_generation);
        request.refused = request.refused.or(answer.refused);
        request.waiting -= 1;
        for (index, outcome) in answer.outcomes {
            request.outcomes[index].0 = Some(outcome);
        }
        if request.waiting > 0 {
            return None;
        }
        let WaitingJoin { asker, outcomes, name_space_generation, refused, .. } = entry.remove();
        Some(JoinedOutcome { asker, name_space_generation, refused, outcomes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(index: u16) -> AppliedOutcome {
        AppliedOutcome::Failed { kind: ErrorKind::NotFound, index, current: None }
    }

    fn part(outcomes: Vec<(usize, AppliedOutcome)>, epoch: u64) -> PartialOutcome {
        PartialOutcome { outcomes, name_space_generation: Epoch(epoch), refused: None }
    }

    #[test]
    fn outcomes_are_joined_in_the_order_of_the_request() {
        let mut joins = JoinedRequests::default();
        let first = joins.begin("first", [true, false, true].into_iter(), 2);
        let second = joins.begin("second", [true].into_iter(), 1);
        assert_eq!(joins.asker(first), Some(&"first"));
        assert_eq!((joins.count(), joins.oldest()), (2, Some(&"first")));
        assert!(joins.answered(first, part(vec![(2, failed(2)), (0, failed(0))], 5)).is_none());
        let other = joins.answered(second, part(vec![(0, failed(7))], 1));
        assert_eq!(other.map(|other| other.asker), Some("second"));
        let joined = joins.answered(first, part(vec![(1, failed(1))], 3)).expect("all are there");
        assert_eq!(
            (joined.asker, joined.name_space_generation, joined.refused),
            ("first", Epoch(5), None)
        );
        let told = joined.outcomes().map(|(outcome, is_mutation)| match outcome {
            AppliedOutcome::Failed { index, .. } => (index, is_mutation),
            AppliedOutcome::Done(_) => unreachable!("none was"),
        });
        assert!(told.eq([(0, true), (1, false), (2, true)]));
        assert_eq!(joins.asker(first), None);
        assert!(joins.answered(first, part(Vec::new(), 0)).is_none(), "it is answered");
    }

    #[test]
    fn one_refusal_refuses_the_request_once_all_have_answered() {
        let mut joins = JoinedRequests::default();
        let number = joins.begin((), [true, true].into_iter(), 2);
        let refusal = PartialOutcome { refused: Some(ErrorKind::StaleMap), ..part(Vec::new(), 0) };
        assert!(joins.answered(number, refusal).is_none());
        let joined = joins.answered(number, part(vec![(1, failed(1))], 0)).expect("both answered");
        assert_eq!(joined.refused, Some(ErrorKind::StaleMap));
    }
}
