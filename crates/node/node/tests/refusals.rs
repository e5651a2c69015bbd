//! Requests that a node refuses, and that it is as well afterwards as before.

#![allow(clippy::unwrap_used, reason = "a test ends at what it does not expect")]

mod common;

use common::{Ended, Raw, SHM, TCP, UNIX, cluster, deadline, pattern};
use samite_arena::{BlockGrant, GrantPool};
use samite_testkit::{LocalCluster, LocalOptions};
use samite_transport::ClusterKey;
use samite_transport::client::{ConnectIdentity, NodeLink, OutgoingRequest};
use samite_types::fault::FaultSwitch;
use samite_types::{DatasetId, Epoch, ErrorKind, NodeId, PartitionId, Redundancy, Seq};
use samite_wire::control::{
    self, BackendSpec, ControlReply, ControlRequest, DatasetSpec, DurabilityKind, MEMORY_BACKEND,
    NULL_BACKEND, SemanticsKind,
};
use samite_wire::frame::FrameKind;
use samite_wire::op::{Action, BlockRef, List, Operation, ValueData};

#[test]
fn requests_for_what_is_not_here_are_refused() {
    let cluster = cluster(2, 1);
    let mut raw = Raw::connect(&cluster, 0, TCP);
    let dataset = raw.create("d", MEMORY_BACKEND);
    let mine = raw.partition(0, 1);
    let others = (0..raw.map.partitions())
        .map(PartitionId)
        .find(|p| raw.map.node_of(Redundancy(1), *p) == Some(NodeId(1)))
        .unwrap();
    let ask = |dataset, partition, epoch: u64| {
        let mut header = raw.header(dataset);
        header.map_epoch = Epoch(epoch);
        let answer = raw.try_send(&header, &[Operation::get(partition, b"k")]).unwrap();
        assert_eq!(answer.map_epoch, raw.map.epoch());
        answer.refused
    };
    let now = raw.map.epoch().get();
    assert_eq!(ask(dataset, mine, now), None);
    assert_eq!(ask(dataset, mine, now - 1), None, "an old map that is right here");
    assert_eq!(ask(DatasetId(99), mine, now), Some(ErrorKind::NotFound));
    assert_eq!(ask(DatasetId(99), mine, now + 1), Some(ErrorKind::Busy));
    assert_eq!(ask(dataset, others, now - 1), Some(ErrorKind::StaleMap));
    assert_eq!(ask(dataset, others, now + 1), Some(ErrorKind::Busy));
    assert_eq!(ask(dataset, PartitionId(1 << 20), now), Some(ErrorKind::Invalid));
}

#[test]
fn a_dropped_dataset_is_gone_with_its_memory() {
    for shards in [1, 3] {
        let cluster = cluster(2, shards);
        let mut raw = Raw::connect(&cluster, 1, UNIX);
        let before = raw.status();
        let dataset = raw.create("d", MEMORY_BACKEND);
        for p in raw.partitions().into_iter().take(8) {
            raw.one(dataset, Operation::put(p, b"k", &pattern(1 << 20, 0)));
        }
        let full = raw.status();
        assert!(full.used_bytes >= before.used_bytes + (8 << 20), "{full:?}");
        assert_eq!(full.records, 8);
        let dropped = raw.control(&ControlRequest::DropDataset { name: "d".into() });
        assert_eq!(dropped, ControlReply::Ok);
        let answer = raw.send(dataset, vec![Operation::get(raw.partition(0, 1), b"k")]);
        assert_eq!(answer.refused, Some(ErrorKind::NotFound));
        let after = raw.status();
        assert_eq!((after.records, after.used_bytes), (0, before.used_bytes));
        // The same name is another dataset now.
        let again = raw.create("d", MEMORY_BACKEND);
        assert_ne!(again, dataset);
        let absent = raw.one(again, Operation::get(raw.partition(0, 1), b"k"));
        assert_eq!(absent.failure(), ErrorKind::NotFound);
        let missing = raw.control(&ControlRequest::DropDataset { name: "none".into() });
        assert!(
            matches!(missing, ControlReply::Failed { kind, .. } if kind == ErrorKind::NotFound.code())
        );
    }
}

