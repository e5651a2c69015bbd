//! A node: one target, its shard threads, and its part in the cluster.
//!
//! [`run`] serves until it is told to stop. Each shard thread has its own event loop and owns the
//! partitions whose number modulo the shard count is its own: it receives, applies and answers
//! without handing anything to another thread. The operations of a request on partitions of another
//! shard go there over a bounded queue, and one reply carries the outcomes of all.

mod access;
mod admission;
mod budget;
mod clock;
mod cold_reads;
mod commit_thread;
mod config;
mod control_reply;
mod deferred_replies;
mod delegation_waiters;
mod durable;
mod events;
mod faults;
mod grants;
mod inbox;
mod joined_requests;
mod key_file;
mod link_counts;
mod lock_connections;
mod lock_recovery;
mod locks;
mod map_diff;
mod map_watchers;
mod membership;
mod metrics_address;
mod metrics_server;
mod mutex;
mod node_calls;
mod node_metrics;
mod overseer;
mod partitions;
mod peer_channel;
mod presence;
mod reply;
mod request_account;
mod resync_throttle;
mod revocations;
mod robust_word;
mod run;
mod scrub;
mod shard;
mod shared;
mod stop;
mod submission_policy;
mod submissions;
mod targets;
#[cfg(test)]
mod test_map;
mod threads;
mod tickets;
mod worker;
mod worker_processes;

pub use config::{
    CoordinatorConfig, FlashConfig, InstanceConfig, NodeConfig, NodeEvent, NodeLogs,
    SCRUB_INTERVAL, StoreConfig, TlsConfig,
};
pub use metrics_address::MetricsAddress;
pub use run::run;
pub use samite_coordinator::ClusterTiming;
pub use samite_transport::{ClusterKeys, TlsAuthorities, TlsFiles};

/// etcd, for coordinators that keep their state there: on this machine, or wherever it is.
pub mod etcd {
    pub use samite_coordinator::store::{ETCD_PROGRAM, EtcdTls, LocalMember, check_etcd};
}
pub use stop::StopHandle;
pub use worker_processes::{WorkerConfig, WorkerLimits};
