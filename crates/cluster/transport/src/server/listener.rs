//! Sockets that accept connections.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use samite_types::{Error, Result};

use crate::address::Address;
use crate::socket;

/// A socket that accepts connections. A unix one removes its path when the last clone is dropped.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
    address: Address,
    file: Option<Arc<SocketFile>>,
    is_for_guests: bool,
}

#[derive(Debug)]
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // It may be gone with its directory already.
        let _ = rustix::fs::unlink(&self.0);
    }
}

impl Listener {
    /// Listens on a unix socket, for `unix://` and `shm://` alike. A socket file that nobody listens on is replaced.
    ///
    /// # Errors
    /// `Exists` when somebody listens there; `Invalid` for a path that is too long; what the system says.
    pub fn unix(path: &Path) -> Result<Self> {
        Ok(Self {
            fd: socket::listen_unix(path)?,
            address: Address::Unix(path.to_owned()),
            file: Some(Arc::new(SocketFile(path.to_owned()))),
            is_for_guests: false,
        })
    }

    /// Listens on a unix socket for all users of the host, who prove nothing there and may ask for
    /// tickets.
    ///
    /// # Errors
    /// As [`Listener::unix`].
    pub fn guests(path: &Path) -> Result<Self> {
        let listener = Self { is_for_guests: true, ..Self::unix(path)? };
        let mode = rustix::fs::Mode::from_raw_mode(0o666);
        rustix::fs::chmod(path, mode).map_err(|errno| {
            Error::io(format_args!("let users reach {}", path.display()), errno)
        })?;
        Ok(listener)
    }

    /// Listens on tcp; port 0 takes a free one.
    ///
    /// # Errors
    /// `Unavailable` for a host that does not resolve; what the system says.
    pub fn tcp(host: &str, port: u16) -> Result<Self> {
        let (fd, port) = socket::listen_tcp(host, port)?;
        Ok(Self {
            fd,
            address: Address::Tcp(host.to_owned(), port),
            file: None,
            is_for_guests: false,
        })
    }

    /// The same, for TLS and nothing else.
    ///
    /// # Errors
    /// As [`Listener::tcp`].
    pub fn tls(host: &str, port: u16) -> Result<Self> {
        let (fd, port) = socket::listen_tcp(host, port)?;
        Ok(Self {
            fd,
            address: Address::Tls(host.to_owned(), port),
            file: None,
            is_for_guests: false,
        })
    }

    pub(super) const fn is_tls(&self) -> bool {
        matches!(self.address, Address::Tls(..))
    }

    pub(super) const fn is_for_guests(&self) -> bool {
        self.is_for_guests
    }

    /// Where it listens: `unix://…`, or `tcp://…` or `tls://…` with the real port.
    #[must_use]
    pub const fn address(&self) -> &Address {
        &self.address
    }

    /// The same socket for another event loop; each connection goes to one of them.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn try_clone(&self) -> Result<Self> {
        let fd = rustix::io::fcntl_dupfd_cloexec(&self.fd, 3)
            .map_err(|errno| Error::io(format_args!("clone listener {}", self.address), errno))?;
        Ok(Self {
            fd,
            address: self.address.clone(),
            file: self.file.clone(),
            is_for_guests: self.is_for_guests,
        })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
