//! Clusters with something in them, and all that is in them, for comparison.
#![allow(clippy::unwrap_used, reason = "a failure fails the test")]
#![allow(dead_code, reason = "each test file uses a part")]

use std::collections::BTreeMap;
use std::path::Path;

use samite_client::{Client, ClientOptions};
use samite_dump::{
    DumpDestination, DumpOptions, DumpReport, DumpSource, LoadOptions, LoadReport,
    TransferProgress, dump, load,
};
use samite_fs::{
    CallerContext, FileKind, FileSystem, OpenFile, OpenFlags, XattrFlags, XattrSubject,
};
use samite_kv::KvView;
use samite_object::ObjectView;
use samite_testkit::datasets::pattern;
use samite_testkit::{LocalCluster, LocalOptions};
use samite_types::Result;

pub fn cluster(nodes: usize) -> (LocalCluster, Client) {
    let options = LocalOptions { memory_bytes: 96 << 20, ..LocalOptions::default() };
    let cluster = LocalCluster::start(nodes, options).unwrap();
    let client = cluster.client(ClientOptions::default()).unwrap();
    (cluster, client)
}

pub fn names(client: &Client) -> Vec<String> {
    let map = client.refresh_map().unwrap();
    map.datasets().iter().map(|dataset| dataset.spec.name.clone()).collect()
}

pub fn small() -> DumpOptions {
    DumpOptions { segment_len: 256 << 10, ..DumpOptions::default() }
}

pub fn dump_to(client: &Client, path: &Path, options: &DumpOptions) -> Result<DumpReport> {
    let to = DumpDestination::Directory(path.to_owned());
    dump(client, &names(client), to, options, &TransferProgress::default())
}

pub fn load_from(client: &Client, path: &Path, options: &LoadOptions) -> Result<LoadReport> {
    let from = DumpSource::Directory(path.to_owned());
    load(client, from, options, &TransferProgress::default())
}

fn root() -> CallerContext {
    CallerContext::root()
}

fn put(fs: &FileSystem, path: &str, data: &[u8], at: u64) {
    let file = fs.open_file(&root(), path.as_bytes(), OpenFlags::creating(), 0o640).unwrap();
    assert_eq!(file.write_at(data, at).unwrap(), data.len());
    file.close().unwrap();
}

/// Files of all kinds.
pub fn fill_files(client: &Client) {
    let fs = FileSystem::open(client, "files").unwrap();
    for dir in 0..12 {
        let dir = format!("/d{dir}");
        fs.mkdir(&root(), dir.as_bytes(), 0o750).unwrap();
        for sub in 0..5 {
            fs.mkdir(&root(), format!("{dir}/s{sub}").as_bytes(), 0o700).unwrap();
        }
        for file in 0..20_u64 {
            let data = pattern(file as usize * 700, file);
            put(&fs, &format!("{dir}/f{file}"), &data, 0);
        }
    }
    put(&fs, "/large", &pattern(3_500_000, 5), 0);
    put(&fs, "/sparse", b"begin", 0);
    put(&fs, "/sparse", b"end", 40 << 20);
    fs.symlink(&root(), b"d1/f3", &b"/points"[..]).unwrap();
    fs.link(&root(), &b"/large"[..], &b"/d2/linked"[..], false).unwrap();
    fs.chmod(&root(), &b"/d3/f1"[..], 0o4711, true).unwrap();
    for (path, name, value) in [("/large", "user.a", pattern(300, 1)), ("/d1", "user.b", vec![])] {
        let file = XattrSubject::Path(path.as_bytes().into(), true);
        let flags = XattrFlags::default();
        fs.set_xattr(&root(), &file, name.as_bytes(), &value, flags).unwrap();
    }
    // Directories that came and went, and files that moved.
    fs.rmdir(&root(), &b"/d4/s0"[..]).unwrap();
    fs.rename(&root(), &b"/d5"[..], &b"/d6/moved"[..], Default::default()).unwrap();
    fs.rename(&root(), &b"/d7/f9"[..], &b"/renamed"[..], Default::default()).unwrap();
    fs.unlink(&root(), &b"/d8/f1"[..]).unwrap();
}

/// A file that is open, and has no name any more.
pub fn nameless_file(client: &Client) -> OpenFile {
    let fs = FileSystem::open(client, "files").unwrap();
    let flags = OpenFlags::creating();
    let file = fs.open_file(&root(), &b"/gone"[..], flags, 0o600).unwrap();
    file.write_at(&pattern(2_000_000, 8), 0).unwrap();
    fs.unlink(&root(), &b"/gone"[..]).unwrap();
    file
}

