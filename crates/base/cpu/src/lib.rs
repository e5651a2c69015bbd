//! The processor: how long a thread polls before it sleeps, on which core it runs, and what it
//! prefetches.
//!
//! Nodes, clients and mounts share few cores. [`SpinTime`] is the policy of polls, yields and
//! sleeps of one thread; [`CoreLeaving`] has a node's thread leave a core that it shares with a
//! client; [`AffinityFollower`] has a mount's worker follow its program to the program's core; and
//! [`prefetch`] has memory fetched that is needed soon. All of it is about time alone: nothing that
//! is decided here changes what a call returns.
//!
//! The preloaded library links this crate, which therefore reaches the kernel through `rustix` only.

mod affinity;
mod core;
mod leaving;
mod prefetch;
mod spin;

pub use self::core::{poll_for, this_core, timespec};
pub use affinity::{AffinityFollower, leave};
pub use leaving::{CoreLeaving, CoreSharers};
pub use prefetch::{prefetch, prefetch_to_write};
pub use spin::{PollCost, SpinTime};
