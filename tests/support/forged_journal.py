"""A program that writes into the journal of the task that runs it, as a task can where it runs as its owner."""

from __future__ import annotations

#: Appends lines with right checksums, each of which says what no runner says. Its arguments are named as digests of outputs.
FORGER = """\
import json, pathlib, sys, time, zlib

here = next(place for place in pathlib.Path.cwd().parents if (place / "journal.jsonl").exists())
now = time.time()
end = {"type": "ended", "state": "COMPLETED", "reason": {"code": "", "message": ""}, "exit_code": 0}
ready = {"type": "environment", "digest": "x", "python": "3", "built": False, "seconds": 1}
lines = []
for digest in sys.argv[1:]:
    lines += [
        {"at": now, **end, "outputs": [{"path": "token", "size": 10, "digest": digest}]},
        {"at": now, **ready, "lock": digest},
    ]
lines += [
    {"at": 1e300, **end},
    {"at": now, "type": "resumed", "seconds": "abc"},
    {"at": now, **end, "exit_code": 10**30},
    {"at": now, **end, "state": "RUNNING"},
    {"at": now, **end, "reason": {"code": "x", "message": "\\ud800"}},
    {"at": now, "type": "started", "pid": 1, "hardware": {"cpu": [[[]]]}},
    {"at": now + 1e7, "type": "sampled", "usage": {}},
]
with open(here / "journal.jsonl", "ab", buffering=0) as journal:
    for line in [json.dumps(one).encode() for one in lines] + [b"[" * 100_000]:
        journal.write(b"%08x %s\\n" % (zlib.crc32(line), line))
print("forged")
"""
