//! Both sides, without I/O.

use proptest::prelude::*;
use samite_types::SystemEntropy;
use samite_wire::ticket::TICKET_VERSION;

use super::*;
use crate::signing::SigningPair;
use crate::ticket::{UserTicket, issue};

const NOW_S: u64 = 1_000_000;

fn body(frame: &[u8]) -> (FrameKind, &[u8]) {
    let (raw, rest) = frame.split_first_chunk().unwrap();
    let header = CheckedHeader::parse(raw).unwrap();
    check_header(&header).unwrap();
    header.verify(rest, &[]).unwrap();
    (header.kind, rest)
}

fn key(byte: u8) -> ClusterKey {
    ClusterKey::new([byte; 32])
}

fn pair(byte: u8) -> SigningPair {
    SigningPair::from_seed([byte; 32])
}

fn claims(uid: u32, pair: &SigningPair) -> TicketClaims {
    TicketClaims {
        version: TICKET_VERSION,
        cluster: "weave".into(),
        key_number: 0,
        uid,
        gids: vec![10, 20],
        issued_s: NOW_S - 10,
        expires_s: NOW_S + 10,
        renewable_until_s: NOW_S + 100,
        public_key: pair.public_key(),
    }
}

/// The ticket of uid 1001, signed by `key`.
fn ticket(key: &ClusterKey) -> UserTicket {
    let bytes = issue(key, claims(1001, &pair(1))).unwrap();
    UserTicket::new(bytes, pair(1), key.node_public_key()).unwrap()
}

fn place(keys: &ClusterKeys) -> NodePlace<'_> {
    NodePlace {
        node: NodeId(3),
        keys,
        is_for_guests: false,
        binding: None,
        now_s: NOW_S,
        entropy: &SystemEntropy,
    }
}

/// One handshake, whose hello is changed by `bend` on its way.
fn exchange(
    credential: &Credential,
    node: Option<NodeId>,
    place: &NodePlace<'_>,
    bend: impl FnOnce(&mut Hello),
) -> Result<(Option<NodeId>, ProvedCredential)> {
    let names = (ClientId(7), node);
    let (client, hello) = ClientSide::start(names, true, credential, &SystemEntropy);
    let mut hello: Hello = decode(body(&hello).1).unwrap();
    bend(&mut hello);
    let mut side = NodeSide::Fresh;
    let NodeStep::Challenge { bytes, .. } = side.step(FrameKind::Hello, &encode(&hello), place)?
    else {
        panic!("no challenge");
    };
    let (kind, bytes) = body(&bytes);
    let (id, proof) = client.challenged(kind, bytes, place.binding)?;
    assert_eq!(id, NodeId(3));
    let (kind, bytes) = body(&proof);
    match side.step(kind, bytes, place)? {
        NodeStep::Proved { client, node, proved, wants_rings, version } => {
            assert_eq!((client, wants_rings, version), (ClientId(7), true, VERSION));
            Ok((node, proved))
        }
        NodeStep::Challenge { .. } => panic!("a second challenge"),
    }
}

fn refusal(result: Result<(Option<NodeId>, ProvedCredential)>) -> (ErrorKind, String) {
    let error = result.unwrap_err();
    (error.kind(), error.message().to_owned())
}

#[test]
fn both_sides_prove_the_key() {
    let keys = ClusterKeys::new(key(1));
    let (node, proved) = exchange(&key(1).into(), Some(NodeId(9)), &place(&keys), |_| {}).unwrap();
    assert_eq!((node, proved), (Some(NodeId(9)), ProvedCredential::Key));
    let error = exchange(&key(2).into(), None, &place(&keys), |_| {});
    assert_eq!(refusal(error).0, ErrorKind::WrongKey);
    let (kind, words) =
        refusal(exchange(&ClusterKey::numbered([1; 32], 2).into(), None, &place(&keys), |_| {}));
    assert_eq!(kind, ErrorKind::WrongKey);
    assert!(words.contains("key 2 does not count here; key 1 does"), "{words}");
}

