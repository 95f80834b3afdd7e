"""Jobs of gathers in the mirror: ordinary records, also where a result is in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django_redisqueue import get_job
from django_redisqueue.client.large_results import write_result
from django_redisqueue.core.codec import encode_stored
from tests.broker.gathers import Query

from .mirrored_shard import MirroredShard


def test_a_result_in_a_file_is_read_back_when_redis_has_let_its_job_go(
    shard: MirroredShard, settings: Any, tmp_path: Path
) -> None:
    settings.MEDIA_ROOT = str(tmp_path)
    query = Query(shard.lab, "ab", threshold=1)
    query.start()
    job = query.take()
    name = write_result("redisqueue/result.json", '["large"]')
    query.finish(job, body=encode_stored(name))
    query.run_one("failed")
    query.run_one()
    shard.mirror()
    shard.assert_complete()
    assert shard.record(job.id).result_value == {"file": name}
    assert shard.statuses(query.job("then")) == ["queued", "processing", "completed"]
    assert shard.record(query.job("then")).kwargs == {"x": 1}
    assert shard.lab.store.delete([job.id]) == [1]
    assert get_job(job.id).result == ["large"]
