//! Properties of mirror groups.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use samite_types::{NodeId, Redundancy, TargetId};

use crate::{PlacementTarget, arrange, partitions_for};

fn place(id: u32) -> PlacementTarget {
    PlacementTarget {
        target: TargetId(id),
        node: NodeId(id),
        host: "h".into(),
        rack: String::new(),
        weight: 1 << 30,
        is_open: true,
    }
}

fn places(ids: impl IntoIterator<Item = u32>) -> Vec<PlacementTarget> {
    ids.into_iter().map(place).collect()
}

type Groups = Vec<Vec<TargetId>>;

fn fresh(nodes: u32, redundancy: u8) -> Groups {
    let nothing = vec![Vec::new(); partitions_for(nodes as usize) as usize];
    arrange(&nothing, Redundancy(redundancy), &places(0..nodes)).unwrap()
}

fn spread(counts: impl Iterator<Item = usize>) -> (usize, usize) {
    let counts: Vec<usize> = counts.collect();
    (counts.iter().copied().min().unwrap_or(0), counts.iter().copied().max().unwrap_or(0))
}

struct GroupBalance {
    primaries: (usize, usize),
    members: (usize, usize),
    /// Over all targets: fewest and most groups of which it is primary that one other target follows.
    followers: (usize, usize),
    beside: (usize, usize),
}

fn balance(groups: &Groups, ids: &[u32]) -> GroupBalance {
    let mut primaries: BTreeMap<TargetId, usize> = BTreeMap::new();
    let mut members: BTreeMap<TargetId, usize> = BTreeMap::new();
    let mut followers: BTreeMap<(TargetId, TargetId), usize> = BTreeMap::new();
    let mut beside: BTreeMap<(TargetId, TargetId), usize> = BTreeMap::new();
    for group in groups {
        *primaries.entry(group[0]).or_default() += 1;
        for a in group {
            *members.entry(*a).or_default() += 1;
            for b in group.iter().filter(|b| *b != a) {
                *beside.entry((*a, *b)).or_default() += 1;
                if *a == group[0] {
                    *followers.entry((*a, *b)).or_default() += 1;
                }
            }
        }
    }
    let each = |map: &BTreeMap<TargetId, usize>| {
        spread(ids.iter().map(|id| map.get(&TargetId(*id)).copied().unwrap_or(0)))
    };
    let pairs = |map: &BTreeMap<(TargetId, TargetId), usize>| {
        spread(
            ids.iter()
                .flat_map(|a| ids.iter().map(move |b| (a, b)))
                .filter(|(a, b)| a != b)
                .map(|(a, b)| map.get(&(TargetId(*a), TargetId(*b))).copied().unwrap_or(0)),
        )
    };
    GroupBalance {
        primaries: each(&primaries),
        members: each(&members),
        followers: pairs(&followers),
        beside: pairs(&beside),
    }
}

fn moved(before: &Groups, after: &Groups) -> usize {
    let new = |(old, new): (&Vec<TargetId>, &Vec<TargetId>)| {
        new.iter().filter(|target| !old.contains(target)).count()
    };
    before.iter().zip(after).map(new).sum()
}

fn range((fewest, most): (usize, usize)) -> usize {
    most - fewest
}

fn check_lawful(groups: &Groups, redundancy: u8, ids: &[u32]) {
    for group in groups {
        assert_eq!(group.len(), usize::from(redundancy).min(ids.len()));
        let distinct: BTreeSet<&TargetId> = group.iter().collect();
        assert_eq!(distinct.len(), group.len());
        assert!(group.iter().all(|target| ids.contains(&target.get())));
    }
}

#[test]
fn new_groups_are_even_in_every_way() {
    for redundancy in 2..=3u8 {
        for nodes in [3, 4, 5, 7, 8, 12, 16, 31, 64] {
            let groups = fresh(nodes, redundancy);
            let ids: Vec<u32> = (0..nodes).collect();
            check_lawful(&groups, redundancy, &ids);
            let balance = balance(&groups, &ids);
            let name = format!("x{redundancy}, {nodes} nodes");
            assert!(range(balance.primaries) <= 1, "{name}: primaries {:?}", balance.primaries);
            assert!(range(balance.members) <= 1, "{name}: members {:?}", balance.members);
            assert!(range(balance.followers) <= 2, "{name}: followers {:?}", balance.followers);
            assert!(range(balance.beside) <= 2, "{name}: neighbours {:?}", balance.beside);
        }
    }
}

