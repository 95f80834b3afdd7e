"""Tasks that ask a person."""

from __future__ import annotations

from typing import Any

from asgiref.sync import sync_to_async

from django_redisqueue import ApprovalRejected, task
from tests.app.tasks import bump


def _refund(context: Any) -> dict[str, str]:
    context.step("draft", bump, "draft")
    bump("again")  # in an exactly_once job, this is rolled back when it parks
    decision = context.approval(
        "refund", permission="auth.add_group", timeout="3d", question="Refund 42?"
    )
    context.step("refund", bump, "refund")
    return {"by": decision.by, "comment": decision.comment}


@task(takes_context=True, max_attempts=3)
def refund(context: Any) -> dict[str, str]:
    return _refund(context)


@task(takes_context=True, exactly_once=True)
def refund_once(context: Any) -> dict[str, str]:
    return _refund(context)


@task(takes_context=True)
def ask_nobody(context: Any) -> None:
    context.approval("refund", permission="auth.add_grup")


@task(takes_context=True)
async def refund_in_thread(context: Any) -> dict[str, str]:
    return await sync_to_async(_refund)(context)


@task(takes_context=True)
async def arefund(context: Any) -> str:
    try:
        decision = await context.aapproval("refund", permission="auth.add_group")
    except ApprovalRejected as rejected:
        return f"no, says {rejected.decision.by}"
    return f"yes, says {decision.by}"
