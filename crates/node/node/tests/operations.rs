//! Operations of a client on a node, over each transport.

mod common;

use common::{Ended, Got, Raw, SHM, TCP, UNIX, cluster, pattern};
use samite_types::{ErrorKind, Seq};
use samite_wire::control::{MEMORY_BACKEND, NULL_BACKEND};
use samite_wire::op::{Action, Guard, Operation, ValueData};

#[test]
fn every_operation_works_over_every_transport() {
    let cluster = cluster(1, 1);
    for (transport, name) in [(SHM, "shm"), (UNIX, "unix"), (TCP, "tcp")] {
        let mut raw = Raw::connect(&cluster, 0, transport);
        let dataset = raw.create(name, MEMORY_BACKEND);
        let p = raw.partition(0, 1);

        let put = raw.one(dataset, Operation::put(p, b"k", b"value"));
        assert_eq!(put.only(), Got::Written { offset: 0, total_len: 5, created: true });
        assert_eq!(raw.one(dataset, Operation::get(p, b"k")).value(), b"value");
        let absent = raw.one(dataset, Operation::get(p, b"nothing"));
        assert_eq!(absent.failure(), ErrorKind::NotFound);

        let taken = raw
            .one(dataset, Operation::put(p, b"k", b"other").guard(Guard::Absent(b"k")).reveal(3));
        let current = Some(b"val".to_vec());
        assert_eq!(taken, Ended::Failed { kind: ErrorKind::Conflict, index: 0, current });

        let append = Action::Append { key: b"k", data: ValueData::Inline(b"++"), len_max: 100 };
        let appended = raw.one(dataset, Operation::new(p, [append])).only();
        assert_eq!(appended, Got::Written { offset: 5, total_len: 7, created: false });
        let write = Action::Write { key: b"k", offset: 9, data: ValueData::Inline(b"!") };
        raw.one(dataset, Operation::new(p, [write]));
        let slice = Action::Get { key: b"k", offset: 4, len: 10 };
        assert_eq!(raw.one(dataset, Operation::new(p, [slice])).value(), b"e++\0\0!");

        let both = Operation::new(
            p,
            [
                Action::Put { key: b"a", data: ValueData::Inline(b"1") },
                Action::Delete { key: b"k" },
                Action::Add { key: b"n", offset: 0, delta: 5 },
            ],
        );
        let Ended::Done(results) = raw.one(dataset, both) else { panic!("atomic operation") };
        assert_eq!(results[1..], [Got::Deleted(true), Got::Number(0)]);
        let list =
            Action::List { prefix: b"", after: b"", limit: 10, reverse: false, value_len_max: 0 };
        let listing = Got::Listing { keys: vec![b"a".to_vec(), b"n".to_vec()], complete: true };
        assert_eq!(raw.one(dataset, Operation::new(p, [list])).only(), listing);
    }
}

#[test]
fn values_of_every_size_come_back_whole() {
    let cluster = cluster(1, 1);
    for transport in [SHM, UNIX, TCP] {
        let mut raw = Raw::connect(&cluster, 0, transport);
        let dataset = raw.create("d", MEMORY_BACKEND);
        let p = raw.partition(0, 1);
        for len in [0, 1, 1024, 1025, 16 << 10, (16 << 10) + 1, 65_536, 100_000, 1 << 20] {
            let value = pattern(len, transport as u8);
            let put = raw.one(dataset, Operation::put(p, b"k", &value));
            assert!(matches!(put, Ended::Done(_)), "{len}: {put:?}");
            let answer = raw.send(dataset, vec![Operation::get(p, b"k")]);
            assert_eq!(answer.by_reference, transport == SHM && len > 16 << 10, "{len}");
            assert!(answer.only().value() == value, "{len}");
        }
        let hole = Action::Write { key: b"h", offset: 900_000, data: ValueData::Inline(b"x") };
        raw.one(dataset, Operation::new(p, [hole]));
        let mut expected = vec![0; 900_001];
        expected[900_000] = b'x';
        assert!(raw.one(dataset, Operation::get(p, b"h")).value() == expected);
    }
}

