"""What holds for a request under a model's policy and the terms of its key and of all above that. Pure.

Times: the least of all that are said. What becomes of an answer whose caller left: the nearest word counts, and the
policy's where nobody has one.
"""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from drivetrain.config.schema import Policy, Timeouts
from drivetrain.governance import Said
from drivetrain.types import Value


class Own(Value, frozen=True, kw_only=True):
    """A policy as it is for some callers."""

    policy: Policy
    by: Mapping[str, str] = {}  # timeouts that are shorter than the policy's, and whose word that is: "key 'ci'"

    def whose(self, timeout: str) -> str:
        """As a message calls it; "" for one that is the policy's own."""
        owner = self.by.get(timeout)
        return f"{timeout} of {owner}" if owner is not None else ""


def own(policy: Policy, said: Sequence[Said]) -> Own:
    """`said`: from the nearest to the widest. Of equal words the nearest is named."""
    shorter: dict[str, float] = {}
    by: dict[str, str] = {}
    for name in Timeouts.__struct_fields__:
        for each in said:
            told_s = getattr(each.terms, name)
            if told_s is not None and told_s < shorter.get(name, getattr(policy.timeouts, name)):
                shorter[name], by[name] = told_s, each.owner
    waits = [each.terms.queue_timeout_s for each in said if each.terms.queue_timeout_s is not None]
    left = [each.terms.on_disconnect for each in said if each.terms.on_disconnect is not None]
    changed = replace(
        policy,
        timeouts=replace(policy.timeouts, **shorter),
        queue=replace(policy.queue, timeout_s=min([policy.queue.timeout_s, *waits])),
        on_disconnect=[*left, policy.on_disconnect][0],
    )
    return Own(policy=changed, by=by)
