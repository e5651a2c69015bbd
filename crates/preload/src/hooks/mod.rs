//! The symbols of libc that this library stands in for, by theme.

pub mod attributes;
pub mod copy;
pub mod descriptors;
pub mod directories;
pub mod environment;
pub mod exec;
pub mod exit;
pub mod extended;
pub mod identity;
pub mod locks;
pub mod memory;
pub mod names;
pub mod open;
pub mod paths;
pub mod poll;
pub mod program;
pub mod reading;
pub mod search;
pub mod space;
pub mod spawn;
pub mod status;
pub mod stdio;
pub mod temporary;
pub mod walk;
pub mod wide;
pub mod working_directory;
