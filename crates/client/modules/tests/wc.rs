//! Counts of pieces, joined, against the wc of the machine.

use std::process::Command;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use samite_modules::wc::{WcCounts, WcFields, WcPartial, number_width};

const ALL: WcFields =
    WcFields { lines: true, words: true, chars: true, bytes: true, longest: true };

fn counted(text: &[u8], cuts: &[usize]) -> WcCounts {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| (*cut).min(text.len())).collect();
    cuts.extend([0, text.len()]);
    cuts.sort_unstable();
    let mut joined = WcPartial::default();
    for pair in cuts.windows(2) {
        joined.join(&WcPartial::of(&text[pair[0]..pair[1]], ALL));
    }
    joined.counts()
}

#[test]
fn joined_pieces_are_what_wc_prints() {
    let directory = tempfile::tempdir().expect("a directory is made");
    let config = Config { cases: 150, failure_persistence: None, ..Config::default() };
    let bytes = prop::sample::select(b"aaaaaab\x01\x7f\xff\t\t\r\x0c\x0b  \n\n\0~!".to_vec());
    let texts = prop::collection::vec(prop::collection::vec(bytes, 0..70), 2..12);
    let cuts = prop::collection::vec(0..70_usize, 0..6);
    let result = TestRunner::new(config).run(&(texts, cuts), |(texts, cuts)| {
        let mut command = Command::new("wc");
        command.env("LC_ALL", "C").current_dir(directory.path()).arg("-lwmcL");
        let sizes: Vec<_> = texts.iter().map(|text| Some(text.len() as u64)).collect();
        let width = number_width(ALL, &sizes);
        let (mut expected, mut total) = (String::new(), WcCounts::default());
        for (index, text) in texts.iter().enumerate() {
            std::fs::write(directory.path().join(index.to_string()), text).expect("written");
            command.arg(index.to_string());
            let counts = counted(text, &cuts);
            total.add(&counts);
            expected += &(counts.line(ALL, width, Some(&index.to_string())) + "\n");
        }
        expected += &(total.line(ALL, width, Some("total")) + "\n");
        let output = command.output().expect("wc runs");
        prop_assert_eq!(expected, String::from_utf8_lossy(&output.stdout));
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

/// Longer than the blocks of the counter of words, with and without bytes that are neither.
#[test]
fn long_texts_are_counted_as_by_hand() {
    let mut text = b"one two\n three  ".repeat(5000);
    assert_eq!(counted(&text, &[1, 4097, 30_001]).words, 15_000);
    text.extend(b"\xe4\xf6 \xfc x\xfcy \x01");
    assert_eq!(counted(&text, &[2, 5000, 80_001]).words, 15_001);
}

#[test]
fn widths_are_those_of_wc() {
    assert_eq!(number_width(WcFields::DEFAULT, &[Some(5)]), 1);
    assert_eq!(number_width(WcFields::DEFAULT, &[Some(12345)]), 5);
    assert_eq!(number_width(WcFields::DEFAULT, &[None]), 7);
    let lines = WcFields { lines: true, ..WcFields::default() };
    assert_eq!(number_width(lines, &[Some(12345)]), 1);
    assert_eq!(number_width(lines, &[Some(12345), Some(10)]), 5);
}
