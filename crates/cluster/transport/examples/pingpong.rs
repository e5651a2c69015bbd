//! Round trips and streams over the three transports, beside what the machine gives without us.
//!
//! `cargo run --release -p samite-transport --example pingpong [ROUNDS]`
#![allow(clippy::unwrap_used, reason = "a test or a measurement may end with a panic")]

#[path = "../tests/common/mod.rs"]
#[allow(dead_code)]
mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use samite_transport::client::{NodeLink, OutgoingRequest};
use samite_transport::server::LoopOptions;
use samite_wire::frame::FrameKind;

const MESSAGE_LEN: usize = 100;
const STREAM_PIECE_LEN: usize = 1 << 20;

fn percentiles(name: &str, mut round: impl FnMut(), rounds: usize) -> f64 {
    for _ in 0..rounds / 10 {
        round();
    }
    let mut times: Vec<u64> = (0..rounds)
        .map(|_| {
            let start = Instant::now();
            round();
            start.elapsed().as_nanos() as u64
        })
        .collect();
    times.sort_unstable();
    let (median, high) = (times[rounds / 2], times[rounds * 99 / 100]);
    println!("{name:<28} p50 {:>8.2} us   p99 {:>8.2} us", median as f64 / 1e3, high as f64 / 1e3);
    median as f64
}

fn echo_raw(mut stream: impl Read + Write + Send + 'static) {
    std::thread::spawn(move || {
        let mut buffer = [0; MESSAGE_LEN];
        while stream.read_exact(&mut buffer).is_ok() && stream.write_all(&buffer).is_ok() {}
    });
}

fn raw(name: &str, mut near: impl Read + Write, rounds: usize) -> f64 {
    let mut buffer = [1; MESSAGE_LEN];
    percentiles(
        name,
        || {
            near.write_all(&buffer).unwrap();
            near.read_exact(&mut buffer).unwrap();
        },
        rounds,
    )
}

fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let far = listener.accept().unwrap().0;
    near.set_nodelay(true).unwrap();
    far.set_nodelay(true).unwrap();
    (near, far)
}

fn raw_stream(name: &str, mut near: impl Read, mut far: impl Write + Send + 'static) -> f64 {
    let pieces = 2048;
    std::thread::spawn(move || {
        let piece = vec![1; STREAM_PIECE_LEN];
        for _ in 0..pieces {
            if far.write_all(&piece).is_err() {
                break;
            }
        }
    });
    let mut buffer = vec![0; STREAM_PIECE_LEN];
    let start = Instant::now();
    for _ in 0..pieces {
        near.read_exact(&mut buffer).unwrap();
    }
    rate(name, pieces, start)
}

fn rate(name: &str, pieces: usize, start: Instant) -> f64 {
    let rate = pieces as f64 / 1024.0 / start.elapsed().as_secs_f64();
    println!("{name:<28} {rate:>8.2} GiB/s");
    rate
}

fn call(link: &NodeLink, body: &[u8; MESSAGE_LEN]) {
    let request = OutgoingRequest { kind: FrameKind::Request, body, payload: &[] };
    let len = link.call(request, common::soon(), |reply| reply.body().len()).unwrap();
    assert_eq!(len, MESSAGE_LEN);
}

fn pipelined(name: &str, link: &NodeLink, in_flight: usize, rounds: usize) {
    let body = [0; MESSAGE_LEN];
    let mut tickets = std::collections::VecDeque::new();
    let start = Instant::now();
    for round in 0..rounds + in_flight {
        if round >= in_flight {
            let ticket = tickets.pop_front().unwrap();
            link.wait(ticket, common::soon(), |_| ()).unwrap();
        }
        if round < rounds {
            let request = OutgoingRequest { kind: FrameKind::Request, body: &body, payload: &[] };
            tickets.push_back(link.enqueue(request, common::soon()).unwrap());
        }
    }
    let rate = rounds as f64 / start.elapsed().as_secs_f64() / 1e3;
    println!("{name:<28} {rate:>8.1} k/s, {in_flight} in flight");
}

