"""Words of dask-jobqueue, and what they are in the lab."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from carrel.client.dask_words import NO_EFFECT, REFUSED, WORDS, said_by
from carrel.core.domain.errors import Invalid

pytestmark = pytest.mark.quick


def test_a_job_of_one_process() -> None:
    words = {"cores": 4, "walltime": "00:30:00", "queue": "gpu", "project": "physics", "job_name": "mine", "interface": "ib0"}
    said = said_by(words, {"memory": "8GB", "gpus": 2, "cpus": None})
    assert said.options == {
        "cpus": 4, "memory": "8GB", "gpus": 2, "time": "00:30:00", "partition": "gpu", "account": "physics", "name": "mine",
    }  # fmt: skip
    assert said.worker == {"nthreads": 4, "memory_limit": 8 << 30, "interface": "ib0"}
    assert (said.processes, said.interface, list(said.warnings)) == (1, "ib0", [])


def test_processes_share_what_a_job_has() -> None:
    said = said_by({"cores": 8, "processes": 4, "job_cpu": 16, "job_mem": "100G"}, {"memory": "28G", "gpus": 4})
    assert said.options == {"cpus": 4, "memory": "25600M", "gpus": 1}
    assert said.worker == {"nthreads": 2, "memory_limit": 7 << 30}
    assert said.processes == 4
    with pytest.raises(Invalid, match="a GPU cannot be shared out"):
        said_by({"processes": 4}, {"gpus": 1})


def test_what_is_not_said_is_left_to_the_lab() -> None:
    said = said_by({"queue": None, "job_extra_directives": [], "death_timeout": None}, {"memory": None, "cpus": None})
    assert (said.options, said.worker) == ({"cpus": 1}, {"nthreads": 1})


def test_lines_and_arguments_that_have_a_counterpart() -> None:
    words = {
        "env_extra": ["export OMP_NUM_THREADS=1", " export LANG='en_US.utf8' ", "export EMPTY="],
        "worker_extra_args": ["--lifetime", "55m", "--lifetime-stagger=4m"],
        "job_extra_directives": ["--nice=100", "--comment 'of Dask'"],
        "death_timeout": 20,
        "local_directory": "/scratch",
    }
    said = said_by(words, {"variables": {"LANG": "C"}})
    assert said.options["variables"] == {"OMP_NUM_THREADS": "1", "LANG": "C", "EMPTY": ""}
    assert said.options["slurm"] == {"options": ["--nice=100", "--comment='of Dask'"]}
    worker = {"lifetime": "55m", "lifetime_stagger": "4m", "death_timeout": 20, "local_directory": "/scratch", "nthreads": 1}
    assert said.worker == worker
    assert said_by({"job_extra_directives": {"--nice": "7"}}, {}).options["slurm"] == {"options": ["--nice=7"]}


@pytest.mark.parametrize(
    ("words", "options", "told"),
    [
        ({"cores": 2}, {"cpus": 3}, "They are the same: say one of them"),
        ({"queue": "a"}, {"partition": "b"}, "They are the same: say one of them"),
        ({"processes": 0}, {}, "processes is 0"),
        ({"protocol": "tcp"}, {}, "scheduler and workers speak TLS"),
        ({"job_script_prologue": ["module load cuda"]}, {}, "workers are started by no shell"),
        ({"job_script_prologue": ["export PATH=/opt:$PATH"]}, {}, "workers are started by no shell"),
        ({"job_script_prologue": ["export A=$(id)"]}, {}, "workers are started by no shell"),
        ({"worker_extra_args": ["--preload", "mine"]}, {}, "worker_options"),
        ({"worker_extra_args": ["--lifetime"]}, {}, "worker_options"),
        ({"job_extra_directives": ["-C gpu"]}, {}, "long ones"),
        *(({word: "x"}, {}, f"{word} means nothing in the lab") for word in REFUSED),
    ],
)
def test_what_has_no_counterpart_is_refused_with_the_reason(words: dict[str, Any], options: dict[str, Any], told: str) -> None:
    with pytest.raises(Invalid) as refused:
        said_by(words, options)
    assert told in f"{refused.value} {refused.value.remedy}"


@pytest.mark.parametrize("word", sorted(NO_EFFECT))
def test_what_changes_nothing_is_said(word: str) -> None:
    (line,) = said_by({word: "x"}, {}).warnings
    assert line.startswith(f"{word} changes nothing. ")


def test_every_word_is_on_the_page() -> None:
    table = (
        (Path(__file__).parents[2] / "docs" / "functions.md")
        .read_text()
        .partition("### From dask-jobqueue")[2]
        .partition("\n## ")[0]
    )
    assert [word for word in sorted(WORDS) if f"`{word}`" not in table] == []


def test_all_words_of_a_slurm_cluster_are_known() -> None:
    # Those of dask_jobqueue 0.9.0's JobQueueCluster, Job and SLURMJob that are no options of CarrelCluster itself.
    theirs = """
        cores processes interface death_timeout local_directory extra worker_command worker_extra_args job_extra
        job_extra_directives env_extra job_script_prologue header_skip job_directives_skip log_directory shebang python
        job_name config_name nanny protocol queue project walltime job_cpu job_mem shared_temp_directory scheduler_cls job_cls
    """
    assert set(theirs.split()) == WORDS