#[test]
fn unmirrored_groups_are_placed_as_by_assign() {
    let equal: Vec<_> = (0..5).map(|id| (TargetId(id), 1 << 30)).collect();
    let plain = crate::assign(128, &equal).unwrap();
    let firsts: Vec<TargetId> = fresh(5, 1).into_iter().map(|group| group[0]).collect();
    assert_eq!(firsts, plain);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_new_node_takes_its_share_and_nothing_else_moves(nodes in 3..24u32, redundancy in 1..4u8) {
        let before = fresh(nodes, redundancy);
        let after = arrange(&before, Redundancy(redundancy), &places(0..=nodes)).unwrap();
        let share = after.iter().filter(|group| group.contains(&TargetId(nodes))).count();
        prop_assert_eq!(moved(&before, &after), share);
        prop_assert!(share <= (before.len() * usize::from(redundancy)).div_ceil(nodes as usize + 1));
    }

    #[test]
    fn what_a_lost_node_held_moves_to_all_others(nodes in 5..24u32, redundancy in 1..4u8, pick in any::<u32>()) {
        let lost = pick % nodes;
        let before = fresh(nodes, redundancy);
        let left: Vec<u32> = (0..nodes).filter(|id| *id != lost).collect();
        let after = arrange(&before, Redundancy(redundancy), &places(left.iter().copied())).unwrap();
        let held = before.iter().filter(|group| group.contains(&TargetId(lost))).count();
        let moves = moved(&before, &after);
        prop_assert!((held..=held + 2).contains(&moves), "{moves} for {held}");
        let gained = spread(left.iter().map(|id| {
            let id = TargetId(*id);
            before.iter().zip(&after).filter(|(old, new)| !old.contains(&id) && new.contains(&id)).count()
        }));
        prop_assert!(range(gained) <= 2, "{:?}", gained);
    }

    #[test]
    fn balance_survives_any_history(
        redundancy in 1..4u8,
        steps in prop::collection::vec((0..10u32, any::<bool>()), 1..20),
    ) {
        let mut ids = vec![20, 21, 22];
        let nothing = vec![Vec::new(); 256];
        let mut groups = arrange(&nothing, Redundancy(redundancy), &places(ids.clone())).unwrap();
        for (id, join) in steps {
            ids.retain(|present| *present != id);
            if join {
                ids.push(id);
            }
            groups = arrange(&groups, Redundancy(redundancy), &places(ids.clone())).unwrap();
            check_lawful(&groups, redundancy, &ids);
            let balance = balance(&groups, &ids);
            prop_assert!(range(balance.primaries) <= 1, "primaries {:?}", balance.primaries);
            prop_assert!(range(balance.members) <= 1, "members {:?}", balance.members);
            if redundancy == 2 {
                let even = 256 / (ids.len() * (ids.len() - 1));
                let most = even + 2 + even / 10;
                prop_assert!(balance.followers.1 <= most, "{:?}, even {}", balance.followers, even);
            }
            let again = arrange(&groups, Redundancy(redundancy), &places(ids.clone())).unwrap();
            prop_assert!(again == groups, "what is even stays as it is");
        }
    }

    #[test]
    fn hosts_are_kept_apart_and_weights_kept(
        hosts in 2..5u32,
        each in 1..4u32,
        heavy in 1..3u64,
        redundancy in 2..3u8,
    ) {
        let mut places = places(0..hosts * each);
        for place in &mut places {
            place.host = format!("h{}", place.node.get() % hosts);
            place.weight *= if place.node.get() / hosts == 0 { heavy } else { 1 };
        }
        let groups = arrange(&vec![Vec::new(); 512], Redundancy(redundancy), &places).unwrap();
        let total: u64 = places.iter().map(|place| place.weight).sum();
        for place in &places {
            let held = groups.iter().filter(|group| group.contains(&place.target)).count();
            let exact = 1024.0 * place.weight as f64 / total as f64;
            prop_assert!((held as f64 - exact).abs() <= 2.0, "{held} for {exact}");
        }
        for group in &groups {
            prop_assert!(group[0].get() % hosts != group[1].get() % hosts, "{group:?}");
        }
    }

    #[test]
    fn hosts_and_racks_are_kept_apart_however_uneven_they_are(
        racks in 1..5u32,
        // The rack of each host, and its nodes with their weights.
        hosts in proptest::collection::vec((0..5u32, proptest::collection::vec(1..9u64, 1..4)), 2..7),
        redundancy in 2..4u8,
        gone in any::<proptest::sample::Index>(),
    ) {
        let mut places = Vec::new();
        for ((rack, weights), host) in hosts.iter().zip(0..) {
            for weight in weights {
                let mut new = place(places.len() as u32);
                (new.host, new.rack) = (format!("h{host}"), format!("r{}", rack % racks));
                new.weight *= *weight;
                places.push(new);
            }
        }
        let nothing = vec![Vec::new(); 128];
        let groups = arrange(&nothing, Redundancy(redundancy), &places).unwrap();
        check_apart(&groups, redundancy, &places);
        // And when a node goes, and comes back.
        let lost = places.remove(gone.index(places.len()));
        prop_assume!(!places.is_empty());
        let less = arrange(&groups, Redundancy(redundancy), &places).unwrap();
        check_apart(&less, redundancy, &places);
        places.push(lost);
        let again = arrange(&less, Redundancy(redundancy), &places).unwrap();
        check_apart(&again, redundancy, &places);
    }
}

