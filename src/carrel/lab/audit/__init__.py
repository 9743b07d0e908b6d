"""Who did what in the lab, by which rule, and what was refused: one JSON line for each call."""

from carrel.lab.audit.log import READS, AuditFilter, AuditLog
