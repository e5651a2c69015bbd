//! Properties of changes between maps: they lead where they say, or nowhere.

use proptest::prelude::*;
use samite_types::{DatasetId, Epoch, NodeId, Redundancy, TargetId, Term};
use samite_wire::control::{
    ClusterMapData, ControlReply, DistributionKind, GroupMember, MemberConsistency, MirrorGroup,
    NodeReachability, PartitionTable, decode, encode,
};
use samite_wire::delta::MapDelta;

use super::{dataset, map_data};
use crate::{ClusterMap, MapHistory};

/// One change of a map.
#[derive(Clone, Debug)]
enum Change {
    Reach(usize, bool),
    Restart(usize),
    AddNode,
    RemoveNode(usize),
    Group(usize, u32, bool),
    Table,
    AddDataset,
    DropDataset(usize),
}

fn changes() -> impl Strategy<Value = Change> {
    prop_oneof![
        2 => (any::<usize>(), any::<bool>()).prop_map(|(at, is_there)| Change::Reach(at, is_there)),
        1 => any::<usize>().prop_map(Change::Restart),
        1 => Just(Change::AddNode),
        1 => any::<usize>().prop_map(Change::RemoveNode),
        4 => (any::<usize>(), any::<u32>(), any::<bool>())
            .prop_map(|(at, with, is_good)| Change::Group(at, with, is_good)),
        1 => Just(Change::Table),
        1 => Just(Change::AddDataset),
        1 => any::<usize>().prop_map(Change::DropDataset),
    ]
}

fn mutate(data: &mut ClusterMapData, change: &Change) {
    let nodes = data.nodes.len();
    match change {
        Change::Reach(at, is_there) => {
            let seen = if *is_there { NodeReachability::Online } else { NodeReachability::Offline };
            data.states[at % nodes].reachability = seen;
        }
        Change::Restart(at) => data.nodes[at % nodes].incarnation += 1,
        Change::AddNode => {
            let next = data.nodes[nodes - 1].node.get() + 1;
            let mut info = map_data(next + 1).nodes.pop().unwrap();
            info.incarnation = 7;
            data.nodes.push(info);
            data.states.push(data.states[0]);
        }
        Change::RemoveNode(at) => {
            let target = data.nodes[at % nodes].targets[0].target;
            let mut groups = data.tables.iter().flat_map(|table| &table.groups);
            if !groups.any(|group| group.members.iter().any(|member| member.target == target)) {
                data.nodes.remove(at % nodes);
                data.states.remove(at % nodes);
            }
        }
        Change::Group(at, with, is_good) => {
            let target = data.nodes[*with as usize % nodes].targets[0].target;
            let consistency =
                if *is_good { MemberConsistency::Good } else { MemberConsistency::NeedsResync };
            let tables = data.tables.len();
            let groups = &mut data.tables[at % tables].groups;
            let count = groups.len();
            let group = &mut groups[at / tables % count];
            group.term = Term(group.term.get() + 1);
            match group.members.iter().position(|member| member.target == target) {
                Some(at) => group.members[at].consistency = consistency,
                None if group.members.len() < 3 => {
                    group.members.push(GroupMember { target, consistency });
                }
                None => group.members[0].target = target,
            }
        }
        Change::Table => {
            let redundancy = Redundancy(data.tables.len() as u8 + 1);
            if redundancy <= Redundancy(3) {
                let groups = data.tables[0].groups.clone();
                data.tables.push(PartitionTable { redundancy, groups });
            }
        }
        Change::AddDataset => {
            let id = data.datasets.last().map_or(1, |last| last.id.get() + 1);
            data.datasets.push(dataset(id, DistributionKind::Single, Vec::new()));
        }
        Change::DropDataset(at) if !data.datasets.is_empty() => {
            let count = data.datasets.len();
            data.datasets.remove(at % count);
        }
        Change::DropDataset(_) => {}
    }
}

