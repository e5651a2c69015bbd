//! `samite set`: the semantics of a directory.

use samite_fs::FileSemantics;

use crate::cluster::ClusterTarget;
use crate::failure::CommandFailure;
use crate::output::CommandOutput;
use crate::paths::{StorePath, store_path};

/// Set what a directory promises to the programs that use the files in it
///
/// `posix`: what a call has done is what every later call of any process sees. `session`: what was written before a close is
/// what those see who open after it. `temporary`: a process may keep new files and small writes to them to itself for a while, and loses
/// them when it is killed. Directories made in it from now on inherit it.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  samite set /scratch semantics=temporary
  samite set --json /results semantics=posix")]
pub struct SetArgs {
    /// Print a JSON object
    #[arg(long)]
    json: bool,
    /// A directory of the store
    #[arg(value_name = "DIR", value_parser = store_path())]
    path: StorePath,
    /// semantics=posix, semantics=session or semantics=temporary
    #[arg(value_name = "SETTING", value_parser = setting)]
    semantics: FileSemantics,
}

fn setting(text: &str) -> Result<FileSemantics, String> {
    match text.split_once('=') {
        Some(("semantics", value)) => {
            value.parse().map_err(|error: samite_types::Error| error.message().to_owned())
        }
        _ => Err("there is one setting: semantics=posix, session or temporary".to_owned()),
    }
}

/// Sets it.
pub fn run(args: &SetArgs, target: &ClusterTarget) -> Result<(), CommandFailure> {
    let files = target.files()?;
    files.fs.set_semantics(&files.context, args.path.bytes(), args.semantics)?;
    let mut out = CommandOutput::new();
    if args.json {
        out.json(&serde_json::json!({
            "path": String::from_utf8_lossy(args.path.bytes()),
            "semantics": args.semantics.name(),
        }))?;
    }
    out.finish()?;
    Ok(())
}
