"""The settings under test: those of the product, on servers that live as long as the test session.

The home has to be chosen before the product's settings are read, hence here; `conftest.py` starts the servers in it
when the first test asks for the database. DATABASE_URL and REDIS_URL point the tests at others.
"""

import os
import tempfile

os.environ["ROLLYARD_HOME"] = tempfile.mkdtemp(prefix="rollyard-test-")
os.environ.setdefault("ROLLYARD_SECRET_KEY", "a key for tests, which sign nothing of value")

from controlplane.settings import *  # noqa: F403
from controlplane.settings import HOME, STATIC_ROOT

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # the slow one costs 0.3 s per user
REFUSALS_SHARE = 1.0  # all tests come from one address, and many of them to be refused
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},  # no collectstatic first
}
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = True  # look for a file when it is asked for: listing all costs 40 ms for every test client
ROLLYARD_GATEWAY_URL = "http://gateway.test"
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "testserver"]

HOME.create()
STATIC_ROOT.mkdir()  # WhiteNoise warns when there is none
