//! File locks at a node: taken, waited for, and freed by the end of a connection.

mod common;

use std::time::{Duration, Instant};

use common::{Raw, TCP, UNIX, ask, deadline};
use samite_testkit::LocalCluster;
use samite_transport::client::{NodeLink, RequestTicket};
use samite_types::ErrorKind;
use samite_wire::control::{self, ControlReply, ControlRequest, FaultRequest, MEMORY_BACKEND};
use samite_wire::frame::{FrameKind, MAGIC};
use samite_wire::lock::{
    LockAnswer, LockCall, LockHolder, LockMode, LockRange, LockRequest, LockSpace,
};

const WAIT: u64 = 5;
/// Less than a node waits for a client whose connection broke.
const AT_ONCE: Duration = Duration::from_millis(1500);

/// A cluster with a dataset.
fn cluster(nodes: usize, shards: u16) -> LocalCluster {
    let cluster = common::cluster(nodes, shards);
    Raw::connect(&cluster, 0, UNIX).create("d", MEMORY_BACKEND);
    cluster
}

fn request(raw: &Raw, call: LockCall) -> ControlRequest {
    let partition = raw.partition(0, 1);
    let (dataset, object, space) = (raw.map.datasets()[0].id, 77, LockSpace::Ranges);
    ControlRequest::Lock(LockRequest {
        dataset,
        partition,
        object,
        space,
        token: 1,
        term: raw.map.group(samite_types::Redundancy(1), partition).expect("group").term,
        epoch: raw.map.epoch(),
        is_note: false,
        call,
    })
}

fn take(raw: &Raw, range: LockRange, wait: Option<u64>) -> ControlRequest {
    let (mode, holder) = (LockMode::Exclusive, LockHolder { host: 1, pid: 42 });
    request(raw, LockCall::Take { range, mode, holder, wait, detects_deadlock: true })
}

fn answer(raw: &Raw, request: &ControlRequest) -> LockAnswer {
    match raw.control(request) {
        ControlReply::Lock(answer) => answer,
        other => panic!("{other:?}"),
    }
}

fn submit(link: &NodeLink, request: &ControlRequest) -> RequestTicket {
    link.submit(FrameKind::Control, &control::encode(request), &[], deadline()).expect("send")
}

