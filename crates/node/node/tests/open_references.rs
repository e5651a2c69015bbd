//! Open references: which of them a node keeps, for which client, and for how long.
#![allow(clippy::unwrap_used, reason = "a test ends at what it does not expect")]

mod common;

use std::thread;
use std::time::{Duration, Instant};

use common::{Ended, Got, Raw, SHM, TCP, UNIX, cluster};
use samite_types::{DatasetId, ErrorKind, PartitionId};
use samite_wire::control::MEMORY_BACKEND;
use samite_wire::op::{Action, Operation, UNLINKED_KEPT, UNLINKED_REMOVED};

fn numbers(ended: Ended) -> Vec<u64> {
    let Ended::Done(results) = ended else { panic!("{ended:?}") };
    let numbers = results.into_iter().filter_map(|result| match result {
        Got::Number(number) => Some(number),
        _ => None,
    });
    numbers.collect()
}

fn hold(raw: &Raw, dataset: DatasetId, p: PartitionId, token: u64) {
    raw.one(dataset, Operation::put(p, b"name", b"value"));
    let get = Action::Get { key: b"name", offset: 0, len: 9 };
    let hold = Action::Hold { key: b"name", token };
    assert_eq!(numbers(raw.one(dataset, Operation::new(p, [get, hold]))), [1]);
}

fn unlink(raw: &Raw, dataset: DatasetId, p: PartitionId) -> u64 {
    let unlink = Action::Detach { key: b"name", to: b"o" };
    numbers(raw.one(dataset, Operation::new(p, [unlink])))[0]
}

#[test]
fn a_referenced_record_outlives_its_name_and_anyone_may_release_it() {
    let cluster = cluster(1, 2);
    for transport in [SHM, UNIX, TCP] {
        let mut holder = Raw::connect(&cluster, 0, transport);
        let dataset = holder.create(&format!("d{transport}"), MEMORY_BACKEND);
        let other = Raw::connect(&cluster, 0, transport);
        // Of a shard that is not the connection's, too.
        for (shard, token) in [(0, 7), (1, 8)] {
            let p = holder.partition(shard, 2);
            hold(&holder, dataset, p, token);
            assert_eq!(unlink(&other, dataset, p), UNLINKED_KEPT);
            let name = other.one(dataset, Operation::get(p, b"name"));
            assert_eq!(name.failure(), ErrorKind::NotFound);
            let found = Operation::new(p, [Action::Locate { token }]);
            assert_eq!(holder.one(dataset, found).value(), b"o");
            assert_eq!(holder.one(dataset, Operation::get(p, b"o")).value(), b"value");
            let release = Operation::new(p, [Action::Release { token }]);
            assert_eq!(numbers(other.one(dataset, release)), [0]);
            assert_eq!(other.status().abandoned, 1);
            let sweep = Operation::new(p, [Action::Detach { key: b"o", to: b"o" }]);
            assert_eq!(numbers(other.one(dataset, sweep)), [UNLINKED_REMOVED]);
            assert_eq!(other.status().abandoned, 0);
        }
    }
}

#[test]
fn open_references_end_a_while_after_the_last_connection_of_their_client() {
    let cluster = cluster(1, 2);
    let mut other = Raw::connect(&cluster, 0, UNIX);
    let dataset = other.create("d", MEMORY_BACKEND);
    let holder = Raw::connect(&cluster, 0, UNIX);
    let places = [other.partition(0, 2), other.partition(1, 2)];
    for (p, token) in places.into_iter().zip(1..) {
        hold(&holder, dataset, p, token);
        assert_eq!(unlink(&other, dataset, p), UNLINKED_KEPT);
    }
    drop(holder);
    assert_eq!(other.status().abandoned, 0, "it might come back");
    let start = Instant::now();
    while other.status().abandoned < 2 {
        assert!(start.elapsed() < Duration::from_secs(10), "the open references stay for ever");
        thread::sleep(Duration::from_millis(50));
    }
    assert!(start.elapsed() > Duration::from_secs(1));
}
