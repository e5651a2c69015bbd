//! Bringing a member up to date that has missed everything, or lost everything: while nobody else
//! asks for anything, and the throughput of clients meanwhile.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use samite_client::{Client, TransportKind};
use samite_kv::KvView;
use samite_object::ObjectView;
use samite_types::{Error, ErrorKind, NodeId, Result};
use samite_wire::control::MEMORY_BACKEND;

use crate::child::failed;
use crate::floor::{COLD_LEN, ColdBuffer, PIECE_LEN};
use crate::measure::{Workload, WorkloadRound};
use crate::place::BenchPlace;
use crate::store::kv::{KEYS, KeySet, KeyVerb};
use crate::store::{BenchCluster, MIRRORED, RecordHost};

/// Objects of 64 MiB that the resync copies.
const OBJECTS: usize = 4;
/// Pause between two looks at how far it is. Each is a request, which takes a core from what is measured.
const LOOK: Duration = Duration::from_millis(4);
/// Pause after which nodes have forgotten how crowded the machine was while everything was written.
const REST: Duration = Duration::from_millis(1200);
/// Time of a client's work between two looks whether the other node is up to date.
const SLICE: Duration = Duration::from_millis(10);
const PATIENCE: Duration = Duration::from_secs(60);

/// A cluster of two nodes with some data, of which the second may be cut off, or die and come back with nothing.
struct ResyncPair {
    cluster: BenchCluster,
    client: Client,
    objects: ObjectView,
}

impl ResyncPair {
    /// Starts it in the directory `name`, with its data.
    fn start(place: &BenchPlace, name: &str) -> Result<Self> {
        let cluster = BenchCluster::start(&place.path().join(name), 2, MIRRORED)?;
        let dataset =
            cluster.dataset("data", TransportKind::Unix, MEMORY_BACKEND, RecordHost::Both)?;
        let client = cluster.connect(TransportKind::Unix)?;
        let pair = Self { cluster, client, objects: ObjectView::new(dataset) };
        pair.write()?;
        Ok(pair)
    }

    /// Writes all of its data.
    fn write(&self) -> Result<()> {
        for number in 0..OBJECTS {
            let object = self.objects.open_or_create(format!("object {number}").as_bytes())?;
            let mut all = ColdBuffer::new(PIECE_LEN);
            for _ in 0..COLD_LEN / PIECE_LEN {
                let (at, piece) = all.next();
                object.write_at(piece, at as u64)?;
            }
        }
        Ok(())
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.cluster.command();
        command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    fn fault(&self, args: &[&str]) -> Result<()> {
        let all = [&["fault"], args].concat();
        if self.command(&all).status().map_err(failed("samite fault"))?.success() {
            Ok(())
        } else {
            Err(Error::new(ErrorKind::Io, format!("samite {}", all.join(" "))))
        }
    }

    fn kill(&self) -> Result<()> {
        self.fault(&["kill", "1"])
    }

    fn restart(&self) -> Result<Child> {
        self.command(&["node", "restart", "1"]).spawn().map_err(failed("samite node restart"))
    }

    /// Bytes sent to bring members up to date.
    fn sent(&self) -> Result<u64> {
        Ok(self.client.node_status(NodeId(0))?.resync_bytes)
    }

    /// Waits until the other node is up to date: the next round must find a whole group.
    fn mend(&self) -> Result<()> {
        let begun = Instant::now();
        while self.client.node_status(NodeId(0))?.resyncs > 0 && begun.elapsed() < PATIENCE {
            std::thread::sleep(10 * LOOK);
        }
        std::thread::sleep(Duration::from_secs(1));
        Ok(())
    }

    /// Watches all data go to the other node, of which `before` bytes had gone before. Returns the bytes that went between the first look that saw
    /// some of them and the one that saw them all, and the time between these looks: what is on its way at a look is left out at both ends.
    fn watch(&self, before: u64) -> Result<(u64, Duration)> {
        let whole = (OBJECTS * COLD_LEN) as u64;
        let begun = Instant::now();
        let mut first = None;
        while begun.elapsed() < PATIENCE {
            let (now, sent) = (Instant::now(), self.sent()? - before);
            if sent > 0 {
                let (since, already) = *first.get_or_insert((now, sent));
                if sent >= whole {
                    return Ok((sent - already, now - since));
                }
            }
            std::thread::sleep(LOOK);
        }
        Err(Error::new(ErrorKind::Timeout, "the member was not brought up to date"))
    }

    /// The other node is cut off while everything is written again.
    fn absence(&self) -> Result<(u64, Duration)> {
        self.fault(&["set", "cut 0 1", "cut 1 0"])?;
        self.write()?;
        std::thread::sleep(REST);
        let before = self.sent()?;
        self.fault(&["clear"])?;
        let watched = self.watch(before)?;
        self.mend()?;
        Ok(watched)
    }

    /// The other node dies and comes back with nothing.
    fn death(&self) -> Result<(u64, Duration)> {
        self.kill()?;
        let before = self.sent()?;
        let mut restart = self.restart()?;
        let watched = self.watch(before)?;
        restart.wait().map_err(failed("samite node restart"))?;
        self.mend()?;
        Ok(watched)
    }
}

/// How fast the other node is brought up to date when nobody asks for anything.
struct ResyncAlone {
    pair: ResyncPair,
    /// After its death, with memory that was never used; else after it was cut off.
    dies: bool,
}

/// Makes it.
pub fn alone(dies: bool, place: &mut BenchPlace) -> Result<Box<dyn Workload>> {
    let name = if dies { "resync-dies" } else { "resync-cut" };
    Ok(Box::new(ResyncAlone { pair: ResyncPair::start(place, name)?, dies }))
}

impl Workload for ResyncAlone {
    fn round(&mut self, length: Duration) -> Result<WorkloadRound> {
        let mut round = WorkloadRound::new()?;
        while round.elapsed < length.min(Duration::from_millis(200)) {
            let (bytes, took) = if self.dies { self.pair.death() } else { self.pair.absence() }?;
            round.note(1, bytes, took);
        }
        Ok(round)
    }
}

/// One request in flight to the first of the two nodes.
struct ResyncBeside {
    pair: ResyncPair,
    kv: KvView,
    keys: KeySet,
    verb: KeyVerb,
    other: OtherNode,
}

/// How the other node is while a client works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherNode {
    /// It has everything, and what is written goes there too.
    Good,
    /// It is dead: the one that is left works alone.
    Dead,
    /// It has come back with nothing, and is brought up to date.
    Resynced,
}

