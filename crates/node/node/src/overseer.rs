//! The overseer of a node: once a second it looks how full the targets are, and whether all shards
//! take up messages.

use std::sync::Arc;
use std::time::Duration;

use crate::inbox::InboxMessage;
use crate::shared::{NodeNotice, NodeShared};

/// Between two looks.
const LOOK: Duration = Duration::from_secs(1);

/// Looks, until the node stops. `tells_alive`: somebody wants to hear that the shards take up
/// messages.
pub(crate) fn run(shared: &Arc<NodeShared>, tells_alive: bool) {
    let mut asked = 0;
    while !shared.stop.is_asked() {
        std::thread::sleep(LOOK);
        shared.look_at_usage();
        if !tells_alive {
            continue;
        }
        // The next message follows when all shards have taken up the last one.
        if shared.beats() >= asked {
            if asked > 0 {
                shared.notice(NodeNotice::Alive);
            }
            asked += shared.inboxes.len() as u64;
            shared.inboxes.iter().for_each(|inbox| inbox.send(InboxMessage::Beat));
        }
    }
}
