//! Times of mirroring.

use std::time::Duration;

/// Times of mirroring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MirrorTimes {
    /// A message that was not answered is sent again after this.
    pub retransmit: Duration,
    /// A member that did not answer for so long is reported.
    pub missed: Duration,
    /// It is reported again after this, as long as no map says so: the first time may be too early
    /// for that to count.
    pub report_again: Duration,
    /// Longest delegation; a new primary lets nothing be changed for so long, if delegations were
    /// granted.
    pub delegation_term_max: Duration,
    /// A member that could not be brought up to date is tried again after this.
    pub resync_again: Duration,
    /// For so long a member may answer reads when it has asked.
    pub read_lease: Duration,
}

impl MirrorTimes {
    /// The times that are used unless set otherwise.
    pub const DEFAULT: Self = Self {
        retransmit: Duration::from_millis(100),
        missed: Duration::from_millis(600),
        report_again: Duration::from_millis(150),
        delegation_term_max: Duration::from_millis(250),
        resync_again: Duration::from_secs(1),
        read_lease: Duration::from_millis(250),
    };
}

impl Default for MirrorTimes {
    fn default() -> Self {
        Self::DEFAULT
    }
}
