//! Access checks: datasets of one user, and others who have the cluster key.

#![allow(clippy::unwrap_used, reason = "a test ends at what it does not expect")]

mod common;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use common::{Raw, SHM, TCP, UNIX, cluster};
use samite_testkit::{LocalCluster, skip_part};
use samite_transport::{Address, Credential};
use samite_types::{ErrorKind, NodeId};
use samite_wire::control::{
    BackendSpec, ControlReply, ControlRequest, DatasetSpec, FaultRequest, MEMORY_BACKEND,
};
use samite_wire::op::{Action, Operation};

/// Neither root nor a user that has files here.
const STRANGER: u32 = 47_110;

/// Runs `body` in a thread that is another user's. `false`: this process may not do that, and that part is skipped.
fn as_stranger(body: impl FnOnce() + Send) -> bool {
    if !rustix::process::geteuid().is_root() {
        skip_part("root");
        return false;
    }
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let uid = rustix::process::Uid::from_raw(STRANGER);
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            body();
        });
        thread.join().unwrap();
    });
    true
}

/// Lets strangers reach a node's socket, which the cluster's directory does not.
fn open_socket(cluster: &LocalCluster, node: u32) {
    let address: Address = cluster.addresses(NodeId(node))[UNIX].parse().unwrap();
    let Address::Unix(socket) = address else { panic!("{address}") };
    std::fs::set_permissions(&socket, PermissionsExt::from_mode(0o777)).unwrap();
    for dir in socket.ancestors().skip(1).take_while(|dir| *dir != Path::new("/tmp")) {
        if dir.starts_with("/tmp") {
            std::fs::set_permissions(dir, PermissionsExt::from_mode(0o711)).unwrap();
        }
    }
}

fn refusal(reply: ControlReply) -> (Option<ErrorKind>, String) {
    match reply {
        ControlReply::Failed { kind, message } => (ErrorKind::from_code(kind), message),
        other => panic!("{other:?}"),
    }
}

fn access(owner: Option<u32>, mode: Option<u16>) -> ControlRequest {
    ControlRequest::SetAccess { name: "d".into(), owner, mode }
}

#[test]
fn strangers_get_what_the_mode_gives_them() {
    let cluster = cluster(2, 1);
    let mut own = Raw::connect(&cluster, 0, SHM);
    let dataset = own.create("d", MEMORY_BACKEND);
    let here = own.partition(0, 1);
    own.one(dataset, Operation::put(here, b"k", b"mine"));
    open_socket(&cluster, 0);
    let attempt = |transport, reads: bool, writes: bool| {
        as_stranger(|| {
            // On tcp a ticket says who it is, on unix sockets the kernel does, whatever is proved.
            let credential: Credential = match transport {
                TCP => common::ticket_for(&cluster, STRANGER, 1000).into(),
                _ => common::key(&cluster).into(),
            };
            let stranger = Raw::connect_by(&credential, &cluster, 0, transport);
            let may = |yes: bool| (!yes).then_some(ErrorKind::Denied);
            let get = stranger.send(dataset, vec![Operation::get(here, b"k")]);
            assert_eq!(get.refused, may(reads));
            let put = vec![Operation::get(here, b"k"), Operation::put(here, b"x", b"y")];
            assert_eq!(stranger.send(dataset, put).refused, may(writes));
            assert_eq!(
                stranger
                    .send(dataset, vec![Operation::new(here, [Action::Delete { key: b"x" }])])
                    .refused,
                may(writes)
            );
        })
    };
    for transport in [TCP, UNIX] {
        for (mode, reads, writes) in
            [(0o700, false, false), (0o704, true, false), (0o706, true, true)]
        {
            assert!(matches!(own.control(&access(None, Some(mode))), ControlReply::Map(Some(_))));
            if !attempt(transport, reads, writes) {
                return;
            }
        }
    }
    assert_eq!(own.one(dataset, Operation::get(here, b"k")).value(), b"mine");
    // Root may, whatever the mode says.
    own.control(&access(Some(STRANGER), Some(0)));
    assert_eq!(own.one(dataset, Operation::get(here, b"k")).value(), b"mine");
    assert!(attempt(TCP, false, false));
    own.control(&access(None, Some(0o600)));
    assert!(attempt(UNIX, true, true));
}

