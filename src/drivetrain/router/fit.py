"""What a target lacks for a request, as far as that is known. Pure.

Whoever lacks something is asked last: what engines tell of their models may be wrong, and the truth comes from them.
"""

from drivetrain.router.field import Seen, expected_s
from drivetrain.router.standing import Facts, Traits


def lacks(seen: Seen, facts: Facts, traits: Traits) -> str:
    """In words; "" for nothing."""
    can, context = traits.capabilities, traits.context
    if can and facts.tools and "tools" not in can:
        return "its model has no tools"
    if can and facts.images and "vision" not in can:
        return "its model sees no images"
    if context is not None and facts.prompt_tokens + facts.limit > context:
        return f"its context of {context} tokens is too short"
    if facts.deadline_s is not None and (taken_s := expected_s(seen, facts)) is not None and taken_s > facts.deadline_s:
        return f"{taken_s:.3g} s is more than there is time for"
    return ""
