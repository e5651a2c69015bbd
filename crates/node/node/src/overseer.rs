//! The overseer of a node: once a second it looks how full the targets are, whether clocks differ,
//! whether the cluster map says how large the node is, and whether all shards take up messages.

use std::sync::Arc;
use std::time::Duration;

use crate::inbox::InboxMessage;
use crate::shared::{NodeNotice, NodeShared};

/// Between two looks.
const LOOK: Duration = Duration::from_secs(1);

/// Looks, until the node stops. `tells_alive`: somebody wants to hear that the shards take up
/// messages.
pub(crate) fn run(shared: &Arc<NodeShared>, tells_alive: bool) {
    let mut rounds = LivenessRounds { shards: shared.inboxes.len() as u64, asked: 0 };
    while !shared.stop.is_asked() {
        std::thread::sleep(LOOK);
        shared.look_at_usage();
        shared.look_at_clock();
        shared.tell_capacity();
        if !tells_alive {
            continue;
        }
        let look = rounds.look(shared.beats());
        if look.is_alive {
            shared.notice(NodeNotice::Alive);
        }
        if look.asks {
            shared.inboxes.iter().for_each(|inbox| inbox.send(InboxMessage::Beat));
        }
    }
}

/// Rounds of messages to all shards; the next one follows when all have taken up the last one.
struct LivenessRounds {
    shards: u64,
    /// Messages sent.
    asked: u64,
}

/// What a look has found.
#[derive(Debug, PartialEq, Eq)]
struct LivenessLook {
    /// All shards have taken up a message.
    is_alive: bool,
    /// The next round is to be sent.
    asks: bool,
}

impl LivenessRounds {
    /// So many messages were taken up.
    const fn look(&mut self, beats: u64) -> LivenessLook {
        let asks = beats >= self.asked;
        let is_alive = asks && self.asked > 0;
        if asks {
            self.asked += self.shards;
        }
        LivenessLook { is_alive, asks }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_alive_when_all_its_shards_take_up_messages() {
        let mut rounds = LivenessRounds { shards: 2, asked: 0 };
        let quiet = LivenessLook { is_alive: false, asks: false };
        assert_eq!(
            rounds.look(0),
            LivenessLook { is_alive: false, asks: true },
            "nobody was asked"
        );
        assert_eq!(rounds.look(0), quiet);
        assert_eq!(rounds.look(1), quiet, "one shard of two");
        assert_eq!(rounds.look(2), LivenessLook { is_alive: true, asks: true });
        assert_eq!(rounds.look(3), quiet, "and the other one hangs");
        assert_eq!(rounds.look(4), LivenessLook { is_alive: true, asks: true });
    }
}
