//! Both ends in one thread, over a pair of sockets.

use std::os::fd::{AsFd, OwnedFd};

use proptest::prelude::*;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use samite_types::{ErrorKind, Result};

use super::{RECORD_LEN_MAX, TlsHandshake, TlsSession, server_config};
use crate::key::ClusterKey;

fn key(byte: u8) -> ClusterKey {
    ClusterKey::new([byte; 32])
}

/// Both sides of a connection whose bytes travel in pieces of `piece` bytes.
fn shake(client: &ClusterKey, node: &ClusterKey, piece: usize) -> Result<(TlsSession, TlsSession)> {
    let mut client = TlsHandshake::client(&client.into(), "127.0.0.1")?;
    let mut node = TlsHandshake::server(&server_config(&node.clone().into(), None)?)?;
    let (mut to_client, mut to_node) = (Vec::new(), Vec::new());
    let mut done = (client.advance(&[], &mut to_node)?, false);
    while done != (true, true) {
        for bytes in std::mem::take(&mut to_node).chunks(piece) {
            done.1 = node.advance(bytes, &mut to_client)?;
        }
        for bytes in std::mem::take(&mut to_client).chunks(piece) {
            done.0 = client.advance(bytes, &mut to_node)?;
        }
    }
    Ok((client.finish()?, node.finish()?))
}

fn sockets() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap()
}

/// Encrypts and sends `chunks`, opening what arrives meanwhile; returns that.
fn pass(from: &mut TlsSession, to: &mut TlsSession, chunks: &[&[u8]], piece: usize) -> Vec<u8> {
    let (near, far) = sockets();
    let len: usize = chunks.iter().map(|chunk| chunk.len()).sum();
    let (mut sealed, mut opened, mut buffer) = (0, Vec::new(), vec![0; piece]);
    while opened.len() < len {
        if from.sealer.send(near.as_fd()).unwrap() && sealed < len {
            sealed += from.sealer.seal(chunks, sealed).unwrap();
        }
        match to.opener.receive(far.as_fd(), &mut buffer, false) {
            Ok(len) => opened.extend_from_slice(&buffer[..len]),
            Err(errno) => assert_eq!(errno, Errno::AGAIN),
        }
    }
    assert_eq!(from.sealer.len(), 0);
    assert!(!to.opener.is_ready());
    opened
}

#[test]
fn both_ends_know_the_same_and_no_other_connection_does() {
    let (client, node) = shake(&key(1), &key(1), 4096).unwrap();
    assert_eq!(client.binding, node.binding);
    let (other, _) = shake(&key(1), &key(1), 7).unwrap();
    assert_ne!(client.binding, other.binding);
}

#[test]
fn another_key_is_refused_by_the_first_who_sees_it() {
    let error = shake(&key(1), &key(2), 4096).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongKey);
}

#[test]
fn data_of_all_lengths_pass_both_ways() {
    let (mut client, mut node) = shake(&key(1), &key(1), 4096).unwrap();
    let data: Vec<u8> = (0..3 << 20).map(|at: u32| (at ^ at >> 9) as u8).collect();
    for len in [1, 100, 16 << 10, (16 << 10) + 1, 300_000, 3 << 20] {
        let (first, second) = data[..len].split_at(len / 3);
        for piece in [100, 20_000, 1 << 20] {
            if len / piece < 5000 {
                let chunks = [first, &[][..], second];
                assert!(pass(&mut client, &mut node, &chunks, piece) == data[..len]);
                assert!(pass(&mut node, &mut client, &chunks, piece) == data[..len]);
            }
        }
    }
}

#[test]
fn keys_are_renewed_and_nothing_is_lost() {
    let (mut client, mut node) = shake(&key(1), &key(1), 4096).unwrap();
    client.sealer.renew_after(3);
    node.sealer.renew_after(1);
    let data = vec![7; 1 << 20];
    for _ in 0..3 {
        assert!(pass(&mut client, &mut node, &[&data], 1 << 16) == data);
        assert!(pass(&mut node, &mut client, &[&data], 1 << 16) == data);
    }
}

