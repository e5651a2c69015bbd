//! Files, keys and objects through the commands.
#![expect(clippy::unwrap_used, reason = "a test fails by it")]

mod common;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use common::Samite;

#[test]
fn files_come_and_go() {
    let samite = Samite::up(2);
    let local = samite.scratch().join("local");
    fs::write(&local, "hello\n").unwrap();
    samite.ok(["mkdir", "-p", "/a/b"]);
    samite.ok(["put", local.to_str().unwrap(), "/a/b"]);
    samite.ok_with(["put", "-", "/a/piped"], b"from a pipe");
    assert_eq!(samite.ok(["ls", "/a"]), "b\npiped\n");
    assert_eq!(samite.ok(["ls", "-R", "/"]), "/:\na\n\n/a:\nb\npiped\n\n/a/b:\nlocal\n");
    assert_eq!(samite.ok(["cat", "/a/b/local", "/a/piped"]), "hello\nfrom a pipe");
    samite.ok(["mv", "/a/b/local", "/a/moved"]);
    samite.ok(["cp", "/a/moved", "/a/b"]);
    samite.ok(["cp", "-r", "/a", "/c"]);
    assert_eq!(samite.ok(["ls", "/c/b"]), "moved\n");
    let back = samite.scratch().join("back");
    samite.ok(["get", "/c/b/moved", back.to_str().unwrap()]);
    assert_eq!(fs::read(&back).unwrap(), b"hello\n");
    let stat: serde_json::Value =
        serde_json::from_str(&samite.ok(["stat", "--json", "/c/b/moved"])).unwrap();
    assert_eq!((stat["size"].as_u64(), stat["kind"].as_str()), (Some(6), Some("file")));
    assert!(samite.ok(["df", "-h"]).contains("MiB"));
    samite.ok(["rm", "-r", "/a"]);
    assert_eq!(samite.ok(["ls", "/"]), "c\n");
}

#[test]
fn what_is_not_there_is_named() {
    let samite = Samite::up(1);
    assert!(samite.fails(4, ["cat", "/nope"]).contains("/nope"));
    assert!(samite.fails(4, ["ls", "/nope"]).contains("/nope"));
    assert!(samite.fails(4, ["stat", "/nope"]).contains("/nope"));
    assert!(samite.fails(4, ["rm", "/nope"]).contains("/nope"));
    samite.ok(["rm", "-f", "/nope"]);
    samite.ok(["mkdir", "/d"]);
    assert!(samite.fails(5, ["mkdir", "/d"]).contains("/d"));
    assert!(samite.fails(1, ["rm", "/d"]).contains("use -r"));
    assert!(samite.fails(1, ["rm", "-r", "/"]).contains("cannot be removed"));
    assert!(samite.fails(1, ["cp", "/d", "/e"]).contains("use -r"));
    assert!(samite.fails(1, ["cp", "-r", "/d", "/d/sub"]).contains("into itself"));
    assert!(samite.fails(1, ["stage", "in", "/no/such/dir", "/x"]).contains("/no/such/dir"));
    assert!(samite.fails(4, ["stage", "out", "/nope", "/tmp/x"]).contains("/nope"));
}

#[test]
fn semantics_are_set_inherited_and_shown() {
    let samite = Samite::up(1);
    samite.ok(["mkdir", "-p", "/c/before"]);
    samite.ok(["set", "/c", "semantics=temporary"]);
    samite.ok(["mkdir", "/c/inherits"]);
    assert!(samite.ok(["stat", "/c/inherits"]).contains("semantics: temporary"));
    assert!(samite.ok(["stat", "--json", "/c/before"]).contains("\"semantics\":\"posix\""));
    samite.fails(2, ["set", "/c", "semantics=never"]);
    assert!(samite.fails(4, ["set", "/nope", "semantics=session"]).contains("/nope"));
}

