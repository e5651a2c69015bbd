//! Bytes that change by themselves are never taken for what was written.
#![allow(clippy::unwrap_used, reason = "a test ends at what it does not expect")]

use std::ops::ControlFlow;
use std::sync::Arc;

use proptest::prelude::*;
use samite_backend::memory::MemoryBackend;
use samite_backend::{Arena, Backend, RecordStore, ScrubbedRecord, ValuePiece, WriteSource};
use samite_types::{DatasetId, ErrorKind, PartitionId, Version};

const KEY: &[u8] = b"key";

fn store() -> (Box<dyn RecordStore>, Arc<Arena>) {
    let mut backend = MemoryBackend::new(8 << 20, 1).unwrap();
    let arena = backend.arena().unwrap();
    (backend.open(DatasetId(1), PartitionId(0)).unwrap(), arena)
}

/// The value that a reader gets: `None` when it is told of damage.
fn read(store: &dyn RecordStore, offset: u32, len: u32, in_place: bool) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut out = |piece: ValuePiece| piece.append_to(&mut bytes);
    let found = match in_place {
        true => store.read_in_place(KEY, offset, len, &mut out),
        false => store.read(KEY, offset, len, &mut out),
    };
    if !in_place {
        let looked = store.look(KEY, offset, len, &mut |_| {});
        assert_eq!(looked.is_ok(), found.is_ok(), "damage is told of by all or none");
    }
    match found {
        Ok(Some(_)) => Some(bytes),
        Ok(None) => Some(Vec::new()),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            None
        }
    }
}

/// Whether all is right; everything has sums from then on.
fn scrub(store: &mut dyn RecordStore) -> bool {
    let mut is_right = true;
    let mut visit = |record: &ScrubbedRecord<'_>| {
        is_right &= record.content.is_some();
        ControlFlow::Continue(())
    };
    store.scrub(&[], &[], &mut visit).unwrap();
    is_right
}

#[test]
fn one_wrong_bit_is_found_wherever_it_is() {
    for len in [1, 100, 1024, 1025, 4096, 5000, 32_000, 65_536, 200_000] {
        let (mut store, _) = store();
        let value: Vec<u8> = (0..len).map(|at: usize| (at * 7) as u8).collect();
        for bit in [0, 5 * len as u64, 8 * len as u64 - 1] {
            store.put(KEY, WriteSource::Bytes(&value), Version(1)).unwrap();
            assert_eq!(read(&*store, 0, u32::MAX, false).as_deref(), Some(&*value));
            assert!(store.rot(KEY, bit));
            assert_eq!(read(&*store, 0, u32::MAX, false), None);
            assert_eq!(store.take_damaged(), [KEY.into()]);
            // A small read reads the bytes around it, too.
            let at = (bit / 8) as u32;
            assert_eq!(read(&*store, at, 1, false), None);
            let listed = store.scan(&[], &[], false, u32::MAX, &mut |_| ControlFlow::Continue(()));
            assert_eq!(listed.unwrap_err().kind(), ErrorKind::Corrupt);
            let in_place =
                |store: &dyn RecordStore| {
                    store.scan_in_place(&[], &[], false, u32::MAX, &mut |_, _| {
                        ControlFlow::Continue(())
                    })
                };
            assert_eq!(in_place(&*store).unwrap_err().kind(), ErrorKind::Corrupt);
            store.scan(&[], &[], false, 0, &mut |_| ControlFlow::Continue(())).unwrap();
            assert!(!scrub(&mut *store));
        }
    }
}

#[test]
fn blocks_of_clients_are_known_once_they_were_scrubbed() {
    let (mut store, arena) = store();
    let blocks = arena.grant(2).into_iter().map(|block| (block, 65_536)).collect();
    store.put(KEY, WriteSource::Blocks(blocks), Version(1)).unwrap();
    assert!(scrub(&mut *store));
    assert!(read(&*store, 0, u32::MAX, true).is_some());
    store.rot(KEY, 70_000 * 8);
    assert_eq!(read(&*store, 70_000, 10, false), None);
    assert!(read(&*store, 0, 65_536, false).is_some(), "the other block is as it was");
    // A reader that copies for itself is told a while later.
    assert!(read(&*store, 65_536, 65_536, true).is_some());
    arena.next_round();
    assert_eq!(read(&*store, 65_536, 65_536, true), None);
}

#[test]
fn the_same_changes_give_the_same_digest() {
    let digests = [false, true].map(|by_blocks| {
        let (mut store, arena) = store();
        match by_blocks {
            true => {
                let blocks = arena.grant(2).into_iter().map(|block| (block, 65_536)).collect();
                store.put(KEY, WriteSource::Blocks(blocks), Version(1)).unwrap();
            }
            false => {
                store.put(KEY, WriteSource::Bytes(&[0; 131_072]), Version(1)).unwrap();
            }
        }
        store.write(KEY, 300, WriteSource::Bytes(&[7; 9000]), Version(2)).unwrap();
        store.truncate(KEY, 100_000, Version(3)).unwrap();
        let mut found = None;
        let mut visit = |record: &ScrubbedRecord<'_>| {
            found = record.content;
            ControlFlow::Continue(())
        };
        store.scrub(&[], &[], &mut visit).unwrap();
        found.unwrap()
    });
    assert_eq!(digests[0], digests[1]);
}

