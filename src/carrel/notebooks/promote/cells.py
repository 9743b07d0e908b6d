"""Turning one cell into plain Python, as text that still looks like the cell."""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from dataclasses import dataclass

from carrel.notebooks.promote.lines import Kind, Piece, split_cell
from carrel.notebooks.promote.magics import Code, Context, cell_magic, known, line_magic, shell
from carrel.notebooks.promote.notebook import Cell

#: A cell of one word that is a magic, and hardly a variable.
_BARE = ("ls", "ll", "pwd")
_GPUS = re.compile(r"#\s*carrel\s*:.*?\bgpus\s*=\s*(\d{1,4})\b", re.IGNORECASE)
#: Tags of cells; the kernel understands the same.
_GPU_TAG = re.compile(r"gpus\s*=\s*(\d{1,4})|cpu", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A cell without IPython's syntax: lines before, the cell's own Python, and lines behind."""

    before: tuple[str, ...] = ()
    code: str = ""
    behind: tuple[str, ...] = ()
    #: For each line of `code` the line of the cell that it comes from.
    origin: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """A block that is Python, with its syntax tree."""

    cell: Cell
    block: Block
    tree: ast.Module

    @property
    def code(self) -> str:
        """The cell's own Python."""
        return self.block.code

    def line(self, number: int) -> int:
        """Return the line of the cell for a line of the code."""
        return self.block.origin[min(number, len(self.block.origin)) - 1] if self.block.origin else 1


def convert(cell: Cell, context: Context) -> Converted | None:
    """Return a cell as Python, or None when it cannot be: the faults are in `context.findings` then."""
    faults = len(context.findings.faults)
    read_marks(cell, context)
    block = _block(cell.source, context, 1)
    tree = _parse(block, context)
    if tree is None or len(context.findings.faults) > faults:
        return None
    return Converted(cell=cell, block=block, tree=tree)


def python_of(source: str) -> ast.Module | None:
    """Return the syntax tree of what is Python in a cell, for looking at names; None when there is none."""
    text = "".join(
        piece.text if piece.kind is Kind.PYTHON else f"{piece.indent}{piece.target or '_'} = None\n"
        for piece in split_cell(source)
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def read_marks(cell: Cell, context: Context) -> None:
    """What tags and comments ask for: ``gpus=2``, ``# carrel: gpus=2``."""
    counts = [int(match[1]) for match in _GPUS.finditer(cell.source)]
    for tag in cell.tags:
        match = _GPU_TAG.fullmatch(tag.strip())
        if match is not None:
            counts.append(int(match[1] or 0))
    if counts:
        context.findings.want_gpus(max(counts))


def _block(source: str, context: Context, first_line: int) -> Block:
    """Return a cell, or the body of a cell magic whose first line is `first_line` of the cell."""
    pieces = split_cell(_automagic(source))
    parts: list[tuple[str, int]] = []
    for index, piece in enumerate(pieces):
        context.line = first_line + piece.line - 1
        if piece.kind is Kind.PYTHON:
            parts += [(line, context.line + offset) for offset, line in enumerate(_lines(piece.text))]
        elif piece.kind is Kind.CELL_MAGIC:
            return _cell_magic(piece, context, parts)
        else:
            here = context.line
            made = _statement(piece, context, is_last=index == len(pieces) - 1)
            parts += [(line, here) for text in made for line in _lines(textwrap.indent(text, piece.indent))]
    return Block(code="".join(f"{line}\n" for line, _ in parts), origin=tuple(number for _, number in parts))


def _cell_magic(piece: Piece, context: Context, parts: list[tuple[str, int]]) -> Block:
    line = context.line
    code = cell_magic(piece, context)
    if code.block is None:
        lines = [*(line for text in code.lines for line in _lines(text))] or [f"# {text}" for text in _lines(piece.text)]
        parts += [(text, line) for text in lines]
        return Block(code="".join(f"{text}\n" for text, _ in parts), origin=tuple(number for _, number in parts))
    inner = _block(code.block, context, line + 1)
    return Block(before=(*code.lines, *inner.before), code=inner.code, behind=(*inner.behind, *code.behind), origin=inner.origin)


def _statement(piece: Piece, context: Context, *, is_last: bool) -> list[str]:
    """Return the lines that one escape becomes, without its indentation."""
    code = _code(piece, context)
    if code.block is not None:
        return _timed(piece, code, context, is_last=is_last)
    if code.lines or code.value is not None:
        lines = list(code.lines)
        if piece.target:
            lines.append(f"{piece.target} = {code.value}")
        elif code.value is not None:
            lines.append(code.value)
        return lines
    comment = f"# {' '.join(piece.text.split())}"
    if piece.target:
        return [f"{piece.target} = None  {comment}"]
    return [f"pass  {comment}" if piece.indent else comment]


def _code(piece: Piece, context: Context) -> Code:
    match piece.kind:
        case Kind.MAGIC:
            return line_magic(piece.name, piece.rest, context)
        case Kind.SHELL:
            return shell(piece.rest, context)
        case Kind.OUTPUT:
            return shell(piece.rest, context, value=True)
        case _:
            return Code()  # help: nobody is there to read it


def _timed(piece: Piece, code: Code, context: Context, *, is_last: bool) -> list[str]:
    """``%time statement``: the value of an expression is shown when it is the last of the cell."""
    assert code.block is not None
    line = context.line
    inner = _block(code.block, context, line).code.rstrip("\n")
    context.line = line
    if piece.target:
        middle, after = [f"{piece.target} = {inner}"], []
    elif is_last and not piece.indent and _is_expression(inner):
        middle, after = [f"_value = {inner}"], ["_value"]
    else:
        middle, after = [inner], []
    return [*code.lines, *middle, *code.behind, *after]


def _is_expression(text: str) -> bool:
    try:
        ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _automagic(source: str) -> str:
    """A cell of one line may be a magic without its ``%``, where it is no Python."""
    lines = [line for line in source.split("\n") if line.strip()]
    if len(lines) != 1 or not lines[0][:1].isalpha():
        return source
    name = re.split(r"\W", lines[0], maxsplit=1)[0]
    rest = lines[0][len(name) :]
    if not known(name) or (rest.strip() and not rest.startswith(" ")):
        return source
    if not rest.strip():
        return f"%{lines[0]}" if name in _BARE else source
    try:
        ast.parse(lines[0])
    except (SyntaxError, ValueError):
        return f"%{lines[0]}"
    return source


def _parse(block: Block, context: Context) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(block.code)
            compile(block.code, "cell", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    except SyntaxError as error:
        number = min(error.lineno or 1, len(block.origin) or 1)
        context.line = block.origin[number - 1] if block.origin else 1
        lines = block.code.split("\n")
        context.fault(f"{lines[number - 1].strip()[:60]!r} is not Python: {error.msg}")
        return None
    except (ValueError, RecursionError, MemoryError) as error:
        context.line = 1
        context.fault(f"this cell cannot be read: {str(error) or 'nested too deeply'}")
        return None
    return tree


def _lines(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n")
