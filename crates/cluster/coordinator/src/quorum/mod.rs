//! A register that several voters keep together: the leader key and the state of a cluster's coordinator.
//!
//! Each voter has the whole [`StateRegister`], and a log of the commands that changed it, which the
//! library `omnipaxos` keeps equal at all of them. A command is decided once most voters have it on
//! flash. Pure: time comes in as [`VoterHost::tick`], messages as bytes, and the writes that have
//! to be on flash before a message leaves come out with it ([`VoterOutput`]).

mod configuration;
mod file;
mod host;
mod journal;
mod link;
mod register;
#[cfg(test)]
mod tests;
mod voter;

pub use configuration::{VOTERS_MAX, VoterConfiguration, VoterId, VoterMember};
pub use file::VoterFile;
pub use host::VoterHost;
pub use journal::{JournalWrite, VoterState};
pub use register::{RegisterAnswer, RegisterChange, StateRegister};
pub use voter::{LOG_LEN_MAX, TICK, VoterOutput, words};
