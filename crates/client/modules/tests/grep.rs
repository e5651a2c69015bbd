//! Results of pieces, joined, against the grep of the machine: random texts, patterns and options.
//! `SAMITE_GREP_CASES` is how many are tried.

use std::convert::Infallible;
use std::path::Path;
use std::process::Command;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use samite_modules::FilePiece;
use samite_modules::grep::{
    GrepMatcher, GrepOptions, GrepPrinter, GrepReport, GrepScanner, PatternError, PatternSyntax,
};

#[derive(Clone)]
struct GrepCase {
    patterns: Vec<Vec<u8>>,
    options: GrepOptions,
    as_text: bool,
    files: Vec<Vec<u8>>,
    cuts: Vec<usize>,
    step: usize,
}

impl std::fmt::Debug for GrepCase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let escaped = |bytes: &Vec<u8>| bytes.escape_ascii().to_string();
        let patterns: Vec<String> = self.patterns.iter().map(escaped).collect();
        let files: Vec<String> = self.files.iter().map(escaped).collect();
        write!(f, "patterns {patterns:?} files {files:?} cuts {:?} {:?}", self.cuts, self.options)
    }
}

#[derive(Debug, PartialEq)]
struct Printed {
    out: String,
    code: i32,
    binary: bool,
}

const BASIC: &[&str] = &[
    "a",
    "b",
    "_",
    " ",
    ".",
    "*",
    "\\+",
    "\\?",
    "\\|",
    "^",
    "$",
    "[ab]",
    "[^a]",
    "[^]b]",
    "[a-]",
    "\\<",
    "\\>",
    "\\b",
    "\\B",
    "\\w",
    "\\W",
    "\\s",
    "\\S",
    "\\{1,2\\}",
    "\\{,2\\}",
    "\\{2\\}",
    "\\{0\\}",
    "\\{1,\\}",
    "{",
    "}",
    "+",
    "?",
    "|",
    "[[:alpha:]]",
    "[[:space:]_]",
    "[[=a=]b]",
    "A",
    "ab",
    "\\d",
    "\\`",
    "\\'",
    "\\.",
    "\\*",
    "(",
    ")",
];
const EXTENDED: &[&str] = &[
    "a",
    "b",
    "_",
    " ",
    ".",
    "*",
    "+",
    "?",
    "|",
    "^",
    "$",
    "[ab]",
    "[^a]",
    "[^]b]",
    "[a-]",
    "\\<",
    "\\>",
    "\\b",
    "\\B",
    "\\w",
    "\\W",
    "\\s",
    "\\S",
    "{1,2}",
    "{,2}",
    "{2}",
    "{0}",
    "{1,}",
    "{",
    "}",
    "()",
    "[[:alpha:]]",
    "[[:space:]_]",
    "[[=a=]b]",
    "A",
    "ab",
    "\\d",
    "\\`",
    "\\'",
    "\\.",
    "\\*",
    "\\(",
    "\\)",
    "{1",
    "{1,",
    ")",
];

fn pattern(syntax: PatternSyntax) -> BoxedStrategy<Vec<u8>> {
    let (tokens, open, close) = match syntax {
        PatternSyntax::Basic => (BASIC, "\\(", "\\)"),
        PatternSyntax::Extended => (EXTENDED, "(", ")"),
        PatternSyntax::Fixed => {
            let bytes = prop::sample::select(b"ab_ A\r".to_vec());
            return prop::collection::vec(bytes, 0..4).boxed();
        }
    };
    let leaf = prop::sample::select(tokens).prop_map(|token| token.as_bytes().to_vec());
    let other = prop::sample::select(vec![b'\r', 0xff]).prop_map(|byte| vec![byte]);
    let leaf = prop_oneof![40 => leaf, 1 => other];
    let deep = leaf.prop_recursive(3, 12, 5, move |inner| {
        (prop::collection::vec(inner, 0..5), any::<bool>()).prop_map(move |(parts, group)| {
            let parts = parts.concat();
            match group {
                true => [open.as_bytes(), &parts, close.as_bytes()].concat(),
                false => parts,
            }
        })
    });
    deep.boxed()
}

fn options() -> impl Strategy<Value = GrepOptions> {
    let syntax = prop::sample::select(vec![
        PatternSyntax::Basic,
        PatternSyntax::Basic,
        PatternSyntax::Extended,
        PatternSyntax::Extended,
        PatternSyntax::Fixed,
    ]);
    let report = prop_oneof![
        6 => Just(GrepReport::Lines),
        4 => Just(GrepReport::Parts),
        1 => Just(GrepReport::Count),
        1 => Just(GrepReport::NamesWith),
        1 => Just(GrepReport::NamesWithout),
        1 => Just(GrepReport::Quiet),
    ];
    let rare = || prop::bool::weighted(0.2);
    let small = || prop::option::weighted(0.25, 0..4_u64);
    (
        syntax,
        report,
        (rare(), rare(), rare(), rare()),
        (small(), small(), small()),
        any::<[bool; 3]>(),
    )
        .prop_map(|(syntax, report, flags, counts, [line_numbers, byte_offsets, names])| {
            GrepOptions {
                syntax,
                ignore_case: flags.0,
                invert: flags.1,
                // Under -o -x -w, GNU grep prints an empty line more.
                words: flags.2 && !(flags.3 && report == GrepReport::Parts),
                whole_lines: flags.3,
                report,
                max_count: counts.0,
                before: counts.1,
                after: counts.2,
                line_numbers,
                byte_offsets,
                names,
            }
        })
}

