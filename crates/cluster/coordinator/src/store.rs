//! The state stores of a coordinator, and which of its instances may decide.
//!
//! In memory and in a file there is one instance, and it leads. In etcd there may be several: one
//! of them holds the leader key, which it renews by compare-and-swap ([`election`]), and every
//! state that it saves is written in a transaction that compares that key. So a leader that was
//! taken over from, and does not know it yet, can save nothing; and a change that was not saved was
//! not decided.

pub mod election;
mod etcd;
mod file;
mod http;
mod local;
mod parts;
mod replicated;
mod tls;

use std::time::Duration;

use samite_types::{NodeId, Result};

pub use election::InstanceRole;
pub use etcd::{EtcdConfig, EtcdStore};
pub use file::FileStore;
pub use http::check_etcd;
pub use local::{ETCD_PROGRAM, LocalMember};
pub use replicated::{ReplicatedStore, VoterConfig, VoterMailbox, VoterTransport};
pub use tls::EtcdTls;

/// Keeps one coordinator's state. Calls may take time, up to about a second.
pub trait StateStore: Send {
    /// Does the work that is due for the leadership, and returns the state of it. To be called
    /// every few tens of milliseconds.
    fn campaign(&mut self) -> InstanceRole;

    /// The state as last saved by whichever instance; `None` before the first.
    ///
    /// # Errors
    /// It cannot be read now.
    fn load(&mut self) -> Result<Option<Vec<u8>>>;

    /// Takes the place of the state that was loaded or saved before.
    ///
    /// # Errors
    /// It may or may not have been saved: the caller has to forget its decisions, and load anew.
    fn save(&mut self, state: &[u8]) -> Result<()>;

    /// Takes the place of the leader, which reaches the store and not the nodes
    /// ([`crate::LeaderReachability`]). Tried once; the result shows in [`Self::campaign`].
    fn challenge(&mut self) {}

    /// These nodes belong to the cluster: state that is kept in others, which are gone for good,
    /// gets another place.
    fn set_nodes(&mut self, _nodes: &[NodeId]) {}

    /// Lets another instance lead at once. For an orderly end.
    fn resign(&mut self) {}
}

/// Keeps the state as long as the process lives.
#[derive(Debug, Default)]
pub struct MemoryStateStore {
    state: Option<Vec<u8>>,
}

impl StateStore for MemoryStateStore {
    fn campaign(&mut self) -> InstanceRole {
        InstanceRole::Leads { until: Duration::MAX }
    }

    fn load(&mut self) -> Result<Option<Vec<u8>>> {
        Ok(self.state.clone())
    }

    fn save(&mut self, state: &[u8]) -> Result<()> {
        self.state = Some(state.to_vec());
        Ok(())
    }
}
