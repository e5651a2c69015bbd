//! Redirections, pipes and builtins of bash on files of the store.

mod common;

use common::Stage;

#[test]
fn redirections_of_every_kind() {
    let stage = Stage::new(2);
    stage.compare(
        r#"
        echo one > $D/r; echo two >> $D/r; cat $D/r; cat < $D/r
        { echo out; echo err >&2; } > $D/both 2>&1; cat $D/both
        { echo out; echo err >&2; } &> $D/both2; cat $D/both2
        ls /nonexistent 2> $D/err; cat $D/err
        nosuchcommand 2> $D/err; wc -l < $D/err
        echo x 2>&1 >$D/order | cat; cat $D/order
        set -C; { echo no > $D/r; } 2> /dev/null || echo noclobber; echo yes >| $D/r; set +C; cat $D/r
        : > $D/r; stat -c %s $D/r
        exec 7> $D/seven; echo seven >&7; printf '%s\n' more >&7; exec 7>&-; cat $D/seven
        exec 5<>$D/seven; read -r line <&5; echo got $line; echo over >&5; exec 5>&-; cat $D/seven
        exec 3< $D/seven 4<&3; read -u 3 a; read -u 4 b; echo $a $b; exec 3<&- 4<&-
        echo gone >&3
        echo text > $D/t; cat /dev/stdin < $D/t; cat /dev/fd/3 3< $D/t; sh -c 'echo e > /dev/stderr' 2> $D/e; cat $D/e
        sh -c 'echo a; echo b > /dev/stdout; echo c' > $D/o; cat $D/o; cp /dev/stdin $D/cp < $D/t; cat $D/cp
        cat $D/t | tee /dev/stderr 2> $D/e2 > $D/o2; cat $D/e2 $D/o2; cat $D/t - < $D/t; sh < /dev/null > $D/empty; wc -c < $D/empty
        cat < $D/nothere
        echo in > $D/nodir/x
        "#,
    );
}

#[test]
fn loops_functions_and_subshells() {
    let stage = Stage::new(2);
    stage.compare(
        r#"
        for i in 1 2 3 4 5; do echo line $i; done > $D/loop; wc -l < $D/loop
        for i in $(seq 50); do echo $i >> $D/loop2; done; tail -1 $D/loop2; wc -l < $D/loop2
        while read -r a b; do echo "$b-$a"; done < $D/loop
        while read -r a b; do echo "$b" | sed s/^/x/; done < $D/loop > $D/out; cat $D/out
        mapfile -t lines < $D/loop; echo ${#lines[@]} "${lines[2]}"
        x=$(< $D/loop); echo "$x" | tail -1
        y=$(cat $D/loop | grep 3); echo $y
        (echo sub; echo shell; exit 3) > $D/sub; echo $?; cat $D/sub
        f() { echo in function; /bin/echo external; }; f > $D/f; f >> $D/f; cat $D/f
        { head -1; cat; } < $D/loop
        (cat; cat) < $D/loop | wc -l
        echo a b c | tee $D/tee | tr ' ' '\n'; cat $D/tee
        diff <(sort $D/loop) $D/loop && echo same
        printf 'x%sx\n' 1 2 3 > $D/pf; cat $D/pf
        for f in $D/l*; do echo $f; done; echo $D/*2
        cat $D/loop & wait $!; echo $?
        trap 'echo bye > $D/bye' EXIT; (trap 'echo sub > $D/subbye' EXIT; exit); cat $D/subbye
        exec > $D/rest; echo to the file; /bin/echo external; exec > /dev/tty 2>/dev/null
        "#,
    );
    stage.compare("cat $D/bye $D/rest");
}

#[test]
fn here_documents_and_sourced_files() {
    let stage = Stage::new(1);
    stage.compare(
        r#"
        cat > $D/here <<X
here $((1+2))
doc
X
        cat $D/here; cat <<< "string" >> $D/here; cat $D/here
        echo 'X=5; f() { echo f $1; }' > $D/lib; . $D/lib; echo $X; f a; source $D/lib
        printf 'echo script "$0" "$@"\n' > $D/s; bash $D/s a b; sh $D/s c
        sh -c 'echo dash; /bin/echo ext' > $D/sh; cat $D/sh
        sh -c 'while read l; do echo "got $l"; done < '$D/sh
        bash -c 'exec > '$D'/ex; echo builtin; /bin/echo external; printf "%s\n" p; exec /bin/echo last'; cat $D/ex
        echo "echo piped" | bash > $D/p; cat $D/p
        bash < $D/s
        "#,
    );
}

#[test]
fn working_directories() {
    let stage = Stage::new(2);
    stage.compare(
        r#"
        mkdir -p $D/a/b/c; echo text > $D/a/file; cd $D/a; pwd; /bin/pwd; ls; cat file; cat ./file ../a/file
        cd b; pwd; cat ../file; echo new > ../new; ls ..; (cd c; pwd; touch here; find ../.. | sort); ls c
        cd ../..; pwd; cd $D/a/b; cd -; cd $D; cd a/b/c && pwd
        cd /; pwd; cd $D/nothere; cd $D/a/file; pwd
        cd $D/a && find . -name 'n*' && tar cf - . | tar tf - | sort
        env -i /bin/ls; env -i PWD= sh -c pwd
        pushd b > /dev/null; dirs -l; popd > /dev/null; realpath .
        cd $D; rmdir a/b/c 2>&1 | wc -l; rm -r a; ls
        "#,
    );
}

#[test]
fn paths_in_other_words() {
    let stage = Stage::new(1);
    stage.compare(
        r#"
        mkdir $D/d; echo x > $D/f
        cat $D//f $D/./f $D/d/../f //$D/f /..$D/f /tmp/..$D/f
        ls $D/ $D/d/ $D/d/.; cat $D/f/; ls $D/f/x; mkdir $D/d/; rmdir $D/d/; ls -d $D/d
        ln -s f $D/inside; ln -s $D/f $D/absolute; ln -s /etc/hostname $D/outside; ln -s /etc $D/etc
        cat $D/inside $D/absolute; cmp $D/outside /etc/hostname && echo out; cmp $D/etc/passwd /etc/passwd && echo dir
        readlink $D/absolute $D/outside; stat -L -c %F $D/etc; stat -c %F $D/etc; head -c4 < $D/etc/passwd
        cd $D/etc && pwd | sed 's#.*/##'; ls $D/etc/passwd; test -e $D/outside && echo exists; wc -l < $D/etc/passwd
        "#,
    );
}

#[test]
fn dots_lead_out_of_the_store_and_in_again() {
    let stage = Stage::new(1);
    let output = stage.run(
        r#"
        mkdir $D/d; echo x > $D/f; cmp $D/../etc/passwd /etc/passwd && echo out; ls -d $D/../etc
        cd $D/d; cmp ../../etc/passwd /etc/passwd && echo relative; cat ../../samite/f; cd ../..; pwd; cd $D/..; pwd
        "#,
    );
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said, "out\n/samite/../etc\nrelative\nx\n/\n/\n", "{output:?}");
}
