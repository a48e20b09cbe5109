"""What administrators may do to organisations, teams, projects, users, limits, budgets and prices, in each store."""

from collections.abc import Mapping
from typing import Any

import pytest

from drivetrain.errors import BadRequest, Conflict, NotFound
from drivetrain.governance import Budget, Limit, Price, Project, Team, User
from drivetrain.store.administration import Administration
from tests.unit.store.administrators import BY, Clock, new_key


def make(admin: Administration, kind: str, **fields: Any) -> Any:
    return admin.create(kind, fields, actor=BY)


def test_what_was_made_is_read_as_it_is(admin: Administration, clock: Clock) -> None:
    org = make(admin, "org", name="acme")
    team = make(admin, "team", name="search", org="acme", models=["gpt-*", "phi4"])
    user = make(admin, "user", name="Ada", org="acme", email="ada@example.com", scopes=["usage", "admin"])
    assert team == Team(
        id=team.id, org=org.id, name="search", models=("gpt-*", "phi4"), created_s=clock.now_s, version=1
    )
    assert [admin.get("org", "acme"), admin.get("team", team.id), admin.get("user", "Ada")] == [org, team, user]


def test_organisation_team_and_project_are_there_when_something_needs_them(admin: Administration) -> None:
    assert admin.list("org") == []
    project = make(admin, "project", name="web")
    team = admin.get("team", "default")
    assert isinstance(team, Team)
    assert project.team == team.id
    assert team.org == admin.get("org", "default").id
    make(admin, "user", name="Ada")
    assert [len(admin.list(kind)) for kind in ("org", "team", "project", "user")] == [1, 1, 1, 1]


def test_a_name_means_what_it_says_or_nothing(admin: Administration) -> None:
    for org in ("acme", "globex"):
        make(admin, "org", name=org)
        make(admin, "team", name="search", org=org)
    with pytest.raises(BadRequest, match=r"team 'search' could be any of .*; write the id") as caught:
        admin.get("team", "search")
    assert caught.value.param == "team"
    globex = admin.get("org", "globex")
    found = admin.get("team", "globex/search")
    assert isinstance(found, Team)
    assert found.org == globex.id
    with pytest.raises(NotFound, match="there is no team 'initech/search'"):
        admin.get("team", "initech/search")
    with pytest.raises(NotFound):
        admin.get("team", "galaxy/globex/search")
    with pytest.raises(BadRequest, match="is neither an id nor a name"):
        admin.get("team", "search\0")


def test_a_user_is_found_by_address_too(admin: Administration) -> None:
    user = make(admin, "user", name="Ada", email="ada@example.com")
    assert admin.get("user", "ada@example.com") == user


def test_what_is_above_may_be_named_from_afar(admin: Administration) -> None:
    make(admin, "org", name="acme")
    team = make(admin, "team", name="search", org="acme")
    web = make(admin, "project", name="web", team="acme/search")
    assert web.team == team.id
    inside, _ = new_key(admin, "one", org="acme", team="search", project="web")
    assert inside.project == web.id
    other, _ = new_key(admin, "two", team="search")
    project = admin.get("project", other.project)
    assert isinstance(project, Project)
    assert (project.name, project.team) == ("default", team.id)
    with pytest.raises(NotFound, match="there is no project 'api' there; make it first"):
        new_key(admin, "three", team="search", project="api")


