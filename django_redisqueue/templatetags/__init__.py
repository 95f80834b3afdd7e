"""The template tags and filters of the dashboard: ``{% load redisqueue %}``."""
