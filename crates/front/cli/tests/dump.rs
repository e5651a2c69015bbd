//! Dumps and loads that are killed, and go on.
#![expect(clippy::unwrap_used, reason = "a test fails by it")]

mod common;

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};

use common::Samite;
use samite_testkit::datasets::pattern;

/// Keys, an object and files; about 25 MB.
fn fill(samite: &Samite) {
    let local = samite.scratch().join("tree");
    fs::create_dir_all(local.join("sub")).unwrap();
    for file in 0..150_u64 {
        let path = local.join("sub").join(format!("file{file}"));
        fs::write(path, pattern(file as usize * 900, file)).unwrap();
    }
    fs::write(local.join("large"), pattern(9_000_000, 3)).unwrap();
    std::os::unix::fs::symlink("sub/file3", local.join("points")).unwrap();
    fs::hard_link(local.join("large"), local.join("linked")).unwrap();
    samite.ok(["stage", "in", "--quiet", local.to_str().unwrap(), "/tree"]);
    let large = samite.scratch().join("large");
    fs::write(&large, pattern(7_000_000, 4)).unwrap();
    samite.ok(["object", "put", "object", large.to_str().unwrap()]);
    for key in 0..20 {
        samite.ok_with(["kv", "put", &format!("key{key}"), "-"], &pattern(90_000, key));
    }
}

/// Names and contents of all that is in a directory.
fn tree(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    let mut left = vec![dir.to_owned()];
    while let Some(path) = left.pop() {
        for entry in fs::read_dir(path).unwrap() {
            let entry = entry.unwrap();
            let (path, kind) = (entry.path(), entry.file_type().unwrap());
            let name = path.strip_prefix(dir).unwrap().to_str().unwrap().to_owned();
            if kind.is_dir() {
                left.push(path);
            } else if kind.is_symlink() {
                let target = fs::read_link(&path).unwrap();
                all.push((name, target.to_str().unwrap().as_bytes().to_vec()));
            } else {
                all.push((name, fs::read(path).unwrap()));
            }
        }
    }
    all.sort();
    all
}

/// All there is: files, the object, and the keys.
fn all(samite: &Samite) -> Vec<(String, Vec<u8>)> {
    let out = tempfile::tempdir_in(samite.scratch()).unwrap();
    let files = out.path().join("files");
    samite.ok(["stage", "out", "--quiet", "/tree", files.to_str().unwrap()]);
    let mut all = tree(&files);
    let object = out.path().join("object");
    samite.ok(["object", "get", "object", object.to_str().unwrap()]);
    all.push(("object".into(), fs::read(object).unwrap()));
    for key in samite.ok(["kv", "list"]).lines() {
        let output = samite.command(["kv", "get", key]).output().unwrap();
        assert!(output.status.success());
        all.push((key.to_owned(), output.stdout));
    }
    all
}

fn segments(dir: &Path) -> usize {
    common::list(dir).iter().filter(|name| name.ends_with(".segment")).count()
}

/// Kills `child` when `is_time` comes; whether it was still there.
fn kill_when(child: &mut Child, mut is_time: impl FnMut() -> bool) -> bool {
    loop {
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        if is_time() {
            child.kill().unwrap();
            return child.wait().unwrap().code().is_none();
        }
        std::thread::yield_now();
    }
}

#[test]
fn a_killed_dump_and_a_killed_load_go_on() {
    let samite = Samite::new();
    samite.ok(["up", "--local", "2", "--memory", "128M", "--mirror", "2"]);
    fill(&samite);
    let dir = samite.scratch().join("dump");
    let path = dir.to_str().unwrap();
    let dump = ["dump", path, "--segment", "256K", "--json"];
    let mut killed = 0;
    for stop in [0, 1, 7, 25] {
        let mut command = samite.command(dump);
        let mut child = command.stdout(Stdio::null()).spawn().unwrap();
        killed += u32::from(kill_when(&mut child, || {
            segments(&dir) >= stop && (stop > 0 || dir.join("dump.json").exists())
        }));
        // What changes between two tries is in the dump, too.
        samite.ok(["kv", "put", &format!("between{stop}"), "value"]);
        samite.ok(["kv", "put", "key3", &format!("another {stop}")]);
        if stop == 7 {
            samite.ok(["rm", "/tree/sub/file5"]);
            samite.ok(["kv", "delete", "key4"]);
        }
        let other = Samite::up(1);
        let said = other.fails(1, ["load", path]);
        assert!(said.contains("run samite dump again"), "{said}");
    }
    assert!(killed >= 3, "{killed} dumps were killed before their end");
    let report: serde_json::Value = serde_json::from_str(&samite.ok(dump)).unwrap();
    assert_eq!(report["continued"], true);
    assert!(report["segments"].as_u64().unwrap() > 40, "{report}");
    let before = all(&samite);
    // A whole dump is not written over.
    samite.fails(5, dump);

    // A load may be over before it can be killed: then another one is begun.
    let killed_loads = || {
        let other = Samite::up(3);
        let is_killed = [1, 40].into_iter().all(|stop| {
            let mut child = other.command(["load", path, "--mirror", "1"]).spawn().unwrap();
            kill_when(&mut child, || loaded(&other) >= stop)
        });
        is_killed.then_some(other)
    };
    let other = (0..20).find_map(|_| killed_loads()).expect("a load is killed twice");
    let report: serde_json::Value =
        serde_json::from_str(&other.ok(["load", path, "--mirror", "1", "--json"])).unwrap();
    assert_eq!(report["continued"], true);
    assert_eq!(all(&other), before);
    other.fails(5, ["load", path, "--mirror", "1"]);
    // A pipe from one store into another.
    let third = Samite::new();
    third.ok(["up", "--local", "2", "--memory", "256M"]);
    let mut from = samite.command(["dump", "-"]);
    let mut from = from.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let to = third.command(["load", "-"]).stdin(from.stdout.take().unwrap()).status().unwrap();
    assert!(to.success() && from.wait().unwrap().success());
    assert_eq!(all(&third), before);
}

/// Records that are there so far, of the datasets that are there so far.
fn loaded(samite: &Samite) -> u64 {
    let count = |dataset: &str| {
        let scan = samite.command(["dataset", "scan", dataset, "--count", "--json"]).output();
        let counted: Option<serde_json::Value> = serde_json::from_slice(&scan.unwrap().stdout).ok();
        counted.and_then(|counted| counted["records"].as_u64()).unwrap_or(0)
    };
    ["files", "kv", "objects"].map(count).iter().sum()
}

#[test]
fn a_killed_dump_holds_nobody_back_for_long() {
    let samite = Samite::up(1);
    samite.ok(["kv", "put", "key", "1"]);
    let dir = samite.scratch().join("dump");
    for _ in 0..3 {
        let mut child = samite.command(["dump", dir.to_str().unwrap()]).spawn().unwrap();
        kill_when(&mut child, || dir.join("kv.1.keys").exists());
        // It waits for the end of the term, if there is a freeze.
        samite.ok(["kv", "put", "key", "2"]);
        let _ = fs::remove_dir_all(&dir);
    }
    samite.ok(["dump", dir.to_str().unwrap()]);
}
