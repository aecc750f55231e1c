"""The same with 1.02: too little to be called a bias of .02, and known to be there."""

from functools import partial

from faults.acceptance.times_105 import MoreOften
from faults.base import Fault, Where

FAULT = Fault("acceptance times 1.02 (V > 5)", partial(MoreOften, 1.02), Where.LAW, 0.0035)
