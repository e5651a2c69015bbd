//! A durable node whose files are damaged: it does not start, says where and what to do, and comes back empty to be brought up to date.
#![expect(clippy::unwrap_used, reason = "a test fails by it")]

mod common;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::Samite;

const KEYS: usize = 40;

fn value(number: usize) -> String {
    format!("value {number} ").repeat(50)
}

/// The longest file of a node whose name starts so, and none that is still being written.
fn longest(durable: &Path, node: &str, prefix: &str) -> Option<PathBuf> {
    let files = std::fs::read_dir(durable.join(node).join("shard-0")).unwrap();
    let named = files.map(|entry| entry.unwrap()).filter(|entry| {
        let name = entry.file_name().into_string().unwrap();
        name.starts_with(prefix) && !name.ends_with(".new")
    });
    let longest =
        named.filter_map(|entry| Some((entry.metadata().ok()?.len(), entry.path()))).max();
    longest.map(|(_, path)| path)
}

/// The log of a node: its longest segment.
fn log_of(durable: &Path, node: &str) -> PathBuf {
    longest(durable, node, "log-").unwrap()
}

/// Changes one byte in the middle of what a file tells.
fn damage(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    bytes[end / 2] ^= 0x40;
    std::fs::write(path, bytes).unwrap();
}

fn is_within_a_minute(mut is_so: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    true
}

fn wait_until_whole(samite: &Samite) {
    let mut said = String::new();
    let is_whole = is_within_a_minute(|| {
        let output = samite.command(["status"]).output().unwrap();
        said = String::from_utf8_lossy(&output.stdout).into_owned();
        said.contains("64 groups healthy") && said.contains(" 0 members to bring up to date")
    });
    assert!(is_whole, "{said}");
}

fn check_all(samite: &Samite) {
    for number in 0..KEYS {
        let got = samite.ok(["kv", "get", &format!("key {number}")]);
        assert_eq!(got.trim_end(), value(number).trim_end());
    }
}

#[test]
fn a_damaged_node_is_made_again_from_the_others_and_nothing_is_lost() {
    let samite = Samite::new();
    let durable = samite.scratch().join("flash");
    let durable_text = durable.to_str().unwrap();
    let up = ["up", "--local", "2", "--memory", "64M", "--mirror", "2", "--durable", durable_text];
    samite.ok(up);
    for number in 0..KEYS {
        samite.ok(["kv", "put", &format!("key {number}"), &value(number)]);
    }
    wait_until_whole(&samite);
    samite.ok(["dataset", "create", "solo", "--durability", "logged", "--mirror", "1"]);
    samite.ok(["fault", "kill", "1"]);
    let log = log_of(&durable, "n1");
    damage(&log);
    let damaged = std::fs::read(&log).unwrap();

    // The refusal names the file, the place, and the way out.
    let said = samite.fails(1, ["node", "restart", "1"]);
    let name = log.file_name().unwrap().to_str().unwrap();
    for part in [name, "shard-0", "byte ", "samite node restart 1 --renew"] {
        assert!(said.contains(part), "{part:?} in {said}");
    }

    // A node that has the only good copy of something is not set aside.
    let wait = ["--wait", "60"];
    let said = samite.fails(5, ["node", "restart", "1", "--renew"].iter().chain(&wait));
    assert!(said.contains("only good copy") && said.contains("\"solo\""), "{said}");
    assert_eq!(std::fs::read(&log).unwrap(), damaged);
    samite.ok(["dataset", "drop", "solo"]);

    let said = samite.ok(["node", "restart", "1", "--renew"].iter().chain(&wait));
    let aside = durable.join("n1.aside-1");
    assert!(said.contains(aside.to_str().unwrap()), "{said}");
    assert_eq!(std::fs::read(aside.join("shard-0").join(name)).unwrap(), damaged);
    wait_until_whole(&samite);

    // It has everything now: the other one is made again from it, beside its coordinator's state.
    samite.ok(["fault", "kill", "0"]);
    samite.ok(["node", "restart", "0", "--renew"].iter().chain(&wait));
    wait_until_whole(&samite);
    check_all(&samite);

    // All at once, one of them damaged.
    for pid in samite.pids("default") {
        common::kill(pid);
    }
    damage(&log_of(&durable, "n1"));
    let said = samite.fails(1, up);
    assert!(said.contains("byte ") && said.contains("--renew 1"), "{said}");
    let said = samite.ok(up.iter().chain(&["--renew", "1"]));
    assert!(said.contains("n1.aside-2"), "{said}");
    wait_until_whole(&samite);
    check_all(&samite);
}

