"""What decides how libraries compute: each setting with what it is, in words, and how likely results differ by it."""

from __future__ import annotations

from dataclasses import dataclass

from carrel.core.domain.comparison import Cause

#: Switches of the task itself that stand beside the variables of its command.
DETERMINISTIC, ORDER_OF_SAMPLES = "deterministic", "order of samples"
_SWITCHES = frozenset(
    {"CUBLAS_WORKSPACE_CONFIG", "MKL_CBWR", "NCCL_NVLS_ENABLE", "OMP_DYNAMIC", "MKL_DYNAMIC"}
    | {"TF_DETERMINISTIC_OPS", "TF_CUDNN_DETERMINISTIC"}
)
_PRECISION = frozenset(
    {"NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "JAX_ENABLE_X64", "JAX_DEFAULT_MATMUL_PRECISION"}
)


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting."""

    #: "thread count OMP_NUM_THREADS".
    what: str
    cause: Cause
    evidence: str


def setting_of(path: str) -> Setting:
    """Return what is known of a setting by its name."""
    if path == DETERMINISTIC:
        return Setting("deterministic mode", Cause.LIKELY, "It fixes what is random, and which algorithms libraries choose.")
    if path == ORDER_OF_SAMPLES:
        return Setting(path, Cause.LIKELY, "Samples are shown in another order.")
    if "SEED" in path:
        return Setting(f"seed {path}", Cause.LIKELY, "It is a seed, or names one.")
    if is_thread_count(path):
        return Setting(f"thread count {path}", Cause.POSSIBLE, "Another number of threads adds in another order.")
    if path in _PRECISION:
        return Setting(f"precision {path}", Cause.POSSIBLE, "It says with how many digits libraries compute.")
    if path in _SWITCHES:
        return Setting(f"deterministic switch {path}", Cause.POSSIBLE, "It says whether libraries add in one order each time.")
    return Setting(f"library setting {path}", Cause.POSSIBLE, "It says which algorithms a library may choose.")


def is_thread_count(path: str) -> bool:
    """True for a variable that says in how many threads a library computes."""
    return path.endswith("_THREADS")
