//! The handshake of `wire::hello`, without I/O.
