"""A worker is told to take no more jobs, to go on, and to stop."""

from __future__ import annotations

from django_redisqueue.broker.commands import Commands
from django_redisqueue.broker.connection import worker_connection
from django_redisqueue.core.worker_data import WorkerOrder, WorkerReport, parse_report
from tests.support.shards import all_keys
from tests.worker import tasks
from tests.worker.processes import eventually
from tests.worker.stage import Stage


def test_a_worker_is_quieted_resumed_and_stopped(stage: Stage) -> None:
    worker = stage.worker("--processes", "2", "--name", "w").wait_until_up(3)
    store = Commands(worker_connection(0))

    def report(state: str, children: int) -> WorkerReport:
        keys = all_keys()[0]

        def found() -> WorkerReport | None:
            for key in stage.redis.scan_iter(f"{keys.worker('w.')}*"):
                one = parse_report(stage.redis.get(key))
                if one and (one.state, len(one.children), one.memory > 2**20) == (
                    state,
                    children,
                    True,
                ):
                    return one
            return None

        return eventually(found, why=lambda: worker.output)

    def tell(order: WorkerOrder, at_ms: int) -> None:
        (key,) = stage.redis.scan_iter(f"{all_keys()[0].worker('w.')}*[0-9]")
        assert store.order_worker(key.partition(":worker:")[2], order, at_ms)

    told = report("running", 3)
    assert (told.processes, told.threads, told.queues) == (2, 1, ("default",))
    gate = stage.gate()
    running = tasks.run_until_let_go.enqueue(stage.book, "running", gate)
    eventually(lambda: stage.runs()["running"])
    tell(WorkerOrder.QUIET, 10)
    report("quiet", 2)  # maintenance, and the child that runs the job
    waiting = tasks.run.enqueue(stage.book, "waiting")
    stage.let_go(gate)
    stage.ended(running)
    report("quiet", 1)
    assert stage.runs() == {"running": 1}
    tell(WorkerOrder.STOP, 9)  # an order from before: another shard may bring it late
    tell(WorkerOrder.RESUME, 11)
    stage.ended(waiting)
    report("running", 3)
    tell(WorkerOrder.STOP, 12)
    assert worker.wait() == 0
    assert "told to stop" in worker.output
