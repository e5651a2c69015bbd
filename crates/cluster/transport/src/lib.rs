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
mod authorities;
mod credential;
mod doorbell;
mod fault;
mod handshake;
pub mod host;
mod identity;
mod key;
mod key_set;
mod proof;
mod signing;
mod socket;
mod tls;

pub mod client;
pub mod server;
pub mod shm;
pub mod ticket;

pub use address::{Address, TransportKind};
pub use authorities::TlsAuthorities;
pub use credential::Credential;
pub use identity::{PeerIdentity, PeerRole};
pub use key::ClusterKey;
pub use key_set::{ClusterKeys, SharedKeys};
pub use signing::SigningPair;
pub use tls::TlsFiles;
