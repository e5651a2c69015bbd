//! `samite kv`: keys and values.

use std::ffi::OsString;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use samite_kv::KvView;
use samite_types::{ErrorKind, Version};

use super::dataset::view_dataset;
use super::ls::hex;
use super::room;
use crate::cluster::ClusterTarget;
use crate::failure::{CommandFailure, ExitCode, IoContext};
use crate::output::{CommandOutput, escaped};

/// Dataset that the commands use when none is named.
pub const DATASET: &str = "kv";
/// Keys asked for at a time.
const PAGE_LEN: usize = 4096;

/// Keys and values: get, put, delete, list, compare and swap
///
/// Keys are bytes, 1 to 4096; values have up to 1 GiB. A dataset other than `kv` is made with `samite dataset create` first.
#[derive(clap::Args)]
pub struct KvArgs {
    /// Dataset
    #[arg(long, global = true, value_name = "DATASET", default_value = DATASET)]
    dataset: String,
    #[command(subcommand)]
    command: KvCommand,
}

#[derive(clap::Subcommand)]
enum KvCommand {
    /// Print the value of a key
    #[command(after_help = "Example:\n  samite kv get greeting")]
    Get {
        /// Key
        key: OsString,
        /// Print a JSON object with the version; the value as text, or as hexadecimal bytes when it is not UTF-8
        #[arg(long)]
        json: bool,
    },
    /// Set the value of a key; prints the new version
    #[command(
        after_help = "Examples:\n  samite kv put greeting hello\n  samite kv put blob --file photo.jpg\n  date | samite kv put stamp -"
    )]
    Put {
        /// Key
        key: OsString,
        #[command(flatten)]
        value: ValueArgs,
        /// Only if the key has no value yet (exit code 5 if it has)
        #[arg(long)]
        if_absent: bool,
        /// Begin even if there seems to be too little room for the file
        #[arg(long)]
        force: bool,
    },
    /// Set the value of a key if its version is still VERSION; prints the new version, exits with 5 if it is not
    #[command(after_help = "Example:\n  samite kv cas counter 17 42")]
    Cas {
        /// Key
        key: OsString,
        /// Version that the value must have
        version: u64,
        #[command(flatten)]
        value: ValueArgs,
    },
    /// Append to the value of a key; prints the new length
    #[command(after_help = "Example:\n  samite kv append journal \"$(date)\"")]
    Append {
        /// Key
        key: OsString,
        #[command(flatten)]
        value: ValueArgs,
    },
    /// Remove keys (exit code 4 if one does not exist)
    #[command(visible_alias = "rm", after_help = "Example:\n  samite kv delete greeting")]
    Delete {
        /// Keys
        #[arg(required = true)]
        keys: Vec<OsString>,
    },
    /// List keys in order
    #[command(
        visible_alias = "ls",
        after_help = "Examples:\n  samite kv list user/\n  samite kv list --json --limit 10"
    )]
    List {
        /// Only keys that begin with this
        #[arg(default_value = "")]
        prefix: OsString,
        /// Only keys after this one
        #[arg(long, value_name = "KEY", default_value = "")]
        after: OsString,
        /// Most keys
        #[arg(long, value_name = "N")]
        limit: Option<usize>,
        /// Version and length, too
        #[arg(short)]
        long: bool,
        /// One JSON object a line
        #[arg(long)]
        json: bool,
    },
}

#[derive(clap::Args)]
struct ValueArgs {
    /// Value; `-` or none for standard input
    #[arg(value_name = "VALUE", allow_hyphen_values = true)]
    value: Option<OsString>,
    /// Take the value from a file
    #[arg(long, value_name = "FILE", conflicts_with = "value")]
    file: Option<PathBuf>,
}

impl ValueArgs {
    fn bytes(&self) -> Result<Vec<u8>, CommandFailure> {
        match (&self.value, &self.file) {
            (_, Some(path)) => std::fs::read(path).doing(format_args!("read {}", path.display())),
            (Some(value), None) if value != "-" => Ok(value.as_bytes().to_vec()),
            _ => {
                let mut bytes = Vec::new();
                // One byte more than a value may have, so that too long a one is refused and not cut.
                let most = samite_wire::limits::VALUE_LEN_MAX + 1;
                std::io::stdin()
                    .lock()
                    .take(most)
                    .read_to_end(&mut bytes)
                    .doing("read standard input")?;
                Ok(bytes)
            }
        }
    }
}

