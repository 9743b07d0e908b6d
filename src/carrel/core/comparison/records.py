"""From the record of a job, as `carrel record` prints it, to what is compared of one of its attempts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from carrel.core.comparison.facts import Code, Metrics, Section, Side
from carrel.core.comparison.packages import files_of, image_of, packages_of
from carrel.core.comparison.settings import DETERMINISTIC, ORDER_OF_SAMPLES
from carrel.core.domain.comparison import Kind
from carrel.core.domain.job import ENDED
from carrel.core.domain.units import format_duration, format_size

Record = Mapping[str, Any]

#: Facts that are not about the machine itself.
_ELSEWHERE = ("slurm_job", "slurm_nodes", "node", "network", "composition", "compose")
_LIMITS = ("cgroup_cpu", "cgroup_memory", "cpus_allowed")
#: Set for every command.
_ALL_RECORDED = "OMP_NUM_THREADS"
#: What MLflow's own and the lab's measurements of the machine begin with.
_SYSTEM = "system/"
_NOT_SAID = "The machine did not say."
_ELSEWHERE_RUN = "The run was not made by a job of this lab, which has no record of it."


def side_of(record: Record, number: int, *, label: str, code: Code, metrics: Metrics) -> Side:
    """Return attempt `number` of the job as it is compared. `metrics` are those of its run, where that is this attempt's."""
    job, task = record["job"], record["task"]
    attempt = next((one for one in record["attempts"] if one["number"] == number), None)
    sections = {
        Kind.PARAMETER: Section(values=task.get("parameters", {})),
        Kind.COMMAND: _command(task),
        Kind.CODE: _code(task, code),
        Kind.GIT: _git(task),
        Kind.LABEL: _labels(job, task),
        **_of_metrics(metrics, task),
        **(_of_attempt(attempt, job, task) if attempt is not None else _of_none(job)),
    }
    return Side(
        label=label,
        sections=sections,
        command=task.get("command", ""),
        directory=task.get("directory", "."),
        code=code,
        curves=metrics.curves,
        package_files=files_of((attempt or {}).get("environment_lock_text") or ""),
    )


def side_of_run(metrics: Metrics, *, label: str, parameters: Collection[str]) -> Side:
    """Return a run that no job of the lab has made, as it is compared with jobs that have these `parameters`."""
    tags, code = metrics.tags, Code(missing=_ELSEWHERE_RUN)
    logged = metrics.parameters
    commit = {"commit": tags["mlflow.source.git.commit"]} if "mlflow.source.git.commit" in tags else {}
    named = {"name": tags.get("mlflow.runName"), "owner": tags.get("mlflow.user")}
    told = {
        Kind.PARAMETER: Section(values={name: value for name, value in logged.items() if name in parameters}),
        Kind.LOGGED_PARAMETER: Section(values={name: value for name, value in logged.items() if name not in parameters}),
        Kind.COMMAND: Section(values=_texts({"entry point": tags.get("mlflow.source.name")}), missing=_ELSEWHERE_RUN),
        Kind.GIT: Section(values=commit, missing=_ELSEWHERE_RUN),
        Kind.LABEL: Section(values=_texts(named), missing=_ELSEWHERE_RUN),
        Kind.METRIC: Section(values=_last(metrics)),
    }
    lacking = Section(missing=_ELSEWHERE_RUN)
    return Side(label=label, sections={kind: told.get(kind, lacking) for kind in Kind}, code=code, curves=metrics.curves)


def _last(metrics: Metrics) -> dict[str, str]:
    return {name: repr(value) for name, value in metrics.last.items() if not name.startswith(_SYSTEM)}


def _texts(found: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in found.items() if value not in (None, "")}


def _command(task: Record) -> Section:
    named = {"entry point": task.get("entry_point"), "command line": task.get("command"), "directory": task.get("directory")}
    return Section(values=_texts(named))


def _code(task: Record, code: Code) -> Section:
    whole = {"": task["snapshot"]} if task.get("snapshot") else {}
    return Section(values={**whole, **code.files}, missing=code.missing)


