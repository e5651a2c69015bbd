//! Mirrored clusters whose nodes die, stop or are cut off while clients work, with a history that is known.
//!
//! Twelve processes, eight by the library ([`worker`]) and two each by `samite run` and by a mount ([`files`]), write what only they write, and know
//! therefore what must be there; the driver ([`driver`]) makes things go
//! wrong, heals them, waits until all groups are whole, and does it again with another node. No call may fail, nothing acknowledged
//! may be missing, nothing may have happened twice, nothing read may go back. What is known of a run that was wrong is kept ([`evidence`]).

pub mod driver;
pub mod evidence;
pub mod files;
mod members;
pub mod worker;
