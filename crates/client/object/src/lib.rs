//! The object view: named byte ranges of any size over chunks.
//!
//! An object is a header record, placed by its name, and chunks of the dataset's chunk length,
//! placed by the dataset's distribution. Chunks that were never written are holes and read as
//! zeros. Writing sends chunks only, and the header's length is raised to the end of the write
//! (after the data, where the object grows: its length never covers bytes that are not there yet).
//! A read or a write of any size is one request per node and frame.
//!
//! An object that is replaced as a whole ([`ObjectView::replace`]) is made beside the old one, as a
//! draft ([`samite_client::drafts`]), and takes its place in one operation.
//!
//! Names are any bytes, 1 to 4096 of them; nothing in them has a meaning.
//!
//! ```no_run
//! # fn main() -> samite_types::Result<()> {
//! use samite_client::Client;
//! use samite_object::ObjectView;
//!
//! let client = Client::from_runtime("default")?;
//! let objects = ObjectView::new(client.dataset("objects")?);
//! let object = objects.open_or_create(b"results/7")?;
//! object.write_at(b"some bytes", 1 << 20)?;
//! assert_eq!(object.len()?, (1 << 20) + 10);
//!
//! // Other clients see the old object until the new one is in place.
//! let next = objects.replace(b"results/7")?;
//! next.object().write_at(b"others", 0)?;
//! next.place()?;
//! # Ok(())
//! # }
//! ```

mod header;
mod open_object;
mod placement;
mod replace;
mod submit;
mod view;

pub use open_object::OpenObject;
pub use placement::record_placement;
pub use replace::ObjectReplacement;
pub use view::{ObjectEntry, ObjectPage, ObjectView};
