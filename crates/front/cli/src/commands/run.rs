//! `samite run`: a program that sees the store as files.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use samite_client::interposability::{ENV_QUIET, hidden};
use samite_client::runtime::{DEFAULT_MOUNT, ENV_CLUSTER, ENV_MOUNT, ENV_PRELOAD, ENV_RUNTIME_DIR};

use crate::cluster::ClusterTarget;
use crate::failure::{CommandFailure, ExitCode, IoContext};

const LIBRARY: &str = "libsamite_preload.so";

/// Run a program that sees the store as files below /samite
///
/// The program and all that it starts see the store through a preloaded library; statically linked programs do not. It becomes
/// the program itself: signals, terminal and exit code are the program's own.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  samite run -- ls -l /samite
  samite run -- bash -c 'sort /samite/in | uniq -c > /samite/out'
  samite run --at /data -- python3 script.py /data/input")]
pub struct RunArgs {
    /// Where the program sees the store: an absolute path, which need not exist
    #[arg(long, value_name = "PATH", default_value = DEFAULT_MOUNT)]
    at: PathBuf,
    /// The program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "CMD"
    )]
    command: Vec<OsString>,
}

/// Becomes the program.
pub fn run(args: &RunArgs, target: &ClusterTarget) -> Result<(), CommandFailure> {
    let mount = mount_path(&args.at)?;
    // Nothing is worse to find out from inside a program than that there is no store.
    target.cluster_file()?;
    let library = library()?;
    let mut preload = library.into_os_string();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    let (program, arguments) =
        args.command.split_first().ok_or_else(|| CommandFailure::usage("no program given"))?;
    warn_if_hidden(program, &mount);
    let error = Command::new(program)
        .args(arguments)
        .env("LD_PRELOAD", preload)
        .env(ENV_CLUSTER, target.dir.name())
        .env(ENV_RUNTIME_DIR, target.runtime.path())
        .env(ENV_MOUNT, &mount)
        .exec();
    let code = match error.kind() {
        std::io::ErrorKind::NotFound => ExitCode::NoSuchProgram,
        _ => ExitCode::CannotExecute,
    };
    Err(CommandFailure::new(code, format!("run {}: {error}", Path::new(program).display())))
}

/// A program that does not see the store would fail on paths that are not there.
fn warn_if_hidden(program: &OsStr, mount: &Path) {
    if std::env::var_os(ENV_QUIET).is_some() {
        return;
    }
    let search = std::env::var_os("PATH").unwrap_or_default();
    let found = if program.as_bytes().contains(&b'/') {
        Some(PathBuf::from(program))
    } else {
        std::env::split_paths(&search).map(|dir| dir.join(program)).find(|path| path.is_file())
    };
    let Some(path) = found else { return };
    if let Some(why) = hidden(path.as_os_str().as_bytes()) {
        eprintln!(
            "samite: {} {why} and does not see {}; `samite mount DIR` shows the store to every program ({ENV_QUIET}=1 silences this)",
            path.display(),
            mount.display()
        );
    }
}

/// Checks the path and gives it without needless slashes.
fn mount_path(at: &Path) -> Result<PathBuf, CommandFailure> {
    let plain: PathBuf = at.components().collect();
    let has_parent = at.components().any(|part| part == std::path::Component::ParentDir);
    if !at.is_absolute() || has_parent || plain == Path::new("/") {
        return Err(CommandFailure::usage(format!(
            "--at {}: must be an absolute path without '..', other than /",
            at.display()
        )));
    }
    Ok(plain)
}

/// The preload library: named by the environment, or found where builds and installations put it.
fn library() -> Result<PathBuf, CommandFailure> {
    if let Some(named) = std::env::var_os(ENV_PRELOAD).filter(|named| !named.is_empty()) {
        let path = std::path::absolute(&named).doing(format_args!("{ENV_PRELOAD}"))?;
        return if path.exists() {
            loadable(path)
        } else {
            Err(CommandFailure::failed(format!("{ENV_PRELOAD} {}: no such file", path.display())))
        };
    }
    let program = std::env::current_exe().doing("find the samite binary")?;
    let beside = program.parent().unwrap_or_else(|| Path::new("/"));
    let places = ["", "../lib", "../lib/samite"].map(|place| beside.join(place).join(LIBRARY));
    match places.iter().find(|path| path.exists()) {
        Some(path) => loadable(path.clone()),
        None => Err(CommandFailure::failed(format!(
            "{LIBRARY}: not in {}; set {ENV_PRELOAD} to its path",
            places.map(|path| path.display().to_string()).join(", ")
        ))),
    }
}

/// The dynamic linker splits its list of libraries at colons and spaces, and knows no way to quote them.
fn loadable(path: PathBuf) -> Result<PathBuf, CommandFailure> {
    let splits = |path: &OsStr| path.as_bytes().iter().any(|byte| b": \t\n".contains(byte));
    if splits(path.as_os_str()) {
        return Err(CommandFailure::failed(format!(
            "{}: a preloaded library must lie where the path has no colon and no space",
            path.display()
        )));
    }
    Ok(path)
}
