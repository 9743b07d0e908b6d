"""The lab itself with a virtual clock: the scheduler and the policy are those of the server; store, engine and time are not."""

from carrel.simulate.lab.simulation import simulate_lab
