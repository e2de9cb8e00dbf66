"""The flags between ranks of one host, tried in every order in which a processor may do their steps.

No run on x86-64 shows a fence that is missing. So the steps of each protocol are read off the source, with their memory
orders, and a small machine does them in every order that is allowed: a step may overtake an earlier one of its thread
unless they touch the same place, the earlier one acquires, the later one releases, both are seq_cst, a fence of seq_cst
stands between or is one of them, or the later one writes what depends on a value read (branches). Stores are seen by
all at once (ARMv8, RISC-V; x86-64, with less freedom). What must hold: nobody sleeps while its flag stands, nothing
is read before its flag, nobody touches memory that was taken back.

A step that the source has no more, or in another place, is an error; and each order that a protocol lives by is taken
away once, which must be found."""

import itertools
import os
import re
import sys

# --- the steps, as the source has them: file, function, text (its order: the last argument, else seq_cst) -----------
LINK, WAIT, LIVES, MOVE = (
    "runtime/comm/link.c",
    "runtime/comm/ground/wait.c",
    "runtime/comm/ground/lives.c",
    "runtime/move/transfer.c",
)
LEND, HUB, GROUP = "runtime/move/lend.c", "runtime/comm/hub.c", "runtime/comm/ground/group.c"
STEPS = {  # in the order in which they stand in a function
    "post.word": (LINK, "hd_link_post", r"atomic_store\w*\(&c->word\[i\]"),
    "post.flag": (LINK, "hd_link_post", r"atomic_exchange\w*\(&c->sequence"),
    "post.ring": (LINK, "hd_link_post", r"hd_group_ring\("),
    "arrived.flag": (LINK, "has_arrived", r"atomic_load\w*\(&c->sequence"),
    "arrived.word": (LINK, "has_arrived", r"atomic_load\w*\(&c->word\[i\]"),
    "ring.sleeping": (WAIT, "hd_group_ring", r"atomic_load\w*\(&group->control\[index\]->sleeping"),
    "wake.doorbell": (WAIT, "hd_group_wake", r"atomic_fetch_add\w*\(&control->doorbell"),
    "wake.call": (WAIT, "hd_group_wake", r"syscall\(SYS_futex, &control->doorbell, FUTEX_WAKE"),
    "arm.doorbell": (WAIT, "hd_group_relax", r"atomic_load\w*\(&own->doorbell"),
    "arm.sleeping": (WAIT, "hd_group_relax", r"atomic_store\w*\(&own->sleeping, 1"),
    "arm.call": (WAIT, "hd_group_relax", r"syscall\(SYS_futex, &own->doorbell, FUTEX_WAIT, group->armed_value"),
    "again.doorbell": (
        WAIT,
        "hd_group_relax",
        r"group->armed_value = atomic_load\w*\(&own->doorbell(?!.*FUTEX_WAIT)",
    ),
    "arrive.arrived": (HUB, "arrive", r"atomic_store\w*\(&own_memory\(comm\)->arrived"),
    "arrive.counter": (HUB, "arrive", r"atomic_fetch_add\w*\(counter"),
    "round.counter": (HUB, "wait_round", r"atomic_load\w*\(counter"),
    "arrived.arrived": (HUB, "arrived", r"atomic_load\w*\(&comm->hub\.of\[rank\]->arrived"),
    "leave.state": (GROUP, "hd_group_leave", r"atomic_store\w*\(&group->control\[group->me\]->state, HD_RANK_LEFT"),
    "left.state": (WAIT, "hd_group_left", r"atomic_load\w*\(&group->control\[index\]->state"),
    "begin.mark": (MOVE, "begin", r"hd_channel_mark\(c, 1\)"),
    "begin.post": (MOVE, "begin", r"announce\("),
    "mark.store": (MOVE, "hd_channel_mark", r"atomic_store\w*\(c->view\.moving"),
    "move.mark": (MOVE, "move", r"hd_channel_mark\(c, 1\)"),
    "move.fence": (MOVE, "move", r"atomic_thread_fence\("),
    "move.heed": (MOVE, "move", r"hd_comm_heed\("),
    "move.copy": (MOVE, "move", r"carry\("),
    "move.end": (MOVE, "move", r"hd_channel_mark\(c, 0\)"),
    "heed.alarm": (LINK, "hd_comm_heed", r"atomic_load\w*\(&own->alarm"),
    "lend.store": (LEND, "mark", r"atomic_store\w*\(c->view\.moving"),
    "borrow.mark": (LEND, "borrow", r"mark\(c, 1\)"),
    "borrow.fence": (LEND, "borrow", r"atomic_thread_fence\("),
    "borrow.heed": (LEND, "borrow", r"hd_comm_heed\("),
    "return.post": (LEND, "hd_channel_return", r"post\(c, HD_SLOT_DONE"),
    "return.mark": (LEND, "hd_channel_return", r"mark\(c, -1\)"),
    "raise.take": (LIVES, "hd_group_raise", r"atomic_compare_exchange_strong\w*\(&own->why_state"),
    "raise.why": (LIVES, "hd_group_raise", r"hd_copy_text\(own->why"),
    "raise.state": (LIVES, "hd_group_raise", r"atomic_store\w*\(&own->why_state, WHY_READABLE"),
    "raise.alarm": (LIVES, "hd_group_raise", r"atomic_compare_exchange_strong\w*\(&control->alarm"),
    "quiesce.moving": (LIVES, "quiesce", r"atomic_load\w*\(flag\)?"),
    "end.alarm": (LIVES, "hd_group_end", r"atomic_load\w*\(&group->control\[group->me\]->alarm"),
    "closed.state": (LIVES, "hd_group_closed", r"atomic_load\w*\(&group->control\[i\]->why_state"),
}


