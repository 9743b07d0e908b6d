"""The page from which a browser runs a task: a pasted script, uploaded code, a notebook, or a git repository."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from anyio import CapacityLimiter, to_thread
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from carrel.core.control.ports import JobFilter
from carrel.core.control.sessions import DEFAULT_ENVIRONMENT
from carrel.core.domain.errors import CarrelError, Invalid, NotFound
from carrel.core.domain.job import ENDED
from carrel.core.domain.qos import JobKind
from carrel.core.domain.resources import Resources
from carrel.core.domain.task import EnvironmentKind
from carrel.core.domain.units import format_duration, format_size
from carrel.core.domain.user import Caller
from carrel.core.policy.partitions import partitions_for
from carrel.core.submission import ResourceOptions, TaskOptions, options_of
from carrel.core.tasks.backend_config import read_backend_config
from carrel.core.tasks.command import script_command
from carrel.core.tasks.sbatch import read_directives
from carrel.lab.gateway.context import Gateway
from carrel.lab.gateway.errors import problem_of
from carrel.lab.gateway.new_code import NEW_TASK, Runnable
from carrel.lab.gateway.own_notebooks import copy_notebook
from carrel.lab.gateway.views import preview_view
from carrel.lab.portal.entrance import check_form
from carrel.lab.portal.multipart import FewAtOnce, UploadedFile, in_threads, read_upload
from carrel.lab.portal.requests import caller_of, number_in
from carrel.lab.portal.templating import Templates
from carrel.lab.portal.words import written
from carrel.wire.v1 import GitRequest, PreviewView, ResourceRequest, TaskRequest

_OPTIONS = {**options_of(TaskOptions), **options_of(ResourceOptions)}
_RESOURCES = frozenset(options_of(ResourceOptions))
#: Options of a task that the form has, with what the page calls them; the first ones are always in sight.
FIELDS: Mapping[str, str] = {
    "name": "Name",
    "gpus": "GPUs",
    "cpus": "CPUs",
    "memory": "Memory",
    "time": "At most",
    "gpu_type": "GPU type",
    "gpu_memory": "Memory of each GPU",
    "nodes": "Nodes",
    "qos": "Class of service",
    "partition": "Partition",
    "account": "Account",
    "image": "Image",
    "array": "Array",
    "retries": "Retries",
    "requeue": "Goes on after its walltime",
    "experiment": "Experiment",
}
#: A field of the form for each parameter that code declares begins so.
_PARAMETER = "P:"
#: Earlier jobs of the same name from which the page says what is usual.
_USUAL = 12
#: Repositories that are fetched, and other forms that are answered, at a time; others wait.
_AT_ONCE = 4
#: Characters of all arguments together.
_ARGUMENTS = 32_000


class FieldError(Exception):
    """What was written into one field cannot be."""

    def __init__(self, name: str, error: CarrelError) -> None:
        super().__init__(name)
        self.name = name
        self.error = error


@dataclass(slots=True)
class _Form:
    """What the page shows: what was typed, and what came of it."""

    fields: dict[str, str] = field(default_factory=dict)
    offers: Runnable | None = None
    problem: CarrelError | None = None
    #: The field that it is about; "": none of them alone.
    about: str = ""
    preview: PreviewView | None = None
    notes: tuple[str, ...] = ()
    usual: str = ""
    command: str = ""


class NewTaskPage:
    """``/tasks/new``."""

    def __init__(self, gateway: Gateway, look: Templates) -> None:
        self._gateway = gateway
        self._look = look
        self._limiters: tuple[CapacityLimiter, CapacityLimiter] | None = None
        #: Forms that come in or are looked at now, by user.
        self._few = FewAtOnce()

    def routes(self) -> list[BaseRoute]:
        """The routes of the page."""
        return [Route(NEW_TASK, self.blank, methods=["GET"]), Route(NEW_TASK, self.answer, methods=["POST"])]

    def blank(self, request: Request) -> Response:
        """The empty form; with ``job=N`` filled as that job was submitted, with ``template=NAME`` with one of the site's.

        With ``notebook=PATH`` it has a notebook among the caller's own files.
        """
        if path := request.query_params.get("notebook", ""):
            return self._page(request, self._of_notebook(caller_of(request), path))
        if name := request.query_params.get("template", ""):
            return self._page(request, self._of_template(caller_of(request), name))
        number = number_in(request.query_params.get("job"))
        return self._page(request, _Form() if number is None else self._as_before(caller_of(request), number))

    async def answer(self, request: Request) -> Response:
        """Run the task and go to its page, or show the form with what would become of it, or with what is wrong."""
        if self._limiters is None:  # they belong to the loop that serves
            self._limiters = CapacityLimiter(_AT_ONCE), CapacityLimiter(_AT_ONCE)
        repositories, others = self._limiters
        async with self._few.one(caller_of(request)), in_threads(self._gateway.incoming.directory()) as scratch:
            fields, files = await read_upload(request, scratch)
            check_form(fields, self._look.form_secret(request))
            # A repository or an archive may take its time: it must not take the threads that answer everybody else.
            limiter = repositories if fields.get("repository") else others
            return await to_thread.run_sync(self._answer, request, fields, files, limiter=limiter)

    def _answer(self, request: Request, fields: dict[str, str], files: Sequence[UploadedFile]) -> Response:
        caller, do = caller_of(request), fields.get("do", "run")
        form = _Form(fields)
        if do == "other":
            for name in ("snapshot", "code", "directory", "commit", "remote", "runs"):
                fields.pop(name, None)
            return self._page(request, form)
        seen = fields.pop("seen", "")
        try:
            self._read_code(caller, form, files)
            task = self._task(form)
            unseen = [note for note in form.notes if note not in seen]
            if do == "run" and not unseen:
                submitted, _ = self._gateway.submissions.submit(caller, task, None)
                return RedirectResponse(f"/jobs/{submitted.job.id}", 303)
            preview = preview_view(*self._gateway.submissions.preview(caller, task))
            form.preview, form.notes = preview, tuple(dict.fromkeys((*form.notes, *preview.notes)))
            form.usual = self._usual(caller, task.name or self._gateway.submissions.name_of(caller, task))
        except FieldError as error:
            form.about, form.problem = error.name, error.error
        except CarrelError as error:
            form.problem = error
        form.command = _command(form)
        return self._page(request, form)

    def _of_template(self, caller: Caller, name: str) -> _Form:
        """One of the site's projects, to be run with the values that the user gives. Raises `NotFound`."""
        code = self._gateway.incoming.template(caller, name)
        form = _Form({"snapshot": code.snapshot, "code": code.name})
        form.offers = self._gateway.incoming.of(caller, code.snapshot)
        form.fields["runs"] = form.offers.only or ""
        return form

    def _of_notebook(self, caller: Caller, path: str) -> _Form:
        """A notebook of the caller's as it is now, with the packages of their sessions. Raises `NotFound` and `Invalid`."""
        sessions, environments = self._gateway.sessions, self._gateway.environments
        if sessions is None:
            raise NotFound("This lab offers no sessions.", remedy="Upload the notebook.")
        with self._gateway.incoming.directory() as scratch:
            copy_notebook(sessions.files, caller, path, scratch / "copy")
            code = self._gateway.incoming.files(caller, [(path.rpartition("/")[2], scratch / "copy")])
        form = _Form({"snapshot": code.snapshot, "code": path})
        form.offers = self._gateway.incoming.of(caller, code.snapshot)
        form.fields["runs"] = form.offers.only or ""
        known = [one.name for one in environments.list(caller).environments]
        own = DEFAULT_ENVIRONMENT in known
        form.fields["environment"], form.notes = (DEFAULT_ENVIRONMENT, ()) if own else ("", code.notes)
        return form

    def _as_before(self, caller: Caller, job_id: int) -> _Form:
        """What a job was submitted with, as far as the form has it. Raises `NotFound` for code that is not the caller's."""
        lab = self._gateway.lab
        job, task = lab.job(caller, job_id), lab.task(caller, job_id)
        form = _Form({"snapshot": task.snapshot, "code": f"the code of job {job_id}", "runs": task.entry_point})
        if task.directory != ".":
            form.fields["directory"] = task.directory
        form.offers = self._gateway.incoming.of(caller, task.snapshot, task.directory)
        recipe = task.environment
        image = recipe.requirements[0] if recipe.kind is EnvironmentKind.IMAGE and recipe.requirements else None
        known = {**{name: getattr(job.resources, name) for name in _RESOURCES}}
        known |= {name: getattr(job, name) for name in ("name", "qos", "partition", "account")}
        known |= {"experiment": task.experiment, "requeue": task.requeue, "image": image}
        form.fields |= {name: written(name, value) for name, value in known.items() if value}
        start = script_command(task.entry_point)
        if start is not None and task.entry_point not in form.offers.entry_points:
            # Behind the script: options of its shell (`#!/bin/bash -e`) come before it.
            form.fields["arguments"] = task.command.partition(start.partition(" ")[2])[2].strip()
        else:
            form.fields |= {_PARAMETER + name: value for name, value in task.parameters.items()}
        if task.git is not None and not task.git.dirty:  # else the commit is not what the code is
            form.fields |= {"commit": task.git.commit, "remote": task.git.remote or ""}
        return form

    # ---- code

    def _read_code(self, caller: Caller, form: _Form, files: Sequence[UploadedFile]) -> None:
        """Have the code that was chosen here, and know what it offers."""
        fields, incoming = form.fields, self._gateway.incoming
        given = [(one.name, one.path) for one in files if one.field in ("file", "folder")]
        pasted, address = fields.get("script", ""), fields.get("repository", "").strip()
        if len([one for one in (pasted.strip(), given, address) if one]) > 1:
            raise Invalid(
                "Code was given in more than one way.", remedy="Keep one: the pasted script, the upload, or the address."
            )
        code = None
        if given:
            code = incoming.files(caller, given, self._requirements(caller, fields))
        elif address:
            try:
                code = incoming.repository(caller, address, fields.get("version", "").strip())
            except Invalid as error:
                raise FieldError("repository", error) from error
        elif pasted.strip():
            code = incoming.text(caller, pasted, fields.get("name", ""), self._requirements(caller, fields))
            try:
                self._read_directives(form, pasted)
            except Invalid as error:
                raise FieldError("script", error) from error
        elif not fields.get("snapshot"):
            raise FieldError(
                "script", Invalid("There is no code yet.", remedy="Paste a script, choose a file, or name a repository.")
            )
        elif packages := self._requirements(caller, fields):
            fields["snapshot"] = incoming.with_packages(caller, fields["snapshot"], packages)
        if code is not None:
            fields.pop("directory", None)
            fields |= {"snapshot": code.snapshot, "code": code.name, "commit": code.commit, "remote": code.remote}
            form.notes = (*code.notes, *form.notes)
        form.offers = incoming.of(caller, fields["snapshot"], fields.get("directory", "."))
        known = {*form.offers.entry_points, *form.offers.scripts}
        if fields.get("runs") not in known:
            fields["runs"] = form.offers.only or ""
        if not known:
            raise Invalid("The code has nothing to run.", remedy="It needs a .py or .sh file, or an MLproject with entry points.")
        if not fields["runs"]:
            raise FieldError("runs", Invalid("The code has several programs.", remedy="Choose the one to run."))

    def _requirements(self, caller: Caller, fields: Mapping[str, str]) -> str:
        """The packages that were chosen for code that says nothing of them, as lines of a requirements file."""
        chosen, packages = fields.get("environment", ""), fields.get("packages", "").replace("\r\n", "\n").strip()
        if chosen and packages:
            raise FieldError("packages", Invalid("Both an environment and packages are named.", remedy="Keep one of them."))
        if chosen and self._gateway.environments is not None:
            return self._gateway.environments.lock(caller, chosen, None).text
        return packages and packages + "\n"

    def _read_directives(self, form: _Form, script: str) -> None:
        """Let the #SBATCH lines of a script fill the fields that are empty; say what they say that has no meaning here."""
        said = read_directives(script.replace("\r\n", "\n"))
        policy, left, notes = self._gateway.lab.policy, dict(said.config), list(said.others)
        for key, known in (("partition", policy.partitions), ("qos", policy.qos), ("account", policy.rules.current.accounts)):
            if key in left and left[key] not in known:
                notes.append(f"--{key}={left.pop(key)}")
        for key in ("output", "error"):
            left.pop(key, None)  # the lab keeps both as the log
        read = read_backend_config(left).options
        for name in FIELDS:
            value = getattr(read.resources if name in _RESOURCES else read, name)
            if value is not None and not form.fields.get(name, "").strip():
                form.fields[name] = written(name, value)
        if notes:
            form.notes = (
                *form.notes,
                f"#SBATCH {' '.join(notes)}: the lab has nothing of that kind. It stays in the script, and changes nothing.",
            )

    # ---- the task

    def _task(self, form: _Form) -> TaskRequest:
        fields, offers = form.fields, form.offers
        assert offers is not None
        said = {name: _read(name, fields[name]) for name in FIELDS if fields.get(name, "").strip()}
        runs = fields["runs"]
        is_script = runs not in offers.entry_points
        given = {name: fields.get(_PARAMETER + name, "").strip() for name in offers.entry_points.get(runs, {})}
        if len(fields.get("arguments", "")) > _ARGUMENTS:  # `shlex` takes the square of the length of a word
            raise FieldError(
                "arguments", Invalid(f"The arguments have more than {_ARGUMENTS:,} characters.", remedy="Put them into a file.")
            )
        try:
            arguments = shlex.split(fields.get("arguments", ""))
        except ValueError as error:
            raise FieldError(
                "arguments", Invalid(f"The arguments cannot be read: {error}.", remedy="Close each quotation mark.")
            ) from error
        commit = fields.get("commit", "")
        return TaskRequest(
            snapshot=fields["snapshot"],
            directory=fields.get("directory", "."),
            **{"script": runs} if is_script else {"entry_point": runs},
            parameters={name: value for name, value in given.items() if value},
            arguments=arguments,
            resources=ResourceRequest(**{name: value for name, value in said.items() if name in _RESOURCES}),
            git=GitRequest(commit=commit, remote=fields.get("remote") or None) if commit else None,
            **{name: value for name, value in said.items() if name not in _RESOURCES},
        )

    def _usual(self, caller: Caller, name: str) -> str:
        """Say what the caller's last jobs of that name took, or nothing where there are none."""
        lab = self._gateway.lab
        jobs = lab.jobs(caller, JobFilter(owner=caller.user.subject, name=name, states=ENDED, kind=JobKind.TASK), limit=_USUAL)
        attempts = [
            attempt for job in jobs for attempt in lab.attempts(caller, job.id)[-1:] if attempt.started_at and attempt.ended_at
        ]
        if not attempts:
            return ""
        longest = max((one.ended_at or 0) - (one.started_at or 0) for one in attempts)
        memory = max(one.usage.memory_peak for one in attempts)
        gpu = max((size for one in attempts for size in one.usage.gpu_memory.values()), default=0)
        many = "The last job" if len(attempts) == 1 else f"The last {len(attempts)} jobs"
        used = [f"{format_size(memory)} of memory"] * bool(memory) + [f"{format_size(gpu)} of a GPU"] * bool(gpu)
        return f"{many} of that name ran for at most {format_duration(math.ceil(longest))}" + (
            f" and used at most {' and '.join(used)}." if used else "."
        )

    # ---- the page

    def _page(self, request: Request, form: _Form) -> Response:
        caller, policy = caller_of(request), self._gateway.lab.policy
        environments = self._gateway.environments
        types = sorted({one.type for node in self._gateway.lab.machines.devices(caller) for one in node.node.devices})
        return self._look.page(
            request,
            "new_task.html",
            status=problem_of(form.problem)[0].status if form.problem is not None else 200,
            form=form,
            fields=form.fields,
            labels=FIELDS,
            usual=Resources(time=policy.choose(None, JobKind.TASK, None).default_time),
            options=_OPTIONS,
            choices={
                "gpu_type": types,
                "qos": [one.name for one in policy.qos.values() if JobKind.TASK in one.kinds],
                "partition": [one.name for one in partitions_for(JobKind.TASK, policy.qos, policy.partitions)],
                "account": sorted(policy.accounts_of(caller.user)),
            },
            templates=self._gateway.incoming.templates(),
            environments=[one.name for one in environments.list(caller).environments],
            parameters=form.offers.entry_points.get(form.fields.get("runs", ""), {}) if form.offers is not None else {},
        )


