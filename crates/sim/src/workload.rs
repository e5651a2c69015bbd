//! What a client does next.

use std::collections::BTreeMap;

use samite_types::PartitionId;

use crate::op::{Act, COUNTER, Cond, Key, LOG, NAME, ORPHAN, Op, Outcome, REGISTERS, Seen};
use crate::rng::Rng;

/// The choices of one client.
#[derive(Debug)]
pub struct Workload {
    partitions: u32,
    /// The next number that nobody else uses.
    number: u64,
    /// What it last knew of a register.
    known: BTreeMap<(PartitionId, Key), Vec<u8>>,
    /// Its holds, each with its partition.
    held: Vec<(PartitionId, u64)>,
}

impl Workload {
    /// Choices among `partitions` partitions, with numbers from `number` on.
    #[must_use]
    pub const fn new(partitions: u32, number: u64) -> Self {
        Self { partitions, number, known: BTreeMap::new(), held: Vec::new() }
    }

    /// The next call.
    pub fn next(&mut self, rng: &mut Rng) -> (PartitionId, Op) {
        let partition = PartitionId(rng.below(self.partitions.into()) as u32);
        let key = *rng.pick(&REGISTERS);
        let op = match rng.below(100) {
            0..20 => Op::of([Act::Get(*rng.pick(&[0, 1, LOG, COUNTER]))]),
            20..33 => Op::of([Act::Put(key, self.number())]),
            33..45 => match self.known.get(&(partition, key)) {
                Some(value) => {
                    Op::of([Act::Put(key, self.number)]).when(Cond::Is(key, value.clone()))
                }
                None => Op::of([Act::Put(key, self.number)]).when(Cond::Absent(key)),
            },
            45..58 => Op::of([Act::Append(LOG, self.number)]),
            58..70 => Op::of([Act::Add(COUNTER, self.number)]),
            70..75 => Op::of([Act::Delete(key)]),
            75..79 => Op::of([Act::Put(0, self.number), Act::Put(1, self.number)]),
            79..83 => {
                let other = 1 - key;
                Op::of([Act::Delete(key), Act::Put(other, self.number)]).when(Cond::Exists(key))
            }
            83..87 => Op::of([Act::Put(key, self.number), Act::Append(LOG, self.number)]),
            87..92 => Op::of([Act::List]),
            _ => return self.held_name(partition, rng),
        };
        self.number += 1;
        (partition, op)
    }

    fn held_name(&mut self, partition: PartitionId, rng: &mut Rng) -> (PartitionId, Op) {
        let number = self.number();
        let op = match rng.below(6) {
            0 => Op::of([Act::Put(NAME, number)]).when(Cond::Absent(NAME)),
            1 | 2 => {
                self.held.push((partition, number));
                Op::of([Act::Hold(NAME, number)])
            }
            3 => Op::of([Act::Detach(NAME, ORPHAN)]),
            4 => Op::of([Act::Get(ORPHAN)]),
            _ => match self.held.pop() {
                Some((at, token)) => return (at, Op::of([Act::Release(token)])),
                None => Op::of([Act::Get(NAME)]),
            },
        };
        (partition, op)
    }

    fn number(&mut self) -> u64 {
        self.number += 1;
        self.number - 1
    }

    /// What came of a call.
    pub fn learn(&mut self, partition: PartitionId, op: &Op, outcome: &Outcome) {
        let Outcome::Done(seen) = outcome else {
            for act in &op.acts {
                if let Act::Put(key, _) | Act::Get(key) = act {
                    self.known.remove(&(partition, *key));
                }
            }
            return;
        };
        for (act, seen) in op.acts.iter().zip(seen) {
            match (act, seen) {
                (Act::Put(key, number), _) => {
                    self.known.insert((partition, *key), number.to_le_bytes().to_vec());
                }
                (Act::Get(key), Seen::Value(value)) => {
                    self.known.insert((partition, *key), value.clone());
                }
                (Act::Delete(key), _) => drop(self.known.remove(&(partition, *key))),
                _ => {}
            }
        }
    }
}
