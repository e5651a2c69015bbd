//! A partition against its reference model: random operations, repeated at random, with room and without.

mod reference;
mod subject;

use proptest::collection::vec;
use proptest::prelude::*;
use reference::{Act, Bytes, Cond, Op, Reference};
use samite_backend::Backend;
use samite_types::{ClientId, ErrorKind};
use samite_wire::op::WHOLE_VALUES;
use subject::Subject;

fn key() -> impl Strategy<Value = Vec<u8>> {
    prop::sample::select(vec![&b"a"[..], b"a\xff", b"ab", b"abc", b"b", b"\xff", b"\xff\xff"])
        .prop_map(<[u8]>::to_vec)
}

fn prefix() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![Just(Vec::new()), key()]
}

/// Lengths and offsets around which storage changes its form.
fn place() -> impl Strategy<Value = u32> {
    let near = prop::sample::select(vec![0, 8, 100, 1024, 3000, 32_768, 65_536, 131_072]);
    (near, 0..9_u32).prop_map(|(near, off)| (near + off).saturating_sub(4))
}

fn filled(len: u32, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_mul(31) ^ (at >> 8) as u8 ^ seed).collect()
}

fn bytes() -> impl Strategy<Value = Bytes> {
    prop_oneof![
        4 => (place(), any::<u8>()).prop_map(|(len, seed)| Bytes::Inline(filled(len, seed))),
        1 => place().prop_map(Bytes::Zeros),
        1 => (0..3_u32, 1..65_536_u32, any::<u8>()).prop_map(|(whole, rest, seed)| {
            let blocks = (0..whole).map(|_| 65_536).chain([rest]);
            Bytes::Blocks(blocks.map(|len| filled(len, seed)).collect())
        }),
        1 => vec((1..65_536_u32, any::<u8>()), 1..3).prop_map(|blocks| {
            Bytes::Blocks(blocks.into_iter().map(|(len, seed)| filled(len, seed)).collect())
        }),
    ]
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => (key(), place(), prop_oneof![place(), Just(u32::MAX)])
            .prop_map(|(key, offset, len)| Act::Get { key, offset, len }),
        4 => (key(), bytes()).prop_map(|(key, data)| Act::Put { key, data }),
        4 => (key(), place(), bytes())
            .prop_map(|(key, offset, data)| Act::Write { key, offset, data }),
        2 => (key(), bytes(), prop_oneof![Just(200_000_u32), Just(1 << 20)])
            .prop_map(|(key, data, len_max)| Act::Append { key, data, len_max }),
        2 => (key(), place()).prop_map(|(key, len)| Act::Truncate { key, len }),
        2 => key().prop_map(|key| Act::Delete { key }),
        1 => (prefix(), 0..4_u32).prop_map(|(prefix, limit)| Act::DeletePrefix { prefix, limit }),
        2 => (key(), place(), any::<u64>())
            .prop_map(|(key, offset, delta)| Act::Add { key, offset, delta }),
        2 => (key(), place(), any::<u64>())
            .prop_map(|(key, offset, value)| Act::Max { key, offset, value }),
        2 => (key(), place(), 1..3_u8, -9..9_i64, prop_oneof![0..9_u64, Just(u64::MAX)])
            .prop_map(|(key, offset, count, to, slack)| {
                Act::Advance { key, offset, count, to, slack }
            }),
        2 => (prefix(), prefix(), 0..5_u32, any::<bool>(), prop_oneof![Just(0_u32), Just(2000), Just(WHOLE_VALUES)])
            .prop_map(|(prefix, after, limit, reverse, value_len_max)| {
                Act::List { prefix, after, limit, reverse, value_len_max }
            }),
        2 => (key(), place(), prop_oneof![place(), Just(u32::MAX)])
            .prop_map(|(key, offset, len)| Act::Punch { key, offset, len }),
        1 => (0..4_u64).prop_map(|epoch| Act::RaiseLease { epoch }),
        8 => hold_act(),
    ]
}

