//! Bringing a member up to date that has lost everything, while nobody else asks for anything.

use std::process::Stdio;
use std::time::{Duration, Instant};

use samite_client::object::Objects;
use samite_client::{Client, Transport};
use samite_types::{Error, ErrorKind, NodeId, Result};
use samite_wire::control::BackendKind;

use crate::child::failed;
use crate::floor::{COLD_LEN, Cold, PIECE_LEN};
use crate::measure::{Round, Workload};
use crate::place::Place;
use crate::store::{Cluster, Home};

/// Objects of 64 MiB that are brought.
const OBJECTS: usize = 4;
const LOOK: Duration = Duration::from_millis(1);
const PATIENCE: Duration = Duration::from_secs(60);

/// A cluster of two nodes, of which the second dies and comes back with nothing, each time.
pub struct Resync {
    cluster: Cluster,
    client: Client,
}

/// Makes it, with its data.
pub fn whole(place: &mut Place) -> Result<Box<dyn Workload>> {
    let cluster = Cluster::start(&place.path().join("resync"), 2, &[])?;
    let dataset = cluster.dataset("data", Transport::Unix, BackendKind::Memory, Home::Both)?;
    let objects = Objects::new(dataset);
    for number in 0..OBJECTS {
        let object = objects.open_or_create(format!("object {number}").as_bytes())?;
        let mut all = Cold::new(PIECE_LEN);
        for _ in 0..COLD_LEN / PIECE_LEN {
            let (at, piece) = all.next();
            object.write_at(piece, at as u64)?;
        }
    }
    let client = cluster.connect(Transport::Unix)?;
    Ok(Box::new(Resync { cluster, client }))
}

impl Resync {
    fn sent(&self) -> Result<u64> {
        Ok(self.client.node_status(NodeId(0))?.resync_bytes)
    }

    /// One death. Returns bytes, and the time from the first to the last.
    fn death(&self) -> Result<(u64, Duration)> {
        let command = |args: &[&str]| {
            let mut command = self.cluster.command();
            command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            command
        };
        let killed = command(&["fault", "kill", "1"]).status().map_err(failed("samite fault"))?;
        if !killed.success() {
            return Err(Error::new(ErrorKind::Io, "samite fault kill 1"));
        }
        let before = self.sent()?;
        let mut restart =
            command(&["node", "restart", "1"]).spawn().map_err(failed("samite node restart"))?;
        let whole = (OBJECTS * COLD_LEN) as u64;
        let begun = Instant::now();
        let (mut first, mut taken) = (None, None);
        while taken.is_none() && begun.elapsed() < PATIENCE {
            let (now, sent) = (Instant::now(), self.sent()? - before);
            if sent > 0 {
                let since = *first.get_or_insert(now);
                taken = (sent >= whole).then(|| (sent, now - since));
            }
            std::thread::sleep(LOOK);
        }
        restart.wait().map_err(failed("samite node restart"))?;
        // The next death must find a whole group.
        while self.client.node_status(NodeId(0))?.resyncs > 0 && begun.elapsed() < PATIENCE {
            std::thread::sleep(10 * LOOK);
        }
        std::thread::sleep(Duration::from_secs(1));
        taken.ok_or_else(|| Error::new(ErrorKind::Timeout, "the member was not brought up to date"))
    }
}

impl Workload for Resync {
    fn round(&mut self, length: Duration) -> Result<Round> {
        let mut round = Round::new()?;
        while round.elapsed < length.min(Duration::from_millis(200)) {
            let (bytes, took) = self.death()?;
            round.note(1, bytes, took);
        }
        Ok(round)
    }
}
