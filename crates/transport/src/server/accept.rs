//! Taking in new connections.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::event::EventfdFlags;
use rustix::io::Errno;
use rustix::net::{SocketFlags, sockopt};
use rustls::ServerConfig;
use samite_types::{Error, Result};

use super::Listener;
use super::layer::Start;
use crate::TlsFiles;
use crate::key::ClusterKey;
use crate::socket;
use crate::tls::{Handshake, server_config};

/// Connections taken in before those that exist have their turn.
const ACCEPTS_PER_TURN: usize = 16;

/// A connection that has just come.
pub(super) struct Accepted {
    pub(super) fd: OwnedFd,
    pub(super) uid: Option<u32>,
    pub(super) is_tcp: bool,
    pub(super) start: Start,
}

/// Accepts from listeners, also when descriptors run out.
#[derive(Debug)]
pub(super) struct Acceptor {
    pub(super) listeners: Vec<Listener>,
    /// A descriptor to give up when there are no others, so that a connection can be taken and closed; otherwise it
    /// would stay in the queue and keep the loop awake.
    spare: Option<OwnedFd>,
    /// For the listeners that take TLS.
    tls: Option<Arc<ServerConfig>>,
}

fn spare() -> Result<OwnedFd, Errno> {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC)
}

impl Acceptor {
    pub(super) fn new(
        listeners: Vec<Listener>,
        key: &ClusterKey,
        files: Option<&TlsFiles>,
    ) -> Result<Self> {
        let failed = |errno| Error::io("make an event loop", errno);
        let is_any_tls = listeners.iter().any(Listener::is_tls);
        let tls = is_any_tls.then(|| server_config(key, files)).transpose()?;
        Ok(Self { listeners, spare: Some(spare().map_err(failed)?), tls })
    }

    /// Takes what waits at a listener.
    pub(super) fn accept(&mut self, index: usize, mut take: impl FnMut(Accepted)) {
        let Some(listener) = self.listeners.get(index) else { return };
        let is_tcp = listener.address().is_tcp();
        let tls = self.tls.as_ref().filter(|_| listener.is_tls());
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        for _ in 0..ACCEPTS_PER_TURN {
            match rustix::net::accept_with(listener.fd(), flags) {
                Ok(fd) => match prepare(fd, is_tcp, tls) {
                    Ok(accepted) => take(accepted),
                    Err(error) => tracing::warn!("accept on {}: {error}", listener.address()),
                },
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(errno @ (Errno::MFILE | Errno::NFILE)) => {
                    tracing::warn!("refused a connection to {}: {errno}", listener.address());
                    self.spare = None;
                    drop(rustix::net::accept_with(listener.fd(), flags));
                    self.spare = spare().ok();
                    return;
                }
                Err(errno) => {
                    tracing::warn!("accept on {}: {errno}", listener.address());
                    return;
                }
            }
        }
    }
}

fn prepare(fd: OwnedFd, is_tcp: bool, tls: Option<&Arc<ServerConfig>>) -> Result<Accepted> {
    socket::tune(fd.as_fd(), is_tcp).map_err(|errno| Error::io("set socket options", errno))?;
    let uid = if is_tcp {
        None
    } else {
        let peer = sockopt::socket_peercred(&fd)
            .map_err(|errno| Error::io("ask for the peer's user", errno))?;
        Some(peer.uid.as_raw())
    };
    let start = match tls {
        Some(config) => Start::Accept(Box::new(Handshake::server(config)?)),
        None => Start::Plain,
    };
    Ok(Accepted { fd, uid, is_tcp, start })
}
