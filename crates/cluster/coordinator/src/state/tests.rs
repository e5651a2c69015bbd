use samite_types::TargetId;
use samite_wire::control::{
    BackendSpec, DatasetData, DatasetSpec, DurabilityKind, NULL_BACKEND, SemanticsKind, TargetInfo,
};

use samite_wire::membership::AdminRequest;

use super::before::{DatasetOfTwoBackends, OneOfTwoBackends, SpecOfTwoBackends};
use super::*;

fn info(incarnation: u64) -> NodeInfo {
    NodeInfo {
        node: NodeId(0),
        host: "h".into(),
        rack: String::new(),
        addresses: vec!["tcp://h:1".into()],
        incarnation,
        targets: vec![TargetInfo { target: TargetId(0), capacity_bytes: 1 << 30, storage: 0 }],
    }
}

/// A coordinator of one node, with datasets on both backends.
fn coordinator() -> Coordinator {
    let mut first = Coordinator::new("c", 1).unwrap().with_partitions(4).unwrap();
    first.join(info(1), Duration::ZERO).unwrap();
    first.create_dataset(DatasetSpec::new("d")).unwrap();
    let null = BackendSpec::named(NULL_BACKEND);
    first.create_dataset(DatasetSpec { backend: null, ..DatasetSpec::new("n") }).unwrap();
    first
}

fn before(dataset: &DatasetData) -> DatasetOfTwoBackends {
    let DatasetData { id, spec, wheel, .. } = dataset.clone();
    let is_null = spec.backend.name == NULL_BACKEND;
    let backend = if is_null { OneOfTwoBackends::Null } else { OneOfTwoBackends::Memory };
    let spec = SpecOfTwoBackends {
        name: spec.name,
        backend,
        distribution: spec.distribution,
        semantics: spec.semantics,
        chunk_len: spec.chunk_len,
        redundancy: spec.redundancy,
        durability: spec.durability,
        reads: spec.reads,
        access: spec.access,
    };
    DatasetOfTwoBackends { id, spec, wheel }
}

/// The state as an older version would have saved it, with the map that `map_of` makes.
fn saved_before<Map: Serialize>(
    first: &Coordinator,
    version: u32,
    map_of: impl FnOnce(MapWithoutLosses) -> Map,
) -> Vec<u8> {
    let now = decode(&first.export()).unwrap().saved;
    let map = first.map().unwrap().data().clone();
    let map = MapWithoutLosses {
        datasets: map.datasets.iter().map(before).collect(),
        cluster: map.cluster,
        epoch: map.epoch,
        nodes: map.nodes,
        states: map.states,
        tables: map.tables,
    };
    control::encode(&SavedState {
        version,
        map: Some(map_of(map)),
        cluster: now.cluster,
        expected: now.expected,
        partitions: now.partitions,
        first_epoch: now.first_epoch,
        next_dataset: now.next_dataset,
        joined: now.joined,
        invited: now.invited,
        goals: now.goals,
    })
}

fn take_over(state: &[u8]) -> Coordinator {
    Coordinator::take_over(state, ClusterTiming::DEFAULT, Duration::ZERO).unwrap()
}

#[test]
fn a_state_of_before_there_were_losses_is_taken_over() {
    let first = coordinator();
    let old = saved_before(&first, VERSION_WITHOUT_LOSSES, |map| map);
    let mut second = take_over(&old);
    assert_eq!(second.map().unwrap().data(), first.map().unwrap().data());
    // A later loss outlives the next one.
    second.join(info(2), Duration::from_secs(9)).unwrap();
    let third = take_over(&second.export());
    let losses = third.map().unwrap().losses_known();
    assert_eq!((losses[0].partitions, losses[0].of), (4, 4));
}

#[test]
fn a_state_in_which_nobody_is_held_back_is_taken_over() {
    let mut first = coordinator();
    first.admin_request(NodeId(1), AdminRequest::Add).unwrap();
    let mut saved = decode(&first.export()).unwrap().saved;
    saved.version = VERSION_WITHOUT_HELD_BACK;
    let mut second = take_over(&control::encode(&saved));
    assert_eq!(second.export(), first.export());
    let mut info = NodeInfo { node: NodeId(1), ..info(1) };
    info.targets[0].target = TargetId(1);
    let map = second.join(info, Duration::ZERO).unwrap().unwrap();
    assert!(!map.state(NodeId(1)).unwrap().is_draining);
}

#[test]
fn a_state_of_two_backends_is_taken_over_with_its_losses() {
    let mut first = coordinator();
    first.join(info(2), Duration::from_secs(9)).unwrap();
    let losses = first.map().unwrap().data().losses.clone();
    assert!(!losses.is_empty());
    let old =
        saved_before(&first, VERSION_WITH_TWO_BACKENDS, |map| MapWithTwoBackends { map, losses });
    assert_eq!(take_over(&old).map().unwrap().data(), first.map().unwrap().data());
}

#[test]
fn what_never_held_of_a_saved_dataset_is_not_told_any_more() {
    let first = coordinator();
    let old = saved_before(&first, VERSION_WITH_TWO_BACKENDS, |mut map| {
        for dataset in &mut map.datasets {
            dataset.spec.durability = DurabilityKind::Logged;
            dataset.spec.semantics = SemanticsKind::Checkpoint;
        }
        MapWithTwoBackends { map, losses: Vec::new() }
    });
    let second = take_over(&old);
    let told = |name| {
        let spec = &second.map().unwrap().dataset(name).unwrap().spec;
        (spec.durability, spec.semantics)
    };
    assert_eq!(told("d"), (DurabilityKind::Logged, SemanticsKind::Posix));
    assert_eq!(told("n"), (DurabilityKind::Memory, SemanticsKind::Posix));
}
