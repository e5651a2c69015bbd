//! Faults on purpose: each arrives, over every transport and both ways, and nothing else does.
#![allow(clippy::unwrap_used, reason = "a test may end with a panic")]

#[allow(dead_code)]
mod common;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{Node, client, command, key, soon};
use samite_transport::Address;
use samite_transport::client::{ConnectIdentity, NodeLink};
use samite_transport::server::LoopOptions;
use samite_types::fault::FaultSwitch;
use samite_types::{Deadline, Error, ErrorKind, NodeId};
use samite_wire::frame::FrameKind;
use samite_wire::hello::VERSION;

const LENGTHS: [usize; 3] = [0, 3000, 300 << 10];

struct Faulty {
    node: Node,
    faults: Arc<FaultSwitch>,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Faulty {
    fn start() -> Self {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&lines);
        let sink = move |line: &str| kept.lock().unwrap().push(line.to_owned());
        let faults = FaultSwitch::new(NodeId(3), Some(Box::new(sink)));
        let node =
            Node::start(LoopOptions { faults: Some(faults.clone()), ..LoopOptions::default() });
        Self { node, faults, lines }
    }

    fn set(&self, table: &str) {
        self.faults.set((!table.is_empty()).then(|| table.parse().unwrap()));
    }

    fn told(&self, words: &str) -> bool {
        self.lines.lock().unwrap().iter().any(|line| line.contains(words))
    }
}

fn call(link: &NodeLink, len: usize, deadline: Deadline) -> Result<(), Error> {
    let payload = vec![len as u8; len];
    let body = [command::ECHO, 1, 2, 3];
    let ticket = link.submit(FrameKind::Request, &body, &[&payload], deadline)?;
    let (echoed, back) = link.wait(ticket, deadline, |reply| {
        let mut back = vec![0; reply.payload_left()];
        reply.read_payload(&mut back).unwrap();
        (reply.body().to_vec(), back)
    })?;
    // Not before: what was read of a frame with a wrong bit does not count.
    assert!(echoed == body && back == payload);
    Ok(())
}

fn briefly() -> Deadline {
    Deadline::after(Duration::from_millis(50))
}

fn connect(address: &Address) -> NodeLink {
    NodeLink::connect(address, key(), client(), soon()).unwrap()
}

#[test]
fn lost_frames_do_not_arrive_and_the_connection_lives() {
    let faulty = Faulty::start();
    for address in faulty.node.addresses() {
        let link = connect(address);
        for (table, words) in
            [("drop 100% c 3", "drop c n3 Request"), ("cut 3 c", "cut n3 c Reply")]
        {
            for len in LENGTHS {
                faulty.set(table);
                let error = call(&link, len, briefly()).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Timeout, "{address} {table}");
                faulty.set("");
                call(&link, len, soon()).unwrap();
            }
            assert!(faulty.told(words), "{words}");
        }
        assert!(!link.is_dead());
    }
    let before = faulty.node.requests.load(Ordering::Relaxed);
    faulty.set("drop 100% c 3");
    let link = connect(&faulty.node.unix);
    call(&link, 0, briefly()).unwrap_err();
    assert_eq!(faulty.node.requests.load(Ordering::Relaxed), before);
}

#[test]
fn a_frame_that_comes_twice_is_served_twice_and_harms_nobody() {
    let faulty = Faulty::start();
    for address in faulty.node.addresses() {
        for table in ["duplicate 100% c 3", "duplicate 100% 3 c", "duplicate 100% * *"] {
            let link = connect(address);
            faulty.set(table);
            for len in LENGTHS.repeat(3) {
                call(&link, len, soon()).unwrap();
            }
            // Many at once, answered in another order.
            let body = [command::LATER];
            let tickets: Vec<_> = (0..64)
                .map(|_| link.submit(FrameKind::Request, &body, &[&[7; 100]], soon()).unwrap())
                .collect();
            for ticket in tickets {
                link.wait(ticket, soon(), |reply| assert_eq!(reply.payload_left(), 100)).unwrap();
            }
            assert!(!link.is_dead(), "{address} {table}");
        }
    }
}

#[test]
fn a_wrong_bit_or_a_reset_ends_the_connection() {
    let faulty = Faulty::start();
    for address in faulty.node.addresses() {
        for table in ["corrupt 100% c 3", "corrupt 100% 3 c", "reset 100% c 3", "reset 100% 3 c"] {
            for len in LENGTHS {
                let link = connect(address);
                faulty.set(table);
                let error = call(&link, len, soon()).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{address} {table}: {error}");
                assert!(link.is_dead());
                faulty.set("");
                call(&connect(address), len, soon()).unwrap();
            }
        }
    }
    assert!(faulty.told("corrupt c n3 Request") && faulty.told("corrupt n3 c Reply"));
    assert!(faulty.told("reset c n3 Request") && faulty.told("reset n3 c Reply"));
}

