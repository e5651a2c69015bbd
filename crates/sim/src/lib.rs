//! The deterministic simulator: the real decisions of partition, mirroring, coordinator and client, on a network, on clocks and on disks
//! that a seed decides.
pub mod audit;
pub mod check;
pub mod client;
pub mod coordinator;
pub mod decider;
pub mod history;
pub mod keeper;
pub mod losses;
pub mod message;
pub mod model;
pub mod net;
pub mod node;
pub mod op;
pub mod operator;
pub mod process;
pub mod reply;
pub mod rng;
pub mod rules;
pub mod run;
pub mod scale;
pub mod scenario;
pub mod shrink;
pub mod store;
pub mod trace;
pub mod workload;
pub mod world;
