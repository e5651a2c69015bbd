//! The lock table against a map from byte to holders: random requests of a few owners on a few
//! bytes.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use samite_filelock::{LockClaim, LockFile, LockTable, LockVerdict, WaitId};
use samite_types::{ClientId, DatasetId, PartitionId};
use samite_wire::lock::{
    LOCK_LAST, LockFound, LockHolder, LockMode, LockOwner, LockRange, LockSpace,
};

/// Bytes of the model; the last one stands for everything from there on.
const BYTES: u64 = 12;

#[derive(Clone, Debug)]
enum Op {
    Take { space: LockSpace, owner: LockOwner, range: LockRange, mode: LockMode, waits: bool },
    Release { space: LockSpace, owner: LockOwner, range: LockRange },
    Test { space: LockSpace, owner: LockOwner, range: LockRange, mode: LockMode },
    Cancel { wait: WaitId },
    Gone { client: ClientId },
}

fn owner() -> impl Strategy<Value = LockOwner> {
    (0..3_u64, 0..2_u64).prop_map(|(client, token)| LockOwner { client: ClientId(client), token })
}

fn range() -> impl Strategy<Value = LockRange> {
    (0..BYTES, 0..BYTES).prop_map(|(a, b)| {
        let (start, last) = (a.min(b), a.max(b));
        LockRange { start, last: if last == BYTES - 1 { LOCK_LAST } else { last } }
    })
}

fn mode() -> impl Strategy<Value = LockMode> {
    prop_oneof![Just(LockMode::Shared), Just(LockMode::Exclusive)]
}

/// `flock` has no ranges.
fn placed() -> impl Strategy<Value = (LockSpace, LockRange)> {
    prop_oneof![
        4 => range().prop_map(|range| (LockSpace::Ranges, range)),
        1 => Just((LockSpace::Whole, LockRange::WHOLE)),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (placed(), owner(), mode(), any::<bool>()).prop_map(
            |((space, range), owner, mode, waits)| Op::Take { space, owner, range, mode, waits }
        ),
        4 => (placed(), owner()).prop_map(|((space, range), owner)| Op::Release { space, owner, range }),
        1 => (placed(), owner(), mode())
            .prop_map(|((space, range), owner, mode)| Op::Test { space, owner, range, mode }),
        1 => (0..60_u64).prop_map(|wait| Op::Cancel { wait }),
        1 => (0..3_u64).prop_map(|client| Op::Gone { client: ClientId(client) }),
    ]
}

fn file(space: LockSpace) -> LockFile {
    LockFile { dataset: DatasetId(1), partition: PartitionId(3), object: 7, space }
}

#[derive(Clone, Debug)]
struct Wait {
    id: WaitId,
    space: LockSpace,
    owner: LockOwner,
    range: LockRange,
    mode: LockMode,
}

/// Every byte, its holders and their modes.
#[derive(Default)]
struct Model {
    bytes: BTreeMap<(LockSpace, u64), BTreeMap<LockOwner, LockMode>>,
    waits: Vec<Wait>,
}

fn cells(range: LockRange) -> impl Iterator<Item = u64> {
    range.start..=range.last.min(BYTES - 1)
}

impl Model {
    fn set(
        &mut self,
        space: LockSpace,
        owner: LockOwner,
        range: LockRange,
        mode: Option<LockMode>,
    ) {
        for cell in cells(range) {
            let holders = self.bytes.entry((space, cell)).or_default();
            match mode {
                Some(mode) => holders.insert(owner, mode),
                None => holders.remove(&owner),
            };
        }
    }

