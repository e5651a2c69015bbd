//! `samite dataset scan`: keys and lengths of all records.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use samite_client::Client;
use samite_client::scan::{ScanOptions, ScanScope, VisitedRecord};

use super::ls::hex;
use crate::failure::CommandFailure;
use crate::output::CommandOutput;

/// Which records, and how they are told.
#[derive(clap::Args)]
pub struct ScanArgs {
    /// Name
    dataset: String,
    /// Only records whose keys start so
    #[arg(long, value_name = "PREFIX", default_value = "")]
    prefix: OsString,
    /// Only partitions that a node on this host answers reads of
    #[arg(long)]
    local: bool,
    /// Only how many records there are, and the bytes of their values
    #[arg(long)]
    count: bool,
    /// One JSON object for each record, or with --count one
    #[arg(long)]
    json: bool,
}

/// Does it.
pub fn run(args: &ScanArgs, client: &Client) -> Result<(), CommandFailure> {
    let dataset = client.dataset(&args.dataset)?;
    let scan = dataset.scan(&ScanOptions {
        prefix: args.prefix.as_bytes().to_vec(),
        values: false,
        scope: if args.local { ScanScope::OnHost } else { ScanScope::All },
        from: None,
    })?;
    let (mut cursor, mut out) = (scan.cursor(), CommandOutput::new());
    let (mut records, mut bytes) = (0_u64, 0_u64);
    while cursor.advance()? {
        let record = cursor.record();
        records += 1;
        bytes += u64::from(record.len);
        if !args.count {
            tell(&record, args.json, &mut out)?;
        }
    }
    if args.count && args.json {
        out.json(&serde_json::json!({ "records": records, "bytes": bytes }))?;
    } else if args.count {
        out.line(format!("{records} records, {bytes} bytes"))?;
    }
    out.finish()
}

fn tell(
    record: &VisitedRecord<'_>,
    json: bool,
    out: &mut CommandOutput,
) -> Result<(), CommandFailure> {
    let VisitedRecord { partition, key, version, len, .. } = *record;
    if !json {
        out.bytes(format!("{:>12} {len:>10} ", version.get()).as_bytes())?;
        out.name(key)?;
        return out.bytes(b"\n");
    }
    let mut object = serde_json::json!({
        "key": String::from_utf8_lossy(key), "version": version, "len": len, "partition": partition,
    });
    if std::str::from_utf8(key).is_err() {
        object["key_hex"] = hex(key).into();
    }
    out.json(&object)
}