/// Does it.
pub fn run(args: &KvArgs, target: &ClusterTarget) -> Result<(), CommandFailure> {
    let client = target.connect()?;
    let dataset = view_dataset(&client, &args.dataset, DATASET)?;
    let kv = KvView::new(dataset.clone());
    let mut out = CommandOutput::new();
    match &args.command {
        KvCommand::Get { key, json } => get(&kv, key.as_bytes(), *json, &mut out)?,
        KvCommand::Put { key, value: given, if_absent, force } => {
            let value = given.bytes()?;
            // The chunks of a large value whose command was killed.
            kv.sweep(key.as_bytes())?;
            if given.file.is_some() && !force {
                room::check_dataset(&client, &dataset, value.len() as u64)?;
            }
            let version = if *if_absent {
                kv.put_if_absent(key.as_bytes(), &value)?
            } else {
                kv.put(key.as_bytes(), &value)?
            };
            out.line(version.get().to_string())?;
        }
        KvCommand::Cas { key, version, value } => {
            let value = value.bytes()?;
            let version = kv.compare_and_swap(key.as_bytes(), Version(*version), &value).map_err(
                |error| match error.kind() {
                    // It does not matter why a condition failed.
                    ErrorKind::NotFound => {
                        CommandFailure::new(ExitCode::Conflict, error.to_string())
                    }
                    _ => error.into(),
                },
            )?;
            out.line(version.get().to_string())?;
        }
        KvCommand::Append { key, value } => {
            let len = kv.append(key.as_bytes(), &value.bytes()?)?;
            out.line(len.to_string())?;
        }
        KvCommand::Delete { keys } => {
            let mut missing = Vec::new();
            for key in keys {
                kv.sweep(key.as_bytes())?;
                if !kv.delete(key.as_bytes())? {
                    missing.push(escaped(key.as_bytes()));
                }
            }
            if !missing.is_empty() {
                let message = format!("delete {}: no such key", missing.join(", "));
                return Err(CommandFailure::new(ExitCode::NotFound, message));
            }
        }
        KvCommand::List { prefix, after, limit, long, json } => {
            let how = ListHow { limit: *limit, long: *long, json: *json };
            list(&kv, prefix.as_bytes(), after.as_bytes(), &how, &mut out)?;
        }
    }
    out.finish()
}

fn get(kv: &KvView, key: &[u8], json: bool, out: &mut CommandOutput) -> Result<(), CommandFailure> {
    let value = kv.get(key)?.ok_or_else(|| {
        CommandFailure::new(ExitCode::NotFound, format!("get {}: no such key", escaped(key)))
    })?;
    if !json {
        return out.bytes(&value.bytes);
    }
    let mut object = serde_json::json!({
        "key": String::from_utf8_lossy(key), "version": value.version, "len": value.bytes.len(),
    });
    match String::from_utf8(value.bytes) {
        Ok(text) => object["value"] = text.into(),
        Err(error) => object["value_hex"] = hex(error.as_bytes()).into(),
    }
    out.json(&object)
}

struct ListHow {
    limit: Option<usize>,
    long: bool,
    json: bool,
}

fn list(
    kv: &KvView,
    prefix: &[u8],
    after: &[u8],
    how: &ListHow,
    out: &mut CommandOutput,
) -> Result<(), CommandFailure> {
    let mut after = after.to_vec();
    let mut left = how.limit.unwrap_or(usize::MAX);
    while left > 0 {
        let page = kv.list(prefix, &after, left.min(PAGE_LEN))?;
        for entry in &page.entries {
            if how.json {
                let mut object = serde_json::json!({
                    "key": String::from_utf8_lossy(&entry.key), "version": entry.version, "len": entry.len,
                });
                if std::str::from_utf8(&entry.key).is_err() {
                    object["key_hex"] = hex(&entry.key).into();
                }
                out.json(&object)?;
                continue;
            }
            if how.long {
                out.bytes(format!("{:>12} {:>10} ", entry.version.get(), entry.len).as_bytes())?;
            }
            out.name(&entry.key)?;
            out.bytes(b"\n")?;
        }
        left -= page.entries.len().min(left);
        match page.entries.last() {
            Some(last) if !page.complete => after.clone_from(&last.key),
            _ => break,
        }
    }
    Ok(())
}
