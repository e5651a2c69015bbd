//! Tickets at a node, over its real sockets.

#![allow(clippy::unwrap_used, reason = "a test ends at what it does not expect")]

mod common;

use std::time::{Duration, Instant};

use common::{Raw, SHM, TCP, UNIX, cluster, deadline, ticket_for};
use samite_testkit::LocalCluster;
use samite_transport::client::{ConnectIdentity, NodeLink};
use samite_transport::ticket::{self, UserTicket};
use samite_transport::{Address, ClusterKey, Credential, SigningPair};
use samite_types::fault::FaultSwitch;
use samite_types::{ClientId, Epoch, Error, ErrorKind, NodeId, SystemEntropy};
use samite_wire::control::{ControlReply, ControlRequest, MEMORY_BACKEND};
use samite_wire::op::Operation;
use samite_wire::ticket::{SignedTicket, TicketClaims};

const USER: u32 = 47_111;

fn address(cluster: &LocalCluster, transport: usize) -> Address {
    cluster.addresses(NodeId(0))[transport].parse().unwrap()
}

fn refusal(cluster: &LocalCluster, credential: &Credential) -> Error {
    let address = address(cluster, TCP);
    let error = NodeLink::connect(&address, credential, ClientId(1), deadline()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongKey, "{error}");
    error
}

fn words(error: &Error, expected: &str) {
    assert!(error.message().contains(expected), "{error}");
}

#[test]
fn a_holder_that_states_another_user_is_refused() {
    let cluster = cluster(1, 1);
    let own = ticket_for(&cluster, USER, 1000);
    let (mut signed, claims) = SignedTicket::parse(own.bytes()).unwrap();
    signed.claims = TicketClaims { uid: 0, ..claims }.to_bytes();
    let bent = UserTicket::new(signed.to_bytes(), own.pair().clone(), *own.node_key()).unwrap();
    words(&refusal(&cluster, &bent.into()), "or was changed since");
    Raw::connect_by(&own.into(), &cluster, 0, TCP);
}

#[test]
fn a_ticket_of_another_cluster_or_of_the_key_before_is_refused() {
    let cluster = cluster(1, 1);
    let own = ticket_for(&cluster, USER, 1000);
    for (key, expected) in [
        (ClusterKey::new([1; 32]), "was not signed by key 1 of this cluster"),
        (ClusterKey::numbered([1; 32], 7), "cluster key 7, which does not count here"),
    ] {
        let bytes = ticket::issue(&key, own.claims().clone()).unwrap();
        let other = UserTicket::new(bytes, own.pair().clone(), *own.node_key()).unwrap();
        words(&refusal(&cluster, &other.into()), expected);
    }
}

#[test]
fn a_ticket_that_has_ended_is_refused_and_ends_its_connections() {
    let cluster = cluster(1, 1);
    words(&refusal(&cluster, &ticket_for(&cluster, USER, 0).into()), "uid 47111 has ended");
    let raw = Raw::connect_by(&ticket_for(&cluster, USER, 2).into(), &cluster, 0, TCP);
    let begun = Instant::now();
    let ended = loop {
        match common::ask(&raw.link, &ControlRequest::Map { known: Epoch(0) }) {
            Ok(_) => std::thread::sleep(Duration::from_millis(20)),
            Err(error) => break error,
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "it has not ended");
    };
    words(&ended, "uid 47111 has ended");
}

