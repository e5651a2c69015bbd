//! The frames that a real client sends to a node, one by one.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::Scope;
use std::time::Duration;

use samite_client::{Client, ClientOptions, ClusterConfig, TransportKind};
use samite_fs::{CallerContext, FileSystem, OpenFlags};
use samite_kv::KvView;
use samite_types::{DatasetId, Error, ErrorKind, Result};
use samite_wire::control::DatasetSpec;
use samite_wire::frame::{CheckedHeader, FrameKind, HEADER_LEN};

/// One frame.
#[derive(Clone, Debug)]
pub struct RecordedFrame {
    /// Its header, as it was read.
    pub header: CheckedHeader,
    /// Body and payload.
    pub content: Vec<u8>,
}

impl RecordedFrame {
    /// Body and payload, apart.
    #[must_use]
    pub fn parts(&self) -> (&[u8], &[u8]) {
        self.content.split_at(self.header.body_len)
    }
}

/// The words of a client.
#[derive(Clone, Debug)]
pub struct FrameRecording {
    /// All bytes of its handshake.
    pub handshake: Vec<u8>,
    /// Its requests, in order.
    pub requests: Vec<RecordedFrame>,
    /// The dataset that they are about.
    pub dataset: DatasetId,
}

fn failed(error: &std::io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("record a client: {error}"))
}

impl FrameRecording {
    /// Has a client work by way of a relay that takes the place of the node's socket for a while, and keeps a copy of what the client says.
    ///
    /// # Errors
    /// The client or the relay fails, or nothing was said.
    pub fn make(config: &ClusterConfig) -> Result<Self> {
        let unix = config.addresses.iter().find_map(|address| address.strip_prefix("unix://"));
        let unix = unix.ok_or_else(|| Error::new(ErrorKind::Invalid, "the node has no socket"))?;
        let (path, aside) = (PathBuf::from(unix), PathBuf::from(format!("{unix}.aside")));
        std::fs::rename(&path, &aside).map_err(|error| failed(&error))?;
        let listener = UnixListener::bind(&path).map_err(|error| failed(&error))?;
        let relay = FrameRelay::default();
        let dataset = std::thread::scope(|scope| {
            let relay = &relay;
            scope.spawn(move || relay.serve(scope, &listener, &aside));
            let dataset = work(config);
            relay.is_over.store(true, Ordering::Relaxed);
            // Only to wake it.
            drop(UnixStream::connect(&path));
            dataset
        });
        let aside = PathBuf::from(format!("{unix}.aside"));
        std::fs::rename(&aside, &path).map_err(|error| failed(&error))?;
        let mut recording = Self { handshake: Vec::new(), requests: Vec::new(), dataset: dataset? };
        for words in relay.words.into_inner().unwrap_or_else(PoisonError::into_inner) {
            recording.read(&words)?;
        }
        if recording.requests.len() < 20 || recording.handshake.is_empty() {
            let words = format!("only {} requests were recorded", recording.requests.len());
            return Err(Error::new(ErrorKind::Internal, words));
        }
        Ok(recording)
    }

    /// Takes in what was said on one connection.
    fn read(&mut self, mut words: &[u8]) -> Result<()> {
        self.handshake.clear();
        while let Some((raw, after)) = words.split_first_chunk::<HEADER_LEN>() {
            let header = CheckedHeader::parse(raw)?;
            let Some((content, rest)) = after.split_at_checked(header.len_after()) else { break };
            if matches!(header.kind, FrameKind::Request | FrameKind::Control) {
                self.requests.push(RecordedFrame { header, content: content.to_vec() });
            } else {
                self.handshake.extend_from_slice(&words[..HEADER_LEN + header.len_after()]);
            }
            words = rest;
        }
        Ok(())
    }
}

/// Passes on what clients and the node say.
#[derive(Default)]
struct FrameRelay {
    is_over: AtomicBool,
    /// The frames that clients have sent, connection by connection.
    words: Mutex<Vec<Vec<u8>>>,
}

impl FrameRelay {
    fn serve<'s>(&'s self, scope: &'s Scope<'s, '_>, listener: &UnixListener, node: &Path) {
        while let Ok((client, _)) = listener.accept() {
            if self.is_over.load(Ordering::Relaxed) {
                return;
            }
            let Ok(node) = UnixStream::connect(node) else { return };
            let (Ok(back), Ok(to)) = (node.try_clone(), client.try_clone()) else { return };
            scope.spawn(move || {
                let _ = std::io::copy(&mut &back, &mut &to);
                let _ = to.shutdown(Shutdown::Both);
            });
            scope.spawn(move || {
                let words = listen(&client, &node);
                let _ = node.shutdown(Shutdown::Both);
                self.words.lock().unwrap_or_else(PoisonError::into_inner).push(words);
            });
        }
    }
}

/// Passes on the frames of a client until it goes; returns them.
fn listen(mut client: &UnixStream, mut node: &UnixStream) -> Vec<u8> {
    let mut words = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    while let Ok(len @ 1..) = client.read(&mut buffer) {
        words.extend_from_slice(&buffer[..len]);
        if node.write_all(&buffer[..len]).is_err() {
            break;
        }
    }
    words
}

/// A little of everything.
fn work(config: &ClusterConfig) -> Result<DatasetId> {
    let options = ClientOptions {
        transport: Some(TransportKind::Unix),
        timeout: Duration::from_secs(30),
        ..ClientOptions::default()
    };
    let client = Client::connect(config, options)?;
    let dataset = client.create_dataset(&DatasetSpec::new("fuzz"))?;
    let kv = KvView::new(dataset.clone());
    for (index, len) in [0, 100, 5000, 70_000, 1 << 20].into_iter().enumerate() {
        let key = [index as u8 + 1];
        kv.put(&key, &vec![7; len])?;
        kv.get(&key)?;
        kv.append(&key, b"more")?;
    }
    kv.delete(&[1])?;
    let fs = FileSystem::open(&client, "fuzz")?;
    let root = CallerContext::root();
    for name in [&b"/a"[..], b"/b"] {
        let file = fs.open_file(&root, name, OpenFlags::creating(), 0o644)?;
        file.write_at(&[1; 10_000], 0)?;
        file.close()?;
        fs.stat(&root, name, true)?;
        fs.unlink(&root, name)?;
    }
    Ok(dataset.id())
}
