//! Processes die half-way: the others go on.
#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

use samite_client::{Client, ClientOperation, OwnedOutcome};
use samite_testkit::{LocalCluster, LocalOptions};
use samite_types::ErrorKind;
use samite_wire::limits::RECORD_LEN_MAX;
use samite_wire::op::{Action, Guard, Operation, ValueData};

use crate::records::inode::{INODE_LEN, Inode};
use crate::records::key;
use crate::records::moving::{MoveFinish, MoveIntent};
use crate::records::store::{ANY_NAME_SPACE, FoundInode, RecordLocation};
use crate::{CallerContext, FileSystem, OpenFile, OpenFlags, RenameFlags, Timestamp};

struct Rig {
    fs: FileSystem,
    /// The file system as another process sees it.
    other: FileSystem,
    _cluster: LocalCluster,
}

fn rig() -> Rig {
    rig_with(LocalOptions::default())
}

fn rig_with(options: LocalOptions) -> Rig {
    let cluster = LocalCluster::start(3, options).unwrap();
    let connect = || -> Client { cluster.client(samite_client::ClientOptions::default()).unwrap() };
    let fs = FileSystem::open(&connect(), "files").unwrap();
    let other = FileSystem::open(&connect(), "files").unwrap();
    Rig { fs, other, _cluster: cluster }
}

fn ctx() -> CallerContext {
    CallerContext::root()
}

fn put(fs: &FileSystem, path: &[u8], data: &[u8]) -> FoundInode {
    let file = fs.open_file(&ctx(), path, OpenFlags::creating(), 0o644).unwrap();
    file.write_at(data, 0).unwrap();
    file.node().unwrap()
}

fn get(fs: &FileSystem, path: &[u8]) -> Vec<u8> {
    let file = fs.open_file(&ctx(), path, OpenFlags::reading(), 0).unwrap();
    let mut buf = vec![0; 2 << 20];
    let len = file.read_at(&mut buf, 0).unwrap();
    buf[..len].to_vec()
}

/// A rename of `/from` to `/to` up to the freeze; names such that the two are in different partitions.
fn frozen(fs: &FileSystem) -> (MoveIntent, Vec<u8>) {
    frozen_from(fs, b"/from")
}

/// The same of `from` to `/to`.
fn frozen_from(fs: &FileSystem, from: &[u8]) -> (MoveIntent, Vec<u8>) {
    let node = put(fs, from, b"data");
    let to = fs.store().entry(key::ROOT_INO, b"to");
    assert_ne!(node.location.partition, to.partition, "pick other names");
    let moved = MoveIntent::new(
        fs.token(),
        node.location.clone(),
        (node.inode.layout, false),
        MoveFinish::Delete,
        to,
    );
    let (_, value) = fs.store().value(&node.location).unwrap().unwrap();
    assert!(fs.store().freeze(&node, &moved).unwrap());
    (moved, value)
}

