//! The arena under the memory backend: generations, grants, threads, fragmentation.

use std::sync::mpsc;

use rustix::fs::SeekFrom;
use samite_arena::layout::ArenaLayout;
use samite_backend::memory::MemoryBackend;
use samite_backend::{Arena, ArenaExtent, Backend, RecordStore, ValuePiece, WriteSource};
use samite_types::{DatasetId, ErrorKind, PartitionId, Version};
use samite_wire::limits::BLOCK_LEN;
use samite_wire::op::BlockRef;

const BLOCK: u32 = BLOCK_LEN as u32;

fn target(capacity_bytes: u64) -> (MemoryBackend, Box<dyn RecordStore>) {
    let mut backend = MemoryBackend::new(capacity_bytes, 2).expect("memory target");
    let store = backend.open(DatasetId(1), PartitionId(1)).expect("open");
    (backend, store)
}

fn pieces(store: &dyn RecordStore, key: &[u8]) -> Vec<ValuePiece> {
    let mut pieces = Vec::new();
    store.read(key, 0, u32::MAX, &mut |piece| pieces.push(piece)).expect("read");
    pieces
}

/// The first piece of a record as a reply would name it.
fn reference(store: &dyn RecordStore, key: &[u8]) -> BlockRef {
    match pieces(store, key).first() {
        Some(ValuePiece::Extent { extent, offset, len }) => extent.block_ref(*offset..offset + len),
        other => panic!("not in the arena: {other:?}"),
    }
}

/// The memory that a client on the host sees: through the memory file, not through our mapping.
struct Peer<'a> {
    arena: &'a Arena,
    layout: ArenaLayout,
}

impl<'a> Peer<'a> {
    fn new(arena: &'a Arena) -> Self {
        let mut header = [0; samite_arena::layout::HEADER_LEN];
        rustix::io::pread(arena.fd(), &mut header, 0).expect("pread");
        let len = rustix::fs::fstat(arena.fd()).expect("fstat").st_size;
        let layout = ArenaLayout::read(&header, len.unsigned_abs()).expect("a sound header");
        Self { arena, layout }
    }

    fn generation(&self, block: &BlockRef) -> u32 {
        let index = self.layout.block_of(block.offset, block.len).expect("within one block");
        let at = self.layout.generation_offset(index).expect("a block");
        let mut raw = [0; 4];
        rustix::io::pread(self.arena.fd(), &mut raw, at as u64).expect("pread");
        u32::from_ne_bytes(raw)
    }

    fn copy_out(&self, block: &BlockRef) -> Option<Vec<u8>> {
        let mut bytes = vec![0; block.len as usize];
        rustix::io::pread(self.arena.fd(), &mut bytes, block.offset).expect("pread");
        (self.generation(block) == block.generation).then_some(bytes)
    }
}

#[test]
fn a_reference_is_good_until_its_bytes_change() {
    for len in [2000, 30_000, BLOCK] {
        let (backend, mut store) = target(4 << 20);
        let arena = backend.arena().expect("arena");
        let peer = Peer::new(&arena);
        let value = vec![1; len as usize];
        store.put(b"k", WriteSource::Bytes(&value), Version(1)).expect("put");
        let first = reference(&*store, b"k");
        assert_eq!(first.generation % 2, 0, "odd while at rest");
        assert_eq!(peer.copy_out(&first), Some(value));
        store.write(b"k", 5, WriteSource::Bytes(b"new"), Version(2)).expect("write");
        let second = reference(&*store, b"k");
        assert_eq!(second.offset, first.offset, "an unshared extent is written in place");
        assert_eq!(peer.copy_out(&first), None, "a stale reference is trusted");
        assert!(peer.copy_out(&second).is_some());
        store.delete(b"k").expect("delete");
        assert!(peer.copy_out(&second).is_some(), "freed, and not used again yet");
        store.put(b"j", WriteSource::Bytes(&vec![2; len as usize]), Version(3)).expect("put");
        assert_eq!(reference(&*store, b"j").offset, first.offset, "freed memory is used first");
        assert_eq!(peer.copy_out(&second), None, "memory used again keeps its generation");
    }
}

