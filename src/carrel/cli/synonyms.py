"""What people type who know other programs, and the command that does it here. Loaded for a command that there is not."""

from __future__ import annotations

from carrel.core.domain.errors import Invalid

_PS = "carrel ps lists jobs; carrel show ID shows one."
_CANCEL = "carrel cancel ID ends a job; records and outputs stay."
_RUN = "carrel run TARGET runs a task and shows its log; carrel submit TARGET does not wait."
_LOGS = "carrel logs ID prints what a job wrote; carrel logs -f ID goes on until it ends."
_NODES = "carrel nodes shows the machines; carrel lab the partitions and classes of service."
_OUTPUTS = "carrel outputs ID DIR fetches what a job stored."
_NOTEBOOK = "carrel notebook opens JupyterLab, carrel terminal a terminal."
_WHO = "carrel lab says who one is; carrel login URL leads to another lab."

#: Word -> what to type instead.
SYNONYMS: dict[str, str] = {
    **dict.fromkeys(("status", "list", "ls", "jobs", "queue", "squeue", "stat", "qstat", "top"), _PS),
    **dict.fromkeys(("sacct", "history"), "carrel ps --all lists ended jobs too; carrel show ID shows one."),
    **dict.fromkeys(("stop", "rm", "kill", "delete", "remove", "del", "abort", "end", "scancel", "qdel"), _CANCEL),
    **dict.fromkeys(("srun", "exec", "start", "launch", "train"), _RUN),
    **dict.fromkeys(("sbatch", "qsub", "batch"), "carrel submit TARGET submits a task and returns at once."),
    **dict.fromkeys(("log", "tail", "follow", "watch", "attach", "peek"), _LOGS),
    **dict.fromkeys(("sinfo", "machines", "partitions", "qos"), _NODES),
    **dict.fromkeys(("scontrol", "info", "describe", "inspect", "job"), "carrel show ID shows one job and its attempts."),
    **dict.fromkeys(("artifacts", "download", "fetch", "get", "output", "results"), _OUTPUTS),
    **dict.fromkeys(("retry", "resubmit", "restart", "requeue", "repeat"), "carrel rerun ID runs the same task again."),
    **dict.fromkeys(("sshare", "quota"), "carrel share shows where one stands in fair share."),
    **dict.fromkeys(("use", "sreport", "seff"), "carrel usage shows how GPUs were used."),
    **dict.fromkeys(("reproduce", "import"), "carrel replay FILE repeats a job that carrel export ID wrote to a file."),
    **dict.fromkeys(("gpu", "nvidia-smi", "smi"), "carrel gpus shows who has which GPU."),
    **dict.fromkeys(("jupyter", "notebooks", "salloc", "session"), _NOTEBOOK),
    **dict.fromkeys(("shell", "bash", "sh"), "carrel terminal opens a terminal in the lab, carrel ssh one in a running job."),
    **dict.fromkeys(
        ("code", "code-server", "ide"), "carrel vscode opens VS Code in the browser; carrel ssh --config is for editors."
    ),
    **dict.fromkeys(("serve", "server", "init"), "carrel up starts a lab."),
    **dict.fromkeys(("down", "shutdown", "exit", "quit"), "Ctrl-C where carrel up runs stops the lab; tasks go on."),
    **dict.fromkeys(("whoami", "auth-status"), _WHO),
    **dict.fromkeys(("users", "useradd", "adduser"), "carrel user list lists users; carrel user add NAME adds one."),
    **dict.fromkeys(("envs", "environment", "environments", "conda", "venv"), "carrel env list lists environments."),
    **dict.fromkeys(("check", "diagnose"), "carrel doctor checks this machine and the lab."),
    **dict.fromkeys(("sacctmgr", "rule", "set"), "carrel rules NAME=VALUE changes classes of service, accounts and priorities."),
    "help": "carrel --help lists the commands; carrel COMMAND --help explains one.",
}


def refuse_synonym(word: str) -> None:
    """Raise `Invalid` with the command that does what `word` does elsewhere; return when nothing is known of it."""
    if word in SYNONYMS:
        raise Invalid(f'There is no command "{word}".', remedy=SYNONYMS[word])
