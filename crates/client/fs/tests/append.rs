//! Appends by several processes: each is in the file whole, or not at all, at any time.
#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

mod common;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use common::{Rig, create, get, root, together};
use samite_fs::{FileSystem, OpenFile, OpenFlags};
use samite_types::ErrorKind;

/// The longest: larger than what one operation appends.
const RECORD_LEN_MAX: usize = 2_500_000;

fn appending(fs: &FileSystem) -> OpenFile {
    let flags = OpenFlags { write: true, append: true, ..OpenFlags::default() };
    fs.open_file(&root(), b"/log", flags, 0).unwrap()
}

/// A record that says how long it is, and whose.
fn record(len: usize, writer: usize, count: usize) -> Vec<u8> {
    let mut record = vec![b'a' + writer as u8; len];
    record[..8].copy_from_slice(&(len as u64).to_le_bytes());
    record[8..16].copy_from_slice(&(count as u64).to_le_bytes());
    record
}

/// Writer and number of each record; panics unless `all` is nothing but whole records.
fn records(all: &[u8]) -> Vec<(usize, u64)> {
    let (mut rest, mut found) = (all, Vec::new());
    while let Some((header, _)) = rest.split_first_chunk::<17>() {
        let len = u64::from_le_bytes(*header.first_chunk().unwrap()) as usize;
        let count = u64::from_le_bytes(*header[8..].first_chunk().unwrap());
        let at = all.len() - rest.len();
        assert!((17..=RECORD_LEN_MAX).contains(&len), "no record at {at}");
        assert!(len <= rest.len(), "the record at {at} is cut off");
        let (record, after) = rest.split_at(len);
        assert!(record[16..].iter().all(|byte| *byte == record[16]), "the record at {at} is torn");
        found.push((usize::from(record[16] - b'a'), count));
        rest = after;
    }
    assert!(rest.is_empty(), "{} bytes that are no record", rest.len());
    found
}

/// Three threads append `count` records of the lengths in turn; one reads meanwhile. Returns the
/// records that are there in the end.
fn several(rig: &Rig, lengths: &[usize], count: usize, reads: bool) -> Vec<(usize, u64)> {
    create(&rig.fs, b"/log");
    let at_work = AtomicUsize::new(3);
    together(rig, 4, |index, fs| {
        if index < 3 {
            let file = appending(fs);
            for number in 0..count {
                let record = record(lengths[number % lengths.len()], index, number);
                assert_eq!(file.append(&record).unwrap().1, record.len());
            }
            file.close().unwrap();
            at_work.fetch_sub(1, Ordering::AcqRel);
            return;
        }
        while reads && at_work.load(Ordering::Acquire) > 0 {
            records(&get(fs, b"/log").unwrap());
        }
    });
    let found = records(&get(&rig.fs, b"/log").unwrap());
    for writer in 0..3 {
        let of_writer = found.iter().filter(|(whose, _)| *whose == writer).map(|(_, count)| *count);
        assert!(of_writer.eq(0..count as u64), "each once, in order");
    }
    found
}

#[test]
fn records_are_whole_at_every_moment() {
    // Small ones fill tails; the others spill at once, over the ends of chunks, too.
    several(&Rig::new(3), &[20, 500, 4096, 30_000, 65_536, 300_000], 90, true);
}

#[test]
fn records_larger_than_an_operation_are_not_mixed() {
    several(&Rig::new(3), &[1 << 20, RECORD_LEN_MAX, 17, (1 << 20) - 128], 8, false);
}

#[test]
fn records_are_whole_while_others_write_elsewhere() {
    let rig = Rig::new(3);
    create(&rig.fs, b"/log");
    let start = record(200_000, 25, 0);
    appending(&rig.fs).append(&start).unwrap();
    let is_over = AtomicBool::new(false);
    together(&rig, 3, |index, fs| {
        if index == 2 {
            // Its writing mark stands while the others append.
            let file = fs.open_file(&root(), b"/log", OpenFlags::creating(), 0).unwrap();
            while !is_over.load(Ordering::Acquire) {
                file.write_at(&start[100..5000], 100).unwrap();
            }
            file.close().unwrap();
            return;
        }
        let file = appending(fs);
        for number in 0..40 {
            let record = record([700, 9000, 150_000][number % 3], index, number);
            file.append(&record).unwrap();
            assert!(file.attr().unwrap().size > 200_000);
        }
        file.close().unwrap();
        if index == 0 {
            is_over.store(true, Ordering::Release);
        }
    });
    is_over.store(true, Ordering::Release);
    assert_eq!(records(&get(&rig.fs, b"/log").unwrap()).len(), 81);
}

#[test]
fn a_log_that_is_cut_meanwhile_has_whole_records() {
    let rig = Rig::new(3);
    create(&rig.fs, b"/log");
    let at_work = AtomicUsize::new(2);
    together(&rig, 3, |index, fs| {
        if index == 2 {
            while at_work.load(Ordering::Acquire) > 0 {
                fs.truncate(&root(), b"/log", 0).unwrap();
                std::thread::yield_now();
            }
            return;
        }
        let file = appending(fs);
        for number in 0..200 {
            file.append(&record([60, 9000, 140_000][number % 3], index, number)).unwrap();
        }
        file.close().unwrap();
        at_work.fetch_sub(1, Ordering::AcqRel);
    });
    records(&get(&rig.fs, b"/log").unwrap());
    rig.fs.truncate(&root(), b"/log", 0).unwrap();
    rig.fs.truncate(&root(), b"/log", 3 << 20).unwrap();
    assert!(get(&rig.fs, b"/log").unwrap().iter().all(|byte| *byte == 0), "what was cut came back");
}

#[test]
fn a_log_on_a_full_store_keeps_what_it_has_and_can_be_cut() {
    let rig = Rig::with_memory(1, 24 << 20);
    create(&rig.fs, b"/log");
    let file = appending(&rig.fs);
    let (mut len, mut number) = (0u64, 0);
    let error = loop {
        let record = record([40_000, 5000, 100_000][number % 3], 0, number);
        match file.append(&record) {
            Ok((at, done)) => {
                assert_eq!((at, done), (len, record.len()));
                (len, number) = (len + done as u64, number + 1);
            }
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert!(number > 50, "{number} records fit");
    assert_eq!(file.attr().unwrap().size, len);
    assert_eq!(records(&get(&rig.fs, b"/log").unwrap()).len(), number);
    rig.fs.truncate(&root(), b"/log", 0).unwrap();
    assert_eq!(file.append(&record(100, 0, 0)).unwrap(), (0, 100));
    for number in 1..20 {
        file.append(&record(100_000, 0, number)).unwrap();
    }
    assert_eq!(records(&get(&rig.fs, b"/log").unwrap()).len(), 20);
}