fn hold_act() -> impl Strategy<Value = Act> {
    let token = || 1..6_u64;
    prop_oneof![
        4 => (key(), token()).prop_map(|(key, token)| Act::Hold { key, token }),
        1 => token().prop_map(|token| Act::Release { token }),
        1 => token().prop_map(|token| Act::Locate { token }),
        2 => (key(), key()).prop_filter_map("a longer key", |(key, to)| {
            (to.len() <= key.len()).then_some(Act::Detach { key, to })
        }),
        1 => key().prop_map(|key| Act::Holders { key }),
        1 => (key(), vec((token(), 1..3_u64), 0..3)).prop_map(|(key, mut holders)| {
            holders.dedup_by_key(|(token, _)| *token);
            Act::SetHolders { key, holders }
        }),
        1 => (key(), key()).prop_map(|(from, to)| Act::MoveHolds { from, to }),
    ]
}

fn cond() -> impl Strategy<Value = Cond> {
    prop_oneof![
        key().prop_map(Cond::Exists),
        key().prop_map(Cond::Absent),
        (key(), 0..20_u64).prop_map(|(key, version)| Cond::VersionIs(key, version)),
        (key(), place(), prop_oneof![Just(vec![]), Just(vec![0; 4]), Just(filled(8, 0))])
            .prop_map(|(key, offset, bytes)| Cond::BytesAre(key, offset, bytes)),
        (key(), place()).prop_map(|(key, len)| Cond::LenAtMost(key, len)),
        prefix().prop_map(Cond::PrefixEmpty),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let guards = prop_oneof![3 => vec(cond(), 0..1), 1 => vec(cond(), 1..3)];
    let acts = prop_oneof![2 => vec(act(), 1..2), 1 => vec(act(), 1..5)];
    (guards, acts, prop_oneof![Just(0_u32), Just(10), Just(70_000)])
        .prop_map(|(guards, acts, reveal_len)| Op { guards, acts, reveal_len })
}

/// One delivery: a new operation of one of two clients, or an earlier one again.
#[derive(Clone, Debug)]
enum Step {
    New {
        client: u64,
        lease: u64,
        op: Op,
    },
    Again {
        which: prop::sample::Index,
    },
    /// A client is gone.
    Gone {
        client: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..3_u64, prop_oneof![Just(u64::MAX), 0..4_u64], op())
            .prop_map(|(client, lease, op)| Step::New { client, lease, op }),
        1 => any::<prop::sample::Index>().prop_map(|which| Step::Again { which }),
        1 => (1..3_u64).prop_map(|client| Step::Gone { client }),
    ]
}

/// Revealed bytes are bounded by the partition.
fn bounded(mut op: Op) -> Op {
    op.reveal_len = op.reveal_len.min(samite_partition::limits::REVEAL_LEN_MAX);
    op
}

fn check_same(reference: &mut Reference, subject: &mut Subject) -> Result<(), TestCaseError> {
    let everything = Op {
        guards: Vec::new(),
        acts: vec![Act::List {
            prefix: Vec::new(),
            after: Vec::new(),
            limit: 100,
            reverse: false,
            value_len_max: 16,
        }],
        reveal_len: 0,
    };
    let expected = reference.apply(ClientId(9), 0, u64::MAX, &everything);
    let found = subject.apply(ClientId(9), 0, (0, false), u64::MAX, &everything);
    prop_assert_eq!(found, Some(expected));
    for key in reference.records.keys().cloned().collect::<Vec<_>>() {
        let get = Act::Get { key, offset: 0, len: u32::MAX };
        let whole = Op { guards: Vec::new(), acts: vec![get], reveal_len: 0 };
        let expected = reference.apply(ClientId(9), 0, u64::MAX, &whole);
        let found = subject.apply(ClientId(9), 0, (0, false), u64::MAX, &whole);
        prop_assert!(found == Some(expected), "a record differs");
    }
    prop_assert_eq!(subject.partition.version().get(), reference.version);
    prop_assert_eq!(subject.partition.name_space_generation().get(), reference.lease);
    prop_assert_eq!(subject.partition.leaked_orphans(), reference.leaked_orphans());
    for token in 1..6 {
        let locate = Op { guards: Vec::new(), acts: vec![Act::Locate { token }], reveal_len: 0 };
        let expected = reference.apply(ClientId(9), 0, u64::MAX, &locate);
        let found = subject.apply(ClientId(9), 0, (0, false), u64::MAX, &locate);
        prop_assert_eq!(found, Some(expected));
    }
    Ok(())
}

