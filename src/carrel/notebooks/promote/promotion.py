"""From a notebook to a task directory."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from carrel.core.domain.errors import Invalid
from carrel.core.domain.task import InputSpec
from carrel.notebooks.promote.environment import Environment, installed, installed_modules, plan_environment, read_lock
from carrel.notebooks.promote.findings import Findings, Note, Severity
from carrel.notebooks.promote.gather import GatheredFiles, Loader, Said
from carrel.notebooks.promote.kept import kept_notebook
from carrel.notebooks.promote.mentions import find_mentions, find_words
from carrel.notebooks.promote.notebook import Notebook, read_notebook
from carrel.notebooks.promote.packages import Import, companions, find_imports
from carrel.notebooks.promote.parameters import Parameter
from carrel.notebooks.promote.project import write_environment, write_ignore, write_project
from carrel.notebooks.promote.reading import Reading, read_cells
from carrel.notebooks.promote.script import Piece, write_script
from carrel.notebooks.promote.selection import write_selection
from carrel.notebooks.promote.writing import check_target, check_travels, write_directory
from carrel.notebooks.promote.written_modules import imports_of_written, without_written

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
_PAYLOAD = Path(__file__).parent / "payload"
_SUPPORT, _FIGURES, _RUNNER = "notebook_support.py", "notebook_figures.py", "notebook_runner.py"
#: Modules that draw, or whose objects do.
_DRAW = ("matplotlib", "pylab", "seaborn", "mpl_toolkits")
_DRAWS = re.compile(r"\.(?:plot|hist|boxplot|scatter|from_estimator|from_predictions)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Promoted:
    """A task directory that was made."""

    directory: Path
    name: str
    #: The script, or the notebook where that itself runs; relative to the directory.
    program: str
    #: Numbers of the cells in it.
    cells: tuple[int, ...]
    parameters: tuple[Parameter, ...]
    environment: Environment
    #: Where the environment's versions come from: "lock", the prefix, or "" where they are guessed.
    environment_source: str = ""
    left_out: tuple[int, ...] = ()
    gpus: int | None = None
    #: Data that was copied, modules that were copied, and inputs with their sizes in bytes.
    data: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    inputs: tuple[InputSpec, ...] = ()
    input_sizes: Mapping[str, int] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    #: Every file of the directory that was written.
    files: tuple[str, ...] = ()
    #: What was changed, what was guessed, and what to check.
    notes: tuple[Note, ...] = ()

    def __fspath__(self) -> str:
        """Return the directory, wherever a path is wanted."""
        return str(self.directory)


def promote(
    notebook: Path,
    cells: str | None = None,
    target: Path | None = None,
    *,
    lock: str | None = None,
    python: str | None = None,
    prefix: Path | None = None,
    name: str | None = None,
    force: bool = False,
    keep_notebook: bool = False,
    environ: Mapping[str, str] | None = None,
) -> Promoted:
    """Make a task directory from a notebook, and return what was made, guessed, and is to be checked.

    `cells` chooses cells of code ("3-9,12"; they count from 1). `target` is the directory to make, by default one named as
    the notebook beside it. `lock` is the text of the environment's lock (``name==version`` lines), and `python` the Python that
    it is for ("3.11"; by default the one that the notebook ran with). Without a lock the versions
    are those in the environment at `prefix`, by default the one of the session that this runs in
    (``CARREL_SESSION_ENVIRONMENT`` of `environ`, which is the process's own by default); without either, packages are guessed
    from imports. `keep_notebook` makes the task run the notebook itself.

    Raises `NotFound`, `Invalid` (with cell and line) or `Conflict` when `target` is there, unless `force` allows to write over
    what an earlier promotion made. Nothing is left of a directory that could not be finished.
    """
    document = read_notebook(notebook)
    chosen = _name(notebook, name)
    place = target or notebook.parent / chosen
    check_target(place, notebook, force=force)
    findings = Findings()
    with _quiet():
        reading = read_cells(document, cells, findings, keep=keep_notebook)
    if not any(cell.tree.body for cell in reading.cells):
        findings.note(Severity.CHECK, "no code remains: a task of this notebook does nothing")
    imports, gathered = _load(reading, notebook.parent, place, findings, keep=keep_notebook)
    environment, source = _environment(
        _with_companions(imports, reading),
        imports,
        document,
        findings,
        notebook.parent,
        lock=lock,
        python=python,
        prefix=prefix,
        environ=os.environ if environ is None else environ,
        keep=keep_notebook,
    )
    numbers = tuple(cell.cell.number for cell in reading.cells)
    heading = f"Made by `carrel promote` from {_plain(notebook.name)} ({document.digest[:19]}), cells {write_selection(numbers)}."
    parameters = tuple(_placed(parameter, gathered) for parameter, _ in reading.parameters[1])
    with _quiet():
        program, texts = _program(document, reading, gathered, findings, imports, chosen, heading, keep=keep_notebook)
    texts |= _files(texts, program, chosen, heading, parameters, environment, findings, gathered)
    write_directory(place, texts, gathered.copies)
    files = {*texts, *gathered.copies}
    check_travels(place, files, findings)
    made = Promoted(directory=place, name=chosen, program=program, parameters=parameters, environment=environment, cells=numbers)
    return _summed_up(made, reading, gathered, findings, source, files)


def _summed_up(
    made: Promoted, reading: Reading, gathered: GatheredFiles, findings: Findings, source: str, files: Collection[str]
) -> Promoted:
    return replace(
        made,
        left_out=tuple(cell.number for cell in reading.left_out),
        environment_source=source,
        gpus=findings.gpus,
        data=tuple(dict.fromkeys(gathered.data)),
        modules=tuple(dict.fromkeys(gathered.modules)),
        inputs=tuple(gathered.inputs),
        input_sizes=dict(gathered.input_sizes),
        outputs=("outputs/**", *gathered.outputs),
        files=tuple(sorted(files)),
        notes=tuple(findings.notes),
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """What Python has to say about the cells ("\\d" in a string) is for those who run them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _name(notebook: Path, given: str | None) -> str:
    if given is not None:
        if not _NAME.fullmatch(given):
            raise Invalid(f'"{given}" is no name for a task.', remedy="Use letters, digits, _ and -.")
        return given
    return re.sub(r"[^A-Za-z0-9_-]+", "_", notebook.stem).strip("_-") or "notebook"


def _load(reading: Reading, base: Path, target: Path, findings: Findings, *, keep: bool) -> tuple[list[Import], GatheredFiles]:
    """Find what the cells import and which files they name; take what travels."""
    loader = Loader(base, target, findings)
    imports = imports_of_written(findings)
    said: list[Said] = []
    known: dict[str, str] = {}
    for cell in reading.cells:
        imports += [
            replace(item, line=cell.line(item.line), origin=f"cell {cell.cell.number}") for item in find_imports(cell.tree)
        ]
        mentions = find_mentions(cell.tree, known)
        number = cell.cell.number
        words = [
            mention for command, where, line in findings.commands if where == number for mention in find_words(command, line)
        ]
        said += [Said(mention=mention, cell=number, line=cell.line(mention.line)) for mention in mentions]
        said += [Said(mention=mention, cell=number, line=mention.line) for mention in words]
    scripts = [one.mention.path for one in said if one.mention.path.endswith(".py")]
    loader.load_search(said)
    others, mentions = loader.load_modules(imports, dict.fromkeys(scripts))
    said += [Said(mention=mention, cell=None, line=mention.line) for mention in mentions]
    others = without_written(others, said, Path(os.path.realpath(base)), findings)
    loader.load_data(said, rewrite=not keep)
    tops = {item.top for item in [*imports, *others]}
    sources = [cell.cell.source for cell in reading.cells]
    if tops & set(_DRAW) or ("pandas" in tops and any(_DRAWS.search(source) for source in sources)):
        findings.plots = True
    return others, loader.gathered


def _with_companions(imports: list[Import], reading: Reading) -> list[Import]:
    if not any(item.top == "pandas" for item in imports):
        return imports
    return [*imports, *(item for cell in reading.cells for item in companions(cell.tree))]


def _environment(
    guesses: list[Import],
    imports: list[Import],
    document: Notebook,
    findings: Findings,
    base: Path,
    *,
    lock: str | None,
    python: str | None,
    prefix: Path | None,
    environ: Mapping[str, str],
    keep: bool,
) -> tuple[Environment, str]:
    session = environ.get("CARREL_SESSION_ENVIRONMENT")
    if lock is None and prefix is None and session:
        prefix = Path(session)
    python, source = python or document.python, "lock" if lock is not None else ""
    modules: dict[str, str] = {}
    if lock is None and prefix is not None:
        lock, python = installed(prefix)
        modules = installed_modules(prefix)
        source = str(prefix)
    files = [base / file for file in findings.requirement_files]
    plan = plan_environment(
        imports if lock is not None else guesses,
        findings,
        lock=replace(read_lock(lock), modules=modules) if lock is not None else None,
        python=python,
        files=files,
        runner=keep,
    )
    return plan, source


def _placed(parameter: Parameter, gathered: GatheredFiles) -> Parameter:
    """A text that names a file of the task is a place: another one may be given, also by its address."""
    places = {*gathered.copies, *gathered.data, *(item.path for item in gathered.inputs)}
    if parameter.type != "string" or not isinstance(parameter.value, str):
        return parameter
    value = gathered.replaced.get(parameter.value, parameter.value)
    return replace(parameter, type="path", value=value) if os.path.normpath(value) in places else parameter


def _program(
    document: Notebook,
    reading: Reading,
    gathered: GatheredFiles,
    findings: Findings,
    imports: list[Import],
    name: str,
    heading: str,
    *,
    keep: bool,
) -> tuple[str, dict[str, str]]:
    """Return the name of what runs, and its texts."""
    if keep:
        program = _free(f"{name}.ipynb", gathered)
        return program, {
            program: kept_notebook(document, {cell.cell.index: cell.kept for cell in reading.cells}),
            _RUNNER: _payload(_RUNNER, gathered),
        }
    number, parameters = reading.parameters
    placed = [(_placed(parameter, gathered), value) for parameter, value in parameters]
    pieces = [
        Piece(cell=cell.converted, parameters=placed if cell.cell.number == number else [])
        for cell in reading.cells
        if cell.converted is not None
    ]
    modules = {*sys.stdlib_module_names, *(item.top for item in imports), *(Path(path).parts[0] for path in gathered.modules)}
    modules |= {Path(path).stem for path in gathered.modules}
    program = _free(f"{name}_notebook.py" if name in modules else f"{name}.py", gathered)
    texts = {
        program: write_script(pieces, heading=heading, findings=findings, bound=reading.bound, replaced=gathered.replaced),
        _SUPPORT: _payload(_SUPPORT, gathered),
    }
    if findings.plots:
        texts[_FIGURES] = _payload(_FIGURES, gathered)
    return program, texts


def _files(
    texts: Mapping[str, str],
    program: str,
    name: str,
    heading: str,
    parameters: tuple[Parameter, ...],
    environment: Environment,
    findings: Findings,
    gathered: GatheredFiles,
) -> dict[str, str]:
    """Return the texts of MLproject and what it names."""
    if any(path.lower() == "mlproject" for path in gathered.copies):
        raise Invalid("The notebook reads a file named MLproject, which every task has.", remedy="Give that file another name.")
    described = _free("python_env.yaml", gathered)
    made = write_environment(environment, _free("requirements.txt", gathered), _free("constraints.txt", gathered))
    made[described] = made.pop("")
    made["MLproject"] = write_project(
        heading=heading,
        name=name,
        program=program if program.endswith(".py") else f"{_RUNNER} {program}",
        environment_file=described,
        parameters=parameters,
        gpus=findings.gpus,
        inputs=gathered.inputs,
        outputs=gathered.outputs,
    )
    made[".gitignore"] = write_ignore({*texts, *made, *gathered.copies})
    gathered.copies.pop(".gitignore", None)
    return made


def _payload(name: str, gathered: GatheredFiles) -> str:
    if name in gathered.copies:
        raise Invalid(f"The notebook brings a file named {name}, which the task has too.", remedy="Give that file another name.")
    return (_PAYLOAD / name).read_text(encoding="utf-8")


def _free(name: str, gathered: GatheredFiles) -> str:
    """A name at the top of the task that no copied file has."""
    taken = {path.partition("/")[0] for path in (*gathered.copies, *(item.path for item in gathered.inputs))}
    while name in taken:
        name = f"task_{name}"
    return name


def _plain(text: str) -> str:
    """A file's name for a comment and for a docstring."""
    return "".join(character if character.isprintable() and character not in '"\\' else "?" for character in text)


__all__ = ["Promoted", "Severity", "promote"]
