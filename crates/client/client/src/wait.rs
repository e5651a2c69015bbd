//! Waiting for a reply that may be better asked for elsewhere.

use samite_transport::client::{NodeLink, RequestTicket};
use samite_types::{Clock, Deadline, ErrorKind, Result, SystemClock};

use crate::Dataset;
use crate::peer::NodePeer;
use crate::reply::{ReplyReceiver, ReplySummary, read};
use crate::retry::{RetryEvent, RetryState, RetryStep};

/// Waits for the reply to a request. `Ok(None)`: it is given up, for another node serves its
/// records by now, or too long has passed; nothing counts that has come for it.
///
/// # Errors
/// As [`NodeLink::wait`].
pub(crate) fn await_reply(
    dataset: &Dataset,
    retry: &mut RetryState,
    (peer, link, mut ticket): (&NodePeer, &NodeLink, RequestTicket),
    receiver: &mut impl ReplyReceiver,
    deadline: Deadline,
) -> Result<Option<Result<ReplySummary>>> {
    loop {
        let patience = Deadline::at_time(retry.wait_until());
        let whole = Deadline::at_time(retry.answer_until());
        match link.wait_until(&mut ticket, patience, whole, |reply| read(reply, link, receiver)) {
            Ok(None) => {}
            // It had begun to come, and is lost.
            Err(error) if error.kind() == ErrorKind::Timeout && retry.is_mirrored() => {
                return Ok(None);
            }
            answered => return answered,
        }
        let mut next = retry.happened(RetryEvent::Silent, SystemClock.monotonic());
        if next == RetryStep::Look {
            let client = dataset.client();
            let is_elsewhere = |receiver: &dyn ReplyReceiver| {
                let view = client.session().view();
                view.is_some_and(|view| {
                    let redundancy = dataset.redundancy();
                    let mut partitions =
                        (0..receiver.count()).filter_map(|at| receiver.partition(at));
                    partitions.any(|one| view.map.node_of(redundancy, one) != Some(peer.node))
                })
            };
            if !is_elsewhere(receiver)
                && let Some(view) = client.session().view()
            {
                client.look(view.map.epoch(), peer.node);
            }
            next = retry.looked(is_elsewhere(receiver), SystemClock.monotonic());
        }
        match next {
            RetryStep::Wait | RetryStep::Look => {}
            RetryStep::Send | RetryStep::Pause(_) => return Ok(None),
            // The deadline has passed: the link has the words.
            RetryStep::Fail(_) => {
                return link.wait(ticket, deadline, |reply| read(reply, link, receiver)).map(Some);
            }
        }
    }
}