#[test]
fn strangers_change_nothing_that_is_not_theirs() {
    let cluster = cluster(2, 1);
    let mut own = Raw::connect(&cluster, 0, SHM);
    own.create("d", MEMORY_BACKEND);
    own.control(&access(None, Some(0o777)));
    // By way of the node that has no coordinator, too.
    for node in [0, 1] {
        let ticket = common::ticket_for(&cluster, STRANGER, 1000).into();
        {
            let mut stranger = Raw::connect_by(&ticket, &cluster, node, TCP);
            let drop = ControlRequest::DropDataset { name: "d".into() };
            for request in [
                drop,
                access(None, Some(0o700)),
                access(Some(STRANGER), None),
                ControlRequest::Shutdown,
                ControlRequest::Faults(FaultRequest::Set("cut * *".into())),
            ] {
                let (kind, message) = refusal(stranger.control(&request));
                assert_eq!(kind, Some(ErrorKind::Denied), "{request:?}: {message}");
                assert!(message.contains(&format!("uid {STRANGER}")), "{message}");
            }
            let placed = BackendSpec { path: Some("/etc".into()), ..BackendSpec::default() };
            let placed = DatasetSpec { backend: placed, ..DatasetSpec::new("placed") };
            let (kind, message) = refusal(stranger.control(&ControlRequest::CreateDataset(placed)));
            assert_eq!(kind, Some(ErrorKind::Denied), "{message}");
            assert!(message.contains("keep data in /etc"), "{message}");
            // Its own dataset is its own, and it cannot be given away.
            let name = format!("own{node}");
            stranger.create(&name, MEMORY_BACKEND);
            assert_eq!(stranger.map.dataset(&name).unwrap().spec.access.owner, STRANGER);
            let give = ControlRequest::SetAccess { name: name.clone(), owner: Some(0), mode: None };
            assert_eq!(refusal(stranger.control(&give)).0, Some(ErrorKind::Denied));
            let open =
                ControlRequest::SetAccess { name: name.clone(), owner: None, mode: Some(0o755) };
            assert!(matches!(stranger.control(&open), ControlReply::Map(Some(_))));
            let wrong =
                ControlRequest::SetAccess { name: name.clone(), owner: None, mode: Some(0o1755) };
            assert_eq!(refusal(stranger.control(&wrong)).0, Some(ErrorKind::Invalid));
            let drop = ControlRequest::DropDataset { name };
            assert_eq!(stranger.control(&drop), ControlReply::Ok);
        }
    }
    let own = Raw::connect(&cluster, 0, SHM);
    assert_eq!(own.map.dataset("d").unwrap().spec.access.mode, 0o777);
}

#[test]
fn strangers_get_no_shared_memory_and_are_no_nodes() {
    use samite_transport::ClusterKey;
    use samite_transport::client::{ConnectIdentity, NodeLink};
    use samite_types::fault::FaultSwitch;

    let cluster = cluster(1, 1);
    open_socket(&cluster, 0);
    let addresses = cluster.addresses(NodeId(0)).to_vec();
    let key = ClusterKey::new(*cluster.key());
    as_stranger(|| {
        let connect = |address: &String, who: &ConnectIdentity| {
            NodeLink::connect_as(&address.parse().unwrap(), &key, who, common::deadline())
        };
        let client = ConnectIdentity::client(samite_types::ClientId(1));
        let error = connect(&addresses[SHM], &client).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        let node = ConnectIdentity::node(&FaultSwitch::new(NodeId(7), None));
        let error = connect(&addresses[UNIX], &node).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        connect(&addresses[UNIX], &client).unwrap();
    });
}