def _read(name: str, text: str) -> Any:
    """Return what was written into a field as requests have it. Raises `FieldError`."""
    text, kind = text.strip(), _OPTIONS[name].kind
    value: Any = text
    try:
        if kind.plain is int:
            if not (text.isascii() and text.isdigit() and len(text) < 10):
                raise Invalid(f'"{text[:40]}" is not a whole number.', remedy="Write it in digits.")
            value = int(text)
        kind.read(FIELDS[name], value)
    except Invalid as error:
        raise FieldError(name, error) from error
    return value


def _command(form: _Form) -> str:
    """The command that does the same, for who has the command line."""
    fields = form.fields
    target = [fields.get("remote") or fields.get("code") or "DIRECTORY"]
    runs, offers = fields.get("runs", ""), form.offers
    if offers is not None and runs not in ("main", target[0]):
        target += ["--entry-point", runs]
    for name in FIELDS:
        if value := fields.get(name, "").strip():
            target += [_OPTIONS[name].flags[0], value]
    for name in form.offers.entry_points.get(runs, {}) if form.offers is not None else ():
        if value := fields.get(_PARAMETER + name, "").strip():
            target += ["-P", f"{name}={value}"]
    arguments = fields.get("arguments", "").strip()
    return shlex.join(["carrel", "run", *target]) + (f" -- {arguments}" if arguments else "")
