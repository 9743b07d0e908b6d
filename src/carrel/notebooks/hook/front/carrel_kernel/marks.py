"""What a cell says about itself: how many GPUs it wants, and whether it can want one at all."""

import ast
import re
import sys

_COMMENT = re.compile(r"\s*#\s*carrel\s*:\s*(.*)")
_WISH = re.compile(r"(?:gpus\s*=\s*(\d+)|(cpu))", re.IGNORECASE)
_MAGIC = re.compile(r"\s*%gpu\s+(\d+|off|on|auto)\s*(?:#.*)?$", re.IGNORECASE)
#: Cell magics whose body runs in another program, or nowhere.
_ELSEWHERE = frozenset(
    {"bash", "sh", "script", "html", "markdown", "latex", "javascript", "js", "svg", "writefile", "file", "remote"}
)
_STANDARD = getattr(
    sys, "stdlib_module_names", frozenset({"os", "sys", "re", "math", "json", "time", "pathlib", "random", "datetime"})
)


def wish(code, meta):
    """How many GPUs a cell asks for by a mark, or None when it says nothing. Tags count before comments."""
    tags = meta.get("tags") if isinstance(meta, dict) else None
    for tag in tags if isinstance(tags, (list, tuple)) else ():
        found = _WISH.fullmatch(tag.strip()) if isinstance(tag, str) else None
        if found:
            return int(found.group(1) or 0)
    for line in code.splitlines():
        if not line.strip():
            continue
        comment = _COMMENT.match(line)
        if comment:
            found = _WISH.search(comment.group(1))
            if found:
                return int(found.group(1) or 0)
        elif not line.lstrip().startswith(("#", "%gpu")):
            return None
    return None


def switch(code):
    """What a ``%gpu`` line at the top of a cell switches to ("2", "off", …), which holds for that cell already; else None."""
    for line in code.splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            found = _MAGIC.match(line)
            return found.group(1).lower() if found else None
    return None


def is_plain(code):
    """True when a cell plainly computes nothing on a GPU: it only imports from the standard library, binds and prints constants,
    defines functions and classes, or runs other programs. Everything else may, and takes a lease."""
    lines = code.splitlines()
    first = next((line.strip() for line in lines if line.strip()), "")
    if first.startswith("%%"):
        return first[2:].split(None, 1)[0] in _ELSEWHERE if first[2:].strip() else False
    python = []
    for line in lines:
        word = line.strip()
        if word.startswith("!") or re.match(r"%(pip|conda|uv|cd|pwd|ls|env|gpu|matplotlib|config)\b", word):
            python.append(re.match(r"\s*", line).group(0) + "pass")
        elif word.startswith("%") or word.endswith("?"):
            return False
        else:
            python.append(line)
    try:
        tree = ast.parse("\n".join(python))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return all(_is_plain_statement(node) for node in tree.body)


def _is_plain_statement(node):
    if isinstance(node, ast.Import):
        return all(name.name.partition(".")[0] in _STANDARD for name in node.names)
    if isinstance(node, ast.ImportFrom):
        return node.level == 0 and (node.module or "").partition(".")[0] in _STANDARD
    if isinstance(node, ast.Assign):
        return all(isinstance(target, ast.Name) for target in node.targets) and _is_constant(node.value)
    if isinstance(node, ast.AnnAssign):
        return isinstance(node.target, ast.Name) and (node.value is None or _is_constant(node.value))
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        defaults = [*node.args.defaults, *(value for value in node.args.kw_defaults if value is not None)]
        return not node.decorator_list and all(_is_constant(value) for value in defaults)
    if isinstance(node, ast.ClassDef):
        return not node.decorator_list and not node.bases and not node.keywords and all(map(_is_plain_statement, node.body))
    if isinstance(node, ast.Expr):
        call = node.value
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "print":
            return not call.keywords and all(_is_constant(value) for value in call.args)
        return _is_constant(call)
    return isinstance(node, ast.Pass)


def _is_constant(node):
    if isinstance(node, ast.Constant):
        return True
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        return all(map(_is_constant, node.elts))
    if isinstance(node, ast.Dict):
        return all(key is not None and _is_constant(key) for key in node.keys) and all(map(_is_constant, node.values))
    if isinstance(node, ast.UnaryOp):
        return _is_constant(node.operand)
    return isinstance(node, ast.BinOp) and _is_constant(node.left) and _is_constant(node.right)
