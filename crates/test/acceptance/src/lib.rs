//! Acceptance tests: whether programs can rely on the promises of `SEMANTICS.md`.
//!
//! The same calls ([`call`]) go to the store over any of its access paths ([`access_path`]): the
//! library, the preloaded library, a mount. [`claims`] are the statements of `SEMANTICS.md`, each
//! with its test. [`stress`] makes random calls from many processes over several access paths at
//! once and compares everything with a model. [`fuzz`] sends garbage to a node while honest clients
//! work. [`chaos`] kills and cuts off nodes of mirrored clusters; [`whole`] waits until they have
//! recovered.

pub mod access_path;
pub mod call;
pub mod chaos;
pub mod claims;
pub mod fuzz;
pub mod rng;
pub mod stage;
pub mod stress;
pub mod timeline;
pub mod whole;
