//! The identity of this host among others.

use rustix::fs::{Mode, OFlags};
use samite_types::{Error, Result};

const BOOT_ID_PATH: &str = "/proc/sys/kernel/random/boot_id";

/// Name of this host: the kernel's boot id, then, after a colon, the name that the host has in its
/// UTS namespace. Containers share a boot id, and mostly neither paths nor memory with each other;
/// two with different names take each other for other hosts.
///
/// # Errors
/// `Io`: the boot id cannot be read.
pub fn host_identity() -> Result<String> {
    let failed = |errno| Error::io(format_args!("read {BOOT_ID_PATH}"), errno);
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::open(BOOT_ID_PATH, flags, Mode::empty()).map_err(failed)?;
    let mut raw = [0; 64];
    let len = rustix::io::read(&file, &mut raw).map_err(failed)?;
    let boot = String::from_utf8_lossy(&raw[..len]);
    Ok(format!("{}:{}", boot.trim(), host_label()))
}

/// The name that this host has in its UTS namespace.
fn host_label() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The part of a [`host_identity`] by which a person knows the host.
#[must_use]
pub fn label_of(identity: &str) -> &str {
    identity.split_once(':').map_or(identity, |(_, label)| label)
}

/// Whether these identify the same host. Builds before protocol version 4 name the boot id alone.
#[must_use]
pub fn is_same_host(a: &str, b: &str) -> bool {
    let is_boot_of = |boot: &str, identity: &str| {
        !boot.contains(':') && identity.split_once(':').is_some_and(|(of, _)| of == boot)
    };
    a == b || is_boot_of(a, b) || is_boot_of(b, a)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_ends_with_the_name_of_the_host() {
        let identity = host_identity().unwrap();
        assert_eq!(label_of(&identity), host_label());
        let boot = std::fs::read_to_string(BOOT_ID_PATH).unwrap();
        assert_eq!(identity.split_once(':').unwrap().0, boot.trim());
        assert_eq!((label_of("id:a:b"), label_of("h"), label_of("")), ("a:b", "h", ""));
    }

    #[test]
    fn a_boot_id_alone_is_the_host_that_names_it() {
        assert!(is_same_host("b:h", "b:h") && is_same_host("b", "b"));
        assert!(is_same_host("b", "b:h") && is_same_host("b:h", "b"));
        assert!(!is_same_host("b:h", "b:i") && !is_same_host("b", "c:h"));
    }
}
