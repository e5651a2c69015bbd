//! Paths that begin outside the store and lead into it.

mod common;

use common::Stage;

/// A path that no machine has: where the kernel finds a directory of this name, it follows links into that.
const HERE: &str = "/samite-is-here";

fn says(stage: &Stage, script: &str) -> String {
    let mut command = stage.command("bash");
    let output = command.args(["-c", script]).env("SAMITE_MOUNT", HERE).env("D", HERE).output();
    let output = output.expect("run bash");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn relative_paths_from_a_directory_above() {
    let stage = Stage::new(1);
    let said = says(
        &stage,
        r#"
        set -e; cd /; echo x > samite-is-here/f; cat samite-is-here/f ./samite-is-here/f samite-is-here/../samite-is-here/f; ls samite-is-here; mkdir samite-is-here/d
        cd /usr/lib; cat ../../samite-is-here/f; cp /etc/hostname ../../samite-is-here/d/h; cmp ../../etc/hostname /samite-is-here/d/h
        cd /; cd samite-is-here/d; pwd; cd /; test ! -e samite-is-here.f
        "#,
    );
    assert_eq!(said, "x\nx\nx\nf\nx\n/samite-is-here/d\n");
    let said = says(
        &stage,
        r#"python3 -c "
import os
fd = os.open('/', os.O_RDONLY)
print(os.stat('samite-is-here/f', dir_fd=fd).st_size, sorted(os.listdir(os.open('samite-is-here', os.O_RDONLY, dir_fd=fd))))
usr = os.open('/usr', os.O_RDONLY | os.O_PATH)
print(open(os.open('../samite-is-here/f', os.O_RDONLY, dir_fd=usr)).read())
""#,
    );
    assert_eq!(said, "2 ['d', 'f']\nx\n\n");
}

#[test]
fn symbolic_links_outside_lead_in() {
    let stage = Stage::new(1);
    let said = says(
        &stage,
        r#"
        set -e; L=$(mktemp -d); cd $L; mkdir $D/d; echo x > $D/d/f; ln -s $D/d in; ln -s in again; ln -s $D/d/f file; ln -s $D/new new
        cat in/f again/f $L/in/f file; echo y > in/g; cat $D/d/g; ls again/; stat -L -c %s file; echo z > new; cat $D/new
        mv in/g in/h; mv in/h $L/h; cat h; mkdir -p in/a/b; test -d $D/d/a/b; rm -r in/a; find in/ -type f; cp in/f $L/copy; cat copy
        rm in file; test -e $D/d/f; if cat in/f 2> /dev/null; then exit 1; fi; rm -r $L
        "#,
    );
    assert_eq!(said, "x\nx\nx\nx\ny\nf\ng\n2\nz\ny\nin/f\nx\n");
}
