//! All benchmarks: their names, what each is measured against, and what it should come to.

use std::process::Command;

use samite_client::Transport;
use samite_types::Result;
use samite_wire::control::BackendKind;

use crate::child::files::Work;
use crate::child::socket::Family;
use crate::measure::{Aim, What, Workload};
use crate::place::Place;
use crate::store::kv::{Setting, Verb};
use crate::store::object::Direction;
use crate::store::resync::Other;
use crate::store::{Home, files, kv, object, resync};
use crate::{floor, peer};

type Make = Box<dyn Fn(&mut Place) -> Result<Box<dyn Workload>>>;

/// One benchmark.
pub struct Entry {
    pub name: String,
    /// What it is judged by.
    pub what: What,
    /// Operations in a second that it should reach, whatever the floor.
    pub per_s_min: Option<f64>,
    /// What it is measured against, in the same run.
    pub against: Vec<Reference>,
    /// Makes the workload, starting what it needs.
    pub make: Make,
}

/// Another benchmark beside which one is set.
pub struct Reference {
    pub name: String,
    pub aim: Option<Aim>,
}

impl Entry {
    fn new(
        name: impl Into<String>,
        what: What,
        make: impl Fn(&mut Place) -> Result<Box<dyn Workload>> + 'static,
    ) -> Self {
        Self { name: name.into(), what, per_s_min: None, against: Vec::new(), make: Box::new(make) }
    }

    fn beside(mut self, name: impl Into<String>, aim: impl Into<Option<Aim>>) -> Self {
        self.against.push(Reference { name: name.into(), aim: aim.into() });
        self
    }
}

const FAMILIES: [Family; 2] = [Family::Tcp, Family::Unix];
const TRANSPORTS: [Transport; 3] = [Transport::Tcp, Transport::Unix, Transport::Shm];
const VERBS: [Verb; 2] = [Verb::Get, Verb::Put];

/// All of them, floors first.
pub fn catalogue() -> Vec<Entry> {
    let mut all = floors();
    all.extend(peers());
    all.extend(key_values());
    all.extend(objects());
    all.extend(sealed());
    all.extend(mirrored());
    all.extend(durable());
    all.extend(file_work());
    all.push(
        Entry::new("/start/true", What::Excess, |place| {
            let cluster = place.cluster()?;
            let run = cluster.command();
            let (program, runtime) = (run.get_program().to_owned(), envs(&run));
            Ok(floor::start_program(move || {
                let mut command = Command::new(&program);
                command.envs(runtime.iter().cloned()).args(["run", "--", "true"]);
                command
            }))
        })
        .beside("/floor/true", Aim::AtMost(3.0)),
    );
    all
}

fn envs(command: &Command) -> Vec<(std::ffi::OsString, std::ffi::OsString)> {
    command
        .get_envs()
        .filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())))
        .collect()
}

fn floors() -> Vec<Entry> {
    let mut all = Vec::new();
    for family in FAMILIES {
        let name = family.name();
        all.push(Entry::new(format!("/floor/{name}/64B"), What::Time, move |place| {
            floor::ping_pong(family, place)
        }));
        all.push(Entry::new(format!("/floor/{name}/stream/1MiB"), What::Rate, move |place| {
            floor::stream(family, place)
        }));
        all.push(Entry::new(format!("/floor/{name}/sink/1MiB"), What::Rate, move |place| {
            floor::sink(family, place)
        }));
    }
    all.push(Entry::new("/floor/shm/futex/64B", What::Time, |place| {
        floor::shared_page("futex", place)
    }));
    all.push(Entry::new("/floor/shm/spin/64B", What::Time, |place| {
        floor::shared_page("spin", place)
    }));
    all.push(Entry::new("/floor/memcpy/1MiB", What::Rate, |_| Ok(floor::copy())));
    all.push(Entry::new("/floor/fdatasync/100B", What::Time, |place| {
        floor::append_synced(kv::VALUE_LEN, place)
    }));
    all.push(Entry::new("/floor/true", What::Time, |_| {
        Ok(floor::start_program(|| Command::new("true")))
    }));
    for (work, tail, processes) in file_table() {
        let name = format!("/floor/tmpfs/{}{tail}", work.name());
        all.push(Entry::new(name, What::Rate, move |_| files::on_tmpfs(work, processes)));
    }
    all
}

