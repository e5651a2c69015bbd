//! The everyday tools on files of the store.

mod common;

use common::Stage;
use samite_testkit::has;

#[test]
fn reading_and_writing() {
    let stage = Stage::new(2);
    stage.compare(
        r#"
        seq 1 100000 > $D/seq; wc $D/seq; sha256sum < $D/seq; md5sum $D/seq; cksum $D/seq
        sort -rn $D/seq | head -3; sort -rn $D/seq -o $D/sorted; head -2 $D/sorted; tail -n 2 $D/seq; tail -c 5 $D/seq
        head -c 10 $D/seq | od -c; dd if=$D/seq of=$D/dd bs=4096 count=3 skip=1 2>/dev/null; sha256sum < $D/dd
        dd if=$D/dd of=$D/seq2 bs=1000 seek=2 conv=notrunc 2>/dev/null; sha256sum < $D/seq2
        cp $D/seq $D/c; cmp $D/seq $D/c && echo same; cat $D/seq $D/dd > $D/cat; wc -c $D/cat
        split -b 200000 $D/seq $D/sp.; ls $D; cat $D/sp.* | cmp - $D/seq && echo split
        comm -12 <(head -5 $D/seq) <(head -3 $D/seq); head -3 $D/seq > $D/three
        paste $D/three $D/three; tac $D/three; cut -c1 $D/three; uniq $D/three; join $D/three $D/three
        nl $D/three; fold -w1 $D/three; shuf $D/three | sort; tee $D/t1 $D/t2 < $D/three; cmp $D/t1 $D/t2 && echo tee
        sed -i s/2/two/ $D/three; cat $D/three; sed -n 2p $D/three; tr a-z A-Z < $D/three; xargs < $D/three
        grep -c 99 $D/seq; grep -n two $D/three; grep -rl two $D | sort; grep -q zzz $D/three; echo $?
        awk '{s+=$1} END {print s}' $D/seq; awk '{print > "'$D'/awk"}' $D/three; cat $D/awk
        base64 $D/three; od -An -tx1 $D/three; truncate -s 3 $D/three; cat $D/three; truncate -s 10 $D/three; od -c $D/three
        gzip -k $D/seq; gunzip -c $D/seq.gz | cmp - $D/seq && echo gz; csplit -s -f $D/cs $D/t1 2; cat $D/cs01
        cp --sparse=always $D/seq $D/sparse; cmp $D/seq $D/sparse && echo sparse; cat $D/t1 - < $D/t1
        cat /etc/passwd > $D/pw; cmp /etc/passwd $D/pw && echo pw; cp /etc/passwd $D/pw2; cmp $D/pw $D/pw2 && echo cp
        "#,
    );
}

#[test]
fn names_and_attributes() {
    let stage = Stage::new(2);
    stage.compare(
        r#"
        mkdir -p $D/d/e/f; echo x > $D/d/e/x; cp -a $D/d $D/d2; find $D/d2 | sort; mv $D/d2 $D/d3; ls -R $D/d3
        mv $D/d3/e/x /tmp/samite-mv.$$; cat /tmp/samite-mv.$$; mv /tmp/samite-mv.$$ $D/back; cat $D/back
        ln -s back $D/link; readlink $D/link; cat $D/link; ln $D/back $D/hard; stat -c '%h %F %s' $D/hard; ln -sf d $D/link
        chmod 640 $D/back; stat -c '%a %s %F %U' $D/back; chmod u+x,g-r $D/back; stat -c '%A' $D/hard
        touch -d '2001-02-03 04:05:06.789' $D/back; stat -c '%Y %y' $D/back; touch -r $D/back $D/d; stat -c %Y $D/d
        (umask 077; touch $D/um; mkdir $D/umd); stat -c %a $D/um $D/umd; install -m 755 $D/back $D/inst; stat -c %a $D/inst
        find $D -type l; find $D -name 'e*' | sort; find $D -perm 755 -type f; find $D -empty -type f
        rmdir $D/d; rm -r $D/d3; ls $D/d3; rm $D/d; rm -f $D/nothere; rm $D/nothere; unlink $D/hard; ls $D | sort
        mktemp -d $D/td.XXXXXX | wc -l; mktemp -p $D | wc -l; realpath $D/link/../back; readlink -f $D/link
        mkdir $D/d; mkfifo $D/fifo; stat -c %F $D/fifo; test -p $D/fifo && echo fifo; rm $D/fifo
        test -f $D/back && test -d $D/d && test -L $D/link && test ! -e $D/no && test -s $D/back && echo tests
        mv $D/back $D/um; cat $D/um; mv -n $D/um $D/inst; ls $D/um; mkdir $D/m1 $D/m2; touch $D/m2/x; mv -T $D/m1 $D/m2; mv $D/m1 $D/m2; ls $D/m2
        df $D | wc -l; du -sb $D/m2/x | cut -f1; stat -f -c %l $D; sync $D/um && echo synced
        ls -l $D/um | wc -w; ls -1U $D/m2 | wc -l; ls -i $D/um | wc -w
        printf 'n\n' > $D/$'new\nline'; ls -b $D/new*; printf x > $D/$'\xff\xfe'; ls -b $D | tail -1; rm $D/$'\xff\xfe' $D/new*
        find $D -mindepth 1 -delete; ls -A $D
        "#,
    );
}

