//! The computing parts of the tools that run beside the data: functions and state machines over
//! pieces of files, without input, output, clients or threads, which callers bring.
//!
//! A file is a sequence of [`TextPiece`]s that may lie on different nodes. A kernel makes a partial
//! result of each piece; the partial results of consecutive pieces are joined in their order. A
//! line belongs to the piece in which it starts, so a kernel may ask for bytes past the end of its
//! piece, until the line that crosses the end is complete.

mod piece;

pub mod count;
pub mod gensort;
pub mod grep;
pub mod sort;
pub mod sum;
pub mod valsort;
pub mod wc;

pub use piece::{LineEnding, TextPiece};
