//! TLS between clients, nodes, and attackers between them.
#![allow(clippy::unwrap_used, reason = "a test or a measurement may end with a panic")]

#[allow(dead_code)]
mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Node, client, command, key, soon};
use samite_transport::client::{NodeLink, OutgoingRequest};
use samite_transport::server::LoopOptions;
use samite_transport::{Address, ClusterKey, TlsAuthorities, TlsFiles};
use samite_types::{Deadline, ErrorKind};
use samite_wire::frame::FrameKind;

const AUTHORITY: &[u8] = include_bytes!("fixtures/tls/authority.pem");
const OTHER_AUTHORITY: &[u8] = include_bytes!("fixtures/tls/other-authority.pem");
const NODE: &[u8] = include_bytes!("fixtures/tls/node.pem");
const NODE_KEY: &[u8] = include_bytes!("fixtures/tls/node.key");
const ELSEWHERE: &[u8] = include_bytes!("fixtures/tls/elsewhere.pem");
const ELSEWHERE_KEY: &[u8] = include_bytes!("fixtures/tls/elsewhere.key");

fn connect(address: &Address) -> samite_types::Result<NodeLink> {
    NodeLink::connect(address, key(), client(), soon())
}

fn works(link: &NodeLink) {
    let request = OutgoingRequest { kind: FrameKind::Request, body: &[0; 50], payload: &[] };
    assert_eq!(link.call(request, soon(), |reply| reply.body().len()).unwrap(), 50);
}

fn port(address: &Address) -> u16 {
    let (Address::Tcp(_, port) | Address::Tls(_, port)) = address else { panic!("{address}") };
    *port
}

/// The other scheme, same port.
fn otherwise(address: &Address) -> Address {
    let host = "127.0.0.1".to_owned();
    match address {
        Address::Tls(_, port) => Address::Tcp(host, *port),
        _ => Address::Tls(host, port(address)),
    }
}

fn showing(chain: &[u8], key: &[u8]) -> Node {
    let files = TlsFiles { chain: chain.to_vec(), key: key.to_vec() };
    files.check().unwrap();
    Node::start(LoopOptions { tls: Some(Arc::new(files)), ..LoopOptions::default() })
}

fn trusting(authority: &[u8]) -> ClusterKey {
    key().with_authorities(TlsAuthorities::from_pem(authority.to_vec()).unwrap())
}

/// Changes of the bytes between the two, on their way: `true` for those to the node.
type Meddle = dyn Fn(bool, Vec<u8>) -> Option<Vec<u8>> + Send + Sync;

/// Somebody between clients and `to`. `None` of `meddle` cuts the connection.
fn between(to: &Address, meddle: Arc<Meddle>) -> Address {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let here = listener.local_addr().unwrap().port();
    let there = port(to);
    std::thread::spawn(move || {
        while let Ok((near, _)) = listener.accept() {
            let Ok(far) = TcpStream::connect(("127.0.0.1", there)) else { return };
            for (mut from, mut to, inward) in
                [(near.try_clone().unwrap(), far.try_clone().unwrap(), true), (far, near, false)]
            {
                let meddle = Arc::clone(&meddle);
                std::thread::spawn(move || {
                    let mut bytes = vec![0; 1 << 16];
                    while let Ok(len @ 1..) = from.read(&mut bytes) {
                        let Some(bytes) = meddle(inward, bytes[..len].to_vec()) else { break };
                        if to.write_all(&bytes).is_err() {
                            break;
                        }
                    }
                    let _ = (to.shutdown(Shutdown::Both), from.shutdown(Shutdown::Both));
                });
            }
        }
    });
    match to {
        Address::Tls(..) => Address::Tls("127.0.0.1".into(), here),
        _ => Address::Tcp("127.0.0.1".into(), here),
    }
}

