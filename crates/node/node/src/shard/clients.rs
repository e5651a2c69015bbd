//! Clients of the shard that are gone: their open references end.

use samite_types::{ClientId, Clock, ShardId, SystemClock};

use super::ShardService;
use crate::inbox::InboxMessage;
use crate::mutex::lock;

impl ShardService {
    /// Ends the open references of clients that have been gone for a while.
    pub(super) fn see_off(&mut self) {
        let now = SystemClock.monotonic();
        while let Some(client) = self.clients.take_due(now) {
            if lock(&self.shared.presence).is_here(client) {
                continue;
            }
            for (inbox, index) in self.shared.inboxes.iter().zip(0..) {
                if ShardId(index) != self.id {
                    inbox.send(InboxMessage::Gone(client));
                }
            }
            self.drop_client(client);
        }
    }

    /// Ends the open references of a client that is gone.
    pub(super) fn drop_client(&mut self, client: ClientId) {
        self.apply_submissions();
        self.submissions.drop_client(client);
        self.partitions.drop_client(client, SystemClock.monotonic());
        self.note_metrics();
    }
}
