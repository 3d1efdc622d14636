"""The records an executor answers with, before anything is computed; the same for all of them.

Owns: what an empty result looks like, and which rows of a plan are reported at all. Never knows:
how a row is computed.
"""

import numpy as np
import numpy.typing as npt

from core.scheduler.plan import RESULT_ROW, PlanFlag, RecordArray, ResultError

# numpy takes an enumeration apart for 10 µs each time an array is compared with it.
NO_ERROR = np.uint32(ResultError.NONE)
_REPORTED = np.uint32(PlanFlag.SAMPLE | PlanFlag.PROMPT_LOGPROBS)


def empty_results(plan: RecordArray, errors: npt.NDArray[np.uint32]) -> RecordArray:
    """Return RESULT_ROW[n] without tokens for PLAN_ROW[n] `plan` with these ResultErrors."""
    results = np.zeros(len(plan), dtype=RESULT_ROW)
    results["row"], results["generation"] = plan["row"], plan["generation"]
    results["token_id"] = -1
    results["logprob"] = np.nan
    results["error"] = errors
    return results


def is_reported(plan: RecordArray, errors: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
    """Tell which rows of `plan` the scheduler wants to hear of, or must because of an error."""
    wanted = (plan["flags"] & _REPORTED) != 0
    return np.asarray(wanted | (errors != NO_ERROR))
