//! Stores on backends that remember: real programs, nodes that are killed, and what is refused.
#![expect(clippy::unwrap_used, reason = "a test fails by it")]

mod common;

use std::path::Path;

use common::{Samite, kill};
use samite_testkit::has;

/// Ends all nodes without warning.
fn kill_nodes(samite: &Samite) {
    samite.pids("default").into_iter().for_each(kill);
}

/// Makes a repository and a database, changes both, and says what is in them.
const WORK: &str = "
set -e
mkdir /samite/work; cd /samite/work
git init -q repo; cd repo
git config user.email a@b; git config user.name a; git config gc.auto 0
for i in 1 2 3 4 5; do head -c 3000 /dev/urandom > f$i; done
head -c 1500000 /dev/urandom > large
git add .; git commit -qm one
echo more >> f1; git commit -qam two
sqlite3 ../data.db 'create table t(a integer primary key, b text);
    with recursive c(x) as (select 1 union all select x+1 from c where x < 2000)
    insert into t select x, hex(randomblob(20)) from c;'
sqlite3 ../data.db 'delete from t where a % 3 = 0; update t set b = upper(b) where a < 100'
";

/// Looks whether both are whole, and prints what is in them.
const LOOK: &str = "
set -e
cd /samite/work/repo
git fsck --strict 2>/dev/null; git status --short; git log --format=%H
sqlite3 ../data.db 'pragma integrity_check; select count(*), sum(a), max(b) from t'
sha1sum f1 f2 f3 f4 f5 large
";

fn run(samite: &Samite, script: &str) -> String {
    let output = samite.interposed("sh").args(["-c", script]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn programs_find_what_they_left(backend: &str) {
    if !has("git") || !has("sqlite3") {
        return;
    }
    let samite = Samite::new();
    let durable = samite.scratch().join("flash");
    let durable = durable.to_str().unwrap();
    let up = ["up", "--local", "2", "--memory", "128M", "--durable", durable];
    samite.ok(up.iter().chain(&["--backend", backend]));
    let made = samite.ok(["dataset", "list", "--json"]);
    assert_eq!(made.matches(&format!("\"backend\":\"{backend}\"")).count(), 3, "{made}");
    run(&samite, WORK);
    samite.ok(["kv", "put", "key", "value"]);
    let before = run(&samite, LOOK);
    assert!(before.contains("ok\n"), "{before}");
    for _ in 0..2 {
        kill_nodes(&samite);
        samite.ok(up);
        assert_eq!(run(&samite, LOOK), before);
        assert_eq!(samite.ok(["kv", "get", "key"]), "value");
    }
    run(&samite, "cd /samite/work/repo && echo again >> f2 && git commit -qam three");
    samite.ok(["rm", "-r", "/work"]);
    samite.ok(["down"]);
    samite.ok(up);
    assert_eq!(samite.ok(["ls", "/"]), "");
}

#[test]
fn git_and_sqlite_find_on_lmdb_what_they_left_when_all_nodes_were_killed() {
    programs_find_what_they_left("lmdb");
}

#[test]
fn git_and_sqlite_find_on_posix_what_they_left_when_all_nodes_were_killed() {
    programs_find_what_they_left("posix");
}

#[test]
fn a_backend_that_remembers_needs_nodes_that_keep_something() {
    let samite = Samite::up(1);
    let said = samite.fails(1, ["dataset", "create", "data", "--backend", "lmdb"]);
    assert!(said.contains("--durable"), "{said}");
    let said = samite.fails(2, ["up", "--local", "1", "--name", "other", "--backend", "lmdb"]);
    assert!(said.contains("--durable"), "{said}");
}

#[test]
fn a_dataset_lies_where_its_path_says_and_leaves_nothing_when_it_is_dropped() {
    let samite = Samite::new();
    let durable = samite.scratch().join("flash");
    let place = samite.scratch().join("elsewhere");
    let (durable, place) = (durable.to_str().unwrap(), place.to_str().unwrap());
    samite.ok(["up", "--local", "2", "--memory", "64M", "--durable", durable]);
    let said =
        samite.fails(4, ["dataset", "create", "a", "--backend", "lmdb", "--path", "/proc/a"]);
    assert!(said.contains("/proc/a"), "{said}");
    samite.ok(["dataset", "create", "a", "--backend", "posix", "--path", place]);
    let value = samite.scratch().join("value");
    std::fs::write(&value, [b'v'; 300_000]).unwrap();
    samite.ok(["kv", "put", "--dataset", "a", "--file", value.to_str().unwrap(), "key"]);
    assert_eq!(samite.ok(["kv", "get", "--dataset", "a", "key"]).len(), 300_000);
    let files = || {
        count_files(&Path::new(place).join("node-0/parts"))
            + count_files(&Path::new(place).join("node-1/parts"))
    };
    assert!(files() > 0);
    samite.ok(["dataset", "drop", "a"]);
    for _ in 0..500 {
        if files() == 0 {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("{} files are left", files());
}

fn count_files(dir: &Path) -> usize {
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    let count = |entry: std::fs::DirEntry| match entry.file_type().unwrap().is_dir() {
        true => count_files(&entry.path()),
        false => 1,
    };
    entries.flatten().map(count).sum()
}
