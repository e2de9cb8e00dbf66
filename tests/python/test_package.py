"""What needs no second rank: the mirrored structs, errors, lines, volumes, schedules."""
import itertools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import heddle
import pytest
from heddle import _abi

SOURCE = Path(os.environ["HEDDLE_SOURCE"])
PACKAGE = Path(heddle.__file__).parent


def blocks(length, parts):
    """Balanced: the first length % parts blocks have one more."""
    cut = [0]
    for i in range(parts):
        cut.append(cut[-1] + length // parts + (1 if i < length % parts else 0))
    return cut


def import_copy(tmp_path, old, new):
    """The package with one line of _abi.py changed, imported by a Python of its own."""
    shutil.copytree(PACKAGE, tmp_path / "heddle", symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    abi = tmp_path / "heddle" / "_abi.py"
    text = abi.read_text()
    assert text.count(old) == 1
    abi.write_text(text.replace(old, new))
    return subprocess.run([sys.executable, "-c", "import heddle"], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(tmp_path)})


def test_a_struct_of_another_size_is_refused_on_import(tmp_path):
    run = import_copy(tmp_path, '        ("saved_bytes", c_int64),\n        ("workspace_bytes", c_int64),\n        '
                      '("forward_flops", c_int64),\n', '        ("saved_bytes", c_int64),\n')
    assert run.returncode != 0
    assert "ImportError" in run.stderr and "heddle_schedule_stage has" in run.stderr, run.stderr


def test_a_missing_function_is_refused_on_import(tmp_path):
    run = import_copy(tmp_path, '"heddle_version"', '"heddle_version_of_tomorrow"')
    assert run.returncode != 0 and "heddle_version_of_tomorrow" in run.stderr


@pytest.mark.parametrize("is_enabled", [True, False])
def test_python_without_its_lock_is_refused_on_import(is_enabled):
    program = f"import sys; sys._is_gil_enabled = lambda: {is_enabled}; import heddle"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                         env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)})
    assert (run.returncode == 0) == is_enabled, run.stderr
    assert is_enabled or "ImportError: this Python is free-threaded" in run.stderr


def test_every_header_of_the_umbrella_is_mirrored():
    text = "".join(path.read_text() for path in (SOURCE / "include/heddle").glob("*.h") if path.name != "mpi.h")
    declared = {line.split()[2] for line in text.split("\n")
                if line.startswith("typedef struct heddle_") and "{" in line}
    assert declared == {struct.__name__ for struct in _abi.STRUCTS}
    assert len(_abi.FUNCTIONS) > 100 and "heddle_reshard_execute" in _abi.FUNCTIONS


def test_every_status_has_its_exception():
    kinds = {kind.status for kind in heddle.Error.__subclasses__()}
    assert kinds == {value for name, value in vars(_abi).items() if name.startswith("HEDDLE_ERR_")}
    assert issubclass(heddle.DeadlineError, TimeoutError) and issubclass(heddle.ArgumentError, ValueError)


def test_errors_have_the_librarys_sentence():
    with pytest.raises(heddle.LayoutError, match="column 22: unknown dim 'q'"):
        heddle.Line("f32[t=10] on [sp=4]: q@sp -> *")
    with pytest.raises(heddle.ParseError, match="column"):
        heddle.Line("f32[t=10 on [sp=4]: t@sp -> *")
    with pytest.raises(heddle.ArgumentError, match="together"):
        heddle.volume(heddle.line.make_line("f32[t=10]", "[sp=2]"))
    with pytest.raises(heddle.FileError, match="nowhere.yaml"):
        heddle.plan("/nowhere.yaml", "[sp=2]")


def test_a_line_says_who_holds_what():
    line = heddle.Line("bf16[b=2 t=7 s=5] on [sp=3]: t@sp -> s@sp as s,b,t")
    assert (line.dtype, line.itemsize, line.dims, line.shape, line.nranks) == ("bf16", 2, ("b", "t", "s"), (2, 7, 5), 3)
    cut_t, cut_s = blocks(7, 3), blocks(5, 3)
    for rank in range(3):
        assert line.src_slices(rank) == (slice(0, 2), slice(cut_t[rank], cut_t[rank + 1]), slice(0, 5))
        assert line.dst_shape(rank) == (cut_s[rank + 1] - cut_s[rank], 2, 7)
    with pytest.raises(heddle.ArgumentError):
        line.src_slices(3)


