//! The coordinator against a reference model, and its refusals one by one.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use samite_types::{Epoch, ErrorKind, NodeId, Redundancy, TargetId};
use samite_wire::control::{
    BackendSpec, DatasetSpec, DistributionKind, NodeInfo, SemanticsKind, TargetInfo,
};

use super::{Coordinator, primaries};

mod cluster;
mod failover;
mod freezes;
mod histories;
mod moves;
mod scale;

const NOW: Duration = Duration::ZERO;

fn node(id: u32, address: &str) -> NodeInfo {
    NodeInfo {
        node: NodeId(id),
        host: "host".into(),
        rack: String::new(),
        addresses: vec![address.into()],
        incarnation: 1,
        targets: vec![TargetInfo { target: TargetId(id), capacity_bytes: 1 << 30, storage: 0 }],
    }
}

fn spec(name: &str) -> DatasetSpec {
    DatasetSpec::new(name)
}

fn complete(nodes: u32) -> Coordinator {
    let mut coordinator = Coordinator::new("c", nodes as usize).unwrap();
    for id in 0..nodes {
        coordinator.join(node(id, "tcp://h:1"), NOW).unwrap();
    }
    coordinator
}

#[test]
fn the_map_is_made_when_the_last_node_joins() {
    let mut coordinator = Coordinator::new("c", 2).unwrap();
    assert!(coordinator.join(node(1, "tcp://h:1"), NOW).unwrap().is_none());
    assert_eq!(coordinator.ready_map().unwrap_err().kind(), ErrorKind::Unavailable);
    let early = coordinator.create_dataset(spec("d")).unwrap_err();
    assert_eq!(early.kind(), ErrorKind::Unavailable);
    let map = coordinator.join(node(0, "tcp://h:0"), NOW).unwrap().unwrap();
    assert_eq!(map.epoch(), Epoch(1));
    let held = primaries(map.data(), Redundancy(1))
        .iter()
        .filter(|target| **target == TargetId(0))
        .count();
    assert_eq!(held as u32 * 2, map.partitions());
    let third = coordinator.join(node(2, "tcp://h:2"), NOW).unwrap_err();
    assert_eq!(third.kind(), ErrorKind::Exists);
}

#[test]
fn a_successor_gives_out_nothing_that_was_given_out_before() {
    let mut first = complete(1);
    let old = first.create_dataset(spec("a")).unwrap();
    let mut second = Coordinator::new("c", 1).unwrap().starting_at(1000);
    let fresh = second.join(node(0, "tcp://h:1"), NOW).unwrap().unwrap();
    assert!(fresh.replaces(&old).unwrap());
    let made = second.create_dataset(spec("a")).unwrap();
    assert_eq!(made.epoch(), Epoch(1001));
    assert!(made.dataset("a").unwrap().id > old.dataset("a").unwrap().id);
}

#[test]
fn a_rejoin_changes_the_address_and_nothing_else() {
    let mut coordinator = complete(2);
    let before = coordinator.map().unwrap().clone();
    let same = coordinator.join(node(1, "tcp://h:1"), NOW).unwrap().unwrap();
    assert_eq!(same.epoch(), before.epoch());
    let moved = coordinator.join(node(1, "tcp://h:9"), NOW).unwrap().unwrap();
    assert_eq!(moved.epoch(), Epoch(2));
    assert_eq!(moved.node(NodeId(1)).unwrap().addresses, ["tcp://h:9"]);
    assert_eq!(moved.data().tables, before.data().tables);
}

#[test]
fn unlawful_nodes_are_refused_and_leave_no_trace() {
    let mut coordinator = complete(2);
    let before = coordinator.map().unwrap().clone();
    let mut foreign = node(1, "tcp://h:1");
    foreign.targets[0].target = TargetId(0);
    let mut grown = node(1, "tcp://h:1");
    grown.targets.push(TargetInfo { target: TargetId(7), capacity_bytes: 1, storage: 0 });
    let mut mute = node(1, "tcp://h:1");
    mute.addresses.clear();
    for bad in [foreign, grown, mute] {
        assert_eq!(coordinator.join(bad, NOW).unwrap_err().kind(), ErrorKind::Invalid);
    }
    assert_eq!(coordinator.map().unwrap().data(), before.data());

    let mut young = Coordinator::new("c", 1).unwrap();
    let mut empty = node(0, "tcp://h:0");
    empty.targets[0].capacity_bytes = 0;
    assert_eq!(young.join(empty, NOW).unwrap_err().kind(), ErrorKind::Invalid);
    assert!(young.join(node(5, "tcp://h:5"), NOW).unwrap().is_some());
}

