//! Deferred replies: they wait until what they have seen is committed.
//!
//! A reply is made when its operations are applied. It is deferred, with the blocks that it refers
//! to, until all in-sync members of each partition that it is about have applied what it has seen.
//! When the node loses a partition before, nothing of the reply is told: the client is sent to the
//! new primary.

use std::collections::BTreeMap;
use std::time::Duration;

use samite_transport::server::ConnId;
use samite_types::{RequestId, ShardId};
use samite_wire::op::{BlockRef, List};

use crate::inbox::ShardAnswer;
use crate::reply::ReplyBuffers;
use crate::request_account::RequestAccount;

/// Most deferred replies of a shard, and most bytes of requests that they are about.
const DEFERRED_MAX: usize = 16 << 10;
const DEFERRED_LEN_MAX: usize = 64 << 20;

/// A deferred reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DeferredId(u64);

/// The reply itself.
pub(crate) enum DeferredReply {
    /// To a client of this shard. `grants`: the blocks that it may use, also when it is told something else.
    Client {
        conn: ConnId,
        id: RequestId,
        buffers: ReplyBuffers,
        grants: List<BlockRef, 4>,
        account: RequestAccount,
    },
    /// To another shard of this node.
    Shard { to: ShardId, answer: ShardAnswer },
}

impl DeferredReply {
    /// When the request came, if this shard knows.
    pub(crate) const fn since(&self) -> Option<Duration> {
        match self {
            Self::Client { account, .. } => account.since(),
            Self::Shard { .. } => None,
        }
    }
}

#[derive(Debug)]
struct DeferredEntry<R> {
    reply: R,
    /// Partitions that it waits for.
    partitions: usize,
    len: usize,
}

/// The deferred replies `R` of a shard.
#[derive(Debug)]
pub(crate) struct DeferredReplies<R> {
    /// By age.
    waiting: BTreeMap<DeferredId, DeferredEntry<R>>,
    next: u64,
    len: usize,
}

impl<R> Default for DeferredReplies<R> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new(), next: 0, len: 0 }
    }
}

impl<R> DeferredReplies<R> {
    /// Whether one more reply to a request of `len` bytes can be deferred.
    pub(crate) fn has_room(&self, len: usize) -> bool {
        self.waiting.len() < DEFERRED_MAX && self.len + len <= DEFERRED_LEN_MAX
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.waiting.len()
    }

    /// The oldest ones, up to so many.
    pub(crate) fn oldest(&self, most: usize) -> impl Iterator<Item = &R> {
        self.waiting.values().take(most).map(|entry| &entry.reply)
    }

    /// The id of the next reply, if there is one to defer.
    pub(crate) const fn next_id(&self) -> DeferredId {
        DeferredId(self.next)
    }

    /// Defers a reply, under [`DeferredReplies::next_id`], to a request of `len` bytes until
    /// `partitions` (at least one) have committed.
    pub(crate) fn defer(&mut self, reply: R, partitions: usize, len: usize) {
        debug_assert!(partitions > 0);
        self.waiting.insert(self.next_id(), DeferredEntry { reply, partitions, len });
        self.next += 1;
        self.len += len;
    }

    /// One of its partitions has committed. Returns the reply when that was the last.
    pub(crate) fn committed(&mut self, id: DeferredId) -> Option<R> {
        let waiting = self.waiting.get_mut(&id)?;
        waiting.partitions -= 1;
        if waiting.partitions > 0 {
            return None;
        }
        self.withdrawn(id)
    }

    /// One of its partitions was lost. Returns the reply, in place of which the client is sent elsewhere.
    pub(crate) fn withdrawn(&mut self, id: DeferredId) -> Option<R> {
        let waiting = self.waiting.remove(&id)?;
        self.len -= waiting.len;
        Some(waiting.reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_leaves_when_the_last_of_its_partitions_has_committed() {
        let mut replies = DeferredReplies::default();
        let (first, one) = (replies.next_id(), 100);
        replies.defer("first", 2, one);
        let second = replies.next_id();
        replies.defer("second", 1, one);
        assert!(replies.oldest(2).eq(&["first", "second"]));
        assert_eq!(replies.committed(first), None);
        assert_eq!(replies.committed(second), Some("second"));
        assert_eq!(replies.committed(first), Some("first"));
        assert_eq!(replies.committed(first), None, "it has left");
        assert_eq!((replies.count(), replies.oldest(1).next()), (0, None));
    }

    #[test]
    fn a_reply_is_withdrawn_once_and_leaves_never_after() {
        let mut replies = DeferredReplies::default();
        let id = replies.next_id();
        replies.defer("reply", 2, 1);
        assert_eq!(replies.withdrawn(id), Some("reply"));
        assert_eq!((replies.withdrawn(id), replies.committed(id)), (None, None));
    }

    #[test]
    fn replies_are_bounded_in_number_and_in_bytes() {
        let mut replies = DeferredReplies::default();
        let large = replies.next_id();
        replies.defer((), 1, DEFERRED_LEN_MAX - 1);
        assert!(replies.has_room(1) && !replies.has_room(2));
        assert_eq!(replies.committed(large), Some(()));
        assert!(replies.has_room(2));
        (0..DEFERRED_MAX).for_each(|_| replies.defer((), 1, 0));
        assert!(!replies.has_room(0));
    }
}
