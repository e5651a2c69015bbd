//! What several tools do alike.

use std::io::Write;

use samite_types::{Error, ErrorKind, Result};
use samite_worker::input::{InputPiece, TaskInput};
use samite_worker::{JobFile, JobInput, PieceOutputs};

use crate::lines::PieceRange;

/// The next piece of a file, and the number of the file.
pub(crate) fn next_file_piece(input: &mut TaskInput) -> Result<Option<(u32, PieceRange)>> {
    match input.next_piece()? {
        None => Ok(None),
        Some(InputPiece::File { file, offset, len, size }) => {
            Ok(Some((file, PieceRange { offset, len, size })))
        }
        Some(InputPiece::Partition) => Err(no_files()),
    }
}

/// The files of a job.
pub(crate) fn files_of(input: &JobInput) -> Result<&[JobFile]> {
    match input {
        JobInput::Files(files) => Ok(files),
        JobInput::Records(_) => Err(no_files()),
    }
}

/// Joins the outputs of the pieces of each file, in order.
pub(crate) fn join_by_file<T: Clone + Default>(
    files: usize,
    outputs: &mut dyn PieceOutputs,
    mut join: impl FnMut(&mut T, &[u8]) -> Result<()>,
) -> Result<Vec<T>> {
    let mut joined = vec![T::default(); files];
    while let Some(piece) = outputs.next()? {
        let of = joined.get_mut(piece.file as usize).ok_or_else(crate::frames::corrupt)?;
        join(of, piece.bytes)?;
    }
    Ok(joined)
}

/// Writes to the result.
pub(crate) fn write(out: &mut dyn Write, bytes: &[u8]) -> Result<()> {
    out.write_all(bytes)
        .map_err(|error| Error::new(ErrorKind::Io, format!("write the output: {error}")))
}

fn no_files() -> Error {
    Error::new(ErrorKind::Invalid, "this tool reads files, not records")
}
