//! Parts of a task's output: a tag and bytes each. A long part is cut, so that none is given in
//! pieces by the worker, which may cut what is longer than its own limit.

use samite_types::{Error, ErrorKind, Result};
use samite_worker::TaskOutput;

/// Most bytes of a part in one go.
const PART_LEN_MAX: usize = 64 << 10;
/// In the tag: more of the same part follows.
const MORE: u8 = 0x80;

/// Gives a part.
///
/// # Errors
/// As of `out`.
pub(crate) fn emit(out: &mut dyn TaskOutput, tag: u8, bytes: &[u8]) -> Result<()> {
    let mut rest = bytes;
    loop {
        let (part, behind) = rest.split_at(rest.len().min(PART_LEN_MAX));
        let more = if behind.is_empty() { 0 } else { MORE };
        let mut frame = Vec::with_capacity(part.len() + 5);
        frame.push(tag | more);
        // At most `PART_LEN_MAX`.
        frame.extend_from_slice(&(part.len() as u32).to_le_bytes());
        frame.extend_from_slice(part);
        out.emit(&frame)?;
        if behind.is_empty() {
            return Ok(());
        }
        rest = behind;
    }
}

/// Hands the parts in `bytes` to `visit`, whole.
///
/// # Errors
/// `Corrupt`: they are none; those of `visit`.
pub(crate) fn each(mut bytes: &[u8], visit: &mut dyn FnMut(u8, &[u8]) -> Result<()>) -> Result<()> {
    let mut joined: Vec<u8> = Vec::new();
    while let Some((tag, rest)) = bytes.split_first() {
        let (len, rest) = rest.split_first_chunk().ok_or_else(corrupt)?;
        let len = u32::from_le_bytes(*len) as usize;
        let (part, rest) = rest.split_at_checked(len).ok_or_else(corrupt)?;
        bytes = rest;
        if tag & MORE != 0 {
            joined.extend_from_slice(part);
        } else if joined.is_empty() {
            visit(*tag, part)?;
        } else {
            joined.extend_from_slice(part);
            visit(*tag, &std::mem::take(&mut joined))?;
        }
    }
    if joined.is_empty() { Ok(()) } else { Err(corrupt()) }
}

/// A task has given what no task gives.
pub(crate) fn corrupt() -> Error {
    Error::new(ErrorKind::Corrupt, "the output of a task makes no sense")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Default)]
    struct CollectedOutput(Vec<u8>, usize);

    impl TaskOutput for CollectedOutput {
        fn emit(&mut self, bytes: &[u8]) -> Result<()> {
            self.0.extend_from_slice(bytes);
            self.1 = self.1.max(bytes.len());
            Ok(())
        }
    }

    proptest! {
        #[test]
        fn parts_come_back_whole(lens in proptest::collection::vec((0..4_u8, 0..200_000_usize), 0..6)) {
            let mut out = CollectedOutput::default();
            for (tag, len) in &lens {
                emit(&mut out, *tag, &vec![*tag; *len]).unwrap();
            }
            let mut seen = Vec::new();
            each(&out.0, &mut |tag, bytes| {
                assert!(bytes.iter().all(|byte| *byte == tag));
                seen.push((tag, bytes.len()));
                Ok(())
            }).unwrap();
            prop_assert_eq!(seen, lens);
            prop_assert!(out.1 <= PART_LEN_MAX + 5);
        }

        #[test]
        fn garbage_is_refused_or_read(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = each(&bytes, &mut |_, _| Ok(()));
        }
    }
}