#[test]
fn nothing_of_what_is_said_can_be_read_underway() {
    let node = Node::start(LoopOptions::default());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let secret = b"a secret that is long enough to be found";
    for (address, is_seen) in [(&node.tls, false), (&node.tcp, true)] {
        let copy = Arc::clone(&seen);
        let meddle = move |_: bool, bytes: Vec<u8>| {
            copy.lock().unwrap().extend_from_slice(&bytes);
            Some(bytes)
        };
        let link = connect(&between(address, Arc::new(meddle))).unwrap();
        let request = OutgoingRequest { kind: FrameKind::Request, body: &[0], payload: &[secret] };
        link.call(request, soon(), |reply| assert_eq!(reply.payload_in_place(), Some(&secret[..])))
            .unwrap();
        let seen = seen.lock().unwrap();
        assert_eq!(seen.windows(secret.len()).any(|window| window == secret), is_seen);
    }
}

#[test]
fn with_and_without_tls_refuse_each_other_and_say_why() {
    let node = Node::start(LoopOptions::default());
    for address in [&node.tls, &node.tcp] {
        let error = connect(&otherwise(address)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        let words = if *address == node.tls { "takes TLS only" } else { "takes no TLS" };
        assert!(error.message().contains(words), "{error}");
        works(&connect(address).unwrap());
    }
    assert_eq!(node.requests.load(Ordering::SeqCst), 2);
}

#[test]
fn without_the_key_there_is_no_more_than_an_alert() {
    let node = Node::start(LoopOptions::default());
    let stranger = ClusterKey::new([8; 32]);
    let received = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&received);
    let meddle = move |inward: bool, bytes: Vec<u8>| {
        if !inward {
            count.fetch_add(bytes.len(), Ordering::SeqCst);
        }
        Some(bytes)
    };
    let address = between(&node.tls, Arc::new(meddle));
    let error = NodeLink::connect(&address, &stranger, client(), soon()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongKey, "{error}");
    assert!(received.load(Ordering::SeqCst) < 2000);
}

/// Damages the stream after so many bytes have passed each way.
fn damage(inward: bool, after: usize, how: fn(Vec<u8>) -> Option<Vec<u8>>) -> Arc<Meddle> {
    let passed = AtomicUsize::new(0);
    Arc::new(move |way, bytes: Vec<u8>| {
        if way != inward {
            return Some(bytes);
        }
        let before = passed.fetch_add(bytes.len(), Ordering::SeqCst);
        if before + bytes.len() > after { how(bytes) } else { Some(bytes) }
    })
}

fn bend(mut bytes: Vec<u8>) -> Option<Vec<u8>> {
    let at = bytes.len() / 2;
    bytes[at] ^= 4;
    Some(bytes)
}

#[test]
fn bent_and_cut_records_end_the_connection_and_nothing_else() {
    let node = Node::start(LoopOptions::default());
    let honest = connect(&node.tls).unwrap();
    for inward in [true, false] {
        for how in [bend, |_| None] {
            let link = connect(&between(&node.tls, damage(inward, 200_000, how))).unwrap();
            works(&link);
            let payload = vec![5; 1 << 20];
            let request =
                OutgoingRequest { kind: FrameKind::Request, body: &[0], payload: &[&payload] };
            let error = link
                .call(request, soon(), |reply| {
                    let mut all = vec![0; reply.payload_left()];
                    let _ = reply.read_payload(&mut all);
                })
                .unwrap_err();
            let kind = error.kind();
            assert_eq!(kind, ErrorKind::Unavailable, "{error}");
            assert!(link.is_dead());
            works(&honest);
        }
    }
}

#[test]
fn bytes_that_were_bent_in_the_handshake_are_found() {
    let node = Node::start(LoopOptions::default());
    for inward in [true, false] {
        for after in [0, 300, 800] {
            let address = between(&node.tls, damage(inward, after, bend));
            let late = Deadline::after(Duration::from_secs(5));
            assert!(
                NodeLink::connect(&address, key(), client(), late)
                    .and_then(|link| {
                        let request = OutgoingRequest {
                            kind: FrameKind::Request,
                            body: &[0; 900],
                            payload: &[],
                        };
                        link.call(request, late, |_| ())
                    })
                    .is_err(),
                "{inward} {after}"
            );
        }
    }
    works(&connect(&node.tls).unwrap());
}

