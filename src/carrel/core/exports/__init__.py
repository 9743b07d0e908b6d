"""Attempts as lines of the formats that others read: Slurm's `sacct`, Open XDMoD's shredder, SWF. Pure."""

from carrel.core.domain.exported_attempt import ExportedAttempt
from carrel.core.exports.anonymous import Numbers, anonymous
from carrel.core.exports.sacct import SACCT_COLUMNS, sacct_line
from carrel.core.exports.swf import SwfHeader, SwfWriter
