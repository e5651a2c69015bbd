//! How the chunks of one object or file spread over the partitions.

use std::collections::HashMap;
use std::sync::Arc;

use samite_types::{Error, ErrorKind, PartitionId, Result, TargetId};
use samite_wire::control::{DatasetData, DistributionKind};

/// Most slots of a weighted dataset's stripe pattern.
pub const PATTERN_LEN_MAX: usize = 4096;

/// Rounds of the stripe pattern over the weights: enough for each target to spread its share over
/// several partitions.
const ROUNDS_MAX: u64 = 16;

/// Gives each chunk its partition. Cheap to clone.
///
/// It never depends on who holds a partition now, so a change of membership leaves every chunk in its partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Distribution {
    partitions: u32,
    shape: DistributionShape,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum DistributionShape {
    RoundRobin,
    Single,
    Pattern(Arc<[PartitionId]>),
}

impl Distribution {
    /// How the chunks of `dataset` spread over so many partitions.
    #[must_use]
    pub fn new(dataset: &DatasetData, partitions: u32) -> Self {
        let shape = match &dataset.spec.distribution {
            DistributionKind::RoundRobin => DistributionShape::RoundRobin,
            DistributionKind::Single => DistributionShape::Single,
            DistributionKind::Weighted(_) => {
                DistributionShape::Pattern(dataset.wheel.as_slice().into())
            }
        };
        Self { partitions: partitions.max(1), shape }
    }

    /// The partition of chunk `chunk_no` of the object whose key hashes to `object_hash`.
    #[inline]
    #[must_use]
    pub fn chunk_partition(&self, object_hash: u64, chunk_no: u64) -> PartitionId {
        let slots = match &self.shape {
            DistributionShape::Pattern(pattern) => pattern.len() as u64,
            DistributionShape::RoundRobin | DistributionShape::Single => u64::from(self.partitions),
        };
        let start = object_hash % slots;
        match &self.shape {
            // Reduced before the sum, so that it cannot wrap and break the cycle.
            DistributionShape::RoundRobin => {
                PartitionId(((start + chunk_no % slots) % slots) as u32)
            }
            DistributionShape::Single => PartitionId(start as u32),
            DistributionShape::Pattern(pattern) => {
                pattern[((start + chunk_no % slots) % slots) as usize]
            }
        }
    }
}

/// The stripe pattern of a weighted dataset: the cycle of partitions that the chunks of an object
/// go through.
///
/// `table` gives the target of each partition. Each target has slots in proportion to its weight,
/// spread evenly round the pattern (smooth weighted round-robin), and takes turns among its
/// partitions. Made once, when the dataset is made.
///
/// # Errors
/// [`ErrorKind::Invalid`]: a target with a weight holds no partition, or the weights are too far
/// apart for [`PATTERN_LEN_MAX`] slots.
pub fn stripe_pattern(weights: &[(TargetId, u32)], table: &[TargetId]) -> Result<Vec<PartitionId>> {
    let invalid = |cause: String| Error::new(ErrorKind::Invalid, format!("weights: {cause}"));
    let mut held: HashMap<TargetId, Vec<PartitionId>> = HashMap::new();
    for (target, partition) in table.iter().zip(0..) {
        held.entry(*target).or_default().push(PartitionId(partition));
    }
    let common = weights.iter().fold(0, |acc, (_, weight)| gcd(acc, *weight)).max(1);
    let mut shares = Vec::new();
    for (target, weight) in weights.iter().filter(|(_, weight)| *weight > 0) {
        let partitions =
            held.remove(target).ok_or_else(|| invalid(format!("{target} holds no partition")))?;
        shares.push(StripeShare {
            weight: i64::from(weight / common),
            credit: 0,
            partitions,
            turn: 0,
        });
    }
    let total: i64 = shares.iter().map(|share| share.weight).sum();
    if total == 0 || total.unsigned_abs() > PATTERN_LEN_MAX as u64 {
        return Err(invalid(format!(
            "they sum to {total} parts; 1 to {PATTERN_LEN_MAX} are possible"
        )));
    }
    let rounds = (PATTERN_LEN_MAX as u64 / total.unsigned_abs()).min(ROUNDS_MAX);
    let slots = rounds * total.unsigned_abs();
    Ok((0..slots).filter_map(|_| turn(&mut shares, total)).collect())
}

/// One target's share of the stripe pattern.
struct StripeShare {
    weight: i64,
    credit: i64,
    partitions: Vec<PartitionId>,
    turn: usize,
}

fn turn(shares: &mut [StripeShare], total: i64) -> Option<PartitionId> {
    for share in shares.iter_mut() {
        share.credit += share.weight;
    }
    let share = shares.iter_mut().max_by_key(|share| share.credit)?;
    share.credit -= total;
    share.turn += 1;
    Some(share.partitions[(share.turn - 1) % share.partitions.len()])
}

const fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}
