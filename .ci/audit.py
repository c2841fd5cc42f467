"""Ask for published advisories against every version in requirements.lock; exit code 1 when there is one.

Where nobody can be asked (no network, or a mirror that has the files and not the advisories) it says so and exits 0:
a build must not depend on somebody else's service. Nothing is installed, and pip is not run. Arguments go to pip-audit.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

LOCK = Path(__file__).parents[1] / "requirements.lock"
LONGEST_S = 300
#: Advisories that do not concern us: their id, and why.
IGNORED: dict[str, str] = {}


def main(arguments: list[str], lock: Path = LOCK) -> int:
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(lock), "--require-hashes", "--disable-pip"]
    command += ["--progress-spinner", "off", "--format", "json", *arguments]
    for advisory, reason in IGNORED.items():
        print(f"ignored: {advisory}: {reason}")
        command += ["--ignore-vuln", advisory]
    # Without asking anybody: a lock that cannot be read is our own fault, and no reason to go on.
    read = subprocess.run([*command, "--dry-run"], check=False, capture_output=True, text=True, timeout=LONGEST_S)
    if read.returncode != 0:
        print(f"{lock.name} cannot be read: {read.stderr.strip()}")
        return 1
    found, problem = ask(command)
    if found is None:
        print(f"not audited: no answer from the advisory service ({problem})")
        return 0
    return report(found)


def ask(command: list[str]) -> tuple[list[dict[str, Any]] | None, str]:
    """What pip-audit found about each package, or None and why there is no answer."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        try:
            ran = subprocess.run(
                [*command, "--output", str(answer)], check=False, capture_output=True, text=True, timeout=LONGEST_S
            )
        except subprocess.TimeoutExpired:
            return None, f"within {LONGEST_S} s"
        if not answer.exists() or not answer.stat().st_size:
            return None, (ran.stderr.strip().splitlines() or [f"exit code {ran.returncode}"])[-1][:300]
        return json.loads(answer.read_text())["dependencies"], ""


def report(packages: list[dict[str, Any]]) -> int:
    unknown = [each["name"] for each in packages if "skip_reason" in each]
    bad = [(each, advisory) for each in packages for advisory in each.get("vulns", ())]
    for package, advisory in bad:
        fixed = ", ".join(advisory["fix_versions"]) or "no version yet"
        print(f"VULNERABLE {package['name']} {package['version']}: {advisory['id']}, fixed in {fixed}")
    if unknown:
        print(f"not audited: the advisory service knows nothing of {len(unknown)} of {len(packages)} packages")
    if len(unknown) < len(packages):
        print(f"audited: {len(packages) - len(unknown)} packages, advisories found: {len(bad)}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