def test_the_form_of_a_line():
    line = heddle.Line("bf16[b=2 t=7 s=5] on [dp=2 sp=3]: t@sp -> s@sp as s,b,t")
    assert line.form == "bf16[b=%d t=%d s=%d] on [dp=2 sp=3]: t@sp -> s@sp as s,b,t"
    assert line.free == line.shape
    assert line.form % line.shape == line.text and line.form % (3, 9, 8) == heddle.Line(line.form % (3, 9, 8)).text
    own = heddle.Line("f32[t=7 s=5] on [sp=2]: t@sp(5 2) -> s@sp(2 3)")
    assert own.form == own.text and "(2 3)" in own.text and own.free == ()
    some = heddle.Line("f32[t=7 s=5 c=3] on [sp=2]: t@sp(5 2) -> s@sp")
    assert some.form == "f32[t=7 s=%d c=%d] on [sp=2]: t@sp(5 2) -> s@sp" and some.form % some.free == some.text


def test_lines_of_the_way_back():
    line = heddle.Line("f32[t=7 s=5] on [sp=3]: * as s,t -> s@sp")
    assert line.reversed() == heddle.Line("f32[t=7 s=5] on [sp=3]: s@sp -> * as s,t")
    assert line.adjoint().text == "f32[t=7 s=5] on [sp=3]: s@sp -> sum@sp as s,t"
    assert line.adjoint().adjoint() == line and line.with_dtype("u8").text.startswith("u8[")
    with pytest.raises(heddle.ArgumentError, match="f32"):
        line.with_dtype("float32")


@pytest.mark.parametrize("t, s, n", [(10, 7, 4), (3, 8, 5), (6, 6, 2)])
def test_volume_counts_what_changes_hands(t, s, n):
    cut_t, cut_s = blocks(t, n), blocks(s, n)
    wanted = [[0] * n for _ in range(n)]
    for i, j in itertools.product(range(t), range(s)):
        before = next(r for r in range(n) if cut_t[r] <= i < cut_t[r + 1])
        after = next(r for r in range(n) if cut_s[r] <= j < cut_s[r + 1])
        wanted[before][after] += 4 if before != after else 0
    assert heddle.volume(f"f32[t={t} s={s}] on [sp={n}]: t@sp -> s@sp") == wanted


def test_a_schedule_planned_saved_and_read(tmp_path):
    model = SOURCE / "examples/models/stdit3-240p-51f.yaml"
    schedule = heddle.plan(model, "[sp=4]", repeat=2)
    names = [stage.name for stage in schedule.stages if stage.repetition == 0]
    assert len(schedule.stages) == 2 * len(names) and len(schedule.edges) == len(schedule.stages) + 1
    assert schedule.stages[schedule.find("t.attn", 1)].name == "t.attn"
    for stage, edge, following in zip(schedule.stages, schedule.edges, schedule.edges[1:]):
        assert edge.line.text.endswith(f"-> {stage.layout}")
        assert edge.line.reversed().text.split(": ")[1].startswith(stage.layout)
        assert edge.bytes_total == sum(map(sum, heddle.volume(edge.line))) and following.line.shape == edge.line.shape
    assert schedule.bytes_total == sum(edge.bytes_total for edge in schedule.edges)
    schedule.save(tmp_path / "schedule.json")
    read = heddle.Schedule.load(tmp_path / "schedule.json")
    assert (read.stages, read.edges, read.shape) == (schedule.stages, schedule.edges, schedule.shape)
    assert heddle.Schedule.parse((tmp_path / "schedule.json").read_text()).edges == schedule.edges
    with pytest.raises(heddle.ArgumentError, match="t.attn"):
        schedule.find("t.atn")


