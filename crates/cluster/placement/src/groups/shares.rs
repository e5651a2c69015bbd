//! The share of each target: how many groups it should be a member of.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::PlacementWork;
use crate::assign::quotas;

impl PlacementWork<'_> {
    /// Memberships that each place should have: by weight, but a rack, host or node is in a group
    /// once, where there are enough; and what is not open keeps what it has.
    pub(super) fn quotas(&self) -> Vec<usize> {
        let partitions = self.groups.len();
        let mut quota = self.count.clone();
        let (mut shut, mut open) = (0, Vec::new());
        for (at, place) in self.places.iter().enumerate() {
            match (place.is_open, place.weight) {
                (false, _) => shut += quota[at],
                (true, 0) => quota[at] = 0,
                (true, _) => open.push(at),
            }
        }
        let left = (partitions * self.redundancy).saturating_sub(shut);
        let domains = self.domains();
        for (apart, part) in self.share_out(&open, left, |at| domains[at]) {
            for (node, part) in self.share_out(&apart, part, |at| self.nodes[at]) {
                let wanted: Vec<(u64, usize)> =
                    node.iter().map(|at| (self.places[*at].weight, self.count[*at])).collect();
                for (at, part) in node.iter().zip(quotas(&wanted, part)) {
                    quota[*at] = part;
                }
            }
        }
        quota
    }

    /// What two members of a group should not have in common, of each place: the rack if there are
    /// enough of them, or the host, or the node.
    fn domains(&self) -> &[usize] {
        let is_enough = |domains: &[usize]| {
            let open = (0..self.places.len())
                .filter(|at| self.places[*at].is_open && self.places[*at].weight > 0);
            open.map(|at| domains[at]).collect::<HashSet<_>>().len() >= self.redundancy
        };
        let domains = [&self.racks, &self.hosts].into_iter().find(|domains| is_enough(domains));
        domains.unwrap_or(&self.nodes)
    }

    /// Shares `parts` among the places `open`, by weight, so that those of one domain together have
    /// at most every partition once; the places of each domain, and their part.
    fn share_out(
        &self,
        open: &[usize],
        mut parts: usize,
        domain: impl Fn(usize) -> usize,
    ) -> Vec<(Vec<usize>, usize)> {
        let mut sharing: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        open.iter().for_each(|at| sharing.entry(domain(*at)).or_default().push(*at));
        let partitions = self.groups.len();
        let shut = |of: usize| -> usize {
            let shut = (0..self.places.len()).filter(|at| !self.places[*at].is_open);
            shut.filter(|at| domain(*at) == of).map(|at| self.count[at]).sum()
        };
        let most: HashMap<usize, usize> =
            sharing.keys().map(|of| (*of, partitions.saturating_sub(shut(*of)))).collect();
        let mut shares = Vec::new();
        // Domains that would get more than that get so much, and the others share the rest.
        while !sharing.is_empty() {
            let wanted: Vec<(u64, usize)> = sharing
                .values()
                .map(|places| {
                    let weights = places.iter().map(|at| self.places[*at].weight);
                    let weight = weights.fold(0u64, u64::saturating_add);
                    (weight, places.iter().map(|at| self.count[*at]).sum())
                })
                .collect();
            let found: Vec<(usize, usize)> =
                sharing.keys().copied().zip(quotas(&wanted, parts)).collect();
            let full: Vec<usize> =
                found.iter().filter(|(of, part)| *part > most[of]).map(|(of, _)| *of).collect();
            if full.is_empty() {
                shares.extend(sharing.into_values().zip(found.into_iter().map(|(_, part)| part)));
                break;
            }
            for of in full {
                parts = parts.saturating_sub(most[&of]);
                shares.extend(sharing.remove(&of).map(|places| (places, most[&of])));
            }
        }
        shares
    }
}
