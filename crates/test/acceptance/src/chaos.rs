//! Mirrored clusters whose nodes die, stop or are cut off while clients work, with a history that is known.
//!
//! Twelve processes, eight by the library ([`worker`]) and two each by `samite run` and by a mount
//! ([`files`]), write files and keys that no other process writes, and know therefore which content
//! must be there; the driver ([`driver`]) injects faults, heals them, waits until all groups are
//! whole, and does it again with another node. No call may fail, nothing acknowledged may be
//! missing, nothing may have happened twice, nothing read may go back. The evidence of a failed run
//! is kept ([`evidence`]).

pub mod driver;
pub mod evidence;
pub mod files;
mod members;
pub mod worker;