/// Keys, small and large ones, and groups of them; and objects in the same dataset.
pub fn fill_records(client: &Client) {
    let dataset = client.create_dataset(&client.spec("kv")).unwrap();
    let kv = KvView::new(dataset.clone());
    for key in 0..600_u64 {
        kv.put(format!("key{key}").as_bytes(), &pattern(key as usize * 3, key)).unwrap();
    }
    kv.put(b"large", &pattern(2_700_000, 9)).unwrap();
    let group = kv.group(b"place").unwrap();
    for key in 0..30_u64 {
        group.put(format!("in-group{key}").as_bytes(), &pattern(50, key)).unwrap();
    }
    let objects = ObjectView::new(dataset);
    for object in 0..40_u64 {
        let open = objects.create(format!("object{object}").as_bytes()).unwrap();
        open.write_at(&pattern(object as usize * 9_000, object), object * 1000).unwrap();
    }
    let open = objects.create(b"large").unwrap();
    open.write_at(&pattern(4_200_000, 3), 0).unwrap();
    objects.delete(b"object7").unwrap();
}

/// All there is in the files: attributes, contents or target, extended attributes, by path.
pub fn all_files(client: &Client, dataset: &str) -> BTreeMap<String, String> {
    let fs = FileSystem::open(client, dataset).unwrap();
    let mut all = BTreeMap::new();
    let mut left = vec![String::new()];
    while let Some(dir) = left.pop() {
        let path = if dir.is_empty() { "/" } else { &dir };
        all.insert(path.to_owned(), seen(&fs, path));
        let mut handle = fs.read_dir(&root(), path.as_bytes()).unwrap();
        while let Some(entry) = handle.next_entry().unwrap() {
            let name = String::from_utf8(entry.name.into_vec()).unwrap();
            let path = format!("{dir}/{name}");
            match entry.kind {
                _ if name == "." || name == ".." => {}
                FileKind::Directory => left.push(path),
                _ => drop(all.insert(path.clone(), seen(&fs, &path))),
            }
        }
    }
    all
}

fn seen(fs: &FileSystem, path: &str) -> String {
    let attributes = fs.stat(&root(), path.as_bytes(), false).unwrap();
    let data = match attributes.kind {
        FileKind::Symlink => fs.readlink(&root(), path.as_bytes()).unwrap(),
        FileKind::File => {
            let file = fs.open_file(&root(), path.as_bytes(), OpenFlags::reading(), 0).unwrap();
            let mut data = vec![0; attributes.size as usize];
            let mut at = 0;
            while at < data.len() {
                let len = file.read_at(&mut data[at..], at as u64).unwrap();
                assert!(len > 0, "{path}");
                at += len;
            }
            file.close().unwrap();
            data
        }
        _ => Vec::new(),
    };
    let file = XattrSubject::Path(path.as_bytes().into(), false);
    let names = fs.list_xattrs(&root(), &file).unwrap();
    let extended: Vec<_> = names
        .iter()
        .map(|name| (name.clone(), fs.get_xattr(&root(), &file, name).unwrap()))
        .collect();
    format!("{attributes:?} {:x} {extended:?}", xxhash_rust::xxh3::xxh3_64(&data))
}

/// All keys and objects.
pub fn all_records(client: &Client, dataset: &str) -> BTreeMap<String, Vec<u8>> {
    let dataset = client.dataset(dataset).unwrap();
    let mut all = BTreeMap::new();
    let kv = KvView::new(dataset.clone());
    for (scope, view) in [("", kv.clone()), ("place/", kv.group(b"place").unwrap())] {
        let page = view.list(b"", b"", 10_000).unwrap();
        assert!(page.complete);
        for entry in page.entries {
            let value = view.get(&entry.key).unwrap().unwrap();
            all.insert(format!("{scope}{}", entry.key.escape_ascii()), value.bytes);
        }
    }
    let objects = ObjectView::new(dataset);
    let page = objects.list(b"", b"", 10_000).unwrap();
    assert!(page.complete);
    for entry in page.entries {
        let open = objects.open(&entry.name).unwrap();
        let mut data = vec![0; open.len().unwrap() as usize];
        let len = open.read_at(&mut data, 0).unwrap();
        assert_eq!(len, data.len());
        all.insert(format!("object {}", entry.name.escape_ascii()), data);
    }
    all
}
