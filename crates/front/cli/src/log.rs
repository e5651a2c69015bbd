//! The log of this process, where it serves: destination, level, and the wish to start a new file.

use std::sync::Arc;

use samite_launch::process_log::{LOG_LEN_MAX, LogDestination, ProcessLog};
use samite_node::NodeLogs;
use samite_types::{Error, ErrorKind, Result};
use samite_wire::events::{LOG_PART_LEN_MAX, LogPart};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Registry, reload};

use crate::failure::CommandFailure;

/// Names what is logged, as `samite logs --level` does.
const ENV_LOG: &str = "SAMITE_LOG";

/// The log of this process. Clones are the same.
#[derive(Clone, Debug)]
pub struct LogControl {
    log: Arc<ProcessLog>,
    filter: reload::Handle<EnvFilter, Registry>,
}

impl LogControl {
    /// Begins to log, once in a process: what the environment names, or `usual`. `tells`: on stderr,
    /// too.
    pub fn begin(
        destination: LogDestination,
        usual: &str,
        tells: bool,
    ) -> std::result::Result<Self, CommandFailure> {
        let log = Arc::new(ProcessLog::open(destination, LOG_LEN_MAX, tells)?);
        let filter = EnvFilter::try_from_env(ENV_LOG).unwrap_or_else(|_| EnvFilter::new(usual));
        let (filter, handle) = reload::Layer::new(filter);
        let lines = tracing_subscriber::fmt::layer().with_writer(Arc::clone(&log)).with_ansi(false);
        tracing_subscriber::registry().with(filter).with(lines).init();
        Ok(Self { log, filter: handle })
    }

    /// Goes on in the file that has the log's name now.
    pub fn reopen(&self) {
        match self.log.reopen() {
            Ok(()) => tracing::info!("the log goes on here"),
            Err(error) => tracing::warn!(%error, "the log goes on where it was"),
        }
    }
}

impl NodeLogs for LogControl {
    fn set_filter(&self, filter: &str) -> Result<()> {
        let invalid = |error: &dyn std::fmt::Display| {
            Error::new(ErrorKind::Invalid, format!("log level {filter:?}: {error}"))
        };
        let parsed = EnvFilter::builder().parse(filter).map_err(|error| invalid(&error))?;
        self.filter.reload(parsed).map_err(|error| invalid(&error))?;
        tracing::info!(filter, "logs this from now on");
        Ok(())
    }

    fn read(&self, from: Option<u64>) -> Result<LogPart> {
        self.log.read(from, LOG_PART_LEN_MAX)
    }
}
