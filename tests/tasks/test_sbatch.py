"""The directives of a batch script, as sbatch(1) reads them."""

from __future__ import annotations

import pytest

from carrel.core.domain.errors import Invalid
from carrel.core.tasks.sbatch import Directives, read_directives


@pytest.mark.gate
@pytest.mark.parametrize(
    ("lines", "config", "others"),
    [
        ("#SBATCH --job-name=train --mem 16G", {"job_name": "train", "mem": "16G"}, ()),
        ("#SBATCH -J train -t 01:30:00", {"job_name": "train", "time": "01:30:00"}, ()),
        ("#SBATCH -N1 -c4", {"nodes": "1", "cpus_per_task": "4"}, ()),
        ("#SBATCH --gres gpu:a100:2 # two of them", {"gres": "gpu:a100:2"}, ()),
        ("#SBATCH --exclusive --mem=1G", {"exclusive": True, "mem": "1G"}, ()),
        ("#SBATCH --mail-type=END,FAIL", {"mail_type": ["END", "FAIL"]}, ()),
        ('#SBATCH --job-name="two words"', {"job_name": "two words"}, ()),
        ('#SBATCH --job-name="never closed', {"job_name": '"never'}, ()),
        ("#SBATCH --nice=100 --requeue -k", {}, ("--nice=100", "--requeue", "--no-kill")),
        ("##SBATCH --mem=1G\n #SBATCH --mem=2G\n#SBATCHED --mem=3G", {}, ()),
        ("\n# a comment\n\n#SBATCH --mem=1G\n", {"mem": "1G"}, ()),
        ("echo begins\n#SBATCH --mem=1G\n", {}, ()),
    ],
)
def test_directives(lines: str, config: dict[str, object], others: tuple[str, ...]) -> None:
    assert read_directives(f"#!/bin/bash\n{lines}\n") == Directives(config=config, others=others)  # type: ignore[arg-type]


def test_a_line_that_would_take_long_is_refused() -> None:
    with pytest.raises(Invalid, match=r"Line 2, #SBATCH, has more than 4,096"):
        read_directives(f"#!/bin/sh\n#SBATCH --comment={'a' * 5000}\n")
