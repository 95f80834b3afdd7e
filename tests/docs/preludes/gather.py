import logging

REDISQUEUE = {"QUEUES": {"default": {}, "slow": {}}}
log = logging.getLogger("shop")


def check(page):
    assert page.gather.results == {"users": ["ann", "bob"], "funds": None}
