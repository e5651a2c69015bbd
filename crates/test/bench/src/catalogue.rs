//! All benchmarks: their names, the reference of each, and its aim.

use std::process::Command;

use samite_client::TransportKind;
use samite_types::Result;
use samite_wire::control::{MEMORY_BACKEND, NULL_BACKEND};

use crate::child::files::FileWork;
use crate::child::socket::SocketFamily;
use crate::measure::{ComparisonAim, JudgedBy, Workload};
use crate::place::BenchPlace;
use crate::store::kv::{KeySetting, KeyVerb};
use crate::store::object::ByteDirection;
use crate::store::resync::OtherNode;
use crate::store::{RecordHost, files, kv, object, resync, scan};
use crate::{floor, peer};

type Make = Box<dyn Fn(&mut BenchPlace) -> Result<Box<dyn Workload>>>;

/// One benchmark.
pub struct CatalogueEntry {
    pub name: String,
    /// The figure by which it is judged.
    pub what: JudgedBy,
    /// Operations in a second that it should reach, whatever the floor.
    pub per_s_min: Option<f64>,
    /// The benchmarks against which it is measured, in the same run.
    pub against: Vec<ReferenceRow>,
    /// Makes the workload, starting what it needs.
    pub make: Make,
}

/// Another benchmark beside which one is set.
pub struct ReferenceRow {
    pub name: String,
    pub aim: Option<ComparisonAim>,
}

impl CatalogueEntry {
    fn new(
        name: impl Into<String>,
        what: JudgedBy,
        make: impl Fn(&mut BenchPlace) -> Result<Box<dyn Workload>> + 'static,
    ) -> Self {
        Self { name: name.into(), what, per_s_min: None, against: Vec::new(), make: Box::new(make) }
    }

    fn beside(mut self, name: impl Into<String>, aim: impl Into<Option<ComparisonAim>>) -> Self {
        self.against.push(ReferenceRow { name: name.into(), aim: aim.into() });
        self
    }
}

const FAMILIES: [SocketFamily; 2] = [SocketFamily::Tcp, SocketFamily::Unix];
const TRANSPORTS: [TransportKind; 3] =
    [TransportKind::Tcp, TransportKind::Unix, TransportKind::Shm];
const VERBS: [KeyVerb; 2] = [KeyVerb::Get, KeyVerb::Put];

/// All of them, floors first.
pub fn catalogue() -> Vec<CatalogueEntry> {
    let mut all = floors();
    all.extend(peers());
    all.extend(key_values());
    all.extend(objects());
    all.extend(scans());
    all.extend(sealed());
    all.extend(mirrored());
    all.extend(durable());
    all.extend(file_work());
    all.push(
        CatalogueEntry::new("/start/true", JudgedBy::Excess, |place| {
            let cluster = place.cluster()?;
            let run = cluster.command();
            let (program, runtime) = (run.get_program().to_owned(), envs(&run));
            Ok(floor::start_program(move || {
                let mut command = Command::new(&program);
                command.envs(runtime.iter().cloned()).args(["run", "--", "true"]);
                command
            }))
        })
        .beside("/floor/true", ComparisonAim::AtMost(3.0)),
    );
    all
}

fn envs(command: &Command) -> Vec<(std::ffi::OsString, std::ffi::OsString)> {
    command
        .get_envs()
        .filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())))
        .collect()
}