@pytest.mark.parametrize(
    ("kind", "fields", "param", "said"),
    [
        ("planet", {}, "kind", "there is no kind 'planet'; there are budget, key"),
        ("org", {}, "name", "an org needs 'name'; it has disabled, name"),
        ("org", {"name": ""}, "name", "name '' of an org: a name is printable text"),
        ("org", {"name": "a/b"}, "name", "name 'a/b' of an org: a name is printable text"),
        ("org", {"name": "a\0"}, "name", "printable"),
        ("org", {"name": "a" * 201}, "name", "at most 200 characters are kept"),
        ("org", {"name": 7}, "name", "name 7 of an org: expected `str`, got `int`"),
        (
            "org",
            {"name": "x", "colour": "red"},
            "colour",
            "an org has no member 'colour' to set; it has disabled",
        ),
        ("org", {"name": "x", "id": "mine"}, "id", "an org has no member 'id' to set"),
        ("team", {"name": "x", "models": ["a*b*c*d*e*f"]}, "models", "is no pattern"),
        ("team", {"name": "x", "org": ["acme"]}, "org", "org ['acme'] is neither an id nor a name"),
        ("user", {"name": "x", "scopes": ["root"]}, "scopes", "scopes ['root'] of a user: invalid enum value 'root'"),
        ("limit", {"team": "default", "resource": "requests", "amount": 0}, "amount", "at least 1"),
        ("limit", {"team": "default", "resource": "requests", "amount": 2**63}, "amount", "from 0 to"),
        ("limit", {"team": "default", "resource": "tokens", "amount": 1, "per": ""}, "per", "minute or day"),
        (
            "limit",
            {"team": "default", "resource": "concurrency", "amount": 1, "per": "day"},
            "per",
            "requests at once are not counted per time",
        ),
        ("limit", {"resource": "tokens", "amount": 1}, "subject", "whom it binds is one of key, user, project"),
        ("limit", {"team": "a", "org": "b", "amount": 1}, "org", "it can bind one only, not team and org"),
        ("budget", {"team": "default", "amount": 1, "per": "year"}, "per", "per 'year' of a budget: invalid enum"),
        ("budget", {"team": "default", "amount": 1, "per": "day", "zone": "Mars/Base"}, "zone", "no such time zone"),
        (
            "budget",
            {"team": "default", "amount": 1.5, "per": "day"},
            "amount",
            "amount 1.5 of a budget: expected",
        ),
        ("price", {"input": -1}, "input", "input -1 of a price: from 0 to"),
        ("price", {"from_s": 2.0, "until_s": 1.0}, "until_s", "has to come after from_s 2.0"),
        ("price", {"watts": float("nan")}, "watts", "a number of watts"),
        ("key", {"name": "x"}, "kind", "by create_key"),
    ],
)
def test_what_cannot_be_is_refused_with_the_member_and_its_value(
    embedded: Administration, kind: str, fields: Mapping[str, Any], param: str, said: str
) -> None:
    make(embedded, "project", name="there")
    before = embedded.audit()
    with pytest.raises(BadRequest) as caught:
        make(embedded, kind, **fields)
    assert said in caught.value.message
    assert caught.value.param == param
    assert embedded.audit() == before


def test_there_is_one_of_a_name_in_one_place(admin: Administration) -> None:
    make(admin, "org", name="acme")
    make(admin, "team", name="search")
    make(admin, "team", name="search", org="acme")
    with pytest.raises(Conflict, match="there is a team 'search' already"):
        make(admin, "team", name="search")
    other = make(admin, "team", name="ads")
    with pytest.raises(Conflict, match="there is a team 'search' already"):
        admin.update("team", other.id, 1, {"name": "search"}, actor=BY)


def test_a_person_is_one_user(admin: Administration) -> None:
    make(admin, "org", name="acme")
    make(admin, "user", name="Ada", subject="https://idp|1")
    with pytest.raises(Conflict, match=r"subject 'https://idp\|1' is user .* already"):
        make(admin, "user", name="Ada", org="acme", subject="https://idp|1")


# --- changing ---------------------------------------------------------------------------------------------------------


def test_a_change_names_the_version_that_it_was_made_from(admin: Administration) -> None:
    team = make(admin, "team", name="search")
    after = admin.update("team", "search", 1, {"name": "find", "models": ["phi4"]}, actor=BY)
    assert isinstance(after, Team)
    assert (after.id, after.name, after.models, after.version) == (team.id, "find", ("phi4",), 2)
    with pytest.raises(Conflict, match=f"team '{team.id}' has version 2, not 1; somebody else has changed it"):
        admin.update("team", team.id, 1, {"name": "seek"}, actor=BY)
    assert admin.get("team", team.id) == after
    assert admin.update("team", team.id, None, {"models": None}, actor=BY).version == 3


def test_what_is_sent_back_as_it_was_read_changes_nothing(admin: Administration) -> None:
    team = make(admin, "team", name="search", models=["phi4"])
    told = {"id": team.id, "org": team.org, "name": "search", "models": ["phi4"], "version": 1, "disabled": False}
    lines = len(admin.audit())
    assert admin.update("team", team.id, 1, {**told, "org": "default"}, actor=BY) == team
    assert len(admin.audit()) == lines


def test_where_something_hangs_does_not_change(admin: Administration) -> None:
    make(admin, "org", name="acme")
    team = make(admin, "team", name="search")
    with pytest.raises(BadRequest, match=r"org of a team stays what it is, .*; make another team") as caught:
        admin.update("team", team.id, 1, {"org": "acme"}, actor=BY)
    assert caught.value.param == "org"
    with pytest.raises(BadRequest, match="a team has no member 'version' to set"):
        admin.update("team", team.id, 1, {"version": 9}, actor=BY)


# --- limits, budgets, prices ------------------------------------------------------------------------------------------


