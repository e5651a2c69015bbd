//! Times, and the bits that go when data or owner change.
#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

mod common;

use std::thread::sleep;
use std::time::Duration;

use common::{Rig, create, noise, put, root, user};
use samite_fs::{AllocateMode, FileAttributes, FileSystem, OpenFlags, SetTime, Timestamp};

const PAST: Timestamp = Timestamp(1_000_000_007);

fn attr(fs: &FileSystem, path: &[u8]) -> FileAttributes {
    fs.stat(&root(), path, false).unwrap()
}

/// Longer than writes count as one, in time.
fn pause() {
    sleep(Duration::from_millis(10));
}

fn chunked_writes(nodes: usize) {
    let rig = Rig::new(nodes);
    let (fs, other) = (&rig.fs, rig.another());
    let file = create(fs, b"/f");
    for round in 0..3 {
        pause();
        let before = Timestamp::now();
        file.write_at(&noise(100_000, 1), (round * 3) << 20).unwrap();
        let after = Timestamp::now();
        pause();
        for found in [attr(&other, b"/f"), attr(fs, b"/f"), file.attr().unwrap()] {
            assert!(before <= found.mtime && found.mtime <= after, "{round}: {found:?}");
            assert!(found.ctime >= found.mtime);
        }
        if round == 1 {
            file.fsync().unwrap();
            assert!(attr(&other, b"/f").mtime <= after, "settling is no change");
        }
    }
    let written = attr(&other, b"/f").mtime;
    fs.chmod(&root(), b"/f", 0o600, true).unwrap();
    assert_eq!(attr(&other, b"/f").mtime, written);
    file.close().unwrap();
    assert_eq!(attr(&other, b"/f").mtime, written, "nor is closing");
}

#[test]
fn a_write_shows_its_time_at_once_on_one_node() {
    chunked_writes(1);
}

#[test]
fn a_write_shows_its_time_at_once_on_three_nodes() {
    chunked_writes(3);
}

#[test]
fn the_handle_that_wrote_shows_the_time_that_others_see() {
    let rig = Rig::new(1);
    let (file, other) = (create(&rig.fs, b"/f"), rig.another());
    for round in 0..200 {
        file.write_at(&noise(100_000, 1), round % 7).unwrap();
        let (own, seen) = (file.attr().unwrap(), attr(&other, b"/f"));
        assert!(own.mtime <= seen.mtime, "round {round}: the time goes back");
    }
}

#[test]
fn a_time_that_was_set_stays_until_the_next_write() {
    let rig = Rig::new(3);
    let (fs, other) = (&rig.fs, rig.another());
    let (one, two) = (create(fs, b"/f"), create(&other, b"/f"));
    for shared in [false, true] {
        one.write_at(&noise(100_000, 1), 0).unwrap();
        if shared {
            two.write_at(&noise(100_000, 1), 1 << 20).unwrap();
        }
        pause();
        other.utimens(&root(), b"/f", SetTime::Keep, SetTime::To(PAST), true).unwrap();
        assert_eq!(attr(fs, b"/f").mtime, PAST);
        one.fsync().unwrap();
        two.fsync().unwrap();
        assert_eq!(attr(fs, b"/f").mtime, PAST, "shared: {shared}");
        pause();
        let before = Timestamp::now();
        one.write_at(b"x", 7).unwrap();
        assert!(attr(&other, b"/f").mtime >= before);
        one.fsync().unwrap();
        assert!(attr(&other, b"/f").mtime >= before);
        assert_eq!(attr(&other, b"/f").size, if shared { (1 << 20) + 100_000 } else { 100_000 });
    }
}

#[test]
fn nothing_is_left_of_a_file() {
    let rig = Rig::new(1);
    let node = rig.client.map().unwrap().nodes()[0].node;
    let records = || rig.client.node_status(node).unwrap().records;
    // The directory's change stamp stays.
    put(&rig.fs, b"/f", b"");
    rig.fs.unlink(&root(), b"/f").unwrap();
    let before = records();
    for size in [100_000usize, 5_000_000] {
        for cut in [None, Some(70_000), Some(0)] {
            let file = create(&rig.fs, b"/f");
            for at in (0..size).step_by(1 << 20) {
                pause();
                file.write_at(&noise(100_000, 1), at as u64).unwrap();
            }
            if let Some(cut) = cut {
                file.truncate(cut).unwrap();
            }
            file.close().unwrap();
            rig.fs.unlink(&root(), b"/f").unwrap();
            assert_eq!(records(), before, "{size} bytes, cut to {cut:?}");
        }
    }
}

