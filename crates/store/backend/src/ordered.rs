//! Record stores over an ordered map on disk.
//!
//! A backend that remembers gives an [`OrderedMap`] (`map.rs`): rows of bytes in the order of their
//! keys, which a thread of the target changes by whole [`WriteBatch`](crate::WriteBatch)es. All else
//! is here: rows of records and values (`row.rs`), changes that are not in the map yet
//! (`overlay.rs`), rows through them (`layers.rs`), and the store over these (`store.rs`).
//!
//! A read sees the changes that no batch has taken, over those of the batch under way, over the
//! map. It is right at any moment: the batch under way covers what it is about to put into the map,
//! and made twice it is the same. Changes read record rows only, never bytes of large values: a
//! write into a part of a value is a patch, which the committing thread carries out.

mod commit;
mod layers;
mod map;
mod overlay;
mod parts;
mod read;
mod read_ahead;
mod recent;
mod row;
mod scan;
mod space;
mod store;
mod target;
mod write;

pub use map::{OrderedMap, RowBounds, RowVisit, row_of};
pub use row::{PART_LEN, changed_row, is_part_key, part_key_bounds, patched_row};
pub use target::{OFFERS, OrderedBackend, OrderedTarget};
