//! Plain blocking sockets, as a floor: the time that the kernel needs to carry bytes between two
//! processes.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::str::FromStr;

use samite_types::{Error, ErrorKind, Result};

use super::failed;

/// Kind of socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketFamily {
    Tcp,
    Unix,
}

impl SocketFamily {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Unix => "unix",
        }
    }
}

impl FromStr for SocketFamily {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "tcp" => Ok(Self::Tcp),
            "unix" => Ok(Self::Unix),
            _ => Err(Error::new(ErrorKind::Invalid, format!("{text:?} is no kind of socket"))),
        }
    }
}

/// A connected socket.
pub trait SocketStream: Read + Write {}
impl<T: Read + Write> SocketStream for T {}

/// Waits for one connection at a fresh address, which is printed: a port, or a path in `dir`.
fn accept(family: SocketFamily, dir: &Path) -> Result<Box<dyn SocketStream>> {
    let what = || format!("listen on {} for a benchmark", family.name());
    match family {
        SocketFamily::Tcp => {
            let listener = TcpListener::bind("127.0.0.1:0").map_err(failed(what()))?;
            let address = listener.local_addr().map_err(failed(what()))?;
            ready(&address.to_string())?;
            let (stream, _) = listener.accept().map_err(failed(what()))?;
            stream.set_nodelay(true).map_err(failed(what()))?;
            Ok(Box::new(stream))
        }
        SocketFamily::Unix => {
            let path = dir.join(format!("bench-{}.sock", std::process::id()));
            let listener = UnixListener::bind(&path).map_err(failed(what()))?;
            ready(&path.display().to_string())?;
            let (stream, _) = listener.accept().map_err(failed(what()))?;
            let _ = std::fs::remove_file(&path);
            Ok(Box::new(stream))
        }
    }
}

/// Connects to where another process listens.
pub fn connect(family: SocketFamily, address: &str) -> Result<Box<dyn SocketStream>> {
    let what = || format!("connect to {address}");
    match family {
        SocketFamily::Tcp => {
            let stream = TcpStream::connect(address).map_err(failed(what()))?;
            stream.set_nodelay(true).map_err(failed(what()))?;
            Ok(Box::new(stream))
        }
        SocketFamily::Unix => Ok(Box::new(UnixStream::connect(address).map_err(failed(what()))?)),
    }
}

fn ready(address: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{address}").and_then(|()| out.flush()).map_err(failed("say that it is ready"))
}

/// Answers each message of `len` bytes with itself, until the other side is gone.
pub fn echo(family: SocketFamily, dir: &Path, len: usize) -> Result<()> {
    let mut stream = accept(family, dir)?;
    let mut message = vec![0; len];
    while stream.read_exact(&mut message).is_ok() && stream.write_all(&message).is_ok() {}
    Ok(())
}

/// Sends pieces of `len` bytes until the other side is gone.
pub fn source(family: SocketFamily, dir: &Path, len: usize) -> Result<()> {
    let mut stream = accept(family, dir)?;
    let piece = vec![1; len];
    while stream.write_all(&piece).is_ok() {}
    Ok(())
}

/// Takes pieces of `len` bytes until the other side is gone.
pub fn sink(family: SocketFamily, dir: &Path, len: usize) -> Result<()> {
    let mut stream = accept(family, dir)?;
    let mut piece = vec![0; len];
    while stream.read_exact(&mut piece).is_ok() {}
    Ok(())
}