#[test]
fn a_record_that_was_changed_repeated_or_left_out_ends_it() {
    for fault in 0..5 {
        let (mut client, mut node) = shake(&key(1), &key(1), 4096).unwrap();
        let (near, far) = sockets();
        let mut records = Vec::new();
        for content in [&b"one"[..], b"two", b"three"] {
            client.sealer.seal(&[content], 0).unwrap();
            assert!(client.sealer.send(near.as_fd()).unwrap());
            let mut record = vec![0; 100];
            let len = rustix::io::read(&far, &mut record).unwrap();
            records.push(record[..len].to_vec());
        }
        match fault {
            0 => records[0][9] ^= 1,
            1 => records[1] = records[0].clone(),
            2 => drop(records.remove(0)),
            3 => records.swap(0, 1),
            _ => records[0][0] = 23 ^ 1,
        }
        rustix::io::write(&near, &records.concat()).unwrap();
        let mut buffer = [0; 100];
        let mut receive = || node.opener.receive(far.as_fd(), &mut buffer, false);
        assert_eq!(receive(), Err(Errno::BADMSG), "{fault}");
        assert_eq!(receive(), Err(Errno::BADMSG), "{fault}");
    }
}

#[test]
fn a_cut_in_a_record_is_seen() {
    let (mut client, mut node) = shake(&key(1), &key(1), 4096).unwrap();
    let ((near, far), (out, end)) = (sockets(), sockets());
    client.sealer.seal(&[b"whole"], 0).unwrap();
    client.sealer.seal(&[b"cut"], 0).unwrap();
    assert!(client.sealer.send(near.as_fd()).unwrap());
    let mut bytes = [0; 200];
    let len = rustix::io::read(&far, &mut bytes).unwrap();
    rustix::io::write(&out, &bytes[..len - 1]).unwrap();
    drop(out);
    let mut buffer = [0; 100];
    assert_eq!(node.opener.receive(end.as_fd(), &mut buffer, false), Ok(5));
    assert!(node.opener.is_inside_record());
    assert_eq!(node.opener.receive(end.as_fd(), &mut buffer, false), Ok(0));
    assert!(node.opener.is_inside_record());
}

/// The first message of a client.
fn hello() -> Vec<u8> {
    let mut out = Vec::new();
    TlsHandshake::client(&key(1).into(), "127.0.0.1").unwrap().advance(&[], &mut out).unwrap();
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// A peer without the key: no panic, no end of the handshake, no memory without bound.
    #[test]
    fn no_bytes_upset_a_node(
        start in prop_oneof![Just(Vec::new()), Just(hello())],
        flips in proptest::collection::vec((any::<proptest::sample::Index>(), 1u8..), 0..4),
        kind in prop_oneof![Just(20u8), Just(21), Just(22), Just(23), any::<u8>()],
        rest in proptest::collection::vec(any::<u8>(), 0..600),
        repeats in 1usize..400,
        piece in 1usize..3000,
    ) {
        let mut bytes = start;
        for (at, flip) in flips {
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] ^= flip;
            }
        }
        for _ in 0..repeats {
            bytes.extend_from_slice(&[kind, 3, 3]);
            bytes.extend_from_slice(&(rest.len() as u16).to_be_bytes());
            bytes.extend_from_slice(&rest);
        }
        let mut node = TlsHandshake::server(&server_config(&key(1).into(), None).unwrap()).unwrap();
        let mut out = Vec::new();
        for bytes in bytes.chunks(piece) {
            match node.advance(bytes, &mut out) {
                Ok(done) => prop_assert!(!done),
                Err(_) => break,
            }
            prop_assert!(node.kept_len() <= (64 << 10) + RECORD_LEN_MAX);
        }
        prop_assert!(out.len() < 4096);
    }

    /// The same after the handshake.
    #[test]
    fn no_bytes_open(bytes in proptest::collection::vec(any::<u8>(), 1..2000), is_data: bool) {
        let (_, mut node) = shake(&key(1), &key(1), 4096).unwrap();
        let (near, far) = sockets();
        let head: &[u8] = if is_data { &[23, 3, 3, 0, 40] } else { &[] };
        rustix::io::write(&near, &[head, &bytes].concat()).unwrap();
        drop(near);
        let mut buffer = [0; 100];
        loop {
            match node.opener.receive(far.as_fd(), &mut buffer, false) {
                Err(Errno::AGAIN) => {}
                Ok(len) => {
                    prop_assert_eq!(len, 0);
                    break;
                }
                Err(_) => break,
            }
        }
    }
}
