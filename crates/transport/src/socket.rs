//! Sockets, through raw system calls.
