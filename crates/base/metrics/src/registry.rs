//! The metrics of a node, one line each. docs/metrics.md is made of them (`cargo xtask metrics`).
//!
//! A new metric is a line here and the line that counts: `add`, `set` or `observe` of
//! [`MetricValues`](crate::MetricValues).

use crate::definition::MergeRule::{Age, Least, Sum};
use crate::definition::MetricLabels::{self, Dataset, Fixed, User};
use crate::definition::MetricStability::{Experimental, Stable};
use crate::definition::MetricUnit::{Bytes, Count, Seconds};
use crate::definition::{CounterMetric, GaugeMetric, HistogramMetric, MetricDefinition};

/// Kinds of requests; the first ones, up to [`RequestKind::TIMED`], have histograms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// Reads records, and changes nothing.
    Read,
    /// Lists records, and changes nothing.
    List,
    /// Changes records.
    Write,
    /// Takes, releases or tests a file lock.
    Lock,
    /// Any other request of the control plane.
    Control,
}

impl RequestKind {
    /// Kinds that have histograms, counted from the first.
    pub const TIMED: usize = 3;

    /// Position of its label value.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// Where requests wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitQueue {
    /// For delegations to end.
    Delegation,
    /// Until members and the log have what the reply saw.
    Commit,
    /// For other shards of the node.
    Shards,
    /// In the inboxes of shards: messages, some of which are requests.
    Inbox,
    /// Until what they read was read ahead from a target.
    Reads,
    /// For the flash: entries of the log.
    Log,
    /// For the worker: control requests that other nodes have to take part in.
    Worker,
}

