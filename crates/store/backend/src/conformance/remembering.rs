//! The part of the suite that targets pass which remember: what was committed is there when they
//! are opened again, and nothing else.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use samite_types::{DatasetId, ErrorKind, PartitionId, Version};

use super::{listed, open, pattern, read};
use crate::commit::{CommitTarget, WriteBatch};
use crate::memory::MemoryBackend;
use crate::record::PlannedRead;
use crate::store::RecordStore;
use crate::target::Backend;
use crate::value_piece::WriteSource;

/// Opens one target, again and again.
pub type ReopenTarget = Box<dyn Fn() -> Box<dyn Backend>>;

/// Runs the suite against the targets that `make` makes, each opened several times. They hold at
/// least 8 MiB.
///
/// # Panics
/// If the backend does not conform.
pub fn run_remembering(make: &dyn Fn() -> ReopenTarget) {
    committed_records_and_state_are_there_again(&*make());
    changes_that_were_not_committed_are_gone(&*make());
    reads_are_right_while_a_batch_is_under_way(&*make());
    a_batch_that_is_tried_again_does_the_same(&*make());
    records_without_a_state_are_of_no_use(&*make());
    partitions_are_known_and_can_be_cleared(&*make());
    space_is_charged_for_what_is_there(&*make());
    damage_is_found_after_a_restart(&*make());
    reads_ahead_change_nothing(&*make());
}

fn target(backend: &dyn Backend) -> Arc<dyn CommitTarget> {
    backend.commit_target().expect("a target that remembers")
}

fn take(store: &mut dyn RecordStore, state: Option<&[u8]>) -> WriteBatch {
    store.commits().expect("a store that remembers").take_batch(state)
}

/// Commits all changes of a store, with `state`.
fn commit(backend: &dyn Backend, store: &mut dyn RecordStore, state: Option<&[u8]>) {
    let batch = take(store, state);
    target(backend).commit(&[batch]).expect("commit");
    store.commits().expect("a store that remembers").committed();
}

fn state(store: &mut dyn RecordStore) -> Option<Vec<u8>> {
    store.commits().expect("a store that remembers").state().expect("state")
}

type Records = BTreeMap<Vec<u8>, (Version, Vec<u8>)>;

fn records(store: &dyn RecordStore) -> Records {
    let keys = listed(store, b"", b"", false);
    assert_eq!(store.record_count(), keys.len() as u64, "records are counted");
    let record = |key: Vec<u8>| {
        let meta = store.meta(&key).expect("meta").expect("a record that a scan met");
        let value = read(store, &key, 0, u32::MAX).expect("its value");
        assert_eq!(value.len(), meta.len as usize);
        (key, (meta.version, value))
    };
    keys.into_iter().map(record).collect()
}

fn long_key(len: usize, last: u8) -> Vec<u8> {
    let mut key = vec![b'L'; len];
    key.push(last);
    key
}

/// Changes of every kind, of records of every length.
fn change(store: &mut dyn RecordStore, round: u32) {
    let version = Version(u64::from(round) + 1);
    for (index, len) in super::LENS.into_iter().filter(|len| *len < 1 << 18).enumerate() {
        let key = [index as u8, b'v'];
        store.put(&key, WriteSource::Bytes(&pattern(len, round)), version).expect("put");
        let at = len / 2;
        store.write(&key, at, WriteSource::Bytes(&pattern(50, round)), version).expect("write");
    }
    for len in [1, 478, 479, 480, 481, 959, 960, 961, 2000, 4159] {
        for last in 0..3 {
            let key = long_key(len, last);
            store.put(&key, WriteSource::Bytes(&key[..10.min(len)]), version).expect("put");
        }
        if round % 2 == 1 {
            store.delete(&long_key(len, 1)).expect("delete");
        }
    }
    store.truncate(&[9, b'v'], 5000 + round, version).expect("cut");
    store.truncate(&[9, b'v'], 90_000, version).expect("extend");
    store.write(&[10, b'v'], 100, WriteSource::Zeros(40_000), version).expect("zeros");
    store.rename(&[11, b'v'], &[11, b'w'], version).expect("rename");
    store.delete(&[12, b'v']).expect("delete");
}

fn committed_records_and_state_are_there_again(reopen: &dyn Fn() -> Box<dyn Backend>) {
    let mut before = Records::new();
    for round in 0..4 {
        let mut backend = reopen();
        let mut store = open(&mut *backend);
        assert_eq!(records(&*store), before, "round {round}");
        let expected = (round > 0).then(|| vec![round as u8; 1000 * round as usize]);
        assert_eq!(state(&mut *store), expected);
        change(&mut *store, round);
        before = records(&*store);
        commit(&*backend, &mut *store, Some(&vec![round as u8 + 1; 1000 * (round as usize + 1)]));
        assert_eq!(records(&*store), before, "after a commit");
    }
}

