//! A register that several voters keep together: the leader key and the state of a cluster's coordinator.
//!
//! Each voter has the whole [`Register`], and a log of the commands that changed it, which the library `omnipaxos` keeps equal at all of them. A
//! command is decided once most voters have it on flash. Pure: time comes in as [`Voter::tick`], messages as bytes, and what has to be on flash
//! before a message leaves comes out with it ([`Output`]).

mod configuration;
mod file;
mod host;
mod journal;
mod link;
mod register;
#[cfg(test)]
mod tests;
mod voter;

pub use configuration::{Configuration, Member, VOTERS_MAX};
pub use file::VoterFile;
pub use host::Host;
pub use journal::{Kept, Write};
pub use register::{Answer, Change, Register};
pub use voter::{LOG_LEN_MAX, Output, TICK, VoterId, words};
