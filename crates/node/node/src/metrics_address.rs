//! Where a node serves its metrics: to its own host only.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

/// An address for scrapers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetricsAddress {
    /// A loopback address; port 0 takes a free one.
    Tcp(SocketAddr),
    /// A unix socket, for the node's user alone.
    Unix(PathBuf),
}

impl MetricsAddress {
    /// The address for the node of that number, where the nodes of a host are given one together:
    /// each its own port, counted from the first unless that is 0, or its own socket.
    ///
    /// # Errors
    /// There is no such port.
    pub fn of_node(&self, node: u32) -> Result<Self, String> {
        match self {
            Self::Tcp(address) if address.port() == 0 => Ok(self.clone()),
            Self::Tcp(address) => {
                let port = u32::from(address.port()).checked_add(node);
                let port = port.and_then(|port| u16::try_from(port).ok());
                let port = port.ok_or_else(|| format!("{self}: no port is left for n{node}"))?;
                Ok(Self::Tcp(SocketAddr::new(address.ip(), port)))
            }
            Self::Unix(path) => {
                let mut path = path.clone().into_os_string();
                path.push(format!(".n{node}"));
                Ok(Self::Unix(path.into()))
            }
        }
    }
}

impl FromStr for MetricsAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const FORMS: &str = "127.0.0.1:PORT, [::1]:PORT or unix:PATH";
        if let Some(path) = text.strip_prefix("unix:") {
            return match path.starts_with('/') {
                true => Ok(Self::Unix(path.into())),
                false => Err(format!("the path of a unix socket begins with /: {text}")),
            };
        }
        let address = match text.strip_prefix("localhost:") {
            Some(port) => {
                port.parse().ok().map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
            }
            None => text.parse().ok(),
        };
        let address: SocketAddr = address.ok_or_else(|| format!("expected {FORMS}"))?;
        let is_loopback = match address.ip() {
            IpAddr::V4(ip) => ip.is_loopback(),
            IpAddr::V6(ip) => ip.is_loopback(),
        };
        if !is_loopback {
            return Err(format!(
                "{text} is not a loopback address; metrics are served to this host alone, at {FORMS}"
            ));
        }
        Ok(Self::Tcp(address))
    }
}

impl fmt::Display for MetricsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_this_host_are_taken() {
        for text in ["127.0.0.1:0", "127.9.9.9:9100", "[::1]:9100", "unix:/run/m.sock"] {
            let address: MetricsAddress = text.parse().expect(text);
            assert_eq!(address.to_string(), text);
        }
        assert_eq!("localhost:7".parse::<MetricsAddress>(), "127.0.0.1:7".parse());
        for text in ["0.0.0.0:9100", "[::]:1", "192.168.0.1:9100", "[::ffff:127.0.0.1]:1"] {
            let error = text.parse::<MetricsAddress>().expect_err(text);
            assert!(error.contains("not a loopback address"), "{error}");
        }
        for text in ["", "9100", "127.0.0.1", "host:9100", "localhost:x", "unix:m.sock"] {
            let error = text.parse::<MetricsAddress>().expect_err(text);
            assert!(!error.contains("not a loopback address"), "{error}");
        }
    }

    #[test]
    fn the_nodes_of_a_host_get_addresses_of_their_own() {
        let of = |text: &str, node| {
            let address: MetricsAddress = text.parse().expect(text);
            address.of_node(node).map(|address| address.to_string())
        };
        assert_eq!(of("127.0.0.1:0", 3).as_deref(), Ok("127.0.0.1:0"));
        assert_eq!(of("127.0.0.1:9100", 3).as_deref(), Ok("127.0.0.1:9103"));
        assert_eq!(of("unix:/run/m", 3).as_deref(), Ok("unix:/run/m.n3"));
        assert!(of("127.0.0.1:65535", 1).is_err());
    }
}
