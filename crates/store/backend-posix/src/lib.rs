//! The posix backend.