#[test]
fn keys_and_objects() {
    let samite = Samite::up(2);
    let version = samite.ok(["kv", "put", "greeting", "hello"]);
    assert_eq!(samite.ok(["kv", "get", "greeting"]), "hello");
    assert!(samite.fails(5, ["kv", "put", "--if-absent", "greeting", "x"]).contains("greeting"));
    samite.ok(["kv", "cas", "greeting", version.trim(), "bye"]);
    samite.fails(5, ["kv", "cas", "greeting", version.trim(), "never"]);
    assert_eq!(samite.ok(["kv", "get", "greeting"]), "bye");
    samite.ok_with(["kv", "put", "empty", "-"], b"");
    assert_eq!(samite.ok(["kv", "list"]), "empty\ngreeting\n");
    assert_eq!(samite.ok(["kv", "list", "g"]), "greeting\n");
    samite.ok(["kv", "delete", "greeting"]);
    assert!(samite.fails(4, ["kv", "get", "greeting"]).contains("greeting"));
    assert!(samite.fails(4, ["kv", "delete", "greeting"]).contains("greeting"));
    assert!(samite.fails(4, ["kv", "get", "x", "--dataset", "nope"]).contains("nope"));

    let local = samite.scratch().join("object");
    let bytes: Vec<u8> = (0..3_000_001u32).map(|i| (i % 251) as u8).collect();
    fs::write(&local, &bytes).unwrap();
    samite.ok(["object", "put", "big", local.to_str().unwrap()]);
    let stat = samite.ok(["object", "stat", "big", "--json"]);
    assert!(stat.contains("\"len\":3000001"), "{stat}");
    let back = samite.scratch().join("back");
    samite.ok(["object", "get", "big", back.to_str().unwrap()]);
    assert!(fs::read(&back).unwrap() == bytes);
    let part = samite.ok(["object", "get", "big", "--offset", "251", "--length", "3"]);
    assert_eq!(part.as_bytes(), [0, 1, 2]);
    assert_eq!(samite.ok(["object", "ls"]), "big\n");
    samite.ok(["object", "rm", "big"]);
    samite.fails(4, ["object", "get", "big"]);

    samite.ok(["dataset", "create", "mine", "--distribution", "single", "--chunk", "64K"]);
    assert!(samite.ok(["dataset", "list"]).contains("mine"));
    samite.ok(["kv", "put", "k", "v", "--dataset", "mine"]);
    samite.ok(["dataset", "drop", "mine"]);
    samite.fails(4, ["kv", "get", "k", "--dataset", "mine"]);
}

#[test]
fn a_dataset_names_its_backend_and_is_told_what_that_does_not_do() {
    let samite = Samite::up(1);
    samite.ok(["dataset", "create", "hollow", "--backend", "null"]);
    let list = samite.ok(["dataset", "list", "--json"]);
    let line = list.lines().find(|line| line.contains("hollow")).unwrap();
    assert!(line.contains("\"backend\":\"null\"") && line.contains("\"path\":null"), "{line}");
    assert!(samite.ok(["dataset", "list"]).lines().any(|line| line.contains("null")));
    let create = |args: &[&str]| {
        let args = ["dataset", "create", "wanted"].iter().chain(args);
        samite.fails(1, args)
    };
    let said = create(&["--backend", "tape"]);
    assert!(said.contains("backend tape: not in this build, which has memory, null"), "{said}");
    let said = create(&["--path", "/data"]);
    assert!(said.contains("backend memory: takes no path"), "{said}");
    let said = create(&["--path", "data"]);
    assert!(said.contains("path \"data\"; an absolute one"), "{said}");
    let said = create(&["--backend", "null", "--durability", "logged"]);
    assert!(said.contains("backend null: cannot be logged"), "{said}");
    assert!(!samite.ok(["dataset", "list"]).contains("wanted"));
    let help = samite.ok(["dataset", "create", "--help"]);
    assert!(help.contains("`memory` (") && help.contains("`null` ("), "{help}");
    samite.fails(2, ["dataset", "create", "wanted", "--semantics", "checkpoint"]);
}

