//! Peers that do not keep to the protocol are dropped, and nobody else notices.
#![allow(clippy::unwrap_used, reason = "a test or a measurement may end with a panic")]

#[allow(dead_code)]
mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use common::{Node, client, key, soon};
use samite_transport::client::{NodeLink, OutgoingRequest};
use samite_transport::server::{Listener, LoopOptions};
use samite_transport::{Address, ClusterKey};
use samite_types::{ClientId, Deadline, ErrorKind, RequestId};
use samite_wire::control::encode;
use samite_wire::frame::{
    CheckedHeader, FLAG_PAYLOAD_UNCHECKED, FrameHeader, FrameKind, HEADER_LEN,
};
use samite_wire::hello::{Goodbye, Hello, HelloCredential, VERSION};
use zerocopy::IntoBytes;

const QUICK: Duration = Duration::from_millis(300);

fn quick() -> LoopOptions {
    LoopOptions { handshake_timeout: QUICK, stall_timeout: QUICK, ..LoopOptions::default() }
}

trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

fn raw(address: &Address) -> Box<dyn Stream> {
    let timeout = Some(Duration::from_secs(10));
    match address {
        Address::Tcp(host, port) | Address::Tls(host, port) => {
            let stream = TcpStream::connect((host.as_str(), *port)).unwrap();
            stream.set_read_timeout(timeout).unwrap();
            Box::new(stream)
        }
        Address::Unix(path) | Address::Shm(path) => {
            let stream = UnixStream::connect(path).unwrap();
            stream.set_read_timeout(timeout).unwrap();
            Box::new(stream)
        }
    }
}

fn frame(kind: FrameKind, body: &[u8]) -> Vec<u8> {
    [FrameHeader::build(kind, RequestId(1), 0, body, &[]).as_bytes(), body].concat()
}

fn hello(versions: (u8, u8)) -> Vec<u8> {
    let client = ClientId(9);
    let credential = HelloCredential::ClusterKey { number: 1 };
    let nonce = [1; 32];
    let hello = Hello { versions, client, credential, nonce, wants_rings: false, node: None };
    frame(FrameKind::Hello, &encode(&hello))
}

/// The node's last message before it closes; `None`: it closes without one.
fn last_words(stream: &mut dyn Stream) -> Option<Goodbye> {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        Err(error) => panic!("still open: {error}"),
    }
    let mut rest = &bytes[..];
    while let Some((raw, after)) = rest.split_first_chunk::<HEADER_LEN>() {
        let header = CheckedHeader::parse(raw).unwrap();
        if header.kind == FrameKind::Goodbye {
            return samite_wire::control::decode(&after[..header.body_len]).ok();
        }
        rest = &after[header.len_after()..];
    }
    None
}

fn works(link: &NodeLink) {
    let request = OutgoingRequest { kind: FrameKind::Request, body: &[0; 50], payload: &[] };
    assert_eq!(link.call(request, soon(), |reply| reply.body().len()).unwrap(), 50);
}

/// Runs `attack` on both sockets while honest clients work on all transports.
fn under_attack(options: LoopOptions, attack: impl Fn(Box<dyn Stream>)) {
    let node = Node::start(options);
    let honest: Vec<_> = node
        .addresses()
        .into_iter()
        .map(|address| NodeLink::connect(address, key(), client(), soon()).unwrap())
        .collect();
    for address in [&node.unix, &node.tcp] {
        honest.iter().for_each(works);
        attack(raw(address));
        honest.iter().for_each(works);
        works(&NodeLink::connect(address, key(), client(), soon()).unwrap());
    }
}

#[test]
fn garbage() {
    under_attack(LoopOptions::default(), |mut stream| {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: x\r\n\r\n").unwrap();
        last_words(&mut *stream);
    });
}

