//! What tasks have given, until all of it is there: in memory, and beyond some length in a file
//! without a name.

use std::io::{Read, Seek, SeekFrom, Write};

use samite_types::{Error, ErrorKind, Result};
use samite_worker::messages::PieceOutput;
use samite_worker::{MergedPiece, PieceOutputs};
use tempfile::SpooledTempFile;

/// Bytes that stay in memory.
const MEMORY_LEN_MAX: usize = 64 << 20;

/// A part of the output of one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct OutputPart {
    piece: u64,
    /// Where it lies; parts of a piece come in this order.
    at: u64,
    len: u64,
    task: u32,
}

/// See the module.
#[derive(Debug)]
pub struct JobOutputs {
    file: SpooledTempFile,
    end: u64,
    kept: u64,
    limit: u64,
    parts: Vec<OutputPart>,
}

impl JobOutputs {
    /// Takes at most `limit` bytes.
    pub fn new(limit: u64) -> Self {
        let file = SpooledTempFile::new(MEMORY_LEN_MAX);
        Self { file, end: 0, kept: 0, limit, parts: Vec::new() }
    }

    /// Keeps output of a task.
    ///
    /// # Errors
    /// `TooLarge`: it is more than the limit; `Io`.
    pub fn add(&mut self, task: u32, outputs: &[PieceOutput]) -> Result<()> {
        for output in outputs {
            let len = output.bytes.len() as u64;
            self.kept += len;
            if self.kept > self.limit {
                let words =
                    format!("the output is more than {} bytes (--output-limit)", self.limit);
                return Err(Error::new(ErrorKind::TooLarge, words));
            }
            self.file.write_all(&output.bytes).map_err(|error| io("keep", &error))?;
            self.parts.push(OutputPart { piece: output.piece, at: self.end, len, task });
            self.end += len;
        }
        Ok(())
    }

    /// Forgets what a task has given: it begins anew.
    pub fn forget(&mut self, task: u32) {
        let kept = &mut self.kept;
        self.parts.retain(|part| {
            let stays = part.task != task;
            if !stays {
                *kept -= part.len;
            }
            stays
        });
    }

    /// The outputs in the order of pieces. `files`: the file of each piece.
    pub fn merged(self, files: &[u32]) -> MergedOutputs<'_> {
        let Self { file, mut parts, .. } = self;
        parts.sort_unstable();
        let parts = parts.into_iter().peekable();
        MergedOutputs { file, parts, files: (0..).zip(files.iter()), bytes: Vec::new() }
    }
}

/// See [`JobOutputs::merged`].
pub struct MergedOutputs<'a> {
    file: SpooledTempFile,
    parts: std::iter::Peekable<std::vec::IntoIter<OutputPart>>,
    files: std::iter::Zip<std::ops::RangeFrom<u64>, std::slice::Iter<'a, u32>>,
    bytes: Vec<u8>,
}

impl PieceOutputs for MergedOutputs<'_> {
    fn next(&mut self) -> Result<Option<MergedPiece<'_>>> {
        let Some((number, file)) = self.files.next() else { return Ok(None) };
        self.bytes.clear();
        while let Some(part) = self.parts.next_if(|part| part.piece <= number) {
            if part.piece < number {
                let words = "a task has given output for a piece that is none";
                return Err(Error::new(ErrorKind::Corrupt, words));
            }
            let start = self.bytes.len();
            self.bytes.resize(start + part.len as usize, 0);
            self.file
                .seek(SeekFrom::Start(part.at))
                .and_then(|_| self.file.read_exact(&mut self.bytes[start..]))
                .map_err(|error| io("read back", &error))?;
        }
        Ok(Some(MergedPiece { file: *file, bytes: &self.bytes }))
    }
}

fn io(what: &str, error: &std::io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("{what} the output of tasks: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_come_in_the_order_of_pieces_without_those_that_were_forgotten() {
        let mut outputs = JobOutputs::new(14);
        let output = |piece, bytes: &str| PieceOutput { piece, bytes: bytes.into() };
        outputs.add(1, &[output(2, "two"), output(0, "ze")]).unwrap();
        outputs.add(0, &[output(1, "lost")]).unwrap();
        outputs.add(1, &[output(0, "ro")]).unwrap();
        outputs.forget(0);
        outputs.add(0, &[output(1, "one")]).unwrap();
        let mut merged = outputs.merged(&[0, 0, 7, 7]);
        let mut seen = Vec::new();
        while let Some(piece) = merged.next().unwrap() {
            seen.push((piece.file, String::from_utf8(piece.bytes.to_vec()).unwrap()));
        }
        let expected = [(0, "zero"), (0, "one"), (7, "two"), (7, "")];
        assert_eq!(seen, expected.map(|(file, text)| (file, text.to_owned())));
    }

    #[test]
    fn there_is_a_limit() {
        let mut outputs = JobOutputs::new(3);
        outputs.add(0, &[PieceOutput { piece: 0, bytes: vec![0; 3] }]).unwrap();
        let more = outputs.add(0, &[PieceOutput { piece: 0, bytes: vec![0] }]);
        assert_eq!(more.unwrap_err().kind(), ErrorKind::TooLarge);
    }
}
