"""Removing what the lab need not keep: by rules, and never what a record names unless a rule says so.

`carrel.core.domain.retention` has the rules, `Collector` carries them out, `removal` is how a file goes without hurting those who
begin to use it at that moment.
"""

from carrel.lab.retention.collector import Collector
