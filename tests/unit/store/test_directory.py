"""Keys as every process knows them: found once, kept up to date, refused within a look after their revocation; in each
store."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from drivetrain.governance import Principal, Rule
from drivetrain.rollouts.plan import Plan
from drivetrain.store import Store, pepper
from drivetrain.store.administration import Administration
from drivetrain.store.directory import UNKNOWN_S, Directory
from drivetrain.store.prompts import Prompts
from drivetrain.store.rollouts import Rollouts
from tests.unit.store.administrators import BY, PEPPER, Clock, new_key, opens
from tests.unit.store.plans import begun

pytestmark = pytest.mark.anyio


@pytest.fixture
def directory(store: Store, clock: Clock) -> Directory:
    return Directory(store, PEPPER, clock)


async def principal(directory: Directory, public_id: str) -> Principal:
    record = await directory.find(public_id)
    assert record is not None
    return record.principal


async def test_a_key_opens_with_its_secret_only(admin: Administration, directory: Directory) -> None:
    key, text = new_key(admin, expires_s=1_900_000_000.0)
    assert directory.cached(key.public_id) is None
    record = await directory.find(key.public_id)
    assert record is not None
    assert directory.cached(key.public_id) is record
    assert opens(text, record)
    assert not opens(f"dt-{key.public_id}-{'x' * 43}", record)
    assert not opens(f"dt-{key.public_id}-{record.hash}", record)
    assert (record.id, record.pepper, record.not_after_s) == (key.id, PEPPER.id, 1_900_000_000.0)


async def test_it_tells_who_asks_and_all_that_binds_it(admin: Administration, directory: Directory) -> None:
    team = admin.create("team", {"name": "search", "models": ["gpt-*", "phi4"]}, actor=BY)
    user = admin.create("user", {"name": "Ada"}, actor=BY)
    fields: dict[str, Any] = {
        "models": ["gpt-5", "llama*"],
        "scopes": ["inference", "usage"],
        "priority": "bulk",
    }
    key, _ = new_key(admin, team="search", user="Ada", **fields)
    bound = {
        "key": admin.create("limit", {"key": "ci", "resource": "tokens", "amount": 9, "per": "day"}, actor=BY),
        "user": admin.create("limit", {"user": "Ada", "resource": "concurrency", "amount": 2}, actor=BY),
        "team": admin.create("budget", {"team": "search", "amount": 7, "per": "month", "zone": "Asia/Tokyo"}, actor=BY),
        "org": admin.create("budget", {"org": "default", "amount": 8, "per": "day", "rolling": True}, actor=BY),
    }
    org = admin.get("org", "default")
    who = await principal(directory, key.public_id)
    assert who == Principal(
        key_id=key.id,
        name="ci",
        org=org.id,
        team=team.id,
        project=key.project,
        user=user.id,
        scopes=frozenset({"inference", "usage"}),
        models=("gpt-5",),
        priority="bulk",
        rules=(
            Rule(id=f"key:{key.id}:{bound['key'].id}", owner="key 'ci'", resource="tokens", amount=9, per="day"),
            Rule(id=f"user:{user.id}:{bound['user'].id}", owner="user 'Ada'", resource="concurrency", amount=2),
            Rule(
                id=f"team:{team.id}:{bound['team'].id}",
                owner="team 'search'",
                resource="money",
                amount=7,
                per="month",
                zone="Asia/Tokyo",
            ),
            Rule(
                id=f"org:{org.id}:{bound['org'].id}",
                owner="org 'default'",
                resource="money",
                amount=8,
                per="day",
                rolling=True,
            ),
        ),
    )


async def test_a_revocation_reaches_every_replica(admin: Administration, store: Store, clock: Clock) -> None:
    replicas = [Directory(store, PEPPER, clock) for _ in range(2)]
    key, text = new_key(admin)
    for replica in replicas:
        assert opens(text, await replica.find(key.public_id))
    async with anyio.create_task_group() as group:
        for replica in replicas:
            group.start_soon(replica.run)
        admin.revoke_key("ci", actor=BY)
        with anyio.fail_after(10):
            while any(replica.cached(key.public_id) for replica in replicas):
                await anyio.sleep(0.01)
        group.cancel_scope.cancel()
    assert [await replica.find(key.public_id) for replica in replicas] == [None, None]


@pytest.mark.parametrize("kind", ["user", "project", "team", "org"])
async def test_what_is_above_a_key_disables_it_and_gives_it_back(
    admin: Administration, directory: Directory, kind: str
) -> None:
    admin.create("user", {"name": "default"}, actor=BY)
    key, text = new_key(admin, user="default")
    await directory.refresh()
    assert opens(text, await directory.find(key.public_id))
    admin.update(kind, "default", 1, {"disabled": True}, actor=BY)
    assert await directory.refresh()
    assert directory.cached(key.public_id) is None
    assert await directory.find(key.public_id) is None
    admin.update(kind, "default", 2, {"disabled": False}, actor=BY)
    await directory.refresh()
    assert opens(text, directory.cached(key.public_id))


async def test_a_change_of_what_binds_a_key_is_seen(admin: Administration, directory: Directory) -> None:
    key, _ = new_key(admin)
    other, _ = new_key(admin, "other")
    budget = admin.create("budget", {"key": "ci", "amount": 1, "per": "day"}, actor=BY)
    await directory.refresh()
    untouched = await directory.find(other.public_id)
    assert [rule.amount for rule in (await principal(directory, key.public_id)).rules] == [1]
    admin.update("budget", budget.id, 1, {"amount": 2}, actor=BY)
    await directory.refresh()
    assert [rule.amount for rule in (await principal(directory, key.public_id)).rules] == [2]
    admin.delete("budget", budget.id, actor=BY)
    admin.update("key", "ci", 1, {"models": ["phi4"]}, actor=BY)
    await directory.refresh()
    who = await principal(directory, key.public_id)
    assert (who.rules, who.models) == ((), ("phi4",))
    assert directory.cached(other.public_id) is untouched


async def test_keys_of_a_line_share_limits_and_budgets(admin: Administration, directory: Directory) -> None:
    old, text = new_key(admin)
    admin.create("budget", {"key": "ci", "amount": 1, "per": "day"}, actor=BY)
    new, new_text = admin.rotate_key("ci", grace_s=60, actor=BY)
    first, second = [await directory.find(key.public_id) for key in (old, new)]
    assert opens(text, first)
    assert opens(new_text, second)
    assert first is not None
    assert second is not None
    assert first.principal == second.principal
    assert first.principal.key_id == old.id
    assert (first.not_after_s, second.not_after_s) == (Clock().now_s + 60, None)


async def test_a_deleted_key_is_unknown(admin: Administration, directory: Directory) -> None:
    key, _ = new_key(admin)
    assert await directory.find(key.public_id) is not None
    admin.delete("key", "ci", actor=BY)
    await directory.refresh()
    assert await directory.find(key.public_id) is None
    assert directory.size == 0


async def test_prices_are_there_and_another_tuple_when_one_has_changed(
    admin: Administration, directory: Directory
) -> None:
    told: list[int] = []
    directory.on_change = lambda: told.append(len(directory.prices))
    await directory.refresh()
    assert directory.prices == ()
    price = admin.create("price", {"input": 5}, actor=BY)
    await directory.refresh()
    kept = directory.prices
    assert [*kept] == [price]
    admin.create("org", {"name": "acme"}, actor=BY)
    await directory.refresh()
    assert directory.prices is kept
    admin.delete("price", price.id, actor=BY)
    await directory.refresh()
    await directory.refresh()
    assert directory.prices == ()
    assert told == [1, 1, 0]


async def test_the_plan_is_there_and_another_one_when_a_rollout_or_a_prompt_has_changed(
    store: Store, admin: Administration, directory: Directory
) -> None:
    rollouts, prompts = Rollouts(store), Prompts(store)
    await directory.refresh()
    assert directory.plan == Plan()
    one = begun(rollouts)
    await directory.refresh()
    kept = directory.plan
    assert kept == Plan(rollouts={"chat": one})
    admin.create("org", {"name": "acme"}, actor=BY)
    await directory.refresh()
    assert directory.plan is kept
    prompt = prompts.add("brief", "Be brief.", actor=BY)
    rollouts.move(one.id, None, "rollback", why="", actor=BY)
    await directory.refresh()
    assert directory.plan == Plan(prompts={"brief@1": prompt})


async def test_keys_are_known_before_anybody_shows_them(
    admin: Administration, directory: Directory, clock: Clock
) -> None:
    new_key(admin, "gone")
    admin.revoke_key("gone", actor=BY)
    new_key(admin, "over", expires_s=clock.now_s + 1)
    clock.now_s += 1
    key, text = new_key(admin)
    await directory.refresh()
    assert directory.size == 1
    assert opens(text, directory.cached(key.public_id))
    later, later_text = new_key(admin, "later")
    await directory.refresh()
    assert opens(later_text, directory.cached(later.public_id))


async def test_revoking_an_old_key_of_a_line_leaves_the_new_one(admin: Administration, directory: Directory) -> None:
    old, _ = new_key(admin)
    new, text = admin.rotate_key("ci", grace_s=60, actor=BY)
    await directory.refresh()
    admin.revoke_key(old.id, actor=BY)
    await directory.refresh()
    assert directory.cached(old.public_id) is None
    assert opens(text, directory.cached(new.public_id))


def test_where_nothing_was_ever_written_a_start_does_without_sqlalchemy(tmp_path: Path) -> None:
    program = (
        "import sys, anyio; from pathlib import Path; from drivetrain.store import Store, pepper;"
        "from drivetrain.store.directory import Directory;"
        f"home = Path({str(tmp_path)!r}); store = Store.open('sqlite:///state/drivetrain.db', home);"
        "directory = Directory(store, pepper.read(None, home / 'state'));"
        "print(anyio.run(directory.refresh), 'sqlalchemy' in sys.modules); store.close()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "True False\n"


# --- what there is not ------------------------------------------------------------------------------------------------


async def test_that_there_is_no_such_key_is_remembered_for_a_moment(
    admin: Administration, store: Store, clock: Clock
) -> None:
    asked: list[str] = []

    class Counting(Directory):
        async def _look_up(self, public_id: str) -> None:
            asked.append(public_id)
            await super()._look_up(public_id)

    directory = Counting(store, PEPPER, clock)
    for _ in range(3):
        assert await directory.find("aaaaaaaaaaaa") is None
    assert len(asked) == 1
    clock.now_s += UNKNOWN_S
    assert await directory.find("aaaaaaaaaaaa") is None
    assert len(asked) == 2
    clock.now_s -= 3600.0  # a clock that is set back must not lengthen it
    assert await directory.find("aaaaaaaaaaaa") is None
    assert len(asked) == 3


async def test_a_new_key_works_after_the_next_look_whatever_was_remembered(
    admin: Administration, directory: Directory, store: Store
) -> None:
    await directory.refresh()
    key, text = new_key(admin)
    directory._unknown[key.public_id] = Clock().now_s + 1  # somebody tried it before it was there
    assert await directory.find(key.public_id) is None
    await directory.refresh()
    assert opens(text, await directory.find(key.public_id))


async def test_only_so_many_keys_are_known_and_those_in_use_stay(
    admin: Administration, store: Store, clock: Clock
) -> None:
    directory = Directory(store, PEPPER, clock, capacity=2)
    made = [new_key(admin, f"key {number}")[0] for number in range(3)]
    for key in (made[0], made[1], made[0], made[2]):
        assert await directory.find(key.public_id) is not None
    assert [directory.cached(key.public_id) is not None for key in made] == [True, False, True]
    for number in range(5):
        assert await directory.find(f"aaaaaaaaaaa{number}") is None
    assert len(directory._unknown) == 2


async def test_a_key_of_another_pepper_is_told_of_once(
    admin: Administration, store: Store, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    key, text = new_key(admin)
    stranger = Directory(store, pepper.of(b"not the same pepper"), clock)
    await stranger.find(key.public_id)
    admin.create("limit", {"key": "ci", "resource": "requests", "amount": 1}, actor=BY)
    await stranger.refresh()
    (told,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert told.startswith(f"key 'ci' ({key.public_id}) was hashed with pepper {PEPPER.id}, and here it is ")
    assert text.rpartition("-")[2] not in caplog.text


async def test_a_user_is_who_an_identity_provider_says(admin: Administration, directory: Directory) -> None:
    user = admin.create("user", {"name": "Ada", "subject": "https://idp|1", "scopes": ["admin"]}, actor=BY)
    assert await directory.user_of("https://idp|1") == user
    assert await directory.user_of("https://idp|2") is None
    admin.update("org", "default", 1, {"disabled": True}, actor=BY)
    found = await directory.user_of("https://idp|1")
    assert found is not None
    assert found.disabled
