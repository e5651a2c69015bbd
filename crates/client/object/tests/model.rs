//! The object view against a model.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use samite_client::TransportKind;
use samite_object::ObjectView;
use samite_testkit::LocalCluster;
use samite_testkit::datasets::{TRANSPORTS, client, cluster, dataset, pattern, records, spec};
use samite_types::{ErrorKind, TargetId};
use samite_wire::control::DistributionKind;

/// Each case has a dataset of its own, so that a failed one leaves nothing to the next.
static CASE: AtomicU64 = AtomicU64::new(0);
static CLUSTER: LazyLock<LocalCluster> = LazyLock::new(|| cluster(2, 128));

fn objects(transport: TransportKind, distribution: DistributionKind, name: &str) -> ObjectView {
    let client = client(&CLUSTER, transport);
    let mut spec = spec(name);
    spec.distribution = distribution;
    ObjectView::new(client.create_dataset(&spec).unwrap())
}

#[derive(Clone, Debug)]
enum Step {
    Write(usize, usize),
    SubmitWrite(usize, usize),
    Read(usize, usize),
    SubmitRead(usize, usize),
    Append(usize),
    Truncate(usize),
    Reopen,
}

/// Mostly around the borders of chunks (64 KiB).
fn place() -> impl Strategy<Value = usize> {
    prop_oneof![
        0usize..300_000,
        (0usize..8, 0usize..5).prop_map(|(chunk, more)| (chunk * 65_536 + more).saturating_sub(2)),
        Just(2_000_000),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (place(), place()).prop_map(|(at, len)| Step::Write(at, len)),
        1 => (place(), place()).prop_map(|(at, len)| Step::SubmitWrite(at, len)),
        3 => (place(), place()).prop_map(|(at, len)| Step::Read(at, len)),
        1 => (place(), place()).prop_map(|(at, len)| Step::SubmitRead(at, len)),
        2 => place().prop_map(Step::Append),
        2 => place().prop_map(Step::Truncate),
        1 => Just(Step::Reopen),
    ]
}

