//! A connection while its ends get to know each other.

use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::PollFlags;
use rustix::io::Errno;
use samite_types::{Deadline, Error, ErrorKind, Result};
use samite_wire::frame::{CheckedHeader, FrameKind, HEADER_LEN, MAGIC};

use crate::Address;
use crate::credential::Credential;
use crate::handshake::check_header;
use crate::socket::{self, Descriptors, poll_for, receive_with_descriptors, send_now};
use crate::tls::{RECORD_LEN_MAX, TlsHandshake, TlsSession};

/// A socket, with the descriptors that came by it besides bytes, and TLS if it has that.
pub(super) struct HandshakeChannel {
    pub(super) fd: OwnedFd,
    pub(super) descriptors: Descriptors,
    pub(super) tls: Option<TlsSession>,
    deadline: Deadline,
}

fn failed(errno: Errno) -> Error {
    socket::broken("handshake", errno)
}

fn closed() -> Error {
    Error::new(ErrorKind::Unavailable, "closed by the node in the handshake")
}

impl HandshakeChannel {
    /// Connects, and says nothing yet.
    pub(super) fn open(address: &Address, deadline: Deadline) -> Result<Self> {
        let fd = socket::connect(address, deadline)?;
        Ok(Self { fd, descriptors: Descriptors::new(), tls: None, deadline })
    }

    /// By `tls://`, makes the TLS handshake.
    pub(super) fn begin(&mut self, address: &Address, credential: &Credential) -> Result<()> {
        if let Address::Tls(host, _) = address {
            self.tls = Some(self.secure(TlsHandshake::client(credential, host)?)?);
        }
        Ok(())
    }

    fn secure(&self, mut handshake: TlsHandshake) -> Result<TlsSession> {
        let mut out = Vec::new();
        let mut bytes = vec![0; RECORD_LEN_MAX];
        let mut len = 0;
        loop {
            let advanced = handshake.advance(&bytes[..len], &mut out);
            let sent = self.send_raw(&std::mem::take(&mut out));
            // The message of the handshake tells more than that the node has closed.
            if advanced? {
                sent?;
                return handshake.finish();
            }
            sent?;
            self.wait()?;
            len = match socket::receive(self.fd.as_fd(), &mut bytes, false) {
                Ok(0) => return Err(closed()),
                Ok(len) => len,
                Err(Errno::AGAIN) => 0,
                Err(errno) => return Err(failed(errno)),
            };
            if handshake.is_fresh() && bytes[..len].starts_with(&MAGIC) {
                let words = "node takes no TLS at this address; connect by tcp://…";
                return Err(Error::new(ErrorKind::Denied, words));
            }
        }
    }

    fn send_raw(&self, bytes: &[u8]) -> Result<()> {
        // A fresh socket has room for a handshake message, or something is very wrong.
        match send_now(self.fd.as_fd(), &[IoSlice::new(bytes)]) {
            _ if bytes.is_empty() => Ok(()),
            Ok(len) if len == bytes.len() => Ok(()),
            Ok(_) => Err(Error::new(ErrorKind::Io, "handshake was cut short")),
            Err(errno) => Err(failed(errno)),
        }
    }

    pub(super) fn send(&mut self, bytes: &[u8]) -> Result<()> {
        let Some(tls) = &mut self.tls else { return self.send_raw(bytes) };
        tls.sealer.seal(&[bytes], 0).map_err(failed)?;
        match tls.sealer.send(self.fd.as_fd()) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Error::new(ErrorKind::Io, "handshake was cut short")),
            Err(errno) => Err(failed(errno)),
        }
    }

    /// Receives one handshake frame, and not a byte more.
    pub(super) fn receive(&mut self) -> Result<(FrameKind, Vec<u8>)> {
        let mut raw = [0; HEADER_LEN];
        self.fill(&mut raw)?;
        let header = CheckedHeader::parse(&raw)?;
        check_header(&header)?;
        let mut body = vec![0; header.body_len];
        self.fill(&mut body)?;
        header.verify(&body, &[])?;
        Ok((header.kind, body))
    }

    /// Waits until something comes.
    fn wait(&self) -> Result<()> {
        loop {
            let remaining = self
                .deadline
                .remaining()
                .ok_or_else(|| Error::new(ErrorKind::Timeout, "no answer in the handshake"))?;
            let ready = poll_for(self.fd.as_fd(), PollFlags::IN, remaining).map_err(failed)?;
            if !ready.is_empty() {
                return Ok(());
            }
        }
    }

    fn fill(&mut self, mut buffer: &mut [u8]) -> Result<()> {
        while !buffer.is_empty() {
            let fd = self.fd.as_fd();
            let len = match &mut self.tls {
                Some(tls) => match tls.opener.receive(fd, buffer, false) {
                    Err(Errno::AGAIN) => {
                        self.wait()?;
                        continue;
                    }
                    result => result.map_err(failed)?,
                },
                None => {
                    self.wait()?;
                    let (len, more) =
                        receive_with_descriptors(self.fd.as_fd(), buffer).map_err(failed)?;
                    self.descriptors.extend(more);
                    len
                }
            };
            if len == 0 {
                return Err(closed());
            }
            buffer = &mut buffer[len..];
        }
        Ok(())
    }
}
