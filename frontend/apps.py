"""Django's record of the pages."""

from django.apps import AppConfig


class FrontendConfig(AppConfig):
    """Pages, the launch form and the browser bundle."""

    name = "frontend"
    verbose_name = "Pages"
