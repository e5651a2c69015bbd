//! The symbols that libc exports: the library stands in for each of them, or it is known to need no
//! hook.

mod common;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use common::library;
use samite_testkit::{has, skip};

/// Names, and why they need no hook.
const KNOWN: &str = include_str!("libc_symbols.txt");

/// The symbols that a library exports for programs.
fn exports(path: &Path) -> BTreeSet<String> {
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(path).output();
    let output = output.expect("run nm");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .filter(|name| !name.ends_with("@GLIBC_PRIVATE") && !name.starts_with("GLIBC_"))
        .map(|name| name.split('@').next().unwrap_or(name).to_owned())
        .collect()
}

/// The libc that this test runs with.
fn libc() -> Option<std::path::PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("read maps");
    let line = maps.lines().find(|line| line.contains("/libc.so.6"))?;
    line.split_whitespace().last().map(Into::into)
}

/// `*` stands for anything.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, rest)) => name.strip_prefix(start).is_some_and(|name| {
            (0..=name.len())
                .filter(|at| name.is_char_boundary(*at))
                .any(|at| matches(rest, &name[at..]))
        }),
    }
}

#[test]
fn every_symbol_of_libc_is_known() {
    if !cfg!(target_arch = "x86_64") {
        return skip("x86_64");
    }
    let Some(libc) = libc() else { return skip("glibc") };
    if !has("nm") {
        return;
    }
    let (theirs, ours) = (exports(&libc), exports(library()));
    let known: Vec<&str> = KNOWN
        .lines()
        .filter(|line| !line.starts_with('#'))
        .flat_map(str::split_whitespace)
        .collect();
    let unknown: Vec<_> = theirs
        .difference(&ours)
        .filter(|name| !known.iter().any(|pattern| matches(pattern, name)))
        .collect();
    assert!(unknown.is_empty(), "neither hooked nor listed: {unknown:?}");
    let stale: Vec<_> =
        known.iter().filter(|name| !name.contains('*') && ours.contains(**name)).collect();
    assert!(stale.is_empty(), "listed, but hooked: {stale:?}");
}