/// An end of a connection before it is made says nothing: it is made again. Another key is an
/// answer, and comes at once all the same.
#[test]
fn a_handshake_that_is_damaged_begins_again_and_a_wrong_key_does_not() {
    let faulty = Faulty::start();
    for (table, connections) in
        [("corrupt 100% * *", 10), ("reset 100% * *", 10), ("corrupt 20% * *\nreset 20% * *", 150)]
    {
        faulty.set(table);
        for _ in 0..connections {
            // Both know the newest version, and nothing makes them speak an older one.
            assert_eq!(connect(&faulty.node.tcp).version(), VERSION, "{table}");
        }
        let stranger = samite_transport::ClusterKey::new([9; 32]);
        let begun = Instant::now();
        let error = NodeLink::connect(&faulty.node.tcp, &stranger, client(), soon()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WrongKey, "{table}: {error}");
        assert!(begun.elapsed() < Duration::from_secs(5), "{table}");
    }
    for frame in ["c n3 Hello", "n3 c Challenge", "c n3 Proof", "n3 c Welcome"] {
        for fault in ["corrupt", "reset"] {
            assert!(faulty.told(&format!("{fault} {frame}")), "{fault} {frame}");
        }
    }
}

#[test]
fn late_frames_come_late_and_block_nobody() {
    let faulty = Faulty::start();
    for address in faulty.node.addresses() {
        for table in ["delay 60ms c 3", "delay 60ms 3 c"] {
            let link = connect(address);
            faulty.set(table);
            let start = Instant::now();
            let slow: Vec<_> = LENGTHS
                .map(|len| {
                    let payload = vec![1; len];
                    link.submit(FrameKind::Request, &[command::ECHO], &[&payload], soon()).unwrap()
                })
                .into_iter()
                .collect();
            // Bytes that the node has not received yet would not be late.
            let told = || faulty.lines.lock().unwrap().len() >= LENGTHS.len();
            while !told() {
                assert!(start.elapsed() < Duration::from_secs(20));
                std::thread::sleep(Duration::from_millis(1));
            }
            faulty.set("");
            call(&link, 3000, soon()).unwrap();
            for (ticket, len) in slow.into_iter().zip(LENGTHS) {
                link.wait(ticket, soon(), |reply| assert_eq!(reply.payload_left(), len)).unwrap();
            }
            assert!(start.elapsed() >= Duration::from_millis(60), "{address} {table}");
            faulty.lines.lock().unwrap().clear();
        }
    }
}

#[test]
fn all_at_once_costs_time_and_nothing_else() {
    let faulty = Faulty::start();
    faulty.set("seed 5\ndrop 5% * *\nduplicate 5% * *\nreorder 20% * *\ndelay 100us * *");
    for address in faulty.node.addresses() {
        let link = connect(address);
        let mut lost = 0;
        for round in 0..200 {
            let deadline = Deadline::after(Duration::from_millis(100));
            if let Err(error) = call(&link, round * 100, deadline) {
                assert_eq!(error.kind(), ErrorKind::Timeout, "{address}");
                lost += 1;
            }
        }
        assert!((1..100).contains(&lost), "{address}: {lost} of 200");
    }
}

/// Frames that a node sends by its own links meet its own faults, and not those of the node that
/// receives them.
#[test]
fn links_of_nodes_meet_the_faults_of_their_node() {
    let faulty = Faulty::start();
    let own = FaultSwitch::new(NodeId(8), None);
    for address in faulty.node.addresses() {
        let link =
            NodeLink::connect_as(address, key(), &ConnectIdentity::node(&own), soon()).unwrap();
        faulty.set("drop 100% 8 3");
        call(&link, 100, soon()).unwrap();
        faulty.set("drop 100% 3 8");
        assert_eq!(call(&link, 100, briefly()).unwrap_err().kind(), ErrorKind::Timeout);
        faulty.set("");
        for len in LENGTHS {
            own.set(Some("drop 100% 8 3".parse().unwrap()));
            assert_eq!(call(&link, len, briefly()).unwrap_err().kind(), ErrorKind::Timeout);
            own.set(Some("duplicate 100% 8 3\ndelay 1ms 8 *".parse().unwrap()));
            call(&link, len, soon()).unwrap();
        }
        own.set(Some("corrupt 100% 8 3".parse().unwrap()));
        assert!(call(&link, 3000, soon()).is_err());
        assert!(link.is_dead());
        own.set(None);
    }
}

#[test]
fn nodes_that_are_cut_off_make_no_connection() {
    let faulty = Faulty::start();
    let own = FaultSwitch::new(NodeId(8), None);
    let connect = || {
        let who = ConnectIdentity::node(&own);
        NodeLink::connect_as(
            &faulty.node.tcp,
            key(),
            &who,
            Deadline::after(Duration::from_millis(80)),
        )
    };
    connect().unwrap();
    own.set(Some("cut 8 3".parse().unwrap()));
    assert_eq!(connect().unwrap_err().kind(), ErrorKind::Timeout);
    own.set(None);
    faulty.set("cut 3 8");
    assert_eq!(connect().unwrap_err().kind(), ErrorKind::Timeout);
    // Clients are not nodes.
    call(&NodeLink::connect(&faulty.node.tcp, key(), client(), soon()).unwrap(), 10, soon())
        .unwrap();
    faulty.set("");
    connect().unwrap();
}
