//! A node: one target, its shard threads, and its part in the cluster.
//!
//! [`run`] serves until it is told to stop. Each shard thread has its own event loop and owns the partitions whose number modulo the
//! shard count is its own: it receives, applies and answers without handing anything to another thread. What a request holds for
//! partitions of another shard goes there over a bounded queue, and one reply carries the outcomes of all.

mod access;
mod alive;
mod budget;
mod config;
mod control;
mod copies;
mod durable;
mod faults;
mod grants;
mod heir;
mod held;
mod inbox;
mod join;
mod locks;
mod membership;
mod mirror;
mod news;
mod outbox;
mod pace;
mod parked;
mod partitions;
mod peers;
mod post;
mod posts;
mod presence;
mod reply;
mod revocations;
mod run;
mod scrub;
mod shard;
mod shared;
mod stop;
mod worker;

pub use config::{
    CoordinatorConfig, Event, FlashConfig, InstanceConfig, NodeConfig, SCRUB_INTERVAL, StoreConfig,
    TlsConfig,
};
pub use run::run;
pub use samite_coordinator::Timing;
pub use samite_transport::{Authorities, TlsFiles};

/// etcd, for coordinators that keep their state there: on this machine, or wherever it is.
pub mod etcd {
    pub use samite_coordinator::store::{ETCD_PROGRAM, EtcdTls, LocalMember, check_etcd};
}
pub use stop::Stop;
