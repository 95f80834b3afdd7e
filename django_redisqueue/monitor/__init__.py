"""``manage.py queuemonitor``: a live screen, plain lines, or JSON."""
