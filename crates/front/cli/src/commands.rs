//! The commands: one module each, or one for a few that belong together.

pub mod acknowledge;
pub mod bench;
pub mod data;
pub mod dataset;
pub mod df;
pub mod down;
pub mod fault;
pub mod files;
pub mod key;
pub mod kv;
pub mod ls;
pub mod mount;
pub mod node;
pub mod object;
pub mod room;
pub mod run;
pub mod scan;
pub mod scrub;
pub mod set;
pub mod stage;
pub mod stat;
pub mod status;
pub mod ticket;
pub mod up;