#[test]
fn a_ticket_is_proved_by_its_private_key_and_the_nodes_by_theirs() {
    let keys = ClusterKeys::new(key(1));
    let (_, proved) = exchange(&ticket(&key(1)).into(), None, &place(&keys), |_| {}).unwrap();
    let ProvedCredential::Ticket(claims) = proved else { panic!("{proved:?}") };
    assert_eq!((claims.uid, &claims.gids[..], claims.key_number), (1001, &[10, 20][..], 1));
    // A false node that was told the ticket, and has no cluster key.
    let own = ticket(&key(1));
    let of_other = UserTicket::new(own.bytes().to_vec(), pair(1), key(2).node_public_key());
    let (kind, words) = refusal(exchange(&of_other.unwrap().into(), None, &place(&keys), |_| {}));
    assert_eq!(kind, ErrorKind::WrongKey);
    assert!(words.contains("node does not hold"), "{words}");
}

#[test]
fn a_copy_of_a_ticket_without_its_private_key_is_worthless() {
    let keys = ClusterKeys::new(key(1));
    let stolen = ticket(&key(1));
    assert_eq!(
        UserTicket::new(stolen.bytes().to_vec(), pair(2), key(1).node_public_key())
            .unwrap_err()
            .kind(),
        ErrorKind::Invalid
    );
    // The thief sends the owner's ticket, and signs by a key of its own.
    let own = UserTicket::new(
        issue(&key(1), claims(1002, &pair(2))).unwrap(),
        pair(2),
        key(1).node_public_key(),
    );
    let bend = |hello: &mut Hello| {
        hello.credential = HelloCredential::Ticket(stolen.bytes().to_vec());
    };
    let names = (ClientId(7), None);
    let own: Credential = own.unwrap().into();
    let (mut client, _) = ClientSide::start(names, true, &own, &SystemEntropy);
    let SentHello::Own(hello) = &mut client.hello else { panic!("an older hello") };
    bend(hello);
    let hello = encode(hello);
    let (mut side, at) = (NodeSide::Fresh, place(&keys));
    let NodeStep::Challenge { bytes, .. } = side.step(FrameKind::Hello, &hello, &at).unwrap()
    else {
        panic!("no challenge");
    };
    let (kind, bytes) = body(&bytes);
    let (_, proof) = client.challenged(kind, bytes, None).unwrap();
    let (kind, bytes) = body(&proof);
    let error = side.step(kind, bytes, &at).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongKey);
    assert!(error.message().contains("private key of the ticket of uid 1001"), "{error}");
}

#[test]
fn a_ticket_that_says_anything_else_is_refused() {
    let keys = ClusterKeys::new(key(1));
    let own = ticket(&key(1));
    let as_uid_0 = |hello: &mut Hello| {
        let HelloCredential::Ticket(bytes) = &mut hello.credential else { panic!() };
        let (mut ticket, claims) = samite_wire::ticket::SignedTicket::parse(bytes).unwrap();
        ticket.claims = TicketClaims { uid: 0, ..claims }.to_bytes();
        *bytes = ticket.to_bytes();
    };
    let (kind, words) = refusal(exchange(&own.into(), None, &place(&keys), as_uid_0));
    assert_eq!(kind, ErrorKind::WrongKey);
    assert!(words.contains("was changed since"), "{words}");
}

#[test]
fn tickets_end_and_belong_to_one_cluster_and_one_key() {
    let keys = ClusterKeys::new(key(1));
    let ended = NodePlace { now_s: NOW_S + 10, ..place(&keys) };
    let (kind, words) = refusal(exchange(&ticket(&key(1)).into(), None, &ended, |_| {}));
    assert_eq!(kind, ErrorKind::WrongKey);
    assert!(words.contains("uid 1001 has ended"), "{words}");
    let (kind, words) = refusal(exchange(&ticket(&key(2)).into(), None, &place(&keys), |_| {}));
    assert_eq!(kind, ErrorKind::WrongKey);
    assert!(words.contains("not signed by key 1 of this cluster"), "{words}");
    let next = ClusterKeys::new(ClusterKey::numbered([5; 32], 2));
    let (kind, words) = refusal(exchange(&ticket(&key(1)).into(), None, &place(&next), |_| {}));
    assert_eq!(kind, ErrorKind::WrongKey);
    assert!(words.contains("key 1, which does not count here"), "{words}");
}

