//! Requests of scrapers: whatever comes is answered or refused, and more bytes change no answer.
#![no_main]

use libfuzzer_sys::fuzz_target;
use samite_metrics::scrape::{HEAD_LEN_MAX, ScrapeRequest};

fuzz_target!(|head: &[u8]| {
    let read = ScrapeRequest::read(head);
    assert!(head.len() < HEAD_LEN_MAX || read != ScrapeRequest::Incomplete);
    let longer = ScrapeRequest::read(&[head, b"x"].concat());
    assert!(read == ScrapeRequest::Incomplete || read == longer);
});