#[test]
fn a_session_that_was_recorded_and_is_played_again_is_refused() {
    let node = Node::start(LoopOptions::default());
    for address in [&node.tcp, &node.tls] {
        let recorded = Arc::new(Mutex::new(Vec::new()));
        let copy = Arc::clone(&recorded);
        let meddle = move |inward: bool, bytes: Vec<u8>| {
            if inward {
                copy.lock().unwrap().extend_from_slice(&bytes);
            }
            Some(bytes)
        };
        let link = connect(&between(address, Arc::new(meddle))).unwrap();
        works(&link);
        drop(link);
        let requests = node.requests.load(Ordering::SeqCst);
        let bytes = recorded.lock().unwrap().clone();
        // All at once, and byte by byte, so that the node is in each state when the next comes.
        for piece in [bytes.len(), 1] {
            let mut stream = TcpStream::connect(("127.0.0.1", port(address))).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            for piece in bytes.chunks(piece) {
                if stream.write_all(piece).is_err() {
                    break;
                }
            }
            // It is closed; whatever it says before that is the same challenge, or alert, that anybody gets.
            let mut answer = Vec::new();
            let end = stream.read_to_end(&mut answer);
            assert!(
                end.is_ok() || end.unwrap_err().kind() == std::io::ErrorKind::ConnectionReset,
                "{address}"
            );
            assert!(answer.len() < 2000);
        }
        assert_eq!(node.requests.load(Ordering::SeqCst), requests);
        works(&connect(address).unwrap());
    }
}

#[test]
fn much_goes_both_ways_at_once() {
    let node = Node::start(LoopOptions::default());
    let link = connect(&node.tls).unwrap();
    let payload: Vec<u8> = (0..8 << 20).map(|at: u32| (at ^ at >> 11) as u8).collect();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                // 64 MiB in all, four frames under way.
                for _ in 0..2 {
                    let submit = |_| {
                        link.submit(FrameKind::Request, &[command::ECHO], &[&payload], soon())
                            .unwrap()
                    };
                    for ticket in (0..2).map(submit).collect::<Vec<_>>() {
                        link.wait(ticket, soon(), |reply| {
                            let mut all = vec![0; reply.payload_left()];
                            reply.read_payload(&mut all).unwrap();
                            assert!(all == payload);
                        })
                        .unwrap();
                    }
                }
            });
        }
        // Small ones between them, without end.
        for _ in 0..2000 {
            works(&link);
        }
    });
}