fn case() -> impl Strategy<Value = GrepCase> {
    let text =
        |bytes: &'static [u8]| prop::collection::vec(prop::sample::select(bytes), 0..40).boxed();
    let plain = text(b"aaabbb_ \n\n\nA.*+\r\xff{}|()?");
    let any_text = prop_oneof![8 => plain, 1 => text(b"aab_ \n\n\r\0\xff")];
    options().prop_flat_map(move |options| {
        (
            prop::collection::vec(pattern(options.syntax), 0..3),
            Just(options),
            any::<bool>(),
            prop::collection::vec(any_text.clone(), 1..3),
            prop::collection::vec(0..40_usize, 0..6),
            1..9_usize,
        )
            .prop_map(|(patterns, options, as_text, files, cuts, step)| GrepCase {
                patterns,
                options,
                as_text,
                files,
                cuts,
                step,
            })
    })
}

/// What the kernels print; `None` where they leave it to the real program.
fn ours(case: &GrepCase) -> Option<Printed> {
    let patterns: Vec<&[u8]> = case.patterns.iter().map(Vec::as_slice).collect();
    let matcher = match GrepMatcher::new(&patterns, case.options.clone()) {
        Ok(matcher) => matcher,
        Err(PatternError::Invalid(_)) => {
            return Some(Printed { out: String::new(), code: 2, binary: false });
        }
        Err(PatternError::NeedsRealGrep(_)) => return None,
    };
    let mut printer = GrepPrinter::new(&matcher);
    let mut scanner = GrepScanner::new(&matcher);
    let (mut out, mut binary) = (Vec::new(), false);
    for (index, text) in case.files.iter().enumerate() {
        let is_binary = !case.as_text && text.contains(&0);
        printer.begin_file(index.to_string().as_bytes(), is_binary);
        let mut cuts: Vec<usize> = case.cuts.iter().map(|cut| (*cut).min(text.len())).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        for pair in cuts.windows(2) {
            let piece = FilePiece {
                bytes: &text[pair[0]..pair[1]],
                offset: pair[0] as u64,
                before: pair[0].checked_sub(1).map(|before| text[before]),
            };
            let mut next = pair[1];
            let mut more = |into: &mut Vec<u8>| {
                let end = text.len().min(next + case.step);
                into.extend_from_slice(&text[next..end]);
                let any = end > next;
                next = end;
                Ok::<_, Infallible>(any)
            };
            let Ok(partial) = scanner.scan(&piece, is_binary, &mut more);
            if !printer.join(&partial, &mut out) {
                break;
            }
        }
        binary |= printer.end_file(&mut out).binary_matches;
    }
    let code = i32::from(printer.exit_code());
    Some(Printed { out: out.escape_ascii().to_string(), code, binary })
}

fn arguments(case: &GrepCase) -> Vec<std::ffi::OsString> {
    use std::os::unix::ffi::OsStrExt;
    let options = &case.options;
    let mut text: Vec<String> = Vec::new();
    text.push(String::from(match options.syntax {
        PatternSyntax::Basic => "-G",
        PatternSyntax::Extended => "-E",
        PatternSyntax::Fixed => "-F",
    }));
    text.push(String::from(match options.report {
        GrepReport::Lines => "-s",
        GrepReport::Parts => "-o",
        GrepReport::Count => "-c",
        GrepReport::NamesWith => "-l",
        GrepReport::NamesWithout => "-L",
        GrepReport::Quiet => "-q",
    }));
    let flags = [
        (options.ignore_case, "-i"),
        (options.invert, "-v"),
        (options.words, "-w"),
        (options.whole_lines, "-x"),
        (options.line_numbers, "-n"),
        (options.byte_offsets, "-b"),
        (case.as_text, "-a"),
    ];
    text.extend(flags.iter().filter(|(on, _)| *on).map(|(_, flag)| String::from(*flag)));
    text.push(String::from(if options.names { "-H" } else { "-h" }));
    let counts = [("-m", options.max_count), ("-B", options.before), ("-A", options.after)];
    text.extend(counts.iter().filter_map(|(flag, count)| count.map(|n| format!("{flag}{n}"))));
    let mut all: Vec<_> = text.into_iter().map(std::ffi::OsString::from).collect();
    if case.patterns.is_empty() {
        all.extend(["-f".into(), "/dev/null".into()]);
    }
    for pattern in &case.patterns {
        all.push("-e".into());
        all.push(std::ffi::OsStr::from_bytes(pattern).to_owned());
    }
    all
}

fn real(case: &GrepCase, directory: &Path) -> Printed {
    let mut command = Command::new("grep");
    command.env("LC_ALL", "C").current_dir(directory).args(arguments(case)).arg("--");
    for (index, text) in case.files.iter().enumerate() {
        std::fs::write(directory.join(index.to_string()), text).expect("a file is written");
        command.arg(index.to_string());
    }
    let output = command.output().expect("grep runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    Printed {
        out: output.stdout.escape_ascii().to_string(),
        code: output.status.code().unwrap_or(-1),
        binary: errors.contains("binary file matches"),
    }
}

#[test]
fn joined_pieces_are_what_grep_prints() {
    let cases = std::env::var("SAMITE_GREP_CASES").ok().and_then(|cases| cases.parse().ok());
    let config = Config {
        cases: cases.unwrap_or(2000),
        failure_persistence: None,
        max_shrink_iters: 600,
        ..Config::default()
    };
    let directory = tempfile::tempdir().expect("a directory is made");
    let left = std::cell::Cell::new(0);
    let result = TestRunner::new(config).run(&case(), |case| {
        match ours(&case) {
            Some(printed) => prop_assert_eq!(printed, real(&case, directory.path())),
            None => left.set(left.get() + 1),
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    let left = left.get();
    assert!(left < cases.unwrap_or(2000) / 10, "{left} cases were left to the real grep");
}