fn wait(link: &NodeLink, ticket: RequestTicket) -> LockAnswer {
    let reply =
        link.wait(ticket, deadline(), |reply| control::decode(reply.body()).expect("decode"));
    match reply.expect("a reply") {
        ControlReply::Lock(answer) => answer,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_lock_excludes_is_waited_for_and_ends_with_its_connection() {
    // Two shards: the connections may be served by different ones.
    let cluster = cluster(1, 2);
    let whole = LockRange::WHOLE;
    for transport in [UNIX, TCP] {
        let (first, second) =
            (Raw::connect(&cluster, 0, transport), Raw::connect(&cluster, 0, UNIX));
        assert_eq!(answer(&first, &take(&first, whole, None)), LockAnswer::Done);
        let LockAnswer::Held(found) = answer(&second, &take(&second, whole, None)) else {
            panic!("two exclusive locks")
        };
        assert_eq!((found.holder.pid, found.range), (42, whole));

        let waiting = submit(&second.link, &take(&second, whole, Some(WAIT)));
        // Answered behind it, so the wait has begun.
        second.status();
        let release = request(&first, LockCall::Release { range: whole });
        assert_eq!(answer(&first, &release), LockAnswer::Done);
        assert_eq!(wait(&second.link, waiting), LockAnswer::Done);

        let waiting = submit(&first.link, &take(&first, whole, Some(WAIT)));
        first.status();
        drop(second);
        assert_eq!(wait(&first.link, waiting), LockAnswer::Done);
        // The end of a connection is seen later than the next message of another one.
        let release = request(&first, LockCall::Release { range: whole });
        assert_eq!(answer(&first, &release), LockAnswer::Done);
    }
}

/// How a client dies that has a lock.
#[derive(Clone, Copy, Debug)]
enum Dies {
    InsideFrame,
    /// An answer lies in its socket.
    Unread,
    /// Requests lie in the node's.
    Asking,
}

impl Dies {
    fn before_the_end(self, raw: &Raw) {
        match self {
            Self::InsideFrame => {
                // SAFETY: the link holds this descriptor open.
                let fd = unsafe {
                    std::os::fd::BorrowedFd::borrow_raw(
                        raw.link.socket().expect("a link by socket"),
                    )
                };
                assert_eq!(rustix::io::write(fd, &MAGIC), Ok(MAGIC.len()));
            }
            Self::Unread => {
                drop(submit(&raw.link, &ControlRequest::Status));
                std::thread::sleep(Duration::from_millis(50));
            }
            Self::Asking => {
                for _ in 0..100 {
                    drop(submit(&raw.link, &ControlRequest::Status));
                }
            }
        }
    }
}

/// Nothing lies between a client and a node on its host: a client that is gone there has died, and
/// is not waited for.
#[test]
fn a_lock_is_free_at_once_whenever_its_holder_dies() {
    let cluster = cluster(1, 2);
    let other = Raw::connect(&cluster, 0, UNIX);
    for dies in [Dies::InsideFrame, Dies::Unread, Dies::Asking] {
        // On a network, the others may look like any end.
        let transports = if matches!(dies, Dies::InsideFrame) { &[UNIX, TCP][..] } else { &[UNIX] };
        for &transport in transports {
            let holder = Raw::connect(&cluster, 0, transport);
            assert_eq!(answer(&holder, &take(&holder, LockRange::WHOLE, None)), LockAnswer::Done);
            dies.before_the_end(&holder);
            let begun = Instant::now();
            drop(holder);
            let waiting = submit(&other.link, &take(&other, LockRange::WHOLE, Some(WAIT)));
            assert_eq!(wait(&other.link, waiting), LockAnswer::Done);
            // On a network it may live, and not know.
            let is_at_once = begun.elapsed() < AT_ONCE;
            assert_eq!(is_at_once, transport == UNIX, "{dies:?}: {:?}", begun.elapsed());
            let release = request(&other, LockCall::Release { range: LockRange::WHOLE });
            assert_eq!(answer(&other, &release), LockAnswer::Done);
        }
    }
}

/// A connection that is broken on purpose counts as broken on a host, too.
#[test]
fn a_lock_waits_for_a_holder_whose_connection_was_broken_by_a_fault() {
    let cluster = cluster(1, 2);
    let (other, faults) = (Raw::connect(&cluster, 0, UNIX), Raw::connect(&cluster, 0, UNIX));
    let set = |request| match faults.control(&ControlRequest::Faults(request)) {
        ControlReply::Faults(_) => {}
        unexpected => panic!("{unexpected:?}"),
    };
    for transport in [UNIX, TCP] {
        for table in ["reset 100% c 0", "reset 100% 0 c", "corrupt 100% c 0", "corrupt 100% 0 c"] {
            // Its own connection asks for no lock.
            let holder = Raw::connect(&cluster, 0, transport);
            let whole = take(&holder, LockRange::WHOLE, None);
            let takes = |link: &NodeLink| {
                ask(link, &whole).unwrap() == ControlReply::Lock(LockAnswer::Done)
            };
            let is_held = || {
                let found = answer(&other, &take(&other, LockRange::WHOLE, None));
                assert!(matches!(found, LockAnswer::Held(_)), "{table}, {found:?}");
            };
            let link = holder.another(&cluster, 0, transport);
            assert!(takes(&link));
            set(FaultRequest::Set(table.to_owned()));
            ask(&link, &ControlRequest::Status).unwrap_err();
            drop(link);
            set(FaultRequest::Clear);
            std::thread::sleep(Duration::from_millis(100));
            is_held();
            let back = holder.another(&cluster, 0, transport);
            assert!(takes(&back));
            is_held();
            drop(back);
            let waiting = submit(&other.link, &take(&other, LockRange::WHOLE, Some(WAIT)));
            assert_eq!(wait(&other.link, waiting), LockAnswer::Done);
            let release = request(&other, LockCall::Release { range: LockRange::WHOLE });
            assert_eq!(answer(&other, &release), LockAnswer::Done);
        }
    }
}

#[test]
fn waits_are_cancelled_and_circles_of_waits_refused() {
    let cluster = cluster(1, 1);
    let (first, second) = (Raw::connect(&cluster, 0, UNIX), Raw::connect(&cluster, 0, UNIX));
    let (low, high) = (LockRange { start: 0, last: 9 }, LockRange { start: 10, last: 19 });
    assert_eq!(answer(&first, &take(&first, low, None)), LockAnswer::Done);
    assert_eq!(answer(&second, &take(&second, high, None)), LockAnswer::Done);

    let waiting = submit(&first.link, &take(&first, high, Some(WAIT)));
    first.status();
    assert_eq!(answer(&second, &take(&second, low, Some(WAIT))), LockAnswer::Deadlock);
    assert_eq!(first.control(&ControlRequest::CancelLock { wait: WAIT }), ControlReply::Ok);
    assert_eq!(wait(&first.link, waiting), LockAnswer::Cancelled);
    assert!(matches!(answer(&second, &take(&second, low, None)), LockAnswer::Held(_)));

    // A wait whose connection goes, goes with it.
    let third = Raw::connect(&cluster, 0, UNIX);
    let waiting = submit(&third.link, &take(&third, low, Some(WAIT)));
    third.status();
    drop((waiting, third));
    std::thread::sleep(Duration::from_millis(50));
    let release = request(&first, LockCall::Release { range: low });
    assert_eq!(answer(&first, &release), LockAnswer::Done);
    assert_eq!(answer(&second, &take(&second, low, None)), LockAnswer::Done);
}

#[test]
fn nonsense_and_foreign_partitions_are_refused() {
    let cluster = cluster(2, 1);
    let raw = Raw::connect(&cluster, 0, UNIX);
    let kind = |request: &ControlRequest| match ask(&raw.link, request).unwrap() {
        ControlReply::Failed { kind, .. } => ErrorKind::from_code(kind).unwrap(),
        other => panic!("{other:?}"),
    };
    let backwards = LockRange { start: 5, last: 4 };
    assert_eq!(kind(&take(&raw, backwards, None)), ErrorKind::Invalid);
    let beyond = LockRange { start: 0, last: u64::MAX };
    assert_eq!(kind(&take(&raw, beyond, None)), ErrorKind::Invalid);
    let ControlRequest::Lock(mut foreign) = take(&raw, LockRange::WHOLE, None) else {
        unreachable!()
    };
    foreign.partition = Raw::connect(&cluster, 1, UNIX).partition(0, 1);
    assert_eq!(kind(&ControlRequest::Lock(foreign)), ErrorKind::StaleMap);
}

#[test]
fn only_nodes_are_told_of_the_locks_of_all() {
    let cluster = cluster(1, 1);
    let client = Raw::connect(&cluster, 0, UNIX);
    assert_eq!(answer(&client, &take(&client, LockRange::WHOLE, None)), LockAnswer::Done);
    let (node, epoch) = (samite_types::NodeId(0), client.map.epoch());
    for asked in [
        ControlRequest::KnownLocks { node, epoch, after: None },
        ControlRequest::LockClients(vec![samite_types::ClientId(1)]),
    ] {
        match client.control(&asked) {
            ControlReply::Failed { kind, .. } => assert_eq!(kind, ErrorKind::Denied.code()),
            other => panic!("{other:?}"),
        }
    }
}
