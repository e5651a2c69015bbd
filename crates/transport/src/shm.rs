//! Shared memory between a node and the clients on its host.

mod arena_view;
pub(crate) mod cores;
mod grants;
pub(crate) mod mapping;
mod posts;
pub(crate) mod ring;

pub use arena_view::ArenaView;
pub use grants::{Grant, GrantPool};
pub use posts::{Change, Posted};