    fn in_the_way(
        &self,
        space: LockSpace,
        owner: LockOwner,
        range: LockRange,
        mode: LockMode,
    ) -> Vec<LockOwner> {
        let mut found: Vec<LockOwner> = cells(range)
            .filter_map(|cell| self.bytes.get(&(space, cell)))
            .flatten()
            .filter(|(other, held)| {
                **other != owner && (**held == LockMode::Exclusive || mode == LockMode::Exclusive)
            })
            .map(|(other, _)| *other)
            .collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    fn waits_for(&self, owner: LockOwner) -> Vec<LockOwner> {
        let waits = self.waits.iter().filter(|wait| wait.owner == owner);
        waits
            .flat_map(|wait| self.in_the_way(wait.space, wait.owner, wait.range, wait.mode))
            .collect()
    }

    /// Whether `from` waits for `to` within `steps` steps.
    fn reaches(&self, from: LockOwner, to: LockOwner, steps: u32) -> bool {
        from == to
            || (steps > 0
                && self.waits_for(from).into_iter().any(|next| self.reaches(next, to, steps - 1)))
    }

    fn wake(&mut self) -> Vec<WaitId> {
        let mut granted = Vec::new();
        while let Some(index) = self.waits.iter().position(|wait| {
            self.in_the_way(wait.space, wait.owner, wait.range, wait.mode).is_empty()
        }) {
            let wait = self.waits.remove(index);
            self.set(wait.space, wait.owner, wait.range, Some(wait.mode));
            granted.push(wait.id);
        }
        granted
    }
}

/// The table as the model sees it; and no two locks of one owner and mode that could be one.
fn check(table: &LockTable, model: &Model) {
    let mut seen: BTreeMap<(LockSpace, u64), BTreeMap<LockOwner, LockMode>> = BTreeMap::new();
    let mut count = model.waits.len();
    for space in [LockSpace::Ranges, LockSpace::Whole] {
        let held = table.of_file(file(space));
        count += held.len();
        for lock in held {
            for cell in cells(lock.range) {
                let before = seen.entry((space, cell)).or_default().insert(lock.owner, lock.mode);
                assert_eq!(before, None, "a byte twice: {held:?}");
            }
            let follows = |other: &&samite_wire::lock::LockFound| {
                other.owner == lock.owner
                    && other.mode == lock.mode
                    && other.range.start == lock.range.last.wrapping_add(1)
            };
            assert_eq!(held.iter().find(follows), None, "not merged: {held:?}");
        }
    }
    let mut expected = model.bytes.clone();
    expected.retain(|_, holders| !holders.is_empty());
    assert_eq!(seen, expected);
    assert_eq!(table.len(), count);
}

fn take(table: &mut LockTable, model: &mut Model, op: &Wait, waits: bool) {
    let Wait { id, space, owner, range, mode } = *op;
    let claim =
        LockClaim { owner, range, mode, holder: LockHolder::default(), detects_deadlock: true };
    let mut granted = Vec::new();
    let taken = table.take(file(space), &claim, waits.then_some(id), &mut granted);
    let mut expected = Vec::new();
    let same = model.bytes.get(&(space, 0)).and_then(|holders| holders.get(&owner)) == Some(&mode);
    if space == LockSpace::Whole && !same {
        model.set(space, owner, range, None);
        expected = model.wake();
    }
    let in_the_way = model.in_the_way(space, owner, range, mode);
    if in_the_way.is_empty() {
        assert_eq!(taken, LockVerdict::Granted);
        model.set(space, owner, range, Some(mode));
        expected.extend(model.wake());
    } else if !waits {
        let LockVerdict::Held(found) = taken else {
            panic!("{taken:?} with {in_the_way:?} in the way")
        };
        assert!(in_the_way.contains(&found.owner));
    } else if in_the_way.iter().any(|other| model.reaches(*other, owner, 6)) {
        assert_eq!(taken, LockVerdict::Deadlock);
    } else {
        assert_eq!(taken, LockVerdict::Waits);
        model.waits.push(op.clone());
    }
    assert_eq!(granted, expected);
}

fn run(ops: &[Op]) {
    let (mut table, mut model) = (LockTable::default(), Model::default());
    for (id, op) in (0..).zip(ops) {
        let mut granted = Vec::new();
        match *op {
            Op::Take { space, owner, range, mode, waits } => {
                take(&mut table, &mut model, &Wait { id, space, owner, range, mode }, waits);
            }
            Op::Release { space, owner, range } => {
                assert!(table.release(file(space), owner, range, &mut granted));
                model.set(space, owner, range, None);
                assert_eq!(granted, model.wake());
            }
            Op::Test { space, owner, range, mode } => {
                let claim = LockClaim {
                    owner,
                    range,
                    mode,
                    holder: LockHolder::default(),
                    detects_deadlock: false,
                };
                let found = table.test(file(space), &claim).map(|found| found.owner);
                let in_the_way = model.in_the_way(space, owner, range, mode);
                assert_eq!(found.is_some(), !in_the_way.is_empty());
                assert!(found.is_none_or(|owner| in_the_way.contains(&owner)));
            }
            Op::Cancel { wait } => {
                let before = model.waits.len();
                model.waits.retain(|other| other.id != wait);
                assert_eq!(table.cancel(wait), model.waits.len() < before);
            }
            Op::Gone { client } => {
                table.client_gone(client, &mut granted);
                model.waits.retain(|wait| wait.owner.client != client);
                for holders in model.bytes.values_mut() {
                    holders.retain(|owner, _| owner.client != client);
                }
                let mut expected = model.wake();
                // In which order the files of a client are looked at does not matter.
                granted.sort_unstable();
                expected.sort_unstable();
                assert_eq!(granted, expected);
            }
        }
        check(&table, &model);
    }
    is_told_whole(&table);
    for client in 0..3 {
        table.client_gone(ClientId(client), &mut Vec::new());
    }
    assert!(table.is_empty());
}

/// Another table that takes over the locks of this one, in any order, has the same; and forgets
/// them again.
fn is_told_whole(table: &LockTable) {
    let mut other = LockTable::default();
    for (file, lock) in table.held() {
        assert!(other.adopt(file, lock));
        // It may be told twice.
        assert!(other.adopt(file, lock));
    }
    for space in [LockSpace::Ranges, LockSpace::Whole] {
        let sorted = |table: &LockTable| {
            let mut held = table.of_file(file(space)).to_vec();
            held.sort_unstable_by_key(|lock| (lock.range.start, lock.owner));
            held
        };
        assert_eq!(sorted(&other), sorted(table));
    }
    let client = ClientId(1);
    other.retain_held(|_, lock| lock.owner.client != client, &mut Vec::new());
    assert!(other.held().all(|(_, lock)| lock.owner.client != client));
    let of_others = table.held().filter(|(_, lock)| lock.owner.client != client).count();
    assert_eq!(other.len(), of_others);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]
    #[test]
    fn the_table_does_what_the_model_does(ops in vec(op(), 0..60)) {
        run(&ops);
    }
}