#[test]
fn a_granted_block_becomes_the_record_without_a_copy() {
    let (backend, mut store) = target(4 << 20);
    let arena = backend.arena().expect("arena");
    let peer = Peer::new(&arena);
    let granted = arena.grant(2);
    let refs: Vec<BlockRef> = granted.iter().map(|extent| extent.block_ref(0..BLOCK)).collect();
    for (block, fill) in refs.iter().zip([7, 8]) {
        assert_eq!(block.generation % 2, 1, "even while the client fills it");
        rustix::io::pwrite(arena.fd(), &[fill; BLOCK_LEN], block.offset).expect("pwrite");
    }
    let used = backend.usage().used;
    let lens = [BLOCK, 40_000];
    let source = WriteSource::Blocks(granted.into_iter().zip(lens).collect());
    store.put(b"k", source, Version(1)).expect("put");
    assert!(backend.usage().used < used + 1000, "memory was taken for a copy");
    assert_eq!(reference(&*store, b"k").offset, refs[0].offset);
    assert_eq!(reference(&*store, b"k").generation % 2, 0);
    assert_eq!(peer.copy_out(&refs[0]), None, "the reference of the grant still counts");
    let found: Vec<u8> =
        pieces(&*store, b"k").iter().filter_map(ValuePiece::as_bytes).flatten().copied().collect();
    assert_eq!(found, [vec![7; BLOCK_LEN], vec![8; 40_000]].concat());
}

#[test]
fn a_nearly_full_target_grants_what_it_can() {
    let (backend, _store) = target(1 << 20);
    let arena = backend.arena().expect("arena");
    let granted = arena.grant(100);
    assert_eq!(granted.len(), 15, "the reserve is not granted");
    assert!(arena.grant(1).is_empty());
    drop(granted);
    assert_eq!(backend.usage().used, 0);
}

#[test]
fn granted_blocks_have_their_pages() {
    let (backend, mut store) = target(256 << 20);
    let arena = backend.arena().expect("arena");
    // Part of a block, which is given back.
    store.put(b"k", WriteSource::Bytes(&vec![1; 33_000]), Version(1)).expect("put");
    store.delete(b"k").expect("delete");
    // Faster than the background thread.
    let granted = arena.grant(3000);
    assert_eq!(granted.len(), 3000);
    let offsets = granted.iter().map(ArenaExtent::offset);
    let (first, last) = (offsets.clone().min().expect("some"), offsets.max().expect("some"));
    // They lie side by side.
    let hole = rustix::fs::seek(arena.fd(), SeekFrom::Hole(first)).expect("seek");
    assert!(hole >= last + u64::from(BLOCK), "a hole at {hole} within {first}..{last}");
}

#[test]
fn bad_capacities_are_refused_with_a_reason() {
    for (capacity, shards) in [(0, 1), (1000, 1), (u64::MAX, 1), (1 << 20, 0), (1 << 20, 65)] {
        let error = MemoryBackend::new(capacity, shards).expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.message().contains("memory target"), "{error}");
    }
}

#[test]
fn pages_are_put_in_place_in_the_background() {
    let (backend, _store) = target(8 << 20);
    for _ in 0..2000 {
        if backend.usage().populated == 8 << 20 {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    panic!("not populated: {:?}", backend.usage());
}

#[test]
fn extents_may_be_dropped_on_any_thread() {
    const THREADS: usize = 4;
    let (backend, mut store) = target(16 << 20);
    let lens = [1500, 5000, 33_000, BLOCK, 200_000];
    std::thread::scope(|scope| {
        let senders: Vec<mpsc::SyncSender<(u8, Vec<ValuePiece>)>> = (0..THREADS)
            .map(|_| {
                let (sender, receiver) = mpsc::sync_channel::<(u8, Vec<ValuePiece>)>(8);
                scope.spawn(move || {
                    for (fill, held) in receiver {
                        let bytes = held.iter().filter_map(ValuePiece::as_bytes).flatten();
                        assert!(bytes.clone().all(|byte| *byte == fill), "a held piece changed");
                    }
                });
                sender
            })
            .collect();
        for round in 0..2000_usize {
            let (key, len) = ([(round % 7) as u8], lens[round % lens.len()]);
            let fill = round as u8;
            let value = vec![fill; len as usize];
            store.put(&key, WriteSource::Bytes(&value), Version(1)).expect("put");
            senders[round % THREADS].send((fill, pieces(&*store, &key))).expect("send");
            if round % 3 == 0 {
                store.delete(&key).expect("delete");
            }
        }
    });
    drop(store);
    assert_eq!(backend.usage().used, 0);
}

#[test]
fn shards_share_one_limit() {
    let (one, mut first) = target(1 << 20);
    let mut two = one.clone();
    let mut second = two.open(DatasetId(1), PartitionId(2)).expect("open");
    first.put(b"k", WriteSource::Bytes(&[1; 600_000]), Version(1)).expect("put");
    let refused =
        second.put(b"k", WriteSource::Bytes(&[2; 600_000]), Version(1)).expect_err("full");
    assert_eq!(refused.kind(), ErrorKind::NoSpace);
    assert_eq!(one.usage(), two.usage());
    first.delete(b"k").expect("delete");
    second.put(b"k", WriteSource::Bytes(&[2; 600_000]), Version(1)).expect("put");
}

/// Numbers without pattern (splitmix64), the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 31)) % limit
    }
}

