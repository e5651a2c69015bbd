//! Scrubs, and the damage that they and reads find.

use std::ops::ControlFlow;

use samite_types::{DatasetId, ErrorKind, PartitionId, Version};

use super::{LENS, open, pattern, read};
use crate::record::{RecordMeta, ScrubbedRecord};
use crate::store::RecordStore;
use crate::target::Backend;
use crate::value_piece::WriteSource;

/// Keys of the records that a scrub meets, with what it says of them.
type Scrubbed = Vec<(Vec<u8>, RecordMeta, Option<u64>)>;

fn scrub(store: &mut dyn RecordStore, after: &[u8], upto: &[u8], most: usize) -> Scrubbed {
    let mut met = Vec::new();
    let mut visit = |record: &ScrubbedRecord<'_>| {
        met.push((record.key.to_vec(), record.meta, record.content));
        if met.len() == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    store.scrub(after, upto, &mut visit).expect("scrub");
    met
}

fn key(index: usize) -> Vec<u8> {
    format!("k{index:02}").into_bytes()
}

pub(super) fn a_scrub_meets_every_record_in_order(backend: &mut dyn Backend) {
    let mut one = open(backend);
    let mut two = backend.open(DatasetId(1), PartitionId(2)).expect("open");
    for (index, len) in LENS.into_iter().enumerate() {
        // Made in one go there, and piece by piece here.
        let value = pattern(len, 4);
        two.put(&key(index), WriteSource::Bytes(&value), Version(3)).expect("put");
        one.put(&key(index), WriteSource::Zeros(len), Version(1)).expect("put");
        for start in (0..len).step_by(50_000) {
            let piece = &value[start as usize..len.min(start + 50_000) as usize];
            one.write(&key(index), start, WriteSource::Bytes(piece), Version(2)).expect("write");
        }
        one.truncate(&key(index), len, Version(3)).expect("truncate").expect("record");
    }
    let all = scrub(&mut *one, b"", b"", usize::MAX);
    let expected: Vec<_> = (0..LENS.len()).map(key).collect();
    assert_eq!(all.iter().map(|(key, ..)| key.clone()).collect::<Vec<_>>(), expected);
    for ((_, meta, content), len) in all.iter().zip(LENS) {
        assert_eq!((meta.version, meta.len), (Version(3), len));
        assert!(content.is_some(), "{len} B: damaged, a scrub says");
    }
    assert_eq!(all, scrub(&mut *two, b"", b"", usize::MAX), "two stores of the same records");
    assert_eq!(scrub(&mut *one, b"k03", b"k07", usize::MAX), all[4..=7], "between two keys");
    assert_eq!(scrub(&mut *one, b"k03", b"", 2), all[4..=5], "goes on after a break");
}

pub(super) fn damage_is_found(backend: &mut dyn Backend) {
    let mut store = open(backend);
    for (seed, len) in (1u64..).zip(LENS.into_iter().filter(|len| *len > 0)) {
        for name in [b"a", b"k", b"z"] {
            let value = pattern(len, 2);
            store.put(name, WriteSource::Bytes(&value), Version(1)).expect("put");
        }
        // From here on the bytes are known.
        let before = scrub(&mut *store, b"", b"", usize::MAX);
        assert!(before.iter().all(|(_, _, content)| content.is_some()), "{len} B: undamaged");
        assert!(
            store.rot(b"k", seed.wrapping_mul(0x9E37_79B9_7F4A_7C15)),
            "{len} B: nothing to damage"
        );
        let met = scrub(&mut *store, b"", b"", usize::MAX);
        let is_right: Vec<_> = met.iter().map(|(_, _, content)| content.is_some()).collect();
        assert_eq!(is_right, [true, false, true], "{len} B: what a scrub says");
        let error = store.read(b"k", 0, u32::MAX, &mut |_| {}).expect_err("a damaged value");
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert_eq!(store.take_damaged(), [Box::from(&b"k"[..])], "{len} B: told of");
        store.put(b"k", WriteSource::Bytes(&pattern(len, 3)), Version(2)).expect("put");
        assert!(
            read(&*store, b"k", 0, u32::MAX).expect("record") == pattern(len, 3),
            "written anew"
        );
    }
}