def test_a_model_from_text_and_options_that_do_not_fit():
    text = (SOURCE / "examples/models/stdit3-240p-51f.yaml").read_text()
    free = heddle.plan(text, "[sp=4]", sizes="t=16,s=256", epilogue="any")
    assert free.shape == "bf16[b=1 t=16 s=256 c=1152]" and free.edges[-1].bytes_total == 0
    with pytest.raises(heddle.ArgumentError, match="nothere"):
        heddle.plan(text, "[sp=4]", sizes="nothere=3")
    with pytest.raises(heddle.ArgumentError):
        heddle.plan(text, "[sp=4]", methods="s.attn=nomethod")


def test_a_machine_is_a_name_or_a_file(tmp_path):
    machine = heddle.Machine("2x8xh100-nvlink+ib400")
    assert (machine.name, machine.ranks, machine.is_calibrated) == ("2x8xh100-nvlink+ib400", 16, False)
    assert machine.levels == (("nvlink", 8), ("ib400", 16)) and machine.memory_bytes > 2 ** 36
    assert "NVLink" in machine.source and "16 by ib400" in repr(machine)
    machine.resize(32)
    assert machine.ranks == 32 and machine.levels[-1].ranks == 32
    machine.save(tmp_path / "machine.yaml")
    read = heddle.Machine(tmp_path / "machine.yaml")
    assert (read.levels, read.memory_bytes, read.source) == (machine.levels, machine.memory_bytes, machine.source)
    again = [heddle.plan("stdit3-xl2", ranks=16, machine=each).predicted_s for each in (machine, read)]
    assert again[0] == again[1] > 0
    (tmp_path / "bad.yaml").write_text("machine: 3\nranks: many\n")
    for kind, words, name in ((heddle.ArgumentError, "did you mean 'nvlink'", "8xh100-nvlnk"),
                              (heddle.ParseError, "bad.yaml:", tmp_path / "bad.yaml"),
                              (heddle.ArgumentError, "the machine is a NoneType", None)):
        with pytest.raises(kind, match=words):
            heddle.Machine(name)
    for ranks in (0, -1, 2 ** 31, "8", True):
        with pytest.raises(heddle.ArgumentError, match="ranks is"):
            machine.resize(ranks)
    with pytest.raises(heddle.FileError):
        machine.save(tmp_path / "nowhere" / "machine.yaml")
    assert machine.ranks == 32


def test_a_plan_on_a_machine_says_what_it_takes():
    machine = "2x8xh100-nvlink+ib400"
    given = dict(machine=machine, methods="", epilogue="any")
    schedule = heddle.plan("hunyuanvideo", ranks=16, **given)
    assert (schedule.machine, schedule.objective) == (machine, "time")
    parts = [part.predicted_s for part in (*schedule.stages, *schedule.edges)]
    assert schedule.value == schedule.predicted_s and abs(sum(parts) - schedule.value) <= 1e-9 * schedule.value
    assert 0 < schedule.lower_bound <= schedule.value <= schedule.runner_up
    assert heddle.plan("hunyuanvideo", ranks=16, machine=machine, epilogue="any").value == schedule.value
    whole = heddle.plan("hunyuanvideo", ranks=16, machine=machine, epilogue="any", methods="*=local")
    assert whole.value > 2 * schedule.value and {stage.method for stage in whole.stages} == {"local"}
    fixed = heddle.plan("hunyuanvideo", "[sp=16]", **given)
    assert schedule.value < fixed.value and fixed.mesh == "[sp=16]"
    ring = heddle.plan("hunyuanvideo", "[sp=16]", force="attn=s@sp/ring", **given)
    assert ring.value >= fixed.value and {s.method for s in ring.stages if s.name == "attn"} == {"ring"}
    fewest = heddle.plan("hunyuanvideo", ranks=16, objective="slow-bytes", **given)
    assert fewest.objective == "slow-bytes" and fewest.value == int(fewest.value)
    with pytest.raises(heddle.InfeasibleError, match="attn|memory|bytes"):
        heddle.plan("hunyuanvideo", ranks=16, memory_bytes=1 << 20, **given)
    with pytest.raises(heddle.ArgumentError, match="objective"):
        heddle.plan("hunyuanvideo", ranks=16, **{**given, "objective": "speed"})
    with pytest.raises(heddle.ArgumentError, match="32 ranks"):
        heddle.plan("hunyuanvideo", ranks=32, **given)
    without = heddle.plan("stdit3-xl2", "[sp=4]")
    assert (without.machine, without.objective, without.predicted_s) == (None, "bytes", 0)
    assert without.value == without.bytes_per_rank_max and without.stages[0].predicted_s == 0
    half, whole = (heddle.plan("stdit3-xl2", "[sp=4]", dtype=dtype).bytes_total for dtype in ("bf16", "f32"))
    assert whole == 2 * half
    module = heddle.plan("consisid", "[sp=4]", methods="", epilogue="any")
    assert {"module"} < {stage.kind for stage in module.stages}
    assert any(stage.refusal for stage in module.stages if stage.kind == "module")
    for words, call in (("wanted one of them", lambda: heddle.plan("stdit3-xl2")),
                        ("wanted one of them", lambda: heddle.plan("stdit3-xl2", "[sp=4]", ranks=4)),
                        ("ranks is 0", lambda: heddle.plan("stdit3-xl2", ranks=0)),
                        ("the model is a int", lambda: heddle.plan(3, "[sp=4]")),
                        ("dtype is 'half'", lambda: heddle.plan("stdit3-xl2", "[sp=4]", dtype="half")),
                        ("the machine is a int", lambda: heddle.plan("stdit3-xl2", "[sp=4]", machine=8)),
                        ("wanted a text", lambda: heddle.plan("stdit3-xl2", "[sp=4]", force=3))):
        with pytest.raises(heddle.ArgumentError, match=words):
            call()