#[test]
fn what_changes_nothing_and_what_does() {
    let rig = Rig::new(1);
    let fs = &rig.fs;
    put(fs, b"/f", b"");
    let before = attr(fs, b"/f");
    pause();
    fs.utimens(&root(), b"/f", SetTime::Keep, SetTime::Keep, true).unwrap();
    assert_eq!(attr(fs, b"/f"), before);
    let cut = OpenFlags { write: true, truncate: true, ..OpenFlags::default() };
    fs.open_file(&root(), b"/f", cut, 0).unwrap().close().unwrap();
    let after = attr(fs, b"/f");
    assert!(after.mtime > before.mtime && after.ctime > before.ctime, "an empty file is cut, too");
    pause();
    fs.chown(&root(), b"/f", None, None, true).unwrap();
    let owned = attr(fs, b"/f");
    assert!(owned.ctime > after.ctime && owned.mtime == after.mtime);
    let exact = Timestamp(1_234_567_890_123_456_789);
    fs.utimens(&root(), b"/f", SetTime::To(PAST), SetTime::To(exact), true).unwrap();
    let set = attr(fs, b"/f");
    assert_eq!((set.atime, set.mtime), (PAST, exact));
    pause();
    fs.utimens(&root(), b"/f", SetTime::Now, SetTime::Keep, true).unwrap();
    let now = attr(fs, b"/f");
    assert!(now.atime > PAST && now.mtime == exact && now.ctime > set.ctime);
}

#[test]
fn set_id_bits_go_with_what_they_stood_for() {
    let rig = Rig::new(1);
    let fs = &rig.fs;
    let someone = user(77, 77);
    let perm = || attr(fs, b"/f").perm;
    let with = |bits: u32| {
        put(fs, b"/f", b"data");
        fs.chown(&root(), b"/f", Some(1), Some(2), true).unwrap();
        fs.chmod(&root(), b"/f", bits, true).unwrap();
    };
    let write = |flags: OpenFlags| {
        let flags = OpenFlags { write: true, ..flags };
        let file = fs.open_file(&someone, b"/f", flags, 0).unwrap();
        if !flags.truncate {
            assert_eq!(perm() & 0o6000, 0o6000, "opening takes nothing off");
            file.write_at(b"x", 0).unwrap();
        }
        file.close().unwrap();
    };
    with(0o6777);
    write(OpenFlags::default());
    assert_eq!(perm(), 0o777);
    with(0o6777);
    write(OpenFlags { truncate: true, ..OpenFlags::default() });
    assert_eq!(perm(), 0o777);
    with(0o6777);
    put(fs, b"/f", b"by root");
    assert_eq!(perm(), 0o6777);
    fs.chown(&root(), b"/f", Some(5), None, true).unwrap();
    assert_eq!(perm(), 0o777);
    with(0o6666);
    fs.chown(&root(), b"/f", None, Some(5), true).unwrap();
    assert_eq!(perm(), 0o2666, "a lock mode of old");
    fs.mkdir(&root(), b"/d", 0o777).unwrap();
    fs.chown(&root(), b"/d", None, Some(5), true).unwrap();
    fs.chmod(&root(), b"/d", 0o2777, true).unwrap();
    let flags = OpenFlags::creating();
    drop(fs.open_file(&someone, b"/d/f", flags, 0o2755).unwrap());
    let made = attr(fs, b"/d/f");
    assert_eq!((made.gid, made.perm), (5, 0o755));
    fs.mkdir(&someone, b"/d/d", 0o755).unwrap();
    assert_eq!((attr(fs, b"/d/d").gid, attr(fs, b"/d/d").perm), (5, 0o2755));
}