def _git(task: Record) -> Section:
    git = task.get("git")
    if git is None:
        return Section()
    return Section(
        values=_texts({"commit": git["commit"], "branch": git.get("branch"), "uncommitted changes": _yes(git["dirty"])})
    )


def _labels(job: Record, task: Record) -> Section:
    names = ("name", "owner", "account", "qos")
    return Section(values=_texts({**{name: job.get(name) for name in names}, "experiment": task.get("experiment")}))


def _of_metrics(metrics: Metrics, task: Record) -> dict[Kind, Section]:
    # The lab logs what was asked for, too; of that the task's own text is compared.
    logged = {name: value for name, value in metrics.parameters.items() if name not in task.get("parameters", {})}
    return {
        Kind.LOGGED_PARAMETER: Section(values=logged, missing=metrics.missing),
        Kind.METRIC: Section(values=_last(metrics), missing=metrics.missing),
    }


def _of_none(job: Record) -> dict[Kind, Section]:
    why = f"Job {job['id']} has not had this attempt."
    kinds = (Kind.INPUT, Kind.INPUT_ADDRESS, Kind.VARIABLE, Kind.SETTING, Kind.PACKAGE, Kind.ENVIRONMENT, Kind.GPU, Kind.MACHINE)
    rest = (Kind.RESOURCE, Kind.LIMIT, Kind.PLACEMENT, Kind.ATTEMPT, Kind.OUTPUT)
    return {kind: Section(missing=why) for kind in (*kinds, *rest)}


def _of_attempt(attempt: Record, job: Record, task: Record) -> dict[Kind, Section]:
    facts: Mapping[str, str] = attempt.get("hardware", {})
    return {
        Kind.INPUT: _inputs(attempt, task),
        Kind.INPUT_ADDRESS: _addresses(attempt, task),
        Kind.VARIABLE: _variables(attempt, task),
        Kind.SETTING: _settings(attempt, task),
        **_environment(attempt, task),
        Kind.GPU: Section(
            values={name: kind for name, (kind, _) in _gpus(facts).items()}, missing=_no_gpus(facts, job["resources"]["gpus"])
        ),
        Kind.MACHINE: Section(
            values={k: v for k, v in facts.items() if k not in (*_ELSEWHERE, *_LIMITS, *_gpus(facts))}, missing=_NOT_SAID
        ),
        Kind.RESOURCE: _resources(job["resources"], task, facts),
        Kind.LIMIT: Section(
            values={"walltime": format_duration(job["resources"]["time"]), **{k: facts[k] for k in _LIMITS if k in facts}},
            missing=_NOT_SAID,
        ),
        Kind.PLACEMENT: _placement(attempt, job, facts),
        Kind.ATTEMPT: _course(attempt),
        Kind.OUTPUT: _outputs(attempt),
    }


def _began(attempt: Record) -> bool:
    return attempt.get("started_at") is not None


def _inputs(attempt: Record, task: Record) -> Section:
    found = {path: digest for path, digest in attempt.get("inputs", {}).items() if digest}
    why = "Its inputs were not staged." if not _began(attempt) else "The record has no digest of it."
    asked = [path for path, _ in _asked_inputs(task)]
    unknown = {path: why for path in asked if not any(at == path or at.startswith(f"{path}/") for at in found)}
    return Section(values=found, unknown=unknown, missing="" if _began(attempt) else why)


def _asked_inputs(task: Record) -> Iterator[tuple[str, str]]:
    yield from ((item["path"], item["uri"]) for item in task.get("inputs", ()))
    yield from task.get("path_parameters", {}).items()


def _addresses(attempt: Record, task: Record) -> Section:
    return Section(values={**dict(_asked_inputs(task)), **attempt.get("input_sources", {})})


def _variables(attempt: Record, task: Record) -> Section:
    seeds = attempt.get("seeds", {})
    values = {name: value for name, value in task.get("variables", {}).items() if name not in seeds}
    return Section(values=values, unknown=dict.fromkeys(task.get("secrets", ()), "Values of secrets are not recorded."))