def test_a_forecast_is_what_the_planner_predicted():
    machine = heddle.Machine("2x8xh100-nvlink+ib400")
    schedule = heddle.plan("hunyuanvideo", ranks=16, machine=machine, methods="", epilogue="any")
    seen = heddle.forecast("hunyuanvideo", schedule, machine)
    assert abs(seen.time_s - schedule.predicted_s) <= 1e-9 * seen.time_s
    assert abs(seen.compute_s + seen.transfer_s - seen.hidden_s - seen.time_s) <= 1e-9 * seen.time_s
    for steps, parts in ((seen.stages, schedule.stages), (seen.edges, schedule.edges)):
        assert [step.time_s for step in steps] == pytest.approx([part.predicted_s for part in parts], rel=1e-9)
    assert sum(link.total for link in seen.links) == schedule.bytes_total
    for link in seen.links:
        steps = (*seen.stages, *seen.edges)
        assert link.sent_max == sum(step.sent_max[link.name] for step in steps)
        assert link.total == sum(step.total[link.name] for step in steps)
    assert [link.name for link in seen.links] == ["nvlink", "ib400"] and seen.sample_s > seen.time_s
    assert seen.memory.total >= seen.memory.weights + seen.memory.activations > 0
    slow = heddle.forecast("hunyuanvideo", schedule, "2x8xl40-pcie+eth100")
    assert slow.time_s > seen.time_s and slow.memory == seen.memory
    kept, again = (heddle.forecast("hunyuanvideo", schedule, machine, training=True, recompute=recompute)
                   for recompute in (False, True))
    assert kept.memory.activations > again.memory.activations and kept.time_s < again.time_s
    with pytest.raises(AttributeError):
        seen.time_s = 0.0
    with pytest.raises(heddle.LayoutError):
        heddle.forecast("stdit3-xl2", schedule, machine)
    with pytest.raises(heddle.ArgumentError, match="16 ranks"):
        heddle.forecast("hunyuanvideo", schedule, "8xh100-nvlink")
    with pytest.raises(heddle.ArgumentError, match="the schedule is a str"):
        heddle.forecast("hunyuanvideo", "schedule.json", machine)


