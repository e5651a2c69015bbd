//! How fast the kernels are, in memory: `kernels [MEBIBYTES]`. Prints the best of three rounds.
#![expect(clippy::unwrap_used, reason = "a measurement ends where something fails")]

use std::convert::Infallible;
use std::time::Instant;

use samite_modules::FilePiece;
use samite_modules::grep::{GrepMatcher, GrepOptions, GrepReport, GrepScanner, PatternSyntax};

const PIECE_LEN: usize = 512 << 10;

fn main() {
    let len = std::env::args().nth(1).map_or(256, |len| len.parse().unwrap()) << 20;
    let text = records(len);
    if let Some(path) = std::env::args().nth(2) {
        std::fs::write(path, &text).unwrap();
    }
    for (name, pattern, report) in [
        ("grep rare literal", "AFJOWEWIOEFWE", GrepReport::Lines),
        ("grep AAAAAA", "AAAAAA", GrepReport::Lines),
        ("grep ^[A-F]{3}[0-9]", "^[A-F]{3}[0-9]", GrepReport::Lines),
        ("grep -c ^[A-F]{3}[0-9]", "^[A-F]{3}[0-9]", GrepReport::Count),
        ("grep [A-F]{3}[0-9]", "[A-F]{3}[0-9]", GrepReport::Count),
        ("grep -o A[0-9]+B", "A[0-9]+B", GrepReport::Parts),
    ] {
        let options =
            GrepOptions { syntax: PatternSyntax::Extended, report, ..GrepOptions::default() };
        let matcher = GrepMatcher::new(&[pattern.as_bytes()], options).unwrap();
        measure(name, len, || {
            let mut scanner = GrepScanner::new(&matcher);
            let scan = |piece: &FilePiece<'_>, more: &mut More<'_>| {
                scanner.scan(piece, false, more).unwrap().selected
            };
            each_piece(&text, scan)
        });
    }
}

type More<'a> = dyn FnMut(&mut Vec<u8>) -> Result<bool, Infallible> + 'a;

fn each_piece(text: &[u8], mut scan: impl FnMut(&FilePiece<'_>, &mut More<'_>) -> u64) -> u64 {
    let mut sum = 0;
    for start in (0..text.len()).step_by(PIECE_LEN) {
        let end = text.len().min(start + PIECE_LEN);
        let before = start.checked_sub(1).map(|before| text[before]);
        let piece = FilePiece { bytes: &text[start..end], offset: start as u64, before };
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

fn measure(name: &str, len: usize, mut run: impl FnMut() -> u64) {
    let mut best = f64::MAX;
    let mut result = 0;
    for _ in 0..3 {
        let start = Instant::now();
        result = run();
        best = best.min(start.elapsed().as_secs_f64());
    }
    println!("{name:30} {:8.2} GB/s  {result}", len as f64 / best / 1e9);
}

/// Lines of 100 bytes that look like the records of the sort benchmark.
fn records(len: usize) -> Vec<u8> {
    let mut text = Vec::with_capacity(len + 100);
    let mut state = 1_u64;
    let mut number = 0_u64;
    while text.len() < len {
        for _ in 0..10 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            text.push(b' ' + ((state >> 33) % 95) as u8);
        }
        text.extend_from_slice(format!("  {number:032X}  ").as_bytes());
        for _ in 0..13 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            text.extend([b"0123456789ABCDEF"[(state >> 60) as usize]; 4]);
        }
        text.extend_from_slice(b"\r\n");
        number += 1;
    }
    text.truncate(len);
    text
}
