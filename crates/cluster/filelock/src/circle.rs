//! The search for an owner that waits for itself, over others.

use std::collections::BTreeSet;

use samite_wire::lock::LockOwner;

/// Looks through the owners that an owner waits for, those that these wait for, and so on, until it
/// comes back to the first.
#[derive(Debug)]
pub struct CircleSearch {
    owner: LockOwner,
    seen_max: usize,
    next: Vec<LockOwner>,
    seen: BTreeSet<LockOwner>,
}

impl CircleSearch {
    /// A search for `owner` that looks at `seen_max` others at most. `first` are the owners that
    /// are asked for first.
    #[must_use]
    pub const fn new(owner: LockOwner, seen_max: usize, first: Vec<LockOwner>) -> Self {
        Self { owner, seen_max, next: first, seen: BTreeSet::new() }
    }

    /// The next owner whose waits are to be looked at; `None`: there is no circle, as far as can be
    /// told. None comes twice.
    pub fn next_owner(&mut self) -> Option<LockOwner> {
        loop {
            let one = self.next.pop()?;
            if self.seen.len() < self.seen_max && self.seen.insert(one) {
                return Some(one);
            }
        }
    }

    /// `owners` are those that the last one waits for. Whether the circle is closed.
    #[must_use]
    pub fn waits_for(&mut self, owners: Vec<LockOwner>) -> bool {
        let is_closed = owners.contains(&self.owner);
        self.next.extend(owners);
        is_closed
    }
}

#[cfg(test)]
mod tests {
    use samite_types::ClientId;

    use super::*;

    const fn owner(token: u64) -> LockOwner {
        LockOwner { client: ClientId(1), token }
    }

    /// Whether `0` waits for itself when each owner waits for those listed.
    fn finds(waits: &[&[u64]], seen_max: usize) -> bool {
        let mut search = CircleSearch::new(owner(0), seen_max, vec![owner(0)]);
        while let Some(one) = search.next_owner() {
            let others = waits.get(one.token as usize).copied().unwrap_or_default();
            if search.waits_for(others.iter().copied().map(owner).collect()) {
                return true;
            }
        }
        false
    }

    #[test]
    fn circles_are_found_and_others_circles_end_the_search() {
        assert!(!finds(&[&[]], 64));
        assert!(finds(&[&[0]], 64));
        assert!(finds(&[&[1, 2], &[], &[3], &[0]], 64));
        assert!(!finds(&[&[1], &[2], &[1]], 64), "1 and 2 wait for each other");
    }

    #[test]
    fn no_more_owners_are_looked_at_than_allowed() {
        let chain: Vec<Vec<u64>> = (1..=10).map(|next| vec![next % 10]).collect();
        let chain: Vec<&[u64]> = chain.iter().map(Vec::as_slice).collect();
        assert!(finds(&chain, 10));
        assert!(!finds(&chain, 9));
    }
}
