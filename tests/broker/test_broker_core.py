"""The broker's core alone: any order of events, any ending of moves, killed anywhere between what it wrote and what it did."""

from __future__ import annotations

import pytest
from pretend_shell import live

from support.examples import examples


@pytest.mark.gate
def test_whatever_happens_nobody_shares_a_device_and_nobody_is_forgotten() -> None:
    shells = [live(seed, 120) for seed in range(examples(200))]
    assert sum(shell.granted for shell in shells) > len(shells)
    assert sum(shell.moves for shell in shells) > len(shells) / 2
    assert any(shell.bus for shell in shells)
    assert any(shell.crashes for shell in shells)


def test_whatever_happens_while_states_are_exchanged() -> None:
    """One device, states that do not fit together, and each process with the library."""
    shells = [live(seed, 200, bus=True) for seed in range(examples(100))]
    assert sum(shell.exchanges for shell in shells) > len(shells) / 2
    assert any(shell.crashes for shell in shells)


def test_whatever_happens_a_state_on_the_disk_is_known() -> None:
    shells = [live(seed, 120, spills=True) for seed in range(examples(60))]
    assert any(shell.spills for shell in shells)
    assert any(shell.crashes for shell in shells)


def test_whatever_happens_while_contexts_leave_and_come_back() -> None:
    """Contexts are large: a state comes back only where those of others have left, which some do not survive."""
    shells = [live(seed, 200, contexts=True) for seed in range(examples(80))]
    assert sum(shell.checkpoints for shell in shells) > len(shells) / 4
    assert any(shell.restores for shell in shells)
    assert any(shell.crashes for shell in shells)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_whatever_happens_in_ten_thousand_histories() -> None:
    shells = [live(seed, 200) for seed in range(1000, 11_000)]
    assert sum(shell.crashes for shell in shells) > 10_000
