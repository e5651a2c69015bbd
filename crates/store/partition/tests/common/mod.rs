//! What the tests of a partition share.

use std::time::Duration;

use samite_partition::RequestContext;
use samite_types::{Epoch, Seq};

/// A request of a client that has had no answers yet.
pub fn context(is_retry: bool) -> RequestContext {
    RequestContext {
        answered_below: Seq(1),
        is_retry,
        name_space_generation: Epoch(u64::MAX),
        body_len_max: 1 << 16,
        now: Duration::ZERO,
        delegation_term_max: Duration::ZERO,
        reads_in_place: false,
        grants_all_delegations: false,
    }
}
