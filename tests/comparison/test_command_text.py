from __future__ import annotations

import shlex

from hypothesis import given
from hypothesis import strategies as st

from carrel.core.comparison.command_text import mix_commands

NAMES = ("lr", "batch-size", "epochs", "data")
VALUES = st.text(st.sampled_from("ab1. '\"$/="), min_size=1, max_size=6)


def written(values: dict[str, str], form: str) -> str:
    return "python train.py " + " ".join(form.format(name=name, value=shlex.quote(value)) for name, value in values.items())


@given(
    st.dictionaries(st.sampled_from(NAMES), st.tuples(VALUES, VALUES), min_size=1),
    st.sampled_from(["--{name} {value}", "--{name}={value}", "-P {name}={value}"]),
    st.data(),
)
def test_chosen_values_take_the_place_of_the_others(values: dict[str, tuple[str, str]], form: str, data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.sampled_from(sorted(values)), unique=True))
    first, second = (written({name: pair[side] for name, pair in values.items()}, form) for side in (0, 1))
    differ = {name: pair for name, pair in values.items() if pair[0] != pair[1]}
    assert mix_commands(first, second, differ, (), rest=False)[0] == first
    assert mix_commands(first, second, differ, differ, rest=True)[0] == second
    mixed, unexplained = mix_commands(first, second, differ, chosen, rest=False)
    wanted = written({name: pair[name in chosen] for name, pair in values.items()}, form)
    if not unexplained and all(len(shlex.split(text)) == len(text.split()) for text in (first, second)):
        # Values without spaces: each stands by itself.
        assert mixed == wanted


def test_what_no_parameter_explains_is_the_rest() -> None:
    values = {"lr": ("1", "2")}
    first, second = "python  train.py --lr 1 | tee log", "python  train2.py --lr 2 --fast | tee log"
    assert mix_commands(first, second, values, ["lr"], rest=False) == ("python  train.py --lr 2 | tee log", True)
    assert mix_commands(first, second, values, [], rest=True) == ("python  train2.py --lr 1 --fast | tee log", True)
    assert mix_commands(first, first, {}, [], rest=False) == (first, False)


def test_values_with_spaces_are_words_and_two_may_have_each_others_values() -> None:
    spaced = {"a": ("it's 1", "it's 1 $HOME"), "b": ("1", "1")}
    first, second = (f"t {shlex.quote(spaced['a'][side])} 1" for side in (0, 1))
    assert mix_commands(first, second, spaced, ["a"], rest=False) == (second, False)
    swapped = {"a": ("1", "2"), "b": ("2", "1")}
    assert mix_commands("t 1 2", "t 2 1", swapped, ["a"], rest=False) == ("t 2 2", False)
    assert mix_commands("t 1 2", "t 2 1", swapped, ["a", "b"], rest=False) == ("t 2 1", False)


def test_equal_values_are_told_apart_by_the_names_before_them() -> None:
    values = {"wd": ("1", "2"), "lr": ("1", "2")}
    assert mix_commands("t --lr 1 --wd 1", "t --lr 2 --wd 2", values, ["lr"], rest=False) == ("t --lr 2 --wd 1", False)
    assert mix_commands("t --lr 1 --wd 1", "t --lr 2 --wd 2", values, ["wd"], rest=False) == ("t --lr 1 --wd 2", False)
