//! Newtype ids.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($repr:ty), $prefix:literal) => {
        id!($(#[$doc])* $name($repr));

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
    ($(#[$doc:meta])* $name:ident($repr:ty)) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub $repr);

        impl $name {
            /// The bare number, for the wire and for arithmetic.
            #[must_use]
            pub const fn get(self) -> $repr {
                self.0
            }
        }

        impl From<$repr> for $name {
            fn from(raw: $repr) -> Self {
                Self(raw)
            }
        }
    };
}

id!(
    /// One running `samite node` process.
    NodeId(u32)
);

impl NodeId {
    /// A process that has a voter of the coordinator and nothing else: the third one of a cluster of two nodes.
    pub const THIRD_VOTER: Self = Self(u32::MAX);
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::THIRD_VOTER => f.write_str("voter"),
            Self(number) => write!(f, "n{number}"),
        }
    }
}

id!(
    /// One place that holds records, served by a node.
    TargetId(u32), "t"
);
id!(
    /// One thread of a node; owns a subset of the node's partitions.
    ShardId(u16), "s"
);
id!(
    /// A hash slice of a dataset; the unit of order, ownership, mirroring and repair.
    PartitionId(u32), "p"
);
id!(
    /// A named, partitioned set of records with one policy.
    DatasetId(u32), "d"
);
id!(
    /// One client session. Random, never reused; the identity behind exactly-once.
    ClientId(u64), "c"
);
id!(
    /// Sequence number of a mutating operation within one client session. Starts at 1; 0 means "not a mutation".
    Seq(u64), "#"
);
id!(
    /// Version number of the cluster map, or of a dataset's names (the name-space generation). Only
    /// grows.
    Epoch(u64), "e"
);
id!(
    /// Version of a record: the partition's operation number at its last change. Never 0 for a record that exists.
    Version(u64), "v"
);
id!(
    /// How many targets hold each record of a dataset; at least 1.
    Redundancy(u8), "x"
);
id!(
    /// Counts the primaries that a mirror group has had. Only grows.
    Term(u32), "k"
);
id!(
    /// Number of an entry in the log of a mirrored partition: counts from 1, and on over terms.
    Position(u64), "@"
);
id!(
    /// Matches a reply to its request on one connection.
    RequestId(u64), "r"
);

impl Version {
    /// Bits of a version that count the changes within a term.
    pub const COUNTER_BITS: u32 = 44;
    /// The last term that a version has room for.
    pub const TERM_MAX: Term = Term((1 << (u64::BITS - Self::COUNTER_BITS)) - 1);

    /// The version before the first that a primary of `term` makes. Primaries of different terms never make the same one.
    #[must_use]
    pub const fn before(term: Term) -> Self {
        let term = if term.0 > Self::TERM_MAX.0 { Self::TERM_MAX.0 } else { term.0 };
        Self((term as u64) << Self::COUNTER_BITS)
    }

    /// The term of the primary that made it.
    #[must_use]
    pub const fn term(self) -> Term {
        Term((self.0 >> Self::COUNTER_BITS) as u32)
    }
}
