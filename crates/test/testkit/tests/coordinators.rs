//! Clusters of real processes whose coordinators, or the stores of their state, die. They need the
//! `samite` binary (`make test` builds it first), and some etcd; those are skipped where that is
//! not installed.

#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use samite_client::{Client, ClientOptions, ClusterConfig, TransportKind};
use samite_kv::KvView;
use samite_testkit::{ProcessCluster, has};
use samite_types::{ErrorKind, NodeId, Redundancy};
use samite_wire::control::DatasetSpec;

fn options() -> ClientOptions {
    let (timeout, transport) = (Duration::from_secs(30), Some(TransportKind::Unix));
    ClientOptions { timeout, transport, redundancy: Redundancy(2), ..ClientOptions::default() }
}

fn spec(name: &str) -> DatasetSpec {
    DatasetSpec { redundancy: Redundancy(2), ..DatasetSpec::new(name) }
}

/// A process, and how to start it again.
struct Member {
    pid: u32,
    args: Vec<String>,
}

/// Members of the local etcd, as they run.
fn members(cluster: &ProcessCluster) -> Vec<Member> {
    let file = cluster.file().unwrap();
    let of = |pid: u32| {
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
        let args = line.split_terminator('\0').map(str::to_owned).collect();
        Member { pid, args }
    };
    file.setup.etcd_members.iter().map(|member| of(member.pid)).collect()
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

impl Member {
    fn start_again(&self) -> std::process::Child {
        let mut command = Command::new(&self.args[0]);
        command.args(&self.args[1..]).stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(Stdio::null()).spawn().unwrap()
    }
}

/// Ends the children of the test.
struct Children(Vec<std::process::Child>);

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn leader(client: &Client, nodes: u32) -> NodeId {
    let begun = Instant::now();
    loop {
        let found = (0..nodes).find_map(|node| client.node_status(NodeId(node)).ok()?.leader);
        if let Some(leader) = found {
            return leader;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "nobody leads");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Three nodes, each record on two of them, with etcd beside them.
fn mirrored() -> (ProcessCluster, Client) {
    let args = ["--memory", "64M", "--mirror", "2", "--coordinator", "etcd"];
    let cluster = ProcessCluster::start(3, &args).unwrap();
    let client = cluster.client(options()).unwrap();
    (cluster, client)
}

#[test]
fn without_etcds_quorum_the_store_goes_on_until_leases_end_and_again_when_it_is_back() {
    if !has("etcd") {
        return;
    }
    let (cluster, client) = mirrored();
    let kv = KvView::new(client.create_dataset(&spec("kept")).unwrap());
    let members = members(&cluster);
    members[..2].iter().for_each(|member| kill(member.pid));
    // Leases run: nobody notices.
    let begun = Instant::now();
    let mut number = 0u64;
    while begun.elapsed() < Duration::from_millis(300) {
        kv.put(&number.to_le_bytes(), b"value").unwrap();
        number += 1;
    }
    assert!(number > 0);
    // Then calls wait, and fail by time alone.
    std::thread::sleep(Duration::from_secs(2));
    let impatient = ClientOptions { timeout: Duration::from_millis(500), ..options() };
    let refused = KvView::new(cluster.client(impatient).unwrap().dataset("kept").unwrap());
    let error = refused.put(b"late", b"value").unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Busy), "{error}");
    // A call that waits is answered when etcd is back, and everything acknowledged is there.
    let mut children = Children(Vec::new());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| kv.put(b"patient", b"value"));
        std::thread::sleep(Duration::from_millis(300));
        children.0.push(members[0].start_again());
        waiting.join().unwrap().unwrap();
    });
    for known in 0..number {
        assert_eq!(kv.get(&known.to_le_bytes()).unwrap().unwrap().bytes, b"value", "{known}");
    }
    client.create_dataset(&spec("another")).unwrap();
    drop(cluster);
}

