//! Arena blocks that a connection may fill.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use samite_backend::{Arena, ArenaExtent};
use samite_partition::BlockGrants;
use samite_wire::limits::BLOCK_LEN;
use samite_wire::op::{Action, BlockRef, List, Operation, ValueData};

/// Most blocks granted to one connection.
pub(crate) const GRANTS_PER_CONNECTION: usize = 256;
/// The part of the arena that may be granted at any time: one in so many blocks, so that idle clients cannot fill the target.
const GRANTED_SHARE: u64 = 4;
/// So many blocks may be granted even when the arena is small.
const GRANTED_MIN: u64 = 32;

/// Grants blocks to the connections of one shard.
#[derive(Debug)]
pub(crate) struct BlockGranter {
    arena: Arc<Arena>,
    /// Blocks granted by all shards.
    granted: Arc<AtomicU64>,
}

impl BlockGranter {
    /// A granter for one shard; `granted` is the count that all shards share.
    pub(crate) const fn new(arena: Arc<Arena>, granted: Arc<AtomicU64>) -> Self {
        Self { arena, granted }
    }

    /// For a connection that has no blocks yet.
    fn nothing(&self) -> ConnectionGrants {
        ConnectionGrants { held: HashMap::new(), granted: Arc::clone(&self.granted) }
    }

    /// Grants up to `count` more blocks to a connection that has `to`, and says which.
    fn grant(&self, to: &mut ConnectionGrants, count: usize) -> List<BlockRef, 4> {
        let max = (u64::from(self.arena.block_limit()) / GRANTED_SHARE).max(GRANTED_MIN);
        let left = max.saturating_sub(self.granted.load(Ordering::Relaxed));
        let room = GRANTS_PER_CONNECTION.saturating_sub(to.held.len());
        // Two shards may both see the last room: the limit is soft by the little that one request asks for.
        let count = count.min(room).min(usize::try_from(left).unwrap_or(usize::MAX));
        if count == 0 {
            return List::new();
        }
        self.arena.grant(count).into_iter().map(|extent| to.add(extent)).collect()
    }
}

/// Blocks that a request names: their offsets, and how many of them were granted to its connection.
#[derive(Debug, Default)]
pub(crate) struct NamedBlocks {
    offsets: Vec<u64>,
    held: usize,
}

/// The blocks that the connections of one shard may fill. `C` names a connection.
#[derive(Debug)]
pub(crate) struct BlockGrantTable<C> {
    granter: BlockGranter,
    connections: HashMap<C, ConnectionGrants>,
}

impl<C: Copy + Eq + Hash> BlockGrantTable<C> {
    pub(crate) fn new(granter: BlockGranter) -> Self {
        Self { granter, connections: HashMap::new() }
    }

    /// Grants up to `count` more blocks to a connection, and says which.
    pub(crate) fn grant(&mut self, conn: C, count: usize) -> List<BlockRef, 4> {
        let held = self.connections.entry(conn).or_insert_with(|| self.granter.nothing());
        self.granter.grant(held, count)
    }

    /// The blocks of a connection; `None`: it never had any.
    pub(crate) fn of(&mut self, conn: C) -> Option<&mut ConnectionGrants> {
        self.connections.get_mut(&conn)
    }

