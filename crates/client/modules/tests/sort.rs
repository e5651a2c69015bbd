//! Runs of pieces, cut, merged and joined, against the sort of the machine.

use std::convert::Infallible;
use std::process::Command;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use samite_modules::TextPiece;
use samite_modules::gensort::{KEY_LEN, RECORD_LEN, RecordGenerator, RecordStyle};
use samite_modules::sort::{
    KeyOrdering, LineOrder, LineStream, OrderCheck, RecordCursor, RecordOrder, SortKey,
    SortOptions, SortOrder, SortedRun, merge, splitters,
};

#[derive(Clone)]
struct SortCase {
    keys: Vec<String>,
    options: SortOptions,
    separator: Option<u8>,
    stable: bool,
    unique: bool,
    text: Vec<u8>,
    cuts: Vec<usize>,
    parts: usize,
}

impl std::fmt::Debug for SortCase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = self.text.escape_ascii();
        write!(f, "{:?} on {text} cuts {:?}", arguments(self), self.cuts)
    }
}

fn case() -> impl Strategy<Value = SortCase> {
    let rare = || prop::bool::weighted(0.25);
    let ordering = prop::sample::select(vec![
        KeyOrdering::Bytes,
        KeyOrdering::Bytes,
        KeyOrdering::Numeric,
        KeyOrdering::Human,
        KeyOrdering::Version,
    ]);
    let options = (ordering, rare(), rare(), rare()).prop_map(
        |(ordering, folds_case, skips_blanks, reverse)| SortOptions {
            ordering,
            folds_case,
            skips_blanks,
            reverse,
        },
    );
    let key = prop::sample::select(vec![
        "1",
        "2",
        "1,1",
        "2,2",
        "2n",
        "2,2nr",
        "1.2,1.3",
        "2b,2",
        "2.2b,3.1b",
        "1f,2",
        "2V",
        "2h,2",
        "1,1r",
        "3",
        "2.1,2.0",
        "1.3b",
        "2,1",
        "1,2.2b",
    ]);
    let keys = prop::collection::vec(key.prop_map(String::from), 0..3);
    let text = prop::collection::vec(
        prop::sample::select(b"aabAB001279.-- \t:\n\n\nkMG~\xff\0".to_vec()),
        0..80,
    );
    let separator = prop::option::weighted(0.3, prop::sample::select(b": a".to_vec()));
    (
        keys,
        options,
        separator,
        (rare(), rare()),
        text,
        prop::collection::vec(0..80_usize, 0..5),
        1..4_usize,
    )
        .prop_map(|(keys, options, separator, (stable, unique), text, cuts, parts)| SortCase {
            keys,
            options,
            separator,
            stable,
            unique,
            text,
            cuts,
            parts,
        })
}

fn arguments(case: &SortCase) -> Vec<String> {
    let ordering = match case.options.ordering {
        KeyOrdering::Bytes => None,
        KeyOrdering::Numeric => Some("-n"),
        KeyOrdering::Human => Some("-h"),
        KeyOrdering::Version => Some("-V"),
    };
    let flags = [
        (case.options.folds_case, "-f"),
        (case.options.skips_blanks, "-b"),
        (case.options.reverse, "-r"),
        (case.stable, "-s"),
        (case.unique, "-u"),
    ];
    let mut all: Vec<String> = flags.iter().filter(|flag| flag.0).map(|f| f.1.into()).collect();
    all.extend(ordering.map(String::from));
    all.extend(case.keys.iter().map(|key| format!("-k{key}")));
    all.extend(case.separator.map(|byte| format!("-t{}", byte as char)));
    all
}

fn order(case: &SortCase) -> LineOrder {
    let keys = case.keys.iter().map(|key| SortKey::parse(key).expect("a key")).collect();
    let mut order = LineOrder::new(keys, case.options);
    if let Some(separator) = case.separator {
        order = order.separator(separator);
    }
    if case.stable {
        order = order.stable();
    }
    if case.unique {
        order = order.unique();
    }
    order
}

