//! The client's side: one [`NodeLink`] to one node.

mod channel;
pub(crate) mod connect;
mod control;
mod descriptor;
mod injected_fault;
mod interruptible;
mod link;
mod reader;
mod reply;
mod request;
mod rings;
mod sender;
mod shared;
mod stream;
mod table;

pub use connect::ConnectIdentity;
pub use interruptible::WaitEnd;
pub use link::{NodeLink, RequestTicket};
pub use reply::LinkReply;
pub use request::OutgoingRequest;
pub use stream::STREAM_LEN_MIN;