fn floors() -> Vec<CatalogueEntry> {
    let mut all = Vec::new();
    for family in FAMILIES {
        let name = family.name();
        all.push(CatalogueEntry::new(format!("/floor/{name}/64B"), JudgedBy::Time, move |place| {
            floor::ping_pong(family, place)
        }));
        all.push(CatalogueEntry::new(
            format!("/floor/{name}/stream/1MiB"),
            JudgedBy::Rate,
            move |place| floor::stream(family, place),
        ));
        all.push(CatalogueEntry::new(
            format!("/floor/{name}/sink/1MiB"),
            JudgedBy::Rate,
            move |place| floor::sink(family, place),
        ));
    }
    all.push(CatalogueEntry::new("/floor/shm/futex/64B", JudgedBy::Time, |place| {
        floor::shared_page("futex", place)
    }));
    all.push(CatalogueEntry::new("/floor/shm/spin/64B", JudgedBy::Time, |place| {
        floor::shared_page("spin", place)
    }));
    all.push(CatalogueEntry::new("/floor/memcpy/1MiB", JudgedBy::Rate, |_| Ok(floor::copy())));
    all.push(CatalogueEntry::new("/floor/sum/512MiB", JudgedBy::Rate, |_| {
        Ok(floor::sum_of_memory())
    }));
    all.push(CatalogueEntry::new("/floor/fdatasync/100B", JudgedBy::Time, |place| {
        floor::append_synced(kv::VALUE_LEN, place)
    }));
    all.push(CatalogueEntry::new("/floor/true", JudgedBy::Time, |_| {
        Ok(floor::start_program(|| Command::new("true")))
    }));
    for (work, tail, processes) in file_table() {
        let name = format!("/floor/tmpfs/{}{tail}", work.name());
        all.push(CatalogueEntry::new(name, JudgedBy::Rate, move |_| {
            files::on_tmpfs(work, processes)
        }));
    }
    all
}

fn peers() -> Vec<CatalogueEntry> {
    let mut all = Vec::new();
    for (verb, family) in VERBS.into_iter().flat_map(|verb| FAMILIES.map(|family| (verb, family))) {
        let name = format!("/peer/redis/{}/100B/{}", verb.name(), family.name());
        all.push(CatalogueEntry::new(&name, JudgedBy::Time, move |place| {
            peer::one(verb, family, place)
        }));
        all.push(CatalogueEntry::new(
            format!("{name}/pipelined64"),
            JudgedBy::Rate,
            move |place| peer::pipelined(verb, family, place),
        ));
    }
    all
}

fn key_values() -> Vec<CatalogueEntry> {
    let mut all = Vec::new();
    for (verb, transport) in VERBS.into_iter().flat_map(|verb| TRANSPORTS.map(|t| (verb, t))) {
        let setting =
            KeySetting { verb, transport, backend: MEMORY_BACKEND, host: RecordHost::One };
        let of = |transport: TransportKind| format!("/kv/{}/100B/{transport}", verb.name());
        let redis = format!("/peer/redis/{}/100B/{transport}", verb.name());
        let name = of(transport);
        let floor = format!("/floor/{transport}/64B");

        let one = CatalogueEntry::new(&name, JudgedBy::Time, move |place| kv::one(setting, place));
        all.push(match transport {
            TransportKind::Tcp | TransportKind::Tls => {
                one.beside(floor, ComparisonAim::AtMost(1.25)).beside(&redis, None)
            }
            TransportKind::Unix => {
                one.beside(floor, ComparisonAim::AtMost(1.35)).beside(&redis, None)
            }
            TransportKind::Shm => one
                .beside(of(TransportKind::Unix), ComparisonAim::AtMost(0.5))
                .beside("/floor/shm/futex/64B", None)
                .beside("/floor/shm/spin/64B", None),
        });
        let aim = (verb == KeyVerb::Get && transport == TransportKind::Tcp)
            .then_some(ComparisonAim::AtLeast(1.0));
        all.push(
            CatalogueEntry::new(format!("{name}/pipelined64"), JudgedBy::Rate, move |place| {
                kv::pipelined(setting, place)
            })
            .beside(format!("{redis}/pipelined64"), aim)
            .beside(&name, None),
        );
        all.push(
            CatalogueEntry::new(format!("{name}/batch1000"), JudgedBy::Rate, move |place| {
                kv::batches(setting, place)
            })
            .beside(&name, None),
        );
        if verb == KeyVerb::Put {
            let null = KeySetting { backend: NULL_BACKEND, ..setting };
            let entry = CatalogueEntry::new(format!("{name}/null"), JudgedBy::Time, move |place| {
                kv::one(null, place)
            });
            all.push(entry.beside(&name, None));
        }
    }
    all
}

