//! Counts of messages that a client has sent and received.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Live counters of one client.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)*
        }

        /// Counters of one client at one time. All are totals since the client was made.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Stats {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            pub(crate) fn read(&self) -> Stats {
                Stats { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }

        impl std::ops::Sub for Stats {
            type Output = Self;

            /// The increase between two readings.
            fn sub(self, earlier: Self) -> Self {
                Self { $($name: self.$name - earlier.$name,)* }
            }
        }
    };
}

counters! {
    /// Data-plane requests sent (messages), repetitions included.
    requests,
    /// Operations in them.
    operations,
    /// Changes that were completed early, in a submission queue of a node of this host
    /// ([`Dataset::submit_change`](crate::Dataset::submit_change)).
    early_completions,
    /// Control-plane requests sent.
    controls,
    /// Requests that were sent again after a broken connection, a stale map or a busy node.
    retries,
    /// Connections made.
    connects,
    /// Bytes of values sent, whichever way.
    sent_bytes,
    /// Bytes of values received, whichever way.
    received_bytes,
}

pub(crate) fn count(counter: &AtomicU64, by: u64) {
    if by > 0 {
        counter.fetch_add(by, Ordering::Relaxed);
    }
}
