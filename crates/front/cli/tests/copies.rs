//! A file that a copy replaces stays until the new one is whole.
#![expect(clippy::unwrap_used, reason = "a test fails by it")]

mod common;

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Stdio;

use common::{Samite, list};

/// Bytes of which none is zero.
fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i % 251) as u8 + 1).collect()
}

fn small_store() -> Samite {
    let samite = Samite::new();
    samite.ok(["up", "--local", "1", "--memory", "32M"]);
    samite
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// All names in a directory of the store, hidden ones too.
fn names(samite: &Samite, dir: &str) -> String {
    let copy = samite.scratch().join("names");
    samite.ok(["stage", "out", "--quiet", dir, text(&copy)]);
    let names = list(&copy).join(" ");
    fs::remove_dir_all(copy).unwrap();
    names
}

#[test]
fn a_copy_into_a_full_store_leaves_the_old_file() {
    let samite = small_store();
    let tree = samite.scratch().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("f"), "old").unwrap();
    samite.ok(["stage", "in", text(&tree), "/d"]);
    fs::write(tree.join("f"), bytes(48 << 20)).unwrap();
    let said = samite.fails(1, ["put", "--force", text(&tree.join("f")), "/d"]);
    assert!(said.contains("no space left"), "{said}");
    assert_eq!(samite.ok(["cat", "/d/f"]), "old");
    let said = samite.fails(1, ["stage", "in", "--force", text(&tree), "/d"]);
    assert!(said.contains("/d/f") && said.contains("no space left"), "{said}");
    assert_eq!(samite.ok(["cat", "/d/f"]), "old");
    assert_eq!(names(&samite, "/d"), "f");
}

#[test]
fn what_is_larger_than_the_room_of_the_store_is_not_begun() {
    let samite = small_store();
    let file = samite.scratch().join("file");
    let file = text(&file);
    fs::write(file, bytes(20 << 20)).unwrap();
    let puts: [&[&str]; 3] =
        [&["put", file, "/f"], &["object", "put", "o", file], &["kv", "put", "k", "--file", file]];
    for put in puts {
        samite.ok(put);
        // The file that it would replace stays until the new one is whole.
        let said = samite.fails(1, put);
        assert!(said.contains("needs about 20.0 MiB; "), "{put:?}: {said}");
        assert!(said.contains(" are free on n0: --force tries"), "{put:?}: {said}");
        let said = samite.fails(1, [put, &["--force"]].concat());
        assert!(said.contains("no space left"), "{put:?}: {said}");
        match put[0] {
            "put" => samite.ok(["rm", "/f"]),
            "object" => samite.ok(["object", "rm", "o"]),
            _ => samite.ok(["kv", "delete", "k"]),
        };
    }
}

#[test]
fn what_is_larger_than_the_room_of_a_disk_is_not_begun() {
    let samite = small_store();
    let disk = samite.scratch().join("disk");
    fs::create_dir(&disk).unwrap();
    let disk = text(&disk);
    let mount = ["-t", "tmpfs", "-o", "size=4m", "samite-test", disk];
    if !std::process::Command::new("mount").args(mount).status().is_ok_and(|done| done.success()) {
        return samite_testkit::skip("mount");
    }
    let (file, copy) = (samite.scratch().join("file"), format!("{disk}/f"));
    fs::write(&file, bytes(6 << 20)).unwrap();
    samite.ok(["mkdir", "/d"]);
    samite.ok(["put", text(&file), "/d/f"]);
    samite.ok(["object", "put", "o", text(&file)]);
    let gets: [&[&str]; 3] = [
        &["get", "/d/f", &copy],
        &["object", "get", "o", &copy],
        &["stage", "out", "--quiet", "/d", &format!("{disk}/new/d")],
    ];
    let said =
        gets.map(|get| (samite.fails(1, get), samite.fails(1, [get, &["--force"]].concat())));
    // Fragments of killed copies take no room.
    let left = format!("{disk}/.f.samite-copy-0");
    fs::write(&left, bytes(3 << 20)).unwrap();
    samite.ok(["object", "get", "o", &copy, "--length", "2M"]);
    fs::create_dir_all(format!("{disk}/new/e")).unwrap();
    fs::write(format!("{disk}/new/e/.f.samite-copy-0"), bytes(1 << 20)).unwrap();
    samite.ok(["mkdir", "/e"]);
    samite.ok_with(["put", "-", "/e/f"], &bytes(3 << 19));
    samite.ok(["stage", "out", "--quiet", "/e", &format!("{disk}/new/e")]);
    let whole = fs::read(&copy).unwrap();
    std::process::Command::new("umount").arg(disk).status().unwrap();
    for (refused, tried) in said {
        assert!(refused.contains("needs about 6.0 MiB; 4.0 MiB are free on "), "{refused}");
        assert!(refused.contains(": --force tries"), "{refused}");
        assert!(tried.contains("o space left"), "{tried}");
    }
    assert_eq!(whole.len(), 2 << 20);
}

