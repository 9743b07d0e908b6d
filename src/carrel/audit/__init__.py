"""Who did what in the lab, by which rule, and what was refused: lines that are only added, each chained to the one before."""

from carrel.audit.chain import Checked, Torn, check_lines, line_of
from carrel.audit.log import READS, AuditLog, Wanted

__all__ = ["READS", "AuditLog", "Checked", "Torn", "Wanted", "check_lines", "line_of"]
