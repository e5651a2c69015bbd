//! Shared memory between a node and the clients on its host.

mod arena_view;
pub(crate) mod cores;
mod grants;
pub(crate) mod mapping;
pub(crate) mod ring;
mod submission;

pub use arena_view::ArenaView;
pub use grants::{BlockGrant, GrantPool};
pub use submission::{SubmittedChange, SubmittedEntry};