#[test]
fn churn_does_not_eat_the_target() {
    let (backend, mut store) = target(64 << 20);
    let mut numbers = Numbers(1);
    let mut live = std::collections::BTreeMap::<u64, u64>::new();
    let value = vec![1; 1 << 20];
    for round in 0..20_000 {
        let key = numbers.below(2000);
        // Lengths of all magnitudes, as many short as long.
        let magnitude = 6 + numbers.below(14);
        let len = numbers.below(1 << magnitude);
        store
            .put(&key.to_be_bytes(), WriteSource::Bytes(&value[..len as usize]), Version(1))
            .unwrap_or_else(|error| panic!("round {round}: {error}"));
        live.insert(key, len);
        let bytes: u64 = live.values().sum();
        let used = backend.usage().used;
        assert!(used < 2 * bytes + (2 << 20), "round {round}: {used} B used for {bytes} B");
        if bytes > 24 << 20 {
            for key in live.keys().copied().step_by(3).collect::<Vec<u64>>() {
                store.delete(&key.to_be_bytes()).expect("delete");
                live.remove(&key);
            }
        }
    }
    for key in live.keys() {
        store.delete(&key.to_be_bytes()).expect("delete");
    }
    assert_eq!(backend.usage().used, 0);
    // All that is outside of the reserve.
    for key in 0..62_u64 {
        store
            .put(&key.to_be_bytes(), WriteSource::Bytes(&value), Version(2))
            .expect("all of it is free");
    }
}

#[test]
fn what_is_held_makes_a_change_go_elsewhere() {
    let (_backend, mut store) = target(4 << 20);
    store.put(b"k", WriteSource::Bytes(&[1; 100_000]), Version(1)).expect("put");
    let held = pieces(&*store, b"k");
    store.write(b"k", 70_000, WriteSource::Bytes(&[2; 10]), Version(2)).expect("write");
    let at = |pieces: &[ValuePiece], index: usize| match &pieces[index] {
        ValuePiece::Extent { extent, .. } => ArenaExtent::offset(extent),
        other => panic!("not in the arena: {other:?}"),
    };
    let now = pieces(&*store, b"k");
    assert_eq!(at(&held, 0), at(&now, 0), "an untouched part moved");
    assert_ne!(at(&held, 1), at(&now, 1), "a held part was changed");
}

/// Bytes of the memory file for which the system has found pages.
fn pages_len(arena: &Arena) -> u64 {
    rustix::fs::fstat(arena.fd()).expect("fstat").st_blocks.unsigned_abs() * 512
}

#[test]
fn a_target_grows_and_shrinks_under_its_records() {
    const SMALL: u64 = 8 << 20;
    const LARGE: u64 = 48 << 20;
    let (backend, mut store) = target(SMALL);
    let arena = backend.arena().expect("arena");
    let value = |number: u32| vec![number as u8; BLOCK_LEN];
    let key = |number: u32| number.to_le_bytes();
    let fill = |store: &mut Box<dyn RecordStore>, from: u32| {
        let fits = |number: &u32| {
            let value = value(*number);
            store.put(&key(*number), WriteSource::Bytes(&value), Version(1)).is_ok()
        };
        (from..).take_while(fits).count() as u32 + from
    };
    let check = |store: &dyn RecordStore, count: u32| {
        for number in 0..count {
            let mut found = Vec::new();
            for piece in pieces(store, &key(number)) {
                piece.append_to(&mut found);
            }
            assert!(found == value(number), "record {number}");
        }
    };
    let small = fill(&mut store, 0);
    for _ in 0..3 {
        backend.resize(LARGE).expect("grows");
        assert_eq!(backend.usage().capacity, LARGE);
        let large = fill(&mut store, small);
        assert!(large > 5 * small, "{large} of {small}");
        check(&*store, large);
        let refused = backend.resize(SMALL).expect_err("more is in use");
        assert_eq!(refused.kind(), ErrorKind::Conflict);
        assert!(refused.message().contains("8.0 MiB") && refused.message().contains("in use"));
        for number in small..large {
            store.delete(&key(number)).expect("delete");
        }
        backend.resize(SMALL).expect("shrinks");
        let most = SMALL + arena.layout().blocks_offset();
        assert!(pages_len(&arena) <= most, "{} of {most}", pages_len(&arena));
        assert_eq!(fill(&mut store, small), small, "it is full again");
        check(&*store, small);
    }
    let more = backend.resize(u64::MAX).expect_err("more than there is");
    assert_eq!(more.kind(), ErrorKind::Invalid);
    assert_eq!(backend.resize(1).expect_err("too small").kind(), ErrorKind::Invalid);
}
