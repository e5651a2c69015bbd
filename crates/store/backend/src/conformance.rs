//! Conformance: the suite that each backend passes.
//!
//! [`run`] panics at the first thing that is not so, naming it; [`report`] says how each part went.
//! Each part has a fresh target.

mod report;
mod scrub;

mod remembering;

use std::ops::ControlFlow;

use samite_types::{DatasetId, ErrorKind, PartitionId, Version};
use samite_wire::op::BlockRef;

use crate::quota::QuotaLimit;
use crate::record::{PlannedChange, ScannedRecord};
use crate::store::RecordStore;
use crate::target::Backend;
use crate::value_piece::{ValuePiece, WriteSource};
use report::ConformancePart;
pub use report::{PartOutcome, PartReport, report};

pub use remembering::{ReopenTarget, run_remembering};

/// Runs the suite against the targets that `make` makes. They hold at most a few dozen MiB: a part of the suite fills one.
///
/// # Panics
/// If the backend does not conform.
pub fn run(make: &dyn Fn() -> Box<dyn Backend>) {
    for part in &PARTS {
        part.check(make().as_mut());
    }
}

const PARTS: [ConformancePart; 17] = [
    ConformancePart::of_values("values read back", values_of_every_length_read_back),
    ConformancePart::of_all("versions and lengths", versions_and_lengths_are_told),
    ConformancePart::of_values("writes within values", writes_land_where_they_should),
    ConformancePart::of_values("cut bytes do not come back", cut_bytes_do_not_come_back),
    ConformancePart::of_values("what was read stands still", what_was_read_stands_still),
    ConformancePart::of_all("renames", a_renamed_record_keeps_its_value_and_takes_no_space),
    ConformancePart::of_all("scans", scans_are_ordered_and_bounded),
    ConformancePart::of_all("scans in place", scans_in_place_refer_to_what_reads_return),
    ConformancePart::of_all("scrubs", scrub::a_scrub_meets_every_record_in_order),
    ConformancePart::of_damage("damage is found", scrub::damage_is_found),
    ConformancePart::of_mapping("values in the arena", large_values_lie_in_the_arena),
    ConformancePart::of_all("partitions", partitions_are_apart_and_give_back_what_they_took),
    ConformancePart::of_all("full target", a_full_target_refuses_and_recovers),
    ConformancePart::of_all("reservations", a_reservation_is_all_or_nothing),
    ConformancePart::of_all("kept room", what_is_kept_is_found_on_a_full_target),
    ConformancePart::of_all("reserved budget", only_what_makes_room_takes_the_reserve),
    ConformancePart::of_all("charges", what_records_are_decides_what_changes_take_at_most),
];

/// Lengths at which backends change the way they keep a value, and their neighbours.
const LENS: [u32; 17] = [
    0,
    1,
    100,
    1023,
    1024,
    1025,
    4096,
    21_824,
    32_768,
    32_769,
    65_535,
    65_536,
    65_537,
    131_072,
    200_000,
    (1 << 20) - 1,
    1 << 20,
];

fn open(backend: &mut dyn Backend) -> Box<dyn RecordStore> {
    backend.open(DatasetId(1), PartitionId(1)).expect("open")
}

/// Bytes that differ from place to place.
fn pattern(len: u32, seed: u32) -> Vec<u8> {
    (0..len).map(|at| (at ^ (at >> 8) ^ seed) as u8 | 1).collect()
}

fn read(store: &dyn RecordStore, key: &[u8], offset: u32, len: u32) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = store.read(key, offset, len, &mut |piece| piece.append_to(&mut bytes));
    let mut seen = Vec::new();
    let looked = store.look(key, offset, len, &mut |stretch| stretch.append_to(&mut seen));
    assert_eq!(read.as_ref().expect("read"), looked.as_ref().expect("look"));
    assert!(seen == bytes, "other bytes are seen than read");
    read.ok().flatten().map(|_| bytes)
}

