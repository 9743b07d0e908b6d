"""What the GPUs of a lab cost and were good for in a year: from what the site enters and the lab has measured to figures. Pure.

Money is exact, numbers have units, and every figure has either the place that it comes from, or its formula.
"""

from carrel.core.worth.assessment import Assessment, assess
from carrel.core.worth.clouds import Cloud
from carrel.core.worth.measured import Measured
from carrel.core.worth.model import CostModel
from carrel.core.worth.period import Period
from carrel.core.worth.quantities import Quantity, Unit, parse_quantity
from carrel.core.worth.questions import Question, difference_in_words
from carrel.core.worth.reading import read_costs
from carrel.core.worth.returns import Return
from carrel.core.worth.sensitivity import Varied
from carrel.core.worth.sheet import Figure, Sheet
from carrel.core.worth.words import number, show