fn odd_tree(root: &Path) {
    fs::create_dir_all(root.join("dir/empty")).unwrap();
    fs::write(root.join("empty"), "").unwrap();
    fs::write(root.join(OsStr::from_bytes(b"new\nline \xff\xfe")), "odd name").unwrap();
    fs::write(root.join("dir/private"), "secret").unwrap();
    fs::set_permissions(root.join("dir/private"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::hard_link(root.join("dir/private"), root.join("other-name")).unwrap();
    symlink("../nowhere", root.join("dir/dangling")).unwrap();
    let sparse = File::create(root.join("sparse")).unwrap();
    sparse.set_len(10 << 30).unwrap();
    sparse.write_all_at(b"in the middle", 5 << 30).unwrap();
    let large: Vec<u8> = (0..40 << 20).map(|i: u32| (i / 7 % 251) as u8).collect();
    fs::write(root.join("large"), large).unwrap();
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_nanos(1_234_567_890_123_456_789);
    File::open(root.join("empty")).unwrap().set_modified(time).unwrap();
    fs::set_permissions(root.join("dir"), fs::Permissions::from_mode(0o750)).unwrap();
}

fn assert_same(from: &Path, to: &Path) {
    let (a, b) = (fs::symlink_metadata(from).unwrap(), fs::symlink_metadata(to).unwrap());
    assert_eq!((a.mode(), a.uid(), a.gid()), (b.mode(), b.uid(), b.gid()), "{from:?}");
    if a.is_dir() {
        let mut names: Vec<_> =
            fs::read_dir(to).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        for entry in fs::read_dir(from).unwrap() {
            let name = entry.unwrap().file_name();
            names.retain(|other| *other != name);
            assert_same(&from.join(&name), &to.join(&name));
        }
        assert!(names.is_empty(), "{names:?} too many in {to:?}");
        return;
    }
    assert_eq!((a.mtime(), a.mtime_nsec()), (b.mtime(), b.mtime_nsec()), "{from:?}");
    assert_eq!((a.len(), a.nlink()), (b.len(), b.nlink()), "{from:?}");
    if a.is_symlink() {
        assert_eq!(fs::read_link(from).unwrap(), fs::read_link(to).unwrap());
    } else if a.len() < 1 << 30 {
        assert!(fs::read(from).unwrap() == fs::read(to).unwrap(), "{from:?}");
    }
}

#[test]
fn a_tree_goes_in_and_comes_out_as_it_was() {
    let samite = Samite::up(2);
    let (from, back) = (samite.scratch().join("from"), samite.scratch().join("back"));
    odd_tree(&from);
    let summary = |args: &[&str]| -> serde_json::Value {
        serde_json::from_str(&samite.ok([args, &["--json"]].concat())).unwrap()
    };
    let said = summary(&["stage", "in", from.to_str().unwrap(), "/some/where"]);
    assert_eq!((said["files"].as_u64(), said["errors"].as_u64()), (Some(5), Some(0)), "{said}");
    assert_eq!((said["symlinks"].as_u64(), said["hard_links"].as_u64()), (Some(1), Some(1)));
    let out = samite.command(["ls", "/some/where"]).output().unwrap().stdout;
    assert_eq!(out, b"dir\nempty\nlarge\nnew\nline \xff\xfe\nother-name\nsparse\n");

    let said = summary(&["stage", "out", "/some/where", back.to_str().unwrap()]);
    assert_eq!((said["files"].as_u64(), said["errors"].as_u64()), (Some(5), Some(0)), "{said}");
    assert_same(&from, &back);
    let sparse = File::open(back.join("sparse")).unwrap();
    let mut middle = [0; 13];
    sparse.read_exact_at(&mut middle, 5 << 30).unwrap();
    assert_eq!(&middle, b"in the middle");
    assert!(sparse.metadata().unwrap().blocks() * 512 < 1 << 20, "holes are kept");

    // Again: nothing to do. After a change and a half-done file: only these two.
    fs::remove_file(from.join("sparse")).unwrap();
    let said = summary(&["stage", "in", from.to_str().unwrap(), "/some/where"]);
    assert_eq!((said["files"].as_u64(), said["skipped"].as_u64()), (Some(0), Some(4)), "{said}");
    fs::write(from.join("dir/private"), "changed").unwrap();
    samite.ok_with(["put", "-", "/some/where/large"], b"as if it was interrupted");
    let args = ["stage", "in", "--checksum", from.to_str().unwrap(), "/some/where"];
    let said = summary(&args);
    assert_eq!((said["files"].as_u64(), said["verified"].as_u64()), (Some(2), Some(4)), "{said}");
    assert_eq!(samite.ok(["cat", "/some/where/other-name"]), "changed");
}

/// Many files, small and large.
fn large_tree(root: &Path) {
    for dir in 0..10 {
        let dir = root.join(format!("dir-{dir}"));
        fs::create_dir_all(&dir).unwrap();
        for file in 0..300 {
            fs::write(dir.join(format!("file-{file}")), vec![b'x'; file * 40]).unwrap();
        }
        fs::write(dir.join("large"), vec![b'y'; 5 << 20]).unwrap();
    }
}

#[test]
fn a_copy_that_was_killed_goes_on_where_it_stopped() {
    let samite = Samite::up(2);
    let (from, back) = (samite.scratch().join("from"), samite.scratch().join("back"));
    large_tree(&from);
    for pause_ms in [10, 50, 100] {
        let args = ["stage", "in", "--quiet", from.to_str().unwrap(), "/tree"];
        let mut stage = samite.command(args).stdout(std::process::Stdio::null()).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(pause_ms));
        stage.kill().unwrap();
        stage.wait().unwrap();
    }
    let said = samite.ok(["stage", "in", "--checksum", from.to_str().unwrap(), "/tree"]);
    assert!(said.contains("0 errors") && said.contains("3010 files read back"), "{said}");
    samite.ok(["stage", "out", "/tree", back.to_str().unwrap()]);
    assert_same(&from, &back);
}

#[test]
fn a_node_that_dies_ends_a_copy_at_once() {
    let samite = Samite::up(2);
    let from = samite.scratch().join("from");
    large_tree(&from);
    common::kill(samite.pids("default")[1]);
    let begun = std::time::Instant::now();
    let args = ["stage", "in", "--timeout", "2", from.to_str().unwrap(), "/tree"];
    let said = samite.fails(3, args);
    assert!(said.contains("n1"), "{said}");
    assert!(begun.elapsed() < std::time::Duration::from_secs(20), "{:?}", begun.elapsed());
    assert!(said.lines().count() < 20, "one error for a lost node is enough: {said}");
}

#[test]
fn a_full_store_says_so_names_the_file_and_stays_healthy() {
    let samite = Samite::new();
    samite.ok(["up", "--local", "1", "--memory", "32M"]);
    let from = samite.scratch().join("from");
    fs::create_dir(&from).unwrap();
    let bytes: Vec<u8> = (0..48 << 20).map(|i: u32| (i % 251) as u8 + 1).collect();
    fs::write(from.join("too-large"), bytes).unwrap();
    fs::write(from.join("small"), "small").unwrap();
    let args = ["stage", "in", from.to_str().unwrap(), "/d"];
    let said = samite.fails(1, args);
    assert!(said.contains("needs about 48.0 MiB and 3 entries"), "{said}");
    assert!(said.contains(" are free on n0: --force tries"), "{said}");
    assert_eq!(samite.ok(["ls", "/"]), "");
    let said = samite.fails(1, [args.as_slice(), &["--force"]].concat());
    assert!(said.contains("/d/too-large"), "{said}");
    assert_eq!(samite.ok(["cat", "/d/small"]), "small");
    assert_eq!(samite.ok(["ls", "/d"]), "small\n");
    samite.ok_with(["put", "-", "/fits"], &[1; 1 << 20]);
}

#[test]
fn after_ten_errors_of_one_kind_the_rest_is_counted() {
    let samite = Samite::new();
    samite.ok(["up", "--local", "1", "--memory", "32M"]);
    let from = samite.scratch().join("from");
    fs::create_dir_all(from.join("dir")).unwrap();
    // Half of it fits.
    for name in 0..120 {
        let dir = if name % 2 == 0 { "dir" } else { "." };
        fs::write(from.join(dir).join(name.to_string()), vec![1; 512 << 10]).unwrap();
    }
    let args = ["stage", "in", "--json", "--force", from.to_str().unwrap(), "/d"];
    let out = samite.command(args).output().unwrap();
    let said = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert_eq!(said.lines().count(), 11, "{said}");
    assert!(
        said.lines().last().unwrap().contains("given up (no space left in the store)"),
        "{said}"
    );
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(report["given_up"], true);
    let count = |key: &str| report[key].as_u64().unwrap();
    assert!(count("not_tried") > 20, "{report}");
    assert_eq!(count("files") + count("errors") + count("not_tried"), 120, "{report}");
    // Files that are there are not counted once more.
    let said = samite.fails(1, ["stage", "in", from.to_str().unwrap(), "/d"]);
    let expected = format!("and {} entries", 120 - count("files") + 2);
    assert!(said.contains(&expected), "{said}; {report}");
}
