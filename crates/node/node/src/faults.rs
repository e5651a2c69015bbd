//! The node's faults: control requests about them, and their log.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use samite_transport::server::ConnectionPeer;
use samite_types::fault::{FaultSwitch, FaultTable};
use samite_types::{Error, ErrorKind, Result};
use samite_wire::control::{self, ControlReply, ControlRequest, FaultRequest, FaultStatus};
use samite_wire::frame::{CheckedHeader, FrameKind};

use crate::access::is_trusted;
use crate::config::NodeConfig;
use crate::mutex::lock;
use crate::shared::NodeShared;

/// Longest log, in bytes; later events are not told.
const LOG_LEN_MAX: u64 = 64 << 20;

/// A log that is made with its first line.
#[derive(Default)]
struct FaultLog {
    file: Option<File>,
    len: u64,
}

impl FaultLog {
    fn write(&mut self, path: &PathBuf, line: &str) -> std::io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                let file = File::options().append(true).create(true).open(path)?;
                self.len = file.metadata()?.len();
                self.file.insert(file)
            }
        };
        let line = format!("{line}\n");
        if self.len < LOG_LEN_MAX {
            self.len += line.len() as u64;
            file.write_all(line.as_bytes())?;
        }
        Ok(())
    }
}

/// The faults of a node that begins so.
pub(crate) fn faults(config: &NodeConfig) -> Arc<FaultSwitch> {
    let sink = config.fault_log.clone().map(|path| {
        let log = Mutex::new(FaultLog::default());
        let write = move |line: &str| {
            if let Err(error) = lock(&log).write(&path, line) {
                tracing::warn!(path = %path.display(), %error, "write the log of faults");
            }
        };
        Box::new(write) as samite_types::fault::Sink
    });
    let faults = FaultSwitch::new(config.node, sink);
    if let Some(table) = &config.faults {
        tracing::warn!(node = %config.node, faults = table.rules.len(), "faults are made on purpose");
        faults.set(Some(table.clone()));
    }
    faults
}

/// Whether a request is about faults.
pub(crate) fn is_about_faults(header: &CheckedHeader, body: &[u8]) -> bool {
    header.kind == FrameKind::Control
        && matches!(control::decode::<ControlRequest>(body), Ok(ControlRequest::Faults(_)))
}

impl NodeShared {
    /// Sets, clears or shows the faults: for the node's own user, and root.
    pub(crate) fn faults(
        &self,
        peer: &ConnectionPeer,
        asked: FaultRequest,
    ) -> Result<ControlReply> {
        if !is_trusted(peer) {
            let words = format!("uid {} may not make faults at {}", peer.identity.uid, self.node);
            return Err(Error::new(ErrorKind::Denied, words));
        }
        match asked {
            FaultRequest::Set(text) => {
                let table: FaultTable = text.parse().map_err(|error| {
                    Error::new(ErrorKind::Invalid, format!("table of faults: {error}"))
                })?;
                tracing::warn!(node = %self.node, faults = table.rules.len(), "faults are made on purpose from now on");
                self.faults.set(Some(table));
            }
            FaultRequest::Clear => {
                tracing::info!(node = %self.node, "no more faults on purpose");
                self.faults.set(None);
            }
            FaultRequest::List => {}
        }
        let (table, injected) = self.faults.table();
        Ok(ControlReply::Faults(FaultStatus {
            table: table.map(|table| table.to_string()),
            frames: injected.frames,
            writes: injected.writes,
        }))
    }
}