#[test]
fn a_put_that_is_killed_leaves_the_old_file_and_the_next_one_no_fragment() {
    let samite = small_store();
    samite.ok(["mkdir", "/d"]);
    samite.ok_with(["put", "-", "/d/f"], b"old");
    for signal in [rustix::process::Signal::INT, rustix::process::Signal::KILL] {
        // Whoever runs the tests in the background may have them ignore SIGINT.
        let mut put = samite.beside("env");
        put.args(["--default-signal=INT", env!("CARGO_BIN_EXE_samite"), "put", "-", "/d/f"]);
        let mut put = put.stdin(Stdio::piped()).spawn().unwrap();
        // More than goes into a pipe and a buffer: it is under way.
        put.stdin.as_mut().unwrap().write_all(&bytes(4 << 20)).unwrap();
        let pid = rustix::process::Pid::from_child(&put);
        rustix::process::kill_process(pid, signal).unwrap();
        assert!(!put.wait().unwrap().success());
        assert_eq!(samite.ok(["cat", "/d/f"]), "old");
    }
    samite.ok_with(["put", "-", "/d/f"], b"new");
    assert_eq!(samite.ok(["cat", "/d/f"]), "new");
    assert_eq!(names(&samite, "/d"), "f");
}

/// The room that a killed copy took is there for the next one, which is not refused for want of it.
#[test]
fn fragments_take_no_room_from_the_next_copy() {
    let samite = small_store();
    let tree = samite.scratch().join("tree");
    fs::create_dir_all(tree.join("below")).unwrap();
    let file = tree.join("below/f");
    fs::write(&file, bytes(20 << 20)).unwrap();
    let kill_one = || {
        let put = ["put", "-", "/d/below/f"];
        let mut put = samite.command(put).stdin(Stdio::piped()).spawn().unwrap();
        put.stdin.as_mut().unwrap().write_all(&bytes(16 << 20)).unwrap();
        put.kill().unwrap();
        put.wait().unwrap();
    };
    samite.ok(["mkdir", "-p", "/d/below"]);
    kill_one();
    samite.ok(["put", text(&file), "/d/below/f"]);
    assert_eq!(names(&samite, "/d/below"), "f");
    samite.ok(["rm", "/d/below/f"]);
    kill_one();
    samite.ok(["stage", "in", text(&tree), "/d"]);
    assert_eq!(names(&samite, "/d/below"), "f");
}

#[test]
fn links_and_modes_of_what_is_replaced() {
    let samite = small_store();
    let dir = samite.scratch().join("local");
    fs::create_dir(&dir).unwrap();
    let [file, other, link] = ["file", "other", "link"].map(|name| dir.join(name));
    fs::write(&file, "old").unwrap();
    fs::set_permissions(&file, PermissionsExt::from_mode(0o640)).unwrap();
    fs::hard_link(&file, &other).unwrap();
    symlink("file", &link).unwrap();
    samite.ok(["stage", "in", text(&dir), "/d"]);

    samite.ok_with(["put", "-", "/d/link"], b"new");
    samite.ok(["get", "/d/link", text(&link)]);
    let back = samite.scratch().join("back");
    samite.ok(["stage", "out", "/d", text(&back)]);
    for dir in [&dir, &back] {
        assert_eq!(fs::read_link(dir.join("link")).unwrap(), Path::new("file"));
        assert_eq!(fs::read(dir.join("file")).unwrap(), b"new");
        assert_eq!(fs::read(dir.join("other")).unwrap(), b"old");
        assert_eq!(fs::metadata(dir.join("file")).unwrap().mode() & 0o7777, 0o640);
        assert_eq!(list(dir), ["file", "link", "other"]);
    }
    // A path that is no regular file is written to.
    samite.ok(["get", "/d/file", "/dev/null"]);
    assert!(!fs::metadata("/dev/null").unwrap().is_file());
}

#[test]
fn an_object_or_a_large_value_that_does_not_fit_or_is_killed_leaves_the_old_one() {
    let samite = small_store();
    let file = samite.scratch().join("large");
    fs::write(&file, bytes(6 << 20)).unwrap();
    let records = || {
        let status = samite.ok(["status", "--json"]);
        let at = status.find("\"records\":").unwrap();
        status[at..].split([',', '}']).next().unwrap().to_owned()
    };
    samite.ok_with(["object", "put", "o", "-"], b"old");
    samite.ok(["kv", "put", "k", "old"]);
    let before = records();
    fs::write(&file, bytes(48 << 20)).unwrap();
    for args in
        [["object", "put", "o", text(&file)].as_slice(), &["kv", "put", "k", "--file", text(&file)]]
    {
        let said = samite.fails(1, args);
        assert!(said.contains("--force tries"), "{said}");
        let said = samite.fails(1, [args, &["--force"]].concat());
        assert!(said.contains("no space left"), "{said}");
    }
    assert_eq!(samite.ok(["object", "get", "o"]), "old");
    assert_eq!(samite.ok(["kv", "get", "k"]), "old");
    assert_eq!(records(), before);

    let mut put =
        samite.command(["object", "put", "o", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    // More than goes into a pipe and a buffer: it is under way.
    put.stdin.as_mut().unwrap().write_all(&bytes(6 << 20)).unwrap();
    put.kill().unwrap();
    put.wait().unwrap();
    assert_eq!(samite.ok(["object", "get", "o"]), "old");
    assert_ne!(records(), before);
    samite.ok_with(["object", "put", "o", "-"], b"new");
    assert_eq!(samite.ok(["object", "get", "o"]), "new");
    assert_eq!(records(), before);
}