def body_of(text, name):
    found = re.search(r"^[a-z][^;{}]*?\b" + name + r"\([^;{}]*?\)\n\{\n(.*?)^\}", text, re.M | re.S)
    return re.sub(r"/\*.*?\*/", " ", found.group(1), flags=re.S) if found else None


def read_orders(root):
    orders, wrong, last = {}, [], {}
    for step, (path, function, pattern) in STEPS.items():
        with open(os.path.join(root, path), encoding="utf-8") as file:
            body = body_of(file.read(), function)
        begin = last.get((path, function), 0)
        found = re.compile(pattern, re.S).search(body or "", begin)
        if not found:
            wrong.append(f"{path}: {function} has no '{pattern}' behind what comes before it ({step})")
            continue
        last[path, function] = found.end()
        statement = body[found.start() : body.find(";", found.start())]
        named = re.findall(r"memory_order_(\w+)", statement)
        orders[step] = named[0] if named else "seq_cst"
    return orders, wrong


# --- the machine ----------------------------------------------------------------------------------------------------
ACQUIRES, RELEASES = ("acquire", "acq_rel", "seq_cst"), ("release", "acq_rel", "seq_cst")


class Op:
    """W(rites), R(eads), X(changes), F(ence), E(nters the queue of sleepers), Z (sleeps), U (wakes)."""

    def __init__(self, kind, place=None, order="relaxed", value=None, wants=None, checks=None, keeps=None):
        self.kind, self.place, self.order, self.value = kind, place, order, value
        self.wants, self.checks, self.keeps = wants, checks, keeps  # of the value that is read


def keeps_order(a, b):
    if a.kind in "FEZU" or b.kind in "FEZU":
        return all(op.kind != "F" or op.order == "seq_cst" for op in (a, b))
    reads, writes = (
        a.kind == "R" or a.wants is not None,
        b.kind in "WX",
    )  # X: what it stores may come later than its reading
    return (
        a.place == b.place
        or (reads and a.order in ACQUIRES)
        or (writes and b.order in RELEASES)
        or (a.order == b.order == "seq_cst")
        or (reads and writes and a.wants is not None)
    )


def step(op, thread, memory, queue):
    """What is so afterwards; None: this way the branch is not taken, or the step cannot be done yet."""
    memory, queue = dict(memory), dict(queue)
    if op.kind in "RX":
        value = memory.get(op.place, 0)
        if op.wants is not None and not op.wants(value):
            return None
        if op.checks is not None and value != op.checks:
            memory["fault"] = f"reads {op.place} = {value}"
        if op.keeps:
            memory[thread, op.keeps] = value
    if op.kind == "W":
        memory[op.place] = op.value
    elif op.kind == "X":
        memory[op.place] = op.value(memory.get(op.place, 0))
    elif op.kind == "E" and memory.get(op.place, 0) == memory.get((thread, op.keeps)):
        queue[thread] = "asleep"
    elif op.kind == "Z" and queue.get(thread) == "asleep":
        return None
    elif op.kind == "U":
        queue = {who: "awake" for who in queue}
    return memory, queue