#[test]
fn guests_are_let_in_where_tickets_are_given_out_and_nobody_else_is() {
    let keys = ClusterKeys::new(key(1));
    let guests = NodePlace { is_for_guests: true, ..place(&keys) };
    let (_, proved) = exchange(&Credential::Nothing, None, &guests, |_| {}).unwrap();
    assert_eq!(proved, ProvedCredential::Nothing);
    let error = refusal(exchange(&Credential::Nothing, None, &place(&keys), |_| {}));
    assert_eq!(error.0, ErrorKind::Denied);
    for credential in [key(1).into(), Credential::from(ticket(&key(1)))] {
        assert_eq!(refusal(exchange(&credential, None, &guests, |_| {})).0, ErrorKind::Denied);
    }
}

#[test]
fn every_field_of_a_hello_is_under_the_proofs() {
    let keys = ClusterKeys::new(key(1));
    let bends: [fn(&mut Hello); 5] = [
        |hello| hello.client = ClientId(8),
        |hello| hello.node = Some(NodeId(1)),
        |hello| hello.wants_rings = false,
        |hello| hello.versions.1 += 1,
        |hello| hello.nonce[0] ^= 1,
    ];
    for credential in [key(1).into(), Credential::from(ticket(&key(1)))] {
        for (index, bend) in bends.into_iter().enumerate() {
            let error = refusal(exchange(&credential, None, &place(&keys), bend));
            assert_eq!(error.0, ErrorKind::WrongKey, "{index}");
        }
    }
}

#[test]
fn a_proof_is_worth_nothing_on_another_connection() {
    let keys = ClusterKeys::new(key(1));
    for credential in [key(1).into(), Credential::from(ticket(&key(1)))] {
        let names = (ClientId(7), None);
        let (client, hello) = ClientSide::start(names, false, &credential, &SystemEntropy);
        let (kind, hello) = body(&hello);
        let challenge =
            |side: &mut NodeSide, at: &NodePlace<'_>| match side.step(kind, hello, at).unwrap() {
                NodeStep::Challenge { bytes, .. } => bytes,
                NodeStep::Proved { .. } => panic!("proved by a hello"),
            };
        let (mut first, mut second) = (NodeSide::Fresh, NodeSide::Fresh);
        let plain = place(&keys);
        let bytes = challenge(&mut first, &plain);
        let (challenge_kind, bytes) = body(&bytes);
        let (_, proof) = client.challenged(challenge_kind, bytes, None).unwrap();
        let (proof_kind, proof) = body(&proof);
        // The recorded hello and proof, again.
        challenge(&mut second, &plain);
        assert!(second.step(proof_kind, proof, &plain).is_err());
        // The same, by somebody between the two with a TLS connection to each.
        let sealed = NodePlace { binding: Some(&[1; 32]), ..place(&keys) };
        let mut third = NodeSide::Fresh;
        let bytes = challenge(&mut third, &sealed);
        let (challenge_kind, bytes) = body(&bytes);
        let error = client.challenged(challenge_kind, bytes, Some(&[2; 32])).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WrongKey);
        assert!(first.step(proof_kind, proof, &plain).is_ok());
    }
}

#[test]
fn a_client_that_skips_its_own_check_is_refused_by_the_node() {
    let keys = ClusterKeys::new(key(1));
    for credential in [key(1).into(), Credential::from(ticket(&key(1)))] {
        for len in [0, 32, 64] {
            let names = (ClientId(7), None);
            let (_, hello) = ClientSide::start(names, false, &credential, &SystemEntropy);
            let mut node = NodeSide::Fresh;
            let (kind, bytes) = body(&hello);
            node.step(kind, bytes, &place(&keys)).unwrap();
            let proof = frame(FrameKind::Proof, &Proof { proof: vec![0; len] });
            let (kind, bytes) = body(&proof);
            let error = node.step(kind, bytes, &place(&keys)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::WrongKey);
        }
    }
}

