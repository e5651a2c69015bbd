//! Files of a dump: refused, or records within the bytes that are there.
#![no_main]

use libfuzzer_sys::fuzz_target;
use samite_dump::{DumpManifest, RecordReader, read_frame};

fuzz_target!(|raw: &[u8]| {
    let _ = DumpManifest::decode(raw);
    let mut from = raw;
    while let Ok(Some((_, body))) = read_frame(&mut from) {
        assert!(body.len() <= raw.len());
    }
    let mut records = RecordReader::new(raw);
    let mut len = 0;
    while let Ok(Some(record)) = records.next_record() {
        len += record.key.len() + record.value.unwrap_or_default().len();
        assert!(len <= raw.len());
    }
});