#[test]
fn certificates_of_a_site() {
    let node = showing(NODE, NODE_KEY);
    let connect = |key: &ClusterKey| NodeLink::connect(&node.tls, key, client(), soon());
    works(&connect(&trusting(AUTHORITY)).unwrap());
    let error = connect(&trusting(OTHER_AUTHORITY)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.message().contains("not trusted: UnknownIssuer"), "{error}");
    // Without an authority, a client takes the derived key only; and the other way round.
    let error = connect(&key()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    let derived = Node::start(LoopOptions::default());
    let error = NodeLink::connect(&derived.tls, trusting(AUTHORITY), client(), soon()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    // A certificate does not stand for the cluster key.
    let stranger = ClusterKey::new([9; 32])
        .with_authorities(TlsAuthorities::from_pem(AUTHORITY.to_vec()).unwrap());
    assert_eq!(connect(&stranger).unwrap_err().kind(), ErrorKind::WrongKey);
    // One for another host.
    let elsewhere = showing(ELSEWHERE, ELSEWHERE_KEY);
    let error =
        NodeLink::connect(&elsewhere.tls, trusting(AUTHORITY), client(), soon()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.message().contains("NotValidForName"), "{error}");
}

#[test]
fn files_that_make_no_sense_are_refused() {
    let check = |chain: &[u8], key: &[u8]| {
        let files = TlsFiles { chain: chain.to_vec(), key: key.to_vec() };
        files.check().unwrap_err()
    };
    for (chain, key) in [(NODE, ELSEWHERE_KEY), (NODE_KEY, NODE_KEY), (NODE, NODE), (b"", b"")] {
        assert_eq!(check(chain, key).kind(), ErrorKind::Invalid);
    }
    assert_eq!(TlsAuthorities::from_pem(Vec::new()).unwrap_err().kind(), ErrorKind::Invalid);
}

/// Both directions of one TLS connection become those of another, as an attacker can do that has a
/// certificate of the site, but not the cluster key.
fn relay(mut near: rustls::ServerConnection, near_io: TcpStream, to: u16) {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    use rustls::pki_types::pem::PemObject;
    roots.add(rustls::pki_types::CertificateDer::from_pem_slice(AUTHORITY).unwrap()).unwrap();
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"samite".to_vec()];
    let name = "127.0.0.1".try_into().unwrap();
    let mut far = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    let far_io = TcpStream::connect(("127.0.0.1", to)).unwrap();
    let quick = Some(Duration::from_millis(5));
    near_io.set_read_timeout(quick).unwrap();
    far_io.set_read_timeout(quick).unwrap();
    let (mut near_io, mut far_io) = (near_io, far_io);
    let mut bytes = [0; 4096];
    for _ in 0..400 {
        let mut near = rustls::Stream::new(&mut near, &mut near_io);
        let mut far = rustls::Stream::new(&mut far, &mut far_io);
        match near.read(&mut bytes) {
            Ok(0) => return,
            Ok(len) => far.write_all(&bytes[..len]).unwrap(),
            Err(_) => {}
        }
        match far.read(&mut bytes) {
            Ok(0) => return,
            Ok(len) => near.write_all(&bytes[..len]).unwrap(),
            Err(_) => {}
        }
    }
}

#[test]
fn a_stolen_certificate_does_not_let_anybody_stand_between() {
    use rustls::pki_types::pem::PemObject;
    let node = showing(NODE, NODE_KEY);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let chain = vec![rustls::pki_types::CertificateDer::from_pem_slice(NODE).unwrap()];
    let stolen = rustls::pki_types::PrivateKeyDer::from_pem_slice(NODE_KEY).unwrap();
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, stolen)
        .unwrap();
    config.alpn_protocols = vec![b"samite".to_vec()];
    config.send_tls13_tickets = 0;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Tls("127.0.0.1".into(), listener.local_addr().unwrap().port());
    let to = port(&node.tls);
    let between = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        relay(rustls::ServerConnection::new(Arc::new(config)).unwrap(), stream, to);
    });
    let error = NodeLink::connect(&address, trusting(AUTHORITY), client(), soon()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongKey, "{error}");
    assert_eq!(node.requests.load(Ordering::SeqCst), 0);
    between.join().unwrap();
}

#[test]
fn peers_that_never_finish_the_handshake_are_dropped() {
    let quick = Duration::from_millis(300);
    let node = Node::start(LoopOptions { handshake_timeout: quick, ..LoopOptions::default() });
    for start in [&b""[..], b"\x16", b"\x16\x03\x01\x02\x00\x01"] {
        let mut stream = TcpStream::connect(("127.0.0.1", port(&node.tls))).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.write_all(start).unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        works(&connect(&node.tls).unwrap());
    }
}

#[test]
fn a_node_that_is_silent_or_talks_nonsense_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Tls("127.0.0.1".into(), listener.local_addr().unwrap().port());
    let late = || Deadline::after(Duration::from_millis(200));
    let error = NodeLink::connect(&address, key(), client(), late()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = stream.unwrap().write_all(&[b'x'; 4096]);
        }
    });
    for _ in 0..3 {
        let error = NodeLink::connect(&address, key(), client(), late()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    }
}
