"""The environment variables of a command: a short list of what it needs, nothing of the server's."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from carrel.core.domain.launch import Launch, LaunchTracking
from carrel.core.domain.network import Network
from carrel.core.domain.session import SessionSpec
from carrel.core.domain.task import ORDER
from carrel.core.spool import SESSION_SOCKET

#: Passed on from the lab's own environment, where set.
_PASSED = (
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "LANGUAGE",
    "TZ",
    "PATH",
    "LD_LIBRARY_PATH",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "ALL_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "all_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
)
#: Where nothing is asked through a proxy: the lab, and its MLflow, may be on this machine.
_DIRECT = ("localhost", "127.0.0.1", "::1")
#: Variables by which numeric libraries choose how they compute, in how many threads, and from which seed; for the record.
_RECORDED = (
    *(
        "CARREL_SEED",
        "PYTHONHASHSEED",
        "PL_GLOBAL_SEED",
        "OMP_NUM_THREADS",
        "OMP_DYNAMIC",
        "OMP_SCHEDULE",
        "MKL_NUM_THREADS",
        "MKL_DYNAMIC",
    ),
    *("MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "OPENBLAS_NUM_THREADS", "OPENBLAS_CORETYPE", "BLIS_NUM_THREADS", "GOTO_NUM_THREADS"),
    *("NUMEXPR_NUM_THREADS", "NUMBA_NUM_THREADS", "RAYON_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "NPY_DISABLE_CPU_FEATURES"),
    *("CUBLAS_WORKSPACE_CONFIG", "CUDA_LAUNCH_BLOCKING", "NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"),
    *("TORCH_CUDNN_V8_API_DISABLED", "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "XLA_FLAGS"),
    *("JAX_ENABLE_X64", "JAX_DEFAULT_MATMUL_PRECISION", "TF_DETERMINISTIC_OPS", "TF_CUDNN_DETERMINISTIC"),
    *("TF_ENABLE_ONEDNN_OPTS", "NCCL_ALGO", "NCCL_PROTO", "NCCL_NVLS_ENABLE", "MALLOC_ARENA_MAX"),
)
#: What makes a run repeatable; a task may set its own. cuBLAS: https://docs.nvidia.com/cuda/cublas, "Results Reproducibility".
_SEEDS = {"PYTHONHASHSEED": "0", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}

#: What `carrel run --deterministic` adds; a task may set its own. The rest is set in Python (`carrel_deterministic`).
DETERMINISTIC = {
    # TensorFlow before 2.9, which has no call for it.
    "TF_DETERMINISTIC_OPS": "1",
    "TF_CUDNN_DETERMINISTIC": "1",
    # The same number of threads each time, and one way through oneMKL's code
    # (https://www.intel.com/content/www/us/en/docs/onemkl/developer-guide-linux/, "Reproducibility Conditions").
    "OMP_DYNAMIC": "FALSE",
    "MKL_DYNAMIC": "FALSE",
    "MKL_CBWR": "AUTO",
    # Sums in the switch between GPUs come in any order.
    "NCCL_NVLS_ENABLE": "0",
}
#: The same for JAX; other flags of the task are kept.
_XLA = "--xla_gpu_deterministic_ops=true"

#: Directory in that of the client whose ``sitecustomize`` Python imports when it starts.
CLIENT_HOOK = "hook"
#: Set where a job starts before its MLflow run is there: Python asks the lab when it imports MLflow (`carrel_experiments`).
RUN_LATER = "CARREL_MLFLOW_RUN_LATER"
#: File in TMPDIR to which Python processes of a task add where they are when they are asked (`carrel_stacks`).
STACKS = "carrel-stacks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Directories of the attempt that the command gets in variables."""

    outputs: Path
    temporary: Path
    #: Kept from one attempt of the job to the next; None for a session.
    checkpoint: Path | None = None
    #: Prefix of the environment in which a session's kernels run; None for a task.
    environment: Path | None = None
    #: Where the root of the image is in which a session's kernels run; None: they run in `environment`.
    image: Path | None = None
    #: File in which a session on another machine than the lab's says where it is; None on the lab's own.
    address: Path | None = None
    #: File with whom to trust when the lab is asked; None: whom the machine trusts.
    authority: Path | None = None
    #: The attempt's own directory, on another machine than the lab's: a node's broker may know the job by it alone.
    attempt: Path | None = None


