//! The file with a user's ticket: what it tells of the store, and how a new one takes its place.

#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

use std::time::Duration;

use samite_client::runtime::{ClusterDir, RuntimeDir, TicketFile};
use samite_client::{ClusterKey, ClusterKeys, TicketOrder};
use samite_transport::ticket::issue as issue_ticket;
use samite_types::{Deadline, ErrorKind, NodeId};
use samite_wire::ticket::{IssuedTicket, SignedTicket, TicketClaims};

const UID: u32 = 47_113;

/// The runtime directories of the owner of a store, with its key, and of a user.
struct OwnerAndUser {
    _scratch: tempfile::TempDir,
    owner: ClusterDir,
    user: RuntimeDir,
}

fn owner_and_user() -> OwnerAndUser {
    let scratch = tempfile::tempdir().unwrap();
    let at = |name: &str| RuntimeDir::at(scratch.path().join(name)).unwrap();
    let (runtime, user) = (at("owner"), at("user"));
    runtime.create().unwrap();
    let owner = runtime.cluster("weave").unwrap();
    owner.create().unwrap();
    owner.write_keys(&ClusterKeys::new(ClusterKey::new([1; 32]))).unwrap();
    OwnerAndUser { _scratch: scratch, owner, user }
}

/// A ticket that counts for `life_s` seconds.
fn issue(owner: &ClusterDir, life_s: u64) -> TicketFile {
    let life = Duration::from_secs(life_s);
    let order =
        TicketOrder { uid: UID, gids: vec![UID], life, renewable: life * 2, public_key: None };
    order.issue(owner, vec![(NodeId(0), "tcp://127.0.0.1:7000".into())]).unwrap()
}

/// Puts the next key in the place of the current one, as a change of the cluster key does.
fn change_key(owner: &ClusterDir) {
    let keys = owner.read_keys().unwrap();
    let number = keys.current().number() + 1;
    let next = ClusterKey::numbered([number as u8; 32], number);
    let keys = keys.with_next(&next).unwrap().switched(number).unwrap().finished(number).unwrap();
    owner.write_keys(&keys).unwrap();
}

#[test]
fn the_id_of_a_store_stays_when_its_key_is_changed() {
    let OwnerAndUser { owner, user, .. } = &owner_and_user();
    let first = issue(owner, 1000);
    let dir = user.use_ticket(&first).unwrap();
    let id = owner.read_id().unwrap();
    assert_eq!(dir.read_id().unwrap(), id, "the same for its owner and a user");
    change_key(owner);
    let second = issue(owner, 1000);
    assert_ne!(first.node_key, second.node_key);
    user.use_ticket(&second).unwrap();
    assert_eq!(dir.read_ticket().unwrap(), second, "a new ticket for the same store");
    assert_eq!((dir.read_id().unwrap(), owner.read_id().unwrap()), (id.clone(), id));
    // Another store of this name is still told from it.
    owner.write_keys(&ClusterKeys::new(ClusterKey::new([9; 32]))).unwrap();
    let error = user.use_ticket(&issue(owner, 1000)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exists, "{error}");
    assert_ne!(dir.read_id().unwrap(), owner.read_id().unwrap());
}

#[test]
fn a_file_that_is_no_ticket_is_to_be_removed() {
    let OwnerAndUser { owner, user, .. } = &owner_and_user();
    let file = issue(owner, 1000);
    let dir = user.use_ticket(&file).unwrap();
    std::fs::write(dir.ticket_path(), "{\"cluster\": \"weave\"").unwrap();
    let errors = [
        user.use_ticket(&file).map(drop),
        dir.read_credential().map(drop),
        dir.read_id().map(drop),
    ];
    for error in errors.map(Result::unwrap_err) {
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.message().contains("remove this file"), "{error}");
        assert!(error.message().contains(&dir.ticket_path().display().to_string()), "{error}");
    }
    std::fs::remove_file(dir.ticket_path()).unwrap();
    user.use_ticket(&file).unwrap();
    let bent = TicketFile { cluster_id: "AAAA".into(), ..file };
    assert_eq!(user.use_ticket(&bent).unwrap_err().kind(), ErrorKind::Corrupt);
}

