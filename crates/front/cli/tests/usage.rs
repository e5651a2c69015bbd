//! Messages of the commands about wrong use: exit codes, and errors that name their objects.

mod common;

use std::os::unix::fs::PermissionsExt;

use common::Samite;

#[test]
fn nonsense_is_refused_with_code_2() {
    let samite = Samite::new();
    for args in [
        &["frobnicate"][..],
        &["ls", "relative/path"],
        &["ls", "--no-such-option"],
        &["up"],
        &["--name", "../escape", "ls"],
        &["--timeout", "0", "ls"],
        &["run", "--at", "relative", "--", "true"],
        &["run", "--at", "/", "--", "true"],
        &["run"],
        &["kv", "cas", "key", "not-a-version", "x"],
        &["dataset", "create", "x", "--chunk", "1000"],
        &["dataset", "create", "x", "--mode", "1777"],
        &["mkdir", "-m", "999", "/x"],
    ] {
        samite.fails(2, args);
    }
    let said = samite.fails(2, ["ls", "relative/path"]);
    assert!(said.contains("starts at its root: /relative/path"), "{said}");
}

#[test]
fn help_is_help() {
    let samite = Samite::new();
    let help = samite.ok(["--help"]);
    for command in ["up", "down", "run", "stage", "kv", "bench"] {
        assert!(help.contains(&format!("\n  {command} ")), "{command}: {help}");
    }
    assert!(help.contains("Exit codes:"));
    assert!(samite.ok(["stage", "in", "--help"]).contains("--checksum"));
    assert!(samite.ok(["df", "--help"]).contains("-h, --human"));
    assert!(samite.ok(["--version"]).starts_with("samite "));
}

#[test]
fn a_runtime_directory_open_to_others_is_refused() {
    let samite = Samite::new();
    std::fs::create_dir(samite.runtime()).unwrap();
    std::fs::set_permissions(samite.runtime(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let said = samite.fails(1, ["up", "--local", "1"]);
    assert!(said.contains("must be 0700"), "{said}");
    let said = samite.fails(1, ["status"]);
    assert!(said.contains("must be 0700"), "{said}");
    std::fs::set_permissions(samite.runtime(), std::fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn a_runtime_directory_too_long_for_sockets_is_named() {
    let samite = Samite::new();
    let long = samite.scratch().join("d".repeat(100));
    let output =
        samite.command(["up", "--local", "1"]).env("SAMITE_RUNTIME_DIR", &long).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("SAMITE_RUNTIME_DIR"), "{output:?}");
    assert!(!long.exists());
}

#[test]
fn run_becomes_the_program() {
    let samite = Samite::new();
    let said = samite.fails(3, ["run", "--", "true"]);
    assert!(said.contains("not up"), "{said}");
    samite.ok(["up", "--local", "1", "--memory", "64M"]);
    // Any library will do to see that run finds it, sets the environment and gets out of the way.
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let libc = maps.split_whitespace().find(|word| word.contains("/libc.so")).unwrap();
    let run = |args: &[&str]| {
        let args = [&["run", "--at", "/data//store/", "--"], args].concat();
        samite.command(args).env("SAMITE_PRELOAD", libc).output().unwrap()
    };
    let output = run(&["sh", "-c", "echo $LD_PRELOAD $SAMITE_CLUSTER $SAMITE_MOUNT; exit 7"]);
    assert_eq!(output.status.code(), Some(7));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(said, format!("{libc} default /data/store\n"));
    assert_eq!(run(&["sh", "-c", "kill -TERM $$"]).status.code(), None);
    assert_eq!(run(&["no-such-program"]).status.code(), Some(127));
    assert_eq!(run(&["/etc/passwd"]).status.code(), Some(126));
    let output = samite.command(["run", "true"]).env("SAMITE_PRELOAD", "/no/such.so").output();
    assert_eq!(output.unwrap().status.code(), Some(1));
}

#[test]
fn what_others_can_read_is_refused_with_the_command_that_mends_it() {
    let samite = Samite::up(1);
    let open_to = |path: &std::path::Path, mode: u32| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let (dir, key) = (samite.runtime(), samite.runtime().join("default/key"));
    for (path, loose, strict) in [(dir, 0o755, 0o700), (key, 0o644, 0o600)] {
        open_to(&path, loose);
        let said = samite.fails(1, ["ls", "/"]);
        let mends = format!("`chmod {strict:o} {}`", path.display());
        assert!(said.contains(&mends), "{said}");
        open_to(&path, strict);
        samite.ok(["ls", "/"]);
    }
}