def _settings(attempt: Record, task: Record) -> Section:
    seed, order = task.get("deterministic_seed"), task.get("order")
    told = {} if seed is None else {DETERMINISTIC: f"seed {seed}"}
    told |= {} if order in (None, "record") else {ORDER_OF_SAMPLES: f"that of job {order}"}
    # What the task itself says is known in any case.
    found = {DETERMINISTIC: "no", ORDER_OF_SAMPLES: "its own", **attempt.get("seeds", {}), **told}
    lacks = "" if _ALL_RECORDED in found else "Its command did not begin."
    return Section(values=found, missing=lacks)


def _environment(attempt: Record, task: Record) -> dict[Kind, Section]:
    about = _texts({"python": attempt.get("python")})
    lock, kind = attempt.get("environment_lock_text"), task.get("environment", {}).get("kind", "none")
    if attempt.get("environment_lock") and lock is not None:
        about |= {"lock": attempt["environment_lock"]} | _texts({"image": image_of(lock)})
        packages = packages_of(lock)
        why = "" if packages is not None else "Its lock does not name packages."
    elif attempt.get("environment_lock"):
        about |= {"lock": attempt["environment_lock"]}
        packages, why = None, "Its lock is not kept any more."
    elif kind == "none":
        packages, why = None, "It ran with the machine's own Python, of which nothing is recorded."
    else:
        packages, why = None, "The record has no lock."
    sections = {Kind.PACKAGE: Section(values=packages or {}, missing=why)}
    return sections | {Kind.ENVIRONMENT: Section(values=about, missing=why or "The record does not say.")}


def _gpus(facts: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Type and UUID of each of the job's GPUs."""
    found = {}
    for name, text in facts.items():
        if name.startswith("gpu_") and name[4:].isdecimal():
            kind, _, uuid = text.rpartition(", ")
            found[name] = (kind, uuid)
    return found


def _no_gpus(facts: Mapping[str, str], asked: int) -> str:
    return "The record does not say which GPUs it had." if asked and not _gpus(facts) else ""


def _resources(asked: Record, task: Record, facts: Mapping[str, str]) -> Section:
    values = _texts({name: asked.get(name) for name in ("nodes", "cpus", "gpus", "gpu_type")})
    values["memory"] = format_size(asked["memory"])
    if asked.get("gpu_memory"):
        values["gpu_memory"] = format_size(asked["gpu_memory"])
    values |= _texts({"compose": facts.get("compose") or asked.get("compose")})
    values["processes on each node"] = str(task.get("tasks_per_node", 1))
    values["launcher"] = task.get("launcher", "none")
    network = facts.get("network")
    return Section(values=values | _texts({"network": network}), unknown={} if network else {"network": _NOT_SAID})


def _placement(attempt: Record, job: Record, facts: Mapping[str, str]) -> Section:
    devices = {name: uuid for name, (_, uuid) in _gpus(facts).items()}
    values = _texts(
        {
            "node": facts.get("node") or attempt.get("node"),
            "partition": job.get("partition"),
            "slurm_nodes": facts.get("slurm_nodes"),
            "composition": facts.get("composition"),
        }
    )
    return Section(values=values | devices, missing="" if _began(attempt) else "Its command did not begin.")


def _course(attempt: Record) -> Section:
    values = {"state": attempt["state"], **_texts({"exit code": attempt.get("exit_code"), "signal": attempt.get("signal")})}
    values["number"] = str(attempt["number"])
    values["suspended"] = _yes(bool(attempt.get("suspended_seconds")))
    unknown = {}
    if attempt.get("ended_at") is not None and _began(attempt):
        ran = attempt["ended_at"] - attempt["started_at"] - attempt.get("suspended_seconds", 0.0)
        values["run time"] = format_duration(round(ran))
    else:
        unknown = dict.fromkeys(("run time", "exit code", "signal"), "It has not ended, or its command did not begin.")
    return Section(values=values, unknown=unknown)


def _outputs(attempt: Record) -> Section:
    stored: Sequence[Record] = attempt.get("outputs", ())
    why = ""
    if attempt["state"] not in {state.value for state in ENDED}:
        why = "It has not ended."
    elif attempt.get("uncollected"):
        why = "Not all of its outputs could be stored."
    return Section(values={file["path"]: file["digest"] for file in stored}, missing=why)


def _yes(said: bool) -> str:
    return "yes" if said else "no"
