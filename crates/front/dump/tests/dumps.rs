//! Dumps come back as they were, in clusters of other sizes, and are of one moment.
#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

mod common;

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{
    all_files, all_records, cluster, dump_to, fill_files, fill_records, load_from, nameless_file,
    names, small,
};
use samite_client::{Client, TransportKind};
use samite_dump::{
    DumpDestination, DumpOptions, DumpSource, LoadOptions, TransferProgress, dump, load,
};
use samite_fs::FileSystem;
use samite_kv::KvView;
use samite_testkit::datasets::pattern;
use samite_types::{ErrorKind, Redundancy};
use samite_wire::control::DatasetSpec;

#[test]
fn what_was_dumped_comes_back_in_clusters_of_other_sizes() {
    let (_first, client) = cluster(2);
    fill_files(&client);
    fill_records(&client);
    // A file that is open and has no name any more does not come back.
    let nameless = nameless_file(&client);
    let (files, records) = (all_files(&client, "files"), all_records(&client, "kv"));
    assert!(FileSystem::open(&client, "files").unwrap().has_orphans().unwrap());
    assert!(files.len() > 250 && records.len() > 600);
    let scratch = tempfile::tempdir().unwrap();
    let first = scratch.path().join("first");
    let report = dump_to(&client, &first, &small()).unwrap();
    assert!(report.segments > 20 && report.passes == 2, "{report:?}");
    // Nobody is held back any more.
    KvView::new(client.dataset("kv").unwrap()).put(b"later", b"").unwrap();
    // As many partitions; then twice as many; then half as many of these.
    let (_second, three) = cluster(3);
    load_from(&three, &first, &LoadOptions::default()).unwrap();
    assert_eq!(all_files(&three, "files"), files);
    assert_eq!(all_records(&three, "kv"), records);
    assert!(!FileSystem::open(&three, "files").unwrap().has_orphans().unwrap());
    nameless.close().unwrap();
    let (_third, many) = cluster(5);
    assert_eq!(many.map().unwrap().partitions(), 2 * three.map().unwrap().partitions());
    load_from(&many, &first, &LoadOptions::default()).unwrap();
    assert_eq!(all_files(&many, "files"), files);
    assert_eq!(all_records(&many, "kv"), records);
    let second = scratch.path().join("second");
    dump_to(&many, &second, &small()).unwrap();
    let (_fourth, one) = cluster(1);
    load_from(&one, &second, &LoadOptions::default()).unwrap();
    assert_eq!(all_files(&one, "files"), files);
    assert_eq!(all_records(&one, "kv"), records);
}

#[test]
fn a_stream_is_loaded_under_another_name() {
    let (_cluster, client) = cluster(1);
    fill_records(&client);
    let records = all_records(&client, "kv");
    let mut pipe = tempfile::tempfile().unwrap();
    let to = DumpDestination::Stream(Box::new(pipe.try_clone().unwrap()));
    dump(&client, &names(&client), to, &small(), &TransferProgress::default()).unwrap();
    std::io::Seek::rewind(&mut pipe).unwrap();
    let mut whole = Vec::new();
    std::io::Read::read_to_end(&mut pipe, &mut whole).unwrap();
    let options = |name: &str| LoadOptions {
        datasets: vec![("kv".into(), name.into())],
        ..LoadOptions::default()
    };
    let load_bytes = |bytes: &[u8], name: &str| {
        let from = DumpSource::Stream(Box::new(std::io::Cursor::new(bytes.to_vec())));
        load(&client, from, &options(name), &TransferProgress::default())
    };
    load_bytes(&whole, "copy").unwrap();
    assert_eq!(all_records(&client, "copy"), records);
    // One that ends too early is refused wherever it ends, and made whole by the next try.
    for part in [10, whole.len() / 3, whole.len() - 1] {
        let error = load_bytes(&whole[..part], "late").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }
    assert!(load_bytes(&whole, "late").unwrap().is_continued);
    assert_eq!(all_records(&client, "late"), records);
    // What is there stays, unless it is to go.
    let error = load_bytes(&whole, "late").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exists, "{error}");
    let replace = LoadOptions { replace: true, ..options("late") };
    let from = DumpSource::Stream(Box::new(std::io::Cursor::new(whole)));
    load(&client, from, &replace, &TransferProgress::default()).unwrap();
    assert_eq!(all_records(&client, "late"), records);
}

#[test]
fn a_damaged_segment_is_named_and_nothing_of_it_is_loaded() {
    let (_cluster, client) = cluster(1);
    fill_records(&client);
    let records = all_records(&client, "kv");
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("dump");
    dump_to(&client, &path, &small()).unwrap();
    let name = "kv.0.00000003.segment";
    let segment = fs::read(path.join(name)).unwrap();
    let (_other, other) = cluster(1);
    for at in [0, 30, 70, segment.len() - 1] {
        let mut bent = segment.clone();
        bent[at] ^= 4;
        fs::write(path.join(name), bent).unwrap();
        let error = load_from(&other, &path, &LoadOptions::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.message().contains(name), "{error}");
    }
    // One that belongs elsewhere, and one that is not there.
    fs::copy(path.join("kv.0.00000004.segment"), path.join(name)).unwrap();
    let error = load_from(&other, &path, &LoadOptions::default()).unwrap_err();
    assert!(error.message().contains("another segment"), "{error}");
    fs::remove_file(path.join(name)).unwrap();
    let error = load_from(&other, &path, &LoadOptions::default()).unwrap_err();
    assert!(error.message().contains("missing"), "{error}");
    fs::write(path.join(name), &segment).unwrap();
    assert!(load_from(&other, &path, &LoadOptions::default()).unwrap().is_continued);
    assert_eq!(all_records(&other, "kv"), records);
}