#[test]
fn unlawful_datasets_are_refused() {
    let mut coordinator = complete(2);
    let weighted = |weights: &[(u32, u32)]| DatasetSpec {
        distribution: DistributionKind::Weighted(
            weights.iter().map(|(target, weight)| (TargetId(*target), *weight)).collect(),
        ),
        ..spec("w")
    };
    let on = |name: &str, path: Option<&str>| {
        let backend = BackendSpec { name: name.into(), path: path.map(str::to_owned) };
        DatasetSpec { backend, ..spec("d") }
    };
    let bad = [
        on("", None),
        on(".lmdb", None),
        on("a/b", None),
        on(&"n".repeat(33), None),
        on("lmdb", Some("")),
        on("lmdb", Some("data")),
        on("lmdb", Some("/data/../etc")),
        on("lmdb", Some("/..")),
        on("lmdb", Some("/a\0b")),
        on("lmdb", Some(&format!("/{}", "d".repeat(1024)))),
        DatasetSpec { semantics: SemanticsKind::Checkpoint, ..spec("d") },
        spec(""),
        spec(".hidden"),
        spec("a/b"),
        spec(&"n".repeat(256)),
        DatasetSpec { chunk_len: 32 << 10, ..spec("d") },
        DatasetSpec { chunk_len: 2 << 20, ..spec("d") },
        DatasetSpec { chunk_len: 96 << 10, ..spec("d") },
        weighted(&[]),
        weighted(&[(0, 0)]),
        weighted(&[(0, 1), (0, 2)]),
        weighted(&[(9, 1)]),
        weighted(&[(0, 1), (1, u32::MAX)]),
    ];
    for spec in bad {
        let error = coordinator.create_dataset(spec.clone()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{spec:?}");
    }
    assert_eq!(coordinator.map().unwrap().epoch(), Epoch(1));
    coordinator.create_dataset(weighted(&[(0, 3), (1, 1)])).unwrap();
    let longest = on(&"n".repeat(32), Some(&format!("/{}", "d".repeat(1023))));
    coordinator.create_dataset(longest).unwrap();
    assert_eq!(coordinator.map().unwrap().datasets().len(), 2);
    // Another place is another policy.
    let error = coordinator.create_dataset(on("n", Some("/else"))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exists);
}

#[derive(Clone, Debug)]
enum Step {
    Join(u32, u8),
    Create(u8, bool),
    Drop(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..4u32, 0..2u8).prop_map(|(id, address)| Step::Join(id, address)),
        (0..4u8, any::<bool>()).prop_map(|(name, large)| Step::Create(name, large)),
        (0..4u8).prop_map(Step::Drop),
    ]
}

/// The expected state of the coordinator: addresses by node, chunk length by dataset name, ids
/// never used twice.
#[derive(Default)]
struct Model {
    nodes: BTreeMap<u32, u8>,
    datasets: BTreeMap<u8, u32>,
    epoch: u64,
}

const EXPECTED: usize = 3;

impl Model {
    fn apply(&mut self, step: &Step) -> Result<(), ErrorKind> {
        let complete = self.nodes.len() == EXPECTED;
        match *step {
            Step::Join(id, address) => {
                if complete && !self.nodes.contains_key(&id) {
                    return Err(ErrorKind::Exists);
                }
                let before = self.nodes.insert(id, address);
                let founded = !complete && self.nodes.len() == EXPECTED;
                if founded || (complete && before != Some(address)) {
                    self.epoch += 1;
                }
            }
            _ if !complete => return Err(ErrorKind::Unavailable),
            Step::Create(name, large) => {
                let len = if large { 1 << 20 } else { 1 << 16 };
                match self.datasets.get(&name) {
                    Some(present) if *present == len => {}
                    Some(_) => return Err(ErrorKind::Exists),
                    None => {
                        self.datasets.insert(name, len);
                        self.epoch += 1;
                    }
                }
            }
            Step::Drop(name) => {
                self.datasets.remove(&name).ok_or(ErrorKind::NotFound)?;
                self.epoch += 1;
            }
        }
        Ok(())
    }
}

fn apply(coordinator: &mut Coordinator, step: &Step) -> Result<(), ErrorKind> {
    match *step {
        Step::Join(id, address) => {
            coordinator.join(node(id, &format!("tcp://h:{address}")), NOW).map(drop)
        }
        Step::Create(name, large) => {
            let chunk_len = if large { 1 << 20 } else { 1 << 16 };
            let spec = DatasetSpec { chunk_len, ..spec(&format!("d{name}")) };
            coordinator.create_dataset(spec).map(drop)
        }
        Step::Drop(name) => coordinator.drop_dataset(&format!("d{name}")).map(drop),
    }
    .map_err(|error| error.kind())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn agrees_with_the_model(steps in prop::collection::vec(step(), 1..60)) {
        let mut coordinator = Coordinator::new("c", EXPECTED).unwrap();
        let mut model = Model::default();
        let mut last_id = 0;
        for step in &steps {
            let before = coordinator.map().cloned();
            prop_assert_eq!(apply(&mut coordinator, step), model.apply(step), "{:?}", step);
            let Some(map) = coordinator.map() else {
                prop_assert_eq!(model.epoch, 0);
                continue;
            };
            prop_assert_eq!(map.epoch(), Epoch(model.epoch));
            let datasets: BTreeMap<String, u32> = map
                .datasets()
                .iter()
                .map(|dataset| (dataset.spec.name.clone(), dataset.spec.chunk_len))
                .collect();
            let expected: BTreeMap<String, u32> =
                model.datasets.iter().map(|(name, len)| (format!("d{name}"), *len)).collect();
            prop_assert_eq!(datasets, expected);
            for (id, address) in &model.nodes {
                let info = map.node(NodeId(*id)).unwrap();
                prop_assert_eq!(&info.addresses[0], &format!("tcp://h:{address}"));
            }
            if let Some(before) = before {
                prop_assert_eq!(&before.data().tables, &map.data().tables);
                for dataset in map.datasets() {
                    if before.dataset_by_id(dataset.id).is_none() {
                        prop_assert!(dataset.id.get() > last_id, "id used again");
                        last_id = dataset.id.get();
                    }
                }
            }
        }
    }
}