#[test]
fn a_full_target_says_so_and_stays_healthy() {
    let options = LocalOptions { memory_bytes: 8 << 20, ..LocalOptions::default() };
    let cluster = LocalCluster::start(1, options).unwrap();
    for transport in [SHM, TCP] {
        let mut raw = Raw::connect(&cluster, 0, transport);
        let dataset = raw.create("d", MEMORY_BACKEND);
        let p = raw.partition(0, 1);
        let value = pattern(1 << 20, 3);
        let mut stored = 0u8;
        loop {
            match raw.one(dataset, Operation::put(p, &[stored], &value)) {
                Ended::Done(_) => stored += 1,
                failed => break assert_eq!(failed.failure(), ErrorKind::NoSpace),
            }
            assert!(stored < 9, "8 MiB hold more than 8 MiB");
        }
        assert!(stored >= 5, "{stored} of 8");
        let full = raw.status();
        assert_eq!(full.records, u64::from(stored));
        for key in 0..stored {
            assert!(raw.one(dataset, Operation::get(p, &[key])).value() == value);
        }
        assert_eq!(raw.one(dataset, Operation::get(p, &[stored])).failure(), ErrorKind::NotFound);
        let wipe = Action::DeletePrefix { prefix: b"", limit: u32::MAX };
        raw.one(dataset, Operation::new(p, [wipe]));
        assert_eq!(raw.status().records, 0);
        assert!(matches!(raw.one(dataset, Operation::put(p, b"k", &value)), Ended::Done(_)));
        raw.one(dataset, Operation::new(p, [Action::Delete { key: b"k" }]));
    }
}

fn put_block(partition: PartitionId, blocks: &[BlockRef]) -> Operation<'static> {
    let data = ValueData::Blocks(List::from_slice(blocks));
    Operation::new(partition, [Action::Put { key: b"k", data }])
}

/// Blocks of `raw`'s connection, filled with `value`.
fn fill(raw: &Raw, blocks: &[(u64, u32)], value: &[u8]) -> Vec<BlockRef> {
    let (arena, pool) = (raw.link.arena().unwrap(), GrantPool::default());
    pool.add(blocks.iter().map(|block| BlockGrant::from(*block)));
    let blocks = pool.take(arena, blocks.len()).unwrap();
    arena.fill(&blocks, value).unwrap().to_vec()
}

fn grant(raw: &Raw, count: u16) -> Vec<(u64, u32)> {
    match raw.control(&ControlRequest::Grant { count }) {
        ControlReply::Granted(blocks) => blocks,
        other => panic!("{other:?}"),
    }
}

#[test]
fn granted_blocks_become_records_and_others_do_not() {
    for shards in [1, 2] {
        let cluster = cluster(1, shards);
        let mut raw = Raw::connect(&cluster, 0, SHM);
        let other = Raw::connect(&cluster, 0, SHM);
        let dataset = raw.create("d", MEMORY_BACKEND);
        let value = pattern(3 << 16, 5);
        for p in (0..u32::from(shards)).map(|shard| raw.partition(shard, shards.into())) {
            let blocks = fill(&raw, &grant(&raw, 3), &value);
            assert_eq!(blocks.len(), 3);
            let answer = raw.send(dataset, vec![put_block(p, &blocks)]);
            assert_eq!(answer.grants.len(), 3, "new blocks for the ones that were used");
            let fresh = answer.grants.clone();
            assert!(matches!(answer.only(), Ended::Done(_)));
            assert!(raw.one(dataset, Operation::get(p, b"k")).value() == value);

            // Used up, made up, somebody else's, beyond its end, twice in one operation.
            let foreign = grant(&other, 1)[0];
            let foreign = BlockRef { offset: foreign.0, len: 10, generation: foreign.1 };
            let long = BlockRef { len: (64 << 10) + 1, ..fresh[0] };
            let wild = BlockRef { offset: u64::MAX - 5, len: 10, generation: 1 };
            for bad in [
                vec![blocks[0]],
                vec![foreign],
                vec![long],
                vec![wild],
                vec![fresh[0], fresh[0]],
                vec![fresh[0], wild],
            ] {
                let answer = raw.send(dataset, vec![put_block(p, &bad)]);
                assert!(matches!(&answer.outcomes[0], Ended::Failed { .. }), "{bad:?}");
                for block in answer.grants {
                    assert!(fresh.iter().any(|given| given.offset == block.offset), "{bad:?}");
                }
            }
            assert!(raw.one(dataset, Operation::get(p, b"k")).value() == value);

            let mut operation = put_block(p, &fresh[..2]);
            operation.seq = Seq(1 << 40);
            let refused = raw.try_send(&raw.header(DatasetId(99)), &[operation]).unwrap();
            assert_eq!(refused.refused, Some(ErrorKind::NotFound));
            assert_eq!(refused.grants.len(), 2, "what a refused request named stays granted");
        }
    }
}

