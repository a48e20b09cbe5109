"""How answers of shadows compared reaches the store by the ledger's thread, beside its rows."""

from pathlib import Path

import pytest

from drivetrain.governance import Comparison
from drivetrain.store import Store
from drivetrain.store.kept import Body
from drivetrain.store.rollouts import Rollouts
from tests.unit.store.attempts import attempt, writing
from tests.unit.store.plans import begun

pytestmark = pytest.mark.anyio


async def test_comparisons_and_what_was_said_are_kept_beside_the_rows(store: Store, tmp_path: Path) -> None:
    rollouts = Rollouts(store)
    one = begun(rollouts, stages=[{"percent": 0.0, "shadow": True}, {"percent": 100.0}], shadow={})
    at_s = one.since_s + 1
    async with writing(store, tmp_path / "state") as ledger:
        ledger.append(attempt(1, rollout=f"{one.id}:new:shadow", started_s=at_s))
        ledger.keep(Body(request_id="req_1", at_s=1.0, delete_s=4e9, request="q", answer="a"))
        for value in (1.0, 0.25):
            ledger.keep(
                Comparison(
                    request_id="r\0eq_1",  # of a caller's making, and no text for every database
                    rollout=one.id,
                    arm="new",
                    at_s=at_s,
                    how="similarity",
                    value=value,
                    first_token_s=None,
                    baseline_first_token_s=0.5,
                    total_s=1.0,
                    baseline_total_s=2.0,
                )
            )
    assert store.body("req_1") is not None
    report = rollouts.report(one)
    assert [arm.requests for arm in report.arms.arms] == [0, 1]
    assert store.sweep_comparisons(at_s + 1) == 2
