//! `ls`, `stat`, `cat` and `flock`, on a mount and through `samite run`, while a node dies: each of them ends.
#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

mod common;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Seek, SeekFrom};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Samite, kill};

/// Longer than any of these programs may take.
const PATIENCE: Duration = Duration::from_secs(90);
/// How long they are started again and again once the node is dead: a failover takes less than 3 s.
const LOOK_FOR: Duration = Duration::from_secs(4);
const FILES: usize = 24;
/// A node that dies.
const VICTIM: usize = 1;
/// A node that dies where etcd is the coordinator: others find the cluster by it.
const FIRST: usize = 0;
/// Somebody who waits for a lock looks so often what has become of the nodes, and then some.
const LOOKS: Duration = Duration::from_secs(3);
/// Longest time from the release of a lock to its next holder.
const LOCK_WITHIN: Duration = Duration::from_secs(30);

/// The output of a program, and whether it succeeded.
struct Said {
    out: String,
    err: String,
    is_content: bool,
}

/// Runs a program that must end in time.
fn run(samite: &Samite, mut command: Command) -> Said {
    let what = format!("{command:?}");
    let open = |name: &str| {
        let path = samite.scratch().join(name);
        File::options().read(true).write(true).create(true).truncate(true).open(path).unwrap()
    };
    let (mut out, mut err) = (open("out"), open("err"));
    // In files, so that nothing waits for their reader.
    command.stdin(Stdio::null()).stdout(out.try_clone().unwrap()).stderr(err.try_clone().unwrap());
    let mut child = command.spawn().unwrap();
    let until = Instant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        assert!(Instant::now() < until, "{what} hangs");
        std::thread::sleep(Duration::from_millis(2));
    };
    let text = |file: &mut File| {
        file.seek(SeekFrom::Start(0)).unwrap();
        std::io::read_to_string(file).unwrap()
    };
    Said { out: text(&mut out), err: text(&mut err), is_content: status.success() }
}

/// A way to the files: programs are run with it.
struct AccessPath {
    path: PathBuf,
    is_interposed: bool,
}

impl AccessPath {
    fn run(&self, samite: &Samite, program: &str, args: &[&OsStr]) -> Said {
        let mut command = match self.is_interposed {
            false => Command::new(program),
            true => samite.interposed(program),
        };
        command.args(args);
        run(samite, command)
    }
}

fn content(number: usize) -> String {
    format!("{number} ").repeat(number + 1)
}

/// A cluster of three with files, and the access paths that there are here.
fn up(mirror: &str, coordinator: &str) -> (Samite, Vec<AccessPath>) {
    let samite = Samite::new();
    let sizes = ["up", "--local", "3", "--memory", "64M"];
    samite.ok(sizes.iter().chain(&["--mirror", mirror, "--coordinator", coordinator]));
    assert!(samite.interposed("mkdir").arg("/samite/dir").status().unwrap().success());
    for number in 0..FILES {
        samite.ok_with(["put", "-", &format!("/dir/f{number}")], content(number).as_bytes());
    }
    let mut accesses = vec![AccessPath { path: "/samite/dir".into(), is_interposed: true }];
    if samite_testkit::is_fuse_there() {
        let path = samite.scratch().join("store");
        fs::create_dir(&path).unwrap();
        // Uncached, so that the store is asked each time.
        samite.ok(["mount", "--uncached", path.to_str().unwrap()]);
        accesses.push(AccessPath { path: path.join("dir"), is_interposed: false });
    } else {
        samite_testkit::skip_part(samite_testkit::FUSE);
    }
    (samite, accesses)
}

/// `ls -l` as a name and a size for each file.
fn listed(said: &str) -> Vec<(String, usize)> {
    let parse = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        Some(((*words.get(8)?).to_owned(), words.get(4)?.parse().ok()?))
    };
    let mut all: Vec<_> = said.lines().filter_map(parse).collect();
    all.sort();
    all
}