/// Compares a read with what was written; a backend that stores no values gives as many zeros.
fn same(keeps_values: bool, found: &[u8], expected: &[u8], what: &str) {
    if keeps_values {
        assert!(found == expected, "{what}: other bytes than written");
    } else {
        assert_eq!(found.len(), expected.len(), "{what}: length");
        assert!(found.iter().all(|byte| *byte == 0), "{what}: not zeros");
    }
}

fn values_of_every_length_read_back(backend: &mut dyn Backend) {
    let keeps = backend.offers().values;
    let mut store = open(backend);
    for (old, new) in LENS.iter().flat_map(|old| LENS.iter().map(move |new| (*old, *new))) {
        for len in [old, new] {
            let value = pattern(len, 7);
            let changed = store.put(b"k", WriteSource::Bytes(&value), Version(1)).expect("put");
            assert_eq!(changed.len, len);
            same(keeps, &read(&*store, b"k", 0, u32::MAX).expect("record"), &value, "whole value");
            for (offset, count) in [(0, 10), (len / 2, len), (len, 5), (len + 1, 5), (65_530, 12)] {
                let from = offset.min(len) as usize;
                let to = offset.saturating_add(count).min(len).max(offset.min(len)) as usize;
                let found = read(&*store, b"k", offset, count).expect("record");
                same(keeps, &found, &value[from..to], "part of a value");
            }
        }
    }
    let zeros = store.put(b"z", WriteSource::Zeros(300_000), Version(2)).expect("put zeros");
    assert_eq!(zeros.len, 300_000);
    assert!(read(&*store, b"z", 0, u32::MAX).expect("record").iter().all(|byte| *byte == 0));
}

fn versions_and_lengths_are_told(backend: &mut dyn Backend) {
    let mut store = open(backend);
    assert_eq!(store.meta(b"a").expect("meta"), None);
    assert!(read(&*store, b"a", 0, 1).is_none());
    assert!(store.put(b"a", WriteSource::Bytes(b"one"), Version(3)).expect("put").created);
    assert!(!store.put(b"a", WriteSource::Bytes(b"three"), Version(4)).expect("put").created);
    let meta = store.meta(b"a").expect("meta").expect("record");
    assert_eq!((meta.version, meta.len), (Version(4), 5));
    let changed = store.write(b"a", 10, WriteSource::Bytes(b"x"), Version(5)).expect("write");
    assert_eq!((changed.len, changed.created), (11, false));
    assert!(store.write(b"b", 0, WriteSource::Bytes(b""), Version(6)).expect("write").created);
    assert_eq!(
        store.truncate(b"a", 4, Version(7)).expect("cut").map(|changed| changed.len),
        Some(4)
    );
    assert_eq!(store.truncate(b"none", 4, Version(8)).expect("cut"), None);
    let meta = store.meta(b"a").expect("meta").expect("record");
    assert_eq!((meta.version, meta.len), (Version(7), 4));
    assert_eq!(store.record_count(), 2);
    assert!(store.delete(b"a").expect("delete"));
    assert!(!store.delete(b"a").expect("delete"));
    assert_eq!(store.record_count(), 1);
}

fn writes_land_where_they_should(backend: &mut dyn Backend) {
    let keeps = backend.offers().values;
    let mut store = open(backend);
    for start in LENS {
        let mut expected = pattern(start, 1);
        store.put(b"k", WriteSource::Bytes(&expected), Version(1)).expect("put");
        for (offset, len) in [(0, 1), (50, 2000), (1000, 40), (65_000, 1000), (140_000, 70_000)] {
            let bytes = pattern(len, offset);
            store.write(b"k", offset, WriteSource::Bytes(&bytes), Version(2)).expect("write");
            let end = (offset + len) as usize;
            expected.resize(expected.len().max(end), 0);
            expected[offset as usize..end].copy_from_slice(&bytes);
            same(
                keeps,
                &read(&*store, b"k", 0, u32::MAX).expect("record"),
                &expected,
                "after write",
            );
        }
        for (offset, len) in [(10, 10), (60_000, 80_000), (0, 65_536), (200_000, 300_000)] {
            store.write(b"k", offset, WriteSource::Zeros(len), Version(3)).expect("write zeros");
            let end = (offset + len) as usize;
            expected.resize(expected.len().max(end), 0);
            expected[offset as usize..end].fill(0);
            same(
                keeps,
                &read(&*store, b"k", 0, u32::MAX).expect("record"),
                &expected,
                "after zeros",
            );
        }
    }
}

