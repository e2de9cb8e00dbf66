"""What a script finds wrong is said, the rest is still looked at, and the exit code says whether anything was."""

import sys

failed = 0


def check(is_right, *what):
    global failed
    if not is_right:
        failed = 1
        print("FAILED", *what)


def finish():
    sys.exit(failed)
