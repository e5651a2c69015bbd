//! Bounds of a partition's memory and of one operation's work. Messages are bounded in
//! [`samite_wire::limits`].

use std::time::Duration;

/// Most client sessions that a partition remembers; the session that was not heard of for longest
/// goes first.
pub const SESSIONS_MAX: usize = 1024;
/// Most results that a partition remembers, over all sessions.
pub const RESULTS_MAX: usize = 16 * samite_wire::limits::SESSION_WINDOW;
/// Longest answer to a question that is remembered when it came with a mutation, in bytes: more than any inode has.
pub const REMEMBERED_LEN_MAX: usize = 256;
/// Most sessions of which a partition still knows that it has forgotten them.
pub const FORGOTTEN_MAX: usize = 4096;
/// Most open references in a partition.
pub const OPEN_REFERENCES_MAX: usize = 1 << 16;
/// Most open references that one client has in a partition.
pub const OPEN_REFERENCES_PER_CLIENT_MAX: usize = 1 << 14;
/// Most bytes of one listing.
pub const LISTING_LEN_MAX: usize = 256 << 10;
/// Most bytes of a listing of whole values that a client copies from the arena itself: with the
/// rest of its reply it goes through a ring of shared memory.
pub const REFERRING_LISTING_LEN_MAX: usize = 60 << 10;
/// Most bytes of values in a listing of whole values, by reference or not, so that none keeps a
/// shard busy for long; one value may be longer.
pub const LISTED_VALUES_LEN_MAX: u64 = 4 << 20;
/// Longest value in a listing of whole values that is not referred to, in bytes.
pub const LISTED_VALUE_LEN_MAX: usize = 64 << 10;
/// Most bytes of a record that a failed guard reveals, and that a listing returns of one value.
pub const REVEAL_LEN_MAX: u32 = 16 << 10;
/// Most records that one `DeletePrefix` removes, so that no operation keeps a shard busy for long.
pub const DELETE_PREFIX_MAX: u32 = 4096;
/// Most bytes that an operation may bring which removes something and so may take the reserve of a target.
pub const REMOVAL_LEN_MAX: usize = 512;
/// Most delegations that a partition keeps, of about 100 bytes each; further ones are refused. A
/// large directory is listed partition by partition, and a client that looks at the listed entries
/// asks for delegations on tens of thousands of entries of each within one term.
pub const DELEGATIONS_MAX: usize = 1 << 15;
/// Most clients that have a delegation on one record at the same time.
pub const DELEGATION_HOLDERS_MAX: usize = 64;
/// Longest term of a delegation.
pub const DELEGATION_TERM_MAX: Duration = Duration::from_secs(3);
