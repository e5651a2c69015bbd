//! Many at once: clients of their own, as processes have them.
#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

mod common;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use common::{Rig, create, get, names, noise, put, root, together};
use samite_fs::{OpenFlags, RenameFlags};
use samite_types::ErrorKind;

const REPLACE: RenameFlags = RenameFlags { no_replace: false, exchange: false, whiteout: false };

#[test]
fn each_name_is_won_once() {
    let rig = Rig::new(3);
    let exclusive = OpenFlags { excl: true, ..OpenFlags::creating() };
    let wins: Vec<AtomicUsize> = (0..200).map(|_| AtomicUsize::new(0)).collect();
    together(&rig, 6, |_, fs| {
        for (index, wins) in wins.iter().enumerate() {
            match fs.open_file(&root(), format!("/{index}").as_bytes(), exclusive, 0o644) {
                Ok(_) => drop(wins.fetch_add(1, Ordering::Relaxed)),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Exists),
            }
        }
    });
    assert!(wins.iter().all(|wins| wins.load(Ordering::Relaxed) == 1));
    assert_eq!(names(&rig.fs, b"/").len(), wins.len());
}

#[test]
fn appends_neither_overlap_nor_get_lost() {
    let rig = Rig::new(3);
    create(&rig.fs, b"/log");
    const WRITERS: usize = 4;
    const LINES: usize = 300;
    let flags = OpenFlags { write: true, append: true, ..OpenFlags::default() };
    // From a few bytes in the inode to several chunks.
    let line = |writer: usize, index: usize| {
        let mut line = vec![b'a' + writer as u8; 20 + (index % 7) * 700];
        line.extend(format!(" {writer} {index}\n").as_bytes());
        line
    };
    together(&rig, WRITERS, |writer, fs| {
        let file = fs.open_file(&root(), b"/log", flags, 0).unwrap();
        for index in 0..LINES {
            file.append(&line(writer, index)).unwrap();
        }
        file.close().unwrap();
    });
    let all = get(&rig.fs, b"/log").unwrap();
    let mut found: Vec<&[u8]> = all.split_inclusive(|byte| *byte == b'\n').collect();
    found.sort();
    let mut expected: Vec<Vec<u8>> = (0..WRITERS)
        .flat_map(|writer| (0..LINES).map(move |index| (writer, index)))
        .map(|(writer, index)| line(writer, index))
        .collect();
    expected.sort();
    assert!(found == expected, "{} lines of {}", found.len(), expected.len());
}

#[test]
fn a_reader_of_a_growing_log_sees_no_zeros() {
    // Five times over the end of a chunk.
    const APPENDS: u64 = 1200;
    let rig = Rig::new(3);
    create(&rig.fs, b"/log");
    let done = AtomicBool::new(false);
    let flags = OpenFlags { write: true, append: true, ..OpenFlags::default() };
    together(&rig, 2, |index, fs| {
        if index == 0 {
            let file = fs.open_file(&root(), b"/log", flags, 0).unwrap();
            for _ in 0..APPENDS {
                file.append(&[b'x'; 5000]).unwrap();
            }
            done.store(true, Ordering::Release);
            return;
        }
        let file = fs.open_file(&root(), b"/log", OpenFlags::reading(), 0).unwrap();
        let (mut at, mut buf) = (0, vec![0; 64 << 10]);
        loop {
            let is_done = done.load(Ordering::Acquire);
            let len = file.read_at(&mut buf, at).unwrap();
            assert!(buf[..len].iter().all(|byte| *byte == b'x'), "zeros at {at}");
            at += len as u64;
            if len == 0 && is_done {
                break;
            }
        }
        assert_eq!(at, APPENDS * 5000);
    });
}

#[test]
fn several_convert_one_file() {
    let rig = Rig::new(3);
    for round in 0..20u64 {
        let path = format!("/f{round}");
        let start = noise(if round % 2 == 0 { 0 } else { 5000 }, round);
        put(&rig.fs, path.as_bytes(), &start);
        const PART: usize = 30_000;
        together(&rig, 3, |index, fs| {
            let file = fs.open_file(&root(), path.as_bytes(), OpenFlags::creating(), 0).unwrap();
            let at = 8192 + (index * PART) as u64;
            file.write_at(&noise(PART, index as u64), at).unwrap();
            file.close().unwrap();
        });
        let all = get(&rig.fs, path.as_bytes()).unwrap();
        assert_eq!(all.len(), 8192 + 3 * PART);
        assert!(all[..start.len()] == start, "round {round}");
        for index in 0..3 {
            let at = 8192 + index * PART;
            assert!(all[at..at + PART] == noise(PART, index as u64), "round {round}");
        }
    }
}

#[test]
fn sizes_are_right_whoever_writes() {
    let rig = Rig::new(3);
    let file = create(&rig.fs, b"/f");
    let other = rig.another();
    let second = other.open_file(&root(), b"/f", OpenFlags::creating(), 0).unwrap();
    let size = || rig.another().stat(&root(), b"/f", true).unwrap().size;
    file.write_at(&[1; 100_000], 0).unwrap();
    assert_eq!((size(), second.attr().unwrap().size), (100_000, 100_000));
    second.write_at(&[2; 100_000], 2 << 20).unwrap();
    file.close().unwrap();
    assert_eq!(size(), (2 << 20) + 100_000);
    second.write_at(&[2; 10], 3 << 20).unwrap();
    assert_eq!(size(), (3 << 20) + 10);
    rig.fs.truncate(&root(), b"/f", 1000).unwrap();
    assert_eq!(size(), 1000);
    second.close().unwrap();
    assert_eq!(size(), 1000);
    second.write_at(&[2; 10], 5000).unwrap();
    assert_eq!(size(), 5010);
    assert_eq!(second.append(&[3; 10]).unwrap(), (5010, 10));
    second.close().unwrap();
    assert_eq!(size(), 5020);
    assert_eq!(get(&rig.fs, b"/f").unwrap().len(), 5020);
}