def base_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the part of the lab's environment `environ` that a command may see.

    PATH ends with the directory of the interpreter that the lab itself stands on; the lab's own virtual environment is taken out.
    """
    variables = {name: environ[name] for name in _PASSED if name in environ}
    variables |= {name: value for name, value in environ.items() if name.startswith("LC_")}
    variables |= _direct(variables, _DIRECT)
    variables.setdefault("HOME", str(Path.home()))
    variables.setdefault("LANG", "C.UTF-8")
    lab = os.path.normpath(f"{sys.prefix}/bin") if sys.prefix != sys.base_prefix else None
    entries = [entry for entry in variables.get("PATH", os.defpath).split(os.pathsep) if entry and os.path.normpath(entry) != lab]
    own = f"{sys.base_prefix}/bin"
    variables["PATH"] = os.pathsep.join(entries if own in entries else [*entries, own])
    variables["SHELL"] = "/bin/sh"
    return variables


def _direct(variables: Mapping[str, str], hosts: Sequence[str]) -> dict[str, str]:
    """Return the variables by which `hosts` are asked without a proxy; none where no proxy is named."""
    if not any(name.lower().endswith("_proxy") for name in variables):
        return {}
    # The lab may have one and the task the other.
    known = [host.strip() for name in ("no_proxy", "NO_PROXY") for host in variables.get(name, "").split(",")]
    named = ",".join(dict.fromkeys(filter(None, (*known, *hosts))))
    return {"no_proxy": named, "NO_PROXY": named}


def with_python(variables: Mapping[str, str], directory: Path) -> dict[str, str]:
    """Return `variables` with a `python` on PATH, made in `directory` where the machine has python3 alone (Debian and its kin).

    It goes last, so an environment's own comes first. A machine without any gets the lab's interpreter.
    """
    path = variables.get("PATH", os.defpath)
    if shutil.which("python", path=path) is not None:
        return dict(variables)
    there = "python3" if shutil.which("python3", path=path) is not None else os.path.realpath(sys.executable)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    program = directory / "python"
    # Not a link: an interpreter finds its library by the name that it was started with.
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(there)} "$@"\n')
    program.chmod(0o700)
    return {**variables, "PATH": f"{path}{os.pathsep}{directory}"}


def command_variables(
    activated: Mapping[str, str],
    launch: Launch,
    token: str,
    tracking: LaunchTracking | None,
    places: Places,
    secrets: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    """Return the variables of the command.

    `activated` are those of the base after the environment was activated. What the task sets, and its owner's `secrets`, goes
    before what the lab suggests; the names by which a job is known and the devices that it was given can be set by nobody else.
    """
    seed = launch.task.deterministic_seed
    variables = {
        **activated,
        "PYTHONUNBUFFERED": "1",
        **_SEEDS,
        **({} if seed is None else DETERMINISTIC),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "OMP_NUM_THREADS": str(launch.resources.cpus),
        **_tracking_variables(launch, token, tracking),
        **launch.variables,
        **launch.task.variables,
        **secrets,
        "TMPDIR": str(places.temporary),
        "CARREL_JOB_ID": str(launch.job_id),
        "CARREL_ATTEMPT": str(launch.attempt),
        **(launch.element.variables() if launch.element is not None else {}),
        **({"CARREL_POOL": str(launch.task.pool)} if launch.task.pool is not None else {}),
        **_trial(launch),
        "CARREL_OUTPUT_DIR": str(places.outputs),
        # A job never sees a GPU that it did not ask for: the empty list hides all.
        "CUDA_VISIBLE_DEVICES": ",".join(device.uuid for device in launch.devices),
    }
    if seed is not None:
        variables["CARREL_SEED"] = str(seed)
        if _XLA.partition("=")[0] not in variables.get("XLA_FLAGS", ""):
            variables["XLA_FLAGS"] = f"{variables.get('XLA_FLAGS', '')} {_XLA}".strip()
    if launch.task.order is not None:
        variables["CARREL_ORDER_DIR"] = str(places.outputs / ORDER)
    if launch.task.order_of is not None:
        variables |= {
            "CARREL_ORDER_JOB": launch.task.order_of,
            "CARREL_ORDER_REPEATS": str(places.outputs.parent / launch.task.order_place),
        }
    if places.checkpoint is not None:
        variables["CARREL_CHECKPOINT_DIR"] = str(places.checkpoint)
    if launch.task.session is not None and places.environment is not None:
        variables |= _session_variables(launch, launch.task.session, places, places.environment)
    elif launch.lends and launch.devices and token and launch.paths.broker and launch.paths.residency:
        # A task that lends its GPUs to cells stops at the gate of the library.
        variables |= {"CARREL_BROKER": launch.paths.broker, "LD_PRELOAD": preload(launch.paths.residency, variables)}
        variables |= _attempt(places)
    elif launch.task.borrows and token and launch.paths.broker:
        # A worker borrows them for each call, and looks at those that it is lent.
        variables |= {"CARREL_BROKER": launch.paths.broker, "CARREL_BORROWS": str(launch.task.borrows)}
        variables |= {"LD_PRELOAD": preload(launch.paths.residency, variables)} if launch.paths.residency else {}
        variables |= _attempt(places)
    if launch.gateway:
        variables["CARREL_URL"] = launch.gateway
        # The job's token is for the lab, and not for a proxy, be it of the machine or of the task.
        variables |= _direct(variables, [*_DIRECT, _host(launch.gateway)])
        if places.authority is not None:
            variables["CARREL_CA_FILE"] = str(places.authority)
            if _is_ours(variables.get("MLFLOW_TRACKING_URI", ""), launch):
                variables["MLFLOW_TRACKING_SERVER_CERT_PATH"] = str(places.authority)
    if token:
        variables["CARREL_TOKEN"] = token
    if launch.paths.client and launch.task.session is None:
        variables["PYTHONPATH"] = with_client(variables.get("PYTHONPATH", ""), launch.paths.client)
        if any(not device.simulated for device in launch.devices):
            variables["CARREL_STACKS"] = str(places.temporary / STACKS)
    return variables


def with_client(path: str, client: str) -> str:
    """PYTHONPATH with what puts the client for tasks (`carrel.engines.task_client`) at the end of the import path."""
    return os.pathsep.join(part for part in (path, f"{client}/{CLIENT_HOOK}") if part)


def without_network(variables: Mapping[str, str], network: Network) -> dict[str, str]:
    """Return `variables` as they are right where a command has this of the network.

    A proxy is out of its reach, and one that is named would be asked for the lab, too. Where the lab itself is, so that nothing
    waits for it, neither it nor its tracking server is named.
    """
    if network is Network.ON:
        return dict(variables)
    left_out = {name for name in variables if name.lower().endswith("_proxy")}
    if network is Network.OFF:
        left_out |= {"CARREL_URL", "CARREL_TOKEN", "CARREL_CA_FILE", RUN_LATER}
        left_out |= {f"MLFLOW_{name}" for name in ("TRACKING_URI", "TRACKING_TOKEN", "RUN_ID", "EXPERIMENT_ID")}
    return {name: value for name, value in variables.items() if name not in left_out}


def _session_variables(launch: Launch, session: SessionSpec, places: Places, environment: Path) -> dict[str, str]:
    """What `carrel.notebooks.jupyter` goes by."""
    return {
        "CARREL_SESSION_KIND": session.kind.value,
        "CARREL_SESSION_SOCKET": str(places.temporary / SESSION_SOCKET),
        "CARREL_SESSION_ENVIRONMENT": str(environment),
        "CARREL_SESSION_ENVIRONMENT_NAME": session.environment,
        "CARREL_SESSION_GPUS": str(session.gpus),
        **({"CARREL_SESSION_IMAGE": str(places.image), "CARREL_SESSION_IMAGE_NAME": session.image} if places.image else {}),
        **({"CARREL_SESSION_RESERVED": "1"} if session.reserve or launch.resources.gpus else {}),
        **({"CARREL_SESSION_HUB": session.hub} if session.hub else {}),
        **({"CARREL_SESSION_ADDRESS": str(places.address)} if places.address else {}),
        **({"CARREL_SESSION_PORTS": launch.session_ports} if places.address else {}),
        **({"CARREL_BROKER": launch.paths.broker} if launch.paths.broker else {}),
        **({"CARREL_SESSION_CLIENT": launch.paths.client} if launch.paths.client else {}),
        **({"CARREL_SESSION_RESIDENCY": launch.paths.residency} if launch.paths.broker and launch.paths.residency else {}),
        **_attempt(places),
    }


def _trial(launch: Launch) -> Mapping[str, str]:
    """What `carrel.report` goes by."""
    sweep, trial = launch.task.sweep, launch.task.trial
    return {} if sweep is None else {"CARREL_SWEEP": str(sweep), "CARREL_TRIAL": str(trial)}


def _attempt(places: Places) -> Mapping[str, str]:
    return {"CARREL_ATTEMPT_DIR": str(places.attempt)} if places.attempt else {}


def preload(library: str, variables: Mapping[str, str]) -> str:
    """LD_PRELOAD (ld.so(8)) with the library before what a program loads anyway."""
    return ":".join(part for part in (library, variables.get("LD_PRELOAD", "")) if part)


def seeds(variables: Mapping[str, str], secrets: Collection[str] = ()) -> dict[str, str]:
    """Return those of `variables` that make a run repeatable, for the record; of `secrets`, which are names, none."""
    return {name: variables[name] for name in _RECORDED if name in variables and name not in secrets}


def _tracking_variables(launch: Launch, token: str, tracking: LaunchTracking | None) -> dict[str, str]:
    if tracking is None or "MLFLOW_TRACKING_URI" in launch.task.variables:
        return {}
    found = {"MLFLOW_TRACKING_URI": tracking.uri}
    if tracking.run_id:
        found["MLFLOW_RUN_ID"] = tracking.run_id
    if tracking.experiment_id:
        found["MLFLOW_EXPERIMENT_ID"] = tracking.experiment_id
    # The job's token opens the lab; another server is none of its business, on the same host or not.
    if token and launch.gateway and _is_ours(tracking.uri, launch):
        found["MLFLOW_TRACKING_TOKEN"] = token
        # MLflow writes these tags at runs that are made in the job. A session has no run of its own.
        what = "carrel.job" if launch.task.session is None else "carrel.session"
        found["MLFLOW_RUN_CONTEXT"] = json.dumps({what: str(launch.job_id), "mlflow.user": launch.owner}, ensure_ascii=True)
        if not tracking.run_id and launch.task.session is None and launch.task.pool is None:
            found[RUN_LATER] = "1"
    return found


def _host(address: str) -> str:
    from urllib.parse import urlsplit

    return urlsplit(address).hostname or ""


def _is_ours(address: str, launch: Launch) -> bool:
    """True when the lab itself answers there."""
    from urllib.parse import urlsplit

    return urlsplit(address)[:2] == urlsplit(launch.gateway)[:2]
