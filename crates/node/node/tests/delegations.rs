//! Delegations: which requests a node lets wait, for which client, and for how long.
#![allow(clippy::unwrap_used, reason = "a test ends at what it does not expect")]

mod common;

use std::thread;
use std::time::{Duration, Instant};

use common::{Ended, Got, Raw, SHM, TCP, UNIX, ask, cluster};
use samite_testkit::LocalCluster;
use samite_transport::client::{NodeLink, OutgoingRequest};
use samite_types::{DatasetId, Deadline, ErrorKind, PartitionId};
use samite_wire::control::{self, ControlReply, ControlRequest, MEMORY_BACKEND};
use samite_wire::frame::FrameKind;
use samite_wire::op::{Action, Guard, Operation, ValueData};

const TERM: Duration = Duration::from_secs(1);

fn lease(p: PartitionId, key: &[u8], term: Duration) -> Operation<'_> {
    Operation::new(p, [Action::Lease { key, term_us: term.as_micros() as u32 }])
}

/// Asks for a delegation; the term that was granted.
fn take(raw: &Raw, dataset: DatasetId, p: PartitionId, key: &[u8], term: Duration) -> Duration {
    match raw.one(dataset, lease(p, key, term)) {
        Ended::Done(results) => match results.as_slice() {
            [Got::Number(us)] => Duration::from_micros(*us),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

fn time(run: impl FnOnce()) -> Duration {
    let start = Instant::now();
    run();
    start.elapsed()
}

#[test]
fn a_change_by_another_waits_for_the_term_and_nothing_else_does() {
    // Long enough for a busy machine to do something else in it.
    let term = Duration::from_secs(1);
    let cluster = cluster(1, 1);
    for transport in [SHM, UNIX, TCP] {
        let mut holder = Raw::connect(&cluster, 0, transport);
        let dataset = holder.create(&format!("d{transport}"), MEMORY_BACKEND);
        let other = Raw::connect(&cluster, 0, transport);
        let _ear = silent(&holder, &cluster);
        let p = holder.partition(0, 1);
        holder.one(dataset, Operation::put(p, b"k", b"old"));
        let start = Instant::now();
        assert_eq!(take(&holder, dataset, p, b"k", term), term);
        // Its own changes, other records, reads, and operations that fail anyway.
        holder.one(dataset, Operation::put(p, b"k", b"own"));
        other.one(dataset, Operation::put(p, b"l", b"x"));
        assert_eq!(other.one(dataset, Operation::get(p, b"k")).value(), b"own");
        let create = Operation::put(p, b"k", b"x").guard(Guard::Absent(b"k"));
        assert_eq!(other.one(dataset, create).failure(), ErrorKind::Conflict);
        assert!(start.elapsed() < term, "{:?}", start.elapsed());
        other.one(dataset, Operation::put(p, b"k", b"new"));
        let waited = start.elapsed();
        assert!(waited >= term, "{waited:?}");
        assert!(waited < 10 * term, "{waited:?}");
        assert_eq!(holder.one(dataset, Operation::get(p, b"k")).value(), b"new");
        // Refused on a record that another client has just changed, unless a busy machine takes too
        // long in between.
        let is_refused = |_| {
            other.one(dataset, Operation::put(p, b"k", b"newer"));
            take(&holder, dataset, p, b"k", Duration::from_millis(20)) == Duration::ZERO
        };
        assert!((0..50).any(is_refused));
    }
}

#[test]
fn every_kind_of_change_waits_also_of_absent_records() {
    let cluster = cluster(1, 1);
    let mut holder = Raw::connect(&cluster, 0, UNIX);
    let dataset = holder.create("d", MEMORY_BACKEND);
    let other = Raw::connect(&cluster, 0, UNIX);
    let _ear = silent(&holder, &cluster);
    let p = holder.partition(0, 1);
    let term = Duration::from_millis(30);
    let data = || ValueData::Inline(b"x");
    let changes = [
        Action::Put { key: b"kk", data: data() },
        Action::Delete { key: b"kk" },
        Action::DeletePrefix { prefix: b"k", limit: 9 },
        Action::Write { key: b"kk", offset: 0, data: data() },
        Action::Append { key: b"kk", data: data(), len_max: 9 },
        Action::Add { key: b"kk", offset: 0, delta: 1 },
        Action::Max { key: b"kk", offset: 0, value: 9 },
        Action::Truncate { key: b"kk", len: 1 },
    ];
    for change in changes {
        // No delegation on a record that another client has changed lately: not even to get on with
        // this test.
        let begun = Instant::now();
        let taken = loop {
            let start = Instant::now();
            if take(&holder, dataset, p, b"kk", term) != Duration::ZERO {
                break start;
            }
            assert!(begun.elapsed() < Duration::from_secs(10));
            thread::sleep(Duration::from_millis(2));
        };
        drop(other.one(dataset, Operation::new(p, [change.clone()])));
        assert!(taken.elapsed() >= term, "{change:?}: {:?}", taken.elapsed());
    }
}

#[test]
fn waiting_requests_keep_their_order_and_new_delegations_do_not_overtake_them() {
    let cluster = cluster(1, 1);
    let mut holder = Raw::connect(&cluster, 0, UNIX);
    let dataset = holder.create("d", MEMORY_BACKEND);
    let p = holder.partition(0, 1);
    let _ear = silent(&holder, &cluster);
    // From before the delegation begins: its answer may be late.
    let start = Instant::now();
    assert_eq!(take(&holder, dataset, p, b"a", TERM), TERM);
    let append = |key, byte: &'static [u8]| {
        Operation::new(p, [Action::Append { key, data: ValueData::Inline(byte), len_max: 99 }])
    };
    thread::scope(|scope| {
        let writer = |delay: u64, ops: Vec<Operation<'static>>| {
            let other = Raw::connect(&cluster, 0, UNIX);
            scope.spawn(move || {
                thread::sleep(Duration::from_millis(delay));
                other.send(dataset, ops);
                start.elapsed()
            })
        };
        let first = writer(0, vec![append(b"a", b"1"), append(b"b", b"1")]);
        // Stands behind the first, though no client has a delegation on what it changes.
        let second = writer(60, vec![append(b"b", b"2"), append(b"c", b"2")]);
        let third = writer(120, vec![append(b"c", b"3")]);
        thread::sleep(Duration::from_millis(180));
        for key in [b"a", b"b", b"c"] {
            assert_eq!(take(&holder, dataset, p, key, TERM), Duration::ZERO);
        }
        for end in [first, second, third].map(|writer| writer.join().unwrap()) {
            assert!(end >= TERM && end < 20 * TERM, "{end:?}");
        }
    });
    assert_eq!(holder.one(dataset, Operation::get(p, b"b")).value(), b"12");
    assert_eq!(holder.one(dataset, Operation::get(p, b"c")).value(), b"23");
}

#[test]
fn a_request_over_several_shards_waits_where_it_must() {
    let cluster = cluster(1, 2);
    let mut holder = Raw::connect(&cluster, 0, TCP);
    let dataset = holder.create("d", MEMORY_BACKEND);
    let (p, q) = (holder.partition(0, 2), holder.partition(1, 2));
    let _ear = silent(&holder, &cluster);
    // Whichever shard has accepted the other's connection, one of the two is elsewhere.
    for leased in [p, q] {
        let other = Raw::connect(&cluster, 0, TCP);
        let waited = time(|| {
            assert_eq!(take(&holder, dataset, leased, b"k", TERM), TERM);
            let both = [p, q].map(|p| Operation::put(p, b"k", b"new"));
            let answer = other.send(dataset, both.to_vec());
            assert!(answer.outcomes.iter().all(|ended| matches!(ended, Ended::Done(_))));
        });
        assert!(waited >= TERM && waited < 20 * TERM, "{waited:?}");
        assert_eq!(holder.one(dataset, Operation::get(leased, b"k")).value(), b"new");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_long_delegation_is_for_clients_that_listen_and_is_given_back() {
    for shards in [1, 2] {
        let cluster = cluster(1, shards);
        let mut holder = Raw::connect(&cluster, 0, UNIX);
        let dataset = holder.create("d", MEMORY_BACKEND);
        let (other, long) = (Raw::connect(&cluster, 0, TCP), Duration::from_secs(2));
        let p = holder.partition(0, u32::from(shards));
        let deaf = take(&holder, dataset, p, b"k", long);
        assert!(deaf <= Duration::from_millis(10), "{deaf:?}");
        thread::scope(|scope| {
            let ear = holder.another(&cluster, 0, UNIX);
            scope.spawn(move || {
                let mut done = 0;
                for _ in 0..3 {
                    match ask(&ear, &ControlRequest::Revocations { done }).unwrap() {
                        ControlReply::Revoked { number, records } => {
                            assert_eq!(records.len(), 1);
                            assert_eq!((&records[0].key[..], records[0].partition), (&b"k"[..], p));
                            done = number;
                        }
                        answer => panic!("{answer:?}"),
                    }
                    // Acts on it.
                    thread::sleep(Duration::from_millis(30));
                }
                ask_no_more(&ear, done);
            });
            for _ in 0..3 {
                while take(&holder, dataset, p, b"k", long) != long {
                    thread::sleep(Duration::from_millis(2));
                }
                let waited = time(|| drop(other.one(dataset, Operation::put(p, b"k", b"v"))));
                assert!(waited >= Duration::from_millis(29), "{waited:?}");
                assert!(waited < long, "{waited:?}");
            }
        });
        // No client listens any more: the remaining delegations run out.
        thread::sleep(Duration::from_millis(20));
        let deaf = take(&holder, dataset, p, b"k", long);
        assert!(deaf <= Duration::from_millis(10), "{deaf:?}");
    }
}

#[test]
fn a_holder_who_falls_silent_delays_others_by_the_term_and_hears_again_what_it_missed() {
    let cluster = cluster(1, 1);
    let mut holder = Raw::connect(&cluster, 0, UNIX);
    let dataset = holder.create("d", MEMORY_BACKEND);
    let other = Raw::connect(&cluster, 0, UNIX);
    let (p, term) = (holder.partition(0, 1), Duration::from_millis(400));
    let ear = silent(&holder, &cluster);
    let waited = time(|| {
        assert_eq!(take(&holder, dataset, p, b"k", term), term);
        other.one(dataset, Operation::put(p, b"k", b"v"));
    });
    assert!(waited >= term && waited < 20 * term, "{waited:?}");
    // The answer came to a question that nobody waited for.
    match ask(&ear, &ControlRequest::Revocations { done: 0 }).unwrap() {
        ControlReply::Revoked { records, .. } => assert_eq!(records[0].key, b"k"),
        answer => panic!("{answer:?}"),
    }
}

/// A client that listens for what `holder` is to give back, but never acts on it: its delegations
/// run out.
fn silent(holder: &Raw, cluster: &LocalCluster) -> NodeLink {
    let ear = holder.another(cluster, 0, UNIX);
    ask_no_more(&ear, 0);
    ear
}

/// A question whose answer no thread waits for.
fn ask_no_more(link: &NodeLink, done: u64) {
    let body = control::encode(&ControlRequest::Revocations { done });
    let outgoing = OutgoingRequest { kind: FrameKind::Control, body: &body, payload: &[] };
    let soon = Deadline::after(Duration::from_millis(20));
    assert!(link.call(outgoing, soon, |_| ()).is_err());
}
