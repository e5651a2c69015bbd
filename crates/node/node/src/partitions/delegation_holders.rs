//! The clients with delegations on records of a shard.

use std::time::Duration;

use samite_partition::RecordLeases;
use samite_types::ClientId;

/// Clients, as far as delegations are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HolderSet {
    /// No client has any.
    Anyone,
    /// This one has all of them.
    Only(ClientId),
    /// Several have some, or there is no room for more.
    Nobody,
}

/// The holders of delegations: one client, or several, which are not told apart. The notes here
/// last a little longer than the delegations.
#[derive(Debug, Default)]
pub(super) struct DelegationHolders {
    first: Option<ClientId>,
    first_until: Duration,
    others_until: Duration,
    /// A table was full until then.
    full_until: Duration,
}

/// Summary of a partition's table of delegations.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeaseTerm {
    /// It says nothing from then on.
    until: Duration,
    is_full: bool,
}

impl LeaseTerm {
    pub(super) fn of(delegations: &RecordLeases) -> Self {
        Self { until: delegations.live_until(), is_full: delegations.is_full() }
    }
}

impl DelegationHolders {
    /// `client` has asked at `now` for delegations in a table that is like this now.
    pub(super) fn note(
        &mut self,
        client: ClientId,
        LeaseTerm { until, is_full }: LeaseTerm,
        now: Duration,
    ) {
        if is_full {
            self.full_until = self.full_until.max(until);
        }
        if self.first_until <= now {
            self.first = Some(client);
        }
        let whose = match self.first == Some(client) {
            true => &mut self.first_until,
            false => &mut self.others_until,
        };
        *whose = until.max(*whose);
    }

    /// It is `now`: delegations that have ended are forgotten.
    pub(super) fn at(&mut self, now: Duration) {
        for until in [&mut self.first_until, &mut self.others_until, &mut self.full_until] {
            if *until <= now {
                *until = Duration::ZERO;
            }
        }
    }

    /// Whether anybody has some.
    pub(super) const fn are_there(&self) -> bool {
        !self.first_until.is_zero() || !self.others_until.is_zero()
    }

    pub(super) const fn free_to_change(&self) -> HolderSet {
        match self.first {
            _ if !self.others_until.is_zero() || !self.full_until.is_zero() => HolderSet::Nobody,
            Some(client) if !self.first_until.is_zero() => HolderSet::Only(client),
            _ => HolderSet::Anyone,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ClientId = ClientId(1);
    const B: ClientId = ClientId(2);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn until(until: u64) -> LeaseTerm {
        LeaseTerm { until: ms(until), is_full: false }
    }

    #[test]
    fn one_holder_is_told_from_several() {
        let mut delegation_holders = DelegationHolders::default();
        assert!(!delegation_holders.are_there());
        assert_eq!(delegation_holders.free_to_change(), HolderSet::Anyone);
        delegation_holders.note(A, until(10), ms(1));
        delegation_holders.note(A, until(5), ms(2));
        assert_eq!(delegation_holders.free_to_change(), HolderSet::Only(A));
        delegation_holders.note(B, until(20), ms(3));
        delegation_holders.at(ms(10));
        assert_eq!(
            delegation_holders.free_to_change(),
            HolderSet::Nobody,
            "B has some, whoever it is"
        );
        assert!(delegation_holders.are_there());
        delegation_holders.note(B, until(30), ms(11));
        delegation_holders.at(ms(20));
        assert_eq!(delegation_holders.free_to_change(), HolderSet::Only(B));
        delegation_holders.at(ms(30));
        assert!(!delegation_holders.are_there());
        delegation_holders.note(A, until(40), ms(31));
        assert_eq!(delegation_holders.free_to_change(), HolderSet::Only(A));
    }

    #[test]
    fn nobody_may_change_delegated_records_while_a_table_is_full() {
        let mut delegations = RecordLeases::default();
        for index in 0..u64::MAX {
            delegations.grant(A, &index.to_le_bytes(), ms(2), ms(1));
            if delegations.is_full() {
                break;
            }
        }
        let mut delegation_holders = DelegationHolders::default();
        delegation_holders.note(A, LeaseTerm::of(&delegations), ms(1));
        assert_eq!(delegation_holders.free_to_change(), HolderSet::Nobody);
        delegation_holders.at(delegations.live_until());
        assert_eq!(delegation_holders.free_to_change(), HolderSet::Anyone);
    }
}
