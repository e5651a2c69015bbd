//! Delegations against a reference: whatever clients ask for and whenever, no change of another
//! takes effect while a delegation is in force, every client's turn comes, and no request waits
//! longer than for one term.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use samite_partition::RecordLeases;
use samite_partition::limits::DELEGATION_TERM_MAX;
use samite_types::{ClientId, PartitionId};
use samite_wire::op::{Action, Operation, ValueData};

const KEYS: [&[u8]; 5] = [b"a", b"ab", b"abc", b"b", b"c"];

/// The next event.
#[derive(Clone, Debug)]
enum Step {
    /// Time passes.
    Pass(u64),
    Lease {
        client: u64,
        key: usize,
        term: u64,
    },
    /// The client gives back the delegation that it got last, as when that was recalled.
    Release {
        client: u64,
        key: usize,
    },
    /// A request of some changes.
    Change {
        client: u64,
        keys: Vec<(usize, bool)>,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let (client, key) = (|| 1..4_u64, || 0..KEYS.len());
    prop_oneof![
        3 => prop_oneof![0..3_u64, 0..40_u64].prop_map(Step::Pass),
        4 => (client(), key(), prop_oneof![1..5_u64, 1..5000_u64])
            .prop_map(|(client, key, term)| Step::Lease { client, key, term }),
        1 => (client(), key()).prop_map(|(client, key)| Step::Release { client, key }),
        3 => (client(), vec((key(), prop::bool::weighted(0.2)), 1..3))
            .prop_map(|(client, keys)| Step::Change { client, keys }),
    ]
}

fn operation(keys: &[(usize, bool)]) -> Operation<'static> {
    let action = |(key, wide): &(usize, bool)| match wide {
        true => Action::DeletePrefix { prefix: KEYS[*key], limit: 9 },
        false => Action::Put { key: KEYS[*key], data: ValueData::Zeros(1) },
    };
    Operation::new(PartitionId(0), keys.iter().map(action))
}

fn touches((key, wide): &(usize, bool), other: &[u8]) -> bool {
    if *wide { other.starts_with(KEYS[*key]) } else { other == KEYS[*key] }
}

/// A waiting request: client, changes, since when.
type Waiting = (u64, Vec<(usize, bool)>, Duration);

#[derive(Default)]
struct World {
    delegations: RecordLeases,
    now: Duration,
    /// The delegations that clients were granted, and nothing else: key and client, until when.
    promised: BTreeMap<(&'static [u8], u64), Duration>,
    waiting: Vec<Waiting>,
    done: usize,
}

impl World {
    /// Whether a delegation of another client stands against a change.
    fn is_certain(&self, client: u64, keys: &[(usize, bool)]) -> bool {
        self.promised.iter().any(|((key, holder), until)| {
            *holder != client && *until > self.now && keys.iter().any(|touch| touches(touch, key))
        })
    }

    /// Carries out a change if it may be; whether it had to wait.
    fn attempt(&mut self, waiting: Waiting) -> bool {
        let (client, keys, since) = waiting;
        let op = operation(&keys);
        let stands = self.delegations.against(ClientId(client), &op, self.now, &mut |_, _| {});
        assert_eq!(stands.is_some(), self.is_certain(client, &keys), "{keys:?} at {:?}", self.now);
        if stands.is_some() || self.delegations.is_awaited(&op) {
            self.delegations.wait_for(&op);
            self.waiting.push((client, keys, since));
            return true;
        }
        assert!(self.now - since <= DELEGATION_TERM_MAX, "waited since {since:?}");
        self.delegations.changed(ClientId(client), &op, self.now);
        self.done += 1;
        false
    }

    /// The work of a node when a delegation has ended or was given back.
    fn retry(&mut self) {
        self.delegations.clear_waits();
        for waiting in std::mem::take(&mut self.waiting) {
            self.attempt(waiting);
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Pass(ms) => {
                // A node looks when the first delegation ends, not at the end of the time that
                // passes.
                for _ in 0..*ms {
                    self.now += Duration::from_millis(1);
                    self.retry();
                }
            }
            Step::Lease { client, key, term } => {
                let key = KEYS[*key];
                let asked = Duration::from_millis(*term);
                let given = self.delegations.grant(ClientId(*client), key, asked, self.now);
                assert!(given <= asked.min(DELEGATION_TERM_MAX));
                if given > Duration::ZERO {
                    let mut awaited = self.waiting.iter().flat_map(|(_, keys, _)| keys);
                    assert!(
                        !awaited.any(|touch| touches(touch, key)),
                        "somebody waits for {key:?}"
                    );
                    let until = self.promised.entry((key, *client)).or_default();
                    *until = (*until).max(self.now + given);
                }
            }
            Step::Release { client, key } => {
                if let Some(until) = self.promised.remove(&(KEYS[*key], *client)) {
                    self.delegations.release(ClientId(*client), KEYS[*key], until);
                    self.retry();
                }
            }
            Step::Change { client, keys } => {
                self.attempt((*client, keys.clone(), self.now));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn nothing_changes_under_a_delegation_and_no_client_starves(steps in vec(step(), 1..120)) {
        let mut world = World { now: Duration::from_secs(1), ..World::default() };
        for step in &steps {
            world.step(step);
        }
        let changes = steps.iter().filter(|step| matches!(step, Step::Change { .. })).count();
        while !world.waiting.is_empty() {
            world.step(&Step::Pass(1));
        }
        prop_assert_eq!(world.done, changes);
    }
}
