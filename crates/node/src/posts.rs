//! What clients of the host have posted ([`samite_wire::posts`]): carried out before whatever comes next.
//!
//! Clients may post while nothing but the board stands between them and the records of a shard: nobody has leases on records,
//! and no partition of a dataset that keeps records once has other members.

use std::sync::Arc;

use samite_backend::{Arena, HowSoon, Post};
use samite_partition::Outcome;
use samite_placement::{ClusterMap, shard_of};
use samite_types::{ClientId, DatasetId, Epoch, ErrorKind, ShardId};
use samite_wire::heads::RecordId;
use samite_wire::op::{Operation, Request, Touched};

use crate::partitions::Partitions;
use crate::shard::{Shard, count};

/// The table of one shard.
pub(crate) struct Posts {
    arena: Arc<Arena>,
    shard: ShardId,
    shards: u16,
    /// Epoch of the map by which clients may post; 0: they may not.
    open: Epoch,
}

impl Posts {
    pub(crate) fn new(arena: Arc<Arena>, shard: ShardId, shards: u16) -> Self {
        Self { arena, shard, shards, open: Epoch(0) }
    }

    /// What clients are about to post they may not: an epoch that they stand on was raised.
    pub(crate) fn revoke(&self) {
        self.arena.revoke_posts(self.shard);
    }

    /// Frees what a client that is gone was about to post.
    pub(crate) fn drop_client(&self, client: ClientId) {
        self.arena.drop_poster(self.shard, client);
    }

    /// Carries out all that was posted before this call. Returns how many operations.
    fn carry_out_all(&self, partitions: &mut Partitions) -> u64 {
        let (mut from, mut operations) = (0, 0);
        while let Some((post, next)) = self.arena.take_post(self.shard, from) {
            operations += self.carry_out(&post, partitions);
            from = next;
        }
        operations
    }

    /// `operation` is to be applied soon: what [`Posts::make_way`] looks at first is fetched meanwhile.
    pub(crate) fn expect(&self, dataset: DatasetId, operation: &Operation<'_>) {
        if let Some(key) = changed(operation).next() {
            let partition = operation.partition;
            self.arena.expect(&RecordId { dataset, partition, key }, HowSoon::Later);
        }
    }

    /// `operation` is next: what was posted about the records that it changes is carried out before, and nothing more is posted about
    /// them until it is done.
    pub(crate) fn make_way(
        &self,
        dataset: DatasetId,
        operation: &Operation<'_>,
        partitions: &mut Partitions,
    ) {
        let partition = operation.partition;
        let records = changed(operation).map(|key| RecordId { dataset, partition, key });
        self.arena.withdraw(self.shard, records, |post| {
            self.carry_out(&post, partitions);
        });
    }

    fn carry_out(&self, post: &Post, partitions: &mut Partitions) -> u64 {
        let request = post.contents().and_then(|contents| {
            Some((contents.label.client, Request::decode(contents.request, &[]).ok()?))
        });
        let Some((client, request)) = request else {
            tracing::error!("a client posted what is no request");
            self.arena.post_done(self.shard, post);
            return 0;
        };
        for (index, operation) in request.operations.iter().enumerate() {
            if shard_of(operation.partition, self.shards) != self.shard {
                continue;
            }
            let id = (request.header.dataset, operation.partition);
            match partitions.apply_posted(id, client, operation) {
                Some(Outcome::Done(_)) => {}
                // A full target may have no room for what goes with the change.
                Some(Outcome::Failed { kind: ErrorKind::NoSpace, .. }) if index > 0 => {}
                // The client took care that it would be done.
                Some(Outcome::Failed { kind, .. }) => {
                    tracing::error!(?id, ?kind, "carry out what was posted");
                }
                None => tracing::error!(?id, "posted to a partition that is not here alone"),
            }
        }
        self.arena.post_done(self.shard, post);
        request.operations.len() as u64
    }
}

/// Keys of the records that an operation changes. Clients post about entries of directories, which nobody removes by a prefix.
fn changed<'o>(operation: &'o Operation<'_>) -> impl Iterator<Item = &'o [u8]> {
    operation.actions.iter().flat_map(|action| {
        let (first, second) = match action.touched() {
            Touched::Key(key) => (Some(key), None),
            Touched::Moved(from, to) => (Some(from), Some(to)),
            Touched::Nothing | Touched::Prefix(_) => (None, None),
        };
        first.into_iter().chain(second)
    })
}

impl Shard {
    /// Carries out all that was posted before this call. Returns whether there was anything.
    pub(crate) fn carry_out_posts(&mut self) -> bool {
        if !self.arena.has_posts(self.id) {
            return false;
        }
        let operations = self.posts.carry_out_all(&mut self.partitions);
        count(&self.figures().operations, operations);
        self.note_figures();
        operations > 0
    }

    /// Lets clients post, or not, as things are now.
    pub(crate) fn admit_posts(&mut self) {
        let may = !self.partitions.has_leases() && !self.partitions.has_moving();
        match self.map.as_deref().filter(|_| may).map(ClusterMap::epoch) {
            None => self.shut_posts(),
            Some(epoch) if epoch == self.posts.open => {}
            Some(epoch) => {
                self.posts.open = epoch;
                self.arena.open_posts(self.id, epoch);
            }
        }
    }

    /// No client posts from here on, until it is [admitted](Self::admit_posts); what was posted is carried out.
    pub(crate) fn shut_posts(&mut self) {
        if std::mem::take(&mut self.posts.open) != Epoch(0) {
            self.arena.close_posts(self.id);
            self.carry_out_posts();
        }
    }
}
