"""forget_result_files: removes the names of deleted files."""

from __future__ import annotations

import pytest

from django_redisqueue.exceptions import WrongKeyType

from .harness import BrokerHarness


def test_the_given_names_are_removed_and_others_stay(broker: BrokerHarness) -> None:
    broker.redis.hset(broker.keys.result_files, mapping={"a": "job-1", "b": "job-2"})
    assert broker.store.forget_result_files(["a", "c"]) == 1
    assert broker.store.forget_result_files(["a", "c"]) == 0
    assert broker.redis.hgetall(broker.keys.result_files) == {"b": "job-2"}


def test_a_key_of_the_wrong_type_is_named(broker: BrokerHarness) -> None:
    broker.redis.set(broker.keys.result_files, "mine")
    with pytest.raises(WrongKeyType, match=r"result_files"):
        broker.store.forget_result_files(["a"])
    assert broker.redis.get(broker.keys.result_files) == "mine"