impl WaitQueue {
    /// Position of its label value.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}

const ALONE: MetricLabels = MetricLabels::None;
const REQUEST_KINDS: MetricLabels = Fixed("kind", &["read", "list", "write", "lock", "control"]);
const TIMED_KINDS: MetricLabels = Fixed("kind", &["read", "list", "write"]);
const WAIT_QUEUES: MetricLabels =
    Fixed("queue", &["delegation", "commit", "shards", "inbox", "reads", "log", "worker"]);
/// How the bytes of a connection travel.
pub const LINK_TRANSPORTS: [&str; 4] = ["shm", "unix", "tcp", "tls"];
const TRANSPORTS: MetricLabels = Fixed("transport", &LINK_TRANSPORTS);
const FAULT_KINDS: MetricLabels = Fixed("kind", &["frame", "write"]);

macro_rules! registry {
    ($($kind:ident $id:ident: $name:literal, $unit:ident, $merge:ident, $stability:ident,
       $labels:ident, $help:literal;)*) => {
        #[allow(non_camel_case_types, clippy::upper_case_acronyms, reason = "numbers the constants")]
        enum MetricPosition { $($id),* }

        $(#[doc = concat!("`", $name, "`: ", $help)]
        pub const $id: $kind = $kind(MetricPosition::$id as usize);)*

        /// All metrics, in the order in which they are told.
        pub const METRICS: &[MetricDefinition] = &[$(MetricDefinition {
            name: $name,
            kind: $kind::KIND,
            unit: $unit,
            merge: $merge,
            stability: $stability,
            labels: $labels,
            help: $help,
        }),*];
    };
}

#[rustfmt::skip]
registry! {
    GaugeMetric UPTIME: "samite_uptime_seconds", Seconds, Sum, Stable, ALONE, "Time since the process started.";
    GaugeMetric MAP_EPOCH: "samite_map_epoch", Count, Sum, Stable, ALONE, "Epoch of the cluster map that the node has.";
    GaugeMetric LEADS: "samite_coordinator_leads", Count, Sum, Stable, ALONE, "1 while the coordinator instance in this node leads, else 0.";
    GaugeMetric CLOCK_SKEW: "samite_clock_skew_seconds", Seconds, Sum, Stable, ALONE, "Largest difference found between the wall clock of this node and that of a node with a coordinator, ahead or behind.";
    GaugeMetric CONNECTIONS: "samite_connections", Count, Sum, Stable, ALONE, "Connections open.";
    GaugeMetric CLIENTS: "samite_clients", Count, Sum, Stable, ALONE, "Processes that have connections open and are no nodes; one that asks for this counts, too.";
    GaugeMetric CLIENT_LINKS: "samite_client_links", Count, Sum, Stable, TRANSPORTS, "Connections open that clients have made, by how bytes travel.";
    GaugeMetric NODE_LINKS: "samite_node_links", Count, Sum, Stable, TRANSPORTS, "Connections open that other nodes have made, by how bytes travel.";
    CounterMetric REQUESTS_RECEIVED: "samite_requests_received_total", Count, Sum, Stable, ALONE, "Requests with operations that came, whatever became of them. Look-ups in shared memory are none.";
    CounterMetric REQUESTS: "samite_requests_total", Count, Sum, Stable, REQUEST_KINDS, "Requests that were carried out or passed on, by kind; a request that waits counts once it goes on.";
    CounterMetric REQUESTS_REFUSED: "samite_requests_refused_total", Count, Sum, Stable, ALONE, "Requests with operations that were refused as a whole: not permitted, an old map, too large, no room.";
    CounterMetric SPACE_REFUSALS: "samite_operations_without_space_total", Count, Sum, Stable, ALONE, "Operations that were refused for want of space on a target.";
    CounterMetric OPERATIONS: "samite_operations_total", Count, Sum, Stable, ALONE, "Operations carried out; a request carries many.";
    CounterMetric EARLY_COMPLETIONS: "samite_early_completions_total", Count, Sum, Experimental, ALONE, "Operations that clients on this host completed early, without a request.";
    HistogramMetric REQUEST_TIME: "samite_request_duration_seconds", Seconds, Sum, Stable, TIMED_KINDS, "Time from a decoded request to its reply, in the shard. A request that waits is timed itself; of those answered at once one in 64 of a kind is, and stands for all since the last one, so the count may lag by 63.";
    CounterMetric READ_BYTES: "samite_read_bytes_total", Bytes, Sum, Stable, ALONE, "Bytes of values in replies, by reference into shared memory or not.";
    CounterMetric WRITTEN_BYTES: "samite_written_bytes_total", Bytes, Sum, Stable, ALONE, "Bytes of values in requests, by reference into shared memory or not.";
    CounterMetric USER_REQUESTS: "samite_user_requests_total", Count, Sum, Stable, User, "Requests with operations carried out, by user.";
    CounterMetric USER_READ_BYTES: "samite_user_read_bytes_total", Bytes, Sum, Stable, User, "Bytes of values in replies, by user.";
    CounterMetric USER_WRITTEN_BYTES: "samite_user_written_bytes_total", Bytes, Sum, Stable, User, "Bytes of values in requests, by user.";
    CounterMetric DATASET_REQUESTS: "samite_dataset_requests_total", Count, Sum, Stable, Dataset, "Requests with operations carried out, by dataset.";
    CounterMetric DATASET_READ_BYTES: "samite_dataset_read_bytes_total", Bytes, Sum, Stable, Dataset, "Bytes of values in replies, by dataset.";
    CounterMetric DATASET_WRITTEN_BYTES: "samite_dataset_written_bytes_total", Bytes, Sum, Stable, Dataset, "Bytes of values in requests, by dataset.";
    GaugeMetric QUEUE_LENGTH: "samite_queue_length", Count, Sum, Stable, WAIT_QUEUES, "What waits: requests for delegations to end, replies for their commit, requests for other shards, messages in the inboxes of shards, requests for reads from a target, entries of the log for the flash, control requests for the worker.";
    GaugeMetric OLDEST_WAITING: "samite_oldest_waiting_request_seconds", Seconds, Age, Stable, ALONE, "How long the oldest request has waited, of those that wait for a delegation, a commit or another shard; 0: none waits.";
    GaugeMetric MEMORY_CAPACITY: "samite_memory_capacity_bytes", Bytes, Sum, Stable, ALONE, "Bytes that the target can hold.";
    GaugeMetric MEMORY_USED: "samite_memory_used_bytes", Bytes, Sum, Stable, ALONE, "Bytes in use, metadata included.";
    GaugeMetric MEMORY_POPULATED: "samite_memory_populated_bytes", Bytes, Sum, Stable, ALONE, "Bytes of the arena whose pages are in place.";
    GaugeMetric RECORDS: "samite_records", Count, Sum, Stable, ALONE, "Records that the node has.";
    GaugeMetric LEAKED_ORPHANS: "samite_leaked_orphans", Count, Sum, Stable, ALONE, "Records without a name that are open for nobody any more, to be swept.";
    CounterMetric DELEGATION_REQUESTS: "samite_delegation_requests_total", Count, Sum, Stable, ALONE, "Requests carried out that asked for delegations.";
    CounterMetric DELEGATION_RECALLS: "samite_delegation_recalls_total", Count, Sum, Stable, ALONE, "Delegations that were in the way of a change and were recalled.";
    CounterMetric DELEGATION_RETURNS: "samite_delegation_returns_total", Count, Sum, Stable, ALONE, "Recalled delegations that were given back.";
    CounterMetric DELEGATION_WAITS: "samite_delegation_waits_total", Count, Sum, Stable, ALONE, "Times that a request had to wait for delegations.";
    CounterMetric PEER_FRAMES: "samite_peer_frames_total", Count, Sum, Stable, ALONE, "Frames that came from other nodes.";
    CounterMetric TERMS_BEGUN: "samite_terms_begun_total", Count, Sum, Stable, ALONE, "Times that this node became the primary of a partition; grows at a start, and by failovers.";
    CounterMetric TERMS_LOST: "samite_terms_lost_total", Count, Sum, Stable, ALONE, "Times that this node stopped being the primary of a partition: it was deposed, or gave the partition away.";
    CounterMetric MEMBERS_MISSED: "samite_members_missed_total", Count, Sum, Stable, ALONE, "Times that a member was reported because it had missed a change.";
    GaugeMetric RESYNCS: "samite_resyncs", Count, Sum, Stable, ALONE, "Members of groups that primaries of this node bring up to date now.";
    GaugeMetric RESYNCS_WITHOUT_ROOM: "samite_resyncs_without_room", Count, Sum, Stable, ALONE, "Those of them that wait for room.";
    CounterMetric RESYNC_BYTES: "samite_resync_bytes_total", Bytes, Sum, Stable, ALONE, "Bytes that primaries of this node sent for resyncs.";
    GaugeMetric LOG_BYTES: "samite_log_bytes", Bytes, Sum, Stable, ALONE, "Bytes of the logs of durable datasets.";
    GaugeMetric CHECKPOINT_BYTES: "samite_checkpoint_bytes", Bytes, Sum, Stable, ALONE, "Bytes of their checkpoints.";
    CounterMetric TARGET_COMMITS: "samite_target_commits_total", Count, Sum, Stable, ALONE, "Commits of targets that remember; one commits the changes of many partitions.";
    CounterMetric TARGET_BATCHES: "samite_target_batches_total", Count, Sum, Stable, ALONE, "Batches in them: the changes of one partition since its last one.";
    CounterMetric TARGET_READS: "samite_target_reads_ahead_total", Count, Sum, Stable, ALONE, "Requests that waited until what they read was read ahead from a target that remembers.";
    GaugeMetric SCRUB_DONE: "samite_scrub_request_done", Count, Least, Experimental, ALONE, "Number of the last requested scrub that is done.";
    CounterMetric SCRUB_WALKS: "samite_scrub_walks_total", Count, Least, Stable, ALONE, "Times that all records were looked at for damage.";
    CounterMetric SCRUB_RECORDS: "samite_scrub_records_total", Count, Sum, Stable, ALONE, "Records that were looked at.";
    CounterMetric SCRUB_BYTES: "samite_scrub_bytes_total", Bytes, Sum, Stable, ALONE, "Bytes of their values.";
    CounterMetric SCRUB_DAMAGED: "samite_scrub_damaged_total", Count, Sum, Stable, ALONE, "Records that were found damaged.";
    CounterMetric SCRUB_REPAIRED: "samite_scrub_repaired_total", Count, Sum, Stable, ALONE, "Of these, those that are right again.";
    GaugeMetric SCRUB_LEFT: "samite_damaged_records", Count, Sum, Stable, ALONE, "Records that are damaged now, as far as that is known.";
    CounterMetric SCRUB_EVENED: "samite_scrub_evened_total", Count, Sum, Stable, ALONE, "Ranges of records that members held differently and that were sent anew.";
    CounterMetric FAULTS_INJECTED: "samite_faults_injected_total", Count, Sum, Stable, FAULT_KINDS, "Faults that were injected since the table of faults was set; 0 again when it is set anew.";
    CounterMetric SCRAPES: "samite_scrapes_total", Count, Sum, Experimental, ALONE, "Scrapes of these metrics that were answered.";
}

/// Where the numbers of each metric begin, and their whole number at the end.
pub(crate) const OFFSETS: [usize; METRICS.len() + 1] = {
    let mut offsets = [0; METRICS.len() + 1];
    let mut index = 0;
    while index < METRICS.len() {
        let metric = &METRICS[index];
        offsets[index + 1] = offsets[index] + metric.labels.series() * metric.numbers();
        index += 1;
    }
    offsets
};

/// The definition of that name.
#[must_use]
pub fn by_name(name: &str) -> Option<&'static MetricDefinition> {
    METRICS.iter().find(|metric| metric.name == name)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::definition::{MetricKind, MetricUnit, SERIES_MAX};

