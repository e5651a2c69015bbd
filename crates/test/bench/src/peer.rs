//! A peer, where it is installed: Redis, with a client that does no more than it must, so that the loops are the same as ours.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use samite_types::{Error, ErrorKind, Result};

use crate::child::failed;
use crate::child::socket::{self, SocketFamily, SocketStream};
use crate::measure::{Workload, steps};
use crate::place::BenchPlace;
use crate::store::kv::{IN_FLIGHT, KEYS, KeySet, KeyVerb, WINDOWS};

const START: Duration = Duration::from_secs(5);

/// A server of our own, without persistence.
pub struct RedisServer {
    child: Child,
    tcp: String,
    unix: PathBuf,
}

impl RedisServer {
    /// Starts it; [`ErrorKind::Unsupported`] when it is not installed.
    pub fn start(dir: &Path) -> Result<Self> {
        // Given up again at once: the port stays free until the server needs it.
        let port = TcpListener::bind("127.0.0.1:0")
            .and_then(|listener| listener.local_addr())
            .map_err(failed("find a free port for redis-server"))?
            .port();
        let unix = dir.join("redis.sock");
        let child = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--unixsocket"])
            .arg(&unix)
            .args(["--save", "", "--appendonly", "no", "--dir"])
            .arg(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| {
                Error::new(ErrorKind::Unsupported, format!("redis-server: {error}"))
            })?;
        let redis = Self { child, tcp: format!("127.0.0.1:{port}"), unix };
        let until = Instant::now() + START;
        while socket::connect(SocketFamily::Tcp, &redis.tcp).is_err() || !redis.unix.exists() {
            if Instant::now() > until {
                return Err(Error::new(ErrorKind::Timeout, "redis-server does not answer"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(redis)
    }

    fn connect(&self, family: SocketFamily) -> Result<RedisConnection> {
        let stream = match family {
            SocketFamily::Tcp => socket::connect(family, &self.tcp)?,
            SocketFamily::Unix => socket::connect(family, &self.unix.to_string_lossy())?,
        };
        Ok(RedisConnection { stream, out: Vec::new(), input: Vec::new(), used: 0 })
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct RedisConnection {
    stream: Box<dyn SocketStream>,
    out: Vec<u8>,
    input: Vec<u8>,
    /// Bytes of `input` that are done with.
    used: usize,
}

impl RedisConnection {
    /// Puts a command behind those that wait to be sent.
    fn push(&mut self, words: &[&[u8]]) {
        self.out.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
        for word in words {
            self.out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            self.out.extend_from_slice(word);
            self.out.extend_from_slice(b"\r\n");
        }
    }

    fn send(&mut self) -> Result<()> {
        self.stream.write_all(&self.out).map_err(failed("send to redis-server"))?;
        self.out.clear();
        Ok(())
    }

    /// Takes one reply: `+OK` or a string. Its value's length.
    fn take(&mut self) -> Result<usize> {
        loop {
            if let Some((reply_len, value_len)) = parse(&self.input[self.used..])? {
                self.used += reply_len;
                if self.used == self.input.len() {
                    self.input.clear();
                    self.used = 0;
                }
                return Ok(value_len);
            }
            let end = self.input.len();
            self.input.resize(end + (16 << 10), 0);
            let len = self
                .stream
                .read(&mut self.input[end..])
                .map_err(failed("receive from redis-server"))?;
            self.input.truncate(end + len);
            if len == 0 {
                return Err(Error::new(ErrorKind::Unavailable, "redis-server has gone"));
            }
        }
    }
}

/// Length of the first reply in `input`, and of the value in it; `None` when it is not complete.
fn parse(input: &[u8]) -> Result<Option<(usize, usize)>> {
    let Some(line_len) = input.windows(2).position(|two| two == b"\r\n") else { return Ok(None) };
    let line = String::from_utf8_lossy(&input[..line_len]);
    if line.starts_with('+') {
        return Ok(Some((line_len + 2, 0)));
    }
    let value_len = line.strip_prefix('$').and_then(|len| len.parse::<usize>().ok());
    let Some(value_len) = value_len.filter(|len| *len <= 1 << 20) else {
        return Err(Error::new(ErrorKind::Corrupt, format!("redis-server answered {line}")));
    };
    let reply_len = line_len + 2 + value_len + 2;
    Ok((input.len() >= reply_len).then_some((reply_len, value_len)))
}

fn push(connection: &mut RedisConnection, verb: KeyVerb, keys: &mut KeySet) {
    let (key, value) = keys.next();
    match verb {
        KeyVerb::Get => connection.push(&[b"GET", key]),
        KeyVerb::Put => connection.push(&[b"SET", key, value]),
    }
}

/// One request in flight.
pub fn one(
    verb: KeyVerb,
    family: SocketFamily,
    place: &mut BenchPlace,
) -> Result<Box<dyn Workload>> {
    let (mut connection, mut keys) = prepared(family, place)?;
    Ok(steps(1, 0, move || {
        push(&mut connection, verb, &mut keys);
        connection.send()?;
        connection.take().map(drop)
    }))
}

/// Many requests in flight, sent a window at a time.
pub fn pipelined(
    verb: KeyVerb,
    family: SocketFamily,
    place: &mut BenchPlace,
) -> Result<Box<dyn Workload>> {
    let (mut connection, mut keys) = prepared(family, place)?;
    let window = IN_FLIGHT / WINDOWS;
    let mut flying = VecDeque::new();
    Ok(steps(window as u64, 0, move || {
        while flying.len() < WINDOWS {
            (0..window).for_each(|_| push(&mut connection, verb, &mut keys));
            connection.send()?;
            flying.push_back(window);
        }
        (0..flying.pop_front().unwrap_or(0)).try_for_each(|_| connection.take().map(drop))
    }))
}

/// A connection, and all keys with their values in the server.
fn prepared(family: SocketFamily, place: &mut BenchPlace) -> Result<(RedisConnection, KeySet)> {
    let mut connection = place.redis()?.connect(family)?;
    let mut keys = KeySet::new();
    for _ in 0..KEYS {
        push(&mut connection, KeyVerb::Put, &mut keys);
        connection.send()?;
        connection.take()?;
    }
    Ok((connection, keys))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_cut_where_they_end() {
        assert_eq!(parse(b"+OK\r\n$3").expect("parses"), Some((5, 0)));
        assert_eq!(parse(b"$3\r\nabc\r\n+OK\r\n").expect("parses"), Some((9, 3)));
        assert_eq!(parse(b"$3\r\nabc").expect("parses"), None);
        assert_eq!(parse(b"$3").expect("parses"), None);
        assert!(parse(b"-ERR no\r\n").is_err());
        assert!(parse(b"$99999999999\r\n").is_err());
    }
}
