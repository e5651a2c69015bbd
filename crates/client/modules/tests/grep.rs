//! Results of pieces, joined, against the grep of the machine: random texts, patterns and options.
//! `SAMITE_GREP_CASES` is how many are tried.

use std::convert::Infallible;
use std::path::Path;
use std::process::Command;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use samite_modules::TextPiece;
use samite_modules::grep::{
    FileGlobs, GrepLine, GrepLineKind, GrepMatcher, GrepOptions, GrepPartial, GrepPrinter,
    GrepReport, GrepScanner, PatternError, PatternSyntax,
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

#[test]
fn globs_choose_the_files_that_grep_searches() {
    let directory = tempfile::tempdir().expect("a directory is made");
    let names = ["a.rs", "b.rs", "ab", "a.c", "[x", "a*"];
    std::fs::create_dir(directory.path().join("d")).expect("a directory is made");
    for name in names {
        std::fs::write(directory.path().join("d").join(name), "x").expect("a file is written");
    }
    let globs = ["*.rs", "a*", "?.rs", "[ab].c", "[!a]*", "d/*", "[x", "a\\*", "*", "[[x]*"];
    for (one, other) in globs.iter().flat_map(|one| globs.iter().map(move |other| (one, other))) {
        for includes in [[true, true], [true, false], [false, true], [false, false]] {
            let mut chosen = FileGlobs::default();
            let mut arguments = Vec::new();
            for (includes, glob) in includes.into_iter().zip([one, other]) {
                chosen.add(includes, glob.as_bytes());
                let option = if includes { "--include" } else { "--exclude" };
                arguments.push(format!("{option}={glob}"));
            }
            let paths = names.map(|name| format!("d/{name}"));
            let listed = |args: &[&str], named: bool| {
                let mut command = Command::new("grep");
                command.env("LC_ALL", "C").current_dir(directory.path());
                command.args(&arguments).args(["-l", "x"]).args(args);
                let output = command.args(paths.iter().filter(|_| named)).output();
                let output = output.expect("grep runs").stdout;
                let mut lines: Vec<String> =
                    String::from_utf8_lossy(&output).lines().map(String::from).collect();
                lines.sort();
                lines
            };
            let ours = |whole: bool| {
                let admits = |path: &&String| {
                    chosen.admits(if whole { path.as_bytes() } else { &path.as_bytes()[2..] })
                };
                let mut lines: Vec<String> = paths.iter().filter(admits).cloned().collect();
                lines.sort();
                lines
            };
            let case = format!("{includes:?} {one} {other}");
            assert_eq!(ours(true), listed(&["-s"], true), "named, {case}");
            assert_eq!(
                ours(false),
                listed(&["-r", "."], false)
                    .iter()
                    .map(|path| path.trim_start_matches("./").to_string())
                    .collect::<Vec<_>>(),
                "found, {case}"
            );
        }
    }
}

const ODD_BASIC: &str = r"
    a\) \( \(a [b-a] [a [[:foo:]] [:alpha:] [[.space.]] [[.a.]-b] a\{1 a\{2,1\} a\{x\} \{1\}a
    ^*ab \(^*ab\) \(*a\) $)b a$b a^b \ a\b*b \<*a [a\]] []-a] [^]a] [a-a-b] [--a] [\xff]
    a\{40000\} *
";
const ODD_EXTENDED: &str = r"
    a) ({) (*) (*a) () a||b | {1}a {a a{1 a{2,1} a{,2} ^*ab ^{1}a \<*a a** a+*?b ( (a a{1,2}{2}
    [[=a=]]b a{40000} + (^|b)a
";

/// Patterns that GNU grep's automaton and the library read in different ways, or that are refused.
#[test]
fn odd_patterns_are_read_as_grep_reads_them() {
    let directory = tempfile::tempdir().expect("a directory is made");
    for (syntax, patterns) in
        [(PatternSyntax::Basic, ODD_BASIC), (PatternSyntax::Extended, ODD_EXTENDED)]
    {
        for (pattern, report) in patterns
            .split_whitespace()
            .flat_map(|pattern| [(pattern, GrepReport::Lines), (pattern, GrepReport::Parts)])
        {
            let case = GrepCase {
                patterns: vec![pattern.as_bytes().to_vec()],
                options: GrepOptions { syntax, report, ..GrepOptions::default() },
                as_text: true,
                files: vec![
                    b"a)\nab\n*ab\n{1}a\na{1\n^a\n\nb a-b{1,2}\naab bba\na^b a$b $)b".to_vec(),
                ],
                cuts: vec![3, 11],
                step: 2,
            };
            let printed = ours(&case).expect("needs no other grep");
            assert_eq!(printed, real(&case, directory.path()), "{case:?}");
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_are_a_pattern_or_refused(
        pattern in prop::collection::vec(prop::sample::select(b"ab[]()\\{}*^$|.:=-,12\xff\0<".to_vec()), 0..20),
        extended in any::<bool>(),
        ignore_case in any::<bool>(),
    ) {
        let syntax = if extended { PatternSyntax::Extended } else { PatternSyntax::Basic };
        let options = GrepOptions { syntax, ignore_case, ..GrepOptions::default() };
        if let Ok(matcher) = GrepMatcher::new(&[&pattern], options) {
            let piece = TextPiece { bytes: b"ab\n[1", offset: 0, before: None };
            let mut more = |_: &mut Vec<u8>| Ok::<_, Infallible>(false);
            let Ok(partial) = GrepScanner::new(&matcher).scan(&piece, false, &mut more);
            prop_assert!(partial.selected <= 2);
        }
    }

    #[test]
    fn damaged_results_do_no_harm(
        lines in prop::collection::vec(any::<(u8, u64, u64, u64, u64)>(), 0..6),
        text in prop::collection::vec(any::<u8>(), 0..20),
        counts in any::<(u64, u64)>(),
        options in options(),
    ) {
        let lines = lines.into_iter().map(|(kind, number, offset, len, line_len)| {
            let kind = match kind % 3 {
                0 => GrepLineKind::Selected,
                1 => GrepLineKind::Context,
                _ => GrepLineKind::Part,
            };
            GrepLine { kind, number, offset, len, line_len }
        });
        let partial =
            GrepPartial { lines: lines.collect(), text, selected: counts.0, newlines: counts.1 };
        let matcher = GrepMatcher::new(&[b"a"], options).expect("a pattern");
        let mut printer = GrepPrinter::new(&matcher);
        let mut out = Vec::new();
        printer.begin_file(b"f", false);
        printer.join(&partial, &mut out);
        printer.join(&partial, &mut out);
        printer.end_file(&mut out);
        prop_assert!(printer.exit_code() <= 1);
    }
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
            let piece = TextPiece {
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
