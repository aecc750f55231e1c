"""Log-probabilities that an engine reported with its tokens, beside the rescored ones."""

import numpy as np

from referee.audit.arm import Arm

FAR = 0.25
"""The difference of two log-probabilities from which they are far apart; see `terms.NEAR_TIE`."""


def about_reported(arm: Arm) -> str:
    """A line that compares reported log-probabilities with the target's, for information alone.

    The target's are those of its logits as they are, at temperature 1 without penalties and
    filters; of engines that report the law after them, only rows without settings agree. "" if no
    sampled row has any.
    """
    if arm.terms is None:
        return ""
    rows = [
        (number, row.logprobs)
        for number, row in enumerate(arm.transcripts)
        if row.logprobs is not None and row.temperature > 0
    ]
    if not rows:
        return ""
    chosen = np.isin(arm.terms.row.numpy(), [number for number, _ in rows])
    rescored = -arm.terms.loss.numpy()[chosen]
    reported = np.concatenate([np.array(values) for _, values in rows])
    if not reported.any():
        return (
            f"the log-probabilities of all {len(reported)} tokens are reported as 0, as an engine "
            "writes that does not compute them"
        )
    difference = np.abs(reported - rescored)
    settings = dict.fromkeys(arm.transcripts[number].setting for number, _ in rows)
    after = (
        ""
        if [*settings] == ["T=1"]
        else (
            f"; rescored without the settings ({'; '.join(settings)}), which some engines include"
        )
    )
    return (
        f"log-probabilities that the engine reported, of {len(reported)} tokens, differ from the "
        f"rescored ones by {difference.mean():.2g} on average, and by more than {FAR:g} at "
        f"{np.mean(difference > FAR):.2%} of them{after}"
    )