/// Delivers `steps` to both. A target that is full may refuse an operation that the reference does;
/// then nothing must have changed.
fn run(steps: Vec<Step>, capacity_bytes: u64, taken: usize) -> Result<(), TestCaseError> {
    let mut subject = Subject::new(capacity_bytes);
    let elsewhere = subject.backend.arena().map(|arena| arena.grant(taken));
    let mut reference = Reference::default();
    let mut sent: Vec<(u64, u64, u64, Op)> = Vec::new();
    for step in steps {
        let (client, seq, lease, op, is_retry) = match step {
            Step::New { client, lease, op } => (client, sent.len() as u64 + 1, lease, op, false),
            Step::Gone { client } => {
                subject.partition.drop_client(ClientId(client));
                reference.drop_client(client);
                continue;
            }
            Step::Again { .. } if sent.is_empty() => continue,
            Step::Again { which } => {
                let (client, seq, lease, op) = which.get(&sent).clone();
                (client, seq, lease, op, true)
            }
        };
        let before = reference.clone();
        let known = bounded(op.clone());
        let expected = match is_retry {
            true => reference.apply_again(ClientId(client), seq, lease, &known),
            false => reference.apply(ClientId(client), seq, lease, &known),
        };
        let found = subject.apply(ClientId(client), seq, (0, is_retry), lease, &op);
        match found {
            None => reference = before,
            Some(Err((ErrorKind::NoSpace, index, _))) => {
                let is_known = matches!(expected, Ok(_) | Err((ErrorKind::NoSpace, ..)));
                prop_assert!(is_known, "no space for what fails anyway");
                reference = before;
                if is_retry {
                    reference.refuse(ClientId(client), seq, index);
                }
                check_same(&mut reference, &mut subject)?;
            }
            Some(found) => {
                prop_assert!(found == expected, "{found:.200?}\n{expected:.200?}\n{op:.500?}")
            }
        }
        if !is_retry {
            sent.push((client, seq, lease, op));
        }
    }
    check_same(&mut reference, &mut subject)?;
    // Nothing is kept beside the records.
    drop(subject.partition);
    drop(elsewhere);
    prop_assert_eq!(subject.backend.usage().used, 0);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn a_partition_does_what_its_reference_does(steps in vec(step(), 1..60)) {
        run(steps, 16 << 20, 0)?;
    }

    #[test]
    fn a_full_partition_refuses_without_a_trace(steps in vec(step(), 1..60), taken in 10..16_usize) {
        run(steps, 1 << 20, taken)?;
    }

    #[test]
    fn equal_inputs_give_equal_ends(steps in vec(step(), 1..30)) {
        let (mut one, mut two) = (Subject::new(4 << 20), Subject::new(4 << 20));
        for (at, step) in steps.into_iter().enumerate() {
            if let Step::New { client, lease, op } = step {
                let client = ClientId(client);
                let first = one.apply(client, at as u64 + 1, (0, false), lease, &op);
                let second = two.apply(client, at as u64 + 1, (0, false), lease, &op);
                prop_assert!(first == second);
            }
        }
    }
}

/// A network that brings requests twice may bring one again after its client was told that it was refused.
#[test]
fn what_was_refused_does_not_take_effect_when_the_same_sending_comes_again() {
    let mut subject = Subject::new(1 << 20);
    let client = ClientId(1);
    let put = |byte| Act::Put { key: b"a".to_vec(), data: Bytes::Inline(vec![byte]) };
    let op = |guards, byte| Op { guards, acts: vec![put(byte)], reveal_len: 0 };
    let only_if_there = op(vec![Cond::Exists(b"a".to_vec())], 1);
    let mut send = |seq, below, is_retry, op: &Op| {
        subject.apply(client, seq, (below, is_retry), u64::MAX, op).map(|end| end.is_ok())
    };
    assert_eq!(send(1, 1, false, &only_if_there), Some(false));
    assert_eq!(send(2, 1, false, &op(Vec::new(), 2)), Some(true));
    // The same sending: not now, and not once its client has the answer.
    assert_eq!(send(1, 1, false, &only_if_there), Some(false));
    assert_eq!(send(3, 2, false, &op(Vec::new(), 3)), Some(true));
    assert_eq!(send(1, 1, false, &only_if_there), Some(false));
    // Another sending is tried: its client has no answer.
    let other = op(vec![Cond::Absent(b"a".to_vec())], 4);
    assert_eq!(send(4, 4, false, &other), Some(false));
    let delete = Op { acts: vec![Act::Delete { key: b"a".to_vec() }], ..op(Vec::new(), 0) };
    assert_eq!(send(5, 4, false, &delete), Some(true));
    assert_eq!(send(4, 4, true, &other), Some(true));
    assert_eq!(send(4, 4, false, &other), Some(true));
}

