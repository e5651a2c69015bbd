//! The node's side: the memory file, cut into blocks of 64 KiB, that the node and the clients on
//! its host map.
//!
//! Layout and generations are described in [`crate::layout`]. A block is free, part of a slab (values between 1 KiB and
//! half a block share one, see `slab.rs`), the storage of 64 KiB of one value, or granted to a client that is about to fill it.
//! Taking and freeing one is O(1): freed blocks are used again first, last freed first, for their pages are in
//! place and perhaps in a cache; then the next block that was never used. A thread puts pages in place ahead of that
//! point, because the first touch of a page costs several times what filling it does.
//!
//! Blocks are charged to the quota of the target ([`BlockQuota`]) before they are taken, so that "no
//! space" is known at once and honest.

mod extent;
mod lookup_table;
mod mapping;
mod populate;
mod queue_owners;
mod slab;
mod submission_queues;

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use samite_types::{ClientId, Epoch, Error, ErrorKind, Result, ShardId, Version};
use samite_wire::limits::BLOCK_LEN;

use crate::layout::{ArenaLayout, BLOCK_COUNT_MAX};
use crate::lookup::{ALIVE_OFFSET, RecordId, VALID_ALWAYS};

pub use extent::{ArenaExtent, ExtentChange};
use lookup_table::LookupTable;
use mapping::ArenaMapping;
use populate::ArenaPopulator;
pub use slab::{SLOT_LEN_MAX, SlabPool, SlotCounts, class_of};
pub use submission_queues::{CoreWaiters, LockTurn, SubmissionEntry};
use submission_queues::{LockConflict, SubmissionQueues};

/// Bytes charged for a block.
pub const BLOCK_CHARGE: u64 = BLOCK_LEN as u64;

/// Least capacity of an arena, in bytes.
pub const CAPACITY_MIN: u64 = 1 << 20;

/// The clients that may leave operations in the submission queues of a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueueAccess {
    /// None.
    #[default]
    Closed,
    /// All clients of the host.
    AnyClient,
    /// This one alone: it has all delegations.
    OnlyClient(ClientId),
}

impl QueueAccess {
    /// The only client that has it, if it is one.
    #[must_use]
    pub const fn only(self) -> Option<ClientId> {
        match self {
            Self::OnlyClient(client) => Some(client),
            Self::Closed | Self::AnyClient => None,
        }
    }
}

/// Of [`Arena::lock_exclusive`].
#[derive(Debug)]
#[must_use = "clients cannot submit about the record until it is given back"]
pub struct ExclusiveLock(LockConflict);

impl ExclusiveLock {
    /// Whether the whole table was closed for it, which is to be [opened](Arena::set_queue_access)
    /// when the record is changed: there are not enough node locks.
    #[must_use]
    pub fn has_closed(&self) -> bool {
        self.0 == LockConflict::Table
    }
}

/// The capacity to which blocks are charged: that of the target whose values they keep.
pub trait BlockQuota: Send + Sync {
    /// Bytes that the target can hold now.
    fn capacity(&self) -> u64;

    /// Bytes that it can be made to hold while it is used.
    fn maximum(&self) -> u64;

    /// Bytes that are free for changes that need more space.
    fn free(&self) -> u64;

    /// Charges a block that is to be granted; `false`, and nothing is charged, if it does not fit.
    fn charge(&self, bytes: u64) -> bool;

    /// Gives back a charge.
    fn uncharge(&self, bytes: u64);
}

/// Memory for values, mapped by the node and by the clients on its host.
pub struct Arena {
    mapping: Arc<ArenaMapping>,
    layout: ArenaLayout,
    quota: Arc<dyn BlockQuota>,
    free: Mutex<FreeBlocks>,
    lookup_table: LookupTable,
    submission_queues: SubmissionQueues,
    populator: ArenaPopulator,
    /// See [`Arena::next_round`].
    round: AtomicU16,
}

/// Blocks nobody has. The lock around it is held for a push or a pop.
#[derive(Debug, Default)]
struct FreeBlocks {
    freed: Vec<u32>,
    /// Blocks below `next` that nobody gets while the target is as small as it is.
    retired: Vec<u32>,
    /// The first block that was never used.
    next: u32,
}

/// Bytes of memory that the machine has.
#[must_use]
pub fn machine_memory() -> u64 {
    let system = rustix::system::sysinfo();
    (system.totalram as u64).saturating_mul(u64::from(system.mem_unit.max(1)))
}

