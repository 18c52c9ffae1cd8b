"""The site and a worker, and again whoever ends: `python -m examples.django [--port 8000]`.

Kill the worker while a reminder waits (`kill -9`, its process is printed): it comes all the same.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from examples.supervisor import supervise


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.django")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--data", type=Path, default=Path("reminders-site"))
    asked = parser.parse_args()
    asked.data.mkdir(exist_ok=True)
    os.environ["REMINDERS_DATA"] = str(asked.data.absolute())
    os.environ["DJANGO_SETTINGS_MODULE"] = "examples.django.settings"
    manage = ["-m", "django"]
    subprocess.run([sys.executable, *manage, "migrate", "--run-syncdb", "--verbosity", "0"], check=True)
    print(f"http://127.0.0.1:{asked.port}/", flush=True)
    supervise(
        {
            "site": [*manage, "runserver", "--noreload", "--verbosity", "0", f"127.0.0.1:{asked.port}"],
            "worker": [*manage, "afterlog_worker"],
        }
    )


if __name__ == "__main__":
    main()
