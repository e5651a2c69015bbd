//! `samite object`: named byte ranges of any size.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use samite_object::ObjectView;

use super::data::{read_full, write_local};
use super::dataset::view_dataset;
use super::ls::hex;
use super::room;
use crate::cluster::ClusterTarget;
use crate::failure::{CommandFailure, ExitCode, IoContext};
use crate::output::{CommandOutput, escaped};

/// Dataset that the commands use when none is named.
pub const DATASET: &str = "objects";
/// Names asked for at a time.
const PAGE_LEN: usize = 4096;
/// Bytes that are moved at a time.
const BUFFER_LEN: usize = 4 << 20;

/// Objects of any size: put, get, ls, rm, stat
///
/// A dataset other than `objects` is made with `samite dataset create` first.
#[derive(clap::Args)]
pub struct ObjectArgs {
    /// Dataset
    #[arg(long, global = true, value_name = "DATASET", default_value = DATASET)]
    dataset: String,
    #[command(subcommand)]
    command: ObjectCommand,
}

#[derive(clap::Subcommand)]
enum ObjectCommand {
    /// Make or replace an object from a local file or standard input
    ///
    /// An object that is there is replaced when the new one is whole. What a killed command leaves goes with the next one.
    #[command(
        after_help = "Examples:\n  samite object put model.bin ./model.bin\n  tar c dir | samite object put dir.tar -"
    )]
    Put {
        /// Name
        object: OsString,
        /// Local file; `-` for standard input
        local: PathBuf,
        /// Begin even if there seems to be too little room
        #[arg(long)]
        force: bool,
    },
    /// Copy an object to a local file or standard output
    #[command(
        after_help = "Examples:\n  samite object get model.bin ./model.bin\n  samite object get dir.tar - | tar t"
    )]
    Get {
        /// Name
        object: OsString,
        /// Local file; `-` for standard output
        #[arg(default_value = "-")]
        local: PathBuf,
        /// First byte
        #[arg(long, value_name = "BYTES", default_value = "0", value_parser = crate::size::parse_size)]
        offset: u64,
        /// Most bytes
        #[arg(long, value_name = "BYTES", value_parser = crate::size::parse_size)]
        length: Option<u64>,
        /// Begin even if there seems to be too little room
        #[arg(long)]
        force: bool,
    },
    /// List objects in order
    #[command(visible_alias = "list", after_help = "Example:\n  samite object ls -l")]
    Ls {
        /// Only names that begin with this
        #[arg(default_value = "")]
        prefix: OsString,
        /// Length, too
        #[arg(short)]
        long: bool,
        /// One JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// Remove objects (exit code 4 if one does not exist)
    #[command(visible_alias = "delete", after_help = "Example:\n  samite object rm model.bin")]
    Rm {
        /// Names
        #[arg(required = true)]
        objects: Vec<OsString>,
    },
    /// Show the length of an object
    #[command(after_help = "Example:\n  samite object stat --json model.bin")]
    Stat {
        /// Name
        object: OsString,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
}

/// Does it.
pub fn run(args: &ObjectArgs, target: &ClusterTarget) -> Result<(), CommandFailure> {
    let client = target.connect()?;
    let dataset = view_dataset(&client, &args.dataset, DATASET)?;
    let fits = |need| room::check_dataset(&client, &dataset, need);
    let objects = ObjectView::new(dataset.clone());
    let mut out = CommandOutput::new();
    match &args.command {
        ObjectCommand::Put { object, local, force } => {
            put(
                &objects,
                object.as_bytes(),
                local,
                |need| if *force { Ok(()) } else { fits(need) },
            )?;
        }
        ObjectCommand::Get { object, local, offset, length, force } => {
            let range = (*offset, length.unwrap_or(u64::MAX));
            if local == Path::new("-") {
                get(&objects, object.as_bytes(), range, |bytes| out.bytes(bytes))?;
            } else {
                // An object that is not there must not leave an empty file behind.
                let len = objects.open(object.as_bytes())?.len()?;
                let need = if *force { 0 } else { len.saturating_sub(range.0).min(range.1) };
                write_local(local, (0o666, need), |sink| {
                    get(&objects, object.as_bytes(), range, sink)
                })?;
            }
        }
        ObjectCommand::Ls { prefix, long, json } => {
            list(&objects, prefix.as_bytes(), *long, *json, &mut out)?;
        }
        ObjectCommand::Rm { objects: names } => {
            let mut missing = Vec::new();
            for name in names {
                if !objects.delete(name.as_bytes())? {
                    missing.push(escaped(name.as_bytes()));
                }
            }
            if !missing.is_empty() {
                let message = format!("rm {}: no such object", missing.join(", "));
                return Err(CommandFailure::new(ExitCode::NotFound, message));
            }
        }
        ObjectCommand::Stat { object, json } => {
            let len = objects.open(object.as_bytes())?.len()?;
            if *json {
                out.json(&entry_json(object.as_bytes(), len))?;
            } else {
                out.line(format!("{} bytes", len))?;
            }
        }
    }
    out.finish()
}

fn put(
    objects: &ObjectView,
    name: &[u8],
    local: &Path,
    fits: impl FnOnce(u64) -> Result<(), CommandFailure>,
) -> Result<(), CommandFailure> {
    let what = format!("open {}", local.display());
    let (mut source, need): (Box<dyn Read>, u64) = if local == Path::new("-") {
        (Box::new(std::io::stdin().lock()), 0)
    } else {
        let file = File::open(local).doing(&what)?;
        let len = room::data_len(&file.metadata().doing(&what)?);
        (Box::new(file), len)
    };
    // The parts that killed commands have left go with it.
    let new = objects.replace(name)?;
    fits(need)?;
    let mut buffer = vec![0; BUFFER_LEN];
    let mut offset = 0;
    loop {
        let len =
            read_full(&mut *source, &mut buffer).doing(format_args!("read {}", local.display()))?;
        if len == 0 {
            return Ok(new.place()?);
        }
        new.object().write_at(&buffer[..len], offset)?;
        offset += len as u64;
    }
}

fn get(
    objects: &ObjectView,
    name: &[u8],
    (offset, length): (u64, u64),
    mut sink: impl FnMut(&[u8]) -> Result<(), CommandFailure>,
) -> Result<(), CommandFailure> {
    let object = objects.open(name)?;
    let mut buffer = vec![0; BUFFER_LEN];
    let (mut at, mut left) = (offset, length);
    while left > 0 {
        let most = usize::try_from(left).unwrap_or(BUFFER_LEN).min(BUFFER_LEN);
        let len = object.read_at(&mut buffer[..most], at)?;
        if len == 0 {
            break;
        }
        sink(&buffer[..len])?;
        at += len as u64;
        left -= len as u64;
    }
    Ok(())
}

fn list(
    objects: &ObjectView,
    prefix: &[u8],
    long: bool,
    json: bool,
    out: &mut CommandOutput,
) -> Result<(), CommandFailure> {
    let mut after = Vec::new();
    loop {
        let page = objects.list(prefix, &after, PAGE_LEN)?;
        for entry in &page.entries {
            if json {
                out.json(&entry_json(&entry.name, entry.len))?;
                continue;
            }
            if long {
                out.bytes(format!("{:>14} ", entry.len).as_bytes())?;
            }
            out.name(&entry.name)?;
            out.bytes(b"\n")?;
        }
        match page.entries.last() {
            Some(last) if !page.complete => after.clone_from(&last.name),
            _ => return Ok(()),
        }
    }
}

fn entry_json(name: &[u8], len: u64) -> serde_json::Value {
    let mut object = serde_json::json!({ "name": String::from_utf8_lossy(name), "len": len });
    if std::str::from_utf8(name).is_err() {
        object["name_hex"] = hex(name).into();
    }
    object
}
