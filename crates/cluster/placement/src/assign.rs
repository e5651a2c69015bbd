//! Which target holds which partition: rendezvous hashing with a quota per target.
//!
//! Plain rendezvous hashing balances only in the mean; with tens of partitions for each target the luckiest would hold half
//! as much again as the mean. So each target gets a *quota*, its weight's share of the partitions rounded so that the quotas sum
//! up exactly, and a partition goes to the target it scores highest among those with room.

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
    let invalid = |cause: &str| Error::new(ErrorKind::Invalid, format!("placement: {cause}"));
    let mut shares: BTreeMap<TargetId, TargetShare> = targets
        .iter()
        .map(|&(target, weight)| (target, TargetShare { weight, quota: 0 }))
        .collect();
    if shares.len() != targets.len() {
        return Err(invalid("a target is named twice"));
    }
    if shares.values().all(|share| share.weight == 0) {
        return Err(invalid("no target has a weight"));
    }
    let wanted: Vec<(u64, usize)> = shares.values().map(|share| (share.weight, 0)).collect();
    for (share, quota) in shares.values_mut().zip(quotas(&wanted, partitions as usize)) {
        share.quota = quota;
    }
    (0..partitions)
        .map(|partition| {
            best(&mut shares, PartitionId(partition))
                .ok_or_else(|| invalid("quotas do not cover the partitions"))
        })
        .collect()
}

struct TargetShare {
    weight: u64,
    quota: usize,
}

/// Shares `parts` among those with (weight, parts held): the whole part to each, the rest to the largest remainders; among equals to those
/// that hold most already, so that nothing moves for the sake of rounding, and then to the first. Nothing when no weight is above zero.
pub(crate) fn quotas(wanted: &[(u64, usize)], parts: usize) -> Vec<usize> {
    let total: u128 = wanted.iter().map(|(weight, _)| u128::from(*weight)).sum();
    let mut quotas = vec![0; wanted.len()];
    if total == 0 {
        return quotas;
    }
    let mut left = parts;
    let mut rest = Vec::with_capacity(wanted.len());
    for (index, (weight, held)) in wanted.iter().enumerate() {
        let exact = u128::from(*weight) * parts as u128;
        // At most `parts`, which is a usize.
        quotas[index] = (exact / total) as usize;
        left -= quotas[index];
        rest.push((Reverse(exact % total), Reverse(*held), index));
    }
    rest.sort_unstable();
    for (_, _, index) in rest.into_iter().take(left) {
        quotas[index] += 1;
    }
    quotas
}

/// Takes a place at the target with room that `partition` scores highest.
fn best(shares: &mut BTreeMap<TargetId, TargetShare>, partition: PartitionId) -> Option<TargetId> {
    let (target, share) =
        shares.iter_mut().filter(|(_, share)| share.quota > 0).max_by(|(a, x), (b, y)| {
            let left = weighted(score(partition, **a), x.weight);
            let right = weighted(score(partition, **b), y.weight);
            left.total_cmp(&right)
        })?;
    share.quota -= 1;
    Some(*target)
}

pub(crate) fn score(partition: PartitionId, target: TargetId) -> u64 {
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
