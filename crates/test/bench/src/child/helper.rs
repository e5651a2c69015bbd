//! A child process of this same executable, with a line-wise conversation over its standard input and output.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use samite_types::{Error, ErrorKind, Result};

use super::failed;

/// Time for a child to end by itself once its input has.
const END: Duration = Duration::from_secs(5);

/// The process. Its input is closed when this is dropped, which ends it.
pub struct HelperProcess {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// Its first line: that it is ready, and where.
    greeting: String,
}

impl HelperProcess {
    /// Starts `samite bench-peer ARGS…` and waits until it is ready.
    pub fn start(args: &[&str]) -> Result<Self> {
        let mut command = Command::new(own_executable()?);
        command.arg("bench-peer").args(args);
        Self::start_command(command)
    }

    /// Starts any command that ends up as `samite bench-peer …`.
    pub fn start_command(mut command: Command) -> Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(failed("start a benchmark's other process"))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(ErrorKind::Internal.into());
        };
        let mut helper = Self {
            child,
            input: Some(input),
            output: BufReader::new(output),
            greeting: String::new(),
        };
        helper.greeting = helper.hear()?;
        Ok(helper)
    }

    /// Its line when it was ready.
    pub fn greeting(&self) -> &str {
        &self.greeting
    }

    /// Sends one line.
    pub fn tell(&mut self, line: &str) -> Result<()> {
        let input = self.input.as_mut().ok_or(ErrorKind::Internal)?;
        writeln!(input, "{line}").map_err(failed("tell a benchmark's other process"))
    }

    /// Waits for one line.
    pub fn hear(&mut self) -> Result<String> {
        let mut line = String::new();
        let len =
            self.output.read_line(&mut line).map_err(failed("hear a benchmark's other process"))?;
        if len == 0 {
            return Err(Error::new(
                ErrorKind::Io,
                "a benchmark's other process ended early; its error is above",
            ));
        }
        Ok(line.trim_end().to_owned())
    }
}

impl Drop for HelperProcess {
    fn drop(&mut self) {
        drop(self.input.take());
        let until = Instant::now() + END;
        while Instant::now() < until {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Path of the running executable.
pub fn own_executable() -> Result<std::path::PathBuf> {
    std::env::current_exe().map_err(failed("find the path of this executable"))
}