#[test]
fn set_id_bits_given_while_a_file_is_open_go_with_the_next_change() {
    let rig = Rig::new(2);
    let (fs, other) = (&rig.fs, rig.another());
    let someone = user(77, 77);
    let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
    let appending = OpenFlags { append: true, ..flags };
    put(fs, b"/from", &noise(300, 1));
    let from = fs.open_file(&someone, b"/from", OpenFlags::reading(), 0).unwrap();
    for len in [100, 100_000] {
        put(fs, b"/f", &noise(len, 1));
        fs.chmod(&root(), b"/f", 0o777, true).unwrap();
        let file = fs.open_file(&someone, b"/f", flags, 0).unwrap();
        let end = fs.open_file(&someone, b"/f", appending, 0).unwrap();
        file.write_at(b"before", 0).unwrap();
        type Work<'w> = &'w dyn Fn();
        let calls: [(&str, Work<'_>); 6] = [
            ("write", &|| assert_eq!(file.write_at(b"x", 5).unwrap(), 1)),
            ("append", &|| assert_eq!(end.append(b"x").unwrap().1, 1)),
            ("copy_range", &|| assert_eq!(fs.copy_range(&from, 0, &file, 9, 200).unwrap(), 200)),
            ("punch", &|| file.allocate(AllocateMode::PunchHole, 0, 20).unwrap()),
            ("allocate", &|| file.allocate(AllocateMode::Extend, 0, 200_000).unwrap()),
            ("truncate", &|| file.truncate(7).unwrap()),
        ];
        for (what, call) in calls {
            for chmod in [fs, &other] {
                chmod.chmod(&root(), b"/f", 0o6777, true).unwrap();
                call();
                assert_eq!(attr(&other, b"/f").perm, 0o777, "{what}, {len} bytes");
            }
        }
        let by_root = fs.open_file(&root(), b"/f", flags, 0).unwrap();
        other.chmod(&root(), b"/f", 0o6777, true).unwrap();
        by_root.write_at(b"x", 0).unwrap();
        assert_eq!(attr(&other, b"/f").perm, 0o6777);
        drop(fs.open_file(&root(), b"/f", OpenFlags { truncate: true, ..flags }, 0).unwrap());
    }
    fs.mkdir(&root(), b"/d", 0o777).unwrap();
    fs.chown(&root(), b"/d", Some(77), Some(5), true).unwrap();
    fs.chmod(&someone, b"/d", 0o3777, true).unwrap();
    assert_eq!(attr(fs, b"/d").perm, 0o1777, "not in its group");
}

#[test]
fn a_slower_client_does_not_set_a_time_back_but_a_write_ends_one_that_was_set() {
    let rig = Rig::new(1);
    let fs = &rig.fs;
    for (path, data) in [(&b"/small"[..], noise(100, 1)), (b"/large", noise(100_000, 2))] {
        let file = create(fs, path);
        file.write_at(&data, 0).unwrap();
        file.fsync().unwrap();
        let ahead = Timestamp(Timestamp::now().0 + 3_000_000_000);
        // As a client would leave it whose change took effect first, although it came to the clock last.
        let set = |time| fs.utimens(&root(), path, SetTime::Keep, SetTime::To(time), true);
        set(ahead).unwrap();
        file.truncate(data.len() as u64 / 2).unwrap();
        assert_eq!(attr(fs, path).mtime, ahead);
        let far = Timestamp(Timestamp::now().0 + 3_600_000_000_000);
        set(far).unwrap();
        assert_eq!(attr(fs, path).mtime, far);
        file.truncate(data.len() as u64 / 4).unwrap();
        assert!(attr(fs, path).mtime <= Timestamp::now(), "it was set on purpose");
        set(PAST).unwrap();
        assert_eq!(attr(fs, path).mtime, PAST);
    }
}

/// Many make and remove names in one directory; every observer sees its time go one way.
#[test]
fn the_time_of_a_directory_does_not_go_back_whoever_changes_it() {
    let rig = Rig::new(1);
    rig.fs.mkdir(&root(), b"/d", 0o755).unwrap();
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let makers: Vec<_> = (0..4)
            .map(|maker| {
                let fs = rig.another();
                scope.spawn(move || {
                    for round in 0..60 {
                        let path = format!("/d/{maker}-{}", round % 3);
                        create(&fs, path.as_bytes()).close().unwrap();
                        fs.unlink(&root(), path.as_bytes()).unwrap();
                    }
                })
            })
            .collect();
        let (fs, over_now) = (rig.another(), &over);
        let looker = scope.spawn(move || {
            let mut last = attr(&fs, b"/d");
            while !over_now.load(std::sync::atomic::Ordering::Relaxed) {
                let next = attr(&fs, b"/d");
                assert!(next.mtime >= last.mtime && next.ctime >= last.ctime, "{next:?}");
                last = next;
            }
        });
        makers.into_iter().for_each(|maker| maker.join().unwrap());
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        looker.join().unwrap();
    });
}

#[test]
fn settling_takes_no_time_back_that_others_have_seen() {
    let rig = Rig::new(2);
    let (fs, other) = (&rig.fs, rig.another());
    let file = create(fs, b"/f");
    file.write_at(&noise(100_000, 1), 0).unwrap();
    pause();
    // Cut by another client, so that what the handle knows is out of date when it settles.
    other.truncate(&root(), b"/f", 70_000).unwrap();
    pause();
    file.write_at(&noise(100_000, 2), 0).unwrap();
    let seen = attr(&other, b"/f").mtime;
    pause();
    // Changes the change time alone.
    other.chmod(&root(), b"/f", 0o640, true).unwrap();
    file.close().unwrap();
    assert!(attr(&other, b"/f").mtime >= seen);
    // But a time that was set since is not taken for that of a write.
    let file =
        other.open_file(&root(), b"/f", OpenFlags { write: true, ..OpenFlags::default() }, 0);
    let file = file.unwrap();
    file.write_at(&noise(100_000, 3), 0).unwrap();
    pause();
    fs.utimens(&root(), b"/f", SetTime::Keep, SetTime::To(PAST), true).unwrap();
    file.close().unwrap();
    assert_eq!(attr(fs, b"/f").mtime, PAST);
}
