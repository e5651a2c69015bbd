//! A client's side: the mapped arena, blocks granted to it, and early completion.

mod grants;
mod submission;
mod view;

pub use grants::{BlockGrant, GrantPool, WritableBlock};
pub use submission::{SubmittedChange, SubmittedEntry};
pub use view::ArenaView;