def test_a_config_of_diffusers_is_a_model(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"_class_name": "WanTransformer3DModel", "attention_head_dim": 128, "ffn_dim": 8960, '
                    '"in_channels": 16, "num_attention_heads": 12, "num_layers": 30, "patch_size": [1, 2, 2]}')
    text = heddle.import_config(path, height=480, width=832)
    preset, read = (heddle.plan(model, "[sp=4]", methods="", epilogue="any") for model in ("wan2.1-1.3b", text))
    assert (read.shape, read.bytes_total) == (preset.shape, preset.bytes_total)
    with pytest.raises(heddle.ArgumentError, match="481 pixels"):
        heddle.import_config(path, height=481)
    with pytest.raises(heddle.FileError, match="none.json"):
        heddle.import_config(tmp_path / "none.json")


def test_the_documents_plan_and_forecast(monkeypatch):
    """What docs/python.md shows of the planner runs as it stands, without ranks."""
    monkeypatch.chdir(SOURCE)
    section = (SOURCE / "docs/python.md").read_text().split("## Which layout when")[1].split("\n## ")[0]
    shown = [code for code in re.findall(r"```python\n(.*?)```", section, re.S) if "comm." not in code]
    there = {"heddle": heddle}
    for code in shown:
        exec(code, there)
    assert len(shown) == 2 and there["seen"].time_s == pytest.approx(there["schedule"].predicted_s)


def test_one_rank_is_a_communicator_too():
    with heddle.Comm.open("self", mesh="[dp=1 sp=1]") as comm:
        assert (comm.rank, comm.size, comm.mesh) == (0, 1, "[dp=1 sp=1]")
        assert comm.allgather(b"abc") == [b"abc"] and "self" in repr(comm)
    assert comm.closed
    with pytest.raises(heddle.ArgumentError, match="closed"):
        comm.barrier()
    with pytest.raises(heddle.ArgumentError, match="has 4 ranks, the communicator 1"):
        heddle.Comm.open("self", mesh="[sp=4]")


def test_libraries_of_devices_lie_beside_the_package(monkeypatch):
    monkeypatch.delenv("HEDDLE_MODULE_PATH", raising=False)
    has_cuda = (Path(os.environ["HEDDLE_BUILD"]) / "libheddle_cuda.so").exists()
    assert (PACKAGE / "libheddle_cuda.so").exists() == has_cuda
    with heddle.Comm.open("self") as comm:
        try:
            comm.attach_device("cuda")
        except heddle.UnsupportedError as error:  # no driver, or no library
            said = [words in str(error) for words in ("there is no libheddle_cuda.so", "where there is a CUDA toolkit")]
            assert said == [not has_cuda] * 2, error


def test_what_is_no_text_no_array_no_number_is_refused():
    import numpy as np

    with heddle.Comm.open("self") as comm:
        plan = comm.reshard("f32[t=4 s=6] on [sp=1]: t@sp -> s@sp")
        x = np.zeros((4, 6), np.float32)
        attention = comm.attention("f32[b=1 s=4 h=2 d=4] on [sp=1]: s@sp", "ring", key_lengths=np.array([3]))
        assert attention is comm.attention("f32[b=1 s=4 h=2 d=4] on [sp=1]: s@sp", "ring", key_lengths=[3])
        assert comm.allgather(bytearray(b"abc")) == [b"abc"]
        with pytest.raises(TypeError, match="bytes-like"):
            comm.allgather("abc")  # whose memory is not its letters
        for words, call in (
                ("wanted a text", lambda: comm.reshard("f32[t=4] on [sp=1]: t@sp -> *\0, and more")),
                ("wanted a text", lambda: heddle.Line(None)), ("wanted a text", lambda: comm.axis(3)),
                ("wanted a text", lambda: heddle.Comm.open(None)), ("wanted a text", lambda: comm.abort(None)),
                ("a list, wanted a NumPy array", lambda: plan([[1.0]])),
                ("out is a list", lambda: plan(x, [[1.0]])), ("NoneType", lambda: attention(None, x, x)),
                ("list", lambda: comm.allreduce_sum([1.0])),
                ("2 dims, the array 3", lambda: heddle.strides_of(plan.line, np.zeros((4, 6, 2)))),
                ("64 bits", lambda: heddle.Reshard(comm, plan.line, src_strides=(2 ** 70, 1)))):
            with pytest.raises(heddle.ArgumentError, match=words):
                call()
        assert plan(x).shape == (4, 6)
