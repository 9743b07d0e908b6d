"""The lab with a virtual clock: recorded work through the lab's own policy, now and after a change, beside EASY backfill."""
