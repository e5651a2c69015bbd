//! Requests and replies over all transports.
#![allow(clippy::unwrap_used, reason = "a test or a measurement may end with a panic")]

#[allow(dead_code)]
mod common;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Barrier};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use common::{Node, client, command, key, soon};
use samite_transport::client::{NodeLink, OutgoingRequest};
use samite_transport::server::LoopOptions;
use samite_types::{Deadline, Epoch, ErrorKind, NodeId};
use samite_wire::frame::FrameKind;
use samite_wire::limits::IN_FLIGHT_MAX;

fn links(node: &Node) -> Vec<NodeLink> {
    node.addresses()
        .into_iter()
        .map(|address| NodeLink::connect(address, key(), client(), soon()).unwrap())
        .collect()
}

/// Body and payload that say what they are.
fn message(command: u8, number: u64, payload_len: usize) -> (Vec<u8>, Vec<u8>) {
    let mut body = vec![command];
    body.extend_from_slice(&number.to_le_bytes());
    let payload = (0..payload_len).map(|at| (at as u64 ^ number) as u8).collect();
    (body, payload)
}

fn check(
    link: &NodeLink,
    ticket: samite_transport::client::RequestTicket,
    number: u64,
    payload_len: usize,
) {
    let (_, expected) = message(0, number, payload_len);
    link.wait(ticket, soon(), |reply| {
        assert_eq!(reply.kind(), FrameKind::Reply);
        assert_eq!(reply.body()[1..9], number.to_le_bytes());
        assert_eq!(reply.payload_left(), payload_len);
        let mut payload = vec![0; payload_len];
        match reply.payload_in_place() {
            Some(here) => payload.copy_from_slice(here),
            None => {
                let (first, second) = payload.split_at_mut(payload_len / 3);
                reply.read_payload(first).unwrap();
                reply.read_payload(second).unwrap();
            }
        }
        assert!(payload == expected, "payload of {number}");
    })
    .unwrap();
}

#[test]
fn a_link_knows_its_node() {
    let node = Node::start(LoopOptions::default());
    for (link, address) in links(&node).iter().zip(node.addresses()) {
        assert_eq!(link.node(), NodeId(3));
        assert_eq!(link.map_epoch_hint(), Epoch(5));
        assert_eq!(link.address(), address);
        assert!(!link.is_dead());
        assert!(link.descriptors().iter().all(|fd| *fd > 100));
    }
}

#[test]
fn every_size_comes_back_whole() {
    let node = Node::start(LoopOptions::default());
    for link in links(&node) {
        for len in [0, 1, 100, 4095, 16 << 10, (16 << 10) + 1, 70_000, 300_000, 1 << 20, 8 << 20] {
            let (body, payload) = message(command::ECHO, len as u64, len);
            let pieces: Vec<&[u8]> = payload.chunks(len / 3 + 1).collect();
            let ticket = link.submit(FrameKind::Request, &body, &pieces, soon()).unwrap();
            check(&link, ticket, len as u64, len);
        }
        let body = vec![0; 1 << 20];
        let request = OutgoingRequest { kind: FrameKind::Control, body: &body, payload: &[] };
        let len = link.call(request, soon(), |reply| reply.body().len()).unwrap();
        assert_eq!(len, body.len());
    }
}

#[test]
fn a_long_reply_can_be_read_in_pieces_of_any_length() {
    const LEN: usize = 300_000;
    let node = Node::start(LoopOptions::default());
    for link in links(&node) {
        let (body, expected) = message(command::ECHO, 7, LEN);
        // The last time, most of it is left unread.
        for (lens, whole) in [(&[100][..], true), (&[1, 40_000, 99, 32 << 10], true), (&[7], false)]
        {
            let ticket = link.submit(FrameKind::Request, &body, &[&expected], soon()).unwrap();
            link.wait(ticket, soon(), |reply| {
                let mut at = 0;
                for len in lens.iter().cycle().take(if whole { usize::MAX } else { 6000 }) {
                    let mut piece = vec![0; (*len).min(LEN - at)];
                    reply.read_payload(&mut piece).unwrap();
                    assert!(piece == expected[at..at + piece.len()], "{len} bytes from {at}");
                    at += piece.len();
                    assert_eq!(reply.payload_left(), LEN - at);
                    if at == LEN {
                        break;
                    }
                }
                let error = reply.read_payload(&mut vec![0; LEN - at + 1]).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Invalid);
            })
            .unwrap();
        }
        let (body, _) = message(command::ECHO, 1, 0);
        check(&link, link.submit(FrameKind::Request, &body, &[], soon()).unwrap(), 1, 0);
    }
}

