//! A freeze of a dataset: for a short time nobody changes its records.
//!
//! The cluster map names who has frozen a dataset, so that each node learns of it, whichever node
//! leads or serves. A freeze ends by itself when nobody renews it.

use std::time::Duration;

use samite_types::Epoch;
use serde::{Deserialize, Serialize};

use crate::control::{ControlReply, DatasetData};

/// Oldest [version](crate::hello) of the protocol whose maps tell of freezes.
pub const FREEZES_SINCE: u8 = 4;

/// An answer for a peer of an older version: a map in it tells of no freezes. Such a peer changes
/// nothing by itself, and the nodes refuse it what is frozen.
#[must_use]
pub fn without_freezes(mut reply: ControlReply) -> ControlReply {
    let thaw = |data: &mut DatasetData| data.frozen_by = 0;
    match &mut reply {
        ControlReply::Map(Some(map)) => map.datasets.iter_mut().for_each(thaw),
        ControlReply::MapDelta(delta) => {
            delta.datasets.iter_mut().filter_map(|change| change.data.as_mut()).for_each(thaw);
        }
        _ => {}
    }
    reply
}

/// For how long a freeze lasts that nobody renews, counted by the leader from the last renewal that
/// it has heard; by the holder from before it sent that one.
pub const FREEZE_TERM: Duration = Duration::from_secs(5);

/// A request about the freeze of a dataset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreezeRequest {
    /// Name of the dataset.
    pub dataset: String,
    /// A number that no other holder uses; not 0.
    pub token: u64,
    /// What is asked.
    pub call: FreezeCall,
}

/// What is asked about a freeze.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FreezeCall {
    /// Freeze the dataset. Answered with the map that says so. Another has frozen it:
    /// [`samite_types::ErrorKind::InUse`].
    Begin,
    /// Go on for another term. The freeze has ended: [`samite_types::ErrorKind::NotFound`].
    Renew,
    /// End it. It is no error when it has ended.
    End,
    /// Whether the node that is asked serves by the map of this epoch or a newer one, in all its
    /// shards: then it changes nothing in what that map says is frozen. Not yet:
    /// [`samite_types::ErrorKind::Busy`].
    Serves(Epoch),
}
