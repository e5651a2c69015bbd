//! The node's answers about itself: its status, and all metrics. What shards do not count is looked
//! up when somebody asks.

use samite_metrics::MetricSample;
use samite_metrics::registry::{self, WaitQueue};
use samite_types::{Clock, SystemClock};
use samite_wire::status::{NodeMetrics, NodeStatus, ScrubStatus};

use crate::inbox::ShardInbox;
use crate::mutex::lock;
use crate::shared::NodeShared;

impl NodeShared {
    /// How the node is.
    pub(crate) fn status(&self) -> NodeStatus {
        let (usage, metrics) = (self.usage(), &self.metrics);
        NodeStatus {
            incarnation: self.incarnation,
            pid: std::process::id(),
            uptime_s: self.started.elapsed().as_secs(),
            capacity_bytes: usage.capacity,
            used_bytes: usage.used,
            populated_bytes: usage.populated,
            records: metrics.gauge(registry::RECORDS),
            connections: metrics.gauge(registry::CONNECTIONS),
            abandoned: metrics.gauge(registry::LEAKED_ORPHANS),
            log_bytes: metrics.gauge(registry::LOG_BYTES),
            checkpoint_bytes: metrics.gauge(registry::CHECKPOINT_BYTES),
            requests: metrics.counter(registry::REQUESTS_RECEIVED),
            operations: metrics.counter(registry::OPERATIONS),
            peer_frames: metrics.counter(registry::PEER_FRAMES),
            resyncs: metrics.gauge(registry::RESYNCS),
            resyncs_without_room: metrics.gauge(registry::RESYNCS_WITHOUT_ROOM),
            resync_bytes: metrics.counter(registry::RESYNC_BYTES),
            scrub: self.scrub_status(),
            leader: self.membership.leader().map(|leader| leader.node),
            targets: self.more_usages(),
            workers: self.workers.statuses(),
        }
    }

    fn scrub_status(&self) -> ScrubStatus {
        let metrics = &self.metrics;
        ScrubStatus {
            done: metrics.gauge(registry::SCRUB_DONE),
            walks: metrics.counter(registry::SCRUB_WALKS),
            records: metrics.counter(registry::SCRUB_RECORDS),
            bytes: metrics.counter(registry::SCRUB_BYTES),
            damaged: metrics.counter(registry::SCRUB_DAMAGED),
            repaired: metrics.counter(registry::SCRUB_REPAIRED),
            left: metrics.gauge(registry::SCRUB_LEFT),
            evened: metrics.counter(registry::SCRUB_EVENED),
        }
    }

    /// All metrics.
    pub(crate) fn node_metrics(&self) -> NodeMetrics {
        NodeMetrics { address: self.metrics_address.clone(), samples: self.metric_samples() }
    }

    /// The series of all metrics, as they are now.
    pub(crate) fn metric_samples(&self) -> Vec<MetricSample> {
        let (usage, node) = (self.usage(), self.metrics.node());
        node.set(registry::UPTIME, self.started.elapsed().as_micros() as u64);
        node.set(registry::MAP_EPOCH, self.epoch().get());
        node.set(registry::CLIENTS, lock(&self.presence).count() as u64);
        node.set(registry::LEADS, u64::from(self.membership.leads()));
        node.set(registry::MEMORY_CAPACITY, usage.capacity);
        node.set(registry::MEMORY_USED, usage.used);
        node.set(registry::MEMORY_POPULATED, usage.populated);
        let waiting: usize = self.inboxes.iter().map(ShardInbox::count).sum();
        node.set_at(registry::QUEUE_LENGTH, WaitQueue::Inbox.index(), waiting as u64);
        let waiting = self.worker_waiting() as u64;
        node.set_at(registry::QUEUE_LENGTH, WaitQueue::Worker.index(), waiting);
        let (_, injected) = self.faults.table();
        node.set_total(registry::FAULTS_INJECTED, 0, injected.frames);
        node.set_total(registry::FAULTS_INJECTED, 1, injected.writes);
        self.metrics.snapshot(SystemClock.monotonic().as_micros() as u64)
    }
}