fn changes_that_were_not_committed_are_gone(reopen: &dyn Fn() -> Box<dyn Backend>) {
    let mut backend = reopen();
    let mut store = open(&mut *backend);
    change(&mut *store, 1);
    drop(store);
    let mut store = open(&mut *backend);
    assert!(records(&*store).is_empty() && state(&mut *store).is_none());
    change(&mut *store, 2);
    commit(&*backend, &mut *store, Some(b"two"));
    let committed = records(&*store);
    change(&mut *store, 3);
    let under_way = take(&mut *store, Some(b"three"));
    change(&mut *store, 4);
    drop(store);
    drop(backend);
    let mut backend = reopen();
    let mut store = open(&mut *backend);
    assert_eq!(records(&*store), committed);
    assert_eq!(state(&mut *store).as_deref(), Some(&b"two"[..]));
    drop(store);
    // A batch that nobody was told of is as good as one that somebody was.
    target(&*backend).commit(&[under_way]).expect("commit");
    drop(backend);
    let mut backend = reopen();
    assert_eq!(state(&mut *open(&mut *backend)).as_deref(), Some(&b"three"[..]));
}

fn reads_are_right_while_a_batch_is_under_way(reopen: &dyn Fn() -> Box<dyn Backend>) {
    let mut backend = reopen();
    let mut store = open(&mut *backend);
    let mut plain = MemoryBackend::new(8 << 20, 1).expect("memory target");
    let mut plain = open(&mut plain);
    for round in 0..4 {
        let same = |store: &dyn RecordStore, plain: &dyn RecordStore, what: &str| {
            assert!(records(store) == records(plain), "round {round}, {what}");
            let backwards = |store| listed(store, b"L", b"", true);
            assert_eq!(backwards(store), backwards(plain), "round {round}, {what}");
        };
        change(&mut *store, round);
        change(&mut *plain, round);
        same(&*store, &*plain, "before");
        let batch = take(&mut *store, Some(b"state"));
        same(&*store, &*plain, "under way");
        change(&mut *store, round + 1);
        change(&mut *plain, round + 1);
        same(&*store, &*plain, "changed while under way");
        target(&*backend).commit(&[batch]).expect("commit");
        same(&*store, &*plain, "committed, and not told");
        store.commits().expect("it remembers").committed();
        same(&*store, &*plain, "committed");
    }
}

fn a_batch_that_is_tried_again_does_the_same(reopen: &dyn Fn() -> Box<dyn Backend>) {
    let mut backend = reopen();
    let mut store = open(&mut *backend);
    for round in 0..3 {
        change(&mut *store, round);
        let batch = take(&mut *store, Some(b"state"));
        for _ in 0..2 {
            target(&*backend).commit(std::slice::from_ref(&batch)).expect("commit");
        }
        store.commits().expect("it remembers").committed();
    }
    let committed = records(&*store);
    drop((store, backend));
    assert_eq!(records(&*open(&mut *reopen())), committed);
}

fn records_without_a_state_are_of_no_use(reopen: &dyn Fn() -> Box<dyn Backend>) {
    let mut backend = reopen();
    let mut store = open(&mut *backend);
    change(&mut *store, 1);
    commit(&*backend, &mut *store, Some(b"state"));
    store.put(b"new", WriteSource::Bytes(b"new"), Version(1)).expect("put");
    commit(&*backend, &mut *store, None);
    assert!(store.meta(b"new").expect("meta").is_some(), "its own store has it");
    drop((store, backend));
    let mut backend = reopen();
    assert_eq!(backend.usage().used, 0);
    let mut store = open(&mut *backend);
    assert!(records(&*store).is_empty() && state(&mut *store).is_none());
    store.put(b"other", WriteSource::Bytes(&pattern(100_000, 1)), Version(1)).expect("put");
    let batch = take(&mut *store, Some(b"anew"));
    assert_eq!(records(&*store).len(), 1);
    target(&*backend).commit(&[batch]).expect("commit");
    assert_eq!(records(&*store).len(), 1);
    store.commits().expect("it remembers").committed();
    let all = records(&*store);
    assert_eq!(all.len(), 1, "what was there before came back");
    drop((store, backend));
    let mut backend = reopen();
    let mut store = open(&mut *backend);
    assert_eq!(state(&mut *store).as_deref(), Some(&b"anew"[..]));
    assert_eq!(records(&*store), all);
}

fn partitions_are_known_and_can_be_cleared(reopen: &dyn Fn() -> Box<dyn Backend>) {
    let mut backend = reopen();
    let places = [(1, 0), (1, 1), (2, 0), (700, 255), (700, 256)]
        .map(|(dataset, partition)| (DatasetId(dataset), PartitionId(partition)));
    let mut batches = Vec::new();
    for (dataset, partition) in places {
        let mut store = backend.open(dataset, partition).expect("open");
        change(&mut *store, partition.get());
        batches.push(take(&mut *store, Some(b"state")));
    }
    target(&*backend).commit(&batches).expect("one commit of many partitions");
    assert_eq!(target(&*backend).stored().expect("stored"), places);
    let rows = Arc::from([]);
    let clear = WriteBatch { place: places[1], clears: true, rows };
    target(&*backend).commit(&[clear]).expect("clear");
    drop(backend);
    let mut backend = reopen();
    let left: Vec<_> = places.into_iter().filter(|place| *place != places[1]).collect();
    assert_eq!(target(&*backend).stored().expect("stored"), left);
    for (dataset, partition) in places {
        let store = backend.open(dataset, partition).expect("open");
        assert_eq!(records(&*store).is_empty(), (dataset, partition) == places[1]);
    }
}

