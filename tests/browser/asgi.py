"""The site of the test suite for an ASGI server, with its static files."""

from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler

from tests.app.asgi import application as site

application = ASGIStaticFilesHandler(site)