fn cut_bytes_do_not_come_back(backend: &mut dyn Backend) {
    let keeps = backend.offers().values;
    let mut store = open(backend);
    for (start, cut) in LENS.iter().flat_map(|start| LENS.iter().map(move |cut| (*start, *cut))) {
        let mut expected = pattern(start, 3);
        store.put(b"k", WriteSource::Bytes(&expected), Version(1)).expect("put");
        for len in [cut, start.max(cut)] {
            store.truncate(b"k", len, Version(2)).expect("truncate").expect("record");
            expected.resize(len as usize, 0);
            same(keeps, &read(&*store, b"k", 0, u32::MAX).expect("record"), &expected, "after cut");
        }
    }
}

fn what_was_read_stands_still(backend: &mut dyn Backend) {
    let keeps = backend.offers().values;
    let mut store = open(backend);
    for len in LENS {
        let value = pattern(len, 5);
        store.put(b"k", WriteSource::Bytes(&value), Version(1)).expect("put");
        let mut held: Vec<ValuePiece> = Vec::new();
        store.read(b"k", 0, u32::MAX, &mut |piece| held.push(piece)).expect("read");
        store.write(b"k", len / 2, WriteSource::Bytes(&[0; 10]), Version(2)).expect("write");
        store.put(b"k", WriteSource::Bytes(&pattern(len, 6)), Version(3)).expect("put");
        store.truncate(b"k", len / 3, Version(4)).expect("truncate");
        store.delete(b"k").expect("delete");
        store.put(b"other", WriteSource::Bytes(&pattern(len, 9)), Version(5)).expect("put");
        let mut bytes = Vec::new();
        held.iter().for_each(|piece| piece.append_to(&mut bytes));
        same(keeps, &bytes, &value, "held while the record changed");
    }
}

fn a_renamed_record_keeps_its_value_and_takes_no_space(backend: &mut dyn Backend) {
    let keeps = backend.offers().values;
    let mut store = open(backend);
    for len in LENS {
        let value = pattern(len, len);
        store.put(b"long name", WriteSource::Bytes(&value), Version(1)).expect("put");
        store.put(b"other", WriteSource::Bytes(b"goes"), Version(2)).expect("put");
        let used = backend.usage().used;
        assert!(store.rename(b"long name", b"other", Version(3)).expect("rename"), "it is there");
        assert!(backend.usage().used <= used, "renaming takes space");
        assert!(store.meta(b"long name").expect("meta").is_none(), "the old key stays");
        let meta = store.meta(b"other").expect("meta").expect("the new key");
        assert_eq!((meta.version, meta.len), (Version(3), len));
        same(keeps, &read(&*store, b"other", 0, u32::MAX).expect("read"), &value, "renamed");
        assert!(store.rename(b"other", b"other", Version(4)).expect("rename"), "to itself");
        assert!(!store.rename(b"none", b"x", Version(5)).expect("rename"), "what is not there");
        assert_eq!(store.record_count(), 1);
        store.delete(b"other").expect("delete");
    }
    drop(store);
    assert_eq!(backend.usage().used, 0, "space is left over");
}

/// Clients copy them from there.
fn large_values_lie_in_the_arena(backend: &mut dyn Backend) {
    let arena = backend.arena().expect("an arena that clients map");
    let mut store = open(backend);
    for len in LENS.into_iter().filter(|len| *len >= 4096) {
        let value = pattern(len, 8);
        store.put(b"k", WriteSource::Bytes(&value), Version(1)).expect("put");
        let mut bytes = Vec::new();
        let mut see = |piece: ValuePiece| {
            let ValuePiece::Extent { extent, offset, len: piece_len } = &piece else {
                // The end of a value may be short.
                assert!(piece.len() < 4096, "{len} B: a piece that is not in the arena");
                return piece.append_to(&mut bytes);
            };
            // As a client finds them, which has the same file.
            let (start, mut found) = (bytes.len(), *piece_len as usize);
            bytes.resize(start + found, 0);
            let at = extent.offset() + u64::from(*offset);
            found -= rustix::io::pread(arena.fd(), &mut bytes[start..], at).expect("pread");
            assert_eq!(found, 0, "{len} B: beyond the arena");
        };
        store.read_in_place(b"k", 0, u32::MAX, &mut see).expect("read").expect("record");
        assert!(bytes == value, "{len} B: other bytes than written");
    }
}

