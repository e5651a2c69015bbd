//! Serves a node's metrics to scrapers: HTTP/1.1 `GET /metrics`, on a thread of its own.
//!
//! One connection at a time, with a bound on its request and on its time: a scraper that is slow
//! or says nothing keeps the next one waiting for at most [`SCRAPE_TIME`], and nobody else.

use std::io::Error as IoError;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, SocketFlags, sockopt};
use samite_metrics::exposition::{CONTENT_TYPE, text};
use samite_metrics::registry;
use samite_metrics::scrape::{HEAD_LEN_MAX, ScrapeRequest, response_head};
use samite_types::{Clock, Error, ErrorKind, Result, SystemClock};

use crate::metrics_address::MetricsAddress;
use crate::shared::NodeShared;

/// How long a connection may take in all.
const SCRAPE_TIME: Duration = Duration::from_secs(1);
/// Pause when no connection can be taken, for lack of descriptors or memory.
const PAUSE: Duration = Duration::from_millis(100);

/// The listening socket.
#[derive(Debug)]
pub(crate) struct MetricsServer {
    listener: Arc<OwnedFd>,
    /// Where it is, as a URL.
    address: String,
    /// To be removed at the end.
    path: Option<PathBuf>,
}

impl MetricsServer {
    /// Listens at `address`.
    ///
    /// # Errors
    /// [`ErrorKind::Io`], [`ErrorKind::Invalid`]: it cannot be listened on.
    pub(crate) fn listen(address: &MetricsAddress) -> Result<Self> {
        let failed = |error: IoError| {
            Error::new(ErrorKind::Io, format!("serve metrics at {address}: {error}"))
        };
        match address {
            MetricsAddress::Tcp(address) => {
                let listener = TcpListener::bind(address).map_err(failed)?;
                let address = format!("http://{}/metrics", listener.local_addr().map_err(failed)?);
                Ok(Self { listener: Arc::new(listener.into()), address, path: None })
            }
            MetricsAddress::Unix(path) => {
                remove_dead_socket(path);
                let listener = UnixListener::bind(path).map_err(failed)?;
                let own = std::fs::Permissions::from_mode(0o600);
                std::fs::set_permissions(path, own).map_err(failed)?;
                let listener = Arc::new(listener.into());
                Ok(Self { listener, address: address.to_string(), path: Some(path.clone()) })
            }
        }
    }

