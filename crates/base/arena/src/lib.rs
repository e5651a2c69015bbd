//! The arena: the memory file of a node, which clients on its host map.
//!
//! It has three parts, each with rules that both sides keep:
//!
//! - **blocks** with values, which clients read and fill in place ([`layout`]);
//! - the **look-up table**, in which clients find the first bytes of records without a request
//!   ([`lookup`]);
//! - the **submission queues**, in which clients leave operations that complete early
//!   ([`submission`]).
//!
//! [`node`] is the node's side: it owns the memory and reads nothing back from it that it relies
//! on. [`client`] is a client's side. A model tries all orders of the steps of early completion
//! (`tests/submission`).
//!
//! The preloaded library links this crate, which therefore reaches the kernel through `rustix` only.

pub mod client;
pub mod layout;
pub mod lookup;
pub mod node;
pub mod submission;

mod mapping;

pub use client::{
    ArenaView, BlockGrant, GrantPool, SubmittedChange, SubmittedEntry, WritableBlock,
};
pub use mapping::{SharedMapping, file_len, memory_file};
pub use node::{
    Arena, ArenaExtent, BlockQuota, CoreWaiters, ExclusiveLock, LockTurn, QueueAccess,
    SubmissionEntry, check_capacity, machine_memory,
};
