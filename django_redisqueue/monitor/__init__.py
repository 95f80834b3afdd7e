"""What ``manage.py queuemonitor`` shows, and how: a live screen, plain lines, or JSON."""