#[test]
fn a_wrong_version() {
    under_attack(LoopOptions::default(), |mut stream| {
        stream.write_all(&hello((200, 201))).unwrap();
        let goodbye = last_words(&mut *stream).unwrap();
        assert_eq!(ErrorKind::from_code(goodbye.kind), Some(ErrorKind::WrongVersion));
        assert!(goodbye.reason.contains("200"), "{}", goodbye.reason);
    });
}

#[test]
fn a_wrong_key() {
    let node = Node::start(LoopOptions::default());
    for address in node.addresses() {
        let honest = NodeLink::connect(address, key(), client(), soon()).unwrap();
        let wrong = ClusterKey::new([8; 32]);
        let error = NodeLink::connect(address, &wrong, client(), soon()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WrongKey);
        assert!(error.message().contains(&address.to_string()), "{error}");
        works(&honest);
    }
}

#[test]
fn a_wrong_proof() {
    under_attack(LoopOptions::default(), |mut stream| {
        stream.write_all(&hello((VERSION, VERSION))).unwrap();
        stream.write_all(&frame(FrameKind::Proof, &encode(&vec![0_u8; 32]))).unwrap();
        let goodbye = last_words(&mut *stream).unwrap();
        assert_eq!(ErrorKind::from_code(goodbye.kind), Some(ErrorKind::WrongKey));
    });
}

#[test]
fn a_request_without_a_handshake() {
    let node = Node::start(LoopOptions::default());
    let mut stream = raw(&node.tcp);
    stream.write_all(&frame(FrameKind::Request, b"let me in")).unwrap();
    assert!(last_words(&mut *stream).is_some());
    assert_eq!(node.requests.load(std::sync::atomic::Ordering::Relaxed), 0);
}

#[test]
fn a_huge_length() {
    under_attack(LoopOptions::default(), |mut stream| {
        let header = FrameHeader::build(FrameKind::Hello, RequestId(0), 0, &[0; 1 << 20], &[]);
        stream.write_all(header.as_bytes()).unwrap();
        last_words(&mut *stream);
    });
    under_attack(LoopOptions::default(), |mut stream| {
        let mut header = FrameHeader::build(FrameKind::Hello, RequestId(0), 0, &[], &[]);
        header.as_mut_bytes()[4..8].fill(0xff);
        stream.write_all(header.as_bytes()).unwrap();
        last_words(&mut *stream);
    });
}

#[test]
fn a_wrong_checksum() {
    under_attack(LoopOptions::default(), |mut stream| {
        let mut bytes = hello((VERSION, VERSION));
        bytes[HEADER_LEN + 5] ^= 1;
        stream.write_all(&bytes).unwrap();
        let goodbye = last_words(&mut *stream).unwrap();
        assert_eq!(ErrorKind::from_code(goodbye.kind), Some(ErrorKind::Corrupt));
    });
}

#[test]
fn silence_and_half_a_frame_that_stalls() {
    for len in [0, 10, HEADER_LEN + 20] {
        under_attack(quick(), |mut stream| {
            stream.write_all(&hello((VERSION, VERSION))[..len]).unwrap();
            let start = Instant::now();
            last_words(&mut *stream);
            assert!(start.elapsed() >= QUICK / 2);
        });
    }
}

#[test]
fn half_a_frame_and_good_bye() {
    under_attack(LoopOptions::default(), |mut stream| {
        stream.write_all(&hello((VERSION, VERSION))[..HEADER_LEN + 3]).unwrap();
    });
}

#[test]
fn a_crowd_that_does_not_prove_the_key_locks_nobody_out() {
    let node = Node::start(LoopOptions { handshakes_max: 8, ..LoopOptions::default() });
    for address in [&node.unix, &node.tcp] {
        let crowd: Vec<_> = (0..50).map(|_| raw(address)).collect();
        works(&NodeLink::connect(address, key(), client(), soon()).unwrap());
        drop(crowd);
    }
}

