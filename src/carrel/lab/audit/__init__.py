"""Who did what in the lab, by which rule, and what was refused: lines that are only added, each chained to the one before."""

from carrel.lab.audit.chain import ChainBroken, Checked, check_lines, line_of
from carrel.lab.audit.log import READS, AuditFilter, AuditLog

__all__ = ["READS", "AuditFilter", "AuditLog", "ChainBroken", "Checked", "check_lines", "line_of"]
