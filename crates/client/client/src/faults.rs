//! Asking one node about its faults, past everything that they do.

use std::time::Duration;

use samite_transport::Address;
use samite_transport::client::NodeLink;
use samite_types::{ClientId, Deadline, Entropy, Error, ErrorKind, Result, SystemEntropy};
use samite_wire::control::{ControlReply, ControlRequest, FaultRequest, FaultStatus};

use crate::ClusterConfig;

/// Sets, clears or shows the faults of the node at the first of `config`'s addresses that can be reached. Needs no cluster map, and a connection of its own
/// on which nothing is harmed.
///
/// # Errors
/// `Unavailable`, `Timeout`; `Denied`: not this user's node; `Invalid`: not a table.
pub fn ask(
    config: &ClusterConfig,
    request: FaultRequest,
    timeout: Duration,
) -> Result<FaultStatus> {
    let deadline = Deadline::after(timeout);
    let link = connect(config, deadline)?;
    match link.control(&ControlRequest::Faults(request), deadline)?.checked()? {
        ControlReply::Faults(status) => Ok(status),
        _ => Err(Error::new(ErrorKind::Corrupt, "the node answers another question")),
    }
}

fn connect(config: &ClusterConfig, deadline: Deadline) -> Result<NodeLink> {
    let credential = &config.credential;
    let client = ClientId(SystemEntropy.next_u64());
    let mut failed = Error::new(ErrorKind::Unavailable, "the node has no address");
    for address in &config.addresses {
        let address: Address = address.parse()?;
        match NodeLink::connect(&address, credential, client, deadline) {
            Ok(link) => return Ok(link),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}