#[test]
fn a_crowd_over_the_limit_is_refused() {
    let node = Node::start(LoopOptions { connections_max: 2, ..LoopOptions::default() });
    let first = NodeLink::connect(&node.unix, key(), client(), soon()).unwrap();
    let second = NodeLink::connect(&node.tcp, key(), client(), soon()).unwrap();
    let late = Deadline::after(Duration::from_millis(200));
    let error = NodeLink::connect(&node.unix, key(), client(), late).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    works(&first);
    works(&second);
    // It waits for one of them to go.
    drop(first);
    works(&NodeLink::connect(&node.unix, key(), client(), soon()).unwrap());
}

#[test]
fn a_client_that_takes_no_replies_is_dropped_in_the_end() {
    let node = Node::start(quick());
    let honest = NodeLink::connect(&node.shm, key(), client(), soon()).unwrap();
    for address in node.addresses() {
        let lazy = NodeLink::connect(address, key(), client(), soon()).unwrap();
        let mut body = [common::command::BYTES; 5];
        body[1..].copy_from_slice(&(8u32 << 20).to_le_bytes());
        let tickets: Vec<_> =
            (0..8).map(|_| lazy.submit(FrameKind::Request, &body, &[], soon()).unwrap()).collect();
        let closed = || node.closed.load(std::sync::atomic::Ordering::Relaxed);
        let (before, start) = (closed(), Instant::now());
        while closed() == before {
            assert!(start.elapsed() < Duration::from_secs(10), "{address}");
            works(&honest);
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut errors = tickets.into_iter().map(|ticket| lazy.wait(ticket, soon(), |_| ()));
        assert_eq!(errors.next_back().unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
    }
}

#[test]
fn a_node_that_is_none() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Tcp("127.0.0.1".into(), listener.local_addr().unwrap().port());
    let deadline = || Deadline::after(Duration::from_millis(200));
    // It listens but does not answer.
    let error = NodeLink::connect(&address, key(), client(), deadline()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    // It answers nonsense.
    let talker = std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            if stream.write_all(&[b'x'; 4096]).is_err() {
                break;
            }
            let _ = stream.read(&mut [0; 64]);
        }
    });
    std::thread::sleep(Duration::from_millis(10));
    for _ in 0..3 {
        let error = NodeLink::connect(&address, key(), client(), deadline()).unwrap_err();
        // Not an answer: it is tried again as long as there is time.
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    }
    drop(talker);
    // Nobody listens.
    let error = NodeLink::connect(&Address::Tcp("127.0.0.1".into(), 1), key(), client(), soon())
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.message().contains("tcp://127.0.0.1:1"), "{error}");
}

#[test]
fn a_socket_file_that_was_left_behind_is_replaced_and_a_living_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("n.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let listener = Listener::unix(&path).unwrap();
    assert_eq!(Listener::unix(&path).unwrap_err().kind(), ErrorKind::Exists);
    let clone = listener.try_clone().unwrap();
    drop(listener);
    assert!(path.exists());
    drop(clone);
    assert!(!path.exists());
}

