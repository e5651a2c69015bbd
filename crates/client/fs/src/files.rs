//! Open files: their data, size, times and attributes.

pub mod append;
pub mod attributes;
pub mod convert;
pub mod copy;
pub mod data_location;
pub mod deferred;
pub mod file;
pub mod holes;
pub mod io;
pub mod open;
pub mod set_id;
pub mod size;
pub mod state;
pub mod tail;
pub mod writing;
pub mod xattr;
