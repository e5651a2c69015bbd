//! A real etcd by https: the identity by which it is trusted, and the clients that it trusts. It is
//! skipped where etcd or openssl is not installed.

#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use samite_coordinator::ClusterTiming;
use samite_coordinator::store::{
    ETCD_PROGRAM, EtcdConfig, EtcdStore, EtcdTls, InstanceRole, LocalMember, StateStore, check_etcd,
};
use samite_testkit::has;
use samite_types::{Error, ErrorKind, NodeId};
use samite_wire::membership::LeaderAddress;

const PATIENCE: Duration = Duration::from_secs(30);

fn openssl(dir: &Path, args: &str) {
    let mut command = Command::new("openssl");
    command.args(args.split(' ')).current_dir(dir).stdin(Stdio::null());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{args}: {}", String::from_utf8_lossy(&output.stderr));
}

/// `NAME.pem` and `NAME.key`: an authority.
fn authority(dir: &Path, name: &str) {
    let made = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2";
    openssl(dir, &format!("req -x509 {made} -keyout {name}.key -out {name}.pem -subj /CN={name}"));
}

/// `NAME.pem` and `NAME.key`: a certificate for this machine that `signer` has signed.
fn certificate(dir: &Path, name: &str, signer: &str) {
    let made = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
    openssl(dir, &format!("req {made} -keyout {name}.key -out {name}.csr -subj /CN={name}"));
    let uses =
        "subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage=serverAuth,clientAuth\n";
    std::fs::write(dir.join(format!("{name}.ext")), uses).unwrap();
    let by = format!("-CA {signer}.pem -CAkey {signer}.key -CAcreateserial -days 2");
    openssl(dir, &format!("x509 -req -in {name}.csr {by} -out {name}.pem -extfile {name}.ext"));
}

struct Etcd {
    dir: PathBuf,
    url: String,
    child: Child,
}

impl Etcd {
    /// An etcd that shows `etcd.pem` in `dir`, and takes clients that come with a certificate of
    /// `site`, or any.
    fn start(dir: &Path, asks_for_certificates: bool) -> Self {
        let data = dir.join(format!("data-{asks_for_certificates}"));
        let member = LocalMember::plan(&data, 1).unwrap().remove(0);
        let url = member.client_url().replace("http://", "https://");
        let mut command = Command::new(ETCD_PROGRAM);
        command.args(member.args(std::slice::from_ref(&member)));
        // The last word on an option counts.
        command.args(["--listen-client-urls", &url, "--advertise-client-urls", &url]);
        command.args(["--cert-file", "etcd.pem", "--key-file", "etcd.key"]);
        if asks_for_certificates {
            command.args(["--client-cert-auth", "--trusted-ca-file", "site.pem"]);
        }
        command.current_dir(dir).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self { dir: dir.to_owned(), url, child: command.spawn().unwrap() }
    }

    fn tls(&self, authority: &str, own: Option<&str>) -> EtcdTls {
        let read =
            |name: &str, end: &str| std::fs::read(self.dir.join(format!("{name}.{end}"))).unwrap();
        let own = own.map(|own| (read(own, "pem"), read(own, "key")));
        EtcdTls::new(read(authority, "pem"), own).unwrap()
    }

    fn check(&self, tls: &EtcdTls) -> Result<(), Error> {
        check_etcd(std::slice::from_ref(&self.url), Some(tls), PATIENCE)
    }

    /// Leads, saves and loads.
    fn serves(&self, tls: EtcdTls) {
        let mut store = EtcdStore::new(&EtcdConfig {
            endpoints: vec![self.url.clone()],
            tls: Some(tls),
            prefix: "/samite/test/".into(),
            leader: LeaderAddress { node: NodeId(1), addresses: Vec::new() },
            instance: 7,
            timing: ClusterTiming::DEFAULT,
        })
        .unwrap();
        let begun = Instant::now();
        let is_saved = |store: &mut EtcdStore| {
            matches!(store.campaign(), InstanceRole::Leads { .. })
                && store.load().is_ok()
                && store.save(b"state").is_ok()
        };
        while !is_saved(&mut store) {
            assert!(begun.elapsed() < PATIENCE, "it does not lead");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(store.load().unwrap().unwrap(), b"state");
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

#[test]
fn etcd_is_reached_by_https_and_must_be_who_it_says() {
    if !has(ETCD_PROGRAM) || !has("openssl") {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    for name in ["site", "other"] {
        authority(dir, name);
    }
    for (name, signer) in [("etcd", "site"), ("own", "site"), ("foreign", "other")] {
        certificate(dir, name, signer);
    }
    let open = Etcd::start(dir, false);
    open.check(&open.tls("site", None)).unwrap();
    open.serves(open.tls("site", None));
    let error = open.check(&open.tls("other", None)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.message().contains("is not trusted"), "{error}");
    // A client that does not speak TLS is told so.
    let plain = open.url.replace("https://", "http://");
    let refused = EtcdTls::new(b"no certificate".to_vec(), None).unwrap_err();
    assert!(refused.message().contains("PEM"), "{refused}");
    for (url, tls, words) in
        [(&open.url, None, "--etcd-ca"), (&plain, Some(open.tls("site", None)), "https")]
    {
        let error = check_etcd(std::slice::from_ref(url), tls.as_ref(), PATIENCE).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.message().contains(words), "{error}");
    }
    let closed = Etcd::start(dir, true);
    closed.check(&closed.tls("site", Some("own"))).unwrap();
    closed.serves(closed.tls("site", Some("own")));
    for own in [None, Some("foreign")] {
        let error = closed.check(&closed.tls("site", own)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.message().contains("--etcd-cert"), "{error}");
    }
    // A key of another certificate is no key.
    let read = |name: &str| std::fs::read(dir.join(name)).unwrap();
    let mixed = EtcdTls::new(read("site.pem"), Some((read("own.pem"), read("etcd.key"))));
    assert_eq!(mixed.unwrap_err().kind(), ErrorKind::Invalid);
}