/// One round of programs over an access path: returns the errors in their output, in words; none of
/// them hangs.
fn round(samite: &Samite, access: &AccessPath, number: usize) -> Vec<String> {
    let file = access.path.join(format!("f{number}"));
    let mut wrong = Vec::new();
    let mut all: Vec<_> =
        (0..FILES).map(|number| (format!("f{number}"), content(number).len())).collect();
    all.sort();
    let ls = access.run(samite, "ls", &["-l".as_ref(), access.path.as_os_str()]);
    let stat = access.run(samite, "stat", &["-c".as_ref(), "%s".as_ref(), file.as_os_str()]);
    let cat = access.run(samite, "cat", &[file.as_os_str()]);
    let rights = [
        ls.is_content && listed(&ls.out) == all,
        stat.is_content && stat.out.trim() == content(number).len().to_string(),
        cat.is_content && cat.out == content(number),
    ];
    for (said, is_right) in [ls, stat, cat].into_iter().zip(rights) {
        // A program that was told that all went well has the right content.
        assert!(is_right || !said.is_content, "{}{}", said.out, said.err);
        if !is_right {
            wrong.push(said.err);
        }
    }
    wrong
}

#[test]
fn programs_see_a_pause_while_a_mirrored_node_dies() {
    let (samite, accesses) = up("2", "replicated");
    for access in &accesses {
        assert_eq!(round(&samite, access, 1), [] as [String; 0]);
    }
    kill(samite.pids("default")[VICTIM]);
    let begun = Instant::now();
    let mut number = 0;
    while number == 0 || begun.elapsed() < LOOK_FOR {
        for access in &accesses {
            assert_eq!(round(&samite, access, number % FILES), [] as [String; 0]);
        }
        number += 1;
    }
}

#[test]
fn programs_get_an_error_and_do_not_hang_when_an_unmirrored_node_dies() {
    let (samite, accesses) = up("1", "embedded");
    kill(samite.pids("default")[VICTIM]);
    for access in &accesses {
        let mut wrong = Vec::new();
        for number in 0..FILES {
            wrong.extend(round(&samite, access, number));
        }
        // A third of the files was there, and a part of the directory.
        assert!(!wrong.is_empty());
        assert!(wrong.iter().all(|words| words.contains("Input/output error")), "{wrong:?}");
    }
}

/// `flock FILE PROGRAM` over an access path, begun.
fn locks(samite: &Samite, access: &AccessPath, file: usize, program: &str) -> Child {
    let mut command = match access.is_interposed {
        false => Command::new("flock"),
        true => samite.interposed("flock"),
    };
    command.arg(access.path.join(format!("f{file}"))).arg(program);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
}

/// Which of them end well in time; the others are killed.
fn outcomes(mut children: Vec<Child>) -> Vec<bool> {
    let until = Instant::now() + LOCK_WITHIN;
    let mut all = vec![None; children.len()];
    while all.contains(&None) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
        for (one, child) in all.iter_mut().zip(&mut children) {
            *one = child.try_wait().unwrap().map(|status| status.success());
        }
    }
    for child in &mut children {
        let _ = child.kill();
        child.wait().unwrap();
    }
    all.into_iter().map(Option::unwrap_or_default).collect()
}

/// A node dies and comes back while they wait: they find a link that has ended, and make another one.
#[test]
fn who_waits_for_a_lock_gets_it_after_a_node_has_died_and_come_back() {
    if !samite_testkit::has("flock") || !samite_testkit::has("etcd") {
        return;
    }
    let (samite, accesses) = up("2", "etcd");
    let files = 0..4;
    // Each ends with its standard input.
    let mut holders: Vec<Child> =
        files.clone().map(|file| locks(&samite, &accesses[0], file, "cat")).collect();
    std::thread::sleep(LOOKS);
    let through = |access| files.clone().map(move |file| (access, file));
    let mut waiters: Vec<Child> = accesses
        .iter()
        .flat_map(through)
        .map(|(access, file)| locks(&samite, access, file, "true"))
        .collect();
    std::thread::sleep(LOOKS);
    kill(samite.pids("default")[FIRST]);
    std::thread::sleep(LOOKS);
    samite.ok(["node", "restart", &FIRST.to_string()]);
    std::thread::sleep(LOOKS);
    let early = waiters.iter_mut().filter_map(|child| child.try_wait().unwrap()).count();
    // Their input ends, and with it they do.
    holders.iter_mut().for_each(|holder| drop(holder.stdin.take()));
    let (held, waited) = (outcomes(holders), outcomes(waiters));
    assert_eq!(early, 0, "had a lock that another one had");
    assert!(held.iter().all(|is_content| *is_content), "{held:?}");
    // In the order of the access paths: under `samite run` first.
    assert!(waited.iter().all(|is_content| *is_content), "{waited:?}");
}
