//! Members that are not the primary answer reads, of datasets that want that.
#![allow(clippy::unwrap_used, reason = "a test ends at what it does not expect")]

mod common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{Ended, Raw, SHM, UNIX, cluster, pattern};
use samite_types::{DatasetId, ErrorKind, PartitionId, Redundancy, Seq, TargetId};
use samite_wire::control::ReadsKind;
use samite_wire::op::{Action, Operation};

const WAIT: Duration = Duration::from_secs(20);

/// A partition whose primary is node 0 and whose second member is node 1.
fn led_by_the_first(raw: &Raw, copies: u8) -> PartitionId {
    let groups = &raw.map.table(Redundancy(copies)).unwrap().groups;
    let at = groups.iter().position(|group| {
        let members: Vec<_> = group.members.iter().map(|member| member.target).collect();
        members.starts_with(&[TargetId(0)]) && members.contains(&TargetId(1))
    });
    PartitionId(at.unwrap() as u32)
}

/// A member's answer to a read; `None`: ask the primary.
fn read_at(raw: &Raw, dataset: DatasetId, operation: Operation<'_>) -> Option<Ended> {
    let mut answer = raw.try_send(&raw.header(dataset), &[operation]).unwrap();
    if answer.refused == Some(ErrorKind::StaleMap) {
        return None;
    }
    assert_eq!(answer.refused, None);
    match answer.outcomes.remove(0) {
        Ended::Failed { kind: ErrorKind::StaleMap, .. } => None,
        ended => Some(ended),
    }
}

/// The same, asked again and again until it answers.
fn read_soon(raw: &Raw, dataset: DatasetId, p: PartitionId, key: &[u8]) -> Ended {
    let start = Instant::now();
    loop {
        if let Some(ended) = read_at(raw, dataset, Operation::get(p, key)) {
            return ended;
        }
        assert!(start.elapsed() < WAIT, "it never answers");
    }
}

#[test]
fn a_member_answers_once_the_primary_has_granted_it_reads() {
    for (copies, transport) in [(2, UNIX), (3, SHM)] {
        let cluster = cluster(3, 2);
        let mut raw = Raw::connect(&cluster, 0, UNIX);
        let dataset = raw.create_read_by("d", copies, ReadsKind::Any);
        let p = led_by_the_first(&raw, copies);
        let other = Raw::connect(&cluster, 1, transport);
        for len in [3, 70_000, 1 << 20] {
            let value = pattern(len, 1);
            raw.one(dataset, Operation::put(p, b"k", &value));
            assert!(read_soon(&other, dataset, p, b"k").value() == value);
        }
        // A record that is not there is not there at the member, either.
        let missing = read_soon(&other, dataset, p, b"nothing");
        assert!(matches!(missing, Ended::Failed { kind: ErrorKind::NotFound, .. }), "{missing:?}");
        // An operation that does more than read is the primary's.
        let hold = Action::Hold { key: b"k", token: 1 };
        assert!(read_at(&other, dataset, Operation::new(p, [hold])).is_none());
        let mut put = Operation::put(p, b"k", b"v");
        put.seq = Seq(1);
        assert!(read_at(&other, dataset, put).is_none());
    }
}

#[test]
fn a_member_shows_every_acknowledged_change() {
    let cluster = cluster(3, 1);
    let mut raw = Raw::connect(&cluster, 0, UNIX);
    let dataset = raw.create_read_by("d", 2, ReadsKind::Any);
    let p = led_by_the_first(&raw, 2);
    raw.one(dataset, Operation::put(p, b"k", &0u64.to_le_bytes()));
    let (acknowledged, answered) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let other = Raw::connect(&cluster, 1, SHM);
            let mut last = 0;
            while last < 2_000 {
                let before = acknowledged.load(Ordering::SeqCst);
                let Some(ended) = read_at(&other, dataset, Operation::get(p, b"k")) else {
                    // As a client would: the primary is asked.
                    std::thread::yield_now();
                    last = before;
                    continue;
                };
                let found = u64::from_le_bytes(ended.value().try_into().unwrap());
                assert!(found >= before, "{found} was read after {before} was acknowledged");
                assert!(found >= last, "{found} was read after {last}");
                last = found;
                answered.fetch_add(1, Ordering::Relaxed);
            }
        });
        for number in 1..=2_000u64 {
            raw.one(dataset, Operation::put(p, b"k", &number.to_le_bytes()));
            acknowledged.store(number, Ordering::SeqCst);
        }
        reader.join().unwrap();
    });
    assert!(answered.into_inner() > 50, "the member answers");
}