def explore(threads, final=None):
    """The first fault of any order of the steps of these straight lines; None: there is none."""
    before = [[[a for a in range(b) if keeps_order(ops[a], ops[b])] for b in range(len(ops))] for ops in threads]
    start = (tuple(0 for _ in threads), (), ())
    todo, seen = [start], {start}
    while todo:
        done, memory, queue = todo.pop()
        stuck = True
        for t, ops in enumerate(threads):
            for i, op in enumerate(ops):
                if done[t] >> i & 1 or not all(done[t] >> a & 1 for a in before[t][i]):
                    continue
                after = step(op, t, memory, queue)
                if after is None:
                    continue
                stuck = False
                state = (
                    tuple(d | (1 << i if u == t else 0) for u, d in enumerate(done)),
                    tuple(sorted(after[0].items(), key=str)),
                    tuple(sorted(after[1].items())),
                )
                if state not in seen:
                    seen.add(state)
                    todo.append(state)
        if stuck:
            left = [t for t, ops in enumerate(threads) if done[t] != (1 << len(ops)) - 1]
            if not left and (dict(memory).get("fault") or (final and final(dict(memory)))):
                return dict(memory).get("fault") or final(dict(memory))
            asleep = [t for t in left if dict(queue).get(t) == "asleep"]
            if asleep and asleep == left:
                return "sleeps for ever"
    return None


def try_all(lines, final=None):
    """lines: of each thread the ways it may go."""
    for ways in itertools.product(*lines):
        fault = explore(ways, final)
        if fault:
            return fault
    return None


# --- the protocols --------------------------------------------------------------------------------------------------
def is_zero(value):
    return value == 0


def is_set(value):
    return value != 0


def sleepers(flag_read, o, behind, there=1):
    """Ways of whoever waits for a flag: it is there at once, behind the arming, or after a sleep or two."""

    def look(is_there):
        return Op("R", "flag", o[flag_read], wants=lambda value: (value >= there) == is_there)

    arm = [Op("R", "doorbell", o["arm.doorbell"], keeps="armed"), Op("W", "sleeping", o["arm.sleeping"], 1)]
    sleep = [Op("E", "doorbell", keeps="armed"), Op("Z")]
    again = [Op("R", "doorbell", o["again.doorbell"], keeps="armed")]
    seen = [look(True)] + behind
    return [
        seen,
        [look(False)] + arm + seen,
        [look(False)] + arm + [look(False)] + sleep + again + seen,
        [look(False)] + arm + [look(False), Op("E", "nothing", keeps="none")] + again + [look(False)] + sleep + seen,
    ]


def ringers(first, o):
    ring = o["ring.sleeping"]
    return [
        first + [Op("R", "sleeping", ring, wants=is_zero)],
        first
        + [
            Op("R", "sleeping", ring, wants=is_set),
            Op("X", "doorbell", o["wake.doorbell"], lambda v: v + 1),
            Op("U"),
        ],
    ]


def flag(o):
    post = [Op("W", "word", o["post.word"], 1), Op("X", "flag", o["post.flag"], lambda v: 1)]
    return try_all([ringers(post, o), sleepers("arrived.flag", o, [Op("R", "word", o["arrived.word"], checks=1)])])


def left(o):
    post = [
        Op("W", "word", o["post.word"], 1),
        Op("X", "flag", o["post.flag"], lambda v: 1),
        Op("W", "state", o["leave.state"], 1),
    ]
    look = [
        Op("R", "flag", o["arrived.flag"], wants=is_zero),
        Op("R", "state", o["left.state"], wants=is_set),
        Op("R", "flag", o["arrived.flag"], checks=1),
    ]
    return try_all([[post], [look]])


