//! The state and the election in a real etcd, of one member and of three. They are skipped where etcd is not installed.

#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use samite_coordinator::ClusterTiming;
use samite_coordinator::store::{
    ETCD_PROGRAM, EtcdConfig, EtcdStore, InstanceRole, LocalMember, StateStore,
};
use samite_types::{Error, ErrorKind, NodeId};
use samite_wire::membership::LeaderAddress;

const PATIENCE: Duration = Duration::from_secs(30);

struct Etcd {
    members: Vec<LocalMember>,
    children: Vec<Option<Child>>,
    _scratch: tempfile::TempDir,
}

impl Etcd {
    /// `None` where there is no etcd: the test is skipped.
    fn start(count: usize) -> Option<Self> {
        if !samite_testkit::has(ETCD_PROGRAM) {
            return None;
        }
        let scratch = tempfile::tempdir().unwrap();
        let members = LocalMember::plan(scratch.path(), count).unwrap();
        let mut etcd = Self { members, children: Vec::new(), _scratch: scratch };
        for index in 0..count {
            let child = etcd.spawn(index);
            etcd.children.push(Some(child));
        }
        Some(etcd)
    }

    fn spawn(&self, index: usize) -> Child {
        let mut command = Command::new(ETCD_PROGRAM);
        command.args(self.members[index].args(&self.members));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().unwrap()
    }

    fn kill(&mut self, index: usize) {
        if let Some(mut child) = self.children[index].take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    fn store(&self, node: u32) -> EtcdStore {
        let config = EtcdConfig {
            endpoints: self.members.iter().map(LocalMember::client_url).collect(),
            tls: None,
            prefix: "/samite/test/".into(),
            leader: leader(node),
            instance: u64::from(node) + 100,
            timing: ClusterTiming::DEFAULT,
        };
        EtcdStore::new(&config).unwrap()
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        (0..self.children.len()).for_each(|index| self.kill(index));
    }
}

/// Campaigns until it is so; other stores campaign along.
fn until(stores: &mut [&mut EtcdStore], is_so: impl Fn(&[InstanceRole]) -> bool) -> Duration {
    let start = Instant::now();
    loop {
        let standings: Vec<_> = stores.iter_mut().map(|store| store.campaign()).collect();
        if is_so(&standings) {
            return start.elapsed();
        }
        assert!(start.elapsed() < PATIENCE, "{standings:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn leader(node: u32) -> LeaderAddress {
    LeaderAddress { node: NodeId(node), addresses: vec![format!("tcp://h:{node}")] }
}

const fn leads(standing: &InstanceRole) -> bool {
    matches!(standing, InstanceRole::Leads { .. })
}

fn follows(standing: &InstanceRole, node: u32) -> bool {
    *standing == InstanceRole::Follows { leader: Some(leader(node)) }
}

#[test]
fn one_leads_saves_and_is_followed_by_another() {
    let Some(etcd) = Etcd::start(1) else { return };
    let (mut first, mut second) = (etcd.store(1), etcd.store(2));
    until(&mut [&mut first], |now| leads(&now[0]));
    until(&mut [&mut first, &mut second], |now| leads(&now[0]) && follows(&now[1], 1));
    assert_eq!(first.load().unwrap(), None);
    assert_eq!(second.save(b"mine").unwrap_err().kind(), ErrorKind::Conflict);
    first.save(b"").unwrap();
    assert_eq!(first.load().unwrap().unwrap(), b"");
    // The longest that there is.
    let large: Vec<u8> = (0..1u32 << 20).map(|byte| byte as u8).collect();
    // An etcd on a busy machine may take longer for it than a leader waits. Then it is not known whether it was saved.
    let start = Instant::now();
    let may_be =
        |error: &Error| matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Conflict);
    while let Err(error) = first.save(&large) {
        assert!(may_be(&error) && start.elapsed() < PATIENCE, "{error}");
        until(&mut [&mut first], |now| leads(&now[0]));
        while let Err(error) = first.load() {
            assert!(may_be(&error) && start.elapsed() < PATIENCE, "{error}");
            until(&mut [&mut first], |now| leads(&now[0]));
        }
    }
    until(&mut [&mut first], |now| leads(&now[0]));
    first.save(b"three").unwrap();
    // It falls silent. The second takes over, after its time.
    let waited = until(&mut [&mut second], |now| leads(&now[0]));
    assert!(waited >= Duration::from_millis(500), "{waited:?}");
    assert_eq!(second.load().unwrap().unwrap(), b"three");
    second.save(b"four").unwrap();
    // The first does not know it yet, and can save nothing.
    assert_eq!(first.save(b"lost").unwrap_err().kind(), ErrorKind::Conflict);
    until(&mut [&mut second, &mut first], |now| leads(&now[0]) && follows(&now[1], 2));
    assert_eq!(first.load().unwrap().unwrap(), b"four");
    // Having read the state does not make it the leader.
    assert_eq!(first.save(b"lost").unwrap_err().kind(), ErrorKind::Conflict);
    second.resign();
    until(&mut [&mut first], |now| leads(&now[0]));
    assert_eq!(first.load().unwrap().unwrap(), b"four");
    first.save(b"five").unwrap();
}

#[test]
fn a_dead_member_of_three_changes_nothing_and_two_stop_all_changes() {
    let Some(mut etcd) = Etcd::start(3) else { return };
    let mut store = etcd.store(1);
    until(&mut [&mut store], |now| leads(&now[0]));
    store.save(b"one").unwrap();
    for index in 0..2 {
        // When both have been killed in turn, the member that leads etcd was among them.
        etcd.kill(index);
        until(&mut [&mut store], |now| leads(&now[0]));
        let saved = (0..200).any(|_| {
            std::thread::sleep(Duration::from_millis(20));
            leads(&store.campaign()) && store.load().is_ok() && store.save(b"two").is_ok()
        });
        assert!(saved);
        if index == 0 {
            etcd.children[0] = Some(etcd.spawn(0));
        }
    }
    etcd.kill(2);
    until(&mut [&mut store], |now| !leads(&now[0]));
    assert!(store.save(b"three").is_err());
    let child = etcd.spawn(2);
    etcd.children[2] = Some(child);
    until(&mut [&mut store], |now| leads(&now[0]));
    assert_eq!(store.load().unwrap().unwrap(), b"two");
}

#[test]
fn endpoints_are_checked_and_dead_ones_are_told_in_time() {
    let config = |endpoints: &[&str]| EtcdConfig {
        endpoints: endpoints.iter().map(|url| (*url).to_owned()).collect(),
        tls: None,
        prefix: "/p/".into(),
        leader: leader(0),
        instance: 1,
        timing: ClusterTiming::DEFAULT,
    };
    for bad in [&[][..], &["127.0.0.1:1"], &["http://"], &["https://h:1"], &["http://h:1/x"]] {
        assert_eq!(EtcdStore::new(&config(bad)).unwrap_err().kind(), ErrorKind::Invalid, "{bad:?}");
    }
    let mut nobody = EtcdStore::new(&config(&["http://127.0.0.1:1"])).unwrap();
    assert_eq!(nobody.campaign(), InstanceRole::Follows { leader: None });
    assert_eq!(nobody.load().unwrap_err().kind(), ErrorKind::Unavailable);
}
