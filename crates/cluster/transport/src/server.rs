//! The node's side: one [`EventLoop`] per shard, which calls the [`NodeService`].

mod accept;
mod conn_id;
mod connection;
mod delay_queue;
mod dial;
mod dispatch;
mod event_loop;
mod injected_fault;
mod layer;
mod listener;
mod options;
mod output;
mod ration;
mod refusal_log;
mod replies;
mod rings;
mod service;
mod source;
mod ticket_lives;
mod waker;
mod watch;

pub use conn_id::ConnId;
pub use dial::NodeDialler;
pub use event_loop::EventLoop;
pub use listener::Listener;
pub use options::LoopOptions;
pub use output::{OutPiece, PIN_LEN_MIN, Pinned};
pub use refusal_log::RefusalLog;
pub use replies::ReplySink;
pub use service::{ConnectionPeer, NodeService, SharedArena, SharedMemoryWork};
pub use ticket_lives::TicketLives;
pub use waker::LoopWaker;
