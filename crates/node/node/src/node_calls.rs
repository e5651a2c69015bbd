//! Control requests of a thread of this node to another node.

use samite_transport::client::{NodeLink, RequestTicket};
use samite_types::{Deadline, Error, Result};
use samite_wire::control::{self, ControlReply, ControlRequest};

/// Asks the node at the other end of `link`, and waits for its answer.
pub(crate) fn call(
    link: &NodeLink,
    request: &ControlRequest,
    deadline: Deadline,
) -> Result<ControlReply> {
    answer(link, ask(link, request, deadline)?, deadline)
}

/// Asks, and does not wait.
pub(crate) fn ask(
    link: &NodeLink,
    request: &ControlRequest,
    deadline: Deadline,
) -> Result<RequestTicket> {
    link.submit_control(request, deadline)
}

/// Waits for an answer.
pub(crate) fn answer(
    link: &NodeLink,
    ticket: RequestTicket,
    deadline: Deadline,
) -> Result<ControlReply> {
    link.wait(ticket, deadline, |reply| control::decode(reply.body()))?.map_err(Error::from)
}
