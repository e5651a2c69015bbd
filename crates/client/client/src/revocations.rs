//! Recall of long delegations: a client that has some listens, on a thread of its own for each
//! node.

use std::time::Duration;

use samite_transport::client::NodeLink;
use samite_types::{Deadline, ErrorKind, NodeId, Result};
use samite_wire::control::{ControlReply, ControlRequest, RevokedRecord};

use crate::Client;
use crate::changes::{mask_of, mask_of_key};

/// Listens for the delegations on records that one node recalls. While a client does, that node
/// grants it delegations longer than a short one.
#[derive(Debug)]
pub struct RecallListener {
    client: Client,
    link: NodeLink,
    /// Number of the last answer, on which the listener has acted when it asks for the next.
    done: u64,
}

impl Client {
    /// Listens to `node`, over a connection that nothing else uses.
    ///
    /// # Errors
    /// `NotFound`: the map has no such node; `Unavailable`, `Timeout`.
    pub fn revocations(&self, node: NodeId) -> Result<RecallListener> {
        let deadline = self.deadline();
        let view = self.view(deadline)?;
        let link = view.peer(node)?.connect_apart(&self.credentials(), deadline)?;
        Ok(RecallListener { client: self.clone(), link, done: 0 })
    }
}

impl RecallListener {
    /// Gives back the delegations that the last call has named, and waits for the node to name
    /// others, for at most `timeout`; none came if the list is empty. Before it returns, no record
    /// that was read under these delegations is [current](crate::Dataset::is_current) any more.
    ///
    /// # Errors
    /// `Unavailable`: the connection broke. Delegations that are recalled from now on run out.
    pub fn next(&mut self, timeout: Duration) -> Result<Vec<RevokedRecord>> {
        let request = ControlRequest::Revocations { done: self.done };
        match self.client.control(&self.link, &request, Deadline::after(timeout)) {
            Ok(ControlReply::Revoked { number, records }) => {
                let mask = records.iter().fold(0, |mask, record| {
                    mask | mask_of(record.partition) | mask_of_key(&record.key)
                });
                self.client.session().changes.begin(mask).end();
                self.done = number;
                Ok(records)
            }
            Ok(_) => Err(ErrorKind::Corrupt.into()),
            Err(error) if error.kind() == ErrorKind::Timeout && !self.link.is_dead() => {
                Ok(Vec::new())
            }
            Err(error) => Err(error),
        }
    }
}