#[test]
fn a_table_is_bounded_and_full_ones_still_let_go() {
    let mut table = LockTable::default();
    let owner = LockOwner { client: ClientId(1), token: 0 };
    let claim = |start| LockClaim {
        owner,
        range: LockRange { start, last: start },
        mode: LockMode::Exclusive,
        holder: LockHolder::default(),
        detects_deadlock: false,
    };
    let mut granted = Vec::new();
    let mut count = 0_u64;
    while table.take(file(LockSpace::Ranges), &claim(count * 2), None, &mut granted)
        == LockVerdict::Granted
    {
        count += 1;
        assert!(count < 1 << 20, "no bound");
    }
    assert!(table.release(file(LockSpace::Ranges), owner, LockRange::WHOLE, &mut granted));
    assert!(table.is_empty());
}

#[test]
fn what_is_noted_is_held_and_takes_the_place_of_what_is_not_true_any_more() {
    let mut table = LockTable::default();
    let owner = |client| LockOwner { client: ClientId(client), token: 0 };
    let claim = |client, start, last| LockClaim {
        owner: owner(client),
        range: LockRange { start, last },
        mode: LockMode::Exclusive,
        holder: LockHolder::default(),
        detects_deadlock: false,
    };
    let (place, mut granted) = (file(LockSpace::Ranges), Vec::new());
    assert!(table.note(place, &claim(1, 0, 9), &mut granted));
    assert!(matches!(
        table.take(place, &claim(2, 5, 20), None, &mut granted),
        LockVerdict::Held(_)
    ));
    assert_eq!(table.take(place, &claim(3, 0, 2), Some(7), &mut granted), LockVerdict::Waits);
    assert!(table.note(place, &claim(2, 0, 4), &mut granted));
    let held: Vec<_> = table.of_file(place).iter().map(|lock| (lock.owner, lock.range)).collect();
    let range = |start, last| LockRange { start, last };
    assert_eq!(held.len(), 2, "{held:?}");
    assert!(held.contains(&(owner(1), range(5, 9))));
    assert!(held.contains(&(owner(2), range(0, 4))));
    assert!(granted.is_empty(), "who waits does not come between");
    table.client_gone(ClientId(1), &mut granted);
    table.client_gone(ClientId(2), &mut granted);
    assert_eq!(granted, [7]);
    table.client_gone(ClientId(3), &mut granted);
    assert!(table.is_empty());
}

#[test]
fn locks_of_which_one_is_not_true_do_not_wait_for_each_other() {
    for space in [LockSpace::Ranges, LockSpace::Whole] {
        let mut table = LockTable::default();
        let owner = |client| LockOwner { client: ClientId(client), token: 0 };
        let claim = |client| LockClaim {
            owner: owner(client),
            range: LockRange::WHOLE,
            mode: LockMode::Exclusive,
            holder: LockHolder::default(),
            detects_deadlock: true,
        };
        let (place, mut granted) = (file(space), Vec::new());
        for client in [1, 2] {
            let LockClaim { owner, range, mode, holder, .. } = claim(client);
            assert!(table.adopt(place, &LockFound { range, mode, owner, holder }));
        }
        assert_eq!(table.take(place, &claim(3), Some(3), &mut granted), LockVerdict::Waits);
        assert_eq!(table.take(place, &claim(1), Some(1), &mut granted), LockVerdict::Waits);
        assert!(granted.is_empty(), "the other one may be true");
        assert_eq!(table.take(place, &claim(2), Some(2), &mut granted), LockVerdict::Granted);
        assert!(table.release(place, owner(2), LockRange::WHOLE, &mut granted));
        assert_eq!(granted, [3]);
        assert!(table.release(place, owner(3), LockRange::WHOLE, &mut granted));
        assert_eq!(granted, [3, 1]);
        assert!(table.release(place, owner(1), LockRange::WHOLE, &mut granted));
        assert!(table.is_empty());
    }
}