/// Writes `a` and then `b`, in other partitions, again and again, with higher and higher numbers.
fn write_pairs(client: &Client, dataset: &str, pair: u32, is_over: &AtomicBool) -> u64 {
    let kv = KvView::new(client.dataset(dataset).unwrap());
    let (a, b) = (format!("a{pair}"), format!("b{pair}"));
    let mut number = 0_u64;
    while !is_over.load(Ordering::Relaxed) {
        number += 1;
        kv.set(a.as_bytes(), &number.to_le_bytes()).unwrap();
        kv.set(b.as_bytes(), &number.to_le_bytes()).unwrap();
        // Records that come and go.
        let passing = format!("passing{pair}/{number}");
        kv.set(passing.as_bytes(), &pattern(100, number)).unwrap();
        if number > 50 {
            let gone = format!("passing{pair}/{}", number - 50);
            assert!(kv.delete(gone.as_bytes()).unwrap());
        }
    }
    number
}

fn number_of(kv: &KvView, key: &str) -> u64 {
    let value = kv.get(key.as_bytes()).unwrap().unwrap();
    u64::from_le_bytes(value.bytes.try_into().unwrap())
}

#[test]
fn a_dump_is_of_one_moment_while_others_write() {
    let (first, client) = cluster(2);
    // In one, clients on the host complete changes without a request; the other is mirrored.
    for (name, redundancy) in [("alone", 1), ("mirrored", 2)] {
        let redundancy = Redundancy(redundancy);
        client.create_dataset(&DatasetSpec { redundancy, ..DatasetSpec::new(name) }).unwrap();
    }
    let is_over = AtomicBool::new(false);
    let scratch = tempfile::tempdir().unwrap();
    let path = |round: u32| scratch.path().join(format!("dump{round}"));
    let written: Vec<u64> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4_u32)
            .map(|pair| {
                let transport = if pair == 3 { TransportKind::Unix } else { TransportKind::Shm };
                let writer = samite_testkit::datasets::client(&first, transport);
                let (dataset, is_over) = (["alone", "mirrored"][pair as usize % 2], &is_over);
                scope.spawn(move || write_pairs(&writer, dataset, pair, is_over))
            })
            .collect();
        for round in 0..3 {
            // Writers have begun.
            for (dataset, pair) in [("alone", 0), ("mirrored", 1), ("alone", 2), ("mirrored", 3)] {
                let kv = KvView::new(client.dataset(dataset).unwrap());
                while kv.get(format!("b{pair}").as_bytes()).unwrap().is_none() {}
            }
            let report = dump_to(&client, &path(round), &DumpOptions::default()).unwrap();
            assert!(report.passes >= 2, "{report:?}");
        }
        is_over.store(true, Ordering::Relaxed);
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    assert!(written.iter().all(|count| *count > 10), "{written:?}");
    for round in 0..3 {
        let (_second, loaded) = cluster(3);
        load_from(&loaded, &path(round), &LoadOptions::default()).unwrap();
        for pair in 0..4_usize {
            let kv = KvView::new(loaded.dataset(["alone", "mirrored"][pair % 2]).unwrap());
            let (a, b) = (number_of(&kv, &format!("a{pair}")), number_of(&kv, &format!("b{pair}")));
            assert!(a == b || a == b + 1, "round {round}, pair {pair}: {a} {b}");
            let page = kv.list(format!("passing{pair}/").as_bytes(), b"", 1000).unwrap();
            let passing = page.entries.len() as u64;
            let expected = b.min(50);
            assert!(
                (expected.saturating_sub(1)..=expected + 1).contains(&passing),
                "round {round}, pair {pair}: {passing} beside {a} {b}"
            );
        }
    }
}

#[test]
fn a_freeze_holds_changes_back_and_nothing_else() {
    let (first, client) = cluster(2);
    let dataset = client.create_dataset(&DatasetSpec::new("d")).unwrap();
    let kv = KvView::new(dataset.clone());
    kv.put(b"k", b"before").unwrap();
    let other = samite_testkit::datasets::client(&first, TransportKind::Shm);
    let freeze = dataset.freeze().unwrap();
    let second = other.dataset("d").unwrap().freeze().unwrap_err();
    assert_eq!(second.kind(), ErrorKind::InUse, "{second}");
    // Another dataset is not concerned.
    let free = KvView::new(other.create_dataset(&DatasetSpec::new("free")).unwrap());
    free.put(b"k", b"v").unwrap();
    let has_written = AtomicBool::new(false);
    let has_written = &has_written;
    std::thread::scope(|scope| {
        let waits = KvView::new(other.dataset("d").unwrap());
        let writer = scope.spawn(move || {
            waits.put(b"k", b"after").unwrap();
            has_written.store(true, Ordering::SeqCst);
        });
        for _ in 0..200 {
            assert_eq!(kv.get(b"k").unwrap().unwrap().bytes, b"before");
            std::thread::yield_now();
        }
        assert!(!has_written.load(Ordering::SeqCst));
        freeze.check().unwrap();
        drop(freeze);
        writer.join().unwrap();
    });
    assert_eq!(kv.get(b"k").unwrap().unwrap().bytes, b"after");
    drop(dataset.freeze().unwrap());
}
