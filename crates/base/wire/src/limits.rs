//! Hard limits, checked on receipt on both sides.

/// Longest key or name that the key-value and object views accept, in bytes.
pub const VIEW_KEY_LEN_MAX: usize = 4096;
/// Longest key of a record, in bytes: a view's key, and what the view puts in front of it to keep kinds of records apart.
pub const KEY_LEN_MAX: usize = VIEW_KEY_LEN_MAX + 64;
/// Longest value of one record held by a partition, in bytes. Larger values are split into chunks by the views.
pub const RECORD_LEN_MAX: usize = 1 << 20;
/// Largest value a key-value or object view accepts for one record (as chunks), in bytes.
pub const VALUE_LEN_MAX: u64 = 1 << 30;
/// Longest frame body, in bytes.
pub const BODY_LEN_MAX: usize = 1 << 20;
/// Most connected clients that a node names.
pub const CLIENTS_TOLD_MAX: usize = 4096;
/// Longest setup of a cluster that a node tells its clients, in bytes.
pub const SETUP_LEN_MAX: usize = 64 << 10;
/// Longest message to a worker process, or from one, in bytes.
pub const WORKER_MESSAGE_LEN_MAX: usize = 768 << 10;
/// Longest frame payload, in bytes.
pub const PAYLOAD_LEN_MAX: usize = 8 << 20;
/// Longest frame accepted before the peer has proved that it holds the cluster key, in bytes (header excluded).
pub const HANDSHAKE_LEN_MAX: usize = 1024;
/// Most operations in one request.
pub const OPERATIONS_MAX: usize = 4096;
/// Most guards or actions in one operation.
pub const ACTIONS_MAX: usize = 64;
/// Most numbers that one [`Action::Advance`](crate::op::Action::Advance) moves.
pub const ADVANCE_COUNT_MAX: u8 = 2;
/// Most arena blocks that one data reference may name.
pub const BLOCKS_MAX: usize = RECORD_LEN_MAX / BLOCK_LEN + 1;
/// Unit of arena allocation and of bulk references, in bytes.
pub const BLOCK_LEN: usize = 64 << 10;
/// Most requests that a client may have in flight on one connection.
pub const IN_FLIGHT_MAX: usize = 1024;
/// Most mutations of one client session whose results a partition remembers.
pub const SESSION_WINDOW: usize = 4096;
/// Longest list of the holders of one record that travels, in bytes: 16 for each.
pub const HOLDERS_LEN_MAX: usize = 64 << 10;
/// Most entries that one listing returns.
pub const LIST_ENTRIES_MAX: u32 = 4096;
/// Most records that one message of a resync lists or carries.
pub const RESYNC_RECORDS_MAX: usize = 4096;
/// Longest copy of what a partition keeps beside its records (sessions, open references), in bytes.
pub const PARTITION_STATE_LEN_MAX: usize = 320 << 20;
