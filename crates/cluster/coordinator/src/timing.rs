//! How long things may take. One place, and the same for all nodes of a cluster.

use std::time::Duration;

/// Times of membership and mirroring.
///
/// Conditions: a node's lease outlives several heartbeats; an instance that decides stops
/// (`leader_validity`) before another begins (`takeover`), with room for clocks that run
/// differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterTiming {
    /// A node sends a heartbeat this often.
    pub heartbeat: Duration,
    /// A node is called late after this much silence.
    pub late: Duration,
    /// A lease of a node, counted from when it sent the heartbeat.
    pub lease: Duration,
    /// The leader renews its key this often.
    pub leader_renewal: Duration,
    /// A leader that could not renew its key for so long decides nothing any more.
    pub leader_validity: Duration,
    /// A follower that saw the leader's key unchanged for so long takes over.
    pub takeover: Duration,
    /// A follower that hears from most nodes that no leader answers them takes the leader's place after so long.
    pub forlorn: Duration,
    /// Maps are at least so far apart. Longer makes one map of more changes.
    pub gather: Duration,
    /// A member of a group that did not answer for so long is reported.
    pub missed: Duration,
    /// A forward without an answer is sent again after this.
    pub retransmit: Duration,
}

impl ClusterTiming {
    /// The times that are used unless set otherwise: a dead node is replaced within 1.5 s.
    pub const DEFAULT: Self = Self {
        heartbeat: Duration::from_millis(200),
        late: Duration::from_millis(800),
        lease: Duration::from_millis(1200),
        leader_renewal: Duration::from_millis(200),
        leader_validity: Duration::from_millis(800),
        takeover: Duration::from_millis(1000),
        forlorn: Duration::from_millis(2000),
        gather: Duration::from_millis(2),
        missed: Duration::from_millis(600),
        retransmit: Duration::from_millis(100),
    };
}

impl ClusterTiming {
    /// How long the coordinator waits before it takes a lease for ended: the two clocks may run differently by a tenth.
    #[must_use]
    pub const fn lease_end(&self) -> Duration {
        self.lease.saturating_add(Duration::from_nanos((self.lease.as_nanos() / 10) as u64))
    }

    /// How long a leader waits that hears from fewer than half of the nodes, before it takes the silent ones for dead: until then another
    /// instance, which they do reach, has taken its place ([`crate::LeaderReachability`]).
    #[must_use]
    pub const fn doubt(&self) -> Duration {
        let noticed = self.lease_end().saturating_add(self.forlorn);
        noticed.saturating_add(self.takeover).saturating_add(self.heartbeat.saturating_mul(2))
    }
}

impl Default for ClusterTiming {
    fn default() -> Self {
        Self::DEFAULT
    }
}