/// A peer that has proved the key and then sends malformed messages.
#[test]
fn an_insider_that_breaks_the_protocol() {
    let request = |body: &[u8], payload: &[u8]| {
        let (kind, id) = (FrameKind::Request, RequestId(1));
        let header = FrameHeader::build(kind, id, 0, body, &[payload]);
        [header.as_bytes(), body, payload].concat()
    };
    let damaged = |mut bytes: Vec<u8>| {
        *bytes.last_mut().unwrap() ^= 1;
        bytes
    };
    let cut = |mut bytes: Vec<u8>| {
        bytes.truncate(bytes.len() - 1);
        bytes
    };
    let huge = {
        let mut header = FrameHeader::build(FrameKind::Request, RequestId(1), 0, &[], &[]);
        header.as_mut_bytes()[16..20].fill(0xff);
        header.as_bytes().to_vec()
    };
    let node = Node::start(quick());
    let honest = NodeLink::connect(&node.shm, key(), client(), soon()).unwrap();
    for bytes in [
        vec![0; 100],
        huge,
        damaged(request(&[0; 100], &[])),
        damaged(request(&[0; 10], &vec![0; 500_000])),
        cut(request(&[0; 10], &[0; 10])),
        cut(request(&vec![0; 200_000], &vec![0; 500_000])),
        frame(FrameKind::Reply, &[0]),
        hello((VERSION, VERSION)),
    ] {
        for address in node.addresses() {
            let insider = NodeLink::connect(address, key(), client(), soon()).unwrap();
            let closed = || node.closed.load(std::sync::atomic::Ordering::Relaxed);
            let before = closed();
            // SAFETY: the link holds this descriptor open.
            let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(insider.descriptors()[0]) };
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                match rustix::io::write(fd, rest) {
                    Ok(len) => rest = &rest[len..],
                    // The node has seen enough.
                    Err(rustix::io::Errno::CONNRESET | rustix::io::Errno::PIPE) => break,
                    Err(errno) => panic!("{address}: {errno}"),
                }
            }
            let start = Instant::now();
            while closed() == before {
                assert!(start.elapsed() < Duration::from_secs(20), "{address}");
                works(&honest);
            }
            let error = insider
                .submit(FrameKind::Request, &[common::command::NEVER], &[], soon())
                .and_then(|ticket| insider.wait(ticket, soon(), |_| ()))
                .unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Unavailable), "{error}");
        }
    }
}

/// A frame on a wire that cannot corrupt it goes without the sum of its payload; on a network that
/// is no way to send anything.
#[test]
fn an_unchecked_payload_is_taken_on_one_host_only() {
    let node = Node::start(LoopOptions::default());
    let (kind, id) = (FrameKind::Request, RequestId(1 << 40));
    // To which there is no reply.
    let body = [common::command::NEVER];
    let header = FrameHeader::build(kind, id, FLAG_PAYLOAD_UNCHECKED, &body, &[&[7; 9000]]);
    // Not the payload that the sum was made with.
    let bytes = [header.as_bytes(), &body, &[8; 9000]].concat();
    let closed = || node.closed.load(std::sync::atomic::Ordering::Relaxed);
    for address in [&node.unix, &node.tcp] {
        let link = NodeLink::connect(address, key(), client(), soon()).unwrap();
        let before = closed();
        // SAFETY: the link holds this descriptor open.
        let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(link.descriptors()[0]) };
        assert_eq!(rustix::io::write(fd, &bytes).unwrap(), bytes.len());
        if *address == node.unix {
            works(&link);
            assert_eq!(closed(), before);
        } else {
            let request =
                OutgoingRequest { kind: FrameKind::Request, body: &[0; 50], payload: &[] };
            let error = link.call(request, soon(), |_| ()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        }
    }
}

#[test]
fn what_a_client_can_write_to_is_not_used_again_before_it_closes_the_connection() {
    use std::sync::atomic::Ordering::Relaxed;
    let node = Node::start(quick());
    let honest = NodeLink::connect(&node.shm, key(), client(), soon()).unwrap();
    let other = NodeLink::connect(&node.shm, key(), client(), soon()).unwrap();
    // SAFETY: the link holds this descriptor open.
    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(other.descriptors()[0]) };
    rustix::io::write(fd, &[0xff; 100]).unwrap();
    let count = |counter: &std::sync::atomic::AtomicUsize| counter.load(Relaxed);
    while count(&node.closed) == 0 {
        works(&honest);
    }
    for _ in 0..100 {
        works(&honest);
    }
    assert_eq!(count(&node.released), 0, "it may be alive, and know nothing of it");
    let request = OutgoingRequest { kind: FrameKind::Request, body: &[0; 50], payload: &[] };
    assert!(other.call(request, soon(), |_| ()).is_err(), "it hears of it when it asks");
    drop(other);
    while count(&node.released) == 0 {
        works(&honest);
    }
    drop(honest);
    while count(&node.released) < 2 {
        std::thread::yield_now();
    }
    assert_eq!(count(&node.closed), 2, "one that the client closes is released at once");
}
