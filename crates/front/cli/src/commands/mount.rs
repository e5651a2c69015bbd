//! `samite mount` and `samite umount`.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use samite_fuse::{MountOptions, StoreMount, THREADS_DEFAULT, THREADS_MAX, find_mount};
use samite_launch::process_log::LogDestination;
use samite_launch::{mounts, process};

use crate::cluster::{ClusterTarget, FILES_DATASET};
use crate::failure::{CommandFailure, ExitCode, IoContext};
use crate::log::LogControl;
use crate::{service_manager, signals, turns};

/// The line that the daemon prints when it serves.
const READY: u8 = b'+';

/// Mount the store on a directory, for every program
///
/// Unlike with `samite run`, also static and set-uid programs see it. A daemon serves the mount until `samite umount` or `samite down`.
/// Root needs nothing else; other users need `fusermount3` (package fuse3).
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  samite mount /mnt/samite
  samite mount --allow-other --threads 16 /mnt/samite
  samite mount --read-only --foreground ./store")]
pub struct MountArgs {
    /// The directory to mount on
    #[arg(value_name = "DIR")]
    path: PathBuf,
    /// Refuse all changes
    #[arg(long)]
    read_only: bool,
    /// Let other users in too; permissions of files decide what they may
    #[arg(long)]
    allow_other: bool,
    /// Requests served at a time
    #[arg(long, value_name = "N", default_value_t = THREADS_DEFAULT, value_parser = parse_threads)]
    threads: usize,
    /// Ask the store about every name and attribute, each time
    #[arg(long)]
    uncached: bool,
    /// Serve in this process, until it is unmounted or a signal comes
    #[arg(long)]
    foreground: bool,
    /// Started by `samite mount` to serve
    #[arg(long, hide = true)]
    daemon: bool,
}

/// End a mount of the store
///
/// Fails while programs use it, and names them. A mount whose daemon died goes at once.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  samite umount /mnt/samite
  samite umount --lazy /mnt/samite")]
pub struct UmountArgs {
    /// The directory that it is mounted on
    #[arg(value_name = "DIR")]
    path: PathBuf,
    /// Take it out of sight at once; who is in it may finish
    #[arg(short, long)]
    lazy: bool,
}

fn parse_threads(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|threads| (1..=THREADS_MAX).contains(threads))
        .ok_or_else(|| format!("expected a number from 1 to {THREADS_MAX}"))
}

/// Mounts.
pub fn mount(args: &MountArgs, target: &ClusterTarget) -> Result<(), CommandFailure> {
    target.cluster_file()?;
    if args.foreground || args.daemon {
        return serve(args, target);
    }
    let program = std::env::current_exe().doing("find the samite binary")?;
    let path = std::path::absolute(&args.path).doing("find the directory")?;
    let mut command = Command::new(program);
    command.args(["--name", target.dir.name(), "mount", "--daemon"]);
    command.args(["--threads", &args.threads.to_string()]);
    command.args(args.read_only.then_some("--read-only"));
    command.args(args.allow_other.then_some("--allow-other"));
    command.args(args.uncached.then_some("--uncached"));
    command.arg("--").arg(path);
    // Until it serves, the daemon says on our stderr what is wrong.
    command.current_dir("/").env_remove("LD_PRELOAD").stdin(Stdio::null()).stdout(Stdio::piped());
    // SAFETY: between fork and exec only system calls are made, and nothing is allocated.
    unsafe { command.pre_exec(process::detach) };
    let mut daemon = command.spawn().doing("start the daemon of the mount")?;
    let mut ready = [0];
    let said = daemon.stdout.take().is_some_and(|mut out| out.read_exact(&mut ready).is_ok());
    if said && ready[0] == READY {
        return Ok(());
    }
    let status = daemon.wait().doing("wait for the daemon of the mount")?;
    let code = [ExitCode::Usage, ExitCode::Unreachable, ExitCode::NotFound, ExitCode::Conflict]
        .into_iter()
        .find(|code| status.code() == Some(*code as i32));
    // It has said why, unless something killed it.
    let message = if status.code().is_some() { "" } else { "the daemon of the mount was killed" };
    Err(CommandFailure::new(code.unwrap_or(ExitCode::Failed), message))
}

fn serve(args: &MountArgs, target: &ClusterTarget) -> Result<(), CommandFailure> {
    // Signals first: threads that are started later must not take them.
    let unmounter: Arc<Mutex<Option<_>>> = Arc::default();
    let stopping: Arc<Mutex<Option<samite_fuse::Unmounter>>> = unmounter.clone();
    let log = log_to(args, target)?;
    let stop = move || {
        let unmounter = stopping.lock().unwrap_or_else(PoisonError::into_inner).take();
        match unmounter {
            Some(mut unmounter) => {
                if let Err(error) = unmounter.unmount() {
                    tracing::error!("unmount: {error}");
                }
            }
            None => std::process::exit(ExitCode::Failed as i32),
        }
    };
    signals::on_stop_or_reload(stop, move || log.reopen())?;
    let path = args.path.canonicalize().doing(format_args!("mount {}", args.path.display()))?;
    // For all threads of the mount: a worker that is woken must not wait for its core while a
    // program computes there.
    turns::ask_for_short();
    let client = target.connect()?;
    let fs = samite_fs::FileSystem::open(&client, FILES_DATASET)?;
    let options = MountOptions {
        cluster: target.dir.name().to_owned(),
        is_read_only: args.read_only,
        allow_other: args.allow_other,
        threads: args.threads,
        caches: !args.uncached,
    };
    let mut mount = StoreMount::new(&fs, &path, &options)?;
    *unmounter.lock().unwrap_or_else(PoisonError::into_inner) = Some(mount.unmounter());
    let _record = mounts::MountRecord::own(path).write(&target.dir)?;
    if args.daemon {
        say_ready(target)?;
    }
    service_manager::ready("mounted");
    Ok(mount.serve()?)
}

/// Errors go to stderr; a daemon's is its log in the end.
fn log_to(args: &MountArgs, target: &ClusterTarget) -> Result<LogControl, CommandFailure> {
    let destination = if args.daemon {
        LogDestination::File(mounts::log_path(&target.dir, std::process::id()))
    } else {
        LogDestination::Stderr
    };
    LogControl::begin(destination, "warn", false)
}

/// Tells the waiting command, and releases its terminal.
fn say_ready(target: &ClusterTarget) -> Result<(), CommandFailure> {
    std::io::stdout().write_all(&[READY]).doing("report that the mount serves")?;
    std::io::stdout().flush().doing("report that the mount serves")?;
    let path = mounts::log_path(&target.dir, std::process::id());
    let log = File::options().append(true).create(true).open(&path);
    let log = log.doing(format_args!("open {}", path.display()))?;
    rustix::stdio::dup2_stdout(&log).doing("redirect stdout")?;
    rustix::stdio::dup2_stderr(&log).doing("redirect stderr")
}

/// Ends a mount.
pub fn umount(args: &UmountArgs, target: &ClusterTarget) -> Result<(), CommandFailure> {
    let Some(mount) = find_mount(&args.path)? else {
        return Err(CommandFailure::new(
            ExitCode::NotFound,
            format!("{}: no store is mounted there", args.path.display()),
        ));
    };
    let dir = target.runtime.cluster(&mount.cluster)?;
    Ok(mounts::end(&dir, &mount, args.lazy)?)
}
