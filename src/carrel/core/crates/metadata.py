"""The metadata of a crate: what RO-Crate 1.1 and Process Run Crate 0.5 want to be told of a job. Pure.

Nothing is invented: what the record and the code do not say is not there. The same content gives the same text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any
from urllib.parse import quote

from carrel.core.comparison.packages import image_of
from carrel.core.crates.about import About
from carrel.core.crates.content import CODE, LOCK, METADATA, METRICS, RECORD, RESULTS, Content, OutputFile
from carrel.core.snapshots import Kind

CRATE = "https://w3id.org/ro/crate/1.1"
PROFILE = "https://w3id.org/ro/wfrun/process/0.5"
_CONTEXT = [f"{CRATE}/context", "https://w3id.org/ro/terms/workflow-run/context"]
_SPDX = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]*")
_PYTHON = re.compile(r"([A-Za-z]+)-([0-9][0-9A-Za-z.]*)")
_FORMATS = {
    **dict.fromkeys(("txt", "cfg", "ini", "toml", "log", "lock", "sh"), "text/plain"),
    **{"py": "text/x-python", "md": "text/markdown", "csv": "text/csv", "html": "text/html"},
    **{"json": "application/json", "yaml": "application/yaml", "yml": "application/yaml", "ipynb": "application/x-ipynb+json"},
    **{"png": "image/png", "jpg": "image/jpeg", "svg": "image/svg+xml", "pdf": "application/pdf"},
}
Entity = dict[str, Any]


def record_text(content: Content) -> bytes:
    """The record as it lies in the crate."""
    return _json(content.record)


def metrics_text(content: Content) -> bytes:
    """The metrics as they lie in the crate."""
    return _json(content.metrics)


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def describe_crate(content: Content, about: About) -> bytes:
    """Return the text of ``ro-crate-metadata.json``."""
    graph = list(_entities(content, about))
    return (json.dumps({"@context": _CONTEXT, "@graph": graph}, indent=2, ensure_ascii=False) + "\n").encode()


def _entities(content: Content, about: About) -> Iterator[Entity]:
    job, task, attempt = content.record["job"], content.record["task"], content.attempt
    own = list(_own_files(content))
    results = [_output(one) for one in content.outputs]
    licence = _licence(about)
    yield {"@id": METADATA, "@type": "CreativeWork", "conformsTo": {"@id": CRATE}, "about": {"@id": "./"}}
    root = {
        "@id": "./",
        "@type": "Dataset",
        "conformsTo": {"@id": PROFILE},
        "name": f"Job {job['id']}: {job['name']}",
        "description": f"The job {job['id']} of the lab {content.record['lab']}: its record, code, environment and results.",
        "datePublished": _time(job.get("ended_at") or job["submitted_at"]),
        "license": _ids([licence])[0],
        "hasPart": _ids([*own, {"@id": CODE}, *results]),
        "mentions": [{"@id": "#run"}, {"@id": "#carrel"}],
    }
    yield {**root, **_authors(about)}
    yield {"@id": PROFILE, "@type": "CreativeWork", "name": "Process Run Crate", "version": "0.5"}
    given = [_parameter(name, value) for name, value in sorted(task.get("parameters", {}).items())]
    inputs = list(_inputs(task, attempt))
    others = [_left_out(one) for one in content.left_out]
    yield _run(content, given + inputs, results + others)
    yield from given + inputs
    yield {"@id": "#agent", "@type": "Person", "name": job["owner"]}
    yield from _code(content, about, licence)
    yield from own + results + others
    if licence["@id"] != _place(CODE, about.licence_file):
        yield licence
    carrel = {"@id": "#carrel", "@type": "SoftwareApplication", "name": "Carrel", "softwareVersion": content.version}
    yield {**carrel, "description": "Ran the lab when this crate was written."}


def _run(content: Content, given: list[Entity], made: list[Entity]) -> Entity:
    job, task, attempt = content.record["job"], content.record["task"], content.attempt
    ended = "CompletedActionStatus" if job["state"] == "COMPLETED" else "FailedActionStatus"
    image = image_of(content.lock)
    run: Entity = {
        "@id": "#run",
        "@type": "CreateAction",
        "name": f"Job {job['id']}: {job['name']}",
        "description": task["command"],
        "instrument": {"@id": CODE},
        "agent": {"@id": "#agent"},
        "object": _ids(given),
        "result": _ids(made),
        "actionStatus": f"http://schema.org/{ended}",
    }
    if image is not None:
        run["containerImage"] = content.lock.strip()
    if ended.startswith("Failed"):
        run["error"] = job["reason"]["message"]
    for name, key in (("startTime", "started_at"), ("endTime", "ended_at")):
        if attempt.get(key) is not None:
            run[name] = _time(attempt[key])
    return run


def _own_files(content: Content) -> Iterator[Entity]:
    """What Carrel itself puts there."""
    yield _file(RECORD, record_text(content), "The record of the job", "application/json")
    if content.lock:
        yield _file(LOCK, content.lock.encode(), "What its environment was built from", "text/plain")
    if content.metrics is not None:
        yield _file(METRICS, metrics_text(content), "Metrics of its run", "application/json")


def _file(name: str, text: bytes, what: str, kind: str) -> Entity:
    size, digest = str(len(text)), sha256(text).hexdigest()
    return {"@id": name, "@type": "File", "name": what, "encodingFormat": kind, "contentSize": size, "sha256": digest}


def _code(content: Content, about: About, licence: Entity) -> Iterator[Entity]:
    task, git = content.record["task"], content.record["task"].get("git") or {}
    files = [
        {
            "@id": _place(CODE, entry.path),
            "@type": "File",
            "name": entry.path,
            "encodingFormat": _format(entry.path),
            "contentSize": str(entry.size),
            "sha256": entry.sha256,
        }
        for entry in content.code
        if entry.kind is Kind.FILE
    ]
    python = _PYTHON.fullmatch(content.attempt.get("python") or "")
    needs = [{"@id": "#python"}] if python else []
    code: Entity = {
        "@id": CODE,
        "@type": ["Dataset", "SoftwareSourceCode"],
        "name": about.title or content.record["job"]["name"],
        "description": f"The code that ran: snapshot {task['snapshot']}.",
        "version": git.get("commit") or task["snapshot"],
        "license": {"@id": licence["@id"]},
        "softwareRequirements": needs + ([{"@id": LOCK}] if content.lock else []),
        "hasPart": _ids(files),
    }
    if url := git.get("remote") or about.url:
        code["codeRepository"] = url
        if str(url).startswith("https://"):
            code["url"] = url
    code |= _authors(about)
    yield {key: value for key, value in code.items() if value != []}
    yield from files
    for number, author in enumerate(about.authors):
        kind = "Person" if author.given else "Organization"
        person = {"@id": _author(number), "@type": kind, "name": author.name}
        yield {**person, **({"identifier": author.orcid} if author.orcid else {})}
    if python:
        known = {"name": python[1], "softwareVersion": python[2], "url": "https://www.python.org/"}
        yield {"@id": "#python", "@type": "SoftwareApplication", **known}


def _authors(about: About) -> Entity:
    return {"author": [{"@id": _author(number)} for number in range(len(about.authors))]} if about.authors else {}


def _author(number: int) -> str:
    return f"#author-{number + 1}"


def _licence(about: About) -> Entity:
    if about.licence_file:
        return {"@id": _place(CODE, about.licence_file)}
    if _SPDX.fullmatch(about.licence):
        return {"@id": f"https://spdx.org/licenses/{about.licence}", "@type": "CreativeWork", "name": about.licence}
    if about.licence:
        return {"@id": "#licence", "@type": "CreativeWork", "name": about.licence}
    unknown = "The code of this job says nothing of a licence: ask its authors before you use it."
    return {"@id": "#licence", "@type": "CreativeWork", "name": "No licence is stated", "description": unknown}


def _parameter(name: str, value: str) -> Entity:
    return {"@id": f"#parameter/{quote(name)}", "@type": "PropertyValue", "name": name, "value": value}


def _inputs(task: Mapping[str, Any], attempt: Mapping[str, Any]) -> Iterator[Entity]:
    """Inputs by the addresses that the task names; digests of what was there."""
    asked = {item["path"]: item["uri"] for item in task.get("inputs", ())} | dict(task.get("path_parameters", {}))
    digests, sources = attempt.get("inputs", {}), attempt.get("input_sources", {})
    for path, uri in sorted(asked.items()):
        found: Entity = {"@id": f"#input/{quote(path)}", "@type": "CreativeWork", "name": path}
        found["url"] = sources.get(path, uri)
        if str(digests.get(path) or "").startswith("sha256:"):
            found["sha256"] = digests[path].removeprefix("sha256:")
        yield found


def _output(one: OutputFile) -> Entity:
    digest = one.digest.removeprefix("sha256:")
    return {
        "@id": _place(RESULTS, one.path),
        "@type": "File",
        "name": one.path,
        "encodingFormat": _format(one.path),
        "contentSize": str(one.size),
        "sha256": digest,
    }


def _left_out(one: OutputFile) -> Entity:
    """An output that is not here is no data of the crate; its digest says what it was."""
    return {**_output(one), "@id": f"#result/{quote(one.path)}", "@type": "CreativeWork"}


def _format(path: str) -> str:
    """Told by the name alone, and the same on every machine."""
    return _FORMATS.get(path.rpartition("/")[2].rpartition(".")[2].lower(), "application/octet-stream")


def _place(directory: str, path: str) -> str:
    return directory + quote(path) if path else ""


def _ids(entities: list[Entity]) -> list[Entity]:
    return [{"@id": entity["@id"]} for entity in entities]


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(round(seconds), UTC).isoformat()
