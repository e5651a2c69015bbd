//! Directories with very many files. `make test-million` is the long form, with real programs.
#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

mod common;

use common::{Rig, root};
use samite_client::TransportKind;
use samite_fs::{NewFile, Timestamp};

const FILES: u64 = 50_000;
/// Files made in one request per node.
const BATCH: u64 = 250;
/// Bytes by which a process may grow while it lists, however long the listing.
const GROWTH_MAX: u64 = 8 << 20;

/// Resident memory of this process alone, in bytes: the arenas that its nodes share with clients
/// grow in the background.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: Vec<u64> = statm.split(' ').map_while(|field| field.parse().ok()).collect();
    (pages[1] - pages[2]) * rustix::param::page_size() as u64
}

fn name(number: u64) -> Vec<u8> {
    format!("/d/file-{number:08}").into_bytes()
}

#[test]
fn a_listing_takes_few_requests_and_little_memory() {
    let rig = Rig::over(TransportKind::Shm, 3, 256 << 20);
    let (fs, client) = (&rig.fs, &rig.client);
    fs.mkdir(&root(), b"/d", 0o755).unwrap();
    for first in (0..FILES).step_by(BATCH as usize) {
        let paths: Vec<Vec<u8>> = (first..first + BATCH).map(name).collect();
        let (atime, mtime) = (Timestamp(1), Timestamp(2));
        let new = |path| NewFile { path, perm: 0o644, owner: None, atime, mtime, data: b"" };
        let files: Vec<NewFile<'_>> = paths.iter().map(|path| new(path)).collect();
        assert!(fs.put_files(&root(), &files).unwrap().iter().all(Result::is_ok));
    }

    let (before, memory) = (client.stats(), resident());
    let mut seen = vec![false; FILES as usize];
    let mut listing = fs.read_dir(&root(), b"/d").unwrap();
    let mut count = 0;
    while let Some(entry) = listing.next_entry().unwrap() {
        let Some(number) = entry.name.strip_prefix(b"file-") else { continue };
        let number: usize = str::from_utf8(number).unwrap().parse().unwrap();
        assert!(!std::mem::replace(&mut seen[number], true), "{number} came twice");
        count += 1;
    }
    assert_eq!(count, FILES);
    let requests = (client.stats() - before).requests;
    // One for about a thousand entries, and the start and the end of each partition.
    assert!(requests <= FILES / 500 + 3 * 64, "{requests} requests");
    // The nodes are threads of this process, but a listing leaves nothing with them.
    let growth = resident().saturating_sub(memory);
    assert!(growth <= GROWTH_MAX, "{growth} bytes");

    // A create among many costs what it costs in an empty directory, and so do the others.
    let cost = |call: &dyn Fn()| {
        let before = client.stats();
        call();
        let spent = client.stats() - before;
        spent.requests + spent.early_completions
    };
    let create = || common::create(fs, b"/d/one-more").close().unwrap();
    assert_eq!(cost(&create), 1);
    assert_eq!(cost(&|| fs.unlink(&root(), b"/d/one-more").unwrap()), 1);
}

/// Look-ups after a listing on the node's host: the listing has published the records.
#[test]
fn looking_up_what_was_just_listed_costs_no_request() {
    let rig = Rig::over(TransportKind::Shm, 3, 64 << 20);
    let fs = rig.another();
    fs.mkdir(&root(), b"/d", 0o755).unwrap();
    for number in 0..500 {
        common::create(&fs, &name(number)).close().unwrap();
    }
    let names = common::names(&rig.fs, b"/d");
    let before = rig.client.stats();
    for name in &names {
        rig.fs.stat(&root(), [b"/d/".as_slice(), name].concat().as_slice(), false).unwrap();
    }
    let requests = (rig.client.stats() - before).requests;
    // Some records replace each other in the look-up table.
    assert!(requests <= 25, "{requests} requests for 500 files");
}
