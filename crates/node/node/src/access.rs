//! Access checks: requests are checked against the owner and the mode of their dataset.

use samite_placement::ClusterMap;
use samite_transport::PeerRole;
use samite_transport::server::ConnectionPeer;
use samite_types::{Error, ErrorKind, Result};
use samite_wire::access::{self, DatasetAccess};
use samite_wire::control::ControlRequest;
use samite_wire::op::OperationRequest;

/// Whether `peer` may carry out a request on a dataset. Nodes may: they ask for others.
///
/// # Errors
/// [`ErrorKind::Denied`].
pub(crate) fn check(
    access: &DatasetAccess,
    peer: &ConnectionPeer,
    request: &OperationRequest<'_>,
) -> std::result::Result<(), ErrorKind> {
    // The caller is nearly always the owner with all rights; then no operation needs to be looked
    // at.
    if peer.node.is_some() || access.allows(peer.identity.uid, true) {
        return Ok(());
    }
    let changes = request.operations.iter().any(access::changes);
    if access.allows(peer.identity.uid, changes) { Ok(()) } else { Err(ErrorKind::Denied) }
}

/// Whether `peer` may stop or change the node itself: who holds the cluster key and is the node's
/// own user (or root) where the kernel tells. A ticket for the same user is not enough.
pub(crate) fn is_trusted(peer: &ConnectionPeer) -> bool {
    matches!(peer.identity.role, PeerRole::Owner | PeerRole::Node)
}

/// Whether `peer` may say such a thing about membership: a node of itself, and the user that runs
/// the cluster about all.
pub(crate) fn membership_permitted(peer: &ConnectionPeer, request: &ControlRequest) -> Result<()> {
    let own = match request {
        ControlRequest::Join { info, .. } => info.node,
        ControlRequest::Heartbeat(heartbeat) => heartbeat.node,
        ControlRequest::Report { node, .. } => *node,
        ControlRequest::Vote { from, .. } => *from,
        ControlRequest::Watch { node, .. } => *node,
        _ if peer.node.is_some() || is_trusted(peer) => return Ok(()),
        ControlRequest::AcknowledgeLoss { .. } => return Err(denied(peer, "acknowledge a loss")),
        _ => return Err(denied(peer, "say what becomes of nodes")),
    };
    if peer.node == Some(own) {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Denied, format!("only {own} itself may speak for {own}")))
}

pub(crate) fn denied(peer: &ConnectionPeer, words: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Denied, format!("uid {} may not {words}", peer.identity.uid))
}

/// A change of datasets as it is to be made, if `peer` may ask for it: a new dataset belongs to
/// the user that makes it. A change that a node passes on has been checked by that node.
pub(crate) fn permitted(
    map: Option<&ClusterMap>,
    peer: &ConnectionPeer,
    mut request: ControlRequest,
) -> Result<ControlRequest> {
    if peer.node.is_some() {
        return Ok(request);
    }
    match &mut request {
        ControlRequest::CreateDataset(spec) => {
            let owner = &mut spec.access.owner;
            if *owner == DatasetAccess::CALLER {
                *owner = peer.identity.uid;
            }
            if *owner != peer.identity.uid && peer.identity.uid != 0 {
                return Err(denied(peer, "make datasets for others"));
            }
            if let Some(path) = &spec.backend.path
                && !is_trusted(peer)
            {
                return Err(denied(peer, format_args!("have nodes keep data in {path}")));
            }
        }
        ControlRequest::DropDataset { name } => {
            owned(map, peer, name, "drop")?;
        }
        ControlRequest::Freeze(asked) => {
            owned(map, peer, &asked.dataset, "freeze")?;
        }
        ControlRequest::SetAccess { name, owner, .. } => {
            let access = owned(map, peer, name, "say who may use")?;
            if peer.identity.uid != 0 && owner.is_some_and(|owner| owner != access.owner) {
                return Err(denied(peer, format_args!("give dataset {name} away; root may")));
            }
        }
        _ => {}
    }
    Ok(request)
}

/// The access of a dataset that `peer` owns; none is as good as one's own here: a caller that
/// looks for it says that it is missing.
fn owned(
    map: Option<&ClusterMap>,
    peer: &ConnectionPeer,
    name: &str,
    what: &str,
) -> Result<DatasetAccess> {
    let known = map.and_then(|map| map.dataset(name));
    let access = known
        .map_or(DatasetAccess { owner: peer.identity.uid, mode: 0 }, |known| known.spec.access);
    if access.is_owner(peer.identity.uid) {
        return Ok(access);
    }
    let owner = access.owner;
    Err(denied(peer, format_args!("{what} dataset {name}, which belongs to uid {owner}")))
}