/// Whether an arena can be so large.
///
/// # Errors
/// `Invalid`: less than [`CAPACITY_MIN`], or more than the machine's memory.
pub fn check_capacity(bytes: u64) -> Result<()> {
    if bytes < CAPACITY_MIN {
        return Err(refused_capacity(bytes, &format!("the least is {CAPACITY_MIN} B")));
    }
    let memory = machine_memory();
    if bytes > memory {
        return Err(refused_capacity(bytes, &format!("the machine has {memory} B")));
    }
    Ok(())
}

fn refused_capacity(bytes: u64, cause: &str) -> Error {
    Error::new(ErrorKind::Invalid, format!("memory target of {bytes} B: {cause}"))
}

/// Whole blocks in a capacity.
fn blocks_in(bytes: u64) -> u32 {
    u32::try_from(bytes / BLOCK_CHARGE).unwrap_or(u32::MAX)
}

impl Arena {
    /// An arena for as many bytes as `quota` has capacity, with a part for each of `shards` shards.
    /// The file is as long as its maximum; pages beyond the capacity are not taken.
    ///
    /// # Errors
    /// `Invalid`: less than [`CAPACITY_MIN`], more than the machine's memory, or too many shards; `Io`: the operating system refused.
    pub fn create(quota: Arc<dyn BlockQuota>, shards: usize) -> Result<Arc<Self>> {
        let capacity_bytes = quota.capacity();
        check_capacity(capacity_bytes)?;
        let refuse = |cause: String| refused_capacity(capacity_bytes, &cause);
        let blocks = blocks_in(capacity_bytes);
        let room = blocks_in(quota.maximum()).clamp(blocks, BLOCK_COUNT_MAX.max(blocks));
        let layout = ArenaLayout::new(blocks, shards).and_then(|layout| layout.with_room(room));
        let layout = layout.map_err(|error| refuse(error.to_string()))?;
        let mapping = Arc::new(ArenaMapping::create(&layout)?);
        let lookup_table = LookupTable::new(Arc::clone(&mapping), &layout);
        let submission_queues = SubmissionQueues::new(Arc::clone(&mapping), &layout);
        let end = layout.blocks_offset() + u64::from(blocks) * BLOCK_CHARGE;
        let populator = ArenaPopulator::start(Arc::clone(&mapping), &layout, end);
        Ok(Arc::new(Self {
            mapping,
            layout,
            quota,
            free: Mutex::default(),
            lookup_table,
            submission_queues,
            populator,
            round: AtomicU16::new(1),
        }))
    }

