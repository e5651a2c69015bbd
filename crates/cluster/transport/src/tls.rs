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
pub(crate) use handshake::{TlsHandshake, TlsSession};
pub(crate) use keys::server_config;
pub(crate) use record::{RecordOpener, RecordSealer};

/// Hash of all bytes of a TLS handshake. The same at both ends, and at no other connection: both sides' ephemeral keys are in it.
pub(crate) type Binding = [u8; 32];

/// Longest record: header, content, its type, and the tag of any cipher of TLS 1.3.
pub(crate) const RECORD_LEN_MAX: usize = RECORD_HEADER_LEN + CONTENT_LEN_MAX + 256;
/// Most content of a record.
const CONTENT_LEN_MAX: usize = 16 << 10;
const RECORD_HEADER_LEN: usize = 5;

/// The length of the record at the front of `bytes`, header included; `None`: more bytes are needed to tell.
fn record_len(bytes: &[u8]) -> Option<usize> {
    let header = bytes.get(..RECORD_HEADER_LEN)?;
    Some(RECORD_HEADER_LEN + usize::from(u16::from_be_bytes([header[3], header[4]])))
}

/// Whether a peer's first bytes are the beginning of a TLS handshake.
pub(crate) fn begins_handshake(bytes: &[u8]) -> bool {
    bytes.starts_with(&[0x16, 3])
}
