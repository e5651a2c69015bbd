//! Shared memory between a node and the clients on its host.

mod arena_view;
mod grants;

pub use arena_view::ArenaView;
pub use grants::{Grant, GrantPool};
