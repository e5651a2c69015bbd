//! Rules that tests of tests break.

/// Ways to be wrong, each of which a test must find out. All off is right.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MirrorRules {
    /// Replies leave at once.
    pub replies_early: bool,
    /// A member that was reported is not waited for any more, whatever the map says.
    pub drops_unrecorded: bool,
    /// The terms of messages count for nothing: old ones are taken, and new ones depose nobody.
    pub ignores_terms: bool,
    /// Operations that come twice are done twice.
    pub forgets_results: bool,
    /// A record that changes behind the walk of a resync is not sent again.
    pub resyncs_without_queue: bool,
    /// Members that are not the primary answer reads.
    pub reads_anywhere: bool,
    /// A node whose lease is over goes on.
    pub ignores_lease: bool,
    /// A member that has been brought up to date is not waited for until the map calls it good.
    pub requires_late: bool,
    /// Any newer map is taken to make reports void that a member is up to date.
    pub forgets_promises: bool,
    /// A primary does not wait until the read leases of members are over.
    pub ignores_granted_reads: bool,
    /// The read leases of members are over when the clock says so, however it got there.
    pub trusts_jumps: bool,
    /// The read lease of a member is never over.
    pub reads_forever: bool,
    /// The room of other members counts for nothing.
    pub ignores_room: bool,
    /// A member answers reads with entries that may not be committed.
    pub reads_uncommitted: bool,
    /// A partition whose store has failed in the midst of a change goes on.
    pub trusts_store: bool,
    /// A member that does not follow commits what it is all the same.
    pub commits_unfit: bool,
}
