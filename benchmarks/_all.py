"""Run every benchmark, and keep its figures and plots in a folder: `python benchmarks/_all.py FOLDER`."""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

_MORE = {"bulk": {"bulk-tls": ["--tls", "--concurrency", "1", "32", "128", "--read"]}}
"""Further runs of a benchmark, by the name that their files get."""


def _run(script: Path, name: str, arguments: list[str], options: argparse.Namespace, environment: Path) -> bool:
    """Run one benchmark with whatever of our options it has; return whether it went well."""
    asked = subprocess.run([sys.executable, script, "--help"], stdout=subprocess.PIPE, text=True, check=False)
    command = [sys.executable, str(script), *arguments]
    for kind in ("json", "svg"):
        if f"--{kind} FILE" in asked.stdout:
            command += [f"--{kind}", str(options.folder / f"{name}.{kind}")]
    if options.rivals and "--environment DIR" in asked.stdout:
        command += ["--rivals", "--environment", str(environment)]
    if options.smoke:
        command.append("--smoke")
    print(f"\n== {name}", flush=True)
    return subprocess.run(command, check=False).returncode == 0


def main() -> int:
    """Run them one after the other; return 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the JSON and SVG files go")
    parser.add_argument("--rivals", action="store_true", help="measure other clients as well; installs them with pip")
    parser.add_argument("--environment", type=Path, metavar="DIR", help="keep the rivals' environment here (default: temporary)")
    parser.add_argument("--smoke", action="store_true", help="tiny counts: shows that all run, measures nothing")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    failed = []
    with tempfile.TemporaryDirectory() as temporary:
        environment = options.environment or Path(temporary, "environment")
        for script in sorted(set(Path(__file__).parent.glob("[!_]*.py")) - {Path(__file__).with_name("table.py")}):
            for name, arguments in {script.stem: [], **_MORE.get(script.stem, {})}.items():
                if not _run(script, name, arguments, options, environment):
                    failed.append(name)
    print(f"\nfigures and plots are in {os.path.relpath(options.folder)}")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
