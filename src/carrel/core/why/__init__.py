"""Which of the differences between two attempts is the cause of their different results: found by running variants. Pure.

A variant is the first attempt's task with some facts of the second. What is tried next follows from what came out so far, so
nothing has to be remembered but the jobs: whoever asks again goes on where it stood.
"""

from carrel.core.why.changes import Change, Part, changes_of
from carrel.core.why.search import (
    FAILED,
    FIRST,
    SECOND,
    Answer,
    Found,
    Search,
    Variant,
    Weighted,
    most_runs,
    search,
)
from carrel.core.why.variants import Composition, Half, VariantTask, variant_task
