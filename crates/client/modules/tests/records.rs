//! Records and their checks against what gensort 1.5 and valsort of sortbenchmark.org gave.

use proptest::prelude::*;
use samite_modules::gensort::{RECORD_LEN, RecordGenerator, RecordStyle, fill_range};
use samite_modules::sum::SequentialSum;
use samite_modules::valsort::SortSummary;

fn made(style: RecordStyle, first: u128, records: usize) -> Vec<u8> {
    let mut out = vec![0; records * RECORD_LEN];
    RecordGenerator::new(style, first).fill(&mut out);
    out
}

fn sha256(bytes: &[u8]) -> String {
    let mut sum = SequentialSum::sha256();
    sum.update(bytes);
    sum.hex()
}

#[test]
fn records_are_those_of_gensort() {
    let text = made(RecordStyle::Ascii, 5, 3);
    let first = b"*}-Wz1;TD-  00000000000000000000000000000005  \
        AAAA88883333BBBB888888884444777722227777999900002222\r\n";
    assert_eq!(&text[..RECORD_LEN], first);
    // gensort -a -b5 3, gensort -b123456789012 2, gensort -a 1000, gensort 1000
    assert_eq!(sha256(&text), "8d3ac34e6f7cd22f1c4a2ecd3581a71a61e55353bdafe918d972c5fc2fb91982");
    assert_eq!(
        sha256(&made(RecordStyle::Binary, 123_456_789_012, 2)),
        "be539006fa2593b24a69ab9972a5762609f6d9782a59a1929e7fa4127571ccc8"
    );
    assert_eq!(
        sha256(&made(RecordStyle::Ascii, 0, 1000)),
        "6c26b26a61464dd78038f9c60907c851ac043c07584b12835fe065cbca31aad2"
    );
    assert_eq!(
        sha256(&made(RecordStyle::Binary, 0, 1000)),
        "f524474116510d1debac6d38152e793a7e3cb71b1dd2bb45b6610e3c17698177"
    );
}

#[test]
fn summaries_are_those_of_valsort() {
    let records = made(RecordStyle::Binary, 0, 1000);
    let summary = SortSummary::of(&records);
    assert_eq!(
        summary.report(),
        "First unordered record is record 2\nRecords: 1000\nChecksum: 1ea6370b955\n\
         ERROR - there are 483 unordered records\n"
    );
    let text = SortSummary::of(&made(RecordStyle::Ascii, 0, 1000));
    assert_eq!(text.checksum, 0x1f5_dfb3_631a);

    let mut sorted: Vec<&[u8]> = records.chunks(RECORD_LEN).collect();
    sorted.sort_unstable();
    sorted.push(sorted[999]);
    let summary = SortSummary::of(&sorted.concat());
    assert_eq!((summary.records, summary.duplicates, summary.unordered), (1001, 1, 0));
    assert!(summary.report().ends_with("Duplicate keys: 1\nSUCCESS - all records are in order\n"));
}

proptest! {
    #[test]
    fn pieces_are_made_and_checked_anywhere(
        cuts in prop::collection::vec(0..2000_usize, 0..8),
        first in 0..u128::MAX - 100,
        ascii in any::<bool>(),
    ) {
        let style = if ascii { RecordStyle::Ascii } else { RecordStyle::Binary };
        let whole = made(style, first, 20);
        let mut cuts = cuts;
        cuts.extend([0, whole.len()]);
        cuts.sort_unstable();
        let (mut pieces, mut summary) = (Vec::new(), SortSummary::default());
        for pair in cuts.windows(2) {
            let mut piece = vec![0; pair[1] - pair[0]];
            fill_range(style, first, pair[0] as u64, &mut piece);
            pieces.extend(piece);
            let records = pair[0] / RECORD_LEN * RECORD_LEN..pair[1] / RECORD_LEN * RECORD_LEN;
            summary.join(&SortSummary::of(&whole[records]));
        }
        prop_assert_eq!(&pieces, &whole);
        prop_assert_eq!(summary, SortSummary::of(&whole));
    }
}
