"""What `outside` asserts tells its values too, as what tests assert does."""

import pytest

pytest.register_assert_rewrite("tests.e2e.outside")