/// Makes it.
pub fn beside(
    verb: KeyVerb,
    other: OtherNode,
    place: &mut BenchPlace,
) -> Result<Box<dyn Workload>> {
    let pair = ResyncPair::start(place, &format!("beside-{}-{other:?}", verb.name()))?;
    let dataset =
        pair.cluster.dataset("kv", TransportKind::Unix, MEMORY_BACKEND, RecordHost::Both)?;
    let (kv, mut keys) = (KvView::new(dataset), KeySet::new());
    for _ in 0..KEYS {
        let (key, value) = keys.next();
        kv.put(key, value)?;
    }
    if other == OtherNode::Dead {
        pair.kill()?;
    }
    let mut beside = ResyncBeside { pair, kv, keys, verb, other };
    if other == OtherNode::Dead {
        // Until the node that is left goes on alone.
        beside.step(&mut WorkloadRound::new()?)?;
    }
    Ok(Box::new(beside))
}

impl ResyncBeside {
    fn step(&mut self, round: &mut WorkloadRound) -> Result<()> {
        let (key, value) = self.keys.next();
        let before = Instant::now();
        match self.verb {
            KeyVerb::Get => drop(self.kv.get(key)?),
            KeyVerb::Put => drop(self.kv.put(key, value)?),
        }
        round.note(1, 0, before.elapsed());
        Ok(())
    }

    fn slice(&mut self, round: &mut WorkloadRound) -> Result<()> {
        let begun = Instant::now();
        while begun.elapsed() < SLICE {
            self.step(round)?;
        }
        Ok(())
    }

    /// Works for `length` or until the other node is up to date, from when that has begun.
    fn during_resync(&mut self, length: Duration, round: &mut WorkloadRound) -> Result<()> {
        self.pair.kill()?;
        let before = self.pair.sent()?;
        let mut restart = self.pair.restart()?;
        let begun = Instant::now();
        while self.pair.sent()? == before {
            if begun.elapsed() > PATIENCE {
                return Err(Error::new(ErrorKind::Timeout, "no resync has begun"));
            }
            std::thread::sleep(LOOK);
        }
        let whole = before + (OBJECTS * COLD_LEN) as u64;
        while round.elapsed < length && self.pair.sent()? < whole {
            self.slice(round)?;
        }
        restart.wait().map_err(failed("samite node restart"))?;
        self.pair.mend()
    }
}

impl Workload for ResyncBeside {
    fn round(&mut self, length: Duration) -> Result<WorkloadRound> {
        let mut round = WorkloadRound::new()?;
        if self.other == OtherNode::Resynced {
            self.during_resync(length, &mut round)?;
        }
        while self.other != OtherNode::Resynced && round.elapsed < length {
            self.slice(&mut round)?;
        }
        Ok(round)
    }
}
