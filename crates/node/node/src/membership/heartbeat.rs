//! Heartbeats to one coordinator instance elsewhere. The leader's answers are the node's lease.

use std::sync::Arc;
use std::time::Duration;

use samite_transport::Address;
use samite_transport::client::NodeLink;
use samite_types::{Clock, Deadline, ErrorKind, NodeId, Result, SystemClock};
use samite_wire::control::{ControlReply, ControlRequest};
use samite_wire::membership::{Heartbeat, LeaderAddress, NodeLease};

use super::map_watch::{NodeCredentials, PAUSE_MIN, is_final, take_up};
use crate::clock::{self, COMPARED_APART};
use crate::control_reply::refusal;
use crate::node_calls::call;
use crate::shared::{NodeNotice, NodeShared};

/// How long an instance may take over a connection or an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
/// So many heartbeats in a row without an answer end a connection.
const SILENCE_MAX: u32 = 4;
/// Most instances that heartbeats go to.
const INSTANCES_MAX: usize = 16;

/// Sends heartbeats to the instance that is reached at one of `addresses`, until the node stops.
pub(crate) fn run(shared: &Arc<NodeShared>, credentials: &NodeCredentials, addresses: &[Address]) {
    let mut pause = PAUSE_MIN;
    let mut next = 0;
    while !shared.stop.is_asked() {
        let address = &addresses[next % addresses.len()];
        next += 1;
        match credentials.connect(shared, address, ANSWER_TIMEOUT) {
            Ok(link) => {
                shared.membership.tries.answered(address);
                pause = PAUSE_MIN;
                next -= 1;
                shared.membership.sends_heartbeats(link.node());
                if let Err(error) = send_heartbeat(shared, credentials, address, &link) {
                    tracing::debug!(%error, %address, "heartbeat");
                }
                shared.membership.lost(address);
            }
            Err(error) if is_final(error.kind()) && shared.map().is_none() => {
                return shared.notice(NodeNotice::Fatal(error));
            }
            Err(error) => {
                tracing::debug!(%error, %address, "heartbeat");
                shared.membership.tries.failed(address, error);
            }
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(shared.timing.heartbeat);
    }
}

/// Sends heartbeats on one connection until it fails.
fn send_heartbeat(
    shared: &Arc<NodeShared>,
    credentials: &NodeCredentials,
    address: &Address,
    link: &NodeLink,
) -> Result<()> {
    let mut silence = 0;
    let mut compares_at = Duration::ZERO;
    while !shared.stop.is_asked() {
        let sent = SystemClock.monotonic();
        let heartbeat = Heartbeat {
            node: shared.node,
            incarnation: credentials.info.incarnation,
            serves: shared.taken_up(),
            is_led: shared.membership.is_led(sent, shared.timing.lease),
        };
        let request = ControlRequest::Heartbeat(heartbeat);
        match call(link, &request, Deadline::after(ANSWER_TIMEOUT)) {
            Ok(ControlReply::Lease(lease)) => {
                silence = 0;
                shared.membership.led_by(link.node(), address);
                granted(shared, link, sent, &lease)?;
            }
            Ok(ControlReply::NotLeader { leader }) => {
                silence = 0;
                shared.membership.lost(address);
                leader.into_iter().for_each(|leader| heard_of(shared, credentials, leader));
            }
            Ok(reply) => tracing::debug!(error = %refusal(&reply), %address, "heartbeat"),
            Err(error) if error.kind() == ErrorKind::Timeout && !link.is_dead() => {
                silence += 1;
                if silence == SILENCE_MAX {
                    return Err(error);
                }
            }
            Err(error) => return Err(error),
        }
        if silence == 0 && sent >= compares_at {
            compares_at = sent + COMPARED_APART;
            if let Err(error) = clock::compare(&shared.clocks, link) {
                tracing::debug!(%error, %address, "compare clocks");
            }
        }
        let next = sent + shared.timing.heartbeat;
        std::thread::sleep(next.saturating_sub(SystemClock.monotonic()));
    }
    Ok(())
}

/// The leader has answered.
fn granted(shared: &NodeShared, link: &NodeLink, sent: Duration, lease: &NodeLease) -> Result<()> {
    shared.membership.answered(sent);
    if lease.term_us > 0 {
        shared.extend_lease(sent + Duration::from_micros(lease.term_us));
    }
    let known = shared.epoch();
    if lease.epoch <= known {
        return Ok(());
    }
    // Its answer to the open question is on the way, or lost.
    let newer = call(link, &ControlRequest::Map { known }, Deadline::after(ANSWER_TIMEOUT))?;
    take_up(shared, newer, link)
}

/// Another instance leads. It gets heartbeats from now on, if it did not before.
fn heard_of(shared: &Arc<NodeShared>, credentials: &NodeCredentials, leader: LeaderAddress) {
    let is_known = |node: NodeId| node == shared.node || !shared.membership.sends_heartbeats(node);
    if is_known(leader.node) || shared.membership.instances() > INSTANCES_MAX {
        return shared.membership.heard_of(leader);
    }
    let addresses = leader.addresses.iter().filter_map(|url| url.parse().ok());
    let addresses: Vec<Address> =
        addresses.filter(|address| !matches!(address, Address::Shm(_))).collect();
    shared.membership.heard_of(leader);
    if !addresses.is_empty() {
        start(shared, credentials.clone(), addresses);
    }
}

/// Starts a thread that sends heartbeats to the instance at one of `addresses`. It is not joined:
/// it may be waiting for that instance, and has nothing that matters.
pub(crate) fn start(
    shared: &Arc<NodeShared>,
    credentials: NodeCredentials,
    addresses: Vec<Address>,
) {
    let shared = Arc::clone(shared);
    let body = move || run(&shared, &credentials, &addresses);
    if let Err(error) = std::thread::Builder::new().name("heartbeat".into()).spawn(body) {
        tracing::warn!(%error, "start a thread for heartbeats");
    }
}