fn peers() -> Vec<Entry> {
    let mut all = Vec::new();
    for (verb, family) in VERBS.into_iter().flat_map(|verb| FAMILIES.map(|family| (verb, family))) {
        let name = format!("/peer/redis/{}/100B/{}", verb.name(), family.name());
        all.push(Entry::new(&name, What::Time, move |place| peer::one(verb, family, place)));
        all.push(Entry::new(format!("{name}/pipelined64"), What::Rate, move |place| {
            peer::pipelined(verb, family, place)
        }));
    }
    all
}

fn key_values() -> Vec<Entry> {
    let mut all = Vec::new();
    for (verb, transport) in VERBS.into_iter().flat_map(|verb| TRANSPORTS.map(|t| (verb, t))) {
        let setting = Setting { verb, transport, backend: BackendKind::Memory, home: Home::One };
        let of = |transport: Transport| format!("/kv/{}/100B/{transport}", verb.name());
        let redis = format!("/peer/redis/{}/100B/{transport}", verb.name());
        let name = of(transport);
        let floor = format!("/floor/{transport}/64B");

        let one = Entry::new(&name, What::Time, move |place| kv::one(setting, place));
        all.push(match transport {
            Transport::Tcp | Transport::Tls => {
                one.beside(floor, Aim::AtMost(1.25)).beside(&redis, None)
            }
            Transport::Unix => one.beside(floor, Aim::AtMost(1.35)).beside(&redis, None),
            Transport::Shm => one
                .beside(of(Transport::Unix), Aim::AtMost(0.5))
                .beside("/floor/shm/futex/64B", None)
                .beside("/floor/shm/spin/64B", None),
        });
        let aim = (verb == Verb::Get && transport == Transport::Tcp).then_some(Aim::AtLeast(1.0));
        all.push(
            Entry::new(format!("{name}/pipelined64"), What::Rate, move |place| {
                kv::pipelined(setting, place)
            })
            .beside(format!("{redis}/pipelined64"), aim)
            .beside(&name, None),
        );
        all.push(
            Entry::new(format!("{name}/batch1000"), What::Rate, move |place| {
                kv::batches(setting, place)
            })
            .beside(&name, None),
        );
        if verb == Verb::Put {
            let null = Setting { backend: BackendKind::Null, ..setting };
            let entry =
                Entry::new(format!("{name}/null"), What::Time, move |place| kv::one(null, place));
            all.push(entry.beside(&name, None));
        }
    }
    all
}

fn objects() -> Vec<Entry> {
    let mut all = Vec::new();
    for direction in [Direction::Read, Direction::Write] {
        for transport in TRANSPORTS {
            let name = format!("/object/{}/1MiB/{transport}", direction.name());
            let stream = if direction == Direction::Read { "stream" } else { "sink" };
            let floor = match transport {
                Transport::Shm => "/floor/memcpy/1MiB".to_owned(),
                socket => format!("/floor/{socket}/{stream}/1MiB"),
            };
            let aimed = transport == Transport::Shm
                || (transport == Transport::Tcp && direction == Direction::Read);
            for (tail, pieces) in [("", 1), ("/pipelined8", 8)] {
                let entry = Entry::new(format!("{name}{tail}"), What::Rate, move |place| {
                    object::pieces(direction, transport, (pieces, Home::One), place)
                });
                let aim = (aimed && pieces == 1).then_some(Aim::AtLeast(0.7));
                all.push(entry.beside(&floor, aim));
            }
        }
    }
    all
}

/// What TLS costs: beside the same without it.
fn sealed() -> Vec<Entry> {
    let (transport, home) = (Transport::Tls, Home::OneTls);
    let mut all = Vec::new();
    for verb in VERBS {
        let setting = Setting { verb, transport, backend: BackendKind::Memory, home };
        let name = |transport| format!("/kv/{}/100B/{transport}", verb.name());
        let one = Entry::new(name(transport), What::Time, move |place| kv::one(setting, place));
        all.push(one.beside(name(Transport::Tcp), None));
    }
    for direction in [Direction::Read, Direction::Write] {
        let name = |transport| format!("/object/{}/1MiB/{transport}", direction.name());
        let entry = Entry::new(name(transport), What::Rate, move |place| {
            object::pieces(direction, transport, (1, home), place)
        });
        all.push(entry.beside(name(Transport::Tcp), None));
    }
    all
}

