//! The key-value view: values of 0 bytes to 1 GiB under keys of 1 byte to 4 KiB.
//!
//! A value that fits one record ([`samite_wire::limits::RECORD_LEN_MAX`]) is one, and every
//! operation on it is one operation on one partition. A larger one lies in chunks behind a
//! manifest; it is read and replaced as a whole all the same. Which of the two a key has is found
//! out by the operation itself (a guard that there is no manifest), so small values never pay for
//! it.
//!
//! Calls block; those called `submit_…` return a
//! [`PendingOperations`](samite_client::PendingOperations), which is a future and can be waited
//! for. All are carried out by the client's default deadline.
//!
//! ```no_run
//! # fn main() -> samite_types::Result<()> {
//! use samite_client::Client;
//! use samite_kv::KvView;
//!
//! let client = Client::from_runtime("default")?;
//! let kv = KvView::new(client.dataset("kv")?);
//! kv.put(b"key", b"value")?;
//!
//! // Many operations, one request per node; and one that nobody waits for yet.
//! let mut batch = kv.batch();
//! batch.put(b"a", b"1").put(b"b", b"2").get(b"key");
//! let outcomes = batch.execute()?;
//! let pending = kv.submit_get(b"a")?;
//! assert_eq!(pending.wait()?.map(|value| value.bytes), Some(b"1".to_vec()));
//! # Ok(())
//! # }
//! ```

mod atomic;
mod batch;
mod commit;
mod key;
mod large;
mod manifest;
mod placement;
mod submit;
mod view;

pub use atomic::AtomicChange;
pub use batch::{BatchOutcome, BatchOutcomes, KvBatch};
pub use key::{GROUP_LEN_MAX, StoredRecord};
pub use placement::record_placement;
pub use view::{KeyEntry, KeyPage, KvView, VersionedValue};
