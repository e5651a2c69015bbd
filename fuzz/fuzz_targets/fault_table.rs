//! Tables of faults; a table that is read is written to text that means the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use samite_types::fault::FaultTable;

fuzz_target!(|text: &str| {
    if let Ok(table) = text.parse::<FaultTable>() {
        assert_eq!(table.to_string().parse(), Ok(table));
    }
});
