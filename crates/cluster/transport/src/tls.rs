//! TLS 1.3 on tcp, for `tls://` addresses.
//!
//! Nobody runs a CA: both ends' key pairs are derived from the cluster key, a different one for
//! each side, and each end takes exactly the other's public key (RFC 7250). So a peer that does not
//! hold the cluster key gets no further than a TLS alert. The ephemeral key exchange keeps recorded
//! traffic secret even from those who learn the cluster key later. Where a site wants its own
//! certificates ([`TlsFiles`]), nodes show those, and the proof of the cluster key that follows
//! covers the TLS handshake ([`Binding`]), so that a peer that got hold of a certificate alone is
//! still found out.
//!
//! rustls makes the handshake ([`handshake`]); then the two directions part, each with its own key ([`record`]), as the sending and the receiving half
//! of a connection are in different hands here.

mod files;
mod handshake;
mod keys;
mod record;
#[cfg(test)]
mod tests;

pub use files::{TlsAuthorities, TlsFiles};
pub(crate) use handshake::{Binding, TlsHandshake, TlsSession};
pub(crate) use keys::server_config;
pub(crate) use record::{RECORD_LEN_MAX, RecordOpener, RecordSealer};

/// Whether a peer's first bytes are the beginning of a TLS handshake.
pub(crate) fn begins_handshake(bytes: &[u8]) -> bool {
    bytes.starts_with(&[0x16, 3])
}
