//! Requests of clients and their answers, and when.

use std::collections::BTreeMap;
use std::time::Duration;

use samite_types::{ErrorKind, PartitionId, RequestId, Version};

use crate::op::{OpOutcome, SimOperation};

/// One call of one client.
#[derive(Clone, Debug)]
pub struct ClientCall {
    /// The client.
    pub client: usize,
    /// Where.
    pub partition: PartitionId,
    /// The operation.
    pub op: SimOperation,
    /// When it began.
    pub begun: Duration,
    /// When it ended and how; `None`: nobody was told, so it may have taken effect, or may yet, or never.
    pub ended: Option<(Duration, OpOutcome)>,
    /// When a node first carried it out, which its client need not have heard.
    pub done: Option<Duration>,
    /// Version at which it took effect, if the answer named one.
    pub version: Option<Version>,
}

impl ClientCall {
    /// Whether it was refused because it does not fit: that may happen at any time, and changes nothing.
    #[must_use]
    pub fn is_refused_for_room(&self) -> bool {
        matches!(self.ended, Some((_, OpOutcome::Failed(ErrorKind::NoSpace))))
    }

    /// Whether it was refused because its store failed: that changes nothing.
    #[must_use]
    pub fn is_refused_by_store(&self) -> bool {
        matches!(self.ended, Some((_, OpOutcome::Failed(ErrorKind::Io))))
    }
}

/// All calls of a run, in the order in which they began.
#[derive(Clone, Debug, Default)]
pub struct CallHistory {
    /// Calls.
    pub calls: Vec<ClientCall>,
    requests: BTreeMap<RequestId, usize>,
}

impl CallHistory {
    /// A call begins. Returns its number.
    pub fn begin(
        &mut self,
        client: usize,
        partition: PartitionId,
        op: SimOperation,
        now: Duration,
    ) -> usize {
        self.calls.push(ClientCall {
            client,
            partition,
            op,
            begun: now,
            ended: None,
            done: None,
            version: None,
        });
        self.calls.len() - 1
    }

    /// A call is sent, as this request.
    pub fn sent(&mut self, call: usize, request: RequestId) {
        self.requests.insert(request, call);
    }

    /// A node has carried a request out.
    pub fn done(&mut self, request: RequestId, now: Duration) {
        if let Some(call) = self.requests.get(&request) {
            self.calls[*call].done.get_or_insert(now);
        }
    }

    /// A call ends.
    pub fn end(
        &mut self,
        call: usize,
        now: Duration,
        outcome: OpOutcome,
        version: Option<Version>,
    ) {
        self.calls[call].ended = Some((now, outcome));
        self.calls[call].version = version;
    }

    /// The calls on one partition.
    pub fn of(&self, partition: PartitionId) -> impl Iterator<Item = &ClientCall> {
        self.calls.iter().filter(move |call| call.partition == partition)
    }
}
