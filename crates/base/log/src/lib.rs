//! The write-ahead log: its frames outlive the process, and it says so only when they do.
//!
//! A log is a directory of *segments*, each with the *frames* of consecutive sequence numbers. The
//! payload of a frame is the caller's business: bytes in, bytes out. A segment is set aside whole
//! before it is used, so that an accepted frame has its place.
//!
//! ```text
//!  log-0000000000000001      header │ frame 1 │ frame 2 │ … │ frame 7810 │ rest
//!  log-0000000000001e83      header │ frame 7811 │ … │ torn or zeros
//!  manifest                  which is the oldest, which the newest, and how many bytes that one has
//!
//!  header   "samiteL1" │ log id u64 │ first sequence u64 │ 0 u32 │ crc u32
//!  frame    crc u32 │ payload length u32 │ sequence u64 │ synced u64 │ payload │ zeros up to a multiple of 8
//! ```
//!
//! All numbers are little-endian. A checksum (CRC-32C) covers what follows it in the frame and begins with the log's id, so that bytes of
//! another log are never taken for this one's.
//!
//! Frames are written in batches: one write, one `fdatasync`, and only then the next. Each says in `synced` below which sequence
//! number everything was on flash when its batch was made. So after a crash the end of the log tells what happened to it:
//! a frame that cannot be read is the *torn tail* of a batch that nobody was told about, and is cleared, unless a later frame
//! proves that it had been on flash. Then it is *rot*, and opening the log fails and says where.
//!
//! The *manifest* is changed before a new segment gets its first frame, and before the oldest go. So a segment that is missing or
//! was cut is an error, too, also at the ends of the log, where the numbers of the frames leave no gap. [`inventory`] does the same for files beside
//! the log, and [`joined`] tells an older copy of everything.
//!
//! Why a crate of its own: it knows neither records nor partitions, as [`samite_types`] is all it
//! needs, and any part that wants a log (the node's shards; a coordinator's state) can have one.
//! [`LogDisk`] stands between it and the operating system, so that tests lose what was not synced,
//! tear writes at any byte and fail any call ([`memory`]).

mod appender;
pub mod checkpoint;
mod disk;
mod frame;
pub mod inventory;
pub mod joined;
mod log;
pub mod manifest;
mod segment;
pub mod storage;
mod twice;

pub use appender::{FrameNeed, LogAppender, LogMetrics};
pub use disk::{DirDisk, LogDisk, LogFile, memory};
pub use frame::{FRAME_LEN_MAX, FrameBatch};
pub use log::{LogSettings, OpenLog};