#[test]
fn what_is_over_a_limit_is_refused_and_harms_nothing() {
    let node = Node::start(LoopOptions::default());
    for link in links(&node) {
        let long = vec![0; (8 << 20) + 1];
        let error = link.submit(FrameKind::Request, &[0], &[&long], soon()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooLarge);
        let error = link.submit(FrameKind::Request, &long, &[], soon()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooLarge);
        let (body, _) = message(command::ECHO, 1, 0);
        check(&link, link.submit(FrameKind::Request, &body, &[], soon()).unwrap(), 1, 0);
    }
}

#[test]
fn replies_come_in_any_order() {
    let node = Node::start(LoopOptions::default());
    for link in links(&node) {
        let tickets: Vec<_> = (0..64)
            .map(|number| {
                // Every fourth waits at the node, so that those behind it overtake it.
                let kind = if number % 4 == 0 { command::LATER } else { command::ECHO };
                let (body, payload) = message(kind, number, 200);
                link.submit(FrameKind::Request, &body, &[&payload], soon()).unwrap()
            })
            .collect();
        for (number, ticket) in tickets.into_iter().enumerate() {
            check(&link, ticket, number as u64, 200);
        }
    }
}

#[test]
fn a_batch_travels_together() {
    let node = Node::start(LoopOptions::default());
    for link in links(&node) {
        let bodies: Vec<_> = (0..500).map(|number| message(command::ECHO, number, 64)).collect();
        let payloads: Vec<[&[u8]; 1]> = bodies.iter().map(|(_, payload)| [&payload[..]]).collect();
        let requests: Vec<_> = bodies
            .iter()
            .zip(&payloads)
            .map(|((body, _), payload)| OutgoingRequest { kind: FrameKind::Request, body, payload })
            .collect();
        let tickets = link.submit_many(&requests, soon()).unwrap();
        assert_eq!(tickets.len(), 500);
        for (number, ticket) in tickets.into_iter().enumerate().rev() {
            check(&link, ticket, number as u64, 64);
        }
    }
}

#[test]
fn many_threads_share_a_link_and_none_misses_its_wake_up() {
    let node = Node::start(LoopOptions::default());
    for link in links(&node) {
        std::thread::scope(|scope| {
            for thread in 0..8u64 {
                let link = &link;
                scope.spawn(move || {
                    let mut random = thread.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
                    for round in 0..400u64 {
                        random ^= random << 13;
                        random ^= random >> 7;
                        random ^= random << 17;
                        let tickets: Vec<_> = (0..random % 4 + 1)
                            .map(|at| {
                                let number = thread << 32 | round << 8 | at;
                                let later = random >> 8 & 31 == 0;
                                let kind = if later { command::LATER } else { command::ECHO };
                                let len = match random >> 16 & 63 {
                                    0 => 100_000,
                                    1 => 20_000,
                                    other => other as usize * 10,
                                };
                                let (body, payload) = message(kind, number, len);
                                let ticket =
                                    link.submit(FrameKind::Request, &body, &[&payload], soon());
                                (ticket.unwrap(), number, len)
                            })
                            .collect();
                        if random >> 40 & 15 == 0 {
                            std::thread::sleep(Duration::from_micros(random >> 48 & 255));
                        }
                        for (ticket, number, len) in tickets {
                            if random >> 44 & 15 == 0 {
                                drop(ticket);
                            } else {
                                check(link, ticket, number, len);
                            }
                        }
                    }
                });
            }
        });
    }
}

#[test]
fn sleeping_and_waking_lose_nothing() {
    let node =
        Node::start(LoopOptions { spin: Duration::from_micros(5), ..LoopOptions::default() });
    let clients: Vec<_> =
        (0..3).map(|_| NodeLink::connect(&node.shm, key(), client(), soon()).unwrap()).collect();
    std::thread::scope(|scope| {
        for (seed, link) in clients.iter().enumerate() {
            scope.spawn(move || {
                let mut random = seed as u64 + 1;
                for number in 0..3000 {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let (body, payload) = message(command::ECHO, number, 8);
                    let ticket = link.submit(FrameKind::Request, &body, &[&payload], soon());
                    check(link, ticket.unwrap(), number, 8);
                    // Pauses around the time after which either side goes to sleep.
                    let pause = Duration::from_nanos(random & 0x7fff);
                    let start = Instant::now();
                    while random & 3 != 0 && start.elapsed() < pause {
                        std::hint::spin_loop();
                    }
                    if random & 63 == 0 {
                        std::thread::sleep(pause * 8);
                    }
                }
            });
        }
    });
}

