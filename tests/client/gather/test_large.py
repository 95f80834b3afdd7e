"""Results over the cap: stored in Django's storage, read back transparently, and deleted with the
gather, whatever dies in between."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import SuspiciousFileOperation
from django.core.files.storage import FileSystemStorage

from django_redisqueue import Gather, chain, get_job
from django_redisqueue.broker.commands import Commands
from django_redisqueue.broker.connection import worker_connection
from django_redisqueue.client.large_results import read_result, write_result
from django_redisqueue.core.clock import real_ms
from django_redisqueue.core.codec import encode_result, encode_stored, stored_name
from django_redisqueue.core.ids import shard_of_id
from django_redisqueue.exceptions import ResultGone
from django_redisqueue.worker.maintenance.upkeep import ResultFileCleaner
from tests.support.shards import all_stores, keys_with, shard_of
from tests.worker.harness import WorkerHarness
from tests.worker.processes import eventually

from . import once, tasks
from .storage import STEPS

SIZE = 3_000_000
KEY = "large-1"


@pytest.fixture(autouse=True)
def media(harness: WorkerHarness, tmp_path: Path, settings: Any) -> Path:
    folder = tmp_path / "media"
    folder.mkdir()
    settings.MEDIA_ROOT = str(folder)
    harness.environment["REDISQUEUE_TEST_MEDIA"] = str(folder)
    harness.configure(TASK_MODULES=["tests.worker.tasks", "tests.client.gather.tasks"])
    return folder


def files(media: Path) -> list[Path]:
    folder = media / "redisqueue"
    return sorted(folder.iterdir()) if folder.exists() else []


def start(**options: Any) -> Gather:
    return Gather.start(KEY, topic="large", payload={"size": SIZE}, then=tasks.sizes, **options)


def outcome_of(gather: Gather) -> Any:
    """What the follow-up on its threshold returned."""
    gather.wait(timeout=20)
    assert gather.follow_up is not None
    return gather.follow_up.wait(timeout=20)


@pytest.fixture
def store() -> Iterator[Commands]:
    """Verbs called directly in the shard of the gather, on a clock that is ahead: the TTLs of ended
    jobs have passed."""
    made = Commands(worker_connection(shard_of(KEY)))
    made.now_ms = real_ms() + 1000 * 3600
    yield made
    made.connection.close()


def close(gather: Gather, store: Commands) -> None:
    """Have a gather forgotten, except for its files."""
    store.advance()
    assert store.connection.call("SMEMBERS", store.keys.closed_gathers) == [gather.key]


def sweep(gather: Gather, store: Commands) -> None:
    """Have the files deleted too."""
    ResultFileCleaner(store).run_once()
    left = ("EXISTS", store.keys.gather_plan(gather.key), store.keys.gather(gather.key))
    assert store.connection.call(*left, store.keys.closed_gathers, store.keys.gathers) == 0


def test_large_results_are_read_back_and_deleted_in_the_end(
    harness: WorkerHarness, media: Path, store: Commands
) -> None:
    harness.worker("--processes", "2").wait_until_up(3)
    gather = start()
    expected = {"large": SIZE, "large_async": SIZE + 4}
    assert outcome_of(gather) == expected
    assert gather.results["large"] == "x" * SIZE
    first = get_job(gather.jobs()[0].id)
    assert first.result == "x" * SIZE
    assert len(files(media)) == 2
    assert harness.redis.memory_usage(keys_with(first.id).job(first.id)) < 2000
    close(gather, store)
    sweep(gather, store)
    assert files(media) == []
    with pytest.raises(ResultGone, match="was deleted with its gather"):
        _ = first.result


def test_large_results_in_a_workflow_and_of_a_parent_outside_one(
    harness: WorkerHarness, media: Path
) -> None:
    workflow = chain(tasks.large.s(SIZE), tasks.size_of)
    parent = tasks.large_too.enqueue(SIZE)
    follower = tasks.sizes_of_parents.using(after=parent).enqueue()
    harness.worker("--processes", "1").wait_until_up(2)
    workflow.wait(timeout=20)
    first, second = workflow.jobs()
    assert (second.result, follower.wait(timeout=20)) == (SIZE, [1])
    assert first.result == "x" * SIZE
    assert parent.result == ["y" * SIZE]
    assert len(files(media)) == 2
    with all_stores() as stores:
        cleaners = [ResultFileCleaner(store) for store in stores]
        for cleaner in cleaners:
            cleaner.run_once()
        assert len(files(media)) == 2
        assert workflow.cleanup()
        for job in (parent, first):
            store = stores[shard_of_id(job.id)]
            store.now_ms = real_ms() + 1000 * 3600  # the TTL of ended jobs has passed
            # otherwise its hash waits for the mirror
            store.settings = replace(store.settings, mirror=False)
            while store.advance():
                pass
            assert store.delete([job.id]) == [1]
        for cleaner in cleaners:
            cleaner.run_once()
        assert files(media) == []
        assert not any(harness.redis.exists(store.keys.result_files) for store in stores)
    with pytest.raises(ResultGone, match="when Redis pruned its job"):
        read_result(f"redisqueue/{parent.id}.1.json")


@pytest.mark.parametrize("step", STEPS)
def test_a_death_at_any_step_leaves_no_file_and_loses_no_result(
    harness: WorkerHarness, media: Path, store: Commands, step: str
) -> None:
    harness.environment["REDISQUEUE_TEST_STORAGE"] = "tests.client.gather.storage.DeadlyStorage"
    (media / step).touch()
    harness.worker("--processes", "1").wait_until_up(2)
    gather = start()
    assert outcome_of(gather) == {"large": SIZE, "large_async": SIZE + 4}
    assert (media / f"was-{step}").exists(), "nobody died"
    assert {path.stat().st_size > 1000 for path in files(media)} >= {True}
    assert len(files(media)) == (2 if step == "before" else 3)
    close(gather, store)
    sweep(gather, store)
    assert files(media) == []


def test_a_storage_that_fails_fails_the_job_with_its_message(
    harness: WorkerHarness, media: Path
) -> None:
    media.rmdir()
    media.touch()  # a file in place of the folder
    harness.worker().wait_until_up(2)
    gather = start()
    eventually(lambda: gather.status == "failed", why=harness.report)
    error = harness.ended(gather.jobs()[0]).error  # the other one may have been first
    assert error is not None
    assert "Error" in error.type
    assert str(media) in error.message


def test_files_that_cannot_be_deleted_are_tried_again(
    harness: WorkerHarness,
    media: Path,
    store: Commands,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    harness.worker("--processes", "2").wait_until_up(3)
    gather = start()
    outcome_of(gather)
    close(gather, store)

    def refuse(name: str) -> None:
        raise OSError("the storage is away")

    with monkeypatch.context() as patch:
        patch.setattr("django_redisqueue.worker.maintenance.upkeep.delete_result", refuse)
        assert not ResultFileCleaner(store).run_once()
    assert "cannot be deleted yet: OSError('the storage is away')" in caplog.text
    assert len(files(media)) == 2
    sweep(gather, store)
    assert files(media) == []


@pytest.mark.parametrize(
    "value", [' {"file":"x"}', {"file": "x"}, [{"file": "x"}], "", None, {" ": {"file": "x"}}]
)
def test_no_result_of_a_task_is_mistaken_for_a_stored_one(value: object) -> None:
    assert stored_name(encode_result(value, 1000, "task")) == ""
    assert stored_name(encode_stored('a "b" ü.json')) == 'a "b" ü.json'


def test_a_plain_job_is_refused_a_large_result_as_before(
    harness: WorkerHarness, media: Path
) -> None:
    harness.worker()
    job = harness.ended(tasks.large.enqueue(SIZE))
    assert job.status == "failed"
    assert job.error is not None
    assert (job.error.type.rpartition(".")[2], job.error.reason) == ("PayloadTooLarge", "result")
    assert files(media) == []


def test_a_large_result_of_a_job_that_runs_exactly_once(
    harness: WorkerHarness, media: Path, database: Path
) -> None:
    harness.configure(TASK_MODULES=["tests.client.gather.tasks", once.__name__])
    harness.worker("--processes", "1").wait_until_up(2)
    gather = Gather.start("once-1", topic="once", payload={"size": SIZE}, then=tasks.sizes)
    assert outcome_of(gather) == {"once": SIZE}
    assert len(files(media)) == 1


class Flat(FileSystemStorage):
    """A storage that keeps all files in one folder."""

    def get_available_name(self, name: str, max_length: int | None = None) -> str:
        return super().get_available_name(Path(name).name, max_length)


def test_a_result_that_the_storage_moves_to_another_folder_leaves_no_file(
    media: Path, settings: Any
) -> None:
    backend = {"BACKEND": f"{__name__}.Flat", "OPTIONS": {"location": str(media)}}
    settings.STORAGES = {**settings.STORAGES, "redisqueue": backend}
    with pytest.raises(SuspiciousFileOperation, match="is not the name of a result"):
        write_result("redisqueue/job.1.json", '["large"]')
    assert list(media.rglob("*")) == []
