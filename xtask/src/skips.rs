//! `cargo xtask skips FILE`: what tests said that they left out, against `tests/skips.txt`.
//!
//! A line of the list is a test, what the machine may lack that the test needs, and where that is all right: `everywhere`, or
//! `desk`, which is not where `CI=true`. A line of FILE is what `samite_testkit::skip` writes.

use std::collections::BTreeSet;
use std::path::Path;

use crate::tidy::SourceFile;

pub const LIST: &str = "tests/skips.txt";

/// A line of the list.
#[derive(Debug)]
struct AllowedSkip<'a> {
    test: &'a str,
    lacks: &'a str,
    is_everywhere: bool,
}

fn parse(list: &str) -> Result<Vec<AllowedSkip<'_>>, Vec<String>> {
    let (mut allowed, mut problems) = (Vec::new(), Vec::new());
    for (index, line) in list.lines().enumerate() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [] => {}
            [first, ..] if first.starts_with('#') => {}
            [test, lacks, place @ ("everywhere" | "desk")] => {
                allowed.push(AllowedSkip { test, lacks, is_everywhere: place == "everywhere" });
            }
            _ => problems.push(format!("{LIST}:{}: not TEST LACKS everywhere|desk", index + 1)),
        }
    }
    if problems.is_empty() { Ok(allowed) } else { Err(problems) }
}

/// Reads FILE and the list.
pub fn run(root: &Path, said: Option<&str>) -> Result<String, Vec<String>> {
    let Some(said) = said else { return Err(vec!["skips: which FILE?".into()]) };
    let read = |path: &Path| {
        std::fs::read_to_string(path)
            .map_err(|error| vec![format!("read {}: {error}", path.display())])
    };
    let (said, list) = (read(Path::new(said))?, read(&root.join(LIST))?);
    let is_ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
    let (told, problems) = judge(&said, &parse(&list)?, is_ci);
    for line in &told {
        println!("{line}");
    }
    if problems.is_empty() {
        Ok(format!("skips: {} of tests and parts of tests, all listed", told.len()))
    } else {
        Err(problems)
    }
}

/// A line for each skip that is listed, and for each that is not.
fn judge(said: &str, allowed: &[AllowedSkip<'_>], is_ci: bool) -> (Vec<String>, Vec<String>) {
    let (mut told, mut problems) = (Vec::new(), Vec::new());
    // A test that tries one thing on several stores may say it several times.
    for line in said.lines().collect::<BTreeSet<_>>() {
        let [kind @ ("test" | "part"), test, lacks] = line.split('\t').collect::<Vec<_>>()[..]
        else {
            problems.push(format!("not a skip: {line}"));
            continue;
        };
        let kind = if kind == "part" { "a part of " } else { "" };
        let found = allowed.iter().find(|line| line.test == test && line.lacks == lacks);
        match found {
            None => problems.push(format!(
                "skipped, but not in {LIST}: {kind}{test}, as there is no {lacks}"
            )),
            Some(line) if is_ci && !line.is_everywhere => problems.push(format!(
                "skipped, which {LIST} does not allow where CI=true: {kind}{test}, as there is no {lacks}"
            )),
            Some(_) => told.push(format!("skipped {kind}{test}: no {lacks}")),
        }
    }
    (told, problems)
}

/// Whether the list names what there is: `samite-CRATE::FILE::TEST`, `programs::NAME`, `cases::NAME` or `demo::PART`.
pub fn check(list: &str, files: &[SourceFile]) -> Vec<String> {
    let allowed = match parse(list) {
        Ok(allowed) => allowed,
        Err(problems) => return problems,
    };
    let has = |path: &str, words: &str| {
        files.iter().any(|file| file.path.starts_with(path) && file.text.contains(words))
    };
    let has_test = |path: &str, words: &str| {
        files.iter().any(|file| file.path.ends_with(path) && file.text.contains(words))
    };
    let is_there = |test: &str| match test.split("::").collect::<Vec<_>>()[..] {
        ["programs", name] => has("scripts/programs", &format!("program_{name}() {{")),
        ["cases", name] => has(&format!("tests/cases/{name}.sh"), ""),
        ["demo", _] => has("scripts/demo.sh", &format!(" {test} ")),
        [package, file, test] => {
            let directory = package.strip_prefix("samite-").unwrap_or(package);
            has_test(&format!("/{directory}/tests/{file}.rs"), &format!("fn {test}("))
        }
        _ => false,
    };
    let missing = allowed.iter().filter(|line| !is_there(line.test));
    missing.map(|line| format!("{LIST}: there is no test {}", line.test)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::sample;

    const SAMPLE: &str = "# what may be missing\n\
        samite-fs::posix::sparse  lseek  everywhere\n\
        \n\
        samite-fs::posix::etcd_dies  etcd  desk\n";

    #[test]
    fn what_is_listed_may_be_skipped_and_is_named_once() {
        let said = "test\tsamite-fs::posix::sparse\tlseek\n".repeat(2);
        let list = parse(SAMPLE).unwrap();
        let (told, problems) = judge(&said, &list, true);
        assert_eq!(told, ["skipped samite-fs::posix::sparse: no lseek"]);
        assert_eq!(problems, [] as [&str; 0]);
        let part = "part\tsamite-fs::posix::etcd_dies\tetcd\n";
        let (told, problems) = judge(part, &list, false);
        assert_eq!(told, ["skipped a part of samite-fs::posix::etcd_dies: no etcd"]);
        assert_eq!(problems, [] as [&str; 0]);
    }

    #[test]
    fn what_is_not_listed_for_here_is_a_problem() {
        let list = parse(SAMPLE).unwrap();
        let refused = |said: &str, is_ci| {
            let (told, problems) = judge(said, &list, is_ci);
            assert_eq!(told, [] as [&str; 0]);
            problems.join("\n")
        };
        let said = refused("test\tsamite-fs::posix::other\tlseek\n", false);
        assert!(said.contains("not in tests/skips.txt: samite-fs::posix::other"), "{said}");
        // For another reason than the one that is listed.
        assert!(refused("test\tsamite-fs::posix::sparse\tetcd\n", false).contains("no etcd"));
        let said = refused("test\tsamite-fs::posix::etcd_dies\tetcd\n", true);
        assert!(said.contains("where CI=true"), "{said}");
        assert!(refused("samite-fs::posix::sparse\n", false).contains("not a skip"));
    }

    #[test]
    fn the_list_names_tests_that_there_are() {
        let files = [
            sample("crates/client/fs/tests/posix.rs", "#[test]\nfn sparse() {}\n"),
            sample("scripts/programs.sh", "program_git() {\n"),
            sample("tests/cases/torn.sh", ""),
        ];
        let list = "samite-fs::posix::sparse lseek desk\nprograms::git git everywhere\n\
            cases::torn root desk\n";
        assert_eq!(check(list, &files), [] as [&str; 0]);
        let problems = check(SAMPLE, &files);
        assert_eq!(problems, ["tests/skips.txt: there is no test samite-fs::posix::etcd_dies"]);
        assert_eq!(check("one two\n", &files).len(), 1);
    }
}