    /// Splits off the blocks of a connection that `operations` name, for the shard that runs them.
    pub(crate) fn split_off<'o, 'd: 'o>(
        &mut self,
        conn: C,
        operations: impl Iterator<Item = &'o Operation<'d>>,
    ) -> ConnectionGrants {
        let mut grants = self.granter.nothing();
        if let Some(held) = self.connections.get_mut(&conn) {
            operations.for_each(|operation| held.split_off(operation, &mut grants));
        }
        grants
    }

    /// Takes back blocks of a connection that were not used. When that is gone, they are free.
    pub(crate) fn merge(&mut self, conn: C, unused: ConnectionGrants) {
        if let Some(held) = self.connections.get_mut(&conn) {
            held.merge(unused);
        }
    }

    /// The blocks of a connection that `operations` name.
    pub(crate) fn named(&self, conn: C, operations: &[Operation<'_>]) -> NamedBlocks {
        let offsets = named(operations);
        let held = self.connections.get(&conn).map_or(0, |grants| grants.count(&offsets));
        NamedBlocks { offsets, held }
    }

    /// The blocks that `operations` name and that the connection still has: nothing was done.
    pub(crate) fn still_held(&self, conn: C, operations: &[Operation<'_>]) -> List<BlockRef, 4> {
        let Some(grants) = self.connections.get(&conn) else { return List::new() };
        grants.still_held(&named(operations))
    }

    /// After a request that named `blocks`: the unused ones go back to the client, and new ones in
    /// place of the others.
    pub(crate) fn regrant(&mut self, conn: C, blocks: &NamedBlocks) -> List<BlockRef, 4> {
        let Some(grants) = self.connections.get_mut(&conn) else { return List::new() };
        if blocks.held == 0 {
            return List::new();
        }
        let mut back = grants.still_held(&blocks.offsets);
        let used = blocks.held - back.len();
        back.extend(self.granter.grant(grants, used));
        back
    }

    /// A connection is gone, and its blocks are free.
    pub(crate) fn closed(&mut self, conn: C) {
        self.connections.remove(&conn);
    }
}

fn whole(extent: &ArenaExtent) -> BlockRef {
    extent.block_ref(0..BLOCK_LEN as u32)
}

/// A block that a client may fill.
#[derive(Debug)]
struct GrantedBlock {
    extent: ArenaExtent,
    _count: GrantCount,
}

/// One in the count of granted blocks.
#[derive(Debug)]
struct GrantCount(Arc<AtomicU64>);

impl Drop for GrantCount {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The blocks that one connection may fill, by offset.
#[derive(Debug)]
pub(crate) struct ConnectionGrants {
    held: HashMap<u64, GrantedBlock>,
    granted: Arc<AtomicU64>,
}

impl ConnectionGrants {
    fn add(&mut self, extent: ArenaExtent) -> BlockRef {
        let block = whole(&extent);
        self.granted.fetch_add(1, Ordering::Relaxed);
        let count = GrantCount(Arc::clone(&self.granted));
        self.held.insert(block.offset, GrantedBlock { extent, _count: count });
        block
    }

    /// Splits off the blocks that `operation` names, for the shard that runs it.
    fn split_off(&mut self, operation: &Operation<'_>, into: &mut Self) {
        for block in blocks_of(operation) {
            if let Some(granted) = self.held.remove(&block.offset) {
                into.held.insert(block.offset, granted);
            }
        }
    }

    /// Takes back the blocks that another shard did not use.
    fn merge(&mut self, unused: Self) {
        self.held.extend(unused.held);
    }

    /// Of the blocks at `offsets` (each once), those that are still granted.
    fn still_held(&self, offsets: &[u64]) -> List<BlockRef, 4> {
        let held = offsets.iter().filter_map(|offset| self.held.get(offset));
        held.map(|granted| whole(&granted.extent)).collect()
    }

    /// Of `offsets`, how many are granted.
    fn count(&self, offsets: &[u64]) -> usize {
        offsets.iter().filter(|offset| self.held.contains_key(offset)).count()
    }
}

impl BlockGrants for ConnectionGrants {
    fn take(&mut self, block: &BlockRef) -> Option<ArenaExtent> {
        let held = whole(&self.held.get(&block.offset)?.extent);
        if block.len > held.len || block.generation != held.generation {
            return None;
        }
        self.held.remove(&block.offset).map(|granted| granted.extent)
    }

    fn put_back(&mut self, extent: ArenaExtent) {
        self.add(extent);
    }
}

/// The blocks that an operation names.
fn blocks_of<'a>(operation: &'a Operation<'_>) -> impl Iterator<Item = &'a BlockRef> {
    operation.actions.iter().flat_map(|action| {
        let blocks: &[BlockRef] = match action {
            Action::Put { data: ValueData::Blocks(blocks), .. }
            | Action::Write { data: ValueData::Blocks(blocks), .. }
            | Action::Append { data: ValueData::Blocks(blocks), .. } => blocks,
            _ => &[],
        };
        blocks.iter()
    })
}

/// Offsets of all blocks that a request names, each once.
fn named(operations: &[Operation<'_>]) -> Vec<u64> {
    let mut offsets: Vec<u64> =
        operations.iter().flat_map(blocks_of).map(|block| block.offset).collect();
    offsets.sort_unstable();
    offsets.dedup();
    offsets
}

#[cfg(test)]
mod tests {
    use samite_backend::Backend;
    use samite_backend::memory::MemoryBackend;

    use super::*;

    fn block(granted: BlockRef, len: u32) -> BlockRef {
        BlockRef { len, ..granted }
    }

    #[test]
    fn the_count_follows_every_way_a_block_can_go() {
        let arena = MemoryBackend::new(64 << 20, 1).unwrap().arena().unwrap();
        let count = Arc::new(AtomicU64::new(0));
        let granter = BlockGranter::new(arena, Arc::clone(&count));
        let held = || count.load(Ordering::Relaxed);
        let mut mine = granter.nothing();
        let blocks = granter.grant(&mut mine, 4);
        assert_eq!((blocks.len(), held()), (4, 4));

        let extent = mine.take(&block(blocks[0], 10)).unwrap();
        assert_eq!(held(), 3);
        assert!(mine.take(&block(blocks[0], 10)).is_none(), "taken already");
        assert!(mine.take(&block(blocks[1], BLOCK_LEN as u32 + 1)).is_none(), "beyond its end");
        let stale = BlockRef { generation: blocks[1].generation + 2, ..blocks[1] };
        assert!(mine.take(&stale).is_none(), "another generation");
        mine.put_back(extent);
        assert_eq!(held(), 4);

        let mut others = granter.nothing();
        let data = ValueData::Blocks(List::from_slice(&blocks[..2]));
        let put = Operation::new(0.into(), [Action::Put { key: b"k", data }]);
        mine.split_off(&put, &mut others);
        assert!(mine.take(&blocks[0]).is_none());
        drop(others.take(&blocks[0]));
        mine.merge(others);
        let offsets = named(std::slice::from_ref(&put));
        assert_eq!(mine.still_held(&offsets).to_vec(), [blocks[1]]);
        assert_eq!((mine.count(&offsets), held()), (1, 3));
        drop(mine);
        assert_eq!(held(), 0);
    }

    #[test]
    fn grants_are_bounded_for_each_and_for_all() {
        let arena = MemoryBackend::new(64 << 20, 1).unwrap().arena().unwrap();
        let all = arena.block_limit() as usize;
        let count = Arc::new(AtomicU64::new(0));
        let granter = BlockGranter::new(arena, count);
        let mut connections: Vec<ConnectionGrants> = (0..8).map(|_| granter.nothing()).collect();
        let granted: Vec<usize> =
            connections.iter_mut().map(|to| granter.grant(to, usize::MAX).len()).collect();
        assert!(granted.iter().all(|len| *len <= GRANTS_PER_CONNECTION));
        assert_eq!(granted.iter().sum::<usize>(), all / GRANTED_SHARE as usize);
    }

    #[test]
    fn used_blocks_are_replaced_and_unused_ones_named_again() {
        let arena = MemoryBackend::new(64 << 20, 1).unwrap().arena().unwrap();
        let count = Arc::new(AtomicU64::new(0));
        let granter = BlockGranter::new(arena, Arc::clone(&count));
        let mut table = BlockGrantTable::new(granter);
        let blocks = table.grant('a', 2).to_vec();
        let put = |blocks: &[BlockRef]| {
            let data = ValueData::Blocks(List::from_slice(blocks));
            [Operation::new(0.into(), [Action::Put { key: b"k", data }])]
        };
        let both = put(&blocks);
        assert_eq!(table.still_held('a', &both).to_vec(), blocks);
        assert!(table.still_held('b', &both).is_empty());
        let named = table.named('a', &both);
        drop(table.of('a').unwrap().take(&blocks[0]));
        let back = table.regrant('a', &named).to_vec();
        assert_eq!(back.len(), 2);
        assert!(
            back.contains(&blocks[1]) && back.iter().any(|block| block.offset != blocks[1].offset)
        );
        let elsewhere = table.split_off('a', both.iter());
        assert_eq!(table.still_held('a', &put(&blocks[1..])).to_vec(), []);
        table.merge('a', elsewhere);
        assert_eq!(table.still_held('a', &put(&blocks[1..])).to_vec(), [blocks[1]]);
        table.closed('a');
        assert_eq!(count.load(Ordering::Relaxed), 0);
        assert!(table.regrant('a', &named).is_empty());
    }
}
