//! The cost of calls in messages to nodes, whatever their number: requests, and early completions.
#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

mod common;

use common::{Rig, create, get, noise, put, root};
use samite_client::{Client, TransportKind};

fn cost(client: &Client, call: impl FnOnce()) -> u64 {
    let before = client.stats();
    call();
    let spent = client.stats() - before;
    assert_eq!(spent.retries, 0, "nothing is sent twice");
    spent.requests + spent.early_completions
}

fn check(nodes: usize, transport: TransportKind) {
    let rig = Rig::over(transport, nodes, 64 << 20);
    let (fs, client) = (&rig.fs, &rig.client);
    fs.mkdir(&root(), b"/a", 0o755).unwrap();
    fs.mkdir(&root(), b"/a/b", 0o755).unwrap();
    create(fs, b"/a/b/warm").close().unwrap();
    let expect = |what: &str, requests: u64, call: &mut dyn FnMut()| {
        assert_eq!(cost(client, call), requests, "{what} on {nodes} nodes over {transport:?}");
    };
    expect("create and close", 1, &mut || create(fs, b"/a/b/empty").close().unwrap());
    let mut stat = || {
        fs.stat(&root(), b"/a/b/empty", true).unwrap();
    };
    assert!(cost(client, stat) <= 1, "stat on {nodes} nodes over {transport:?}");
    // On the node's host a client reads lately made or used records from the look-up table.
    expect("stat", u64::from(transport != TransportKind::Shm), &mut stat);
    // This one also tells the node that the file was closed.
    expect("unlink", 1, &mut || fs.unlink(&root(), b"/a/b/empty").unwrap());
    create(&rig.another(), b"/a/b/theirs").close().unwrap();
    fs.stat(&root(), b"/a/b/theirs", true).unwrap();
    expect("unlink what others made", 1, &mut || {
        fs.unlink(&root(), b"/a/b/theirs").unwrap();
    });
    expect("mkdir", 1, &mut || fs.mkdir(&root(), b"/a/b/c", 0o755).unwrap());
    expect("create in a fresh directory", 1, &mut || drop(create(fs, b"/a/b/c/f")));
    expect("create, write, close", 2, &mut || put(fs, b"/a/b/small", b"hello"));
    // The open-time snapshot is valid for 2 ms; on a crowded machine the rest may come later than
    // that.
    let least =
        (0..50).map(|_| cost(client, || assert_eq!(get(fs, b"/a/b/small").unwrap(), b"hello")));
    assert_eq!(least.min(), Some(1), "open, read, close on {nodes} nodes over {transport:?}");
    expect("unlink a small file", 1, &mut || fs.unlink(&root(), b"/a/b/small").unwrap());
    let chunk = noise(1 << 20, 1);
    let file = create(fs, b"/a/b/big");
    // The inode becomes chunked and gets a writing mark, then the data go.
    expect("first large write", 2, &mut || assert!(file.write_at(&chunk, 0).unwrap() > 0));
    expect("write of one chunk", 1, &mut || assert!(file.write_at(&chunk, 1 << 20).unwrap() > 0));
    expect("read of one chunk", 1, &mut || {
        assert_eq!(file.read_at(&mut vec![0; 1 << 20], 0).unwrap(), 1 << 20);
    });
    expect("stat of what one writes", 1, &mut || {
        assert_eq!(file.attr().unwrap().size, 2 << 20);
    });
    expect("close after writes", 1, &mut || file.close().unwrap());
    let many = noise(8 << 20, 2);
    let file = create(fs, b"/a/b/many");
    file.write_at(&chunk, 0).unwrap();
    let requests = cost(client, || assert!(file.write_at(&many, 0).unwrap() > 0));
    assert!(requests <= nodes as u64, "8 chunks: {requests} requests on {nodes} nodes");
    file.close().unwrap();
    assert!(get(fs, b"/a/b/many").unwrap() == many);
    let requests = cost(client, || {
        let mut listing = fs.read_dir(&root(), b"/a/b").unwrap();
        while listing.next_entry().unwrap().is_some() {}
    });
    assert!(requests <= 1 + nodes as u64, "listing: {requests} requests on {nodes} nodes");
}

#[test]
fn the_first_removal_on_a_node_takes_along_all_that_was_closed_there() {
    for nodes in [1, 3] {
        let rig = Rig::over(TransportKind::Shm, nodes, 64 << 20);
        let names: Vec<Vec<u8>> = (0..24).map(|number| format!("/{number}").into_bytes()).collect();
        let other = rig.another();
        names.iter().for_each(|name| create(&other, name).close().unwrap());
        for name in &names {
            assert_eq!(get(&rig.fs, name).unwrap(), b"");
        }
        let before = rig.client.stats();
        names.iter().for_each(|name| rig.fs.unlink(&root(), name).unwrap());
        let spent = rig.client.stats() - before;
        assert_eq!(
            spent.requests + spent.early_completions,
            names.len() as u64,
            "one message each"
        );
        assert!(spent.requests <= nodes as u64, "{} requests, {nodes} nodes", spent.requests);
    }
}

#[test]
fn over_shared_memory() {
    for nodes in [1, 3, 5] {
        check(nodes, TransportKind::Shm);
    }
}

#[test]
fn over_unix_sockets() {
    for nodes in [1, 3, 5] {
        check(nodes, TransportKind::Unix);
    }
}

#[test]
fn over_tcp() {
    for nodes in [1, 3, 5] {
        check(nodes, TransportKind::Tcp);
    }
}