def test_limits_and_budgets_bind_whom_a_name_means(admin: Administration) -> None:
    team, key = make(admin, "team", name="search"), new_key(admin)[0]
    limit = make(admin, "limit", subject="team", subject_id="search", resource="concurrency", amount=8)
    assert limit == Limit(
        id=limit.id, subject="team", subject_id=team.id, resource="concurrency", amount=8, per="", version=1
    )
    budget = make(admin, "budget", key="ci", amount=5_000_000, per="month", zone="Europe/Berlin")
    assert budget == Budget(
        id=budget.id, subject="key", subject_id=key.id, amount=5_000_000, per="month", zone="Europe/Berlin", version=1
    )
    with pytest.raises(NotFound, match="there is no user 'nobody'"):
        make(admin, "budget", user="nobody", amount=1, per="day")
    with pytest.raises(BadRequest, match="subject_id of a limit stays what it is"):
        admin.update("limit", limit.id, 1, {"subject_id": key.id}, actor=BY)
    assert admin.update("limit", limit.id, 1, {"amount": 9}, actor=BY).version == 2


def test_a_price_follows_another_from_an_instant_on(admin: Administration) -> None:
    first = make(admin, "price", engine="openai", model="gpt-5", input=1_250_000, cached_input=0, output=10_000_000)
    assert first == Price(
        id=first.id, engine="openai", model="gpt-5", input=1_250_000, cached_input=0, output=10_000_000
    )
    make(admin, "price", engine="openai", model="gpt-5", from_s=1.9e9, input=1)
    with pytest.raises(Conflict, match=r"there is a price 'openai' 'gpt-5' 0\.0 already"):
        make(admin, "price", engine="openai", model="gpt-5", input=1)


# --- lists and deletions ----------------------------------------------------------------------------------------------


def test_a_list_is_narrowed_by_members_and_by_what_is_above(admin: Administration) -> None:
    make(admin, "org", name="acme")
    for team in ("search", "ads"):
        make(admin, "team", name=team, org="acme")
        new_key(admin, team, team=team)
    new_key(admin, "other")
    names = [key.name for key in admin.list("key", {"org": "acme"}) if hasattr(key, "name")]
    assert names == ["search", "ads"]
    assert [key.name for key in admin.list("key", {"team": "ads"}) if hasattr(key, "name")] == ["ads"]
    assert admin.list("key", {"name": "other", "disabled": True}) == []
    assert len(admin.list("key", {"name": "other", "disabled": "false", "version": "1"})) == 1  # as in an address
    with pytest.raises(BadRequest, match="version 'first' of a key: expected `int`"):
        admin.list("key", {"version": "first"})
    with pytest.raises(BadRequest, match="a list of keys cannot be filtered by 'colour'; it can by created_s"):
        admin.list("key", {"colour": "red"})
    with pytest.raises(NotFound):
        admin.list("key", {"team": "nobody"})


def test_a_long_list_comes_in_pages(admin: Administration) -> None:
    made = [make(admin, "team", name=f"team {number}") for number in range(5)]
    first = admin.list("team", limit=3)
    second = admin.list("team", after=first[-1].id)
    assert [team.id for team in (*first, *second) if team.id != made[0].org][-5:] == [team.id for team in made]


def test_what_is_in_use_is_not_deleted(admin: Administration) -> None:
    user = make(admin, "user", name="Ada")
    key, _ = new_key(admin, user="Ada")
    for kind, name in (("org", "default"), ("team", "default"), ("project", "default"), ("user", "Ada")):
        with pytest.raises(Conflict, match=f"{kind} .* is in use by"):
            admin.delete(kind, name, actor=BY)
    admin.delete("key", key.id, 1, actor=BY)
    assert admin.delete("user", "Ada", actor=BY) == user
    for kind in ("project", "team", "org"):
        admin.delete(kind, "default", actor=BY)
    assert [admin.list(kind) for kind in ("org", "team", "project", "user", "key")] == [[], [], [], [], []]


def test_a_deletion_names_the_version_too(admin: Administration) -> None:
    make(admin, "team", name="search")
    with pytest.raises(Conflict, match="team 'search' has version 1, not 2"):
        admin.delete("team", "search", 2, actor=BY)


def test_limits_and_budgets_go_with_whom_they_bind(admin: Administration) -> None:
    make(admin, "team", name="search")
    kept = make(admin, "limit", team="default", resource="requests", amount=1)
    limit = make(admin, "limit", team="search", resource="requests", amount=1)
    budget = make(admin, "budget", team="search", amount=1, per="day")
    admin.delete("team", "search", actor=BY)
    assert [*admin.list("limit"), *admin.list("budget")] == [kept]
    deleted = [change.object_id for change in admin.audit() if change.action == "delete"]
    assert deleted[:2] == [limit.id, budget.id]


def test_users_have_scopes_of_their_own(admin: Administration) -> None:
    user = make(admin, "user", name="Ada", scopes=["usage"])
    after = admin.update("user", user.id, 1, {"scopes": ["usage", "admin"]}, actor=BY)
    assert isinstance(after, User)
    assert after.scopes == ("usage", "admin")