#[test]
fn renames_of_a_directory_against_creates_in_it() {
    let rig = Rig::new(3);
    rig.fs.mkdir(&root(), b"/d0", 0o755).unwrap();
    let made: Vec<AtomicUsize> = (0..3).map(|_| AtomicUsize::new(0)).collect();
    together(&rig, 3, |index, fs| {
        if index == 0 {
            for round in 0..60 {
                let (from, to) = (format!("/d{}", round % 2), format!("/d{}", (round + 1) % 2));
                fs.rename(&root(), from.as_bytes(), to.as_bytes(), REPLACE).unwrap();
            }
            return;
        }
        for name in 0..200 {
            for dir in [0, 1] {
                let path = format!("/d{dir}/{index}-{name}");
                match fs.open_file(&root(), path.as_bytes(), OpenFlags::creating(), 0o644) {
                    Ok(_) => drop(made[index].fetch_add(1, Ordering::Relaxed)),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound),
                }
            }
        }
    });
    let dir = names(&rig.fs, b"/");
    assert_eq!(dir, [b"d0"]);
    let files = names(&rig.fs, b"/d0");
    let mut distinct = files.clone();
    distinct.dedup();
    assert_eq!(files.len(), distinct.len());
    let made: usize = made.iter().map(|made| made.load(Ordering::Relaxed)).sum();
    // A name may have been made (opened) twice, once under each path of the directory.
    assert!(files.len() <= made && files.len() * 2 >= made, "{} of {made}", files.len());
}

#[test]
fn removals_of_a_directory_against_creates_in_it() {
    let rig = Rig::new(3);
    let stop = AtomicBool::new(false);
    let orphans = AtomicUsize::new(0);
    together(&rig, 3, |index, fs| {
        if index == 0 {
            for _ in 0..100 {
                match fs.mkdir(&root(), b"/d", 0o755) {
                    Ok(()) => {}
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Exists),
                }
                match fs.rmdir(&root(), b"/d") {
                    Ok(()) => {}
                    Err(error) => assert_eq!(error.kind(), ErrorKind::NotEmpty),
                }
            }
            stop.store(true, Ordering::Release);
            return;
        }
        let path = format!("/d/{index}");
        while !stop.load(Ordering::Acquire) {
            if fs.open_file(&root(), path.as_bytes(), OpenFlags::creating(), 0o644).is_ok() {
                // A file that was made in a directory is there, and keeps it from being removed.
                if fs.unlink(&root(), path.as_bytes()).is_err() {
                    orphans.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    });
    assert_eq!(orphans.load(Ordering::Relaxed), 0);
}

#[test]
fn renames_over_one_name_never_leave_it_missing() {
    let rig = Rig::new(3);
    put(&rig.fs, b"/name", b"start");
    let stop = AtomicBool::new(false);
    together(&rig, 3, |index, fs| {
        if index == 0 {
            while !stop.load(Ordering::Acquire) {
                fs.stat(&root(), b"/name", true).unwrap();
            }
            return;
        }
        for round in 0..100 {
            let temporary = format!("/tmp{index}-{round}");
            put(fs, temporary.as_bytes(), temporary.as_bytes());
            fs.rename(&root(), temporary.as_bytes(), b"/name", REPLACE).unwrap();
        }
        stop.store(true, Ordering::Release);
    });
    assert_eq!(names(&rig.fs, b"/"), [b"name"]);
    assert!(get(&rig.fs, b"/name").unwrap().starts_with(b"/tmp"));
}

#[test]
fn two_directories_cannot_be_moved_into_each_other() {
    let rig = Rig::new(3);
    for round in 0..20 {
        let [a, b] = ["a", "b"].map(|name| format!("/{name}{round}"));
        rig.fs.mkdir(&root(), a.as_bytes(), 0o755).unwrap();
        rig.fs.mkdir(&root(), b.as_bytes(), 0o755).unwrap();
        let moved = AtomicUsize::new(0);
        together(&rig, 2, |index, fs| {
            let (from, into) = if index == 0 { (&a, &b) } else { (&b, &a) };
            let to = format!("{into}/inside");
            if fs.rename(&root(), from.as_bytes(), to.as_bytes(), REPLACE).is_ok() {
                moved.fetch_add(1, Ordering::Relaxed);
            }
        });
        assert_eq!(moved.load(Ordering::Relaxed), 1, "round {round}");
    }
    assert_eq!(names(&rig.fs, b"/").len(), 20);
}

#[test]
fn one_file_renamed_by_several_goes_to_one_place() {
    let rig = Rig::new(3);
    for round in 0..20 {
        put(&rig.fs, format!("/f{round}").as_bytes(), &noise(100, round));
        let moved = AtomicUsize::new(0);
        together(&rig, 3, |index, fs| {
            let (from, to) = (format!("/f{round}"), format!("/t{round}-{index}"));
            match fs.rename(&root(), from.as_bytes(), to.as_bytes(), REPLACE) {
                Ok(()) => drop(moved.fetch_add(1, Ordering::Relaxed)),
                Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound),
            }
        });
        assert_eq!(moved.load(Ordering::Relaxed), 1);
    }
    assert_eq!(names(&rig.fs, b"/").len(), 20);
}
