//! Which target holds which partition: rendezvous hashing with a quota per target.
//!
//! Plain rendezvous hashing balances only in the mean; with tens of partitions for each target the luckiest would hold half
//! as much again as the mean. So each target gets a *quota*, its weight's share of the partitions rounded so that the quotas sum
//! up exactly, and a partition goes to the target it scores highest among those with room. When targets come or go,
//! [`rebalance`] starts from the table that is: a partition stays where it is unless its target is gone or over its new quota.
//! So what moves is the least that can move: the share of what changed.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use samite_types::{Error, ErrorKind, PartitionId, Result, TargetId};

use crate::hash::hash;

/// How many partitions a new cluster of `nodes` nodes gets: 16 for each node, rounded up to a power of two, at least 64.
#[must_use]
pub fn partitions_for(nodes: usize) -> u32 {
    let wanted = nodes.saturating_mul(16).next_power_of_two().max(64);
    // At most 2^16.
    wanted.min(crate::PARTITIONS_MAX) as u32
}

/// Places `partitions` partitions on `targets` (id and weight), from nothing. The order of `targets` does not matter.
///
/// With equal weights the counts differ by at most 1; otherwise each is within 1 of its weight's share.
///
/// # Errors
/// [`ErrorKind::Invalid`]: no target has a weight, or one is named twice.
pub fn assign(partitions: u32, targets: &[(TargetId, u64)]) -> Result<Vec<TargetId>> {
    place(vec![None; partitions as usize], targets)
}

/// Places the partitions of `table` on `targets`, moving as few as it can. The order of `targets` does not matter.
///
/// # Errors
/// As [`assign`].
pub fn rebalance(table: &[TargetId], targets: &[(TargetId, u64)]) -> Result<Vec<TargetId>> {
    place(table.iter().copied().map(Some).collect(), targets)
}

struct Share {
    weight: u64,
    /// Partitions that the target held before.
    held: Vec<PartitionId>,
    quota: usize,
}

fn place(mut table: Vec<Option<TargetId>>, targets: &[(TargetId, u64)]) -> Result<Vec<TargetId>> {
    let invalid = |cause: &str| Error::new(ErrorKind::Invalid, format!("placement: {cause}"));
    let mut shares: BTreeMap<TargetId, Share> = targets
        .iter()
        .map(|&(target, weight)| (target, Share { weight, held: Vec::new(), quota: 0 }))
        .collect();
    if shares.len() != targets.len() {
        return Err(invalid("a target is named twice"));
    }
    for (slot, partition) in table.iter_mut().zip(0..) {
        match slot.and_then(|target| shares.get_mut(&target)) {
            Some(share) => share.held.push(PartitionId(partition)),
            None => *slot = None,
        }
    }
    set_quotas(&mut shares, table.len()).ok_or_else(|| invalid("no target has a weight"))?;
    for (target, share) in &mut shares {
        // Over its quota, a target gives up the partitions that want it least.
        share.held.sort_by_key(|partition| Reverse(score(*partition, *target)));
        for partition in share.held.drain(share.quota.min(share.held.len())..) {
            table[partition.get() as usize] = None;
        }
        share.quota -= share.held.len();
    }
    let mut placed = Vec::with_capacity(table.len());
    for (slot, partition) in table.into_iter().zip(0..) {
        placed.push(match slot {
            Some(target) => target,
            None => best(&mut shares, PartitionId(partition))
                .ok_or_else(|| invalid("quotas do not cover the partitions"))?,
        });
    }
    Ok(placed)
}

/// Shares `partitions` by weight: the whole part to each, the rest to the largest remainders; among equals to those that hold
/// most already, so that nothing moves for the sake of rounding. `None` when no weight is above zero.
fn set_quotas(shares: &mut BTreeMap<TargetId, Share>, partitions: usize) -> Option<()> {
    let total: u128 = shares.values().map(|share| u128::from(share.weight)).sum();
    if total == 0 {
        return None;
    }
    let mut left = partitions;
    let mut rest = Vec::with_capacity(shares.len());
    for (target, share) in shares.iter_mut() {
        let exact = u128::from(share.weight) * partitions as u128;
        // At most `partitions`, which is a usize.
        share.quota = (exact / total) as usize;
        left -= share.quota;
        rest.push((Reverse(exact % total), Reverse(share.held.len()), *target));
    }
    rest.sort_unstable();
    for (_, _, target) in rest.into_iter().take(left) {
        shares.get_mut(&target)?.quota += 1;
    }
    Some(())
}

/// Takes a place at the target with room that `partition` scores highest.
fn best(shares: &mut BTreeMap<TargetId, Share>, partition: PartitionId) -> Option<TargetId> {
    let (target, share) =
        shares.iter_mut().filter(|(_, share)| share.quota > 0).max_by(|(a, x), (b, y)| {
            let left = weighted(score(partition, **a), x.weight);
            let right = weighted(score(partition, **b), y.weight);
            left.total_cmp(&right)
        })?;
    share.quota -= 1;
    Some(*target)
}

fn score(partition: PartitionId, target: TargetId) -> u64 {
    let mut key = [0; 8];
    key[..4].copy_from_slice(&partition.get().to_le_bytes());
    key[4..].copy_from_slice(&target.get().to_le_bytes());
    hash(&key)
}

/// Weighted rendezvous: the highest of `-weight / ln(u)`, `u` uniform in (0, 1), falls to each target in proportion to its
/// weight (Schindelhauer and Schomaker, "Weighted distributed hash tables", SPAA 2005).
fn weighted(score: u64, weight: u64) -> f64 {
    let uniform = ((score >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    -(weight as f64) / uniform.ln()
}