fn objects() -> Vec<CatalogueEntry> {
    let mut all = Vec::new();
    for direction in [ByteDirection::Read, ByteDirection::Write] {
        for transport in TRANSPORTS {
            let name = format!("/object/{}/1MiB/{transport}", direction.name());
            let stream = if direction == ByteDirection::Read { "stream" } else { "sink" };
            let floor = match transport {
                TransportKind::Shm => "/floor/memcpy/1MiB".to_owned(),
                socket => format!("/floor/{socket}/{stream}/1MiB"),
            };
            let aimed = transport == TransportKind::Shm
                || (transport == TransportKind::Tcp && direction == ByteDirection::Read);
            for (tail, pieces) in [("", 1), ("/pipelined8", 8)] {
                let entry =
                    CatalogueEntry::new(format!("{name}{tail}"), JudgedBy::Rate, move |place| {
                        object::pieces(direction, transport, (pieces, RecordHost::One), place)
                    });
                let aim = (aimed && pieces == 1).then_some(ComparisonAim::AtLeast(0.7));
                all.push(entry.beside(&floor, aim));
            }
        }
    }
    all
}

/// Scans of 512 MiB of records, beside looking at as much memory, or receiving it.
fn scans() -> Vec<CatalogueEntry> {
    let scan = |transport: TransportKind| {
        let name = format!("/scan/4KiB/{transport}");
        let entry =
            CatalogueEntry::new(name, JudgedBy::Rate, move |place| scan::whole(transport, place));
        match transport {
            TransportKind::Shm => entry.beside("/floor/sum/512MiB", ComparisonAim::AtLeast(0.7)),
            socket => entry.beside(format!("/floor/{socket}/stream/1MiB"), None),
        }
    };
    TRANSPORTS.into_iter().map(scan).collect()
}

/// The cost of TLS: beside the same without it.
fn sealed() -> Vec<CatalogueEntry> {
    let (transport, host) = (TransportKind::Tls, RecordHost::OneTls);
    let mut all = Vec::new();
    for verb in VERBS {
        let setting = KeySetting { verb, transport, backend: MEMORY_BACKEND, host };
        let name = |transport| format!("/kv/{}/100B/{transport}", verb.name());
        let one = CatalogueEntry::new(name(transport), JudgedBy::Time, move |place| {
            kv::one(setting, place)
        });
        all.push(one.beside(name(TransportKind::Tcp), None));
    }
    for direction in [ByteDirection::Read, ByteDirection::Write] {
        let name = |transport| format!("/object/{}/1MiB/{transport}", direction.name());
        let entry = CatalogueEntry::new(name(transport), JudgedBy::Rate, move |place| {
            object::pieces(direction, transport, (1, host), place)
        });
        all.push(entry.beside(name(TransportKind::Tcp), None));
    }
    all
}