/// What a node answers to one who renews the ticket in `file` up to `expires_s`.
fn renewed(owner: &ClusterDir, file: &TicketFile, expires_s: u64) -> IssuedTicket {
    let keys = owner.read_keys().unwrap();
    let claims = TicketClaims { expires_s, ..file.claims().unwrap() };
    IssuedTicket {
        ticket: issue_ticket(keys.current(), claims).unwrap(),
        node_key: keys.current().node_public_key(),
        cluster_id: *keys.id(),
        nodes: Vec::new(),
        authorities: None,
    }
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

#[test]
fn the_last_of_many_renewals_stays_and_a_reader_sees_whole_files() {
    const WRITERS: u64 = 8;
    const EACH: u64 = 50;
    let OwnerAndUser { owner, user, .. } = &owner_and_user();
    let file = issue(owner, 1000);
    let (dir, key) = (&user.use_ticket(&file).unwrap(), &file.private_key);
    let first_s = file.claims().unwrap().expires_s;
    let all: Vec<_> =
        (1..=WRITERS * EACH).map(|more| renewed(owner, &file, first_s + more)).collect();
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let mine = all.iter().skip(writer as usize).step_by(WRITERS as usize);
            scope.spawn(move || {
                for issued in mine {
                    dir.keep_renewed(issued, soon()).unwrap();
                    let now = dir.read_ticket().unwrap();
                    let (_, wrote) = SignedTicket::parse(&issued.ticket).unwrap();
                    assert!(now.claims().unwrap().expires_s >= wrote.expires_s, "it went back");
                    assert_eq!(&now.private_key, key);
                }
            });
        }
    });
    let last = dir.read_ticket().unwrap();
    assert_eq!(last.claims().unwrap().expires_s, first_s + WRITERS * EACH);
    assert_eq!(last.private_key, file.private_key);
    let names = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = names.collect();
    names.sort();
    assert_eq!(names, ["cluster.json", "ticket"], "nothing is left over");
}

#[test]
fn a_ticket_by_the_key_before_does_not_come_back() {
    let OwnerAndUser { owner, user, .. } = &owner_and_user();
    let file = issue(owner, 1000);
    let dir = user.use_ticket(&file).unwrap();
    let expires_s = file.claims().unwrap().expires_s;
    let late = renewed(owner, &file, expires_s + 500);
    change_key(owner);
    dir.keep_renewed(&renewed(owner, &file, expires_s + 10), soon()).unwrap();
    dir.keep_renewed(&late, soon()).unwrap();
    let kept = dir.read_ticket().unwrap();
    let claims = kept.claims().unwrap();
    assert_eq!((claims.key_number, claims.expires_s), (2, expires_s + 10));
    kept.credential().unwrap();
}

const AUTHORITY: &str = include_str!("../../../cluster/transport/tests/fixtures/tls/authority.pem");

#[test]
fn a_renewed_ticket_brings_the_nodes_and_authorities_of_now() {
    let OwnerAndUser { owner, user, .. } = &owner_and_user();
    let file = issue(owner, 1000);
    let dir = user.use_ticket(&file).unwrap();
    let expires_s = file.claims().unwrap().expires_s;
    let moved: Vec<(NodeId, String)> =
        [1, 0].map(|n| (NodeId(n), format!("tcp://10.0.0.{n}:7000"))).into();
    let issued = IssuedTicket {
        nodes: moved.clone(),
        authorities: Some(AUTHORITY.into()),
        ..renewed(owner, &file, expires_s + 1)
    };
    dir.keep_renewed(&issued, soon()).unwrap();
    let kept = dir.read_ticket().unwrap();
    assert_eq!((&kept.nodes, kept.authorities.as_deref()), (&moved, Some(AUTHORITY)));
    let described = dir.read_cluster_file().unwrap();
    let described: Vec<_> = described.nodes.iter().map(|n| (n.node.0, n.tcp.clone())).collect();
    let at = |n| (n, Some(format!("10.0.0.{n}:7000")));
    assert_eq!(described, [at(0), at(1)]);
    // A node that knows neither: what is known stays.
    dir.keep_renewed(&renewed(owner, &file, expires_s + 2), soon()).unwrap();
    let later = dir.read_ticket().unwrap();
    assert_eq!(later.claims().unwrap().expires_s, expires_s + 2);
    assert_eq!((later.nodes, later.authorities), (kept.nodes, kept.authorities));
    // Authorities that are none change nothing.
    let bad =
        IssuedTicket { authorities: Some("none".into()), ..renewed(owner, &file, expires_s + 3) };
    assert_eq!(dir.keep_renewed(&bad, soon()).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(dir.read_ticket().unwrap().claims().unwrap().expires_s, expires_s + 2);
}

#[test]
fn no_ticket_is_made_with_authorities_that_are_none() {
    let OwnerAndUser { owner, .. } = &owner_and_user();
    owner.write_authorities(b"no certificate").unwrap();
    assert_eq!(owner.read_authorities_pem().unwrap_err().kind(), ErrorKind::Invalid);
    owner.write_authorities(AUTHORITY.as_bytes()).unwrap();
    assert_eq!(issue(owner, 1000).authorities.as_deref(), Some(AUTHORITY));
}
