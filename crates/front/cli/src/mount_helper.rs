//! The helper of mount(8): under the name `mount.samite` the program is
//! `mount.samite CLUSTER DIR [-sfnv] [-o OPTIONS]`, so that a store can stand in fstab(5).

use std::ffi::{OsStr, OsString};
use std::path::Path;

use samite_client::runtime::ENV_RUNTIME_DIR;

/// The name by which mount(8) calls it.
const HELPER_NAME: &str = "mount.samite";
/// Options that are for mount(8), systemd or the kernel, and need nothing done here.
const PASSED_OVER: [&str; 17] = [
    "rw", "defaults", "auto", "noauto", "user", "nouser", "users", "owner", "group", "nofail",
    "_netdev", "suid", "nosuid", "dev", "nodev", "exec", "noexec",
];

/// A mount as mount(8) asks for it, as a command line.
#[derive(Debug, PartialEq, Eq)]
pub struct HelperCall {
    /// The arguments of `samite`, its name first; none: nothing is to be done (`-f`).
    pub arguments: Vec<OsString>,
    /// The runtime directory, if the options name one.
    pub runtime_dir: Option<OsString>,
}

/// The call, if the program runs under the helper's name.
///
/// # Errors
/// Words for the person: an option is unknown, or something is missing.
pub fn read(
    arguments: impl IntoIterator<Item = OsString>,
) -> Option<std::result::Result<HelperCall, String>> {
    let mut arguments = arguments.into_iter();
    let name = arguments.next()?;
    (Path::new(&name).file_name() == Some(OsStr::new(HELPER_NAME))).then(|| call(arguments))
}

fn call(arguments: impl Iterator<Item = OsString>) -> std::result::Result<HelperCall, String> {
    let (mut places, mut options) = (Vec::new(), Vec::new());
    let (mut is_sloppy, mut is_fake) = (false, false);
    let mut arguments = arguments.peekable();
    while let Some(argument) = arguments.next() {
        match argument.to_str() {
            Some("-o") => {
                let list = arguments.next().ok_or("-o: no options follow")?;
                let list = list.into_string().map_err(|list| format!("-o {list:?}: no text"))?;
                options.extend(list.split(',').filter(|one| !one.is_empty()).map(str::to_owned));
            }
            Some("-t" | "-N") => drop(arguments.next()),
            Some(flags) if flags.starts_with('-') => {
                is_sloppy |= flags.contains('s');
                is_fake |= flags.contains('f');
                if flags.bytes().skip(1).any(|flag| !b"sfnv".contains(&flag)) {
                    return Err(format!("{flags}: unknown"));
                }
            }
            _ => places.push(argument),
        }
    }
    let Ok([cluster, dir]) = <[OsString; 2]>::try_from(places) else {
        return Err(format!("usage: {HELPER_NAME} CLUSTER DIR [-sfnv] [-o OPTIONS]"));
    };
    let mut words: Vec<OsString> = vec!["samite".into(), "--name".into(), cluster, "mount".into()];
    let mut runtime_dir = None;
    for option in &options {
        match option.split_once('=').unwrap_or((option, "")) {
            ("ro", "") => words.push("--read-only".into()),
            ("allow_other", "") => words.push("--allow-other".into()),
            ("uncached", "") => words.push("--uncached".into()),
            ("threads", count) => words.extend(["--threads".into(), count.into()]),
            ("runtime_dir", path) => runtime_dir = Some(path.into()),
            (name, _) if PASSED_OVER.contains(&name) || name.starts_with("x-") => {}
            ("comment", _) => {}
            _ if is_sloppy => {}
            _ => {
                return Err(format!("-o {option}: unknown; `samite mount --help` has the options"));
            }
        }
    }
    words.push("--".into());
    words.push(dir);
    if is_fake {
        words.clear();
    }
    Ok(HelperCall { arguments: words, runtime_dir })
}

/// Sets the runtime directory that the options name for this process and those that it starts.
pub fn use_runtime_dir(path: &OsStr) {
    // SAFETY: no other thread runs yet.
    unsafe { std::env::set_var(ENV_RUNTIME_DIR, path) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> std::result::Result<(String, Option<OsString>), String> {
        let call = read(line.split(' ').map(OsString::from)).expect("the helper's name")?;
        let all: Vec<&str> = call.arguments.iter().map(|word| word.to_str().unwrap()).collect();
        Ok((all.join(" "), call.runtime_dir))
    }

    #[test]
    fn a_line_of_fstab_becomes_a_command() {
        let line = "/sbin/mount.samite job /mnt/job -o rw,nofail,x-systemd.after=samite.service,\
                    allow_other,threads=8,runtime_dir=/run/samite";
        let (said, dir) = words(line).unwrap();
        assert_eq!(said, "samite --name job mount --allow-other --threads 8 -- /mnt/job");
        assert_eq!(dir, Some("/run/samite".into()));
        assert_eq!(words("mount.samite -n job /m").unwrap().0, "samite --name job mount -- /m");
        let (said, _) = words("mount.samite job /m -sv -o ro,quota").unwrap();
        assert_eq!(said, "samite --name job mount --read-only -- /m");
        assert_eq!(words("mount.samite job /m -f").unwrap().0, "");
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_words() {
        assert!(words("mount.samite job /m -o quota").unwrap_err().contains("quota"));
        assert!(words("mount.samite job").unwrap_err().starts_with("usage: "));
        assert!(words("mount.samite job /m -q").unwrap_err().contains("-q"));
        assert!(words("mount.samite job /m -o").unwrap_err().contains("-o"));
        assert!(read(["/usr/bin/samite".into()]).is_none());
    }
}
