//! Output of commands: bytes as they are, names that are safe for a terminal, sizes and times for
//! people.

use std::io::{self, IsTerminal, Write};

use crate::failure::CommandFailure;

/// Exit code of a command whose reader went away, as the shell reports a death by SIGPIPE.
const BROKEN_PIPE_CODE: i32 = 128 + 13;

/// Buffered standard output of one command.
pub struct CommandOutput {
    out: io::BufWriter<io::StdoutLock<'static>>,
    is_terminal: bool,
}

impl CommandOutput {
    /// Takes standard output for the rest of the command.
    pub fn new() -> Self {
        let out = io::stdout().lock();
        let is_terminal = out.is_terminal();
        Self { out: io::BufWriter::with_capacity(64 << 10, out), is_terminal }
    }

    /// Writes bytes as they are.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<(), CommandFailure> {
        self.out.write_all(bytes).or_else(on_write_error)
    }

    /// Writes a line.
    pub fn line(&mut self, line: impl AsRef<str>) -> Result<(), CommandFailure> {
        self.bytes(line.as_ref().as_bytes())?;
        self.bytes(b"\n")
    }

    /// Writes a name: as it is into a file or pipe, with control characters and invalid UTF-8 escaped on a terminal.
    pub fn name(&mut self, name: &[u8]) -> Result<(), CommandFailure> {
        if self.is_terminal { self.bytes(escaped(name).as_bytes()) } else { self.bytes(name) }
    }

    /// Writes one JSON value and a newline.
    pub fn json(&mut self, value: &impl serde::Serialize) -> Result<(), CommandFailure> {
        let text = serde_json::to_string(value)
            .map_err(|error| CommandFailure::failed(format!("write JSON: {error}")))?;
        self.line(text)
    }

    /// Sends what is buffered on its way.
    pub fn finish(mut self) -> Result<(), CommandFailure> {
        self.out.flush().or_else(on_write_error)
    }
}

fn on_write_error(error: io::Error) -> Result<(), CommandFailure> {
    if error.kind() == io::ErrorKind::BrokenPipe {
        // The reader has seen enough (`samite ls | head`): nothing to tell, and nobody to tell it to.
        std::process::exit(BROKEN_PIPE_CODE);
    }
    Err(CommandFailure::failed(format!("write to standard output: {error}")))
}

/// Writes one `samite: …` line to stderr. A closed stderr is no reason to fail.
pub fn complain(message: impl AsRef<str>) {
    let _ = writeln!(io::stderr().lock(), "samite: {}", message.as_ref());
}

/// `name` with control characters, backslashes and invalid UTF-8 as `\n`, `\\`, `\xff`.
pub fn escaped(name: &[u8]) -> String {
    let mut out = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\t' => out.push_str("\\t"),
                c if c.is_control() => out.extend(c.escape_unicode()),
                c => out.push(c),
            }
        }
        for byte in chunk.invalid() {
            out.push_str(&format!("\\x{byte:02x}"));
        }
    }
    out
}

/// A mode as `ls -l` shows it: `drwxr-xr-x`.
pub fn mode_text(mode: u32) -> String {
    let kind = match mode & 0o170_000 {
        0o040_000 => 'd',
        0o120_000 => 'l',
        0o010_000 => 'p',
        0o140_000 => 's',
        0o020_000 => 'c',
        0o060_000 => 'b',
        _ => '-',
    };
    let mut text = String::from(kind);
    for (shift, special, set, unset) in
        [(6, 0o4000, 's', 'S'), (3, 0o2000, 's', 'S'), (0, 0o1000, 't', 'T')]
    {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (bits & 1 != 0, mode & special != 0) {
            (true, true) => set,
            (false, true) => unset,
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_for_terminals() {
        assert_eq!(escaped(b"a\nb\\\xff\x1b"), "a\\nb\\\\\\xff\\u{1b}");
        assert_eq!(escaped("gr\u{fc}n".as_bytes()), "gr\u{fc}n");
    }

    #[test]
    fn modes_read_as_expected() {
        assert_eq!(mode_text(0o100_644), "-rw-r--r--");
        assert_eq!(mode_text(0o041_777), "drwxrwxrwt");
        assert_eq!(mode_text(0o104_655), "-rwSr-xr-x");
    }
}
