"""Runs a notebook from top to bottom, and keeps what it has done after every cell. `carrel promote` put this file here.

    python notebook_runner.py NOTEBOOK [--NAME=VALUE ...]

The values go into a cell behind the one tagged ``parameters``, as papermill does it (papermill's documentation,
"Parameterize"). The executed notebook is outputs/executed.ipynb; it is written after every cell, so that a task that is
stopped leaves what was done. When a cell fails, its traceback is in the log and the exit code is 1.
Needs nbclient and ipykernel; Python 3.9 and newer.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_TRUTHS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def main(words: Sequence[str]) -> int:
    """Run the notebook that the command line names; return the exit code."""
    path = Path(words[0])
    document = json.loads(path.read_text(encoding="utf-8"))
    values = read_values(document, words[1:])
    inject(document, values)
    outputs = Path(os.environ.get("CARREL_OUTPUT_DIR") or "outputs")
    outputs.mkdir(parents=True, exist_ok=True)
    return execute(document, outputs / "executed.ipynb")


def read_values(document: dict[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """Return the values for parameters that a command line gives, each in the type of its default."""
    defaults = _defaults(document)
    parser = argparse.ArgumentParser(prog="notebook_runner.py NOTEBOOK", allow_abbrev=False, conflict_handler="resolve")
    for name, default in defaults.items():
        plain = name.startswith("_") or name.endswith("_")
        option = name if plain else name.replace("_", "-")
        parser.add_argument(f"--{option}", dest=name, type=_reader(default), default=argparse.SUPPRESS)
    return vars(parser.parse_args(list(words)))


def inject(document: dict[str, Any], values: dict[str, Any]) -> None:
    """Put a cell with `values` behind the one tagged ``parameters``."""
    index = _parameters_cell(document)
    if index is None or not values:
        return
    cell = {
        "cell_type": "code",
        "execution_count": None,
        "id": "injected-parameters",
        "metadata": {"tags": ["injected-parameters"]},
        "outputs": [],
        "source": "# Parameters\n" + "\n".join(f"{name} = {value!r}" for name, value in values.items()),
    }
    if (document.get("nbformat"), document.get("nbformat_minor", 0)) < (4, 5):
        del cell["id"]
    document["cells"].insert(index + 1, cell)


def execute(document: dict[str, Any], target: Path) -> int:
    """Run all cells; return 0, or 1 when one failed."""
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, DeadKernelError
    from traitlets.config import Config

    notebook = nbformat.from_dict(document)

    def save() -> None:
        beside = target.with_name(f".{target.name}.new")
        with beside.open("w", encoding="utf-8") as file:
            nbformat.write(notebook, file)
        beside.replace(target)

    class Told(NotebookClient):  # type: ignore[misc]
        """Tells the log what a reader of the notebook would see, while it is made."""

        def process_message(self, msg: dict[str, Any], cell: Any, cell_index: int) -> Any:
            content = msg["content"]
            if msg["msg_type"] == "stream":
                stream = sys.stderr if content["name"] == "stderr" else sys.stdout
                stream.write(content["text"])
                stream.flush()
            elif msg["msg_type"] in ("execute_result", "display_data"):
                print(content["data"].get("text/plain", ""), flush=True)
            return super().process_message(msg, cell, cell_index)

    def after(cell: Any, cell_index: int, execute_reply: Optional[dict[str, Any]] = None) -> None:  # noqa: ARG001
        save()

    with tempfile.TemporaryDirectory() as place:
        _own_kernel(Path(place))
        save()
        try:
            # Sockets of our own instead of ports, which others of the machine could reach.
            config = Config({"KernelManager": {"transport": "ipc", "ip": f"{place}/k"}})
            hooks = {"on_cell_executed": after, "on_cell_error": after}
            Told(notebook, config=config, timeout=None, kernel_name="python3", **hooks).execute()
        except CellExecutionError as error:
            print(_COLOURS.sub("", str(error)), file=sys.stderr, flush=True)
            return 1
        except DeadKernelError as error:
            print(f"The kernel died: {error}", file=sys.stderr, flush=True)
            return 1
        finally:
            save()
    return 0


def _own_kernel(place: Path) -> None:
    """Have Jupyter find this very Python first, whatever kernels a user has (jupyter_core's documentation, "JUPYTER_PATH")."""
    directory = place / "kernels" / "python3"
    directory.mkdir(parents=True)
    arguments = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    specification = {"argv": arguments, "display_name": "Python 3", "language": "python"}
    (directory / "kernel.json").write_text(json.dumps(specification), encoding="utf-8")
    before = os.environ.get("JUPYTER_PATH")
    os.environ["JUPYTER_RUNTIME_DIR"] = str(place)
    os.environ["JUPYTER_PATH"] = f"{place}{os.pathsep}{before}" if before else str(place)


def _parameters_cell(document: dict[str, Any]) -> Optional[int]:
    for index, cell in enumerate(document["cells"]):
        if cell.get("cell_type") == "code" and "parameters" in (cell.get("metadata", {}).get("tags") or ()):
            return index
    return None


def _defaults(document: dict[str, Any]) -> dict[str, Any]:
    """Return the names that the parameters' cell gives a plain value, with it."""
    index = _parameters_cell(document)
    found: dict[str, Any] = {}
    if index is None:
        return found
    lines = "".join(document["cells"][index]["source"]).split("\n")
    source = "\n".join("" if line.lstrip().startswith(("%", "!")) else line for line in lines)
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.AnnAssign):
            targets: list[ast.expr] = [statement.target]
        elif isinstance(statement, ast.Assign):
            targets = statement.targets
        else:
            continue
        if len(targets) == 1 and isinstance(targets[0], ast.Name) and statement.value is not None:
            try:
                found[targets[0].id] = ast.literal_eval(statement.value)
            except (ValueError, TypeError, SyntaxError):
                continue
    return found


def _reader(default: Any) -> Any:
    if isinstance(default, bool):
        return _truth
    if isinstance(default, (int, float, str)):
        return type(default)
    return _literal


def _truth(text: str) -> bool:
    if text.lower() not in _TRUTHS:
        raise argparse.ArgumentTypeError(f'"{text}" is neither true nor false')
    return _TRUTHS[text.lower()]


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