#[test]
fn trees_in_archives() {
    let stage = Stage::new(2);
    stage.compare(
        r#"
        mkdir -p $D/t/a/b; for i in $(seq 200); do echo file $i > $D/t/a/$i; done; seq 50000 > $D/t/a/b/big
        ln -s ../a $D/t/l; chmod 600 $D/t/a/7; touch -d '2001-01-01' $D/t/a/8
        tar cf $D/t.tar -C $D t; tar tf $D/t.tar | sort | md5sum; mkdir $D/x; tar xf $D/t.tar -C $D/x
        diff -r $D/t $D/x/t && echo same; stat -c '%a %Y' $D/x/t/a/7 $D/x/t/a/8 | tail -1; readlink $D/x/t/l
        tar cf - -C $D t | (cd $D/x && tar xf - && ls); tar czf $D/t.tgz -C $D t; tar tzf $D/t.tgz | wc -l
        tar cf /tmp/samite-t.$$ -C $D t; tar df /tmp/samite-t.$$ -C $D && echo nodiff; rm /tmp/samite-t.$$
        tar cf - -C / etc/passwd | tar xf - -C $D; cmp $D/etc/passwd /etc/passwd && echo in
        find $D/t -type f | wc -l; grep -r 'file 19' $D/t | wc -l; find $D/t -name '1*' -exec cat {} + | sort | md5sum
        find $D/t -type f -print0 | xargs -0 sha256sum | sort | sha256sum | wc -c; rm -rf $D/t; find $D/x -type f | wc -l
        "#,
    );
}

#[test]
fn wide_character_tools() {
    if !has("rev") {
        return;
    }
    let stage = Stage::new(1);
    stage.compare(
        "printf 'abc\\nd\u{e9}f\\n' > $D/w; rev $D/w; rev < $D/w; rev $D/w > $D/w2; cat $D/w2",
    );
}

#[test]
fn perl_and_awk() {
    if !has("perl") {
        return;
    }
    let stage = Stage::new(1);
    stage.compare(
        r#"
        perl -e 'print "perl\n"; system("echo child"); open(F,">>","'$D'/p"); print F "appended\n"; close F;' > $D/o 2>&1
        sort $D/o; cat $D/p; perl -ne 'print if /app/' $D/p; perl -i -pe 's/app/APP/' $D/p; cat $D/p
        perl -e 'opendir(D,"'$D'"); print join(",",sort grep {!/^\./} readdir D),"\n"; print -s "'$D'/p", "\n"'
        awk 'BEGIN{print "awk" > "'$D'/a"; close("'$D'/a"); while((getline l < "'$D'/a")>0) print "got", l; print "x" | "cat"; close("cat"); system("echo sys")}' > $D/o2
        cat $D/o2
        "#,
    );
}