/// Space that an action of an operation gives back has to be found again by a later one: together
/// they are refused, or none is.
#[test]
fn what_an_operation_removes_and_makes_again_is_set_aside_anew() {
    let client = ClientId(1);
    let put = |key: &[u8], len| Act::Put { key: key.to_vec(), data: Bytes::Inline(vec![7; len]) };
    let op = |acts| Op { guards: Vec::new(), acts, reveal_len: 0 };
    let removals = [
        Act::Delete { key: b"ab".to_vec() },
        Act::DeletePrefix { prefix: b"ab".to_vec(), limit: 10 },
        Act::Truncate { key: b"ab".to_vec(), len: 1 },
    ];
    let (mut done, mut refused) = (0, 0);
    for removal in removals {
        // From room for both to room for none.
        for filler in (0..2400).step_by(60) {
            let mut subject = Subject::new(1 << 20);
            let mut seq = 0;
            let mut apply = |acts| {
                seq += 1;
                subject.apply(client, seq, (seq, false), u64::MAX, &op(acts)).map(|end| end.is_ok())
            };
            assert_eq!(apply(vec![put(b"ab", 1)]), Some(true));
            let full = (0..9000_u32).find(|n| {
                let key = [b"f".as_slice(), &n.to_be_bytes()].concat();
                apply(vec![put(&key, 1000)]) == Some(false)
            });
            let last = [b"f".as_slice(), &(full.unwrap() - 1).to_be_bytes()].concat();
            let before = [b"f".as_slice(), &(full.unwrap() - 2).to_be_bytes()].concat();
            let gone = vec![Act::Delete { key: last }, Act::Delete { key: before }];
            assert_eq!(apply(gone), Some(true));
            for part in 0..filler / 600 {
                apply(vec![put(&[b'g', part as u8], 368)]);
            }
            apply(vec![put(b"h", filler % 600)]);
            match apply(vec![removal.clone(), put(b"ab", 1), put(b"a", 1000)]) {
                Some(true) => done += 1,
                _ => refused += 1,
            }
        }
    }
    assert!(done > 10 && refused > 10, "{done} done, {refused} refused");
}

/// Numbers are moved on from the values in which earlier actions of the same operation leave them.
#[test]
fn an_advance_goes_by_what_the_actions_before_it_leave() {
    let (key, there) = (b"k".to_vec(), Bytes::Inline(9_u64.to_le_bytes().to_vec()));
    let before = [
        Act::Punch { key: key.clone(), offset: 0, len: 8 },
        Act::Delete { key: key.clone() },
        Act::Truncate { key: key.clone(), len: 4 },
        Act::Put { key: key.clone(), data: Bytes::Zeros(8) },
        Act::Add { key: key.clone(), offset: 0, delta: 5 },
    ];
    for first in before {
        let (mut subject, mut reference) = (Subject::new(1 << 20), Reference::default());
        let advance =
            Act::Advance { key: key.clone(), offset: 0, count: 1, to: 4, slack: u64::MAX };
        let made = vec![Act::Put { key: key.clone(), data: there.clone() }];
        for (seq, acts) in [(1, made), (2, vec![first, advance])] {
            let op = Op { guards: Vec::new(), acts, reveal_len: 0 };
            let expected = reference.apply(ClientId(1), seq, u64::MAX, &op);
            let found = subject.apply(ClientId(1), seq, (0, false), u64::MAX, &op);
            assert!(found == Some(expected));
        }
        check_same(&mut reference, &mut subject).unwrap();
    }
}
