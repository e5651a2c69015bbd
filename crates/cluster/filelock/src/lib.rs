//! File locks, without threads and sockets: who has which, who waits, which nodes know of them, and
//! how a node that becomes a primary learns of them.
//!
//! Time, cluster maps and messages come in as values; what is to be answered comes out. Node and
//! client carry it out: the node keeps one [`NodeLocks`] for all of its shards, and a client finds
//! out by [`granter`] and [`LockAudience`] whom it asks, and who is to note what it got.
//!
//! ```text
//! client ── LockRequest ──▶ check_request ─▶ NodeLocks ─▶ LockTable       granted, waits, circles
//!    │                                          │  ▲
//!    │ LockAudience: notes for                  ▼  │ locks that others know
//!    └──────────────▶ the other members     LockRecovery                 after a change of primary
//! ```

mod audience;
mod authority;
mod circle;
mod node_locks;
mod recovery;
mod table;

pub use audience::{LockAudience, granter, is_mirrored, is_online, may_live};
pub use authority::{AnsweringNode, answer_to_wait, check_request};
pub use circle::CircleSearch;
pub use node_locks::{NodeLocks, WaitAnswer};
pub use recovery::{GivenUpRecovery, HolderReports, RecoveryQuestions};
pub use table::{LockClaim, LockFile, LockTable, LockVerdict, WaitId};