#[test]
fn a_user_is_no_owner_and_no_node_and_gets_no_shared_memory() {
    let cluster = cluster(1, 1);
    // Of the node's own user, too: a ticket makes no owner.
    for uid in [USER, rustix::process::geteuid().as_raw()] {
        let ticket: Credential = ticket_for(&cluster, uid, 1000).into();
        let client = ConnectIdentity::client(ClientId(1));
        let node = ConnectIdentity::node(&FaultSwitch::new(NodeId(7), None));
        for (transport, who) in [(SHM, &client), (UNIX, &node), (TCP, &node)] {
            let address = address(&cluster, transport);
            let error = NodeLink::connect_as(&address, &ticket, who, deadline()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        }
        let raw = Raw::connect_by(&ticket, &cluster, 0, UNIX);
        for request in [
            ControlRequest::Shutdown,
            ControlRequest::Scrub { dataset: None },
            ControlRequest::Watch { node: NodeId(0), known: Epoch(0) },
        ] {
            match raw.control(&request) {
                ControlReply::Failed { kind, .. } => {
                    assert_eq!(ErrorKind::from_code(kind), Some(ErrorKind::Denied));
                }
                other => panic!("{request:?}: {other:?}"),
            }
        }
    }
}

#[test]
fn datasets_of_others_are_closed_to_the_user_of_a_ticket() {
    let cluster = cluster(1, 1);
    let mut owner = Raw::connect(&cluster, 0, SHM);
    let dataset = owner.create("d", MEMORY_BACKEND);
    let here = owner.partition(0, 1);
    owner.one(dataset, Operation::put(here, b"k", b"mine"));
    let user = Raw::connect_by(&ticket_for(&cluster, USER, 1000).into(), &cluster, 0, TCP);
    let get = user.send(dataset, vec![Operation::get(here, b"k")]);
    assert_eq!(get.refused, Some(ErrorKind::Denied));
    let mut user = user;
    let own = user.create("own", MEMORY_BACKEND);
    assert_eq!(user.map.dataset("own").unwrap().spec.access.owner, USER);
    user.one(own, Operation::put(here, b"k", b"yours"));
    // By the key over tcp it is the owner who asks, and nobody whom it says it is.
    let by_key = Raw::connect(&cluster, 0, TCP);
    assert_eq!(by_key.one(dataset, Operation::get(here, b"k")).value(), b"mine");
    // Two users at once, each by his own connection.
    let other = Raw::connect_by(&ticket_for(&cluster, USER + 1, 1000).into(), &cluster, 0, TCP);
    let get = other.send(own, vec![Operation::get(here, b"k")]);
    assert_eq!(get.refused, Some(ErrorKind::Denied));
    assert_eq!(user.one(own, Operation::get(here, b"k")).value(), b"yours");
}

#[test]
fn nothing_is_enough_nowhere_but_where_tickets_are_given_out() {
    let cluster = cluster(1, 1);
    for transport in [SHM, UNIX, TCP] {
        let address = address(&cluster, transport);
        let nothing = Credential::Nothing;
        let error = NodeLink::connect(&address, &nothing, ClientId(1), deadline()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        words(&error, "the cluster key or a ticket is needed here");
    }
}

#[test]
fn tickets_pass_tls_and_know_the_nodes_by_their_key() {
    let options = samite_testkit::LocalOptions { tls: true, ..Default::default() };
    let cluster = LocalCluster::start(1, options).unwrap();
    let own = ticket_for(&cluster, USER, 1000);
    let raw = Raw::connect_by(&own.clone().into(), &cluster, 0, TCP);
    assert!(matches!(raw.control(&ControlRequest::Status), ControlReply::Status(_)));
    let elsewhere = ClusterKey::new([9; 32]).node_public_key();
    let deceived = UserTicket::new(own.bytes().to_vec(), own.pair().clone(), elsewhere).unwrap();
    refusal(&cluster, &deceived.into());
    let pair = SigningPair::generate(&SystemEntropy);
    let error = UserTicket::new(own.bytes().to_vec(), pair, *own.node_key()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

/// Runs `body` in a thread of another user with two groups.
fn as_user(uid: u32, body: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let gid = rustix::process::Gid::from_raw(uid + 1);
            let more = rustix::process::Gid::from_raw(uid + 2);
            rustix::thread::set_thread_groups(&[more]).unwrap();
            rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
            let uid = rustix::process::Uid::from_raw(uid);
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            body();
        });
        thread.join().unwrap();
    });
}

