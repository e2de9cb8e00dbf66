#!/usr/bin/env bash
# What README.md and docs/*.md name is there: paths, files, headers, tests, functions and constants, commands and their
# options, links. Lines for the reader to copy run; what they show of a command (`    $ build/heddle ...`) is what it
# prints, and their pictures are what their scripts draw. Not docs/decisions and CHANGELOG.md, which also speak of what is
# no more.
set -u
. "${HEDDLE_SOURCE:?}/tests/support/skip.sh"
cd "$HEDDLE_SOURCE" || exit 1
command -v python3 >/dev/null || skip_test python "no Python"
exec python3 - "${HEDDLE:?}" <<'PY'
import glob, os, re, shlex, subprocess, sys, tempfile

sys.path.append("tests/golden")
from within import limit

heddle = os.path.abspath(sys.argv[1])
problems = []
tree = subprocess.run(["git", "ls-files"], capture_output=True, text=True).stdout.split()
if not tree:  # an unpacked archive
    tree = [os.path.join(d, f)[2:] for d, _, fs in os.walk(".") for f in fs if "/build" not in d and "/.git" not in d]
folders = {os.path.dirname(f) for f in tree}
folders |= {os.path.dirname(d) for d in folders}
folders |= {os.path.dirname(d) for d in folders}
base_names = {os.path.basename(f) for f in tree}
sources = "\n".join(open(f, errors="replace").read() for f in tree
                    if re.search(r"\.(c|h|in|cmake|sh|py|yaml|json|txt|cu)$", f) or f.endswith(".ci/run"))
words = set(re.findall(r"[A-Za-z_][A-Za-z0-9_]*", sources))
tests = {f"{f.split('/')[1]}/{os.path.splitext(os.path.basename(f))[0]}" for f in tree if f.startswith("tests/")}
generated = {"version.h", "heddle.pc", "heddle-mpi.pc", "heddleConfig.cmake", "compile_commands.json"}


def alternatives(path):
    found = re.search(r"\{([^}]*)\}", path)
    if not found:
        return [path]
    return [one for middle in found[1].split(",")
            for one in alternatives(path[:found.start()] + middle + path[found.end():])]


def exists(path):
    for one in alternatives(path.rstrip("/")):
        pattern = re.escape(one).replace(r"\*", "[^/]*")
        if not any(re.fullmatch(pattern, f) for f in tree) and one not in folders and os.path.basename(one) not in generated:
            return False
    return True


def check_word(where, text, own):
    top = text.split("/")[0]
    if text in own:
        return
    if "/" in text and top in ("include", "runtime", "kernels", "planner", "tests", "examples", "docs", ".ci"):
        if not exists(text):
            problems.append(f"{where}: there is no {text}")
    elif re.fullmatch(r"(unit|contract|property|fault|golden|hosts|long|fuzz|bench)/[a-z0-9_]+", text):
        if text not in tests:
            problems.append(f"{where}: there is no test {text}")
    elif re.fullmatch(r"heddle/[a-z0-9_/]+\.h", text):
        if not exists("include/" + text):
            problems.append(f"{where}: there is no header {text}")
    elif re.fullmatch(r"(hd|heddle|HEDDLE|HD)_[A-Za-z0-9_]+[A-Za-z0-9]", text):
        if text not in words:
            problems.append(f"{where}: nothing is called {text}")
    elif re.fullmatch(r"[a-z0-9_]+\.(c|h|sh|cu)", text) and text not in base_names | generated:
        problems.append(f"{where}: no file is called {text}")


helps = {}


def help_of(*command):
    if command not in helps:
        run = subprocess.run([heddle, *command, "--help"], capture_output=True, text=True)
        helps[command] = run.stdout if run.returncode == 0 else None
    return helps[command]


def check_command(where, line):
    found = re.match(r"(?:[A-Z_]+=\S* +)*(?:(?:mpirun|torchrun|srun) .*? )?(?:\S*/)?heddle "
                     r"+([a-z]+(?: (?:(?:linear-)?attention|products)\b)?)(.*)", line)
    if not found:
        return
    name = found[1].split()
    text = help_of(*name)
    if text is None:
        problems.append(f"{where}: heddle has no command '{found[1]}'")
        return
    text += (help_of("verify", *name[1:]) or "") if len(name) > 1 else ""  # "as for heddle verify attention"
    for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", re.split(r"[|;>#]", found[2])[0]):
        if not re.search(re.escape(option) + r"(?![a-z-])", text):
            problems.append(f"{where}: heddle {found[1]} has no option {option}")


def check_shown(name, text):
    for found in re.finditer(r"^    \$ \S*heddle (.*)\n((?:(?:    .*)?\n)*)", text, re.M):
        run = subprocess.run([heddle, *shlex.split(found[1])], capture_output=True, text=True)
        if re.sub("^    ", "", found[2], flags=re.M).strip() != run.stdout.strip():
            problems.append(f"{name}: heddle {found[1]} prints something else")


# Every line that a reader may copy, in the order of the page, where nothing is measured and no model runs.
def run_lines(name, text):
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(os.path.abspath("examples"), os.path.join(folder, "examples"))
        for line in re.findall(r"^    build/heddle ((?:.*\\\n)*.*)$", text, re.M):
            words = shlex.split(line.replace("\\\n", " "), comments=True)
            if words[0] not in ("run", "bench", "calibrate"):
                run = subprocess.run([heddle, *words], capture_output=True, text=True, cwd=folder,
                                     timeout=limit(60))
                if run.returncode not in (0, 77):  # no such device here
                    problems.append(f"{name}: heddle {line} ends with {run.returncode}: {run.stderr.strip()}")


for script in glob.glob("docs/pictures/*.py"):
    drawn = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    if drawn.returncode != 0:
        problems.append(drawn.stderr.strip())

documents = ["README.md"] + sorted(glob.glob("docs/*.md"))
counted = 0
for name in documents:
    fenced, held = False, ""
    text = open(name).read()
    check_shown(name, text)
    run_lines(name, text)
    own = set(re.findall(r"^/\* ([\w.]+): ", text, re.M))  # what its examples write themselves
    own |= set(re.findall(r"^(?:static |const )*[\w ]+[ *](\w+)(?: = \{|\(.*\)$)", text, re.M))
    for number, line in enumerate(text.split("\n"), 1):
        where = f"{name}:{number}"
        if line.lstrip().startswith("```"):
            fenced, held = not fenced, ""
            continue
        if re.match("    heddle ", line):
            problems.append(f"{where}: written for the root of the tree it would be build/heddle")
        if re.match("    build/heddle ", line):
            check_command(where, line.strip())
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", "" if fenced else line):
            if not os.path.exists(os.path.join(os.path.dirname(name), target)):
                problems.append(f"{where}: the link to {target} leads nowhere")
        for piece in [line] if fenced else re.findall(r"`([^`]+)`", line):
            counted += 1
            held += piece.strip() if fenced else ""
            if fenced and held.endswith("\\"):
                held = held[:-1] + " "
            else:
                check_command(where, re.sub(r"^\$\s*", "", held if fenced else piece))
                held = ""
            for word in re.findall(r"[\w.*{},/-]*[\w*}/]", re.sub(r'"[^"]*"|<[^>]*>', " ", piece)):
                check_word(where, word.strip(",").removeprefix("./"), own)
print("\n".join(problems[:80]))
print(f"{len(documents)} documents, {counted} pieces of code in them, {len(problems)} that do not fit the tree")
sys.exit(1 if problems or counted < 300 else 0)
PY