fn space_is_charged_for_what_is_there(reopen: &dyn Fn() -> Box<dyn Backend>) {
    let mut backend = reopen();
    let mut store = open(&mut *backend);
    change(&mut *store, 1);
    commit(&*backend, &mut *store, Some(b"state"));
    let committed = backend.usage().used;
    assert!(committed > 200_000);
    store.put(b"more", WriteSource::Bytes(&pattern(200_000, 1)), Version(1)).expect("put");
    assert!(backend.usage().used > committed);
    drop(store);
    assert_eq!(backend.usage().used, committed, "what was not committed is charged");
    drop(backend);
    let mut backend = reopen();
    assert_eq!(backend.usage().used, committed, "what is there is not charged");
    let mut store = open(&mut *backend);
    assert_eq!(backend.usage().used, committed, "it is charged twice");
    for key in listed(&*store, b"", b"", false) {
        store.delete(&key).expect("delete");
    }
    assert_eq!(backend.usage().used, 0);
    commit(&*backend, &mut *store, Some(b"empty"));
    drop((store, backend));
    assert_eq!(reopen().usage().used, 0);
}

fn damage_is_found_after_a_restart(reopen: &dyn Fn() -> Box<dyn Backend>) {
    for len in [1, 100, 1024, 1025, 5000, 65_536, 200_000] {
        let value = pattern(len, 1);
        for random in [0, 3 * u64::from(len), 8 * u64::from(len) - 1] {
            let mut backend = reopen();
            let mut store = open(&mut *backend);
            store.put(b"key", WriteSource::Bytes(&value), Version(1)).expect("put");
            commit(&*backend, &mut *store, Some(b"state"));
            assert!(store.rot(b"key", random));
            if len > 1024 {
                // What the damage lies beside may change before it is committed.
                let at = if random == 0 { len - 1 } else { 0 };
                store.write(b"key", at, WriteSource::Bytes(b"y"), Version(2)).expect("write");
            }
            commit(&*backend, &mut *store, Some(b"state"));
            drop((store, backend));
            let mut backend = reopen();
            let mut store = open(&mut *backend);
            let damaged = |store: &dyn RecordStore| {
                let found = store.read(b"key", 0, u32::MAX, &mut |_| {});
                found.err().map(|error| error.kind())
            };
            assert_eq!(damaged(&*store), Some(ErrorKind::Corrupt), "{len} B, bit {random}");
            assert_eq!(store.take_damaged(), [Box::from(&b"key"[..])]);
            let mut content = Some(0);
            let mut visit = |record: &crate::ScrubbedRecord<'_>| {
                content = record.content;
                ControlFlow::Continue(())
            };
            store.scrub(b"", b"", &mut visit).expect("scrub");
            assert_eq!(content, None, "a scrub finds it");
            // A part of it that is written anew leaves it damaged.
            if len > 100 {
                let byte = (random / 8) as u32;
                let at = if byte < 50 { len - 10 } else { 0 };
                store.write(b"key", at, WriteSource::Bytes(b"x"), Version(2)).expect("write");
                assert_eq!(damaged(&*store), Some(ErrorKind::Corrupt));
                commit(&*backend, &mut *store, Some(b"state"));
                assert_eq!(damaged(&*store), Some(ErrorKind::Corrupt));
            }
            store.put(b"key", WriteSource::Bytes(&value), Version(3)).expect("put anew");
            commit(&*backend, &mut *store, Some(b"state"));
            assert_eq!(read(&*store, b"key", 0, u32::MAX).as_ref(), Some(&value));
        }
    }
}

fn reads_ahead_change_nothing(reopen: &dyn Fn() -> Box<dyn Backend>) {
    let mut backend = reopen();
    let mut store = open(&mut *backend);
    change(&mut *store, 1);
    commit(&*backend, &mut *store, Some(b"state"));
    drop((store, backend));
    let mut backend = reopen();
    let store = open(&mut *backend);
    let reads = [
        PlannedRead::Record { key: &[14, b'v'], offset: 0, len: u32::MAX },
        PlannedRead::Record { key: b"none", offset: 5, len: 10 },
        PlannedRead::Scan { prefix: b"L", after: b"", reverse: true, limit: 5, value_len: 10 },
    ];
    let ahead = store.read_ahead(&reads).expect("nothing was read yet");
    std::thread::spawn(ahead).join().expect("reads ahead");
    assert!(store.read_ahead(&reads).is_none(), "what was read is forgotten at once");
    let mut plain = MemoryBackend::new(8 << 20, 1).expect("memory target");
    let mut plain = open(&mut plain);
    change(&mut *plain, 1);
    assert!(records(&*store) == records(&*plain));
}