/// Members of a group are on as many hosts as can be, and in different racks if there are enough.
fn check_apart(groups: &Groups, redundancy: u8, places: &[PlacementTarget]) {
    let of = |target: &TargetId| places.iter().find(|place| place.target == *target).unwrap();
    let racks: BTreeSet<&str> = places.iter().map(|place| &*place.rack).collect();
    let hosts: BTreeSet<&str> = places.iter().map(|place| &*place.host).collect();
    for group in groups {
        let on: BTreeSet<&str> = group.iter().map(|target| &*of(target).host).collect();
        let within: BTreeSet<&str> = group.iter().map(|target| &*of(target).rack).collect();
        let wanted = hosts.len().min(usize::from(redundancy));
        assert_eq!(on.len(), wanted, "{group:?} of {places:?}");
        if racks.len() >= usize::from(redundancy) {
            assert_eq!(within.len(), usize::from(redundancy), "{group:?} of {places:?}");
        }
    }
}

#[test]
fn a_closed_target_keeps_what_it_has_and_gets_no_more() {
    let before = fresh(4, 2);
    let mut places = places([0, 1, 2]);
    places[1].is_open = false;
    let after = arrange(&before, Redundancy(2), &places).unwrap();
    check_lawful(&after, 2, &[0, 1, 2]);
    for (old, new) in before.iter().zip(&after) {
        assert_eq!(old.contains(&TargetId(1)), new.contains(&TargetId(1)));
    }
}

#[test]
fn several_targets_of_a_node_are_never_in_one_group() {
    let mut places = places(0..6);
    for place in &mut places {
        place.node = NodeId(place.target.get() / 2);
    }
    let groups = arrange(&vec![Vec::new(); 128], Redundancy(3), &places).unwrap();
    for group in groups {
        let nodes: BTreeSet<u32> = group.iter().map(|target| target.get() / 2).collect();
        assert_eq!(nodes.len(), 3);
    }
}

#[test]
fn too_few_nodes_make_smaller_groups_and_none_is_an_error() {
    let groups = arrange(&vec![Vec::new(); 64], Redundancy(3), &places(0..2)).unwrap();
    check_lawful(&groups, 3, &[0, 1]);
    assert!(arrange(&groups, Redundancy(2), &[]).is_err());
    assert!(arrange(&groups, Redundancy(2), &places([1, 1])).is_err());
    let closed = PlacementTarget { is_open: false, ..place(1) };
    assert!(arrange(&groups, Redundancy(2), &[closed]).is_err());
}
