//! Many files, keys and objects: `cargo test --release -p samite-dump --test many -- --ignored`.
#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

use std::path::Path;
use std::time::Instant;

use samite_client::scan::ScanOptions;
use samite_client::{Client, ClientOptions};
use samite_dump::{
    DumpDestination, DumpOptions, DumpSource, LoadOptions, TransferProgress, dump, load,
};
use samite_fs::{CallerContext, FileSystem, OpenFlags};
use samite_kv::KvView;
use samite_object::ObjectView;
use samite_testkit::datasets::pattern;
use samite_testkit::{LocalCluster, LocalOptions};
use xxhash_rust::xxh3::xxh3_64_with_seed;

const FILES: u64 = 100_000;

fn cluster(nodes: usize) -> (LocalCluster, Client) {
    let options = LocalOptions { memory_bytes: 1 << 30, ..LocalOptions::default() };
    let cluster = LocalCluster::start(nodes, options).unwrap();
    let client = cluster.client(ClientOptions::default()).unwrap();
    (cluster, client)
}

fn fill(client: &Client) {
    let fs = FileSystem::open(client, "files").unwrap();
    let root = CallerContext::root();
    let dataset = client.create_dataset(&client.spec("kv")).unwrap();
    let (kv, objects) = (KvView::new(dataset.clone()), ObjectView::new(dataset));
    for number in 0..FILES {
        if number % 1000 == 0 {
            fs.mkdir(&root, format!("/d{}", number / 1000).as_bytes(), 0o755).unwrap();
        }
        let data = pattern(number as usize % 2000, number);
        let path = format!("/d{}/f{number}", number / 1000);
        let file = fs.open_file(&root, path.as_bytes(), OpenFlags::creating(), 0o644).unwrap();
        assert_eq!(file.write_at(&data, 0).unwrap(), data.len());
        file.close().unwrap();
        kv.set(format!("key{number}").as_bytes(), &data).unwrap();
        if number % 2 == 0 {
            let object = objects.create(format!("object{number}").as_bytes()).unwrap();
            object.write_at(&data, 0).unwrap();
        }
    }
}

/// Number of records, and a sum over keys and values in any order.
fn sum(client: &Client, dataset: &str) -> (u64, u64) {
    let scan = client.dataset(dataset).unwrap().scan(&ScanOptions::default()).unwrap();
    let mut cursor = scan.cursor();
    let (mut count, mut sum) = (0, 0_u64);
    while cursor.advance().unwrap() {
        let record = cursor.record();
        count += 1;
        let partition = u64::from(record.partition.get());
        let key = xxh3_64_with_seed(record.key, partition);
        sum = sum.wrapping_add(xxh3_64_with_seed(record.value, key));
    }
    (count, sum)
}

fn timed<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let result = work();
    eprintln!("{what}: {:.2} s", begun.elapsed().as_secs_f64());
    result
}

fn dump_all(client: &Client, path: &Path) {
    let names = ["files".to_owned(), "kv".to_owned()];
    let to = DumpDestination::Directory(path.to_owned());
    let report = dump(client, &names, to, &DumpOptions::default(), &TransferProgress::default());
    eprintln!("{:?}", report.unwrap());
}

#[test]
#[ignore = "takes minutes"]
fn many_files_keys_and_objects_come_back() {
    let (_first, client) = cluster(2);
    timed("fill", || fill(&client));
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("dump");
    timed("dump", || dump_all(&client, &path));
    let (_second, other) = cluster(3);
    timed("load", || {
        let from = DumpSource::Directory(path.clone());
        load(&other, from, &LoadOptions::default(), &TransferProgress::default()).unwrap();
    });
    for dataset in ["files", "kv"] {
        let all = sum(&client, dataset);
        assert!(all.0 >= FILES);
        assert_eq!(sum(&other, dataset), all, "{dataset}");
    }
}