#[test]
fn any_node_takes_changes_and_one_living_coordinator_is_enough_to_join() {
    if !has("etcd") {
        return;
    }
    let (cluster, client) = mirrored();
    let leads = leader(&client, 3);
    // It does not matter which one is asked: followers pass changes on to the one that leads.
    for entry in &cluster.file().unwrap().nodes {
        let address = entry.addresses().find(|url| url.starts_with("unix://")).unwrap();
        let config = ClusterConfig { addresses: vec![address], ..cluster.config().unwrap() };
        let only = Client::connect(&config, options()).unwrap();
        only.create_dataset(&spec(&format!("by-{}", entry.node))).unwrap();
    }
    let kv = KvView::new(client.dataset("by-n0").unwrap());
    for key in 0..64u8 {
        kv.put(&[key], &[key]).unwrap();
    }
    // The leader dies; a node that starts again finds the next one by the addresses that it has.
    let followers: Vec<NodeId> = (0..3).map(NodeId).filter(|&node| node != leads).collect();
    let [other, next] = followers[..] else { panic!("{leads} leads") };
    // Waits until all of the process is gone, threads included.
    for node in [leads, other] {
        cluster.run(["fault", "kill", &node.get().to_string()]).unwrap();
    }
    let begun = Instant::now();
    while client.node_status(next).ok().and_then(|status| status.leader) != Some(next) {
        assert!(begun.elapsed() < Duration::from_secs(20), "{next} does not lead");
        std::thread::sleep(Duration::from_millis(20));
    }
    cluster.run(["node", "restart", &other.get().to_string()]).unwrap();
    cluster.run(["node", "restart", &leads.get().to_string()]).unwrap();
    let map = client.refresh_map().unwrap();
    assert_eq!(map.datasets().iter().filter(|set| set.spec.name.starts_with("by-")).count(), 3);
    // Nothing is left of the records that lay on both nodes that died, and that is told; all else
    // is there.
    let is_kept = |key: &u8| match kv.get(&[*key]) {
        Ok(found) => {
            assert_eq!(found.expect("it was acknowledged").bytes, [*key]);
            true
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
            false
        }
    };
    let kept: Vec<u8> = (0..64).filter(is_kept).collect();
    assert!(kept.len() > 16 && kept.len() < 64, "{kept:?}");
    kv.put(&kept[..1], b"value").unwrap();
    cluster.run(["acknowledge-loss"]).unwrap();
    for key in 0..64u8 {
        kv.put(&[key], b"value").unwrap();
    }
}

#[test]
fn a_leader_that_reaches_no_node_is_replaced() {
    if !has("etcd") {
        return;
    }
    let (cluster, client) = mirrored();
    let kv = KvView::new(client.create_dataset(&spec("kept")).unwrap());
    kv.put(b"before", b"value").unwrap();
    let cut_off = leader(&client, 3);
    // It still reaches etcd, and what its node says as a member of groups arrives.
    let others = || (0..3).filter(|node| *node != cut_off.get());
    let ways = others().flat_map(|node| [(cut_off.get(), node), (node, cut_off.get())]);
    let table: Vec<String> =
        ways.map(|(from, to)| format!("cut-coordinator {from} {to}")).collect();
    cluster.run([&["fault".to_owned(), "set".to_owned()][..], &table].concat()).unwrap();
    // Leases of all nodes but one end, and another coordinator gives them out again.
    let begun = Instant::now();
    let follows = |node| client.node_status(NodeId(node)).ok().and_then(|status| status.leader);
    while !others().all(|node| follows(node).is_some_and(|leader| leader != cut_off)) {
        assert!(begun.elapsed() < Duration::from_secs(25), "{cut_off} still leads");
        std::thread::sleep(Duration::from_millis(50));
    }
    // The leases that it has given itself end, and nobody depends on what only it has: it has taken
    // nothing from nodes that it did not hear.
    std::thread::sleep(Duration::from_secs(2));
    for number in 0..64u8 {
        kv.put(&[number], b"value").unwrap();
    }
    // The map can be changed, too, and stays with the new leader when the old one is back.
    client.create_dataset(&spec("during")).unwrap();
    let leads = follows(others().next().unwrap());
    cluster.run(["fault", "clear"]).unwrap();
    let begun = Instant::now();
    while follows(cut_off.get()) != leads {
        assert!(begun.elapsed() < Duration::from_secs(20), "{cut_off} follows nobody");
        std::thread::sleep(Duration::from_millis(50));
    }
    client.create_dataset(&spec("after")).unwrap();
    assert_eq!(kv.get(b"before").unwrap().unwrap().bytes, b"value");
}

#[test]
fn without_the_node_of_an_embedded_coordinator_all_wait_until_it_is_back() {
    let args = ["--memory", "64M", "--mirror", "2", "--coordinator", "embedded"];
    let cluster = ProcessCluster::start(3, &args).unwrap();
    let client = cluster.client(options()).unwrap();
    let kv = KvView::new(client.create_dataset(&spec("kept")).unwrap());
    let keys: Vec<String> = (0..64).map(|number| format!("key {number}")).collect();
    for key in &keys {
        kv.put(key.as_bytes(), b"value").unwrap();
    }
    cluster.kill_node(NodeId(0)).unwrap();
    std::thread::sleep(Duration::from_secs(2));
    let impatient = ClientOptions { timeout: Duration::from_millis(700), ..options() };
    let refused = cluster.client(impatient).unwrap();
    let error = refused.create_dataset(&spec("new")).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Unavailable | ErrorKind::Busy),
        "{error}"
    );
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| kv.put(b"patient", b"value"));
        std::thread::sleep(Duration::from_millis(200));
        cluster.run(["node", "restart", "0"]).unwrap();
        waiting.join().unwrap().unwrap();
    });
    // Its map is the one that it had, and what it held comes back from the others.
    for key in &keys {
        assert_eq!(kv.get(key.as_bytes()).unwrap().unwrap().bytes, b"value", "{key}");
    }
    client.create_dataset(&spec("new")).unwrap();
}