fn listed(store: &dyn RecordStore, prefix: &[u8], after: &[u8], reverse: bool) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    let mut visit = |record: &ScannedRecord<'_>| {
        keys.push(record.key.to_vec());
        ControlFlow::Continue(())
    };
    store.scan(prefix, after, reverse, 0, &mut visit).expect("scan");
    keys
}

fn scans_are_ordered_and_bounded(backend: &mut dyn Backend) {
    let keeps = backend.offers().values;
    let mut store = open(backend);
    let long = [b'm'; 4000];
    let mut keys: Vec<&[u8]> = vec![
        b"a",
        b"b",
        b"b\0",
        b"ba",
        b"bb",
        b"b\xff",
        b"b\xff\xff",
        b"c",
        b"\xff",
        b"\xff\xff",
        &long,
    ];
    for key in &keys {
        store.put(key, WriteSource::Bytes(key), Version(1)).expect("put");
    }
    keys.sort_unstable();
    let bounds =
        keys.iter().copied().chain([&b""[..], b"b\x01", b"bz", b"0", b"d", b"\xff\xff\xff"]);
    for prefix in [&b""[..], b"b", b"b\xff", b"\xff", b"\xff\xff\xff", b"m", b"zz"] {
        for after in bounds.clone() {
            let with_prefix = || keys.iter().filter(|key| key.starts_with(prefix));
            let forwards: Vec<_> = with_prefix().filter(|key| **key > after).copied().collect();
            assert_eq!(listed(&*store, prefix, after, false), forwards, "after {after:?}");
            let before = |key: &&&[u8]| after.is_empty() || **key < after;
            let backwards: Vec<_> = with_prefix().rev().filter(before).copied().collect();
            assert_eq!(listed(&*store, prefix, after, true), backwards, "before {after:?}");
        }
    }
    let mut seen = 0;
    let mut visit = |record: &ScannedRecord<'_>| {
        same(keeps, record.value, &record.key[..record.key.len().min(2)], "head of a value");
        assert_eq!(record.meta.len as usize, record.key.len());
        seen += 1;
        if seen == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    store.scan(b"", b"", false, 2, &mut visit).expect("scan");
    assert_eq!(seen, 3, "a scan goes on after a break");
}

fn scans_in_place_refer_to_what_reads_return(backend: &mut dyn Backend) {
    let keeps = backend.offers().values;
    let mut store = open(backend);
    for (len, index) in LENS.iter().zip(0_u8..) {
        store.put(&[b'a', index], WriteSource::Bytes(&pattern(*len, 3)), Version(1)).expect("put");
        store.put(&[b'b', index], WriteSource::Bytes(b"start"), Version(2)).expect("put");
        store.write(&[b'b', index], *len, WriteSource::Bytes(b"end"), Version(3)).expect("write");
        store.put(&[b'c', index], WriteSource::Zeros(*len), Version(4)).expect("put");
    }
    let (mut keys, mut referred) = (Vec::new(), 0);
    let mut visit = |record: &ScannedRecord<'_>, blocks: &[BlockRef]| {
        keys.push(record.key.to_vec());
        assert_eq!(store.meta(record.key).expect("meta"), Some(record.meta));
        let whole = read(&*store, record.key, 0, u32::MAX).expect("record");
        if blocks.is_empty() {
            same(keeps, record.value, &whole[..whole.len().min(2000)], "head of a value");
            return ControlFlow::Continue(());
        }
        let mut pieces = Vec::new();
        let found = store.read_in_place(record.key, 0, u32::MAX, &mut |piece| match piece {
            ValuePiece::Extent { extent, offset, len } => {
                pieces.push(extent.block_ref(offset..offset + len));
            }
            other => panic!("{other:?} of a value that is referred to"),
        });
        assert_eq!(found.expect("read"), Some(record.meta));
        assert_eq!((blocks, record.value.len()), (&*pieces, 0));
        referred += 1;
        ControlFlow::Continue(())
    };
    store.scan_in_place(b"", b"a\x02", false, 2000, &mut visit).expect("scan");
    assert!(keys.len() == 3 * LENS.len() - 3 && keys.is_sorted() && keys[0] == b"a\x03");
    assert!(backend.arena().is_none() || referred > LENS.len(), "{referred} in place");
    let mut last = None;
    let mut visit = |record: &ScannedRecord<'_>, _: &[BlockRef]| {
        last = Some(record.key.to_vec());
        ControlFlow::Break(())
    };
    store.scan_in_place(b"b", b"", true, 0, &mut visit).expect("scan");
    assert_eq!(last, Some(vec![b'b', LENS.len() as u8 - 1]));
}

