"""Makes random numbers and libraries repeat themselves, for `carrel run --deterministic`. Standard library alone, Python 3.8.

A library is set when it is imported, before the program can use it. What a program sets itself, later, wins.
"""

from __future__ import annotations

import functools
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


_SEED = int(os.environ["CARREL_SEED"])


def _random(module: Any) -> None:
    module.seed(_SEED)


def _numpy(module: Any) -> None:
    module.seed(_SEED)
    make, sequence = module.default_rng, module.SeedSequence(_SEED)

    @functools.wraps(make)
    def default_rng(seed: Any = None) -> Any:
        # One child of the sequence after the other: generators without a seed differ from each other, as ever.
        return make(sequence.spawn(1)[0] if seed is None else seed)

    module.default_rng = default_rng


def _torch(module: Any) -> None:
    module.manual_seed(_SEED)
    module.backends.cudnn.benchmark = False
    # An operation without a deterministic form warns, and goes on. The public function imports PyTorch's compiler, which takes
    # as long as PyTorch itself: its part is `_inductor`.
    quick = getattr(module._C, "_set_deterministic_algorithms", module.use_deterministic_algorithms)
    quick(True, warn_only=True)


def _inductor(module: Any) -> None:
    if hasattr(module, "deterministic"):
        module.deterministic = True


def _tensorflow(module: Any) -> None:
    module.random.set_seed(_SEED)
    module.config.experimental.enable_op_determinism()


#: By the name of a module, what is done when it has been imported.
STEPS: dict[str, Callable[[Any], None]] = {
    "random": _random,
    "numpy.random": _numpy,
    "torch": _torch,
    "torch._inductor.config": _inductor,
    "tensorflow": _tensorflow,
}
