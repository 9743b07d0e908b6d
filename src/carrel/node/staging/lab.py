"""Inputs that the lab itself has: outputs of jobs, and what MLflow keeps; asked for as the job's owner."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlencode

from carrel.node.staging.download import News, manifest
from carrel.node.staging.failed import InputFailed
from carrel.node.staging.web import TRIES_OF_THE_LAB, copy_http, read_json, trusting

_JOB = re.compile(r"job:(?://)?/?(?P<job>[1-9][0-9]{0,17})(?:/(?P<path>.*))?")
_RUN = re.compile(r"runs:/{1,3}(?P<run>[0-9a-f]{32})(?:/(?P<path>.*))?")
_MODEL = re.compile(r"models:/{1,3}(?P<name>[^/@]+)(?:@(?P<alias>[^/]+)|/(?P<version>[^/]+))(?:/(?P<path>.*))?")
_STORE = re.compile(r"mlflow-artifacts:/{1,3}(?P<path>[^?#]+)")
_FORMS = {
    "job": "job:12/outputs/model.pt, a file or a directory among the outputs of job 12",
    "runs": "runs:/RUN_ID/path, a file or a directory among the artifacts of a run",
    "models": "models:/NAME/VERSION or models:/NAME@ALIAS, a registered model",
    "mlflow-artifacts": "mlflow-artifacts:/path",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One file: where it goes below the input's place, and where its content is."""

    path: str
    url: str
    #: Bytes, and digest, where they are known before.
    size: int | None = None
    digest: str | None = None


def check_lab_uri(uri: str) -> None:
    """Raise `InputFailed` for an address of the lab's that is none."""
    scheme = uri.partition(":")[0]
    pattern = {"job": _JOB, "runs": _RUN, "models": _MODEL, "mlflow-artifacts": _STORE}[scheme]
    match = pattern.fullmatch(uri)
    path = unquote((match.groupdict().get("path") or "") if match else "").rstrip("/")
    if match is None or (path and any(part in ("", ".", "..") for part in path.split("/"))):
        raise InputFailed(f'"{uri[:200]}" is no {scheme}: address.', remedy=f"Write it like {_FORMS[scheme]}.")


