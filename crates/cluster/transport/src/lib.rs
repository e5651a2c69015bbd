//! Requests, replies and bulk data over shared memory, unix sockets and tcp, with TLS where that is asked for.
//!
//! [`server::EventLoop`] runs in a shard of a node: it receives a request, hands it to the [`server::NodeService`]
//! where it lies, and sends the reply, all on one thread. [`client::NodeLink`] is one connection of a client to a node;
//! the thread that waits for a reply reads the connection itself, so that a call costs one send and one receive and no
//! thread is woken on the way. Between the two, on one host, [`shm`] replaces the socket by two rings in
//! shared memory, and large data by references into the node's arena.
//!
//! Client-side code calls the kernel through `rustix` only: the preloaded library links it, and libc's symbols would
//! lead back into its own hooks.

mod address;
mod doorbell;
mod fault;
mod handshake;
pub mod host;
mod key;
mod socket;
mod tls;

pub mod client;
pub mod server;
pub mod shm;

pub use address::{Address, TransportKind};
pub use key::ClusterKey;
pub use tls::{TlsAuthorities, TlsFiles};