/// Maps one after the other: some changes lead from each to the next.
fn histories() -> impl Strategy<Value = Vec<ClusterMap>> {
    let steps = prop::collection::vec(prop::collection::vec(changes(), 0..6), 1..12);
    (2..6u32, steps).prop_map(|(nodes, steps)| {
        let mut data = map_data(nodes);
        let mut maps = vec![ClusterMap::new(data.clone()).unwrap()];
        for step in steps {
            step.iter().for_each(|change| mutate(&mut data, change));
            data.epoch = Epoch(data.epoch.get() + 1);
            maps.push(ClusterMap::new(data.clone()).unwrap());
        }
        maps
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn what_changed_leads_to_the_later_map(maps in histories()) {
        let mut history = MapHistory::default();
        for pair in maps.windows(2) {
            history.note(Some(&pair[0]), &pair[1]);
        }
        for (index, before) in maps.iter().enumerate() {
            for after in &maps[index + 1..] {
                let direct = after.changes_since(before).unwrap();
                let led = before.with(&direct).unwrap();
                prop_assert_eq!(led.data(), after.data());
                // By way of all between.
                let remembered = history.since(before.epoch(), after.epoch()).unwrap();
                let led = before.with(&remembered).unwrap();
                prop_assert_eq!(led.data(), after.data());
                // It says enough for a caller with a map between the two.
                for between in &maps[index..] {
                    if between.epoch() < after.epoch() {
                        let led = between.with(&remembered).unwrap();
                        prop_assert_eq!(led.data(), after.data());
                    }
                }
                let reply = ControlReply::MapDelta(remembered);
                prop_assert_eq!(decode(&encode(&reply)), Ok(reply));
            }
            prop_assert!(before.changes_since(before).is_none());
            prop_assert!(history.since(before.epoch(), before.epoch()).is_none());
        }
        prop_assert!(history.since(Epoch(0), maps.last().unwrap().epoch()).is_none());
    }

    #[test]
    fn a_bent_change_is_refused(
        maps in histories(),
        at in any::<prop::sample::Index>(),
        with in any::<u8>(),
    ) {
        let (before, after) = (&maps[0], maps.last().unwrap());
        let mut raw = encode(&after.changes_since(before).unwrap());
        let at = at.index(raw.len());
        raw[at] ^= with;
        let Ok(bent) = decode::<MapDelta>(&raw) else { return Ok(()) };
        if let Ok(led) = before.with(&bent) {
            prop_assert_eq!(led.data(), after.data());
        }
    }
}

#[test]
fn a_history_ends_where_it_does_not_fit_together() {
    let at = |epoch: u64| {
        let mut data = map_data(3);
        data.epoch = Epoch(epoch);
        data.nodes[0].incarnation = epoch;
        ClusterMap::new(data).unwrap()
    };
    let mut history = MapHistory::default();
    history.note(None, &at(1));
    history.note(Some(&at(1)), &at(2));
    assert!(history.since(Epoch(1), Epoch(2)).is_some());
    // Something is missing between.
    history.note(Some(&at(5)), &at(6));
    assert!(history.since(Epoch(1), Epoch(6)).is_none());
    assert!(history.since(Epoch(5), Epoch(6)).is_some());
    // The added diff overlaps the known ones.
    history.add(at(8).changes_since(&at(5)).unwrap());
    let delta = history.since(Epoch(5), Epoch(8)).unwrap();
    assert_eq!(at(5).with(&delta).unwrap().data(), at(8).data());
    // Bounded, however many there are.
    for epoch in 8..2000 {
        history.note(Some(&at(epoch)), &at(epoch + 1));
    }
    assert!(history.since(Epoch(8), Epoch(2000)).is_none());
    assert!(history.since(Epoch(1990), Epoch(2000)).is_some());
    // A change says nothing of another cluster, nor of another place in time.
    let mut other = at(9).data().clone();
    other.cluster = "other".into();
    assert!(ClusterMap::new(other).unwrap().changes_since(&at(8)).is_none());
    let delta = at(9).changes_since(&at(8)).unwrap();
    assert!(at(9).with(&delta).is_err() && at(7).with(&delta).is_err());
    assert_eq!(at(8).with(&delta).unwrap().node(NodeId(0)).unwrap().incarnation, 9);
}

#[test]
fn a_change_is_small_where_the_map_is_large() {
    let mut data = map_data(512);
    let before = ClusterMap::new(data.clone()).unwrap();
    data.epoch = Epoch(2);
    data.tables[0].groups[77] = MirrorGroup {
        term: Term(1),
        members: vec![GroupMember { target: TargetId(3), consistency: MemberConsistency::Good }],
    };
    data.datasets.push(dataset(DatasetId(1).get(), DistributionKind::RoundRobin, Vec::new()));
    let after = ClusterMap::new(data).unwrap();
    let delta = encode(&after.changes_since(&before).unwrap());
    let whole = encode(after.data());
    assert!(delta.len() < 100 && whole.len() > 40_000, "{} of {}", delta.len(), whole.len());
}