@dataclass(frozen=True, slots=True)
class LabFiles:
    """The lab's address, the token of the job that asks, and who signs the lab's certificate ("": whom the machine trusts)."""

    url: str
    token: str = field(repr=False)
    authority: str = field(default="", repr=False)

    def copy(self, uri: str, target: Path, news: News) -> str:
        """Fetch what is at `uri` to `target`, a file or a directory; return its digest. Raises `InputFailed`."""
        check_lab_uri(uri)
        if not self.url:
            raise InputFailed(f"The input {uri} is the lab's, whose address this job does not know.")
        scheme = uri.partition(":")[0]
        found = list(self._outputs(uri) if scheme == "job" else self._tracked(uri))
        if not found:
            job = _JOB.fullmatch(uri)
            listed = f"`carrel outputs {job['job']} --list` lists what there is" if job else f"Write it like {_FORMS[scheme]}"
            raise InputFailed(f"There is nothing at {uri}.", remedy=f"{listed}.")
        if len(found) == 1 and not found[0].path:
            return self._copy(found[0], uri, target, news)
        placed = sorted((one.path, one) for one in found)
        return manifest(((path, self._copy(one, f"{uri.rstrip('/')}/{path}", target / path, news)) for path, one in placed), news)

    def _copy(self, found: Found, uri: str, target: Path, news: News) -> str:
        digest = copy_http(
            found.url,
            target,
            news,
            headers=self._headers(),
            called=uri,
            size=found.size,
            opener=trusting(self.authority),
            tries=TRIES_OF_THE_LAB,
        )
        if found.digest is not None and digest != found.digest:
            raise InputFailed(f"The input {uri} has the digest {digest}, and the lab stored {found.digest}: it was damaged.")
        return digest

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def _ask(self, route: str, uri: str, **query: str) -> Any:
        asked = f"{self.url}{route}" + (f"?{urlencode(query)}" if query else "")
        opener = trusting(self.authority)
        return read_json(asked, self._headers(), called=f"The input {uri}", opener=opener, tries=TRIES_OF_THE_LAB)

    # --- outputs of jobs ----------------------------------------------------------------------------------------------------

    def _outputs(self, uri: str) -> Iterator[Found]:
        match = _JOB.fullmatch(uri)
        assert match is not None
        job, path = match["job"], unquote(match["path"] or "").rstrip("/")
        state = self._ask(f"/api/v1/jobs/{job}", uri)["state"]
        if state != "COMPLETED":
            raise InputFailed(
                f"Job {job} is {state}, and the input {uri} is among its outputs.",
                remedy=f"Submit with --dependency afterok:{job}: the task then starts when that job has completed.",
            )
        for one in self._ask(f"/api/v1/jobs/{job}/outputs", uri)["outputs"]:
            inside = _inside(one["path"], path)
            if inside is not None:
                url = f"{self.url}/api/v1/jobs/{job}/outputs/{quote(one['path'])}"
                yield Found(path=inside, url=url, size=int(one["size"]), digest=str(one["digest"]))

    # --- what MLflow keeps --------------------------------------------------------------------------------------------------

    def _tracked(self, uri: str) -> Iterator[Found]:
        if match := _MODEL.fullmatch(uri):
            place, within = self._model(uri, match), unquote(match["path"] or "").strip("/")
        else:
            place, within = unquote(uri), ""
        for pattern in (_RUN, _STORE):  # where a version lies a program has said, which may be among the artifacts of a run
            if found := pattern.fullmatch(place):
                check_lab_uri(place)
                path = "/".join(part for part in ((found["path"] or "").strip("/"), within) if part)
                return self._of_run(uri, found["run"], path) if pattern is _RUN else self._of_store(uri, path)
        raise InputFailed(f"The model {uri} lies at {place}, which is not the lab's own store.")

    def _of_run(self, uri: str, run: str, path: str) -> Iterator[Found]:
        parent = path.rpartition("/")[0]
        listed = self._ask("/mlflow/api/2.0/mlflow/artifacts/list", uri, run_id=run, **({"path": parent} if parent else {}))
        entry = next((one for one in listed.get("files", ()) if one["path"] == path), None)
        if path and (entry is None or not entry.get("is_dir")):
            if entry is not None:
                yield Found(path="", url=self._artifact(run, path))
            return
        waiting = [path]
        while waiting:
            inside = waiting.pop()
            listed = self._ask("/mlflow/api/2.0/mlflow/artifacts/list", uri, run_id=run, **({"path": inside} if inside else {}))
            for one in listed.get("files", ()):
                if one.get("is_dir"):
                    waiting.append(one["path"])
                else:
                    yield Found(path=_inside(one["path"], path) or one["path"], url=self._artifact(run, one["path"]))

    def _artifact(self, run: str, path: str) -> str:
        return f"{self.url}/mlflow/get-artifact?{urlencode({'run_uuid': run, 'path': path})}"

    def _model(self, uri: str, match: re.Match[str]) -> str:
        name, version = unquote(match["name"]), match["version"]
        if match["alias"]:
            known = self._ask("/mlflow/api/2.0/mlflow/registered-models/alias", uri, name=name, alias=unquote(match["alias"]))
            version = known["model_version"]["version"]
        known = self._ask("/mlflow/api/2.0/mlflow/model-versions/get-download-uri", uri, name=name, version=str(version))
        return str(known.get("artifact_uri", ""))

    def _of_store(self, uri: str, path: str) -> Iterator[Found]:
        parent, _, name = path.rpartition("/")
        beside = {one["path"].rpartition("/")[2]: one for one in self._listed(uri, parent)}
        if name in beside and not beside[name].get("is_dir"):
            yield Found(path="", url=self._stored(path))
            return
        waiting = [path]
        while waiting:
            inside = waiting.pop()
            for one in self._listed(uri, inside):
                there = f"{inside}/{one['path'].rpartition('/')[2]}"
                if one.get("is_dir"):
                    waiting.append(there)
                else:
                    yield Found(path=_inside(there, path) or there, url=self._stored(there))

    def _listed(self, uri: str, path: str) -> list[dict[str, Any]]:
        return list(self._ask("/mlflow/api/2.0/mlflow-artifacts/artifacts", uri, path=path).get("files", ()))

    def _stored(self, path: str) -> str:
        return f"{self.url}/mlflow/api/2.0/mlflow-artifacts/artifacts/{quote(path)}"


def _inside(path: str, wanted: str) -> str | None:
    """Where `path` is below `wanted`: "" when it is that itself, None when it is elsewhere."""
    if path == wanted:
        return ""
    if not wanted:
        return path
    return path[len(wanted) + 1 :] if path.startswith(wanted + "/") else None
