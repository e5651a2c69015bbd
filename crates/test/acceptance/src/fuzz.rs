//! Garbage on a node's sockets, while an honest client works.
//!
//! Frames of a real client are recorded ([`record`]), bent ([`mutate`]) and sent to a live node by several attackers: some hold the cluster key and
//! have made a sound handshake, others do not. Meanwhile an honest client puts and gets. The node must neither die nor panic nor grow, and
//! the honest client must notice nothing.

mod attack;
mod mutate;
mod record;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use samite_client::{Client, ClientOptions, ClusterConfig};
use samite_kv::KvView;
use samite_testkit::ProcessCluster;
use samite_types::{Error, ErrorKind, Result};
use samite_wire::control::DatasetSpec;

use attack::FrameAttacker;
pub use record::FrameRecording;

/// Memory of the node for records.
const MEMORY: &str = "64M";
/// Memory by which the node may grow beyond that for records, in KiB: buffers of connections,
/// results that are remembered.
const GROWTH_KIB_MAX: u64 = (64 + 64) << 10;
/// Threads that attack; every second one holds the key.
const ATTACKERS: u64 = 4;

/// How much was done.
#[derive(Debug, Default)]
pub struct FuzzSummary {
    /// Connections made by attackers.
    pub connections: u64,
    /// Connections of attackers that hold the key, after a sound handshake.
    pub admitted: u64,
    /// Frames that they sent.
    pub frames: u64,
    /// Frames that were sent whole after a sound handshake.
    pub admitted_frames: u64,
    /// Calls of the honest client.
    pub calls: u64,
    /// Memory of the node before and after, in KiB.
    pub resident_kib: (u64, u64),
}

/// The counters of the threads.
#[derive(Debug, Default)]
struct FuzzCounts {
    stop: AtomicBool,
    connections: AtomicU64,
    admitted: AtomicU64,
    frames: AtomicU64,
    admitted_frames: AtomicU64,
}

fn wrong(words: impl Into<String>) -> Error {
    Error::new(ErrorKind::Internal, words.into())
}

/// Attacks a node for `length`.
///
/// # Errors
/// The errors of the node, or of the honest client; or no attacker got past the handshake.
pub fn run(length: Duration, seed: u64) -> Result<FuzzSummary> {
    let cluster = ProcessCluster::start(1, &["--memory", MEMORY])?;
    let file = cluster.file()?;
    let pid = file.nodes[0].pid().ok_or_else(|| Error::new(ErrorKind::NotFound, "no process"))?;
    let recording = FrameRecording::make(&cluster.config()?)?;
    let honest = connect(&cluster.config()?)?;
    honest.create_dataset(&DatasetSpec::new("honest"))?;
    let kv = KvView::new(honest.dataset("honest")?);
    work(&kv, 0)?;
    let before = resident_kib(pid)?;
    let counts = FuzzCounts::default();
    let end = Instant::now() + length;
    let calls = std::thread::scope(|scope| {
        let config = cluster.config();
        for number in 0..ATTACKERS {
            let attacker = FrameAttacker::new(config.as_ref().ok(), &recording, number, seed);
            let counts = &counts;
            scope.spawn(move || attacker.run(counts));
        }
        let mut calls = 0;
        let mut worked = Ok(());
        while Instant::now() < end && worked.is_ok() {
            calls += 1;
            worked = work(&kv, calls);
        }
        counts.stop.store(true, Ordering::Relaxed);
        worked.map(|()| calls)
    })?;
    let after = resident_kib(pid)?;
    let log = cluster.runtime_path().join("default").join("n0.log");
    let log = std::fs::read_to_string(log).unwrap_or_default();
    if let Some(line) = log.lines().find(|line| line.contains("panicked")) {
        return Err(wrong(format!("the node has panicked: {line}")));
    }
    if after > before + GROWTH_KIB_MAX {
        return Err(wrong(format!("the node has grown from {before} to {after} KiB")));
    }
    // A client that comes now is served as well as one that was there.
    let late = KvView::new(connect(&cluster.config()?)?.dataset("honest")?);
    work(&late, calls)?;
    cluster.run(["status"])?;
    let (admitted, admitted_frames) =
        (counts.admitted.into_inner(), counts.admitted_frames.into_inner());
    if admitted_frames == 0 {
        return Err(wrong("no attacker that holds the key got a frame in: nothing was tried"));
    }
    Ok(FuzzSummary {
        connections: counts.connections.into_inner(),
        admitted,
        frames: counts.frames.into_inner(),
        admitted_frames,
        calls,
        resident_kib: (before, after),
    })
}

fn connect(config: &ClusterConfig) -> Result<Client> {
    Client::connect(
        config,
        ClientOptions { timeout: Duration::from_secs(30), ..ClientOptions::default() },
    )
}

/// A few calls, and their expected results.
fn work(kv: &KvView, round: u64) -> Result<()> {
    let key = format!("key {}", round % 50);
    let len = [10, 3000, 100_000][(round % 3) as usize];
    let value = vec![round as u8; len];
    kv.put(key.as_bytes(), &value)?;
    match kv.get(key.as_bytes())? {
        Some(found) if found.bytes == value => Ok(()),
        Some(found) => Err(wrong(format!("{key}: {} bytes, and not those", found.bytes.len()))),
        None => Err(wrong(format!("{key} is gone"))),
    }
}

/// Memory of a process; an error when there is none.
fn resident_kib(pid: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))
        .map_err(|_| wrong("the node has died"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok())
        .ok_or_else(|| wrong("the node has died"))
}
