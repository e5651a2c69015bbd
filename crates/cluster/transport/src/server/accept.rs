//! Taking in new connections.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::event::EventfdFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags, sockopt};
use rustls::ServerConfig;
use samite_types::{Clock, Error, ErrorKind, Result, SystemClock};

use super::layer::LayerStart;
use super::listener::Listener;
use super::ration::LogRation;
use crate::TlsFiles;
use crate::handshake::goodbye;
use crate::key_set::SharedKeys;
use crate::socket;
use crate::tls::{TlsHandshake, server_config};

/// Connections accepted before the existing ones have their turn.
const ACCEPTS_PER_TURN: usize = 16;
/// Spare descriptors to refuse connections with when there are no others.
const SPARE: usize = 16;
/// More than a client sends before it is answered.
const FIRST_LEN_MAX: usize = 4096;

/// A connection that has just come.
pub(super) struct AcceptedConnection {
    pub(super) fd: OwnedFd,
    pub(super) origin: ConnectionOrigin,
    pub(super) start: LayerStart,
}

/// Where a connection comes from.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionOrigin {
    /// The peer's user, where the kernel tells.
    pub(super) uid: Option<u32>,
    pub(super) is_tcp: bool,
    /// It came by a socket where tickets are given out.
    pub(super) is_for_guests: bool,
}

/// Accepts from listeners, also when descriptors run out.
#[derive(Debug)]
pub(super) struct ConnectionAcceptor {
    pub(super) listeners: Vec<Listener>,
    /// Descriptors to give up when there are no others, so that connections can be taken, told so and closed; otherwise they
    /// would stay in the queue and keep the loop awake.
    spare: Vec<OwnedFd>,
    /// Of lines about connections that were refused.
    pub(super) ration: LogRation,
    /// For the listeners that take TLS.
    tls: Option<Arc<ServerConfig>>,
}

impl AcceptedConnection {
    /// Tells the peer why it is not taken up. Its bytes are read first: a socket that is closed
    /// with something unread tells it nothing.
    pub(super) fn refuse(self, error: &Error) {
        // A courtesy; whether it arrives does not matter.
        let _ = rustix::net::recv(&self.fd, &mut [0; FIRST_LEN_MAX], RecvFlags::DONTWAIT);
        if matches!(self.start, LayerStart::Plain) {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let _ = rustix::net::send(&self.fd, &goodbye(error), flags);
        }
    }
}

impl ConnectionAcceptor {
    pub(super) fn new(
        listeners: Vec<Listener>,
        keys: &SharedKeys,
        files: Option<&TlsFiles>,
    ) -> Result<Self> {
        let is_any_tls = listeners.iter().any(Listener::is_tls);
        let tls = is_any_tls.then(|| server_config(keys, files)).transpose()?;
        let (spare, ration) = (Vec::with_capacity(SPARE), LogRation::default());
        let mut acceptor = Self { listeners, spare, ration, tls };
        acceptor.spare().map_err(|errno| Error::io("make an event loop", errno))?;
        Ok(acceptor)
    }

    /// Takes the descriptors that are to be spare, as far as there are some.
    fn spare(&mut self) -> Result<(), Errno> {
        while self.spare.len() < SPARE {
            self.spare.push(rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?);
        }
        Ok(())
    }

    /// Accepts the connections that wait at a listener.
    pub(super) fn accept(&mut self, index: usize, mut take: impl FnMut(AcceptedConnection)) {
        // Some are to be spare before any other is taken.
        let _ = self.spare();
        let Some(listener) = self.listeners.get(index) else { return };
        let tls = self.tls.as_ref().filter(|_| listener.is_tls());
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        for _ in 0..ACCEPTS_PER_TURN {
            match rustix::net::accept_with(listener.fd(), flags) {
                Ok(fd) => match prepare(fd, listener, tls) {
                    Ok(accepted) => take(accepted),
                    Err(error) => {
                        if let Some(more) = self.ration.line(SystemClock.monotonic()) {
                            tracing::warn!("accept on {}: {error}{more}", listener.address());
                        }
                    }
                },
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(errno @ (Errno::MFILE | Errno::NFILE)) => {
                    self.refuse_all(index, errno);
                    return;
                }
                Err(errno) => {
                    if let Some(more) = self.ration.line(SystemClock.monotonic()) {
                        tracing::warn!("accept on {}: {errno}{more}", listener.address());
                    }
                    return;
                }
            }
        }
    }

    /// There are no descriptors left: refuses the connections that wait at a listener.
    fn refuse_all(&mut self, index: usize, errno: Errno) {
        self.spare.clear();
        let Some(listener) = self.listeners.get(index) else { return };
        let tls = self.tls.as_ref().filter(|_| listener.is_tls());
        let error = Error::new(ErrorKind::Busy, "too many connections: no descriptors are left");
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        for _ in 0..SPARE {
            let Ok(fd) = rustix::net::accept_with(listener.fd(), flags) else { break };
            if let Some(more) = self.ration.line(SystemClock.monotonic()) {
                let address = listener.address();
                tracing::warn!("refused a connection to {address}: {errno}{more}");
            }
            if let Ok(accepted) = prepare(fd, listener, tls) {
                accepted.refuse(&error);
            }
        }
        // The next connection that gives one back gives it for this.
        let _ = self.spare();
    }
}

fn prepare(
    fd: OwnedFd,
    listener: &Listener,
    tls: Option<&Arc<ServerConfig>>,
) -> Result<AcceptedConnection> {
    let is_tcp = listener.address().is_tcp();
    socket::tune(fd.as_fd(), is_tcp).map_err(|errno| Error::io("set socket options", errno))?;
    let uid = if is_tcp {
        None
    } else {
        let peer = sockopt::socket_peercred(&fd)
            .map_err(|errno| Error::io("ask for the peer's user", errno))?;
        Some(peer.uid.as_raw())
    };
    let start = match tls {
        Some(config) => LayerStart::Accept(Box::new(TlsHandshake::server(config)?)),
        None => LayerStart::Plain,
    };
    let origin = ConnectionOrigin { uid, is_tcp, is_for_guests: listener.is_for_guests() };
    Ok(AcceptedConnection { fd, origin, start })
}
