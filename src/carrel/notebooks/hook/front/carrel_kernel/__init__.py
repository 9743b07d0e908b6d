"""The kernel hook: a cell that needs a GPU has one, on loan, while it runs.

This package is put in front of the user's own environment, of which nothing is expected but ipykernel (6.29 to 7.x) on Python
3.9 or newer; it imports the standard library and what every kernel has, and of Carrel nothing. It speaks the protocol of
``carrel.node.leases.protocol`` with the broker of its node.

When a cell needs a lease:

* never, while the process has not used CUDA; the first use waits for a lease there (`guard`), until its user's end;
* from then on each cell, unless it plainly computes nothing or is marked: a comment ``# carrel: gpus=0`` or ``gpus=2`` at its
  top, a cell tag ``gpus=2`` or ``cpu``, or ``%gpu …`` for all that follow (`marks`, `magic`).

The process has at most one lease. Each of its users has a share of it (`shares`): a cell, a request, a callback, a task, a
thread. Each returns its own share when it is over, and the lease goes back with the last one.

What goes wrong here must not change what a cell means. Where no broker is named, or it refuses this kernel, cells run as in a
plain kernel. Where a lease cannot be had, the cell does not run, and says so: running it would put two users on one GPU.
"""
