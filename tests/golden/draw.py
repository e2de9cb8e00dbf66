"""What heddle draw wrote into a folder (draw.sh): whole, harmless, and adding up."""
import html.parser, itertools, json, pathlib, re, sys
import xml.etree.ElementTree as tree

folder = pathlib.Path(sys.argv[1])
problems = []


def check(holds, words):
    if not holds:
        problems.append(words)


def check_harmless(name, text, scripts):
    """Nothing is loaded: addresses are names of namespaces or places in the same file."""
    for address in re.findall(r"https?:[^\"' >]*", text):
        check(address == "http://www.w3.org/2000/svg", f"{name}: {address}")
    for address in re.findall(r"(?:href|src)\s*=\s*[\"']([^\"']*)", text) + re.findall(r"url\(([^)]*)\)", text):
        check(address.startswith("#"), f"{name}: loads {address}")
    check("@import" not in text, f"{name}: imports a style")
    check(len(re.findall(r"<script", text)) == scripts, f"{name}: scripts")
    for reference in set(re.findall(r"url\(#([^)]*)\)", text)):
        check(f'id="{reference}"' in text, f"{name}: no {reference}")


def texts(name):
    return ["".join(e.itertext()) for e in tree.parse(folder / name).iter("{http://www.w3.org/2000/svg}text")]


stages = ["s.attn", "s.cross", "s.mlp", "t.attn", "t.cross", "t.mlp"]
for name, wanted in (("xl.svg", stages), ("two.svg", stages), ("file.svg", stages),
                     ("axial.svg", 2 * ["t.attn", "h.attn", "w.attn", "mlp"]), ("hybrid.svg", [
                         "s0.attn", "t0.lin", "mlp0", "s1.attn", "t1.lin", "mlp1", "s2.attn", "t2.attn", "mlp2"])):
    check_harmless(name, (folder / name).read_text(), 0)
    drawn = [t for t in texts(name) if t in wanted]
    check(drawn == wanted, f"{name} names {drawn}")
check("\u00d7 28" in texts("xl.svg"), "xl.svg: 28 repetitions are not one")
check("\u00d7 14" in texts("axial.svg"), "axial.svg: repeats every two layers, 14 times")
check("2.80 MB" in texts("xl.svg"), "xl.svg: the bytes of a switch")
is_time = re.compile(r"[0-9.]+ (s|ms|\u00b5s|ns)").fullmatch
check("switch" in texts("xl.svg") and not any(map(is_time, texts("xl.svg"))), "xl.svg: seconds that its file has not")
check(any(map(is_time, texts("axial.svg"))), "axial.svg: no seconds")
check_harmless("evil.html", (folder / "evil.html").read_text(), 1)
note = "&#60;script&#62;alert(1)&#60;/script&#62;&#38;&#34;&#39;\ufffd"
check(f"<p>{note}</p>" in (folder / "evil.html").read_text(), "evil.html: a note is not what the file says")


class Page(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.count = [], {}

    def handle_starttag(self, tag, attributes):
        self.open.append(tag)
        self.count[tag] = self.count.get(tag, 0) + 1

    def handle_startendtag(self, tag, attributes):
        self.count[tag] = self.count.get(tag, 0) + 1

    def handle_endtag(self, tag):
        check(self.open and self.open.pop() == tag, f"page: </{tag}> closes nothing")


page = Page()
page.feed((folder / "xl.html").read_text())
check(not page.open, f"page: {page.open} stay open")
check(page.count.get("table", 0) >= 4 and page.count.get("svg", 0) == 3, f"page: {page.count}")
why = (folder / "xl.html").read_text().split("Why not?")[1].split("</table>")[0]
check("has no method" not in why and "s@sp</td>" in why and " %</td>" in why, f"page: why-not is {why}")
rsa = (folder / "training.html").read_text().split(" by rsa</td>")[1].split("</tr>")[0]
check("-5.9 %</td>" in rsa and "only where it is asked for" in rsa, f"page: rsa is {rsa}")
check_harmless("xl.html", (folder / "xl.html").read_text(), 1)


def spans(trace, pid, tid):
    return [e for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] == pid and (e["tid"] > 0) == (tid > 0)]


trace = json.loads((folder / "xl.json").read_text())
told = trace["otherData"]
near = lambda us, s: abs(us * 1e-6 - s) <= 1e-9 + 1e-9 * len(trace["traceEvents"]) * 1e-3
check(told["ranks"] == told["ranks_drawn"] == 4, "timeline: ranks")
for pid in range(4):
    work, moves = spans(trace, pid, 0), spans(trace, pid, 1)
    check(near(sum(e["dur"] for e in work), told["compute_s"] + told["serial_s"]), f"timeline: work of rank {pid}")
    check(near(sum(e["dur"] for e in moves), told["transfer_s"]), f"timeline: exchanges of rank {pid}")
    check(near(sum(e["args"]["hidden_us"] for e in moves), told["hidden_s"]), f"timeline: hidden on rank {pid}")
    end_us = max(e["ts"] + e["dur"] for e in work + moves)
    check(near(end_us, told["serial_s"] + told["time_s"]), f"timeline: end of rank {pid}")
    check(work[0]["name"] == "serial part" and near(work[0]["dur"], told["serial_s"]), "timeline: the text encoder")
    check(len(work) == 1 + 168, f"timeline: {len(work)} stages")
    check(all(a["ts"] + a["dur"] <= b["ts"] + 1e-4 for a, b in itertools.pairwise(work)), "timeline: work overlaps")
    check(sum(e["ph"] == "C" and e["pid"] == pid for e in trace["traceEvents"]) >= 168, "timeline: memory")
both, run = json.loads((folder / "both.json").read_text()), json.loads((folder / "run.json").read_text())
for tid, key in ((0, "block_ms"), (1, "switch_ms")):
    measured = sum(e["dur"] for e in spans(both, 2, tid))
    check(abs(measured - 1e3 * sum(s[key] for s in run["stages"])) < 1, f"timeline: {key} measured is {measured}")


def seen(colour, matrix):
    """As somebody without one kind of cones sees it (Vienot 1999, linear light), in CIE Lab."""
    line = [(c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4)
            for c in (int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5))]
    r, g, b = (sum(m * c for m, c in zip(row, line)) for row in matrix)
    xyz = [(0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505, 0.2126 * r + 0.7152 * g + 0.0722 * b,
           (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089]
    f = [max(c, 0) ** (1 / 3) if c > 0.008856 else 7.787 * c + 16 / 116 for c in xyz]
    return 116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])


eyes = {"all cones": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
        "protanopia": [[0.1124, 0.8876, 0], [0.1124, 0.8876, 0], [0.004, -0.004, 1]],
        "deuteranopia": [[0.2928, 0.7072, 0], [0.2928, 0.7072, 0], [-0.0223, 0.0223, 1]]}
fills = re.findall(r"^\.d[0-7]\{fill:(#[0-9a-f]{6})\}", (folder / "xl.svg").read_text(), re.M)
check(len(fills) == 8, f"{len(fills)} colours")
for who, matrix in eyes.items():
    for one, other in itertools.combinations(fills[:5], 2):  # batch and four more: no model has as many
        far = sum((a - b) ** 2 for a, b in zip(seen(one, matrix), seen(other, matrix))) ** 0.5
        check(far > 12, f"{one} and {other} are {far:.1f} apart ({who})")

print("\n".join(problems))
sys.exit(bool(problems))