fn partitions_are_apart_and_give_back_what_they_took(backend: &mut dyn Backend) {
    let before = backend.usage().used;
    let mut one = backend.open(DatasetId(1), PartitionId(1)).expect("open");
    let two = backend.open(DatasetId(1), PartitionId(2)).expect("open");
    for len in LENS {
        one.put(format!("k{len}").as_bytes(), WriteSource::Bytes(&pattern(len, 0)), Version(1))
            .expect("put");
    }
    assert_eq!(two.record_count(), 0);
    assert_eq!(two.meta(b"k1").expect("meta"), None);
    assert!(backend.usage().used > before);
    drop(one);
    drop(two);
    assert_eq!(backend.usage().used, before, "dropping a partition leaves memory behind");
}

/// Fills the target with records of `len` bytes under long keys; returns how many there are.
fn fill(store: &mut dyn RecordStore, len: u32) -> u32 {
    let value = pattern(len, 1);
    for index in 0.. {
        match store.put(&long_key(index), WriteSource::Bytes(&value), Version(1)) {
            Ok(_) => {}
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace);
                return index;
            }
        }
    }
    unreachable!("a target is finite")
}

fn long_key(index: u32) -> Vec<u8> {
    let mut key = vec![b'k'; 2000];
    key.extend(index.to_be_bytes());
    key
}

fn a_full_target_refuses_and_recovers(backend: &mut dyn Backend) {
    let keeps = backend.offers().values;
    let empty = backend.usage().used;
    for len in [100, 3000, 50_000, 1 << 20] {
        let mut store = open(backend);
        let count = fill(&mut *store, len);
        assert!(count > 0);
        let usage = backend.usage();
        assert!(usage.used <= usage.capacity);
        assert_eq!(store.record_count(), u64::from(count), "a refused record left a trace");
        // Changes that need no space still work.
        let last = long_key(count - 1);
        store
            .write(&last, 10, WriteSource::Bytes(b"in place"), Version(2))
            .expect("write in place");
        store.truncate(&last, 5, Version(3)).expect("truncate");
        assert_eq!(read(&*store, &last, 0, 100).expect("record").len(), 5);
        // Deleted records make room, as often as wanted.
        for round in 0..3 {
            for index in 0..count / 2 {
                assert!(store.delete(&long_key(index)).expect("delete"));
            }
            let value = pattern(len, round);
            for index in 0..count / 2 {
                store
                    .put(&long_key(index), WriteSource::Bytes(&value), Version(4))
                    .expect("put again");
            }
            let found = read(&*store, &long_key(0), 0, u32::MAX);
            same(keeps, &found.unwrap_or(value.clone()), &value, "after a full target");
        }
        drop(store);
        assert_eq!(backend.usage().used, empty);
    }
}