fn batched(name: &str, link: &NodeLink, batch: usize, rounds: usize) {
    let body = [0; MESSAGE_LEN];
    let requests =
        vec![OutgoingRequest { kind: FrameKind::Request, body: &body, payload: &[] }; batch];
    let start = Instant::now();
    for _ in 0..rounds / batch {
        for ticket in link.submit_many(&requests, common::soon()).unwrap() {
            link.wait(ticket, common::soon(), |_| ()).unwrap();
        }
    }
    let rate = rounds as f64 / start.elapsed().as_secs_f64() / 1e3;
    println!("{name:<28} {rate:>8.1} k/s, {batch} together");
}

fn stream(name: &str, link: &NodeLink, in_flight: usize) -> f64 {
    let mut body = [common::command::BYTES; 5];
    body[1..].copy_from_slice(&(STREAM_PIECE_LEN as u32).to_le_bytes());
    let mut dest = vec![0; STREAM_PIECE_LEN];
    let mut tickets = std::collections::VecDeque::new();
    let pieces = 1024;
    let start = Instant::now();
    for piece in 0..pieces + in_flight {
        if piece >= in_flight {
            let ticket = tickets.pop_front().unwrap();
            link.wait(ticket, common::soon(), |reply| reply.read_payload(&mut dest).unwrap())
                .unwrap();
        }
        if piece < pieces {
            tickets.push_back(link.submit(FrameKind::Request, &body, &[], common::soon()).unwrap());
        }
    }
    rate(name, pieces, start)
}

fn main() {
    let rounds = std::env::args().nth(1).and_then(|arg| arg.parse().ok()).unwrap_or(20_000);
    let (near, far) = tcp_pair();
    echo_raw(far);
    let tcp_floor = raw("floor tcp", near, rounds);
    let (near, far) = UnixStream::pair().unwrap();
    echo_raw(far);
    let unix_floor = raw("floor unix", near, rounds);
    let node = common::Node::start(LoopOptions::default());
    let floors = [unix_floor / 2.0, unix_floor, tcp_floor];
    for (address, floor) in node.addresses().into_iter().zip(floors) {
        let link =
            NodeLink::connect(address, common::key(), common::client(), common::soon()).unwrap();
        let name = address.transport().to_string();
        let body = [0; MESSAGE_LEN];
        let median = percentiles(&name, || call(&link, &body), rounds);
        println!("{:<28} {:>8.2} x floor", "", median / floor);
        pipelined(&format!("{name} pipelined"), &link, 64, rounds * 5);
        batched(&format!("{name} batched"), &link, 64, rounds * 5);
    }
    for address in node.addresses() {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for client in 1..=2 {
                scope.spawn(move || {
                    let link =
                        NodeLink::connect(address, common::key(), common::client(), common::soon())
                            .unwrap();
                    let name = format!("{}, client {client} of 2", address.transport());
                    percentiles(&name, || call(&link, &[0; MESSAGE_LEN]), rounds);
                });
            }
        });
        let rate = rounds as f64 * 2.2 / start.elapsed().as_secs_f64() / 1e3;
        println!("{:<28} {rate:>8.1} k/s together", "");
    }
    let (near, far) = tcp_pair();
    let tcp_floor = raw_stream("floor tcp stream", near, far);
    let (near, far) = UnixStream::pair().unwrap();
    let unix_floor = raw_stream("floor unix stream", near, far);
    for (address, floor) in [(&node.tcp, tcp_floor), (&node.unix, unix_floor)] {
        let link =
            NodeLink::connect(address, common::key(), common::client(), common::soon()).unwrap();
        for in_flight in [1, 4] {
            let name = format!("{} 1 MiB, {in_flight} in flight", address.transport());
            let rate = stream(&name, &link, in_flight);
            println!("{:<28} {:>8.2} x floor", "", rate / floor);
        }
    }
}
