//! The pages say what the binary says: its commands, its exit codes, the faults that it can make, and the limits.
#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

mod common;

use std::collections::BTreeSet;

use common::Samite;
use samite_fs::{INLINE_LEN_MAX, NAME_LEN_MAX, PATH_LEN_MAX, SYMLINKS_MAX};
use samite_wire::limits::{LIST_ENTRIES_MAX, OPERATIONS_MAX, VALUE_LEN_MAX, VIEW_KEY_LEN_MAX};

const COMMANDS: &str = include_str!("../../../../docs/commands.md");
const FAULTS: &str = include_str!("../../../../docs/faults.md");
const LIMITS: &str = include_str!("../../../../docs/limits.md");

/// Commands that a help lists, `help` itself left out.
fn listed(help: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = lines.take_while(|line| !line.is_empty()).filter_map(|line| {
        let name = line.strip_prefix("  ")?.split(' ').next()?;
        (!name.is_empty() && name != "help").then(|| name.to_owned())
    });
    names.collect()
}

/// The text in backticks in a line.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// The first cells of the rows of a table that begins with this head.
fn rows<'a>(page: &'a str, head: &str) -> Vec<&'a str> {
    let lines = page.lines().skip_while(|line| !line.starts_with(head)).skip(2);
    lines.take_while(|line| line.starts_with('|')).collect()
}

#[test]
fn the_page_of_commands_has_those_of_the_binary_and_no_others() {
    let samite = Samite::new();
    let mut real = BTreeSet::new();
    for command in listed(&samite.ok(["--help"])) {
        let below = listed(&samite.ok([&command, "--help"]));
        // `node` serves without one, too.
        if below.is_empty() {
            real.insert(command.clone());
        }
        real.extend(below.into_iter().map(|sub| format!("{command} {sub}")));
    }
    assert!(real.len() > 40, "{real:?}");
    let mut told = BTreeSet::new();
    for row in rows(COMMANDS, "| command |") {
        let cell = row.split('|').nth(1).unwrap();
        // A group is named once: `kv get`, `put`, …
        let mut group = None;
        for name in quoted(cell) {
            let mut words = name.split(' ').filter(|word| word.starts_with(char::is_lowercase));
            let (first, second) = (words.next().unwrap(), words.next());
            let second = second.filter(|word| !word.contains('='));
            match (group, second) {
                (_, Some(second)) => {
                    group = Some(first);
                    told.insert(format!("{first} {second}"));
                }
                (Some(group), None) => drop(told.insert(format!("{group} {first}"))),
                (None, None) => drop(told.insert(first.to_owned())),
            }
        }
    }
    assert_eq!(told, real);
}

#[test]
fn the_page_of_commands_has_the_exit_codes_of_the_help() {
    let help = Samite::new().ok(["--help"]);
    let plain = |text: &str| text.replace('`', "").replace("samite status", "status");
    let lines = help.lines().skip_while(|line| *line != "Exit codes:").skip(1);
    let real: Vec<(String, String)> = lines
        .map_while(|line| line.strip_prefix("  ")?.split_once("  "))
        .map(|(code, words)| (code.to_owned(), plain(words)))
        .collect();
    let told = rows(COMMANDS, "| exit code |").into_iter().map(|row| {
        let mut cells = row.split('|').skip(1).map(str::trim);
        (cells.next().unwrap().to_owned(), plain(cells.next().unwrap()))
    });
    assert_eq!(told.collect::<Vec<_>>(), real);
    assert_eq!(real.len(), 8);
}

#[test]
fn the_help_on_faults_has_those_of_the_page_and_each_is_taken() {
    let samite = Samite::up(1);
    let help = samite.ok(["fault", "--help"]);
    let mut kinds = BTreeSet::new();
    for row in rows(FAULTS, "| fault |") {
        let cell = row.split('|').nth(1).unwrap();
        let mut group = None;
        for name in quoted(cell) {
            let (first, second) = name.split_once(' ').map_or((name, None), |(a, b)| (a, Some(b)));
            group = second.map(|_| first).or(group);
            kinds.insert((group, second.unwrap_or(first)));
        }
    }
    assert_eq!(kinds.len(), 15, "{kinds:?}");
    for (group, kind) in kinds {
        let line = help.lines().find(|line| {
            let mut words = line.split([' ', '|']).filter(|word| !word.is_empty());
            words.clone().any(|word| word == kind)
                && group.is_none_or(|group| words.next() == Some(group))
        });
        assert!(line.is_some(), "{group:?} {kind} is not in {help}");
        let rule = match (group, kind) {
            (Some(group), "slow") => format!("{group} slow 5ms *"),
            (Some(group), kind) => format!("{group} {kind} 1% *"),
            (None, "delay") => "delay 1ms * *".to_owned(),
            (None, kind) if kind.starts_with("cut") => format!("{kind} 5 6"),
            (None, kind) => format!("{kind} 1% 5 6"),
        };
        samite.ok(["fault", "set", &rule]);
        samite.ok(["fault", "clear"]);
    }
}

#[test]
fn the_page_of_limits_has_the_numbers_of_the_code() {
    let said = |row: String| assert!(LIMITS.contains(&row), "{row:?} is not in docs/limits.md");
    said(format!("| key | 1 byte to {} KiB |", VIEW_KEY_LEN_MAX >> 10));
    said(format!("| value of a key | 0 bytes to {} GiB |", VALUE_LEN_MAX >> 30));
    said(format!("| name of an object | 1 byte to {} KiB |", VIEW_KEY_LEN_MAX >> 10));
    said(format!("| operations of one request | {OPERATIONS_MAX};"));
    said(format!("| entries of one page of a listing | {LIST_ENTRIES_MAX} |"));
    said(format!("| name | {NAME_LEN_MAX} bytes,"));
    said(format!("| path | {PATH_LEN_MAX} bytes |"));
    said(format!("| symbolic links in one path | {SYMLINKS_MAX} |"));
    said(format!("| target of a symbolic link | {PATH_LEN_MAX} bytes |"));
    said(format!("| file kept in its inode | {} KiB;", INLINE_LEN_MAX >> 10));
}
