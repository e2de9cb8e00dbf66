"""Has a browser show every picture and page of a folder (draw_browser.sh), 1200 pixels wide, light and dark."""
import html, json, pathlib, re, struct, sys, within, zlib

folder = pathlib.Path(sys.argv[1])
problems = []
# What a page says of itself: texts that meet or leave their picture, how wide it is, whether tables sort.
SCRIPT = """<pre id="found"></pre><script>
var found=[];document.querySelectorAll('svg').forEach(function(s){var box=s.getBoundingClientRect(),
all=Array.from(s.querySelectorAll('text')).map(function(t){return [t.textContent,t.getBoundingClientRect()]});
all.forEach(function(a,i){var r=a[1];
if(r.left<box.left-1||r.right>box.right+1||r.top<box.top-1||r.bottom>box.bottom+1)
found.push(a[0]+' leaves the picture');all.slice(i+1).forEach(function(b){var q=b[1];
if(Math.min(r.right,q.right)-Math.max(r.left,q.left)>1&&Math.min(r.bottom,q.bottom)-Math.max(r.top,q.top)>3)
found.push(a[0]+' lies over '+b[0])})})
s.querySelectorAll('.pill').forEach(function(p){var r=p.getBoundingClientRect(),
t=p.nextElementSibling.getBoundingClientRect();
if(t.left<r.left+2||t.right>r.right-2)found.push('a pill is too short for its words')})});
var h=document.querySelector('th.n'),order=[];if(h){h.click();
order=Array.from(h.closest('table').tBodies[0].rows).map(function(r){
return +r.cells[h.cellIndex].getAttribute('data-v')})}
document.getElementById('found').textContent=JSON.stringify({found:found,wide:document.documentElement.scrollWidth,
texts:document.querySelectorAll('svg text').length,order:order});</script>"""


def browse(address, *options):
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1200,900",
               "--disable-background-networking", f"--user-data-dir={folder}/profile", *options, address.as_uri()]
    return within.run(command, 60).stdout


def colours(file):
    """Different pixels of a PNG of 8 bits a sample."""
    data, at, packed = file.read_bytes(), 8, b""
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at:at + 8])
        if kind == b"IHDR":
            width, height, depth, form = struct.unpack(">IIBB", data[at + 8:at + 18])
        packed += data[at + 8:at + 8 + size] if kind == b"IDAT" else b""
        at += 12 + size
    step, raw, pixels = {2: 3, 6: 4}[form], zlib.decompress(packed), set()
    before = bytearray(width * step)
    for y in range(height):
        start = y * (width * step + 1)
        kind, row = raw[start], bytearray(raw[start + 1:start + 1 + width * step])
        for x in range(len(row)):
            a, b, c = row[x - step] if x >= step else 0, before[x], before[x - step] if x >= step else 0
            near = min((abs(b - c), 0, a), (abs(a - c), 1, b), (abs(a + b - 2 * c), 2, c))[2]
            row[x] = (row[x] + (0, a, b, (a + b) // 2, near)[kind]) & 255
        pixels |= {bytes(row[i:i + 3]) for i in range(0, len(row), step)}
        before = row
    return pixels


for file in sorted(folder.glob("*.svg")) + sorted(folder.glob("*.html")):
    page, picture = folder / f"page-{file.stem}.htm", folder / f"{file.stem}.png"
    text = file.read_text()
    head = '<!DOCTYPE html><meta charset="utf-8"><style>body{margin:0}svg{max-width:100%;height:auto}</style>'
    page.write_text(text.replace("</body>", SCRIPT + "</body>") if file.suffix == ".html" else head + text + SCRIPT)
    said = re.search(r'<pre id="found">(.*?)</pre>', browse(page, "--dump-dom"), re.S)
    told = json.loads(html.unescape(said[1])) if said and said[1] else {}
    problems += [f"{file.name}: {one}" for one in told.get("found", ["the page says nothing"])]
    if told.get("wide", 0) > 1200 or told.get("texts", 0) < 15:
        problems.append(f"{file.name}: {told.get('wide')} pixels wide, {told.get('texts')} texts")
    if file.suffix == ".html" and (len(told.get("order", [])) < 2 or told["order"] != sorted(told["order"])):
        problems.append(f"{file.name}: a click on a heading does not sort: {told.get('order')}")
    shown = ((), b"\xff\xff\xff"), (("--blink-settings=preferredColorScheme=0",), b"\x0d\x11\x17")
    for mode, paper in shown if file.stem in ("axes", "report") else ():
        browse(file, f"--screenshot={picture}", *mode)
        found = colours(picture)
        if len(found) < 100 or paper not in found:
            problems.append(f"{file.name}: {len(found)} colours, of {paper.hex()} {paper in found}")

print("\n".join(problems))
sys.exit(bool(problems))