#[test]
fn a_move_that_was_not_decided_is_undone() {
    let rig = rig();
    let (moved, value) = frozen(&rig.fs);
    assert_eq!(get(&rig.other, b"/from"), b"data");
    put(&rig.other, b"/from", b"DATA");
    assert_eq!(rig.other.stat(&ctx(), b"/to", true).unwrap_err().kind(), ErrorKind::NotFound);
    // The mover was only slow: it finds out that it may not decide any more.
    let late = rig.fs.store().decide(&moved, &value, ANY_NAME_SPACE, [], []).unwrap();
    assert!(matches!(late, crate::records::moving::MoveDecision::Recovered), "{late:?}");
    assert_eq!(rig.fs.stat(&ctx(), b"/to", true).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(get(&rig.fs, b"/from"), b"DATA");
    rig.fs.rename(&ctx(), b"/from", b"/to", RenameFlags::default()).unwrap();
}

#[test]
fn a_move_that_was_not_decided_is_undone_on_a_full_store() {
    let rig = rig_with(LocalOptions { memory_bytes: 8 << 20, ..LocalOptions::default() });
    frozen(&rig.fs);
    for (count, len) in [(1000, 100_000), (10_000, 1000), (100_000, 0)] {
        let is_full = (0..count).any(|number| {
            let path = format!("/{len}-{number}");
            let made = rig.fs.open_file(&ctx(), path.as_bytes(), OpenFlags::creating(), 0o644);
            let written = made.and_then(|file| file.write_at(&vec![1; len], 0));
            written.is_err_and(|error| error.kind() == ErrorKind::NoSpace)
        });
        assert!(is_full, "{count} files of {len} bytes fit");
    }
    rig.other.unlink(&ctx(), b"/from").unwrap();
    assert_eq!(rig.fs.stat(&ctx(), b"/from", true).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn a_move_that_was_decided_is_finished() {
    let rig = rig();
    let (moved, value) = frozen(&rig.fs);
    let verdict = key::verdict(moved.token);
    let decide = Operation::new(
        moved.destination.partition,
        [
            Action::Put { key: &moved.destination.key, data: ValueData::Inline(&value) },
            Action::Put { key: &verdict, data: ValueData::Inline(&[1]) },
        ],
    );
    assert!(rig.fs.store().run(decide).unwrap().is_done());
    assert_eq!(get(&rig.other, b"/to"), b"data");
    assert_eq!(rig.other.stat(&ctx(), b"/from", true).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(get(&rig.other, b"/to"), b"data");
    let left = rig.fs.store().value(&crate::records::store::RecordLocation {
        key: verdict,
        partition: moved.destination.partition,
    });
    assert!(left.unwrap().is_none(), "the verdict is gone too");
}

/// Decides a move that was frozen; its mover dies before the finish.
fn decide(fs: &FileSystem, moved: &MoveIntent, value: &[u8]) {
    let to = &moved.destination;
    let verdict = key::verdict(moved.token);
    let put = Action::Put { key: &to.key, data: ValueData::Inline(value) };
    let yes = Action::Put { key: &verdict, data: ValueData::Inline(&[1]) };
    assert!(fs.store().run(Operation::new(to.partition, [put, yes])).unwrap().is_done());
}

fn names(fs: &FileSystem) -> Vec<Vec<u8>> {
    let mut listing = fs.read_dir(&ctx(), b"/").unwrap();
    let mut names = Vec::new();
    while let Some(entry) = listing.next_entry().unwrap() {
        names.push(entry.name.to_vec());
    }
    names.retain(|name| !name.starts_with(b"."));
    names.sort();
    names
}

#[test]
fn a_listing_shows_one_name_of_a_move_that_was_left() {
    for is_decided in [false, true] {
        let rig = rig();
        let (moved, value) = frozen(&rig.fs);
        if is_decided {
            decide(&rig.fs, &moved, &value);
        }
        let expected = [if is_decided { b"to".to_vec() } else { b"from".to_vec() }];
        assert_eq!(names(&rig.other), expected);
        assert_eq!(names(&rig.fs), expected);
    }
}

#[test]
fn a_directory_with_what_a_move_left_is_empty() {
    let rig = rig();
    let leave = |dir: &[u8], is_decided: bool| {
        rig.fs.mkdir(&ctx(), dir, 0o755).unwrap();
        let (moved, value) = frozen_from(&rig.fs, &[dir, b"/a"].concat());
        if is_decided {
            decide(&rig.fs, &moved, &value);
        }
    };
    leave(b"/removed", true);
    rig.other.rmdir(&ctx(), b"/removed").unwrap();
    assert_eq!(get(&rig.other, b"/to"), b"data");
    rig.fs.unlink(&ctx(), b"/to").unwrap();
    leave(b"/replaced", true);
    rig.fs.mkdir(&ctx(), b"/new", 0o755).unwrap();
    rig.other.rename(&ctx(), b"/new", b"/replaced", RenameFlags::default()).unwrap();
    assert_eq!(names(&rig.fs), [b"replaced".to_vec(), b"to".to_vec()]);
    // A move that was not decided leaves the file where it was.
    rig.fs.unlink(&ctx(), b"/to").unwrap();
    leave(b"/full", false);
    let refused = rig.other.rmdir(&ctx(), b"/full").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotEmpty);
    assert_eq!(get(&rig.other, b"/full/a"), b"data");
    rig.other.unlink(&ctx(), b"/full/a").unwrap();
    rig.other.rmdir(&ctx(), b"/full").unwrap();
}

/// An exchange of `/from` and `/to` up to the freeze, and the values of both.
fn frozen_exchange(fs: &FileSystem) -> (MoveIntent, Vec<u8>) {
    let (node, there) = (put(fs, b"/from", b"data"), put(fs, b"/to", b"other"));
    assert_ne!(node.location.partition, there.location.partition, "pick other names");
    let value = |node: &FoundInode| fs.store().value(&node.location).unwrap().unwrap().1;
    let layout = (node.inode.layout, false);
    let moved = MoveIntent::new(
        fs.token(),
        node.location.clone(),
        layout,
        MoveFinish::Swap,
        there.location.clone(),
    )
    .bringing(&value(&there));
    let first = value(&node);
    assert!(fs.store().freeze(&node, &moved).unwrap());
    (moved, first)
}

#[test]
fn an_exchange_that_was_not_decided_is_undone() {
    let rig = rig();
    let (moved, value) = frozen_exchange(&rig.fs);
    assert_eq!(get(&rig.other, b"/to"), b"other");
    assert_eq!(get(&rig.other, b"/from"), b"data");
    let late = rig.fs.store().decide(&moved, &value, ANY_NAME_SPACE, [], []).unwrap();
    assert!(matches!(late, crate::records::moving::MoveDecision::Recovered), "{late:?}");
    assert_eq!(get(&rig.fs, b"/to"), b"other");
}

#[test]
fn an_exchange_that_was_decided_is_finished() {
    let rig = rig();
    let held = rig.other.open_file(&ctx(), b"/to", OpenFlags::creating(), 0o644).unwrap();
    let (moved, value) = frozen_exchange(&rig.fs);
    let (_, there) = rig.fs.store().value(&moved.destination).unwrap().unwrap();
    let node = rig.fs.store().read(&moved.destination, ANY_NAME_SPACE).unwrap().unwrap();
    rig.fs.store().note_location(&node, &moved.source).unwrap();
    let verdict = key::verdict(moved.token);
    let yes = [&[1], &there[..]].concat();
    let decide = Operation::new(
        moved.destination.partition,
        [
            Action::Put { key: &moved.destination.key, data: ValueData::Inline(&value) },
            Action::Put { key: &verdict, data: ValueData::Inline(&yes) },
        ],
    );
    assert!(rig.fs.store().run(decide).unwrap().is_done());
    assert_eq!(get(&rig.other, b"/to"), b"data");
    // The handle finds its file where the end of the exchange moves it.
    held.write_at(b"OTHER", 0).unwrap();
    assert_eq!(get(&rig.other, b"/from"), b"OTHER");
    assert_eq!(get(&rig.fs, b"/from"), b"OTHER");
}

#[test]
fn a_directory_with_a_stale_tombstone_is_opened_again() {
    let rig = rig();
    rig.fs.mkdir(&ctx(), b"/d", 0o755).unwrap();
    let location = rig.fs.store().entry(key::ROOT_INO, b"d");
    let ino = rig.fs.stat(&ctx(), b"/d", true).unwrap().ino;
    let tombstone = rig.fs.set_tombstone(&location, ino, ANY_NAME_SPACE).unwrap();
    put(&rig.other, b"/d/f", b"x");
    assert!(
        rig.fs.delete_with_tombstone(&tombstone, Timestamp::now()).unwrap().is_none(),
        "the remover was too slow"
    );
    assert_eq!(get(&rig.fs, b"/d/f"), b"x");
}

#[test]
fn a_directory_that_was_removed_without_word_stays_removed() {
    let rig = rig();
    rig.fs.mkdir(&ctx(), b"/d", 0o755).unwrap();
    let location = rig.fs.store().entry(key::ROOT_INO, b"d");
    let ino = rig.other.stat(&ctx(), b"/d", true).unwrap().ino;
    // The other process has the directory in its cache.
    rig.other.stat(&ctx(), b"/d/f", true).unwrap_err();
    let tombstone = rig.fs.set_tombstone(&location, ino, ANY_NAME_SPACE).unwrap();
    assert!(rig.fs.delete_with_tombstone(&tombstone, Timestamp::now()).unwrap().is_some());
    // The remover dies here, before it raises the name-space generation.
    let made = rig.other.open_file(&ctx(), b"/d/f", OpenFlags::creating(), 0o644);
    assert_eq!(made.unwrap_err().kind(), ErrorKind::NotFound);
    rig.other.mkdir(&ctx(), b"/d", 0o755).unwrap();
    put(&rig.other, b"/d/f", b"x");
}

#[test]
fn a_lock_whose_holder_died_is_taken_over() {
    let rig = rig();
    for dir in [&b"/a"[..], b"/b"] {
        rig.fs.mkdir(&ctx(), dir, 0o755).unwrap();
    }
    let location = rig.fs.store().location(key::Key::from_slice(key::DIRECTORY_MOVE_LOCK));
    let dead = Operation::put(location.partition, &location.key, &[7; 8]);
    assert!(rig.fs.store().run(dead).unwrap().is_done());
    rig.other.rename(&ctx(), b"/a", b"/b/a", RenameFlags::default()).unwrap();
    assert!(rig.fs.store().value(&location).unwrap().is_none());
}

#[test]
fn a_conversion_that_was_begun_is_finished() {
    let rig = rig();
    let node = put(&rig.fs, b"/f", b"inline");
    let freeze = Operation::new(
        node.location.partition,
        [Action::Write {
            key: &node.location.key,
            offset: crate::records::inode::at::LAYOUT,
            data: ValueData::Inline(&[crate::records::inode::DataLayout::Converting as u8]),
        }],
    )
    .guard(Guard::Exists(&node.location.key));
    let outcome = rig.fs.store().run(ClientOperation::new(freeze)).unwrap();
    assert!(matches!(outcome, OwnedOutcome::Done(_)));
    assert_eq!(get(&rig.other, b"/f"), b"inline");
    put(&rig.other, b"/f", b"INL");
    assert_eq!(get(&rig.fs, b"/f"), b"INLine");
    let (_, value) = rig.fs.store().value(&node.location).unwrap().unwrap();
    assert_eq!(Inode::decode(&value).unwrap().layout, crate::records::inode::DataLayout::Chunked);
    rig.fs.unlink(&ctx(), b"/f").unwrap();
}

#[test]
fn a_spill_that_was_begun_is_finished() {
    // Frozen; written into chunks in part; written and not dropped.
    for written in [0, 1, 2] {
        let rig = rig();
        let start = vec![1; 20_000];
        put(&rig.fs, b"/f", &start);
        let file = rig.fs.open_file(&ctx(), b"/f", OpenFlags::creating(), 0).unwrap();
        // The tail lies over the end of a chunk.
        file.truncate((1 << 20) - 1000).unwrap();
        let tail: Vec<u8> = (0..5000).map(|index| index as u8 | 1).collect();
        assert_eq!(file.append(&tail).unwrap(), ((1 << 20) - 1000, 5000));
        let location = file.location();
        let frozen = [crate::records::inode::DataLayout::Spilling as u8];
        let freeze = Action::Write {
            key: &location.key,
            offset: crate::records::inode::at::LAYOUT,
            data: ValueData::Inline(&frozen),
        };
        assert!(
            rig.fs.store().run(Operation::new(location.partition, [freeze])).unwrap().is_done()
        );
        let done = &tail[..[0, 1000, 5000][written]];
        let store = rig.fs.store();
        assert!(store.spill_chunks(file.ino(), done, (1 << 20) - 1000, 0, false).unwrap());

        let expected = [&start[..], &vec![0; (1 << 20) - 21_000], &tail].concat();
        assert!(get(&rig.other, b"/f") == expected, "read while it is frozen");
        assert_eq!(rig.other.stat(&ctx(), b"/f", true).unwrap().size, expected.len() as u64);
        let other = rig.other.open_file(&ctx(), b"/f", OpenFlags::creating(), 0).unwrap();
        assert_eq!(other.append(b"more").unwrap(), (expected.len() as u64, 4));
        assert!(get(&rig.fs, b"/f") == [&expected[..], b"more"].concat());
        rig.fs.unlink(&ctx(), b"/f").unwrap();
    }
}

/// A chunked file `/f` of this length that nobody writes to.
fn chunked(fs: &FileSystem, len: usize) -> OpenFile {
    let file = fs.open_file(&ctx(), b"/f", OpenFlags::creating(), 0o644).unwrap();
    file.write_at(&[1; 500_000], 0).unwrap();
    file.fsync().unwrap();
    file.truncate(len as u64).unwrap();
    file
}

/// Whether `/f` of `len` bytes has nothing behind them.
fn ends_clean(fs: &FileSystem, len: usize) {
    fs.truncate(&ctx(), b"/f", 2 << 20).unwrap();
    let expected = [vec![1; len], vec![0; (2 << 20) - len]].concat();
    assert!(get(fs, b"/f") == expected, "what was cut came back");
    fs.truncate(&ctx(), b"/f", len as u64).unwrap();
}

#[test]
fn a_cut_that_an_append_overtakes_cuts_that_too() {
    // Within the first chunk, and over its end.
    for (start, appended) in [(20_000, 300_000), (0, 1_500_000)] {
        let rig = rig();
        let file = chunked(&rig.fs, start);
        let cutter = rig.other.open_file(&ctx(), b"/f", OpenFlags::creating(), 0).unwrap();
        let node = cutter.node().unwrap();
        file.append(&vec![2; appended]).unwrap();
        let size = start as u64;
        assert!(!cutter.cut_found(&node, size.min(10), size).unwrap(), "it is longer by now");
        cutter.truncate(size.min(10)).unwrap();
        ends_clean(&rig.fs, start.min(10));
        // A later write is not taken for bytes that are there already.
        file.append(&vec![3; appended]).unwrap();
        assert!(get(&rig.other, b"/f") == [vec![1; start.min(10)], vec![3; appended]].concat());
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Overtaken {
    /// Between freezing the tail and writing it into chunks.
    Freezing,
    /// Between taking over from the handle that froze it and writing it.
    TakingOver,
    /// As the first, by a process that cuts the frozen tail off.
    ByCut,
}

#[test]
fn who_spills_a_tail_too_late_changes_nothing() {
    use Overtaken::{ByCut, Freezing, TakingOver};
    // At the start of a chunk, within one, and over the end of one.
    for start in [0, 300_000, (1 << 20) - 1000] {
        for overtaken in [Freezing, TakingOver, ByCut] {
            let rig = rig();
            let late = chunked(&rig.fs, start);
            let other = rig.other.open_file(&ctx(), b"/f", OpenFlags::creating(), 0).unwrap();
            late.write_at(&vec![1; start.saturating_sub(499_000)], 499_000.min(start as u64))
                .unwrap();
            late.fsync().unwrap();
            late.append(&[2; 5000]).unwrap();
            let mut spill = late.freeze().unwrap().unwrap();
            assert_eq!((spill.start, &spill.tail[..]), (start as u64, &[2; 5000][..]));
            if overtaken == TakingOver {
                spill = late.seize(0).unwrap().unwrap();
            }
            if overtaken == ByCut {
                assert!(other.cut_frozen(start as u64, start as u64 + 5000).unwrap());
            } else {
                assert_eq!(other.append(b"more").unwrap(), (start as u64 + 5000, 4));
                let expected = [&vec![1; start], &[2; 5000][..], b"more"].concat();
                assert!(get(&rig.other, b"/f") == expected, "{start} {overtaken:?}");
                other.truncate(start as u64).unwrap();
            }
            late.finish_spill(&spill).unwrap();
            ends_clean(&rig.other, start);

            // Another tail at the same place.
            other.append(&[3; 4000]).unwrap();
            let next = other.freeze().unwrap().unwrap();
            late.finish_spill(&spill).unwrap();
            assert!(!late.drop_tail(spill.spiller, spill.start, spill.tail.len(), &[]).unwrap());
            other.finish_spill(&next).unwrap();
            let next = [vec![1; start], vec![3; 4000]].concat();
            assert!(get(&rig.fs, b"/f") == next, "{start} {overtaken:?}");

            // The fence goes with the file.
            let chunk = rig.fs.store().chunk(late.ino(), ((start + 4999) >> 20) as u32);
            let fence = RecordLocation { key: key::fence(late.ino()), partition: chunk.partition };
            assert!(rig.fs.store().value(&fence).unwrap().is_some());
            late.close().unwrap();
            other.close().unwrap();
            rig.fs.unlink(&ctx(), b"/f").unwrap();
            assert!(rig.fs.store().value(&fence).unwrap().is_none());
        }
    }
}

#[test]
fn an_append_that_is_overtaken_between_two_pieces_ends_there() {
    let rig = rig();
    let late = chunked(&rig.fs, 0);
    // As if somebody had taken over right after the first piece was in.
    rig.other.store().fence(late.ino(), 0, 2 << 20, rig.other.token()).unwrap();
    let all = vec![2; 1_900_000];
    let (at, len) = late.append(&all).unwrap();
    assert_eq!((at, len), (0, RECORD_LEN_MAX - INODE_LEN));
    // The rest may only go elsewhere, so nobody appends it.
    let other = rig.other.open_file(&ctx(), b"/f", OpenFlags::creating(), 0).unwrap();
    assert_eq!(other.append(b"more").unwrap(), (len as u64, 4));
    assert_eq!(late.append(b"and more").unwrap(), (len as u64 + 4, 8));
    assert!(get(&rig.fs, b"/f") == [&all[..len], b"moreand more"].concat());
}
