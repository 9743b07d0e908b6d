"""A lab, tried with schemathesis as each kind of caller: `python tests/gateway/tried_by_schemathesis.py SCHEMATHESIS [SECONDS]`.

SCHEMATHESIS is its program, in an environment of its own: it is not among what the tests need. What is found is printed; the exit
code says whether something was. docs/api.md has what came of the last time.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
from gateway_lab import a_lab, serve

from carrel.core.domain.job import JobState
from carrel.core.domain.user import Role, User

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
#: Streams that do not end, archives (tests of their own), and what would make the token of the caller void.
LEFT_OUT = "/events$|/snapshots/|/tokens/current$"
PEOPLE = {"owner": Role.USER, "manager": Role.MANAGER, "operator": Role.OPERATOR, "administrator": Role.ADMIN}
ACTORS = (*PEOPLE, "job", "expired", "nobody")


def main() -> int:
    """Try a fresh lab as each of them."""
    program, seconds = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "60"
    logging.basicConfig(level=logging.ERROR)
    bad = []
    for actor in sys.argv[3:] or ACTORS:
        with tempfile.TemporaryDirectory() as place, a_lab(Path(place), stranger_rate=0) as rig, serve(rig.app) as url:
            for name, role in PEOPLE.items():
                rig.lab.people.add(User(subject=name, name=name, role=role), now=time.time())
            tokens = {name: rig.lab.tokens.hand_out(name, name="of a test", by="root")[1] for name in PEOPLE}
            if actor in ("job", "expired"):
                job = _submit(url, rig.tokens["ada"], rig.upload("ada"))
                tokens[actor] = rig.engine.wait_started(job)[1]
            if actor == "expired":
                rig.engine.end(job)
                rig.wait(job, JobState.COMPLETED)
            headers = ["-H", f"Authorization: Bearer {tokens[actor]}"] if actor in tokens else []
            words = [
                program, "run", f"{url}/openapi.json", "--url", url, *headers, "--checks", CHECKS, "--max-time", seconds,
                "--request-timeout", "60",
                "--phases", "examples,coverage,fuzzing", "--seed", "13", "--generation-deterministic",
                "--continue-on-failure",
                "--exclude-path-regex", LEFT_OUT, "--suppress-health-check", "all", "--warnings", "off",
            ]  # fmt: skip
            print(f"== {actor}", flush=True)
            done = subprocess.run(words, check=False, cwd=place)
            if done.returncode:
                bad.append(actor)
    print(f"something was found as: {', '.join(bad)}" if bad else "nothing was found")
    return int(bool(bad))


def _submit(url: str, token: str, snapshot: str) -> int:
    answer = httpx.post(f"{url}/api/v1/jobs", json={"snapshot": snapshot}, headers={"Authorization": f"Bearer {token}"})
    return int(answer.raise_for_status().json()["id"])


if __name__ == "__main__":
    sys.exit(main())