#[derive(Clone, Debug)]
enum Op {
    Put(usize, u8),
    Blocks(u32),
    Write(u32, usize, u8),
    Append(usize, u8),
    Zeros(u32, u32),
    Truncate(u32),
    Scrub,
    Rot(u64),
    Read(u32, u32, bool),
}

fn op() -> impl Strategy<Value = Op> {
    let len = prop_oneof![Just(10), Just(1024), Just(4096), Just(70_000), 0..6000usize];
    let at = prop_oneof![Just(0), Just(4096), 0..9000u32, 60_000..140_000u32];
    prop_oneof![
        (len.clone(), any::<u8>()).prop_map(|(len, fill)| Op::Put(len, fill)),
        (1..65_537u32).prop_map(Op::Blocks),
        (at.clone(), len.clone(), any::<u8>()).prop_map(|(at, len, fill)| Op::Write(at, len, fill)),
        (len, any::<u8>()).prop_map(|(len, fill)| Op::Append(len, fill)),
        (at.clone(), 0..70_000u32).prop_map(|(at, len)| Op::Zeros(at, len)),
        at.clone().prop_map(Op::Truncate),
        Just(Op::Scrub),
        any::<u64>().prop_map(Op::Rot),
        (at, 0..70_000u32, any::<bool>())
            .prop_map(|(at, len, in_place)| Op::Read(at, len, in_place)),
    ]
}

/// The value as it should be, and whether some of it may be damaged.
#[derive(Default)]
struct Model {
    value: Vec<u8>,
    is_there: bool,
    is_rotten: bool,
}

impl Model {
    fn write(&mut self, at: usize, bytes: &[u8]) {
        self.is_there = true;
        self.value.resize(self.value.len().max(at + bytes.len()), 0);
        self.value[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn put(&mut self, value: Vec<u8>) {
        *self = Self { value, is_there: true, is_rotten: false };
    }
}

fn pattern(len: usize, fill: u8) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_mul(31) ^ fill).collect()
}

fn step(store: &mut dyn RecordStore, arena: &Arc<Arena>, model: &mut Model, op: Op) {
    let version = Version(1);
    match op {
        Op::Put(len, fill) => {
            let bytes = pattern(len, fill);
            store.put(KEY, WriteSource::Bytes(&bytes), version).unwrap();
            model.put(bytes);
        }
        Op::Blocks(filled) => {
            let blocks =
                arena.grant(1).into_iter().map(|block| (block, filled)).collect::<Vec<_>>();
            let bytes = blocks[0].0.as_slice()[..filled as usize].to_vec();
            store.put(KEY, WriteSource::Blocks(blocks), version).unwrap();
            model.put(bytes);
            assert!(scrub(store));
        }
        Op::Write(at, len, fill) => {
            let bytes = pattern(len, fill);
            store.write(KEY, at, WriteSource::Bytes(&bytes), version).unwrap();
            model.write(at as usize, &bytes);
        }
        Op::Append(len, fill) => {
            let (at, bytes) = (model.value.len(), pattern(len, fill));
            store.write(KEY, at as u32, WriteSource::Bytes(&bytes), version).unwrap();
            model.write(at, &bytes);
        }
        Op::Zeros(at, len) => {
            store.write(KEY, at, WriteSource::Zeros(len), version).unwrap();
            model.write(at as usize, &vec![0; len as usize]);
        }
        Op::Truncate(len) => {
            if store.truncate(KEY, len, version).unwrap().is_some() {
                model.value.resize(len as usize, 0);
            }
        }
        Op::Scrub => assert!(scrub(store) || model.is_rotten),
        // Damage to a value that was never summed cannot be found: that is what scrubbing is for.
        Op::Rot(random) => {
            if scrub(store) {
                model.is_rotten |= store.rot(KEY, random);
            }
        }
        Op::Read(at, len, in_place) => {
            arena.next_round();
            let end = model.value.len().min(at as usize + len as usize);
            let right = &model.value[end.min(at as usize)..end];
            match read(store, at, len, in_place) {
                Some(found) => assert!(found == right, "wrong bytes"),
                None => assert!(model.is_rotten, "told of damage that is none"),
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn what_is_read_is_right_or_known_to_be_damaged(ops in prop::collection::vec(op(), 1..40)) {
        let (mut store, arena) = store();
        let mut model = Model::default();
        for op in ops {
            step(&mut *store, &arena, &mut model, op);
            let Some(all) = read(&*store, 0, u32::MAX, false) else {
                prop_assert!(model.is_rotten);
                continue;
            };
            prop_assert!(all == model.value || !model.is_there);
        }
    }
}
