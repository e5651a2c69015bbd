//! Clients of the shard that are gone: their open references end.

use samite_transport::server::ConnId;
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

    /// A client can write to nothing any more that its connection was given.
    pub(super) fn take_back(&mut self, conn: ConnId) {
        self.grants.closed(conn);
        let Some(queue) = self.queues.remove(&conn) else { return };
        for (inbox, index) in self.shared.inboxes.iter().zip(0..) {
            if ShardId(index) != self.id {
                inbox.send(InboxMessage::Released(queue));
            }
        }
        self.clear_queue(queue);
    }

    /// Carries out what was submitted in a queue that is about to get another owner.
    pub(super) fn clear_queue(&mut self, queue: u16) {
        self.apply_submissions();
        self.arena.clear_queue(self.id, queue);
    }

    /// Ends the open references of a client that is gone.
    pub(super) fn drop_client(&mut self, client: ClientId) {
        self.apply_submissions();
        self.partitions.drop_client(client, SystemClock.monotonic());
        self.note_metrics();
    }
}