    /// Where it listens: `http://HOST:PORT/metrics` or `unix:PATH`.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// The work of the thread, until the server is dropped; then it ends with the connection that it
    /// serves.
    pub(crate) fn body(&self, shared: &Arc<NodeShared>) -> impl FnOnce() + Send + use<> {
        let (listener, shared) = (Arc::clone(&self.listener), Arc::clone(shared));
        move || {
            while !shared.stop.is_asked() {
                match rustix::net::accept_with(&listener, SocketFlags::CLOEXEC) {
                    Ok(connection) => {
                        let deadline = SystemClock.monotonic() + SCRAPE_TIME;
                        // The scraper notices by itself.
                        let _ = serve(connection.as_fd(), deadline, &mut || shared.scrape());
                    }
                    Err(Errno::INTR | Errno::CONNABORTED) => {}
                    Err(_) => std::thread::sleep(PAUSE),
                }
            }
        }
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        // A thread that waits for a connection is woken by it.
        let _ = rustix::net::shutdown(&self.listener, Shutdown::Both);
        if let Some(path) = &self.path {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Removes a socket that a node which died has left.
fn remove_dead_socket(path: &Path) {
    let is_socket =
        std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    let is_dead = || {
        let tried = UnixStream::connect(path);
        tried.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
    };
    if is_socket && is_dead() {
        let _ = std::fs::remove_file(path);
    }
}

/// Serves one connection, until `deadline` at most.
fn serve(
    connection: BorrowedFd<'_>,
    deadline: Duration,
    scrape: &mut dyn FnMut() -> String,
) -> rustix::io::Result<()> {
    let mut head = [0; HEAD_LEN_MAX];
    let mut len = 0;
    let asked = loop {
        match ScrapeRequest::read(&head[..len]) {
            ScrapeRequest::Incomplete => {}
            asked => break asked,
        }
        let left = time_left(deadline)?;
        sockopt::set_socket_timeout(connection, sockopt::Timeout::Recv, Some(left))?;
        match rustix::net::recv(connection, &mut head[len..], RecvFlags::empty()) {
            Ok((0, _)) => return Ok(()),
            Ok((more, _)) => len += more,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    };
    let (status, words, content_type, body) = match asked {
        ScrapeRequest::Metrics => (200, "OK", CONTENT_TYPE, scrape()),
        ScrapeRequest::Refused(status, words) => {
            (status, words, "text/plain", format!("{words}: GET /metrics is served here\n"))
        }
        ScrapeRequest::Incomplete => return Ok(()),
    };
    let response = response_head(status, words, content_type, body.len()) + &body;
    let mut rest = response.as_bytes();
    while !rest.is_empty() {
        let left = time_left(deadline)?;
        sockopt::set_socket_timeout(connection, sockopt::Timeout::Send, Some(left))?;
        match rustix::net::send(connection, rest, SendFlags::NOSIGNAL) {
            Ok(sent) => rest = &rest[sent..],
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// The time until `deadline`, never zero: that would stand for ever.
fn time_left(deadline: Duration) -> rustix::io::Result<Duration> {
    const LEAST: Duration = Duration::from_millis(1);
    let left = deadline.saturating_sub(SystemClock.monotonic());
    if left < LEAST { Err(Errno::TIMEDOUT) } else { Ok(left) }
}

impl NodeShared {
    /// The metrics as text, for a scraper.
    fn scrape(&self) -> String {
        let text = text(&self.metric_samples());
        // Only this thread adds to it.
        self.metrics.node().add(registry::SCRAPES, 1);
        text
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use super::*;

    /// What a scraper that sends `request` is told.
    fn told(request: &[u8], time: Duration) -> (String, rustix::io::Result<()>) {
        let (mut scraper, served) = UnixStream::pair().expect("a pair of sockets");
        scraper.write_all(request).expect("it is taken");
        let deadline = SystemClock.monotonic() + time;
        let ended = serve(served.as_fd(), deadline, &mut || "samite_records 1\n".to_owned());
        drop(served);
        let mut answer = Vec::new();
        // What was sent beyond the bound is lost with the connection, as it may be.
        let _ = scraper.read_to_end(&mut answer);
        (String::from_utf8(answer).expect("text"), ended)
    }

    #[test]
    fn a_scraper_is_told_the_metrics_and_others_are_refused() {
        let (answer, ended) = told(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", SCRAPE_TIME);
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.contains("text/plain; version=0.0.4"), "{answer}");
        assert!(answer.ends_with("\r\n\r\nsamite_records 1\n") && ended.is_ok());
        let (answer, _) = told(b"GET /else HTTP/1.1\r\n\r\n", SCRAPE_TIME);
        assert!(answer.starts_with("HTTP/1.1 404 Not Found\r\n"), "{answer}");
        let (answer, _) = told(&[b'x'; HEAD_LEN_MAX], SCRAPE_TIME);
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    }

    #[test]
    fn a_scraper_that_says_nothing_or_takes_nothing_is_given_up() {
        let short = Duration::from_millis(30);
        let (answer, ended) = told(b"GET /metrics", short);
        assert_eq!(answer, "");
        assert!(ended.is_err());
        let (mut scraper, served) = UnixStream::pair().expect("a pair of sockets");
        scraper.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").expect("it is taken");
        let much = &mut || "x".repeat(64 << 20);
        assert!(serve(served.as_fd(), SystemClock.monotonic() + short, much).is_err());
    }

    #[test]
    fn a_socket_of_a_dead_node_is_in_nobodys_way_and_others_stay() {
        let dir = std::env::temp_dir().join(format!("samite-metrics-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        let address = MetricsAddress::Unix(dir.join("socket"));
        let left = MetricsServer::listen(&address).expect("it is free");
        assert!(MetricsServer::listen(&address).is_err(), "somebody listens there");
        // As a death leaves it.
        let _ = rustix::net::shutdown(&left.listener, Shutdown::Both);
        std::mem::forget(left);
        let next = MetricsServer::listen(&address).expect("nobody listens there");
        assert_eq!(next.address(), address.to_string());
        drop(next);
        let MetricsAddress::Unix(path) = &address else { unreachable!("made above") };
        assert!(!path.exists());
        std::fs::write(path, "a file").expect("it is free");
        assert!(MetricsServer::listen(&address).is_err(), "a file is nobody's socket");
        std::fs::remove_dir_all(&dir).expect("it is ours");
    }

    #[test]
    fn a_listener_that_ends_wakes_its_thread() {
        let address = "127.0.0.1:0".parse().expect("an address");
        let server = MetricsServer::listen(&address).expect("a free port");
        let listener = Arc::clone(&server.listener);
        let waiting = std::thread::spawn(move || {
            rustix::net::accept_with(&listener, SocketFlags::CLOEXEC).map(drop)
        });
        std::thread::sleep(Duration::from_millis(20));
        drop(server);
        assert!(waiting.join().expect("no panic").is_err());
    }
}
