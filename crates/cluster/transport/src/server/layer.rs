//! The layer between a socket and its frames: none, or TLS.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use samite_types::{Error, ErrorKind, Result};
use samite_wire::frame::MAGIC;

use super::conn_id::ConnId;
use super::replies::{ReplySink, gone, was_reset};
use crate::proof::Binding;
use crate::socket;
use crate::tls::{RECORD_LEN_MAX, RecordOpener, TlsHandshake, TlsSession};

/// The receiving half.
#[derive(Debug)]
pub(super) enum ReceiveLayer {
    Plain,
    /// A TLS handshake is under way.
    Begun(Box<TlsHandshake>),
    Sealed(Box<RecordOpener>, Binding),
}

/// How a connection begins.
pub(super) enum LayerStart {
    Plain,
    /// The peer begins a TLS handshake.
    Accept(Box<TlsHandshake>),
    /// This side has made one.
    Made(Box<TlsSession>),
}

impl ReceiveLayer {
    /// Bytes can be had without asking the socket.
    pub(super) fn is_ready(&self) -> bool {
        matches!(self, Self::Sealed(opener, _) if opener.is_ready())
    }

    /// The peer is in the middle of a record.
    pub(super) fn is_inside_record(&self) -> bool {
        matches!(self, Self::Sealed(opener, _) if opener.is_inside_record())
    }

    /// The connection it belongs to is the one that was proved.
    pub(super) const fn binding(&self) -> Option<&Binding> {
        match self {
            Self::Sealed(_, binding) => Some(binding),
            Self::Plain | Self::Begun(_) => None,
        }
    }

    /// The peer waits for words of TLS, not for frames.
    pub(super) fn is_begun(&self) -> bool {
        matches!(self, Self::Begun(handshake) if !handshake.is_fresh())
    }

    pub(super) fn receive(
        &mut self,
        fd: BorrowedFd<'_>,
        dest: &mut [u8],
    ) -> std::result::Result<usize, Errno> {
        match self {
            Self::Sealed(opener, _) => opener.receive(fd, dest, false),
            Self::Plain | Self::Begun(_) => socket::receive(fd, dest, false),
        }
    }

    pub(super) fn receive_append(
        &mut self,
        fd: BorrowedFd<'_>,
        buffer: &mut Vec<u8>,
        limit: usize,
    ) -> std::result::Result<usize, Errno> {
        match self {
            Self::Sealed(opener, _) => opener.receive_append(fd, buffer, limit),
            Self::Plain | Self::Begun(_) => socket::receive_append(fd, buffer, limit, false),
        }
    }

    /// Goes on with the handshake, if it is under way. `false`: it waits for the peer.
    pub(super) fn advance(
        &mut self,
        id: ConnId,
        scratch: &mut [u8],
        replies: &mut ReplySink,
    ) -> Result<bool> {
        let Self::Begun(handshake) = self else { return Ok(true) };
        let Some(fd) = replies.fd(id) else { return Ok(false) };
        let bytes = &mut scratch[..RECORD_LEN_MAX];
        let len = match socket::receive(fd, bytes, false) {
            Ok(0) => return Err(gone()),
            Err(Errno::CONNRESET) => return Err(was_reset(true)),
            Ok(len) => len,
            Err(Errno::AGAIN) => return Ok(false),
            Err(errno) => return Err(Error::io("receive", errno)),
        };
        if handshake.is_fresh() && bytes[0] == MAGIC[0] {
            let words = "this address takes TLS only; connect by tls://…";
            return Err(Error::new(ErrorKind::Denied, words));
        }
        let mut out = Vec::new();
        let advanced = handshake.advance(&bytes[..len], &mut out);
        replies.push_raw(id, &out);
        if !advanced? {
            return Ok(false);
        }
        if let Self::Begun(handshake) = std::mem::replace(self, Self::Plain) {
            let TlsSession { sealer, opener, binding } = handshake.finish()?;
            replies.seal(id, sealer);
            *self = Self::Sealed(Box::new(opener), binding);
        }
        Ok(true)
    }
}
