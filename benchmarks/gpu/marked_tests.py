"""Every test that is marked `gpu`."""

import subprocess
import sys
from xml.etree import ElementTree

from benchmarks.gpu.setting import finish, options


def main() -> None:
    asked = options()
    report = asked.work / "tests.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", f"--junitxml={report}", "tests"]
    status = subprocess.run(command, check=False).returncode
    suite = next(ElementTree.parse(report).iter("testsuite")).attrib if report.exists() else {}
    counts = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
    fault = "" if status == 0 else f"exit status {status}"
    if not fault and asked.device == "cuda" and counts["skipped"]:
        fault = "tests were skipped although there is a GPU: see why in its output"
    finish(counts, fault)


if __name__ == "__main__":
    main()