fn write(model: &mut Vec<u8>, at: usize, data: &[u8]) {
    if !data.is_empty() {
        model.resize(model.len().max(at + data.len()), 0);
        model[at..at + data.len()].copy_from_slice(data);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_steps_do_what_a_vector_does(
        steps in proptest::collection::vec(step(), 1..20),
        transport in proptest::sample::select(TRANSPORTS.to_vec()),
        kind in 0usize..3,
    ) {
        let distribution = match kind {
            0 => DistributionKind::RoundRobin,
            1 => DistributionKind::Single,
            _ => DistributionKind::Weighted(vec![(TargetId(0), 1), (TargetId(1), 3)]),
        };
        let objects = objects(transport, distribution, &format!("model-{}", CASE.fetch_add(1, Ordering::Relaxed)));
        let mut object = objects.create(b"object").unwrap();
        let mut model = Vec::new();
        for (seed, step) in steps.iter().enumerate() {
            match *step {
                Step::Write(at, len) => {
                    let data = pattern(len, seed as u64);
                    object.write_at(&data, at as u64).unwrap();
                    write(&mut model, at, &data);
                }
                Step::SubmitWrite(at, len) => {
                    let data = pattern(len, seed as u64);
                    object.submit_write_at(&data, at as u64).unwrap().wait().unwrap();
                    write(&mut model, at, &data);
                }
                Step::Read(at, len) => {
                    let mut dest = vec![0xee; len];
                    let got = object.read_at(&mut dest, at as u64).unwrap();
                    let expected = &model[at.min(model.len())..(at + len).min(model.len()).max(at.min(model.len()))];
                    prop_assert!(dest[..got] == *expected);
                }
                Step::SubmitRead(at, len) => {
                    let got = object.submit_read_at(len, at as u64).unwrap().wait().unwrap();
                    let expected = &model[at.min(model.len())..(at + len).min(model.len()).max(at.min(model.len()))];
                    prop_assert!(got == expected);
                }
                Step::Append(len) => {
                    let data = pattern(len, seed as u64);
                    prop_assert_eq!(object.append(&data).unwrap(), model.len() as u64);
                    model.extend(data);
                }
                Step::Truncate(len) => {
                    object.truncate(len as u64).unwrap();
                    model.resize(len, 0);
                }
                Step::Reopen => object = objects.open(b"object").unwrap(),
            }
            prop_assert_eq!(object.len().unwrap(), model.len() as u64);
        }
        let mut all = vec![0; model.len() + 1];
        prop_assert_eq!(object.read_at(&mut all, 0).unwrap(), model.len());
        prop_assert!(all[..model.len()] == *model);
        prop_assert!(objects.delete(b"object").unwrap());
        prop_assert_eq!(object.len().unwrap_err().kind(), ErrorKind::NotFound);
        prop_assert_eq!(records(objects.dataset()), Vec::<Box<[u8]>>::new());
        let name = &objects.dataset().spec().name;
        objects.dataset().client().drop_dataset(name).unwrap();
    }
}

#[test]
fn names_mean_nothing_and_are_listed_in_order() {
    let cluster = cluster(2, 64);
    let objects = ObjectView::new(dataset(&client(&cluster, TRANSPORTS[2]), "names"));
    let mut names: Vec<Vec<u8>> =
        [&b".."[..], b"/", b"../../etc/passwd", b"a\nb", b"\xff\xfe", b"\0"]
            .iter()
            .map(|name| name.to_vec())
            .collect();
    names.push(vec![b'n'; 4096]);
    for name in &names {
        let object = objects.create(name).unwrap();
        object.write_at(name, 3).unwrap();
        assert_eq!(objects.create(name).unwrap_err().kind(), ErrorKind::Exists);
        assert_eq!(objects.open_or_create(name).unwrap().len().unwrap(), 3 + name.len() as u64);
    }
    names.sort();
    let page = objects.list(b"", b"", 3).unwrap();
    let rest = objects.list(b"", &page.entries[2].name, 100).unwrap();
    assert!(!page.complete && rest.complete);
    let listed: Vec<_> = page.entries.into_iter().chain(rest.entries).collect();
    assert!(listed.iter().map(|entry| &entry.name).eq(&names));
    assert!(listed.iter().all(|entry| entry.len == 3 + entry.name.len() as u64));
    assert_eq!(objects.create(b"").unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(objects.create(&[b'n'; 4097]).unwrap_err().kind(), ErrorKind::TooLarge);
    assert_eq!(objects.open(b"none").unwrap_err().kind(), ErrorKind::NotFound);
    assert!(!objects.delete(b"none").unwrap());
}

#[test]
fn a_large_read_is_one_request_per_node_and_frame() {
    let cluster = cluster(2, 64);
    for transport in TRANSPORTS {
        let client = client(&cluster, transport);
        let objects = ObjectView::new(dataset(&client, "cost"));
        let object = objects.open_or_create(b"object").unwrap();
        let data = pattern(4 << 20, 1);
        object.write_at(&data, 0).unwrap();
        object.write_at(&data, 0).unwrap();
        let mut dest = vec![0; data.len()];
        let before = client.stats();
        assert_eq!(object.read_at(&mut dest, 0).unwrap(), data.len());
        let cost = client.stats() - before;
        assert_eq!((cost.requests, cost.operations), (2, 64), "{transport}");
        assert_eq!(cost.received_bytes, 4 << 20);
        assert!(dest == data);
        let before = client.stats();
        object.write_at(&data, 0).unwrap();
        let cost = client.stats() - before;
        assert_eq!((cost.requests, cost.operations), (2, 65), "{transport}");
        assert_eq!(cost.sent_bytes, 4 << 20);
    }
}

#[test]
fn objects_may_be_sparse_and_far_beyond_memory() {
    let cluster = cluster(2, 64);
    let objects = ObjectView::new(dataset(&client(&cluster, TRANSPORTS[0]), "sparse"));
    let object = objects.create(b"sparse").unwrap();
    object.write_at(b"end", 10 << 30).unwrap();
    assert_eq!(object.len().unwrap(), (10 << 30) + 3);
    let mut dest = [1; 10];
    assert_eq!(object.read_at(&mut dest, 5 << 30).unwrap(), 10);
    assert_eq!(dest, [0; 10]);
    assert_eq!(object.read_at(&mut dest, (10 << 30) - 2).unwrap(), 5);
    assert_eq!(&dest[..5], b"\0\0end");
    object.truncate(1 << 40).unwrap();
    object.truncate(1).unwrap();
    object.truncate(11 << 30).unwrap();
    assert_eq!(object.read_at(&mut dest, 10 << 30).unwrap(), 10);
    assert_eq!(dest, [0; 10]);
    assert_eq!(object.write_at(b"x", u64::MAX).unwrap_err().kind(), ErrorKind::FileTooLarge);
}

#[test]
fn appends_of_many_writers_do_not_overlap() {
    const WRITERS: u8 = 4;
    const APPENDS: usize = 50;
    let cluster = cluster(2, 64);
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let client = client(&cluster, TRANSPORTS[usize::from(writer) % 3]);
            scope.spawn(move || {
                let object =
                    ObjectView::new(dataset(&client, "log")).open_or_create(b"log").unwrap();
                for _ in 0..APPENDS {
                    object.append(&[b'a' + writer; 1000]).unwrap();
                }
            });
        }
    });
    let objects = ObjectView::new(dataset(&client(&cluster, TRANSPORTS[0]), "log"));
    let mut all = vec![0; usize::from(WRITERS) * APPENDS * 1000 + 1];
    let len = objects.open(b"log").unwrap().read_at(&mut all, 0).unwrap();
    assert_eq!(len, all.len() - 1);
    for piece in all[..len].chunks(1000) {
        assert!(piece[0] >= b'a' && piece.iter().all(|byte| *byte == piece[0]));
    }
}