#[test]
fn blocks_of_a_lost_connection_go_back() {
    let cluster = cluster(1, 1);
    let watcher = Raw::connect(&cluster, 0, UNIX);
    let before = watcher.status().used_bytes;
    for _ in 0..20 {
        let raw = Raw::connect(&cluster, 0, SHM);
        assert!(!grant(&raw, 1000).is_empty());
        assert!(grant(&raw, 1000).len() <= 256);
    }
    let start = std::time::Instant::now();
    while watcher.status().used_bytes != before {
        assert!(start.elapsed().as_secs() < 5, "{} of {before}", watcher.status().used_bytes);
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let socket = watcher.control(&ControlRequest::Grant { count: 1 });
    assert!(matches!(socket, ControlReply::Failed { .. }));
}

#[test]
fn a_peer_that_talks_nonsense_is_dropped_and_nobody_else_notices() {
    let cluster = cluster(1, 2);
    for transport in [SHM, UNIX, TCP] {
        let mut good = Raw::connect(&cluster, 0, transport);
        let dataset = good.create("d", MEMORY_BACKEND);
        let p = good.partition(0, 1);
        for (kind, body) in [
            (FrameKind::Request, &b"nonsense"[..]),
            (FrameKind::Request, &[0xff; 4000]),
            (FrameKind::Reply, b""),
            (FrameKind::Hello, b""),
        ] {
            let bad = Raw::connect(&cluster, 0, transport);
            let outgoing = OutgoingRequest { kind, body, payload: &[] };
            let error = bad.link.call(outgoing, deadline(), |_| ()).unwrap_err();
            assert_ne!(error.kind(), ErrorKind::Timeout, "{kind:?}: {error}");
            assert!(matches!(good.one(dataset, Operation::put(p, b"k", b"v")), Ended::Done(_)));
        }
    }
}

#[test]
fn a_control_request_of_a_later_build_is_refused_and_the_connection_goes_on() {
    let cluster = cluster(1, 2);
    for transport in [SHM, UNIX, TCP] {
        let peer = Raw::connect(&cluster, 0, transport);
        let body = &[0xff; 40][..];
        let outgoing = OutgoingRequest { kind: FrameKind::Control, body, payload: &[] };
        let reply = peer.link.call(outgoing, deadline(), |reply| control::decode(reply.body()));
        let Ok(Ok(ControlReply::Failed { kind, .. })) = reply else { panic!("{reply:?}") };
        assert_eq!(ErrorKind::from_code(kind), Some(ErrorKind::Unsupported));
        assert!(matches!(peer.control(&ControlRequest::Status), ControlReply::Status(_)));
    }
}

#[test]
fn results_that_no_reply_could_hold_are_refused_before_anything_happens() {
    let cluster = cluster(1, 1);
    let mut raw = Raw::connect(&cluster, 0, TCP);
    let dataset = raw.create("d", MEMORY_BACKEND);
    let p = raw.partition(0, 1);
    raw.one(dataset, Operation::put(p, b"k", b"v"));
    let both = || {
        let get = Action::Get { key: b"k", offset: 0, len: u32::MAX };
        let add = Action::Add { key: b"n", offset: 0, delta: 1 };
        Operation::new(p, [get, add])
    };
    let answer = raw.send(dataset, (0..9).map(|_| both()).collect());
    assert_eq!(answer.refused, Some(ErrorKind::TooLarge));
    assert_eq!(raw.one(dataset, Operation::get(p, b"n")).failure(), ErrorKind::NotFound);
    let answer = raw.send(dataset, (0..8).map(|_| both()).collect());
    assert_eq!(answer.outcomes.len(), 8);
    let truncates = (0..64).map(|_| Action::Truncate { key: b"k", len: 1 });
    let mut many = Operation::new(p, truncates);
    many.seq = Seq(1 << 40);
    let header = raw.header(dataset);
    let answer = raw.try_send(&header, &vec![many; 1000]).unwrap();
    assert_eq!(answer.refused, Some(ErrorKind::TooLarge));
}

/// By way of the node that leads, and of one that does not.
#[test]
fn a_dataset_that_asks_what_its_backend_does_not_do_is_refused() {
    let dir = tempfile::TempDir::new().unwrap();
    let flash = Some((dir.path().to_owned(), 1 << 20));
    let cluster = LocalCluster::start(2, LocalOptions { flash, ..LocalOptions::default() });
    let cluster = cluster.unwrap();
    let named = |backend: &str| DatasetSpec {
        backend: BackendSpec::named(backend),
        ..DatasetSpec::new("wanted")
    };
    let placed = BackendSpec { path: Some("/data".into()), ..BackendSpec::default() };
    let refused = [
        (named("tape"), ErrorKind::Invalid, "backend tape: not in this build"),
        (
            DatasetSpec { backend: placed, ..DatasetSpec::new("wanted") },
            ErrorKind::Invalid,
            "backend memory: takes no path",
        ),
        (
            DatasetSpec { durability: DurabilityKind::Logged, ..named(NULL_BACKEND) },
            ErrorKind::Invalid,
            "backend null: cannot be logged",
        ),
        (
            DatasetSpec { semantics: SemanticsKind::Checkpoint, ..named(MEMORY_BACKEND) },
            ErrorKind::Invalid,
            "semantics checkpoint",
        ),
    ];
    for node in [0, 1] {
        let mut raw = Raw::connect(&cluster, node, UNIX);
        for (spec, expected, words) in refused.clone() {
            match raw.control(&ControlRequest::CreateDataset(spec)) {
                ControlReply::Failed { kind, message } => {
                    assert_eq!(ErrorKind::from_code(kind), Some(expected), "{message}");
                    assert!(message.contains(words), "{message}");
                }
                other => panic!("{words}: {other:?}"),
            }
        }
        assert_eq!(
            raw.control(&ControlRequest::Map { known: raw.map.epoch() }),
            ControlReply::Map(None)
        );
        // What it can be is taken.
        let logged = DatasetSpec { durability: DurabilityKind::Logged, ..named(MEMORY_BACKEND) };
        let made = raw.control(&ControlRequest::CreateDataset(logged));
        assert!(matches!(made, ControlReply::Map(Some(_))), "{made:?}");
        raw.control(&ControlRequest::DropDataset { name: "wanted".into() });
        raw.create("null", NULL_BACKEND);
        raw.control(&ControlRequest::DropDataset { name: "null".into() });
    }
}

/// By a connection of a node of the cluster, on which a frame may come that no version has.
#[test]
fn frames_of_a_peer_service_that_is_not_there_end_the_connection() {
    let cluster = cluster(2, 2);
    let mut raw = Raw::connect(&cluster, 0, UNIX);
    let dataset = raw.create("d", MEMORY_BACKEND);
    let who = ConnectIdentity::node(&FaultSwitch::new(NodeId(1), None));
    let key = ClusterKey::new(*cluster.key());
    let frames: [(&[u8], &str); 5] = [
        (&[], "ends inside peer service"),
        (&[0], "peer service has an unknown value"),
        (&[2, 0, 0], "peer service has an unknown value"),
        (&[255; 40], "peer service has an unknown value"),
        (&[1, 9, 9], "ends inside message length"),
    ];
    for transport in [UNIX, TCP] {
        let address = cluster.addresses(NodeId(0))[transport].parse().unwrap();
        for (body, words) in frames {
            let link = NodeLink::connect_as(&address, &key, &who, deadline()).unwrap();
            let request = OutgoingRequest { kind: FrameKind::Peer, body, payload: &[] };
            let error = link.call(request, deadline(), |_| ()).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
            assert!(link.is_dead());
        }
    }
    // The node goes on.
    let p = raw.partition(0, 1);
    assert!(matches!(raw.one(dataset, Operation::put(p, b"k", b"v")), Ended::Done(_)));
    assert_eq!(raw.one(dataset, Operation::get(p, b"k")).value(), b"v");
}
