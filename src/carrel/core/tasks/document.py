"""Reading YAML strictly: every fault is reported with file, line and key.

Scalars are taken as they are written (``python: 3.10`` is "3.10", ``time: 02:30:00`` is not a number in base sixty), unless
MLflow's own reading of them is wanted (`Value.as_mlflow_reads_it`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import yaml

from carrel.core.domain.errors import Invalid
from carrel.core.domain.suggest import suggest

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NULL = "tag:yaml.org,2002:null"
_MERGE = "tag:yaml.org,2002:merge"
#: Merges (``<<``) inside merges, and merges in one mapping, that are followed.
_MERGE_DEPTH = 3
_MERGE_WIDTH = 8


@dataclass(frozen=True, slots=True)
class Value:
    """One place in a YAML file."""

    file: str
    #: Way to it, with dots; "" for the whole file.
    key: str
    node: yaml.Node | None

    @property
    def line(self) -> int:
        """Line number, from 1."""
        return self.node.start_mark.line + 1 if self.node is not None else 1

    def wrong(self, fact: str, remedy: str = "") -> Invalid:
        """Return the error that says `fact` about this place."""
        return Invalid(f"{self.file}, line {self.line}: {fact}", remedy=remedy, details={"file": self.file, "key": self.key})

    @property
    def empty(self) -> bool:
        """Tell whether nothing is written here."""
        return self.node is None or self.node.tag == _NULL

    def mapping(self, valid: Collection[str] | None = None) -> dict[str, Value]:
        """Return what is written here by key; with `valid`, any other key is an error. Nothing written is no keys."""
        if self.empty:
            return {}
        if not isinstance(self.node, yaml.MappingNode):
            raise self.wrong(f"{self._called} must be a mapping (key: value).", suggest("", valid, what="Keys") if valid else "")
        values = self._merged(self.node, _MERGE_DEPTH)
        for key, value in values.items():
            if valid is not None and key not in valid:
                raise value.wrong(f'"{key}" is not a key of {self.key or self.file}.', suggest(key, valid, what="Keys"))
        return values

    def items(self) -> list[Value]:
        """Return the values of a list. Nothing written is an empty list."""
        if self.empty:
            return []
        if not isinstance(self.node, yaml.SequenceNode):
            raise self.wrong(f"{self._called} must be a list (- item).")
        return [Value(self.file, f"{self.key}[{index}]", node) for index, node in enumerate(self.node.value)]

    @property
    def is_mapping(self) -> bool:
        """Tell whether keys are written here."""
        return isinstance(self.node, yaml.MappingNode)

    @property
    def is_list(self) -> bool:
        """Tell whether a list is written here."""
        return isinstance(self.node, yaml.SequenceNode)

    def text(self) -> str:
        """Return a scalar as it is written; an empty one is an error."""
        if self.empty:
            raise self.wrong(f"{self._called} is empty.", "Write a value, or leave the key out.")
        if not isinstance(self.node, yaml.ScalarNode):
            raise self.wrong(f"{self._called} must be a single value.")
        return str(self.node.value)

    def integer(self) -> int:
        """Return a whole number that is zero or more."""
        text = self.text()
        if not (text.isascii() and text.isdigit() and len(text) < 19):
            raise self.wrong(f'{self._called} is "{text}", which is not a whole number.')
        return int(text)

    def truth(self) -> bool:
        """Return true or false (YAML 1.2, 10.3.2: in any usual case of letters)."""
        text = self.text()
        if text.lower() not in ("true", "false"):
            raise self.wrong(f'{self._called} is "{text}".', "Write true or false.")
        return text.lower() == "true"

    def as_mlflow_reads_it(self) -> str | None:
        """Return a scalar as MLflow passes it on: read by YAML's rules, then made text (true is "True"); None when empty."""
        if self.empty:
            return None
        self.text()
        try:
            return str(yaml.constructor.SafeConstructor().construct_object(self.node))
        except (yaml.YAMLError, ValueError, OverflowError):
            raise self.wrong(f"{self._called} cannot be read.", "Put the value in quotes.") from None

    @property
    def _called(self) -> str:
        return self.key or "the file"

    def _merged(self, node: yaml.MappingNode, depth: int) -> dict[str, Value]:
        own: dict[str, Value] = {}
        merged: dict[str, Value] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise Value(self.file, self.key, key_node).wrong("a key must be a single word.")
            if key_node.tag == _MERGE:
                merged |= self._inherited(value_node, depth)
                continue
            key = str(key_node.value)
            value = Value(self.file, f"{self.key}.{key}" if self.key else key, value_node)
            if key in own:
                raise Value(self.file, value.key, key_node).wrong(f'"{key}" is there twice.', "Remove one of them.")
            own[key] = value
        return merged | own

    def _inherited(self, node: yaml.Node, depth: int) -> dict[str, Value]:
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        if depth == 0 or len(sources) > _MERGE_WIDTH or not all(isinstance(source, yaml.MappingNode) for source in sources):
            raise Value(self.file, self.key, node).wrong("this merge (<<) cannot be followed.", "Write the keys out.")
        values: dict[str, Value] = {}
        for source in reversed(sources):  # the first source wins
            values |= self._merged(source, depth - 1)
        return values


def read_yaml(text: str, file: str) -> Value:
    """Return the top of the YAML document `text`; raise `Invalid` with the line when it is not YAML."""
    try:
        return Value(file, "", yaml.compose(text, Loader=_LOADER))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        problem = " ".join(part for part in (error.context, error.problem) if part)
        raise Invalid(f"{file}, line {line}: not YAML: {problem}.", remedy="Look at the indentation and the quotes.") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise Invalid(f"{file}: not YAML: {str(error).splitlines()[0][:200] if str(error) else 'nested too deeply'}.") from None
