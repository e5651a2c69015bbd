//! (skeleton)

pub mod runtime;
