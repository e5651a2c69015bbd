//! Holes: made, found, counted, copied.
#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

mod common;

use std::time::{Duration, Instant};

use common::{Rig, create, get, kind, noise, put, read_all, root};
use samite_fs::{AllocateMode, OpenFile, OpenFlags};
use samite_types::ErrorKind;

const MIB: u64 = 1 << 20;

fn blocks(file: &OpenFile) -> u64 {
    file.attr().unwrap().blocks * 512
}

#[test]
fn a_long_file_with_few_bytes_is_quick_to_ask_and_takes_little() {
    let rig = Rig::new(3);
    let start = Instant::now();
    let file = create(&rig.fs, b"/f");
    file.write_at(&noise(65536, 1), 0).unwrap();
    for at in [5u64 << 30, 9 << 30] {
        file.write_at(&noise(65536, 2), at + 65536).unwrap();
    }
    file.truncate(10 << 30).unwrap();
    assert_eq!(blocks(&file), 3 * 65536);
    assert_eq!(rig.another().stat(&root(), b"/f", true).unwrap().blocks * 512, 3 * 65536);
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(data) = file.seek_data(at).unwrap() {
        at = file.seek_hole(data).unwrap().unwrap();
        found.push((data, at));
    }
    let (five, nine) = ((5 << 30) + 65536, (9 << 30) + 65536);
    assert_eq!(found, [(0, 65536), (five, five + 65536), (nine, nine + 65536)]);
    assert_eq!(file.seek_hole(100 << 20).unwrap(), Some(100 << 20));
    assert_eq!(file.seek_hole(10 << 30).unwrap(), None);
    assert_eq!(file.seek_data(10 << 30).unwrap(), None);
    // All of it is one hole after this, however much lies in it.
    file.allocate(AllocateMode::PunchHole, 0, 20 << 30).unwrap();
    assert_eq!((blocks(&file), file.attr().unwrap().size), (0, 10 << 30));
    assert_eq!(file.seek_data(0).unwrap(), None);
    assert_eq!(file.seek_hole(0).unwrap(), Some(0));
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

#[test]
fn a_dense_file_has_its_hole_at_the_end() {
    let rig = Rig::new(1);
    let file = create(&rig.fs, b"/f");
    assert_eq!(file.seek_hole(0).unwrap(), None);
    file.write_at(&noise(100, 1), 0).unwrap();
    assert_eq!((file.seek_data(7).unwrap(), file.seek_hole(7).unwrap()), (Some(7), Some(100)));
    file.write_at(&noise(3_000_000, 1), 0).unwrap();
    assert_eq!(
        (file.seek_data(7).unwrap(), file.seek_hole(7).unwrap()),
        (Some(7), Some(3_000_000))
    );
    assert_eq!(file.attr().unwrap().blocks, 3_000_000u64.div_ceil(512));
    assert_eq!(file.seek_data(3_000_000).unwrap(), None);
}

#[test]
fn a_hole_reads_as_zeros_and_gives_space_back() {
    let rig = Rig::new(3);
    let used = || rig.fs.statfs().unwrap().blocks_free;
    let file = create(&rig.fs, b"/f");
    let mut data = noise(10_000_000, 1);
    file.write_at(&data, 0).unwrap();
    let (before, full) = (used(), blocks(&file));
    let (from, to) = (MIB + 1000, 8 * MIB + 77);
    file.allocate(AllocateMode::PunchHole, from, to - from).unwrap();
    data[from as usize..to as usize].fill(0);
    assert!(read_all(&file).unwrap() == data);
    assert!(full - blocks(&file) >= 6 * MIB, "{} of {full}", blocks(&file));
    assert!((used() - before) * 4096 >= 6 * MIB);
    assert!(get(&rig.another(), b"/f").unwrap() == data);
    // Also at the end: the length stays, also for handles that ask the chunks.
    file.allocate(AllocateMode::PunchHole, 9 * MIB, 5 * MIB).unwrap();
    data[9 * MIB as usize..].fill(0);
    assert!(read_all(&file).unwrap() == data);
    let writer = create(&rig.another(), b"/f");
    writer.write_at(b"x", 0).unwrap();
    data[0] = b'x';
    assert_eq!(rig.fs.stat(&root(), b"/f", true).unwrap().size, data.len() as u64);
    assert!(get(&rig.fs, b"/f").unwrap() == data);
    assert_eq!(file.append(b"end").unwrap(), (data.len() as u64, 3));
}

#[test]
fn ranges_are_zeroed_and_extended() {
    let rig = Rig::new(1);
    for len in [5000usize, 2_500_000] {
        let mut data = noise(len, 5);
        put(&rig.fs, b"/f", &data);
        let file = create(&rig.fs, b"/f");
        let end = len as u64;
        file.allocate(AllocateMode::ZeroRange { keep_size: true }, end - 10, 100).unwrap();
        data[len - 10..].fill(0);
        assert_eq!(read_all(&file).unwrap(), data);
        file.allocate(AllocateMode::ZeroRange { keep_size: false }, end - 20, 100).unwrap();
        data[len - 20..].fill(0);
        data.resize(len + 80, 0);
        assert_eq!(read_all(&file).unwrap(), data);
        file.allocate(AllocateMode::KeepSize, end, 10_000).unwrap();
        file.allocate(AllocateMode::Extend, 0, 10).unwrap();
        assert_eq!(read_all(&file).unwrap(), data);
        file.allocate(AllocateMode::Extend, end, 100_000).unwrap();
        data.resize(len + 100_000, 0);
        assert!(read_all(&file).unwrap() == data);
        file.close().unwrap();
        rig.fs.unlink(&root(), b"/f").unwrap();
    }
    let file = create(&rig.fs, b"/f");
    let extend = |at, len| file.allocate(AllocateMode::Extend, at, len);
    assert_eq!(kind(extend(0, 0)), ErrorKind::Invalid);
    assert_eq!(kind(extend(u64::MAX - 1, 2)), ErrorKind::FileTooLarge);
    assert_eq!(kind(extend(0, 1 << 40)), ErrorKind::NoSpace);
    let reader = rig.fs.open_file(&root(), b"/f", OpenFlags::reading(), 0).unwrap();
    assert_eq!(kind(reader.allocate(AllocateMode::PunchHole, 0, 1)), ErrorKind::BadDescriptor);
    assert_eq!(AllocateMode::from_raw(3).unwrap(), AllocateMode::PunchHole);
    for unknown in [2, 8, 0x20, 0x40] {
        assert_eq!(kind(AllocateMode::from_raw(unknown)), ErrorKind::Unsupported, "{unknown}");
    }
}

#[test]
fn holes_between_writes_of_one_handle_show_at_once() {
    let rig = Rig::new(3);
    let file = create(&rig.fs, b"/f");
    file.write_at(&noise(1 << 20, 1), 64 * MIB).unwrap();
    let other = rig.another();
    // The other one asks while the first still writes.
    assert_eq!(other.stat(&root(), b"/f", true).unwrap().blocks * 512, MIB);
    file.truncate(0).unwrap();
    file.write_at(&noise(1 << 20, 1), 0).unwrap();
    assert_eq!(blocks(&file), MIB);
    file.write_at(&noise(1 << 20, 1), 2 * MIB).unwrap();
    file.close().unwrap();
    assert_eq!(other.stat(&root(), b"/f", true).unwrap().blocks * 512, 2 * MIB);
}

fn copies(nodes: usize) {
    let rig = Rig::with_memory(nodes, 128 << 20);
    let fs = &rig.fs;
    let from = create(fs, b"/from");
    let mut data = noise(20_000_000, 3);
    from.write_at(&data, 0).unwrap();
    from.allocate(AllocateMode::PunchHole, 3 * MIB, 10 * MIB).unwrap();
    data[3 << 20..13 << 20].fill(0);
    let to = create(fs, b"/to");
    let len = data.len() as u64;
    assert_eq!(fs.copy_range(&from, 0, &to, 0, 1 << 40).unwrap(), len);
    assert!(read_all(&to).unwrap() == data);
    assert_eq!(blocks(&to), blocks(&from), "holes stay holes");
    // Over other data, at another offset.
    let over = create(fs, b"/over");
    let mut expected = noise(20_000_000, 9);
    over.write_at(&expected, 0).unwrap();
    assert_eq!(fs.copy_range(&from, MIB + 5, &over, 77, 6 * MIB).unwrap(), 6 * MIB);
    expected[77..77 + (6 << 20)].copy_from_slice(&data[(1 << 20) + 5..(7 << 20) + 5]);
    assert!(read_all(&over).unwrap() == expected);
    // Within one file, and with a hole at the end.
    assert_eq!(fs.copy_range(&over, 0, &over, 25_000_000, 1000).unwrap(), 1000);
    assert_eq!(over.attr().unwrap().size, 25_001_000);
    let tail = create(fs, b"/tail");
    assert_eq!(fs.copy_range(&from, 4 * MIB, &tail, 0, 2 * MIB).unwrap(), 2 * MIB);
    assert_eq!((tail.attr().unwrap().size, blocks(&tail)), (2 * MIB, 0));
    assert_eq!(kind(fs.copy_range(&over, 0, &over, 999, 1000)), ErrorKind::Invalid);
    assert_eq!(fs.copy_range(&over, 30_000_000, &to, 0, 1000).unwrap(), 0);
    let reader = fs.open_file(&root(), b"/to", OpenFlags::reading(), 0).unwrap();
    assert_eq!(kind(fs.copy_range(&from, 0, &reader, 0, 1)), ErrorKind::BadDescriptor);
}

#[test]
fn ranges_are_copied_on_one_node() {
    copies(1);
}

#[test]
fn ranges_are_copied_on_three_nodes() {
    copies(3);
}