#[test]
fn rings_wrap_around_with_frames_of_all_lengths() {
    let node = Node::start(LoopOptions::default());
    let link = NodeLink::connect(&node.shm, key(), client(), soon()).unwrap();
    let mut tickets = std::collections::VecDeque::new();
    for number in 0..6000u64 {
        let len = (number * 7919 % 5000) as usize;
        let (body, payload) = message(command::ECHO, number, len);
        let ticket = link.submit(FrameKind::Request, &body, &[&payload], soon()).unwrap();
        tickets.push_back((ticket, number, len));
        if tickets.len() > 20 {
            let (ticket, number, len) = tickets.pop_front().unwrap();
            check(&link, ticket, number, len);
        }
    }
    for (ticket, number, len) in tickets {
        check(&link, ticket, number, len);
    }
}

#[test]
fn a_peer_that_reads_late_gets_everything_and_hinders_nobody() {
    let node = Node::start(LoopOptions::default());
    for (address, link) in node.addresses().into_iter().zip(links(&node)) {
        let mut body = [command::BYTES; 9];
        body[1..5].copy_from_slice(&(1u32 << 20).to_le_bytes());
        let tickets: Vec<_> = (0..100)
            .map(|_| link.submit(FrameKind::Request, &body, &[], soon()).unwrap())
            .collect();
        let other = NodeLink::connect(address, key(), client(), soon()).unwrap();
        for number in 0..100 {
            let (body, _) = message(command::ECHO, number, 0);
            let ticket = other.submit(FrameKind::Request, &body, &[], soon()).unwrap();
            check(&other, ticket, number, 0);
        }
        let mut dest = vec![0; 1 << 20];
        for ticket in tickets {
            link.wait(ticket, soon(), |reply| reply.read_payload(&mut dest).unwrap()).unwrap();
            assert!(dest.iter().enumerate().all(|(at, byte)| *byte == (at >> 8) as u8));
        }
    }
}

#[test]
fn small_replies_that_are_not_read_wait_in_bounds() {
    let node = Node::start(LoopOptions::default());
    for link in links(&node) {
        let (_, payload) = message(command::ECHO, 0, 8000);
        let tickets: Vec<_> = (0..IN_FLIGHT_MAX as u64)
            .map(|number| {
                let (body, _) = message(command::ECHO, number, 0);
                link.submit(FrameKind::Request, &body, &[&payload], soon()).unwrap()
            })
            .collect();
        let late = Deadline::after(Duration::from_millis(20));
        let error = link.submit(FrameKind::Request, &[0], &[], late).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout);
        for (number, ticket) in tickets.into_iter().enumerate() {
            link.wait(ticket, soon(), |reply| {
                assert_eq!(reply.body()[1..9], (number as u64).to_le_bytes());
            })
            .unwrap();
        }
    }
}

