"""One step of bench/million.sh, in a process of its own. Prints a JSON object."""

import json
import os
import resource
import sys
import time


def names(first, last):
    return (b"file-%08d" % number for number in range(first, last))


def create(directory, first, last):
    for name in names(first, last):
        os.close(os.open(directory + b"/" + name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))


def remove(directory, first, last):
    for name in names(first, last):
        os.unlink(directory + b"/" + name)


def walk(directory, last, look):
    """Every name must come once: kept as bits, so that this program's own memory stays out of the figure."""
    seen = bytearray(last // 8 + 1)
    count = 0
    with os.scandir(directory) as entries:
        for entry in entries:
            number = int(entry.name[5:])
            assert not seen[number >> 3] & 1 << (number & 7), f"{entry.name} came twice"
            seen[number >> 3] |= 1 << (number & 7)
            count += 1
            if look:
                assert os.stat(directory + b"/" + entry.name).st_size == 0
    return count


def main():
    step, directory, first, last = sys.argv[1], os.fsencode(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    started = time.monotonic()
    count = last - first
    if step == "create":
        create(directory, first, last)
    elif step == "remove":
        remove(directory, first, last)
    else:
        # The bits are there before memory is looked at.
        count = walk(directory, last, step == "stat")
    spent = time.monotonic() - started
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"step": step, "count": count, "seconds": round(spent, 6), "memory": memory}))


main()