fn a_reservation_is_all_or_nothing(backend: &mut dyn Backend) {
    let mut store = open(backend);
    let count = fill(&mut *store, 2000);
    let freed = (count / 4).max(1);
    for index in 0..freed {
        store.delete(&long_key(index)).expect("delete");
    }
    let used = backend.usage().used;
    let value = pattern(2000, 2);
    let source = WriteSource::Bytes(&value);
    let keys: Vec<_> = (count..count + freed + 2).map(long_key).collect();
    let planned = |count: usize| -> Vec<_> {
        keys[..count].iter().map(|key| PlannedChange::Put { key, source: &source }).collect()
    };
    let refused = store.reserve(&planned(keys.len())).expect_err("more than there is room for");
    assert_eq!(refused.kind(), ErrorKind::NoSpace);
    assert_eq!(backend.usage().used, used, "a refused reservation keeps something");
    let fits = (freed as usize / 2).max(1);
    store.reserve(&planned(fits)).expect("reserve");
    for key in &keys[..fits] {
        store.put(key, WriteSource::Bytes(&value), Version(9)).expect("a reserved put");
    }
    store.settle();
    assert_eq!(store.record_count(), u64::from(count - freed) + fits as u64);
}

fn what_is_kept_is_found_on_a_full_target(backend: &mut dyn Backend) {
    let (mut store, mut other) = (open(backend), backend.open(DatasetId(1), PartitionId(2)));
    let other = other.as_mut().expect("open");
    for len in LENS {
        let value = pattern(len, 3);
        let source = WriteSource::Bytes(&value);
        let write = PlannedChange::Write { key: b"w", offset: 7, source: &source };
        let changes = [PlannedChange::Put { key: b"k", source: &source }, write];
        let most = store.charge_max(&changes);
        assert_eq!(store.keep(most, 0), most, "there is room for {len} B");
        // The other one takes all that is free.
        other.keep(u64::MAX, 0);
        assert!(store.reserve(&changes).is_err(), "{len} B fit in a full target");
        store.draw(most);
        store.reserve(&changes).expect("space is kept");
        store.put(b"k", WriteSource::Bytes(&value), Version(1)).expect("kept");
        store.write(b"w", 7, WriteSource::Bytes(&value), Version(1)).expect("kept");
        store.settle();
        for key in [b"k", b"w"] {
            store.delete(key).expect("delete");
        }
        assert_eq!((store.keep(0, 0), other.keep(0, 0)), (0, 0));
    }
}

fn only_what_makes_room_takes_the_reserve(backend: &mut dyn Backend) {
    let mut store = open(backend);
    store.keep(u64::MAX, 0);
    let source = WriteSource::Bytes(&[2; 400]);
    let changes = [PlannedChange::Put { key: b"new", source: &source }];
    assert!(store.reserve(&changes).is_err());
    store.set_limit(QuotaLimit::Whole);
    store.reserve(&changes).expect("the reserve has room");
    store.put(b"new", WriteSource::Bytes(&[2; 400]), Version(2)).expect("set aside");
    store.settle();
    assert!(store.put(b"other", WriteSource::Bytes(&[2; 400]), Version(3)).is_err(), "as before");
}

fn what_records_are_decides_what_changes_take_at_most(backend: &mut dyn Backend) {
    for len in LENS {
        let (mut one, mut two) = (open(backend), backend.open(DatasetId(1), PartitionId(2)));
        let two = two.as_mut().expect("open");
        one.put(b"k", WriteSource::Bytes(&pattern(300_000, 5)), Version(1)).expect("put");
        one.truncate(b"k", len, Version(2)).expect("cut");
        two.put(b"k", WriteSource::Zeros(len), Version(2)).expect("put");
        for (offset, count) in [(0, 10), (len / 2, 5_000), (len, 100), (len + 70_000, 70_000)] {
            let (bytes, zeros) = (vec![1; count as usize], WriteSource::Zeros(count));
            let bytes = WriteSource::Bytes(&bytes);
            let most = |store: &dyn RecordStore, source| {
                store.charge_max(&[PlannedChange::Write { key: b"k", offset, source }])
            };
            assert_eq!(most(&*one, &bytes), most(&**two, &zeros), "{count} B at {offset} of {len}");
        }
    }
}
