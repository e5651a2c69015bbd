//! Records that clients on the node's host read for themselves.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use samite_client::HEAD_LEN;
use samite_client::{Dataset, TransportKind};
use samite_testkit::datasets::{client, cluster, dataset};
use samite_types::{Epoch, NodeId, PartitionId};
use samite_wire::op::{Action, Guard, Operation, ValueData};

const ANY_NAME_SPACE: Epoch = Epoch(u64::MAX);

fn shown(
    dataset: &Dataset,
    partition: PartitionId,
    key: &[u8],
    name_space: Epoch,
) -> Option<Vec<u8>> {
    let mut dest = [0; HEAD_LEN];
    let head = dataset.head(partition, key, name_space, &mut dest)?;
    Some(dest[..head.len].to_vec())
}

fn run(dataset: &Dataset, operation: Operation<'_>) {
    assert!(dataset.execute_one(operation.into()).unwrap().is_done());
}

fn look_up(dataset: &Dataset, partition: PartitionId, key: &[u8]) {
    let get = Action::Get { key, offset: 0, len: 512 };
    run(dataset, Operation::new(partition, [get]));
}

#[test]
fn what_was_made_or_looked_up_is_shown_until_it_changes() {
    let mut cluster = cluster(1, 16);
    let near = client(&cluster, TransportKind::Shm);
    let far = client(&cluster, TransportKind::Tcp);
    let dataset = dataset(&near, "d");
    let over_tcp = far.dataset("d").unwrap();
    let partition = PartitionId(3);
    let (one, two) = ([1; HEAD_LEN], [2; HEAD_LEN]);
    run(&dataset, Operation::put(partition, b"k", &one).guard(Guard::Absent(b"k")));
    assert_eq!(shown(&dataset, partition, b"k", ANY_NAME_SPACE).unwrap(), one);
    assert_eq!(shown(&dataset, PartitionId(4), b"k", ANY_NAME_SPACE), None);
    assert_eq!(
        shown(&over_tcp, partition, b"k", ANY_NAME_SPACE),
        None,
        "memory is not shared over tcp"
    );

    run(&over_tcp, Operation::put(partition, b"k", &two));
    assert_eq!(shown(&dataset, partition, b"k", ANY_NAME_SPACE), None, "it has changed");
    look_up(&over_tcp, partition, b"k");
    assert_eq!(shown(&dataset, partition, b"k", ANY_NAME_SPACE).unwrap(), two);

    run(&dataset, Operation::new(partition, [Action::RaiseLease { epoch: Epoch(9) }]));
    assert_eq!(shown(&dataset, partition, b"k", Epoch(8)), None, "it stands on an old epoch");
    assert_eq!(shown(&dataset, partition, b"k", Epoch(9)).unwrap(), two);

    run(&dataset, Operation::new(partition, [Action::Delete { key: b"k" }]));
    assert_eq!(shown(&dataset, partition, b"k", ANY_NAME_SPACE), None);

    let long = [b'k'; 200];
    run(&dataset, Operation::put(partition, &long, &one).guard(Guard::Absent(&long)));
    assert_eq!(shown(&dataset, partition, &long, ANY_NAME_SPACE), None, "the key is too long");
    run(&dataset, Operation::put(partition, b"s", b"short").guard(Guard::Absent(b"s")));
    assert_eq!(shown(&dataset, partition, b"s", ANY_NAME_SPACE), None, "the value is too short");
    run(&dataset, Operation::put(partition, b"k", &[7; 500]).guard(Guard::Absent(b"k")));
    assert_eq!(shown(&dataset, partition, b"k", ANY_NAME_SPACE).unwrap(), [7; HEAD_LEN]);
    cluster.stop_node(NodeId(0)).unwrap();
    assert_eq!(shown(&dataset, partition, b"k", ANY_NAME_SPACE), None, "the node is gone");
}

/// An operation that makes a record and then changes it or takes it away leaves nothing of before to
/// be read.
#[test]
fn what_an_operation_makes_and_changes_again_is_not_shown_as_it_was_made() {
    let cluster = cluster(1, 16);
    let near = client(&cluster, TransportKind::Shm);
    let dataset = dataset(&near, "d");
    let partition = PartitionId(3);
    let (one, two) = ([1; HEAD_LEN], [2; HEAD_LEN]);
    let made = |key| Operation::put(partition, key, &one).guard(Guard::Absent(key));
    let then = |key, action| {
        let mut operation = made(key);
        operation.actions.push(action);
        run(&dataset, operation);
        shown(&dataset, partition, key, ANY_NAME_SPACE)
    };
    assert_eq!(then(b"gone", Action::Delete { key: b"gone" }), None);
    let again = Action::Put { key: b"again", data: ValueData::Inline(&two) };
    assert_eq!(then(b"again", again), None);
    let beside = Action::Put { key: b"beside", data: ValueData::Inline(&two) };
    assert_eq!(then(b"whole", beside).unwrap(), one, "another record changed");
    look_up(&dataset, partition, b"again");
    assert_eq!(shown(&dataset, partition, b"again", ANY_NAME_SPACE).unwrap(), two);
}

/// One writer changes records for good and then says so; readers never see an earlier value after
/// that.
#[test]
fn readers_never_see_the_past_and_never_a_mixture() {
    const KEYS: u64 = 64;
    const ROUNDS: u64 = 40;
    let cluster = cluster(1, 16);
    let near = client(&cluster, TransportKind::Shm);
    let dataset = dataset(&near, "d");
    let key = |number: u64| number.to_le_bytes();
    let said: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    let (done, seen) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let own = client(&cluster, TransportKind::Shm).dataset("d").unwrap();
                look_up_all(&own, KEYS);
                let mut number = 0;
                while !done.load(Ordering::SeqCst) {
                    number = (number + 1) % KEYS;
                    let before = said[number as usize].load(Ordering::SeqCst);
                    let partition = own.partition_of(&key(number));
                    let Some(value) = shown(&own, partition, &key(number), ANY_NAME_SPACE) else {
                        continue;
                    };
                    let numbers: Vec<u64> = value
                        .chunks_exact(8)
                        .map(|raw| u64::from_le_bytes(*raw.first_chunk().unwrap()))
                        .collect();
                    assert!(numbers.iter().all(|one| *one == numbers[0]), "{numbers:?}");
                    assert!(numbers[0] >= before, "{} was said, {} is shown", before, numbers[0]);
                    seen.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for round in 1..=ROUNDS {
            for number in 0..KEYS {
                let partition = dataset.partition_of(&key(number));
                let value: Vec<u8> = (0..16).flat_map(|_| round.to_le_bytes()).collect();
                run(&dataset, Operation::put(partition, &key(number), &value));
                said[number as usize].store(round, Ordering::SeqCst);
                look_up(&dataset, partition, &key(number));
            }
        }
        // Under load the readers may not have run yet.
        while seen.load(Ordering::Relaxed) < 100 {
            std::thread::yield_now();
        }
        done.store(true, Ordering::SeqCst);
    });
}

/// The link is there after one request.
fn look_up_all(dataset: &Dataset, count: u64) {
    for number in 0..count {
        let key = number.to_le_bytes();
        let get = Action::Get { key: &key, offset: 0, len: 512 };
        dataset.execute_one(Operation::new(dataset.partition_of(&key), [get]).into()).unwrap();
    }
}