def hub(o):
    def arrive(data, wants):
        return [
            Op("W", data, value=1),
            Op("W", "arrived " + data, o["arrive.arrived"], 1),
            Op("X", "flag", o["arrive.counter"], lambda v: v + 1, wants=wants),
        ]

    first, last = arrive("a", is_zero), arrive("b", is_set) + [Op("R", "a", checks=1)]
    behind = [Op("R", "b", checks=1), Op("R", "arrived b", o["arrived.arrived"], checks=1)]
    missed = [[Op("R", "arrived b", o["arrived.arrived"], wants=is_set), Op("R", "b", checks=1)]]  # by a third rank
    return try_all([ringers(last, o), [first + way for way in sleepers("round.counter", o, behind, 2)]]) or try_all(
        [ringers(last, o), [first], missed]
    )


def copier(store, between, o, post_after=()):
    mark, ends = Op("W", "moving", o[store], 1), Op("W", "moving", o[store], 0)
    copy = [Op("R", "source", checks=0), Op("W", "target", value=1)]
    heed = o["heed.alarm"]
    return [
        [mark] + between + [Op("R", "alarm", heed, wants=is_zero)] + copy + list(post_after) + [ends],
        [mark] + between + [Op("R", "alarm", heed, wants=is_set), ends],
    ]


def taken_back(o):
    return [
        [
            Op("X", "alarm", o["raise.alarm"], lambda v: 1),
            Op("R", "moving", o["quiesce.moving"], wants=is_zero),
            Op("W", "source", value=9),
            Op("W", "target", value=2),
        ]
    ]


def overwritten(memory):
    return "the copy lands in memory that was taken back" if memory.get("target") == 1 else None


def marks(o):
    return try_all([copier("mark.store", [Op("F", order=o["move.fence"])], o), taken_back(o)], overwritten)


def whole(o):
    return try_all(
        [copier("mark.store", [Op("X", "flag", o["post.flag"], lambda v: 1)], o), taken_back(o)], overwritten
    )


def loans(o):
    done = [Op("X", "flag", o["post.flag"], lambda v: 1)]
    return try_all([copier("lend.store", [Op("F", order=o["borrow.fence"])], o, done), taken_back(o)], overwritten)


def reasons(o):
    tells = [
        Op("X", "state", o["raise.take"], lambda v: 1),
        Op("W", "why", value=1),
        Op("W", "state", o["raise.state"], 2),
        Op("X", "alarm", o["raise.alarm"], lambda v: 1),
    ]
    hears = [
        [Op("R", "alarm", o["end.alarm"], wants=is_set), Op("R", "why", checks=1)],
        [Op("R", "state", o["closed.state"], wants=lambda v: v == 2), Op("R", "why", checks=1)],
    ]
    return try_all([[tells], hears])


PROTOCOLS = (flag, left, hub, marks, whole, loans, reasons)
# Taken away or made weaker, these must be found: the machine can see.
NEEDED = (
    ("post.flag", "release", flag),
    ("post.flag", "relaxed", flag),
    ("post.flag", "relaxed", whole),
    ("arrived.flag", "relaxed", flag),
    ("ring.sleeping", "relaxed", flag),
    ("arm.sleeping", "release", flag),
    ("arrived.flag", "acquire", flag),
    ("leave.state", "relaxed", left),
    ("left.state", "relaxed", left),
    ("arrive.counter", "relaxed", hub),
    ("round.counter", "relaxed", hub),
    ("arrive.arrived", "relaxed", hub),
    ("arrived.arrived", "relaxed", hub),
    ("move.fence", "relaxed", marks),
    ("borrow.fence", "relaxed", loans),
    ("mark.store", "relaxed", marks),
    ("mark.store", "relaxed", whole),
    ("lend.store", "relaxed", loans),
    ("heed.alarm", "relaxed", whole),
    ("quiesce.moving", "relaxed", marks),
    ("raise.state", "relaxed", reasons),
    ("end.alarm", "relaxed", reasons),
    ("closed.state", "relaxed", reasons),
)


def main():
    orders, wrong = read_orders(os.environ["HEDDLE_SOURCE"])
    for protocol in PROTOCOLS if not wrong else ():
        fault = protocol(orders)
        wrong += [f"{protocol.__name__}: {fault}"] if fault else []
    for name, order, protocol in NEEDED if not wrong else ():
        if not protocol(dict(orders, **{name: order})):
            wrong.append(f"{protocol.__name__}: nothing is found when {name} is {order}")
    print(
        "\n".join(wrong)
        if wrong
        else f"{len(PROTOCOLS)} protocols of {len(STEPS)} steps, {len(NEEDED)} weaker ones found"
    )
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
