//! The next call of a client.

use std::collections::BTreeMap;

use samite_types::PartitionId;

use crate::op::{
    COUNTER, Key, LOG, NAME, ORPHAN, OpCondition, OpOutcome, OpStep, REGISTERS, SimOperation,
    StepResultSeen,
};
use crate::rng::SimRng;

/// The choices of one client.
#[derive(Debug)]
pub struct ClientWorkload {
    partitions: u32,
    /// The next number that nobody else uses.
    number: u64,
    /// The value of a register that it last knew.
    known: BTreeMap<(PartitionId, Key), Vec<u8>>,
    /// Its open references, each with its partition.
    held: Vec<(PartitionId, u64)>,
}

impl ClientWorkload {
    /// Choices among `partitions` partitions, with numbers from `number` on.
    #[must_use]
    pub const fn new(partitions: u32, number: u64) -> Self {
        Self { partitions, number, known: BTreeMap::new(), held: Vec::new() }
    }

    /// The next call.
    pub fn next(&mut self, rng: &mut SimRng) -> (PartitionId, SimOperation) {
        let partition = PartitionId(rng.below(self.partitions.into()) as u32);
        let key = *rng.pick(&REGISTERS);
        let op = match rng.below(100) {
            0..20 => SimOperation::of([OpStep::Get(*rng.pick(&[0, 1, LOG, COUNTER]))]),
            20..33 => SimOperation::of([OpStep::Put(key, self.number())]),
            33..45 => match self.known.get(&(partition, key)) {
                Some(value) => SimOperation::of([OpStep::Put(key, self.number)])
                    .when(OpCondition::Is(key, value.clone())),
                None => {
                    SimOperation::of([OpStep::Put(key, self.number)]).when(OpCondition::Absent(key))
                }
            },
            45..58 => SimOperation::of([OpStep::Append(LOG, self.number)]),
            58..70 => SimOperation::of([OpStep::Add(COUNTER, self.number)]),
            70..75 => SimOperation::of([OpStep::Delete(key)]),
            75..79 => SimOperation::of([OpStep::Put(0, self.number), OpStep::Put(1, self.number)]),
            79..83 => {
                let other = 1 - key;
                SimOperation::of([OpStep::Delete(key), OpStep::Put(other, self.number)])
                    .when(OpCondition::Exists(key))
            }
            83..87 => {
                SimOperation::of([OpStep::Put(key, self.number), OpStep::Append(LOG, self.number)])
            }
            87..92 => SimOperation::of([OpStep::List]),
            _ => return self.held_name(partition, rng),
        };
        self.number += 1;
        (partition, op)
    }

    fn held_name(
        &mut self,
        partition: PartitionId,
        rng: &mut SimRng,
    ) -> (PartitionId, SimOperation) {
        let number = self.number();
        let op = match rng.below(6) {
            0 => SimOperation::of([OpStep::Put(NAME, number)]).when(OpCondition::Absent(NAME)),
            1 | 2 => {
                self.held.push((partition, number));
                SimOperation::of([OpStep::Hold(NAME, number)])
            }
            3 => SimOperation::of([OpStep::Detach(NAME, ORPHAN)]),
            4 => SimOperation::of([OpStep::Get(ORPHAN)]),
            _ => match self.held.pop() {
                Some((at, token)) => return (at, SimOperation::of([OpStep::Release(token)])),
                None => SimOperation::of([OpStep::Get(NAME)]),
            },
        };
        (partition, op)
    }

    fn number(&mut self) -> u64 {
        self.number += 1;
        self.number - 1
    }

    /// The result of a call.
    pub fn learn(&mut self, partition: PartitionId, op: &SimOperation, outcome: &OpOutcome) {
        let OpOutcome::Done(seen) = outcome else {
            for act in &op.acts {
                if let OpStep::Put(key, _) | OpStep::Get(key) = act {
                    self.known.remove(&(partition, *key));
                }
            }
            return;
        };
        for (act, seen) in op.acts.iter().zip(seen) {
            match (act, seen) {
                (OpStep::Put(key, number), _) => {
                    self.known.insert((partition, *key), number.to_le_bytes().to_vec());
                }
                (OpStep::Get(key), StepResultSeen::Value(value)) => {
                    self.known.insert((partition, *key), value.clone());
                }
                (OpStep::Delete(key), _) => drop(self.known.remove(&(partition, *key))),
                _ => {}
            }
        }
    }
}