    /// The memory file, to be sent to clients. It can be neither grown nor cut.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.mapping.fd()
    }

    /// Where things are in it.
    #[must_use]
    pub const fn layout(&self) -> &ArenaLayout {
        &self.layout
    }

    /// Publishes a record with `value`, the first bytes of its value, to clients of this host. They
    /// see it until it is retracted.
    pub fn publish(&self, id: &RecordId<'_>, version: Version, total_len: u32, value: &[u8]) {
        self.lookup_table.publish(id, version, total_len, value);
    }

    /// Prefetch: a record will be locked for exclusive change, and retracted or published, a few
    /// look-ups later.
    pub fn expect(&self, id: &RecordId<'_>) {
        self.lookup_table.expect(self.layout.lookup_part(id.partition), id.hash());
    }

    /// The same, after that and before other work.
    pub fn expect_soon(&self, id: &RecordId<'_>) {
        self.lookup_table.expect_slot(self.layout.lookup_part(id.partition), id.hash());
    }

    /// Inserts a record that has come into being in the index.
    pub fn insert_name(&self, id: &RecordId<'_>) {
        self.lookup_table.insert_name(id);
    }

    /// Removes a record that exists no more: it is neither published nor in the index.
    pub fn remove_name(&self, id: &RecordId<'_>) {
        self.lookup_table.remove_name(id);
    }

    /// Retracts a record that is about to change.
    pub fn retract(&self, id: &RecordId<'_>) {
        self.lookup_table.retract(id);
    }

    /// Retracts all records: some of them are not this node's to speak for any more.
    pub fn retract_all(&self) {
        self.lookup_table.wipe();
    }

    /// Sets which clients of this host may [submit](crate::submission) to a shard from now on, of
    /// those that serve by the cluster map of `epoch`. The queues go from one kind of clients to
    /// another by being closed, and what was submitted until then is
    /// [carried out](Arena::take_submissions) in between.
    pub fn set_queue_access(&self, shard: ShardId, epoch: Epoch, access: QueueAccess) {
        let part = u32::from(shard.get());
        match access {
            QueueAccess::Closed => self.submission_queues.close(part),
            QueueAccess::AnyClient => self.submission_queues.open(part, epoch, None),
            QueueAccess::OnlyClient(client) => {
                self.submission_queues.open(part, epoch, Some(client));
            }
        }
    }

    /// Whether anything may have been submitted to a shard.
    #[must_use]
    pub fn has_submissions(&self, shard: ShardId) -> bool {
        self.submission_queues.is_pending(u32::from(shard.get()))
    }

    /// Whether more was submitted to a shard than can wait for the waiters on its core.
    #[must_use]
    pub fn is_behind(&self, shard: ShardId) -> bool {
        self.submission_queues.is_behind(u32::from(shard.get()))
    }

    /// Gives `visit` all entries that were submitted to a shard before this call, each twice:
    /// before the one before it is carried out, and when it is to be carried out itself, and then
    /// [`Arena::submission_done`].
    pub fn take_submissions(&self, shard: ShardId, visit: impl FnMut(LockTurn, &SubmissionEntry)) {
        self.submission_queues.take_pending(u32::from(shard.get()), &self.lookup_table, visit);
    }

    /// Wakes clients that wait until there is room for what they submit to a shard, if there is.
    /// Returns which of them wait on this thread's core.
    pub fn wake_posters(&self, shard: ShardId) -> CoreWaiters {
        self.submission_queues.wake_core_waiters(u32::from(shard.get()))
    }

    /// This entry is next, and takes an open reference under `token`: whether that is still wanted.
    /// An open reference that has ended already is not taken.
    #[must_use]
    pub fn keeps_reference(&self, shard: ShardId, entry: &SubmissionEntry, token: u64) -> bool {
        self.submission_queues.keeps_reference(u32::from(shard.get()), entry, token)
    }

    /// It was carried out.
    pub fn submission_done(&self, shard: ShardId, entry: &SubmissionEntry) {
        self.submission_queues.done(u32::from(shard.get()), entry);
    }

    /// A record of a shard is about to be changed: locks it, so that no client submits changes of
    /// it until [`Arena::unlock_exclusive`]. `visit` is given the entry that was submitted before:
    /// it is to be carried out first, as those of [`Arena::take_submissions`]. Returns what to
    /// unlock, before the next operation locks anything.
    pub fn lock_exclusive(
        &self,
        shard: ShardId,
        id: &RecordId<'_>,
        visit: impl FnMut(&SubmissionEntry),
    ) -> ExclusiveLock {
        ExclusiveLock(self.submission_queues.lock_exclusive(
            u32::from(shard.get()),
            id.hash(),
            visit,
        ))
    }

    /// A record has been changed: clients may submit changes of it again.
    pub fn unlock_exclusive(&self, shard: ShardId, lock: ExclusiveLock) {
        if let LockConflict::Lock(lock) = lock.0 {
            self.submission_queues.unlock_exclusive(u32::from(shard.get()), lock);
        }
    }

    /// Gives a submission queue of each shard, the same in all, to a connection of this client;
    /// `None`: there is none left, and the client asks for all changes.
    #[must_use]
    pub fn give_queue(&self, client: ClientId) -> Option<u16> {
        self.submission_queues.give(client).map(|queue| queue as u16)
    }

    /// Clears a queue of a shard. To be called once for each shard, when the client can write to it
    /// no more, as it has closed its connection, and all that was submitted is carried out. Then
    /// another connection may get it.
    pub fn clear_queue(&self, shard: ShardId, queue: u16) {
        self.submission_queues.clear(u32::from(shard.get()), usize::from(queue));
    }

    /// Records are published to clients until `until` on the monotonic clock of this host, which is
    /// when others may take over the node's records; `None`: for as long as the node lives. With a
    /// time that is over already, clients see none.
    pub fn set_shown_until(&self, until: Option<Duration>) {
        let nanos = until.map(|until| u64::try_from(until.as_nanos()).unwrap_or(VALID_ALWAYS));
        self.lookup_table.set_valid_until(nanos.unwrap_or(VALID_ALWAYS));
    }

    /// From now on records are published only to clients with name-space generation `epoch` or a
    /// newer one.
    pub fn require_lease(&self, epoch: Epoch) {
        self.lookup_table.require_lease(epoch);
    }

    /// The word that tells clients of this host whether the node lives: see
    /// [`crate::lookup`]. They see no records while it is zero.
    #[must_use]
    pub fn alive(&self) -> &AtomicU32 {
        self.mapping.word(self.layout.lookup_offset() as usize + ALIVE_OFFSET)
    }

    /// Begins a new round: values that were verified in an earlier one are verified again by the
    /// next [`ReadRecords::read_in_place`](crate::ReadRecords::read_in_place).
    pub fn next_round(&self) {
        let next = self.round().checked_add(1).unwrap_or(1);
        self.round.store(next, Ordering::Relaxed);
    }

    /// Number of the round; never 0.
    #[must_use]
    pub fn round(&self) -> u16 {
        self.round.load(Ordering::Relaxed)
    }

    /// Up to `count` blocks for a client to fill; fewer when the target is nearly full. Their pages are in place, so that they are charged to this
    /// process and not to the client.
    ///
    /// Their generation is odd until they become part of a record. Drop them only when the client can write to them no
    /// more: when it has closed its connection, not when the node has.
    #[must_use]
    pub fn grant(self: &Arc<Self>, count: usize) -> Vec<ArenaExtent> {
        let mut granted = Vec::with_capacity(count.min(64));
        while granted.len() < count && self.quota.charge(BLOCK_CHARGE) {
            let block = self.take_block();
            let mut extent = ArenaExtent::block(self, block);
            if !self.populator.ensure(block, extent.offset()) {
                break;
            }
            extent.open_for_client();
            granted.push(extent);
        }
        granted
    }

    /// Bytes whose pages the background thread has put in place so far.
    #[must_use]
    pub fn populated(&self) -> u64 {
        self.populator.populated().min(self.quota.capacity())
    }

    /// Blocks that the target has room for now.
    #[must_use]
    pub fn block_limit(&self) -> u32 {
        blocks_in(self.quota.capacity()).min(self.layout.block_count())
    }

    /// The target holds another number of bytes from now on, by its quota. Where it holds less, the
    /// pages of blocks that nobody has go back to the system; where it holds more, pages are put in
    /// place in the background. Not to be called by two threads at once.
    pub fn resize(&self) {
        let limit = self.block_limit();
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let usable = free.next - free.retired.len() as u32;
        let back = (limit.saturating_sub(usable) as usize).min(free.retired.len());
        let left = free.retired.len() - back;
        let returned = free.retired.split_off(left);
        free.freed.extend(returned);
        // Those that were freed first: their bytes are in no cache any more.
        let excess = (usable.saturating_sub(limit) as usize).min(free.freed.len());
        let retired: Vec<u32> = free.freed.drain(..excess).collect();
        free.retired.extend(&retired);
        let unused = free.next.max(limit);
        drop(free);
        for block in retired {
            self.populator.release(block, self.block_offset(block));
        }
        let first = self.layout.blocks_offset();
        let end = first + u64::from(limit) * BLOCK_CHARGE;
        self.populator.set_end(end, first + u64::from(unused) * BLOCK_CHARGE);
    }

    /// Whether there is room for as much as clients can submit.
    #[must_use]
    pub fn has_submission_room(&self) -> bool {
        self.quota.free() >= self.submission_queues.charge()
    }

    /// A whole block, which has been charged.
    #[must_use]
    pub fn block(self: &Arc<Self>) -> ArenaExtent {
        ArenaExtent::block(self, self.take_block())
    }

    /// Takes a block that has been charged. There is one: there are as many blocks as the limit has room for, and a block
    /// is put back before its charge is.
    fn take_block(&self) -> u32 {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.freed.pop().unwrap_or_else(|| {
            let block = free.next;
            assert!(block < self.layout.block_count(), "a charged block is there");
            free.next += 1;
            block
        })
    }

    /// Puts a block back, and then its charge.
    fn free_block(&self, block: u32) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).freed.push(block);
        self.quota.uncharge(BLOCK_CHARGE);
    }

    /// Offset of a block that this arena took.
    fn block_offset(&self, block: u32) -> u64 {
        self.layout.block_offset(block).expect("a block of this arena")
    }

    fn generation(&self, block: u32) -> &AtomicU32 {
        let offset = self.layout.generation_offset(block);
        self.mapping.word(offset.expect("a block of this arena"))
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Arena({} of {} B free)", self.quota.free(), self.quota.capacity())
    }
}
