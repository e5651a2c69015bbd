//! A cluster whose nodes and clients reach each other by TLS only.
#![allow(clippy::unwrap_used, reason = "a test or a measurement may end with a panic")]

use samite_client::{Client, ClientOptions, TransportKind};
use samite_kv::KvView;
use samite_testkit::{LocalCluster, LocalOptions};
use samite_types::{ErrorKind, Redundancy};
use samite_wire::control::DatasetSpec;

#[test]
fn mirrors_and_clients_by_tls() {
    // Apart: nodes take no unix sockets to each other.
    let options = LocalOptions { apart: true, tls: true, ..LocalOptions::default() };
    let cluster = LocalCluster::start(3, options).unwrap();
    let by = |transport| ClientOptions { transport: Some(transport), ..ClientOptions::default() };
    let client = cluster.client(by(TransportKind::Tls)).unwrap();
    let spec = DatasetSpec { redundancy: Redundancy(2), ..DatasetSpec::new("pairs") };
    let kv = KvView::new(client.create_dataset(&spec).unwrap());
    let value = |number: usize| vec![number as u8; 1 + number * number * 50];
    for number in 0..100 {
        kv.put(format!("key {number}").as_bytes(), &value(number)).unwrap();
    }
    // On the first node's host, by shared memory: what came by TLS, over TLS to the other member.
    let near = cluster.client(ClientOptions::default()).unwrap();
    let near = KvView::new(near.dataset("pairs").unwrap());
    for number in 0..100 {
        let key = format!("key {number}");
        assert_eq!(near.get(key.as_bytes()).unwrap().unwrap().bytes, value(number));
        assert_eq!(kv.get(key.as_bytes()).unwrap().unwrap().bytes, value(number));
    }
    // Nobody gets in without: there is no such address, and the port takes nothing else.
    let error = cluster.client(by(TransportKind::Tcp)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let mut plain = cluster.config();
    plain.addresses.retain(|address| address.starts_with("tls://"));
    for address in &mut plain.addresses {
        *address = address.replace("tls://", "tcp://");
    }
    let error = Client::connect(&plain, ClientOptions::default()).unwrap_err();
    assert!(error.message().contains("takes TLS only"), "{error}");
    let mut stranger = cluster.config();
    stranger.credential = samite_client::ClusterKey::new([1; 32]).into();
    let error = Client::connect(&stranger, by(TransportKind::Tls)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongKey, "{error}");
}
