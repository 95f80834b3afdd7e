"""forget_result_files: removes the names of deleted files."""

from __future__ import annotations

import pytest

from django_redisqueue.exceptions import WrongKeyType

from .lab import Lab


def test_the_given_names_are_removed_and_others_stay(lab: Lab) -> None:
    lab.redis.hset(lab.keys.result_files, mapping={"a": "job-1", "b": "job-2"})
    assert lab.store.forget_result_files(["a", "c"]) == 1
    assert lab.store.forget_result_files(["a", "c"]) == 0
    assert lab.redis.hgetall(lab.keys.result_files) == {"b": "job-2"}


def test_a_key_of_the_wrong_type_is_named(lab: Lab) -> None:
    lab.redis.set(lab.keys.result_files, "mine")
    with pytest.raises(WrongKeyType, match=r"result_files"):
        lab.store.forget_result_files(["a"])
    assert lab.redis.get(lab.keys.result_files) == "mine"
