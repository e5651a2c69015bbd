//! The wire format: frames, operations, outcomes, control messages, limits. No I/O.
//!
//! A **frame** is a 32-byte [`frame::FrameHeader`], a *body* and a *payload*. The body says what is
//! meant; the payload is nothing but the data bytes the body refers to, in the order in which it
//! refers to them, so that a sender can gather it from wherever it lies and a receiver can scatter
//! it to where it belongs. All numbers are little-endian.
//!
//! Two kinds of body: the data plane ([`op`]: fixed layouts, decoded without allocation) and the
//! control plane ([`control`]: `postcard`, clarity before speed). Both refuse anything that is over a
//! limit of [`limits`] before memory is taken for it.

pub mod access;
pub mod checksum;
mod codec;
pub mod control;
pub mod delta;
pub mod events;
pub mod frame;
pub mod freeze;
pub mod hello;
pub mod limits;
pub mod lock;
pub mod membership;
pub mod op;
pub mod peer;
pub mod status;
pub mod ticket;
pub mod worker;

pub use codec::{FieldDecoder, WireError};