/// Records that both of two nodes hold, beside records that one of the same two holds.
fn mirrored() -> Vec<CatalogueEntry> {
    let mut all = Vec::new();
    for (verb, transport) in VERBS.into_iter().flat_map(|verb| TRANSPORTS.map(|t| (verb, t))) {
        let name = format!("/mirror/{}/100B/{transport}", verb.name());
        let of = move |host| KeySetting { verb, transport, backend: MEMORY_BACKEND, host };
        let alone = format!("{name}/alone");
        all.push(CatalogueEntry::new(&alone, JudgedBy::Time, move |place| {
            kv::one(of(RecordHost::OneOfTwo), place)
        }));
        let aim = match (verb, transport) {
            // As fast, but for what two runs of the same differ by.
            (KeyVerb::Get, _) => Some(ComparisonAim::AtMost(1.05)),
            (KeyVerb::Put, TransportKind::Tcp) => Some(ComparisonAim::AtMost(2.2)),
            (KeyVerb::Put, _) => None,
        };
        let both = CatalogueEntry::new(&name, JudgedBy::Time, move |place| {
            kv::one(of(RecordHost::Both), place)
        });
        all.push(both.beside(alone, aim));
    }
    for transport in TRANSPORTS {
        let name = format!("/mirror/write/1MiB/{transport}");
        let write = move |host| {
            move |place: &mut BenchPlace| {
                object::pieces(ByteDirection::Write, transport, (1, host), place)
            }
        };
        let alone = format!("{name}/alone");
        all.push(CatalogueEntry::new(&alone, JudgedBy::Rate, write(RecordHost::OneOfTwo)));
        let aim = (transport == TransportKind::Tcp).then_some(ComparisonAim::AtLeast(0.45));
        all.push(
            CatalogueEntry::new(&name, JudgedBy::Rate, write(RecordHost::Both)).beside(alone, aim),
        );
    }
    // Nodes of one host talk over unix sockets.
    let stream = "/floor/unix/stream/1MiB";
    let resync = |name, dies| {
        CatalogueEntry::new(name, JudgedBy::Rate, move |place: &mut BenchPlace| {
            resync::alone(dies, place)
        })
    };
    all.push(resync("/mirror/resync/unix", false).beside(stream, ComparisonAim::AtLeast(0.5)));
    all.push(resync("/mirror/resync/unix/restarted", true).beside(stream, None));
    for verb in VERBS {
        let name = format!("/mirror/resync/unix/beside/{}", verb.name());
        let during = |other| move |place: &mut BenchPlace| resync::beside(verb, other, place);
        let whole = format!("{name}/whole");
        all.push(CatalogueEntry::new(&whole, JudgedBy::Rate, during(OtherNode::Good)));
        let dead = format!("{name}/dead");
        all.push(
            CatalogueEntry::new(&dead, JudgedBy::Rate, during(OtherNode::Dead))
                .beside(&whole, None),
        );
        let resynced = CatalogueEntry::new(&name, JudgedBy::Rate, during(OtherNode::Resynced));
        all.push(resynced.beside(whole, ComparisonAim::AtLeast(0.5)));
    }
    all
}

/// Records that are on flash when they are acknowledged.
fn durable() -> Vec<CatalogueEntry> {
    let (verb, transport, host) = (KeyVerb::Put, TransportKind::Unix, RecordHost::Durable);
    let setting = KeySetting { verb, transport, backend: MEMORY_BACKEND, host };
    let put = CatalogueEntry::new("/durable/put/100B/unix", JudgedBy::Time, move |place| {
        kv::one(setting, place)
    });
    vec![put.beside("/floor/fdatasync/100B", None)]
}

/// Kinds of file work, the tail of their names, and the number of processes.
fn file_table() -> Vec<(FileWork, &'static str, usize)> {
    let mut table = Vec::new();
    for work in [FileWork::Create, FileWork::Stat, FileWork::Unlink] {
        table.extend([(work, "", 1), (work, "/2processes", 2)]);
    }
    for work in [FileWork::Read, FileWork::Write] {
        table.extend([(work, "/1MiB", 1), (work, "/1MiB/2processes", 2)]);
    }
    table
}

fn file_work() -> Vec<CatalogueEntry> {
    let mut all = Vec::new();
    for (work, tail, processes) in file_table() {
        let bulk = matches!(work, FileWork::Read | FileWork::Write);
        let aim = (bulk && processes == 1).then_some(ComparisonAim::AtLeast(0.8));
        let name = format!("/fs/{}{tail}", work.name());
        let mut entry = CatalogueEntry::new(name, JudgedBy::Rate, move |place| {
            files::in_store(work, processes, place)
        });
        entry.per_s_min = match work {
            FileWork::Create | FileWork::Unlink => Some(40_000.0),
            FileWork::Stat => Some(100_000.0),
            FileWork::Read | FileWork::Write => None,
        };
        all.push(entry.beside(format!("/floor/tmpfs/{}{tail}", work.name()), aim));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_measured_against_is_in_the_catalogue() {
        let all = catalogue();
        let known = |name: &str| all.iter().any(|entry| entry.name == name);
        for reference in all.iter().flat_map(|entry| &entry.against) {
            let peer_over_shm =
                reference.name.starts_with("/peer/redis/") && reference.name.contains("/shm");
            assert!(known(&reference.name) || peer_over_shm, "{}", reference.name);
        }
    }
}