#[test]
fn a_damaged_checkpoint_stops_a_node_and_is_made_again_from_the_others() {
    /// So often written that the log is longer than it may be.
    const ROUNDS: usize = 24;
    const BIG_LEN: usize = 8 << 20;
    let samite = Samite::new();
    let durable = samite.scratch().join("flash");
    let durable_text = durable.to_str().unwrap();
    samite.ok([
        "up",
        "--local",
        "2",
        "--memory",
        "256M",
        "--mirror",
        "2",
        "--durable",
        durable_text,
    ]);
    let big: Vec<u8> = (0..BIG_LEN).map(|at| ((at * at) >> 7) as u8).collect();
    let file = samite.scratch().join("big");
    std::fs::write(&file, &big).unwrap();
    for _ in 0..ROUNDS {
        samite.ok(["kv", "put", "big", "--file", file.to_str().unwrap()]);
    }
    let checkpoint = || longest(&durable, "n1", "checkpoint-");
    assert!(is_within_a_minute(|| checkpoint().is_some()), "no checkpoint");
    samite.ok(["fault", "kill", "1"]);
    let damaged = checkpoint().unwrap();
    let name = damaged.file_name().unwrap().to_str().unwrap();
    let kept = samite.scratch().join("kept");
    std::fs::rename(&damaged, &kept).unwrap();
    let said = samite.fails(1, ["node", "restart", "1"]);
    for part in [name, "the file is missing", "shard-0", "--renew 1"] {
        assert!(said.contains(part), "{part:?} in {said}");
    }
    std::fs::rename(&kept, &damaged).unwrap();
    damage(&damaged);

    let said = samite.fails(1, ["node", "restart", "1"]);
    for part in [name, "shard-0", "byte ", "samite node restart 1 --renew"] {
        assert!(said.contains(part), "{part:?} in {said}");
    }
    let said = samite.ok(["node", "restart", "1", "--renew", "--wait", "60"]);
    assert!(said.contains("n1.aside-1"), "{said}");
    wait_until_whole(&samite);
    // It has everything now: the other one begins empty.
    samite.ok(["fault", "kill", "0"]);
    samite.ok(["node", "restart", "0", "--renew", "--wait", "60"]);
    let output = samite.command(["kv", "get", "big"]).output().unwrap();
    assert!(output.status.success() && output.stdout == big, "{}", output.status);
}

#[test]
fn a_node_whose_log_is_missing_or_cut_does_not_start() {
    let samite = Samite::new();
    let durable = samite.scratch().join("flash");
    let durable_text = durable.to_str().unwrap();
    let up = ["up", "--local", "1", "--memory", "64M", "--durable", durable_text];
    samite.ok(up);
    for number in 0..KEYS {
        samite.ok(["kv", "put", &format!("key {number}"), &value(number)]);
    }
    samite.ok(["down"]);
    let (log, shard) = (log_of(&durable, "n0"), durable.join("n0").join("shard-0"));
    let refused = |names: &[&str]| {
        let said = samite.fails(1, up);
        for part in names.iter().chain(&["shard-0", "--renew 0"]) {
            assert!(said.contains(part), "{part:?} in {said}");
        }
    };
    let name = log.file_name().unwrap().to_str().unwrap();
    let kept = samite.scratch().join("kept");

    std::fs::rename(&log, &kept).unwrap();
    refused(&[name, "the file is missing"]);

    std::fs::copy(&kept, &log).unwrap();
    let bytes = std::fs::read(&kept).unwrap();
    let used = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    std::fs::File::options().write(true).open(&log).unwrap().set_len(used as u64 / 2).unwrap();
    refused(&[name, "the file ends here"]);

    std::fs::rename(&kept, &log).unwrap();
    std::fs::rename(&shard, &kept).unwrap();
    refused(&["manifest is missing", "shard-0.begun"]);

    std::fs::remove_dir_all(&shard).unwrap();
    std::fs::rename(&kept, &shard).unwrap();
    samite.ok(up);
    check_all(&samite);
}

fn copy_all(from: &Path, to: &Path) {
    let status = std::process::Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(status.success());
}