#[test]
fn a_proof_sent_back_to_its_maker_is_no_proof() {
    let keys = ClusterKeys::new(key(1));
    for credential in [key(1).into(), Credential::from(ticket(&key(1)))] {
        let names = (ClientId(7), None);
        let (_, hello) = ClientSide::start(names, false, &credential, &SystemEntropy);
        let mut node = NodeSide::Fresh;
        let (kind, bytes) = body(&hello);
        let step = node.step(kind, bytes, &place(&keys)).unwrap();
        let NodeStep::Challenge { bytes: challenge, .. } = step else { panic!("no challenge") };
        let Challenge { proof, .. } = decode(body(&challenge).1).unwrap();
        let echoed = frame(FrameKind::Proof, &Proof { proof });
        let (kind, bytes) = body(&echoed);
        assert!(node.step(kind, bytes, &place(&keys)).is_err());
    }
}

#[test]
fn versions_that_do_not_meet_are_refused() {
    assert_eq!(common_version((1, VERSION + 9)).unwrap(), VERSION);
    let refused = [(VERSION + 1, VERSION + 9), (0, HELLO_SINCE - 1)];
    for versions in refused {
        let error = common_version(versions).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WrongVersion);
    }
}

#[test]
fn a_goodbye_keeps_its_kind_and_a_bounded_reason() {
    let long = goodbye(&Error::new(ErrorKind::WrongKey, "ä".repeat(600)));
    assert!(long.len() <= HEADER_LEN + HANDSHAKE_LEN_MAX);
    let error = read_goodbye(body(&long).1);
    assert_eq!((error.kind(), error.message().len()), (ErrorKind::WrongKey, 512));
}

#[test]
fn a_strangers_goodbye_is_no_refusal_of_the_node() {
    let keys = ClusterKeys::new(key(1));
    for kind in [ErrorKind::WrongKey, ErrorKind::Denied, ErrorKind::Corrupt] {
        let (mut fresh, mut challenged) = (NodeSide::Fresh, NodeSide::Fresh);
        let credential = Credential::from(key(1));
        let (_, hello) = ClientSide::start((ClientId(7), None), false, &credential, &SystemEntropy);
        challenged.step(FrameKind::Hello, body(&hello).1, &place(&keys)).unwrap();
        for side in [&mut fresh, &mut challenged] {
            let bytes = goodbye(&Error::new(kind, "it refuses itself"));
            let error = side.step(FrameKind::Goodbye, body(&bytes).1, &place(&keys)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            assert_eq!(error.message(), "peer said goodbye: it refuses itself");
        }
    }
}

proptest! {
    #[test]
    fn no_bytes_upset_either_side(
        kind in 1u8..=11,
        challenged in any::<bool>(),
        with_ticket in any::<bool>(),
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let kinds = [
            FrameKind::Hello, FrameKind::Challenge, FrameKind::Proof, FrameKind::Welcome,
            FrameKind::Goodbye, FrameKind::Request, FrameKind::Reply, FrameKind::Control,
            FrameKind::ControlReply, FrameKind::Peer, FrameKind::PeerReply,
        ];
        let kind = kinds[usize::from(kind) - 1];
        let keys = ClusterKeys::new(key(1));
        let credential =
            if with_ticket { ticket(&key(1)).into() } else { Credential::from(key(1)) };
        let (client, hello) =
            ClientSide::start((ClientId(7), None), false, &credential, &SystemEntropy);
        let mut node = NodeSide::Fresh;
        if challenged {
            let (kind, bytes) = body(&hello);
            node.step(kind, bytes, &place(&keys)).unwrap();
        }
        let step = node.step(kind, &bytes, &place(&keys));
        let proved = matches!(step, Ok(NodeStep::Proved { .. }));
        prop_assert!(!proved);
        prop_assert!(client.challenged(kind, &bytes, None).is_err());
        let _ = client.welcomed(kind, &bytes);
    }

    #[test]
    fn a_ticket_with_one_bit_changed_is_refused(at in any::<prop::sample::Index>(), bit in 0..8) {
        let keys = ClusterKeys::new(key(1));
        let bend = |hello: &mut Hello| {
            let HelloCredential::Ticket(bytes) = &mut hello.credential else { panic!() };
            let at = at.index(bytes.len());
            bytes[at] ^= 1_u8 << bit;
        };
        let credential = ticket(&key(1)).into();
        let (kind, _) = refusal(exchange(&credential, None, &place(&keys), bend));
        prop_assert!(matches!(kind, ErrorKind::WrongKey | ErrorKind::Corrupt));
    }
}
