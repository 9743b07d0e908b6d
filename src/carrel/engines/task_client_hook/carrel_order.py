"""Records in which order samples are shown by PyTorch's loaders and by `carrel.order`, and shows them in a recorded order.

Standard library alone, Python 3.8.

A line for each batch that a loader draws: the number of the loader in the order of their first use, how often it was begun, and
the indices (of a loader without batches, one). One file for each process that trains, by its rank.
"""

from __future__ import annotations

import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO, Any

_RANK = os.environ.get("RANK", "0")
_NAME = _RANK + ".jsonl"


#: True in a process whose samples are the job's.
ours = False
_here: Order | None = None


class Order:
    """What this process records, and what it repeats."""

    def __init__(self, directory: str, repeats: str | None) -> None:
        self._directory = directory
        #: Of which job the order is, and its batches by loader and beginning; None: samples have the order that they have.
        self._job = os.environ.get("CARREL_ORDER_JOB", "")
        self._known = None if repeats is None else _read(os.path.join(repeats, _NAME), self._job)
        self._file: IO[str] | None = None
        self._loaders = 0
        self._begun: dict[int, int] = {}

    def number_of(self, loader: Any) -> int:
        """The number of a loader; the next one where it is new."""
        number: int | None = loader.__dict__.get("_carrel_number")
        if number is None:
            number = loader.__dict__["_carrel_number"] = self._loaders
            self._loaders += 1
        return number

    def iterated(self, drawn: Iterator[Any]) -> Iterator[Any]:
        """Yield what the program shows itself, as a loader of its own that is begun once."""
        number, self._loaders = self._loaders, self._loaders + 1
        return self.begin(number, drawn)

    def begin(self, loader: int, drawn: Iterator[Any]) -> Iterator[Any]:
        """Yield what a loader is to draw from now on."""
        begun = self._begun[loader] = self._begun.get(loader, -1) + 1
        if self._known is None:
            for batch in drawn:
                self._write(loader, begun, batch)
                yield batch
            return
        for batch in self._recorded(loader, begun):
            next(drawn, None)  # samplers draw random numbers, after which those of the program come
            self._write(loader, begun, batch)
            yield batch

    def length(self, loader: int) -> int | None:
        """How many batches it draws next; None where nothing is repeated."""
        if self._known is None:
            return None
        return len(self._recorded(loader, self._begun.get(loader, 0)))

    def _recorded(self, loader: int, begun: int) -> list[Any]:
        assert self._known is not None
        found = self._known.get((loader, begun))
        if found is None:
            raise RuntimeError(
                "carrel: the order of job {} has no loader {} that was begun {} times: "
                "the program has changed, or goes on longer.".format(self._job, loader, begun + 1)
            )
        return found

    def _write(self, loader: int, begun: int, batch: Any) -> None:
        if self._file is None:
            os.makedirs(self._directory, exist_ok=True)
            self._file = open(os.path.join(self._directory, _NAME), "a", buffering=1)  # noqa: SIM115 - as long as the process
        self._file.write(json.dumps([loader, begun, _plain(batch)], separators=(",", ":")) + "\n")


def _plain(batch: Any) -> Any:
    """Indices as JSON has them; samplers may give numbers of NumPy or PyTorch."""
    if isinstance(batch, (list, tuple)):
        return [_plain(one) for one in batch]
    return batch if isinstance(batch, (int, str)) else int(batch)


def _read(path: str, job: str) -> dict[tuple[int, int], list[Any]]:
    found: dict[tuple[int, int], list[Any]] = {}
    try:
        with open(path) as lines:
            for line in lines:
                loader, begun, batch = json.loads(line)
                found.setdefault((loader, begun), []).append(batch)
    except (OSError, ValueError) as error:
        raise RuntimeError(f"carrel: the order of job {job} cannot be repeated: {error}") from error
    return found


class _Drawn:
    """Stands in the place of a loader's sampler."""

    def __init__(self, order: Order, loader: int, sampler: Any) -> None:
        self._order, self._loader, self._sampler = order, loader, sampler

    def __iter__(self) -> Iterator[Any]:
        return self._order.begin(self._loader, iter(self._sampler))

    def __len__(self) -> int:
        length = self._order.length(self._loader)
        return len(self._sampler) if length is None else length

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)


def here() -> Order:
    """What this process records and repeats; one for all that shows samples."""
    global _here
    if _here is None:
        _here = Order(os.environ["CARREL_ORDER_DIR"], os.environ.get("CARREL_ORDER_REPEATS"))
    return _here


def loaders(module: Any) -> None:
    """Change `torch.utils.data.dataloader`, which has just been imported."""
    kind = module.DataLoader
    original = kind._index_sampler.fget
    order = here()
    told = set()

    def sampler(loader: Any) -> Any:
        found = original(loader)
        if getattr(loader, "_dataset_kind", None) == module._DatasetKind.Iterable:
            if id(loader) not in told:
                told.add(id(loader))
                said = "carrel: --order: an IterableDataset has its own order, which is not recorded."
                print(said, file=sys.stderr, flush=True)
            return found
        return _Drawn(order, order.number_of(loader), found)

    kind._index_sampler = property(sampler)


def is_ours() -> bool:
    """True in the first process of a rank: those that it starts show nothing of the job's order."""
    owner = os.environ.get("CARREL_ORDER_OWNER", "")
    rank, _, pid = owner.partition(":")
    if owner and rank == os.environ.get("RANK", "") and pid != str(os.getpid()):
        return False
    os.environ["CARREL_ORDER_OWNER"] = "{}:{}".format(os.environ.get("RANK", ""), os.getpid())
    return True
