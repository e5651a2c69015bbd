//! Addresses of nodes as URLs.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use samite_types::{Error, ErrorKind, Result};
use samite_wire::frame::FLAG_PAYLOAD_UNCHECKED;

/// Longest path of a unix socket, in bytes: what `sockaddr_un` holds with its final NUL.
const UNIX_PATH_LEN_MAX: usize = 107;

/// How bytes travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TransportKind {
    /// Rings in shared memory, set up over a unix socket.
    Shm,
    /// A unix stream socket.
    Unix,
    /// Tcp.
    Tcp,
    /// TLS over tcp.
    Tls,
}

impl fmt::Display for TransportKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Shm => "shm",
            Self::Unix => "unix",
            Self::Tcp => "tcp",
            Self::Tls => "tls",
        })
    }
}

/// Where a node listens: `shm://PATH`, `unix://PATH`, `tcp://HOST:PORT` or `tls://HOST:PORT`.
///
/// `PATH` is the path of a unix socket in both of the first two; `shm` asks for shared memory over it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// Shared memory, set up over the unix socket at this path.
    Shm(PathBuf),
    /// Unix stream socket at this path.
    Unix(PathBuf),
    /// Tcp host (a name, an IPv4 address or an IPv6 address without brackets) and port.
    Tcp(String, u16),
    /// The same, with TLS. Neither end takes anything else there.
    Tls(String, u16),
}

impl TransportKind {
    /// Reaches other hosts.
    #[must_use]
    pub const fn is_tcp(self) -> bool {
        matches!(self, Self::Tcp | Self::Tls)
    }
}

/// Flags of frames between two ends on one host: no wire can corrupt bytes that never leave its
/// memory, so their payload goes unchecked.
pub(crate) const LOCAL_FLAGS: u16 = FLAG_PAYLOAD_UNCHECKED;

/// Flags of frames on a socket.
pub(crate) const fn socket_flags(is_tcp: bool) -> u16 {
    if is_tcp { 0 } else { LOCAL_FLAGS }
}

impl Address {
    pub(crate) const fn is_tcp(&self) -> bool {
        self.transport().is_tcp()
    }

    /// How bytes travel to this address.
    #[must_use]
    pub const fn transport(&self) -> TransportKind {
        match self {
            Self::Shm(_) => TransportKind::Shm,
            Self::Unix(_) => TransportKind::Unix,
            Self::Tcp(..) => TransportKind::Tcp,
            Self::Tls(..) => TransportKind::Tls,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shm(path) => write!(f, "shm://{}", path.display()),
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Tcp(host, port) | Self::Tls(host, port) => {
                let scheme = self.transport();
                if host.contains(':') {
                    write!(f, "{scheme}://[{host}]:{port}")
                } else {
                    write!(f, "{scheme}://{host}:{port}")
                }
            }
        }
    }
}

/// Checks that `path` can be the name of a unix socket.
///
/// # Errors
/// [`ErrorKind::Invalid`] when it is empty, holds a NUL, or is longer than the kernel allows.
pub(crate) fn check_socket_path(path: &Path) -> Result<()> {
    let bytes = path.as_os_str().as_bytes();
    if bytes.is_empty() || bytes.contains(&0) {
        return Err(Error::new(ErrorKind::Invalid, "socket path is empty or holds a NUL"));
    }
    if bytes.len() > UNIX_PATH_LEN_MAX {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!(
                "socket path {} has {} bytes; the limit is {UNIX_PATH_LEN_MAX}",
                path.display(),
                bytes.len()
            ),
        ));
    }
    Ok(())
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(url: &str) -> Result<Self> {
        let invalid = |why: &str| Error::new(ErrorKind::Invalid, format!("address {url:?}: {why}"));
        let (scheme, rest) = url.split_once("://").ok_or_else(|| {
            invalid("not of the form shm://PATH, unix://PATH, tcp://HOST:PORT or tls://HOST:PORT")
        })?;
        let path = || -> Result<PathBuf> {
            let path = PathBuf::from(OsStr::from_bytes(rest.as_bytes()));
            check_socket_path(&path).map_err(|error| invalid(error.message()))?;
            Ok(path)
        };
        match scheme {
            "shm" => Ok(Self::Shm(path()?)),
            "unix" => Ok(Self::Unix(path()?)),
            "tcp" | "tls" => {
                let (host, port) =
                    rest.rsplit_once(':').ok_or_else(|| invalid("the port is missing"))?;
                let port =
                    port.parse().map_err(|_| invalid("the port is not a number to 65535"))?;
                let host = match host.strip_prefix('[') {
                    Some(inner) => {
                        inner.strip_suffix(']').ok_or_else(|| invalid("'[' without ']'"))?
                    }
                    None if host.contains(':') => {
                        return Err(invalid("an IPv6 address stands in brackets"));
                    }
                    None => host,
                };
                if host.is_empty() || host.len() > 255 {
                    return Err(invalid("the host has 1 to 255 bytes"));
                }
                let host = host.to_owned();
                Ok(if scheme == "tls" { Self::Tls(host, port) } else { Self::Tcp(host, port) })
            }
            _ => Err(invalid("the scheme is not shm, unix, tcp or tls")),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Address;

    #[test]
    fn urls_round_trip() {
        for url in [
            "shm:///run/a/n0.sock",
            "unix:///a b",
            "tcp://localhost:7",
            "tcp://[::1]:65535",
            "tls://h:1",
            "tls://[::1]:2",
        ] {
            assert_eq!(url.parse::<Address>().unwrap().to_string(), url);
        }
    }

    #[test]
    fn nonsense_is_refused_with_the_reason() {
        for url in [
            "",
            "tcp://",
            "tcp://host",
            "tcp://host:65536",
            "tcp://::1:5",
            "tcp://[::1:5",
            "tcp://:5",
            "tls://h",
            "shm://",
            "http://x:1",
            "unix://a\0b",
        ] {
            assert!(url.parse::<Address>().unwrap_err().message().starts_with("address "), "{url}");
        }
        let long = format!("unix:///{}", "x".repeat(107));
        assert!(long.parse::<Address>().unwrap_err().message().contains("limit is 107"));
    }

    proptest! {
        #[test]
        fn any_string_parses_or_fails_cleanly(url in ".{0,200}") {
            if let Ok(address) = url.parse::<Address>() {
                prop_assert_eq!(address.to_string().parse::<Address>().unwrap(), address);
            }
        }
    }
}
