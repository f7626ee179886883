"""The administration site: people, projects and tokens are managed, groups are curated, the store is looked at.

Everybody sees the projects that they are a member of, and changes those of which they are an administrator; superusers
see all. Lists stay cheap however large the store grows: they never load payloads (configs, messages, token arrays),
never count beyond MAX_COUNTED rows, and filter by columns with an index or few values. Search finds by key, not by
substring.
"""

from django.contrib import admin

from rollouts.admin import curation, datasets, groups, people, scope, store
from rollouts.admin.scope import MAX_COUNTED, BoundedPaginator, StoreAdmin

__all__ = [
    "MAX_COUNTED",
    "BoundedPaginator",
    "StoreAdmin",
    "curation",
    "datasets",
    "groups",
    "people",
    "scope",
    "store",
]

admin.site.enable_nav_sidebar = False  # its first page lists everything; lists of groups need the width
