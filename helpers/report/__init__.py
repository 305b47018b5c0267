"""Execute the notebooks on the machine at hand and leave a report that can be read, diffed and trusted.

``python -m helpers.report`` is the command. A notebook becomes a :class:`Job`; :func:`run_notebook` turns a job into a
:class:`Result` that holds everything there is to know about the run, so that a job can be handed to any executor with
the interface of ``concurrent.futures``, on this machine or another.
"""

from helpers.report.jobs import Failure, Job, Result, run_notebook
from helpers.report.machine import provenance

__all__ = ["Failure", "Job", "Result", "provenance", "run_notebook"]