#[test]
fn a_node_gives_a_ticket_to_the_user_whom_the_kernel_names_and_renews_it() {
    let scratch = tempfile::tempdir_in("/tmp").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(scratch.path(), mode).unwrap();
    let path = scratch.path().join("tickets");
    let options =
        samite_testkit::LocalOptions { ticket_socket: Some(path.clone()), ..Default::default() };
    let cluster = LocalCluster::start(1, options).unwrap();
    let pair = SigningPair::generate(&SystemEntropy);
    let own = rustix::process::geteuid();
    let ask = || {
        let connect = |credential: &Credential, transport: fn(_) -> Address| {
            NodeLink::connect(&transport(path.clone()), credential, ClientId(1), deadline())
        };
        let error = connect(&common::key(&cluster).into(), Address::Unix).unwrap_err();
        words(&error, "gives out tickets and takes nothing else");
        assert!(connect(&Credential::Nothing, Address::Shm).is_err(), "no shared memory");
        let link = connect(&Credential::Nothing, Address::Unix).unwrap();
        let request = ControlRequest::IssueTicket { public_key: pair.public_key() };
        let ControlReply::Ticket(issued) = common::ask(&link, &request).unwrap() else {
            panic!("no ticket");
        };
        // Nothing else may be asked there.
        let error = common::ask(&link, &ControlRequest::Status).unwrap_err();
        words(&error, "gives out tickets and nothing else");
        issued
    };
    let mut issued = None;
    if own.is_root() {
        as_user(USER, || issued = Some(ask()));
    } else {
        samite_testkit::skip_part("root");
        issued = Some(ask());
    }
    let issued = issued.unwrap();
    assert_eq!(issued.nodes, [(NodeId(0), cluster.addresses(NodeId(0))[TCP].clone())]);
    let ticket = UserTicket::new(issued.ticket, pair.clone(), issued.node_key).unwrap();
    let claims = ticket.claims().clone();
    if own.is_root() {
        assert_eq!((claims.uid, &claims.gids[..]), (USER, &[USER + 1, USER + 2][..]));
    } else {
        assert_eq!(claims.uid, own.as_raw());
    }
    let user = Raw::connect_by(&ticket.into(), &cluster, 0, TCP);
    // As long a time from now on: nothing can be added before a second has passed.
    let begun = Instant::now();
    let renewed = loop {
        match user.control(&ControlRequest::RenewTicket) {
            ControlReply::Ticket(renewed) => break renewed,
            ControlReply::Failed { message, .. } => {
                assert!(message.contains("cannot be renewed"), "{message}");
                std::thread::sleep(Duration::from_millis(100));
            }
            other => panic!("{other:?}"),
        }
        assert!(begun.elapsed() < Duration::from_secs(60));
    };
    let renewed = UserTicket::new(renewed.ticket, pair, renewed.node_key).unwrap();
    assert!(renewed.claims().expires_s > claims.expires_s);
    assert_eq!((renewed.claims().uid, &renewed.claims().gids), (claims.uid, &claims.gids));
    Raw::connect_by(&renewed.into(), &cluster, 0, TCP);
    // The owner has no ticket to renew.
    let owner = Raw::connect(&cluster, 0, TCP);
    let refused = owner.control(&ControlRequest::RenewTicket);
    assert!(matches!(refused, ControlReply::Failed { .. }), "{refused:?}");
}

#[test]
fn a_renewed_ticket_keeps_its_connection() {
    let cluster = cluster(1, 1);
    let mut claims = ticket_for(&cluster, USER, 2).claims().clone();
    claims.renewable_until_s += 1000;
    let pair = SigningPair::generate(&SystemEntropy);
    claims.public_key = pair.public_key();
    let key = common::key(&cluster);
    let bytes = ticket::issue(&key, claims.clone()).unwrap();
    let own = UserTicket::new(bytes, pair, key.node_public_key()).unwrap();
    let user = Raw::connect_by(&own.into(), &cluster, 0, TCP);
    // Past the end of the ticket that it began with.
    let end = std::time::UNIX_EPOCH + Duration::from_secs(claims.expires_s + 1);
    while std::time::SystemTime::now() < end {
        let reply = user.control(&ControlRequest::RenewTicket);
        assert!(matches!(reply, ControlReply::Ticket(_) | ControlReply::Failed { .. }));
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(matches!(user.control(&ControlRequest::Status), ControlReply::Status(_)));
}
