"""What a target lacks for a request, as far as that is known. Pure.

Whoever lacks something is asked last: what engines tell of their models may be wrong, and the truth comes from them.
"""

from drivetrain.router.standing import Facts, Standing, Traits


def lacks(standing: Standing, facts: Facts, traits: Traits) -> str:
    """In words; "" for nothing."""
    return unable(facts, traits) or late(standing, facts)


def unable(facts: Facts, traits: Traits) -> str:
    """As `lacks`, of what does not change from one request to the next."""
    can, context = traits.capabilities, traits.context
    if can and facts.tools and "tools" not in can:
        return "its model has no tools"
    if can and facts.images and "vision" not in can:
        return "its model sees no images"
    if context is not None and facts.prompt_tokens + facts.limit > context:
        return f"its context of {context} tokens is too short"
    return ""


def late(standing: Standing, facts: Facts) -> str:
    """As `lacks`, of its speed."""
    deadline_s, speed = facts.deadline_s, standing.speed
    if deadline_s is None or speed is None:
        return ""
    taken_s = speed.expected_s(facts.prompt_tokens, facts.output_tokens)
    return f"{taken_s:.3g} s is more than there is time for" if taken_s > deadline_s else ""