#[test]
fn an_object_is_replaced_by_a_whole_one_in_one_step() {
    let objects = objects(TransportKind::Unix, DistributionKind::RoundRobin, "replaced");
    let other = ObjectView::new(objects.dataset().clone());
    let (old, new) = (pattern(300_000, 1), pattern(200_000, 2));
    let read = |len: usize| {
        let mut bytes = vec![0; len + 1];
        let len = other.open(b"o").unwrap().read_at(&mut bytes, 0).unwrap();
        bytes.truncate(len);
        bytes
    };
    let first = objects.replace(b"o").unwrap();
    first.object().write_at(&old, 0).unwrap();
    assert_eq!(other.open(b"o").unwrap_err().kind(), ErrorKind::NotFound);
    assert!(other.list(b"", b"", 10).unwrap().entries.is_empty());
    first.place().unwrap();
    assert!(read(old.len()) == old);
    let count = records(objects.dataset()).len();

    // A replacement that is given up, and one beside which others come and go.
    let dropped = objects.replace(b"o").unwrap();
    dropped.object().write_at(&new, 0).unwrap();
    drop(dropped);
    assert_eq!(records(objects.dataset()).len(), count);
    let opened = other.open(b"o").unwrap();
    let [slow, fast] = [&objects, &other].map(|objects| objects.replace(b"o").unwrap());
    slow.object().write_at(&new, 0).unwrap();
    fast.object().write_at(b"short", 0).unwrap();
    assert!(read(old.len()) == old);
    fast.place().unwrap();
    assert!(read(5) == b"short");
    assert_eq!(opened.len().unwrap_err().kind(), ErrorKind::NotFound);
    slow.place().unwrap();
    assert!(read(new.len()) == new);

    assert!(other.delete(b"o").unwrap());
    assert_eq!(records(objects.dataset()).len(), 0);
}