/// Puts a copy of `from` in the place of `to`.
fn put_back(from: &Path, to: &Path) {
    std::fs::remove_dir_all(to).unwrap();
    copy_all(from, to);
}

#[test]
fn a_node_whose_directory_was_put_back_as_it_had_been_does_not_start() {
    let samite = Samite::new();
    let durable = samite.scratch().join("flash");
    let durable_text = durable.to_str().unwrap();
    let up = ["up", "--local", "2", "--memory", "64M", "--durable", durable_text];
    let (n0, n1) = (durable.join("n0"), durable.join("n1"));
    let copy = |name: &str| samite.scratch().join(name);
    samite.ok(up);
    for number in 0..KEYS {
        samite.ok(["kv", "put", &format!("key {number}"), "old"]);
    }
    samite.ok(["down"]);
    copy_all(&durable, &copy("old"));
    samite.ok(up);
    for number in 0..KEYS {
        samite.ok(["kv", "put", &format!("key {number}"), &value(number)]);
    }
    samite.ok(["down"]);
    copy_all(&durable, &copy("new"));

    // As often as it is tried.
    put_back(&copy("old").join("n1"), &n1);
    for _ in 0..2 {
        let said = samite.fails(1, up);
        for part in [n1.to_str().unwrap(), "they are an older copy", "--renew 1", "put the newest"]
        {
            assert!(said.contains(part), "{part:?} in {said}");
        }
    }
    put_back(&copy("new").join("n1"), &n1);
    samite.ok(up);
    check_all(&samite);
    samite.ok(["down"]);

    // The same of the first node: the others have the newest cluster map.
    put_back(&copy("new"), &durable);
    put_back(&copy("old").join("n0"), &n0);
    let said = samite.fails(1, up);
    assert!(said.contains("they are an older copy") && said.contains("--renew 0"), "{said}");

    // The store as a whole, as it was: nothing speaks against it.
    put_back(&copy("old"), &durable);
    samite.ok(up);
    assert_eq!(samite.ok(["kv", "get", "key 1"]).trim_end(), "old");
}

#[test]
fn a_cluster_map_that_was_put_back_as_it_had_been_is_refused() {
    let samite = Samite::new();
    let durable = samite.scratch().join("flash");
    let (n0, old) = (durable.join("n0"), samite.scratch().join("old"));
    let durable_text = durable.to_str().unwrap();
    let up = ["up", "--local", "2", "--memory", "64M", "--durable", durable_text];
    let up = [&up[..], &["--coordinator", "embedded"]].concat();
    samite.ok(&up);
    samite.ok(["down"]);
    copy_all(&n0, &old);
    samite.ok(&up);
    samite.ok(["kv", "put", "key 0", "new"]);
    samite.ok(["down"]);
    // A coordinator's state is older with the directory that it is in.
    put_back(&old, &n0);
    let said = samite.fails(1, &up);
    assert!(said.contains("the cluster map is an older copy"), "{said}");
}

#[test]
fn a_mirrored_node_that_was_put_back_is_made_again_from_the_others() {
    let samite = Samite::new();
    let durable = samite.scratch().join("flash");
    let durable_text = durable.to_str().unwrap();
    let up = ["up", "--local", "2", "--memory", "64M", "--mirror", "2", "--durable", durable_text];
    let (n1, old) = (durable.join("n1"), samite.scratch().join("old"));
    samite.ok(up);
    samite.ok(["kv", "put", "key 0", "old"]);
    wait_until_whole(&samite);
    samite.ok(["down"]);
    copy_all(&n1, &old);
    samite.ok(up);
    for number in 0..KEYS {
        samite.ok(["kv", "put", &format!("key {number}"), &value(number)]);
    }
    // A node that was killed, and started while the other serves, which has everything.
    wait_until_whole(&samite);
    samite.ok(["fault", "kill", "1"]);
    std::fs::remove_dir_all(&n1).unwrap();
    copy_all(&old, &n1);
    let said = samite.fails(1, ["node", "restart", "1"]);
    assert!(said.contains("they are an older copy"), "{said}");
    samite.ok(["node", "restart", "1", "--renew", "--wait", "60"]);
    wait_until_whole(&samite);
    samite.ok(["fault", "kill", "0"]);
    samite.ok(["node", "restart", "0", "--renew", "--wait", "60"]);
    check_all(&samite);
}