/// Calls `with` for each piece.
fn each_piece(
    case: &SortCase,
    mut with: impl FnMut(&TextPiece<'_>, &mut dyn FnMut(&mut Vec<u8>) -> Result<bool, Infallible>),
) {
    let text = &case.text;
    let mut cuts: Vec<usize> = case.cuts.iter().map(|cut| (*cut).min(text.len())).collect();
    cuts.extend([0, text.len()]);
    cuts.sort_unstable();
    for pair in cuts.windows(2) {
        let before = pair[0].checked_sub(1).map(|before| text[before]);
        let bytes = &text[pair[0]..pair[1]];
        let piece = TextPiece { bytes, offset: pair[0] as u64, before };
        let mut next = pair[1];
        let mut more = |into: &mut Vec<u8>| {
            let end = text.len().min(next + 3);
            into.extend_from_slice(&text[next..end]);
            let any = end > next;
            next = end;
            Ok(any)
        };
        with(&piece, &mut more);
    }
}

/// A run for each piece, all of them cut by splitters, each range merged: once of runs in memory,
/// once of streams of small blocks.
fn sorted(case: &SortCase) -> (Vec<u8>, Vec<u8>) {
    let order = order(case);
    let mut runs = Vec::new();
    each_piece(case, |piece, more| {
        let mut run = SortedRun::new(&order);
        let Ok(()) = run.add(piece, more);
        run.sort();
        runs.push(run);
    });
    let samples = runs.iter().flat_map(|run| run.sample(3)).collect();
    let splitters = splitters(samples, case.parts, &order);
    let (mut out, mut streamed) = (Vec::new(), Vec::new());
    for part in 0..=splitters.len() {
        let of_run = |run: &SortedRun<'_>| run.ranges(&splitters)[part].clone();
        let mut cursors: Vec<_> = runs.iter().map(|run| run.cursor(of_run(run))).collect();
        let Ok(()) = merge(&mut cursors, &order, &mut |line| {
            out.extend_from_slice(line);
            out.push(b'\n');
            Ok::<_, Infallible>(())
        });
        let mut streams: Vec<_> = runs
            .iter()
            .map(|run| {
                let mut text = Vec::new();
                run.write(of_run(run), &mut text);
                let mut blocks = text.chunks(2).map(<[u8]>::to_vec).collect::<Vec<_>>().into_iter();
                let fill = move |into: &mut Vec<u8>| {
                    Ok::<_, Infallible>(blocks.next().map(|block| into.extend(block)).is_some())
                };
                let Ok(stream) = LineStream::new(fill);
                stream
            })
            .collect();
        let Ok(()) = merge(&mut streams, &order, &mut |line| {
            streamed.extend_from_slice(line);
            streamed.push(b'\n');
            Ok::<_, Infallible>(())
        });
    }
    (out, streamed)
}

fn checked(case: &SortCase) -> Option<(u64, Vec<u8>)> {
    let order = order(case);
    let mut joined = OrderCheck::default();
    each_piece(case, |piece, more| {
        let Ok(check) = OrderCheck::of(&order, piece, more);
        joined.join(check, &order);
    });
    joined.disorder().map(|(number, line)| (number, line.to_vec()))
}

#[test]
fn joined_pieces_are_what_sort_prints() {
    let file = tempfile::NamedTempFile::new().expect("a file is made");
    let cases = std::env::var("SAMITE_SORT_CASES").ok().and_then(|cases| cases.parse().ok());
    let cases = cases.unwrap_or(800);
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let result = TestRunner::new(config).run(&case(), |case| {
        std::fs::write(file.path(), &case.text).expect("a file is written");
        let mut command = Command::new("sort");
        command.env("LC_ALL", "C").args(arguments(&case)).arg(file.path());
        let output = command.output().expect("sort runs");
        let expected = output.stdout.escape_ascii().to_string();
        let (merged, streamed) = sorted(&case);
        prop_assert_eq!(merged.escape_ascii().to_string(), expected.clone());
        prop_assert_eq!(streamed.escape_ascii().to_string(), expected);

        let output = command.arg("-c").output().expect("sort runs");
        let words = match checked(&case) {
            None => String::new(),
            Some((number, line)) => {
                let line = line.escape_ascii();
                format!("sort: {}:{number}: disorder: {line}\\n", file.path().display())
            }
        };
        prop_assert_eq!(words, output.stderr.escape_ascii().to_string());
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn keys_that_are_none_are_refused() {
    for text in ["", "0", "1.0", "a", "1,", "1,0", "1x", "-1", "1.", "+1", "1,2,3"] {
        assert!(SortKey::parse(text).is_err(), "{text}");
    }
    for text in ["1.2bf,3.4rV", "99999999999999999999999", "1,2.0"] {
        assert!(SortKey::parse(text).is_ok(), "{text}");
    }
}

fn check_records(records: &[u8], order: &RecordOrder, key: std::ops::Range<usize>, len: usize) {
    let mut expected: Vec<&[u8]> = records.chunks(len).collect();
    expected.sort_by(|one, other| one[key.clone()].cmp(&other[key.clone()]));
    let expected = expected.concat();
    let mut out = vec![0; records.len()];
    order.sort(records, &mut out);
    assert!(out == expected, "records are in order");

    let half = records.len() / len / 2 * len;
    let (mut one, mut other) = (vec![0; half], vec![0; records.len() - half]);
    order.sort(&records[..half], &mut one);
    order.sort(&records[half..], &mut other);
    let samples = [order.sample(&one, 5), order.sample(&other, 5)].concat();
    let splitters = splitters(samples, 3, order);
    let (ranges, others) = (order.ranges(&one, &splitters), order.ranges(&other, &splitters));
    let mut merged = Vec::new();
    for (range, other_range) in ranges.into_iter().zip(others) {
        let mut cursors =
            [RecordCursor::new(&one[range], len), RecordCursor::new(&other[other_range], len)];
        let Ok(()) = merge(&mut cursors, order, &mut |record| {
            merged.extend_from_slice(record);
            Ok::<_, Infallible>(())
        });
    }
    assert!(merged == expected, "merged records are in order");
}

#[test]
fn records_are_sorted_and_merged() {
    for (style, count) in [(RecordStyle::Ascii, 20_000), (RecordStyle::Binary, 40_000)] {
        let mut records = vec![0; count * RECORD_LEN];
        RecordGenerator::new(style, 7).fill(&mut records);
        let order = RecordOrder::new(RECORD_LEN, 0..KEY_LEN).expect("a key in the record");
        check_records(&records, &order, 0..KEY_LEN, RECORD_LEN);
    }
    assert!(RecordOrder::new(10, 5..11).is_none());
    assert!(RecordOrder::new(0, 0..0).is_none());
}

proptest! {
    #[test]
    fn records_of_all_shapes_are_sorted(
        bytes in prop::collection::vec(0..3_u8, 0..2000),
        len in 1..40_usize,
        cut in (0..40_usize, 0..40_usize),
    ) {
        let key = cut.0.min(cut.1).min(len)..cut.0.max(cut.1).min(len);
        let order = RecordOrder::new(len, key.clone()).expect("a key in the record");
        let records = &bytes[..bytes.len() / len * len];
        check_records(records, &order, key, len);
        for pair in records.chunks(len).collect::<Vec<_>>().windows(2) {
            let prefixes = order.prefix(pair[0]).cmp(&order.prefix(pair[1]));
            prop_assert!(prefixes.is_eq() || prefixes == order.compare(pair[0], pair[1]));
        }
    }
}
