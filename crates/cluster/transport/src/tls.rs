//! TLS 1.3 on tcp, for `tls://` addresses.
//!
//! Nobody runs a CA: the nodes' key pair comes of the cluster key, and a client takes exactly its
//! public key (RFC 7250), which holders of the cluster key derive and holders of tickets were
//! given. Clients show nothing in TLS; the handshake inside, whose proofs cover the TLS connection
//! ([`Binding`](crate::proof::Binding)), asks for theirs. The ephemeral key exchange keeps recorded traffic secret even
//! from those who learn the cluster key later. Where a site wants its own certificates
//! ([`TlsFiles`]), nodes show those; a peer that got hold of a certificate alone is found out by
//! the handshake inside.
//!
//! rustls makes the handshake ([`handshake`]); then the two directions part, each with its own key ([`record`]), as the sending and the receiving half
//! of a connection are in different hands here.

mod files;
mod handshake;
mod keys;
mod record;
#[cfg(test)]
mod tests;

pub use files::TlsFiles;
pub(crate) use handshake::{TlsHandshake, TlsSession};
pub(crate) use keys::server_config;
pub(crate) use record::{RECORD_LEN_MAX, RecordOpener, RecordSealer};

/// Whether a peer's first bytes are the beginning of a TLS handshake.
pub(crate) fn begins_handshake(bytes: &[u8]) -> bool {
    bytes.starts_with(&[0x16, 3])
}
