//! How fast the kernels are, in memory: `kernels [MEBIBYTES] [FILE]`, 256 where nothing is said. The
//! records that are searched are written to the file, for other programs. Prints, of the best of
//! five rounds, the rate by the processor time of the thread, and what came out.
#![expect(clippy::unwrap_used, reason = "a measurement ends where something fails")]

use std::convert::Infallible;
use std::hint::black_box;

use rustix::time::{ClockId, clock_gettime};
use samite_modules::TextPiece;
use samite_modules::count::WordCounts;
use samite_modules::gensort::{KEY_LEN, RECORD_LEN, RecordGenerator, RecordStyle};
use samite_modules::grep::{GrepMatcher, GrepOptions, GrepReport, GrepScanner, PatternSyntax};
use samite_modules::sort::{LineOrder, RecordCursor, RecordOrder, SortOptions, SortedRun, merge};
use samite_modules::sum::{CrcPartial, SequentialSum};
use samite_modules::valsort::SortSummary;
use samite_modules::wc::{WcFields, WcPartial};

const PIECE_LEN: usize = 512 << 10;

fn main() {
    let len = std::env::args().nth(1).map_or(256, |len| len.parse().unwrap()) << 20;
    let mut text = vec![0; len / RECORD_LEN * RECORD_LEN];
    measure("gen ascii", len, || {
        RecordGenerator::new(RecordStyle::Ascii, 0).fill(&mut text);
        0
    });
    if let Some(path) = std::env::args().nth(2) {
        std::fs::write(path, &text).unwrap();
    }
    search(&text);
    count(&text);
    sort_records(&text);
    sort_lines(&text);
}

fn search(text: &[u8]) {
    for (name, pattern, report) in [
        ("grep rare literal", "AFJOWEWIOEFWE", GrepReport::Lines),
        ("grep AAAAAA", "AAAAAA", GrepReport::Lines),
        ("grep ^[A-F]{3}[0-9]", "^[A-F]{3}[0-9]", GrepReport::Lines),
        ("grep -c [A-F]{3}[0-9]", "[A-F]{3}[0-9]", GrepReport::Count),
        ("grep -o A[0-9]+B", "A[0-9]+B", GrepReport::Parts),
    ] {
        let syntax = PatternSyntax::Extended;
        let options = GrepOptions { syntax, report, ..GrepOptions::default() };
        let matcher = GrepMatcher::new(&[pattern.as_bytes()], options).unwrap();
        let mut scanner = GrepScanner::new(&matcher);
        measure(name, text.len(), || {
            each_piece(text, |piece, more| scanner.scan(piece, false, more).unwrap().selected)
        });
    }
}

fn count(text: &[u8]) {
    let len = text.len();
    let words = WcFields { words: true, ..WcFields::default() };
    let all = WcFields { longest: true, ..WcFields::DEFAULT };
    for (name, fields) in [("wc -w", words), ("wc", WcFields::DEFAULT), ("wc -lwcL", all)] {
        measure(name, len, || {
            let mut sum = WcPartial::default();
            text.chunks(PIECE_LEN).for_each(|piece| sum.join(&WcPartial::of(piece, fields)));
            sum.counts().words
        });
    }
    let prose = prose(len);
    measure("wc -w, short words", len, || WcPartial::of(&prose, words).counts().words);
    measure("count, 50,000 words", len, || {
        let mut counts = WordCounts::default();
        each_piece(&prose, |piece, more| counts.add(piece, more).map_or(0, |()| 0));
        counts.total()
    });
    measure("sum crc32c", len, || u64::from(CrcPartial::of(text).crc()));
    for (name, mut sum) in
        [("sum xxh3", SequentialSum::xxh3()), ("sum sha256", SequentialSum::sha256())]
    {
        measure(name, len, || {
            sum.update(text);
            0
        });
    }
    measure("valsort", len, || SortSummary::of(text).unordered);
}

fn sort_records(text: &[u8]) {
    let order = RecordOrder::new(RECORD_LEN, 0..KEY_LEN).unwrap();
    let mut out = vec![0; text.len()];
    measure("copy", text.len(), || {
        out.copy_from_slice(black_box(text));
        0
    });
    measure("sort records", text.len(), || {
        order.sort(text, &mut out);
        SortSummary::of(&out[..RECORD_LEN * 1000]).unordered
    });
    let parts: Vec<&[u8]> = text.chunks(text.len() / RECORD_LEN / 8 * RECORD_LEN).collect();
    let runs: Vec<Vec<u8>> = parts
        .iter()
        .map(|part| {
            let mut run = vec![0; part.len()];
            order.sort(part, &mut run);
            run
        })
        .collect();
    measure("merge 8 runs of records", text.len(), || {
        let mut cursors: Vec<_> =
            runs.iter().map(|run| RecordCursor::new(run, RECORD_LEN)).collect();
        let mut at = 0;
        let Ok(()) = merge(&mut cursors, &order, &mut |record| {
            out[at..at + RECORD_LEN].copy_from_slice(record);
            at += RECORD_LEN;
            Ok::<_, Infallible>(())
        });
        at as u64
    });
}

fn sort_lines(text: &[u8]) {
    let order = LineOrder::new(Vec::new(), SortOptions::default());
    let mut out = Vec::with_capacity(text.len());
    measure("sort lines", text.len(), || {
        let mut run = SortedRun::new(&order);
        each_piece(text, |piece, more| run.add(piece, more).map_or(0, |()| 0));
        run.sort();
        out.clear();
        run.write(0..run.len(), &mut out);
        run.len() as u64
    });
}

type More<'a> = dyn FnMut(&mut Vec<u8>) -> Result<bool, Infallible> + 'a;

fn each_piece(text: &[u8], mut scan: impl FnMut(&TextPiece<'_>, &mut More<'_>) -> u64) -> u64 {
    let mut sum = 0;
    for start in (0..text.len()).step_by(PIECE_LEN) {
        let end = text.len().min(start + PIECE_LEN);
        let before = start.checked_sub(1).map(|before| text[before]);
        let piece = TextPiece { bytes: &text[start..end], offset: start as u64, before };
        let mut next = end;
        let mut more = |into: &mut Vec<u8>| {
            let end = text.len().min(next + 4096);
            into.extend_from_slice(&text[next..end]);
            let any = end > next;
            next = end;
            Ok(any)
        };
        sum += scan(&piece, &mut more);
    }
    sum
}

fn seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn measure(name: &str, len: usize, mut run: impl FnMut() -> u64) {
    let (mut best, mut result) = (f64::MAX, 0);
    for _ in 0..5 {
        let start = seconds();
        result = black_box(run());
        best = best.min(seconds() - start);
    }
    println!("{name:26} {:8.2} GB/s  {result}", len as f64 / best / 1e9);
}

/// Words of one to nine letters, some of them far more frequent than others.
fn prose(len: usize) -> Vec<u8> {
    let mut text = Vec::with_capacity(len + 16);
    let mut state = 1_u64;
    while text.len() < len {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let (one, other) = ((state >> 32) as u32 % 50_000, (state >> 16) as u32 % 50_000);
        let mut word = (u64::from(one.min(other)) * 0x9e37_79b9) as u32;
        for _ in 0..1 + one.min(other) % 9 {
            text.push(b'a' + (word % 26) as u8);
            word /= 13;
        }
        text.push(if state.is_multiple_of(10) { b'\n' } else { b' ' });
    }
    text.truncate(len);
    text
}
