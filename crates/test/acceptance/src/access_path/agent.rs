//! An access path in another process: calls go to it and answers come back over its standard input
//! and output.

use std::io::{self, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::access_path::AccessPath;
use crate::call::{CallAnswer, FileCall};

/// Longest message, in bytes.
const MESSAGE_MAX: u32 = 128 << 20;

/// An access path whose calls another process makes. The process is killed when this is dropped.
pub struct AgentPath {
    child: Child,
    input: ChildStdin,
    output: ChildStdout,
}

impl AgentPath {
    /// Starts `command`, which must answer as [`serve`] does.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(mut command: Command) -> io::Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(input), Some(output)) => Ok(Self { child, input, output }),
            _ => Err(io::Error::other("a child without pipes")),
        }
    }

    /// Kills the process (`SIGKILL`) and waits for its end.
    pub fn kill(&mut self) {
        // It may have died before.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Id of the process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for AgentPath {
    fn drop(&mut self) {
        self.kill();
    }
}

impl AccessPath for AgentPath {
    fn call(&mut self, call: FileCall) -> CallAnswer {
        let sent = send(&mut self.input, &call);
        match sent.and_then(|()| receive(&mut self.output)) {
            Ok(Some(answer)) => answer,
            lost => panic!("the agent's process is gone ({lost:?}) at {call:?}"),
        }
    }
}

/// Answers calls from standard input until it ends.
///
/// # Errors
/// The peer is gone in the middle of a message.
pub fn serve(access: &mut dyn AccessPath) -> io::Result<()> {
    let (mut input, mut output) = (io::stdin().lock(), io::stdout().lock());
    while let Some(call) = receive(&mut input)? {
        send(&mut output, &access.call(call))?;
    }
    Ok(())
}

/// Writes one message: its length, then its bytes.
///
/// # Errors
/// As of the writer.
pub fn send(output: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let body = postcard::to_allocvec(message).map_err(io::Error::other)?;
    let len = u32::try_from(body.len()).map_err(io::Error::other)?;
    let mut frame = len.to_le_bytes().to_vec();
    frame.extend(body);
    output.write_all(&frame)?;
    output.flush()
}

/// Reads one message; none at the end.
///
/// # Errors
/// As of the reader; a message that is too long or malformed.
pub fn receive<T: DeserializeOwned>(input: &mut impl Read) -> io::Result<Option<T>> {
    let mut len = [0; 4];
    match input.read_exact(&mut len) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        result => result?,
    }
    let len = u32::from_le_bytes(len);
    if len > MESSAGE_MAX {
        return Err(io::Error::other("a message that is too long"));
    }
    let mut body = vec![0; len as usize];
    input.read_exact(&mut body)?;
    postcard::from_bytes(&body).map(Some).map_err(io::Error::other)
}