/// Records that both of two nodes hold, beside records that one of the same two holds.
fn mirrored() -> Vec<Entry> {
    let mut all = Vec::new();
    for (verb, transport) in VERBS.into_iter().flat_map(|verb| TRANSPORTS.map(|t| (verb, t))) {
        let name = format!("/mirror/{}/100B/{transport}", verb.name());
        let of = move |home| Setting { verb, transport, backend: BackendKind::Memory, home };
        let alone = format!("{name}/alone");
        all.push(Entry::new(&alone, What::Time, move |place| kv::one(of(Home::OneOfTwo), place)));
        let aim = match (verb, transport) {
            // As fast, but for what two runs of the same differ by.
            (Verb::Get, _) => Some(Aim::AtMost(1.05)),
            (Verb::Put, Transport::Tcp) => Some(Aim::AtMost(2.2)),
            (Verb::Put, _) => None,
        };
        let both = Entry::new(&name, What::Time, move |place| kv::one(of(Home::Both), place));
        all.push(both.beside(alone, aim));
    }
    for transport in TRANSPORTS {
        let name = format!("/mirror/write/1MiB/{transport}");
        let write = move |home| {
            move |place: &mut Place| object::pieces(Direction::Write, transport, (1, home), place)
        };
        let alone = format!("{name}/alone");
        all.push(Entry::new(&alone, What::Rate, write(Home::OneOfTwo)));
        let aim = (transport == Transport::Tcp).then_some(Aim::AtLeast(0.45));
        all.push(Entry::new(&name, What::Rate, write(Home::Both)).beside(alone, aim));
    }
    // Nodes of one host talk over unix sockets.
    let stream = "/floor/unix/stream/1MiB";
    let resync = |name, dies| {
        Entry::new(name, What::Rate, move |place: &mut Place| resync::alone(dies, place))
    };
    all.push(resync("/mirror/resync/unix", false).beside(stream, Aim::AtLeast(0.5)));
    all.push(resync("/mirror/resync/unix/restarted", true).beside(stream, None));
    for verb in VERBS {
        let name = format!("/mirror/resync/unix/beside/{}", verb.name());
        let during = |other| move |place: &mut Place| resync::beside(verb, other, place);
        let whole = format!("{name}/whole");
        all.push(Entry::new(&whole, What::Rate, during(Other::Good)));
        let dead = format!("{name}/dead");
        all.push(Entry::new(&dead, What::Rate, during(Other::Dead)).beside(&whole, None));
        let resynced = Entry::new(&name, What::Rate, during(Other::Resynced));
        all.push(resynced.beside(whole, Aim::AtLeast(0.5)));
    }
    all
}

/// Records that are on flash when they are acknowledged.
fn durable() -> Vec<Entry> {
    let (verb, transport, home) = (Verb::Put, Transport::Unix, Home::Durable);
    let setting = Setting { verb, transport, backend: BackendKind::Memory, home };
    let put =
        Entry::new("/durable/put/100B/unix", What::Time, move |place| kv::one(setting, place));
    vec![put.beside("/floor/fdatasync/100B", None)]
}

/// Kinds of file work, the tail of their names, and the number of processes.
fn file_table() -> Vec<(Work, &'static str, usize)> {
    let mut table = Vec::new();
    for work in [Work::Create, Work::Stat, Work::Unlink] {
        table.extend([(work, "", 1), (work, "/2processes", 2)]);
    }
    for work in [Work::Read, Work::Write] {
        table.extend([(work, "/1MiB", 1), (work, "/1MiB/2processes", 2)]);
    }
    table
}

fn file_work() -> Vec<Entry> {
    let mut all = Vec::new();
    for (work, tail, processes) in file_table() {
        let bulk = matches!(work, Work::Read | Work::Write);
        let aim = (bulk && processes == 1).then_some(Aim::AtLeast(0.8));
        let name = format!("/fs/{}{tail}", work.name());
        let mut entry =
            Entry::new(name, What::Rate, move |place| files::in_store(work, processes, place));
        entry.per_s_min = match work {
            Work::Create | Work::Unlink => Some(40_000.0),
            Work::Stat => Some(100_000.0),
            Work::Read | Work::Write => None,
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