#[test]
fn the_null_backend_answers_with_zeros() {
    let cluster = cluster(1, 1);
    let mut raw = Raw::connect(&cluster, 0, TCP);
    let dataset = raw.create("null", NULL_BACKEND);
    let p = raw.partition(0, 1);
    raw.one(dataset, Operation::put(p, b"k", &pattern(100_000, 1)));
    assert!(raw.one(dataset, Operation::get(p, b"k")).value() == vec![0; 100_000]);
}

#[test]
fn a_batch_is_one_request() {
    let cluster = cluster(1, 1);
    let mut raw = Raw::connect(&cluster, 0, UNIX);
    let dataset = raw.create("d", MEMORY_BACKEND);
    let keys: Vec<String> = (0..1000).map(|i| format!("key {i}")).collect();
    let puts = keys
        .iter()
        .map(|key| Operation::put(raw.map.partition_of(key.as_bytes()), key.as_bytes(), b"v"))
        .collect();
    let before = raw.status();
    let answer = raw.send(dataset, puts);
    let after = raw.status();
    assert_eq!(answer.outcomes.len(), 1000);
    assert!(answer.outcomes.iter().all(|outcome| matches!(outcome, Ended::Done(_))));
    assert_eq!(after.requests - before.requests, 1);
    assert_eq!(after.operations - before.operations, 1000);
    assert_eq!(after.records - before.records, 1000);
}

#[test]
fn what_does_not_fit_one_reply_is_to_be_asked_for_again() {
    let cluster = cluster(1, 1);
    for transport in [SHM, TCP] {
        let mut raw = Raw::connect(&cluster, 0, transport);
        let dataset = raw.create("d", MEMORY_BACKEND);
        let p = raw.partition(0, 1);
        let value = pattern(1 << 20, 9);
        let keys: Vec<[u8; 1]> = (0..12).map(|i| [i]).collect();
        for key in &keys {
            raw.one(dataset, Operation::put(p, key, &value));
        }
        let mut left: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        let mut rounds = 0;
        while !left.is_empty() {
            let gets = left.iter().map(|key| Operation::get(p, key)).collect();
            let answer = raw.send(dataset, gets);
            let mut again = Vec::new();
            for (key, outcome) in left.iter().zip(answer.outcomes) {
                match outcome {
                    Ended::Failed { kind, .. } => {
                        assert_eq!(kind, ErrorKind::Busy);
                        again.push(*key);
                    }
                    done => assert!(done.value() == value),
                }
            }
            assert!(again.len() < left.len(), "no progress");
            left = again;
            rounds += 1;
        }
        assert_eq!(rounds, if transport == SHM { 1 } else { 2 });
        let all = keys
            .iter()
            .map(|key| Action::Get { key, offset: 0, len: u32::MAX })
            .collect::<Vec<_>>();
        match raw.one(dataset, Operation::new(p, all)) {
            Ended::Done(values) => assert_eq!((transport, values.len()), (SHM, 12)),
            failed => assert_eq!((transport, failed.failure()), (TCP, ErrorKind::TooLarge)),
        }
    }
}

#[test]
fn an_operation_sent_twice_takes_effect_once() {
    let cluster = cluster(1, 2);
    let mut raw = Raw::connect(&cluster, 0, TCP);
    let dataset = raw.create("d", MEMORY_BACKEND);
    for shard in [0, 1] {
        let p = raw.partition(shard, 2);
        let mut add = Operation::new(p, [Action::Add { key: b"n", offset: 0, delta: 7 }]);
        add.seq = Seq(1000 + u64::from(shard));
        let mut header = raw.header(dataset);
        for _ in 0..3 {
            let answer = raw.try_send(&header, std::slice::from_ref(&add)).unwrap();
            assert_eq!(answer.only().only(), Got::Number(0));
            header.is_retry = true;
        }
        assert_eq!(raw.one(dataset, Operation::get(p, b"n")).value(), 7u64.to_le_bytes());
    }
}