    #[test]
    fn names_are_unique_and_say_unit_and_kind() {
        let mut names = HashSet::new();
        for metric in METRICS {
            let name = metric.name;
            assert!(names.insert(name), "{name}");
            assert!(name.starts_with("samite_"), "{name}");
            assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{name}");
            let is_total = name.ends_with("_total");
            assert_eq!(is_total, metric.kind == MetricKind::Counter, "{name}");
            let stem = name.trim_end_matches("_total");
            assert_eq!(stem.ends_with("_bytes"), metric.unit == MetricUnit::Bytes, "{name}");
            assert_eq!(stem.ends_with("_seconds"), metric.unit == MetricUnit::Seconds, "{name}");
            assert!(metric.help.ends_with('.') && metric.help.is_ascii(), "{name}");
        }
    }

    #[test]
    fn a_scrape_has_a_thousand_series_at_most() {
        let most: usize = METRICS.iter().map(MetricDefinition::lines).sum();
        assert!(most <= SERIES_MAX, "{most}");
    }

    #[test]
    fn positions_of_label_values_are_those_of_the_enums() {
        let Fixed(_, kinds) = REQUEST_KINDS else { panic!("of fixed values") };
        let Fixed(_, timed) = TIMED_KINDS else { panic!("of fixed values") };
        let Fixed(_, queues) = WAIT_QUEUES else { panic!("of fixed values") };
        assert_eq!(kinds[RequestKind::Control.index()], "control");
        assert_eq!((kinds.len(), &kinds[..RequestKind::TIMED]), (5, timed));
        assert_eq!((queues[WaitQueue::Inbox.index()], queues.len()), ("inbox", 7));
    }
}
