"""What the store keeps beside the ledger: bodies and configurations. The same on both databases."""

from drivetrain.store import Body, Store


def body(request_id: str, answer: str = "hello", delete_s: float = 1e11) -> Body:
    return Body(request_id=request_id, at_s=10.0, delete_s=delete_s, request="hi", answer=answer)


def keep(store: Store, bodies: list[Body]) -> None:
    rows = store.rows()
    assert rows.keep(bodies) == []
    rows.close()


def test_a_body_comes_back_until_its_time_is_over_whether_it_was_swept_or_not(store: Store) -> None:
    assert store.sweep_bodies(19.9) == 0
    keep(store, [body("a", delete_s=20.0), body("b", delete_s=21.0)])
    assert store.body("a", 19.9) == body("a", delete_s=20.0)
    assert store.body("a", 20.0) is None
    assert store.body("c", 19.9) is None
    assert store.sweep_bodies(19.9) == 0
    assert store.sweep_bodies(20.0) == 1
    assert (store.body("a", 0.0), store.body("b", 0.0)) == (None, body("b", delete_s=21.0))


def test_of_a_request_the_last_body_is_kept(store: Store) -> None:
    keep(store, [body("a", "first"), body("a", "second")])
    assert store.body("a") == body("a", "second")
    keep(store, [body("a", "third 🚂")])
    assert store.body("a") == body("a", "third 🚂")
    keep(store, [])


def test_a_body_may_hold_any_character(store: Store) -> None:
    keep(store, [body("a", "nul \0 nul")])
    said = store.body("a")
    assert said is not None
    assert said.answer.replace("\0", "�") == "nul � nul"  # PostgreSQL has no NUL


def test_a_body_that_cannot_be_written_does_not_hold_up_the_others(store: Store) -> None:
    rows = store.rows()
    refused = rows.keep([body("a"), body("b", "half a pair \ud83d"), body("c")])
    rows.close()
    assert [said.request_id for said, _ in refused] == ["b"]
    assert [store.body(request) for request in "abc"] == [body("a"), None, body("c")]


def test_a_configuration_gets_a_number_when_it_is_another(store: Store) -> None:
    first = store.keep_config("server: {}", actor="cli ada", at_s=1.0)
    assert store.keep_config("server: {}", actor="start", at_s=2.0) == first
    second = store.keep_config("server: {port: 1}", actor="cli bob", at_s=3.0)
    third = store.keep_config("server: {}", actor="cli bob", at_s=4.0)  # a rollback is a new revision
    assert (first.revision, second.revision, third.revision) == (1, 2, 3)
    assert (first.hash, first.hash == second.hash) == (third.hash, False)
    assert store.configs() == [third, second, first]
    assert store.configs(limit=1) == [third]
    assert store.config(2) == second
    assert store.config(9) is None