#[test]
fn deadlines_hold_and_the_link_stays_usable() {
    let node = Node::start(LoopOptions::default());
    for link in links(&node) {
        for timeout in [0, 10, 80] {
            let timeout = Duration::from_millis(timeout);
            let ticket = link.submit(FrameKind::Request, &[command::NEVER], &[], soon()).unwrap();
            let start = Instant::now();
            let error = link.wait(ticket, Deadline::after(timeout), |_| ()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
            assert!(start.elapsed() >= timeout);
            assert!(start.elapsed() < timeout + Duration::from_secs(5));
        }
        let (body, _) = message(command::ECHO, 1, 0);
        check(&link, link.submit(FrameKind::Request, &body, &[], soon()).unwrap(), 1, 0);
    }
}

#[test]
fn a_late_reply_to_somebody_who_has_gone_is_thrown_away() {
    let node = Node::start(LoopOptions::default());
    for link in links(&node) {
        for number in 0..200u64 {
            let (body, payload) = message(command::LATER, number, 30_000);
            let ticket = link.submit(FrameKind::Request, &body, &[&payload], soon()).unwrap();
            let _ = link.wait(ticket, Deadline::after(Duration::from_micros(number)), |_| ());
        }
        let (body, _) = message(command::ECHO, 1, 0);
        check(&link, link.submit(FrameKind::Request, &body, &[], soon()).unwrap(), 1, 0);
    }
}

#[test]
fn the_death_of_a_node_ends_every_wait_with_its_name() {
    let mut node = Node::start(LoopOptions::default());
    let links = links(&node);
    let barrier = Barrier::new(links.len() * 3 + 1);
    std::thread::scope(|scope| {
        let mut waits = Vec::new();
        for link in &links {
            for _ in 0..3 {
                let barrier = &barrier;
                waits.push(scope.spawn(move || {
                    let ticket =
                        link.submit(FrameKind::Request, &[command::NEVER], &[], soon()).unwrap();
                    barrier.wait();
                    let error = link.wait(ticket, soon(), |_| ()).unwrap_err();
                    (error, Instant::now(), link.address().to_string())
                }));
            }
        }
        barrier.wait();
        std::thread::sleep(Duration::from_millis(120));
        node.stop();
        let dead_since = Instant::now();
        for wait in waits {
            let (error, at, address) = wait.join().unwrap();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            assert!(error.message().contains(&address), "{error}");
            assert!(error.message().contains("n3"), "{error}");
            assert!(at.saturating_duration_since(dead_since) < Duration::from_secs(5));
        }
    });
    for link in &links {
        assert!(link.is_dead());
        let error = link.submit(FrameKind::Request, &[0], &[], soon()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let error = NodeLink::connect(link.address(), key(), client(), soon()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[test]
fn futures_are_woken() {
    let node = Node::start(LoopOptions::default());
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    for link in links(&node) {
        for round in 0..200u64 {
            let kind = if round % 3 == 0 { command::LATER } else { command::ECHO };
            let mut tickets: Vec<_> = (0..4)
                .map(|at| {
                    let len = if round % 50 == 0 { 100_000 } else { 100 };
                    let number = round << 8 | at;
                    let (body, payload) = message(kind, number, len);
                    let ticket = link.submit(FrameKind::Request, &body, &[&payload], soon());
                    (ticket.unwrap(), number, len)
                })
                .collect();
            while !tickets.is_empty() {
                let (ready, pending): (Vec<_>, Vec<_>) = tickets
                    .into_iter()
                    .partition(|(ticket, ..)| link.poll(ticket, &mut context) == Poll::Ready(()));
                tickets = pending;
                let any = !ready.is_empty();
                for (ticket, number, len) in ready {
                    check(&link, ticket, number, len);
                }
                if !any {
                    std::thread::park_timeout(Duration::from_secs(20));
                }
            }
        }
    }
}

#[test]
fn a_forked_childs_copy_is_given_up_in_silence() {
    let node = Node::start(LoopOptions::default());
    for link in links(&node) {
        link.abandon();
        assert!(link.is_dead());
        assert!(link.descriptors().is_empty());
        let error = link.submit(FrameKind::Request, &[0], &[], soon()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
    }
}

#[test]
fn the_node_learns_of_clients_that_go() {
    let node = Node::start(LoopOptions::default());
    drop(links(&node));
    let start = Instant::now();
    while node.closed.load(Ordering::Relaxed) < 4 {
        assert!(start.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn what_is_enqueued_leaves_when_somebody_waits() {
    let node = Node::start(LoopOptions::default());
    for link in links(&node) {
        let link = &link;
        let enqueue = |number: u64, len: usize| {
            let (body, payload) = message(command::ECHO, number, len);
            let payload = [&payload[..]];
            let request =
                OutgoingRequest { kind: FrameKind::Request, body: &body, payload: &payload };
            (link.enqueue(request, soon()).unwrap(), number, len)
        };
        let mut tickets: std::collections::VecDeque<_> =
            (0..64).map(|number| enqueue(number, 100)).collect();
        for number in 64..2000 {
            let (ticket, number_then, len) = tickets.pop_front().unwrap();
            check(link, ticket, number_then, len);
            tickets.push_back(enqueue(number, if number % 500 == 0 { 70_000 } else { 100 }));
        }
        // While another thread is receiving already.
        std::thread::scope(|scope| {
            let (never, ..) = enqueue(0, 0);
            let late = Deadline::after(Duration::from_millis(1500));
            let body = [command::NEVER];
            let other = link.submit(FrameKind::Request, &body, &[], soon()).unwrap();
            scope.spawn(move || link.wait(other, late, |_| ()).unwrap_err());
            std::thread::sleep(Duration::from_millis(20));
            let start = Instant::now();
            let (ticket, number, len) = enqueue(5, 10);
            check(link, ticket, number, len);
            assert!(start.elapsed() < Duration::from_secs(1));
            check(link, never, 0, 0);
        });
        for (ticket, number, len) in tickets {
            check(link, ticket, number, len);
        }
        link.flush().unwrap();
    }
}