/// Waits until every group has all its members, and all of them are good.
fn wait_until_whole(cluster: &ProcessCluster) {
    let begun = Instant::now();
    while cluster.run(["status"]).is_err() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", cluster.run(["status"]));
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Without anything that was installed for it: each node of `nodes` dies in turn, the one that leads included, and calls go on.
fn each_node_in_turn_dies(nodes: usize, more: &[&str]) -> ProcessCluster {
    let args = [&["--memory", "64M", "--mirror", "2"], more].concat();
    let cluster = ProcessCluster::start(nodes, &args).unwrap();
    let client = cluster.client(options()).unwrap();
    let kv = KvView::new(client.create_dataset(&spec("kept")).unwrap());
    let mut victims: Vec<NodeId> = (0..nodes as u32).map(NodeId).collect();
    victims.push(leader(&client, nodes as u32));
    for (round, victim) in victims.iter().enumerate() {
        wait_until_whole(&cluster);
        cluster.kill_node(*victim).unwrap();
        for key in 0..64u8 {
            kv.put(&[key], &[key, round as u8]).unwrap();
            assert_eq!(kv.get(&[key]).unwrap().unwrap().bytes, [key, round as u8]);
        }
        // The map changes, too, though a node is dead.
        client.create_dataset(&spec(&format!("round-{round}"))).unwrap();
        cluster.run(["node", "restart", &victim.get().to_string()]).unwrap();
    }
    wait_until_whole(&cluster);
    cluster
}

#[test]
fn any_of_three_nodes_may_die() {
    each_node_in_turn_dies(3, &[]);
}

#[test]
fn either_of_two_nodes_may_die_and_so_may_the_third_voter() {
    let cluster = each_node_in_turn_dies(2, &[]);
    let client = cluster.client(options()).unwrap();
    let voter = |cluster: &ProcessCluster| cluster.file().unwrap().setup.third_voter.unwrap();
    let before = voter(&cluster);
    kill(before.pid);
    std::thread::sleep(Duration::from_secs(2));
    client.create_dataset(&spec("without")).unwrap();
    // It is started again with the next node that is.
    cluster.kill_node(NodeId(1)).unwrap();
    let said = cluster.run(["node", "restart", "1"]).unwrap();
    assert!(String::from_utf8_lossy(&said.stdout).contains("the third voter had ended"));
    assert_ne!(voter(&cluster).pid, before.pid);
    wait_until_whole(&cluster);
    cluster.kill_node(NodeId(0)).unwrap();
    client.create_dataset(&spec("again")).unwrap();
    // Nothing is left of it.
    let after = voter(&cluster).pid;
    cluster.run(["down", "--force"]).unwrap();
    assert!(!is_alive(after), "the third voter outlives the store");
    cluster.end();
}

fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

#[test]
fn a_durable_store_comes_back_with_its_voters_whoever_of_them_is_lost() {
    let flash = tempfile::tempdir().unwrap();
    let durable = flash.path().join("d").display().to_string();
    let args = ["--memory", "96M", "--mirror", "2", "--durable", &durable];
    let cluster = ProcessCluster::start(3, &args).unwrap();
    let up = || cluster.run([&["up", "--local", "3"], &args[..]].concat());
    for life in 0..4u64 {
        if life > 0 {
            up().unwrap();
        }
        let client = cluster.client(options()).unwrap();
        let kv = KvView::new(client.dataset("kv").unwrap());
        for number in 0..life {
            let found = kv.get(&number.to_le_bytes()).unwrap().unwrap();
            assert_eq!(found.bytes, number.to_be_bytes(), "life {life}");
        }
        kv.put(&life.to_le_bytes(), &life.to_be_bytes()).unwrap();
        wait_until_whole(&cluster);
        if life == 1 {
            // Everything at once.
            cluster.file().unwrap().nodes.iter().filter_map(|node| node.pid()).for_each(kill);
            std::thread::sleep(Duration::from_millis(500));
        }
        cluster.run(["down", "--force"]).unwrap();
        if life == 2 {
            // The other two give this node a new one.
            std::fs::remove_file(flash.path().join("d/n1/voter")).unwrap();
        }
    }
    // Damage is told at once, with the file.
    let voter = flash.path().join("d/n2/voter");
    let sound = std::fs::read(&voter).unwrap();
    let mut damaged = sound.clone();
    damaged[30] ^= 1;
    std::fs::write(&voter, damaged).unwrap();
    let refused = up().unwrap_err();
    assert!(refused.message().contains("n2/voter"), "{refused}");
    assert!(refused.message().contains("remove it"), "{refused}");
    std::fs::write(&voter, sound).unwrap();
    up().unwrap();
}

#[test]
fn another_node_votes_for_one_that_was_removed() {
    let cluster = ProcessCluster::start(4, &["--memory", "64M", "--mirror", "2"]).unwrap();
    let client = cluster.client(options()).unwrap();
    client.create_dataset(&spec("kept")).unwrap();
    let voter = |node: u32| cluster.runtime_path().join(format!("default/n{node}.voter"));
    assert!(voter(2).exists() && !voter(3).exists());
    wait_until_whole(&cluster);
    cluster.kill_node(NodeId(1)).unwrap();
    // Until its lease has ended it counts as alive.
    let begun = Instant::now();
    while let Err(error) = cluster.run(["node", "remove", "1", "--force"]) {
        assert!(begun.elapsed() < Duration::from_secs(30), "{error}");
        std::thread::sleep(Duration::from_millis(100));
    }
    while !voter(3).exists() {
        assert!(begun.elapsed() < Duration::from_secs(60), "n3 gets no voter");
        std::thread::sleep(Duration::from_millis(50));
    }
    // Of n0, n2 and n3 any one may die now.
    wait_until_whole(&cluster);
    cluster.kill_node(NodeId(0)).unwrap();
    client.create_dataset(&spec("more")).unwrap();
    cluster.run(["node", "restart", "0"]).unwrap();
    wait_until_whole(&cluster);
    cluster.kill_node(NodeId(2)).unwrap();
    client.create_dataset(&spec("last")).unwrap();
}

#[test]
fn durable_datasets_come_back_with_the_etcd_that_was_started_along() {
    if !has("etcd") {
        return;
    }
    let flash = tempfile::tempdir().unwrap();
    let durable = flash.path().join("d").display().to_string();
    let args = ["--memory", "96M", "--mirror", "2", "--coordinator", "etcd", "--durable", &durable];
    let mut last = 0u64;
    let cluster = ProcessCluster::start(3, &args).unwrap();
    let up = |args: &[&str]| cluster.run([&["up", "--local", "3"], args].concat());
    for life in 0..3u64 {
        if life > 0 {
            up(&args).unwrap();
        }
        let client = cluster.client(options()).unwrap();
        let kv = KvView::new(client.dataset("kv").unwrap());
        for number in 0..last {
            let found = kv.get(&number.to_le_bytes()).unwrap().unwrap();
            assert_eq!(found.bytes, number.to_be_bytes(), "life {life}");
        }
        for _ in 0..100 {
            kv.put(&last.to_le_bytes(), &last.to_be_bytes()).unwrap();
            last += 1;
        }
        if life == 0 {
            // Everything at once, etcd included.
            members(&cluster).iter().for_each(|member| kill(member.pid));
            cluster.file().unwrap().nodes.iter().filter_map(|node| node.pid()).for_each(kill);
            std::thread::sleep(Duration::from_millis(500));
        }
        cluster.run(["down", "--force"]).unwrap();
    }
    // Where it cannot come back, it says so, and nothing is lost.
    let refuses = |args: &[&str], words: &str| {
        let refused = up(args).unwrap_err();
        assert!(refused.message().contains(words), "{refused}");
    };
    refuses(&["--memory", "96M", "--mirror", "2", "--durable", &durable], "--coordinator etcd");
    let (kept, away) = (flash.path().join("d/etcd1"), flash.path().join("away"));
    std::fs::rename(&kept, &away).unwrap();
    refuses(&args, "etcd1");
    std::fs::rename(&away, &kept).unwrap();
    // An etcd that has lost everything: no cluster is founded over what the nodes keep.
    let all: Vec<_> = (0..3).map(|member| flash.path().join(format!("d/etcd{member}"))).collect();
    for (index, kept) in all.iter().enumerate() {
        std::fs::rename(kept, flash.path().join(format!("away{index}"))).unwrap();
        std::fs::create_dir(kept).unwrap();
    }
    refuses(&args, "is lost");
    for (index, kept) in all.iter().enumerate() {
        std::fs::remove_dir_all(kept).unwrap();
        std::fs::rename(flash.path().join(format!("away{index}")), kept).unwrap();
    }
    up(&args).unwrap();
    let kv = KvView::new(cluster.client(options()).unwrap().dataset("kv").unwrap());
    assert_eq!(kv.get(&(last - 1).to_le_bytes()).unwrap().unwrap().bytes, (last - 1).to_be_bytes());
}
