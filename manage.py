#!/usr/bin/env python
"""Django's entry point: the `rollyard` command line under the name Django people look for."""

from controlplane.cli.main import main

if __name__ == "__main__":
    main()
