"""Who held GPUs for how long, and what came of it: sums of attempts and of what was lent to cells. Pure.

Every interval is cut at the ends of the range that is asked for, and at the ends of weeks. So the rows of a report add up to
the time of the attempts, however they are grouped.
"""

from carrel.core.gpu_use.anonymous import LEAST_PEOPLE, OTHERS, AnonymousSums
from carrel.core.gpu_use.counters import UseCounters
from carrel.core.gpu_use.facts import AttemptFacts, End, HeldFacts, LentFacts, StartFacts, WaitFacts
from carrel.core.gpu_use.groups import Grouping, Range
from carrel.core.gpu_use.low_use import ENOUGH, ENOUGH_OF_SESSION, LOW, STILL, Look, low_use
from carrel.core.gpu_use.recorded import gpus_of, measured
from carrel.core.gpu_use.session_times import SESSION_ROWS, CellFacts, SessionTime, SessionTimes, session_times, told
from carrel.core.gpu_use.stacks import Stack, WaitsFor, read_stacks
from carrel.core.gpu_use.start_times import ClassTimes, StartTimes, Times
from carrel.core.gpu_use.sums import Use, UseSums
from carrel.core.gpu_use.waits import Waits
from carrel.core.gpu_use.week import HOUR, WEEK, DeviceHours
