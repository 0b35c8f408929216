"""Finding the first true cause among consequences, ranks, caught exceptions and noise."""

import io
import json
import tracemalloc
from pathlib import Path

import pytest

from abi_checks.errors import SourceError
from stack.cli import main
from stack.serve.diagnose import UNKNOWN, Diagnosis, diagnose, diagnose_stream

CAPTURE_FAILED = """\
[2026-11-29 16:38:49] Capture target verify CUDA graph begin. bs=[1, 2, 256]
  0%|          | 0/51 [00:00<?, ?it/s]\rCapturing batches (bs=256): 0%|          | 0/51
[2026-11-29 16:38:50] Scheduler hit an exception: Traceback (most recent call last):
  File "decode_cuda_graph_runner.py", line 353, in __init__
    self.capture()
  File "prefill.py", line 2100, in plan
    self._plan_info = self._cached_module.plan(
                      ^^^^^^^^^^^^^^^^^^^^^^^^^
tvm.error.InternalError: Buffer overflow when allocating memory for batch_prefill_tmp_v with size 551550976 and \
alignment 16, but only 402653184 bytes available in AlignedAllocator. Increase the workspace buffer size.

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "scheduler.py", line 4211, in run_scheduler_process
    scheduler = Scheduler(
Exception: Capture cuda graph failed: out of luck
Possible solutions:
1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)

[2026-11-29 16:38:50] Received sigquit from a child process. It usually means the child failed.
"""


def of(text: str) -> Diagnosis:
    return diagnose_stream(io.BytesIO(text.encode()))


def traceback(exception: str, *frames: str) -> str:
    lines = "".join(f'  File "{frame}", line 1, in f\n' for frame in frames or ("a.py",))
    return f"Traceback (most recent call last):\n{lines}{exception}\n"


def test_the_first_exception_of_a_chain_is_the_cause() -> None:
    diagnosis = of(CAPTURE_FAILED)
    assert diagnosis.cause == "flashinfer-workspace"
    assert [line.number for line in diagnosis.excerpt] == [9]
    assert dict(diagnosis.facts) == {"buffer": "batch_prefill_tmp_v", "needed": "551550976", "available": "402653184"}
    assert "551550976 bytes" in diagnosis.meaning
    assert diagnosis.failed


def test_a_mangled_symbol_is_shown_readable() -> None:
    diagnosis = of(
        "ImportError: common_ops.abi3.so: undefined symbol: _ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib"
    )
    assert diagnosis.cause == "torch-release"
    assert "c10::cuda::c10_cuda_check_implementation(int, char const*, char const*, int, bool)" in diagnosis.meaning


def test_the_loader_s_reason_outranks_the_sum_of_attempts() -> None:
    diagnosis = of(
        "ImportError:\n[sgl_kernel] CRITICAL: Could not load any common_ops library!\n"
        "Error details from previous import attempts:\n"
        "- ImportError: sm100/common_ops.abi3.so: undefined symbol: _ZNK3c106SymInt6sym_neERKS0_\n"
        "- ModuleNotFoundError: No module named 'common_ops'\n"
    )
    assert diagnosis.cause == "torch-release"
    assert "also seen, line 2: kernel-library-not-loaded" in diagnosis.notes


def test_a_compiler_s_message_outranks_the_failed_build() -> None:
    diagnosis = of(
        traceback("RuntimeError: Ninja build failed. Ninja output:")
        + "FAILED: norm.cuda.o\nnorm.cu:3:10: fatal error: cuda_fp8.h: No such file or directory\n"
    )
    assert (diagnosis.cause, dict(diagnosis.facts)) == ("jit-header-missing", {"header": "cuda_fp8.h"})


def test_ranks_are_told_apart_by_their_prefix() -> None:
    diagnosis = of(
        "[rank1]: Traceback (most recent call last):\n"
        "[rank0]: Traceback (most recent call last):\n"
        '[rank1]:   File "torch_symm_mem.py", line 3, in __init__\n'
        '[rank0]:   File "b.py", line 3, in g\n'
        "[rank0]: RuntimeError: Connection closed by peer [127.0.0.1]:1\n"
        "[rank1]: KeyError: 12\n"
    )
    assert (diagnosis.cause, [line.number for line in diagnosis.excerpt]) == ("capability-table", [6])


@pytest.mark.parametrize(
    "prefix",
    [
        "[rank3]: ",
        "sglang-1  | ",
        "2026-11-29T16:38:47.123456Z stderr F ",
        "[2025-11-06T02:08:28.503Z] ",
        "04-20 13:32:25.784 ",
        "(EngineCore_DP0 pid=245) ERROR 10-01 12:00:00 [core.py:708] ",
        "ERROR [core.py:1330] ",
        "",
    ],
)
def test_an_unknown_failure_shows_its_first_traceback(prefix: str) -> None:
    log = traceback("RuntimeError: nobody knows this", "a.py", "b.py") + traceback("ValueError: later")
    diagnosis = of("".join(prefix + line + "\n" for line in log.splitlines()))
    assert diagnosis.cause == UNKNOWN
    assert [(line.number, line.text) for line in diagnosis.excerpt] == [
        (1, "Traceback (most recent call last):"),
        (2, '  File "a.py", line 1, in f'),
        (3, '  File "b.py", line 1, in f'),
        (4, "RuntimeError: nobody knows this"),
    ]
    assert diagnosis.failed


def test_an_unknown_root_is_not_explained_by_its_consequence() -> None:
    diagnosis = of(CAPTURE_FAILED.replace("Buffer overflow when allocating", "Nobody knows"))
    assert diagnosis.cause == UNKNOWN
    assert diagnosis.excerpt[0].number == 3
    assert diagnosis.title == "no known cause; the first traceback is shown"


def test_a_killed_child_after_an_unknown_failure_does_not_explain_it() -> None:
    diagnosis = of(
        traceback("RuntimeError: nobody knows this") + "RuntimeError: Rank 1 scheduler died (exit code: -9).\n"
    )
    assert diagnosis.cause == UNKNOWN
    assert "also seen, line 4: child-killed" in diagnosis.notes


def test_consequences_alone_are_not_a_cause() -> None:
    diagnosis = of("Received sigquit from a child process. It usually means the child failed.\n")
    assert (diagnosis.cause, diagnosis.failed) == (UNKNOWN, True)
    assert diagnosis.title == "only the consequences of an earlier failure are in this log"


def test_what_was_caught_does_not_explain_a_later_failure() -> None:
    diagnosis = of(
        "Ignore import error when loading sglang.srt.models.glm: No module named 'transformers.models.glm'\n"
        "WARNING: Failed to load the optional part.\n" + traceback("OSError: x.so: undefined symbol: cuFoo")
        + "[2026-11-29 16:38:50] next record\n" + traceback("RuntimeError: nobody knows this")
    )  # fmt: skip
    assert (diagnosis.cause, diagnosis.excerpt[0].number) == (UNKNOWN, 7)
    assert diagnosis.notes == ("also seen, line 5: cuda-driver-symbol",)


IGNORED = """\
[2026-11-29 20:47:54] Ignore import error when loading sglang.srt.multimodal.processors.clip: Can not import FA3 in sgl_kernel. Please check your installation.
[2026-11-29 20:47:55] Ignore import error when loading sglang.srt.multimodal.processors.glmasr: cannot import name 'GlmAsrConfig' from 'transformers' (ENV/transformers/__init__.py)
[2026-11-29 20:47:55] Ignore import error when loading sglang.srt.multimodal.processors.internvl: libavformat.so.62: cannot open shared object file: No such file or directory
[2026-11-29 20:47:55] Ignore import error when loading sglang.srt.multimodal.processors.kimi_k25: Can not import FA3 in sgl_kernel. Please check your installation.
[2026-11-29 20:47:55] Ignore import error when loading sglang.srt.multimodal.processors.new_vl: nobody knows this
"""  # noqa: E501
NO_PROCESSOR = """\
Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
  File "<frozen runpy>", line 88, in _run_code
  File "ENV/lib/python3.12/site-packages/sglang/launch_server.py", line 35, in <module>
    run_server(server_args)
  File "ENV/lib/python3.12/site-packages/sglang/srt/managers/multimodal_processor.py", line 52, in get_mm_processor
    raise ValueError(
ValueError: No processor registered for architecture: ['KimiK25ForConditionalGeneration'].
Registered architectures: ['DeepseekOCRForCausalLM', 'KimiVLForConditionalGeneration']
"""


def test_an_ignored_import_is_the_cause_of_the_failure_that_misses_it() -> None:
    diagnosis = of(IGNORED + NO_PROCESSOR)
    assert (diagnosis.cause, diagnosis.failed, diagnosis.notes) == ("fa3-not-loaded", True, ())
    assert [line.number for line in diagnosis.excerpt] == [4, 13]
    assert "processors.kimi_k25" in diagnosis.excerpt[0].text and "No processor registered" in diagnosis.excerpt[1].text


@pytest.mark.parametrize(
    ("architecture", "cause", "line"),
    [
        ("GlmASRForConditionalGeneration", "python-api-drift", 2),
        ("InternVLChatModel", "library-missing", 3),
        ("New_VLModel", "import-ignored", 5),
        ("NewVLxForCausalLM", "model-unknown", 6),  # not of new_vl
        ("OtherForCausalLM", "model-unknown", 6),
    ],
)
def test_an_ignored_import_is_found_by_the_architecture_it_would_have_registered(
    architecture: str, cause: str, line: int
) -> None:
    diagnosis = of(
        IGNORED + f"ValueError: Model architectures ['{architecture}'] are not supported for now. Supported…\n"
    )
    assert (diagnosis.cause, diagnosis.excerpt[0].number) == (cause, line)


def test_an_ignored_import_that_nothing_misses_is_not_named() -> None:
    """The line before a traceback of the whole program does not make it one that somebody caught."""
    diagnosis = of(IGNORED + NO_PROCESSOR.replace("KimiK25", "Llava"))
    assert (diagnosis.cause, diagnosis.failed, diagnosis.notes) == (UNKNOWN, True, ())
    assert diagnosis.excerpt[0].number == 6
    alone = of(IGNORED)
    assert (alone.title, alone.failed) == ("the log shows no failure", False)


@pytest.mark.parametrize(
    "frame",
    ['"<frozen runpy>", line 198, in _run_module_as_main', '"/s/runpy.py", line 1, in _run_module_as_main',
     '"ENV/bin/sglang", line 8, in <module>'],
)  # fmt: skip
def test_a_traceback_from_the_start_of_the_program_was_caught_by_nobody(frame: str) -> None:
    warning = "WARNING: Failed to load the optional part: boom\n"
    raised = f"Traceback (most recent call last):\n  File {frame}\nOSError: x.so: undefined symbol: cuFoo\n"
    assert of(warning + raised).failed
    diagnosis = of(warning + raised + "torch.OutOfMemoryError: CUDA out of memory.\n")
    assert diagnosis.cause == "cuda-driver-symbol"
    caught = raised.replace(frame, '"/s/part.py", line 1, in <module>')
    assert of(warning + caught + "torch.OutOfMemoryError: CUDA out of memory.\n").cause == "gpu-memory"


def test_what_the_server_survived_is_not_its_failure() -> None:
    survived = "OSError: x.so: undefined symbol: cuFoo\nThe server is fired up and ready to roll!\n"
    healthy = of(survived)
    assert (healthy.cause, healthy.failed) == ("cuda-driver-symbol", False)
    assert healthy.notes == ("the server became ready afterwards, so this did not stop it",)
    later = of(survived + "torch.OutOfMemoryError: CUDA out of memory.\n")
    assert (later.cause, later.failed) == ("gpu-memory", True)
    assert later.notes == ("also seen, line 1: cuda-driver-symbol (survived)",)


SERVED = """\
[2026-11-29 18:03:30] Load weight begin. avail mem=138.76 GB
[2026-11-29 18:03:38] Capture cuda graph begin. This can take up to several minutes. avail mem=30.11 GB
[2026-11-29 18:03:41] The server is fired up and ready to roll!
[2026-11-29 18:03:43] INFO:     127.0.0.1:33526 - "POST /generate HTTP/1.1" 200 OK
"""
REQUEST = (
    "[2026-11-30 06:27:15] ERROR:    Exception in ASGI application\n"
    "Traceback (most recent call last):\n"
    '  File "/s/uvicorn/protocols/http/h11_impl.py", line 415, in run_asgi\n'
    "    result = await app(\n"
)
STOPPED = """\
[2026-11-29 18:03:43] SIGTERM received. signum=None frame=None. Draining requests and shutting down...
[2026-11-29 18:03:43] Subprocess scheduler_0 (pid=1201) crashed with exit code -15. Triggering SIGQUIT for cleanup...
[2026-11-29 18:03:43] SIGQUIT received. signum=None, frame=None. It usually means one child failed.
[2026-11-29 18:03:44] Subprocess detokenizer (pid=1202) crashed with exit code -9. Triggering SIGQUIT for cleanup...
[2026-11-29 18:03:44] kill_process_tree called: parent_pid=4263, include_parent=True, pid=4263
"""


def test_a_server_that_served_and_was_stopped_did_not_fail() -> None:
    for log in (SERVED, SERVED + STOPPED, SERVED + STOPPED + traceback("BrokenPipeError: [Errno 32] Broken pipe")):
        diagnosis = of(log)
        assert (diagnosis.cause, diagnosis.title) == (UNKNOWN, "the log shows no failure")
        assert (diagnosis.failed, diagnosis.excerpt, diagnosis.notes) == (False, (), ())


def test_a_request_that_failed_hides_no_failure_of_the_server() -> None:
    request = REQUEST + "KeyError: 'x'\n" + SERVED.splitlines(keepends=True)[-1]
    alone = of(SERVED + request)
    assert (alone.cause, alone.failed, alone.excerpt[-1].text) == (UNKNOWN, True, "KeyError: 'x'")
    failed = of(SERVED + 3 * request + traceback("NewError: of the server"))
    assert (failed.cause, failed.failed, failed.excerpt[-1].text) == (UNKNOWN, True, "NewError: of the server")


def test_an_endpoint_without_a_path_is_no_failure_of_the_server() -> None:
    error = "AttributeError: '_IncludedRouter' object has no attribute 'path'\n"
    counted = of(SERVED + REQUEST + error + STOPPED)
    assert (counted.cause, counted.failed) == ("fastapi-routes", False)
    assert of(SERVED + REQUEST + error + traceback("NewError: of the server")).cause == UNKNOWN


def test_a_stop_hides_no_failure() -> None:
    failed = of(SERVED + "torch.OutOfMemoryError: CUDA out of memory.\n" + STOPPED)
    assert (failed.cause, failed.failed, failed.notes) == ("gpu-memory", True, ())
    before_ready = of(STOPPED)
    assert (before_ready.cause, before_ready.failed) == ("child-killed", True)
    crashed = of(SERVED + "".join(STOPPED.splitlines(keepends=True)[1:3]))
    assert (crashed.cause, crashed.failed) == (UNKNOWN, True)
    again = of(SERVED + STOPPED + SERVED + "Received sigquit from a child process.\n")
    assert (again.cause, again.failed) == (UNKNOWN, True)


def test_an_old_driver_is_not_blamed_on_compiled_modules_without_reason() -> None:
    message = "RuntimeError: CUDA error code=35(b'cudaErrorInsufficientDriver')"
    assert of(traceback(message, "s/flashinfer/comm/mnnvl.py", "s/flashinfer/cuda_utils.py")).cause == "driver-too-old"
    assert of(traceback(message, "s/flashinfer/sampling.py")).cause == "jit-other-cuda"


def test_the_reason_of_a_resolver_outranks_its_headline() -> None:
    headline = "  × No solution found when resolving dependencies:\n  ╰─▶ "
    for reason, cause in (
        ("Because there is no version of a==2 and you require a==2", "version-not-on-index"),
        ("Because only a<2 is available and b==1 depends on a>=2", "version-not-on-index"),
        ("Because all versions of a have no wheels with a matching Python ABI tag (e.g., `cp314`)", "wheel-platform"),
        ("Because b==1 depends on a==1 and c==1 depends on a==2", "resolver-conflict"),
        ("Because nobody knows", "resolver-conflict"),
    ):
        assert of(headline + reason + "\n").cause == cause


def test_a_source_line_in_a_frame_is_not_an_error() -> None:
    log = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    raise E("CUDA out of memory")\nE: 1\n'
    assert of(log).cause == UNKNOWN


@pytest.mark.parametrize(
    ("log", "title"),
    [
        (b"", "the log is empty"),
        (b"all is well\n" * 3, "the log shows no failure"),
        (bytes(5000), "the log shows no failure"),
    ],
)
def test_a_log_without_failure(log: bytes, title: str) -> None:
    diagnosis = diagnose_stream(io.BytesIO(log))
    assert (diagnosis.cause, diagnosis.title, diagnosis.failed) == (UNKNOWN, title, False)
    assert bool(diagnosis.notes) is (b"\0" in log)


class Endless(io.RawIOBase):
    """``size`` bytes of one line, with a message at its end."""

    def __init__(self, size: int, fill: bytes, message: bytes) -> None:
        self.left, self.fill, self.message = size, fill, message

    def read(self, size: int = -1) -> bytes:
        if self.left > 0:
            self.left -= size
            return self.fill * (size // len(self.fill))
        message, self.message = self.message, b""
        return message


@pytest.mark.parametrize("fill", [b"x", b"\xff\0"])
def test_a_line_of_64_mib_takes_little_memory(fill: bytes) -> None:
    tracemalloc.start()
    try:
        diagnosis = diagnose_stream(Endless(64 << 20, fill, b" OSError: x.so: undefined symbol: ncclFoo"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20
    assert (diagnosis.cause, diagnosis.excerpt[0].number) == ("nccl-release", 1)


def test_a_line_full_of_interesting_words_takes_little_memory() -> None:
    tracemalloc.start()
    try:
        diagnosis = diagnose_stream(
            Endless(2 << 20, b"Traceback (most recent call last): undefined symbol: cuFoo ", b"")
        )
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20
    assert (diagnosis.cause, diagnosis.excerpt[0].number) == ("cuda-driver-symbol", 1)


@pytest.mark.parametrize("lines", [1, 2621, 2622, 200_000])
def test_line_numbers_hold_across_blocks(lines: int) -> None:
    log = (
        b"a line of a log, a hundred bytes long or nearly so, such as servers write in numbers all day long....\n"
        * lines
    )
    diagnosis = diagnose_stream(io.BytesIO(log + b"OSError: [Errno 98] Address already in use\n"))
    assert (diagnosis.cause, diagnosis.excerpt[0].number) == ("port-taken", lines + 1)


def test_a_message_across_the_pieces_of_a_long_line_is_found() -> None:
    for before in range((1 << 16) - 30, (1 << 16) + 2, 7):
        log = b"x" * before + b" libnuma.so.1: cannot open shared object file" + b"x" * (1 << 17)
        assert diagnose_stream(io.BytesIO(log)).cause == "library-missing", before


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cannot read the log: No such file"):
        diagnose(tmp_path / "none.log")
    with pytest.raises(SourceError, match="cannot read the log: Is a directory"):
        diagnose(tmp_path)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "server.log"
    log.write_text(CAPTURE_FAILED)
    assert main(["diagnose", str(log)]) == 1
    printed = capsys.readouterr().out
    assert printed.startswith("flashinfer-workspace: flashinfer's workspace is too small")
    assert "\n      9  tvm.error.InternalError: Buffer overflow" in printed
    assert main(["diagnose", str(log), "--format", "json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["cause"], document["excerpt"][0]["number"]) == ("flashinfer-workspace", 9)
    log.write_text("all is well\n")
    assert main(["diagnose", str(log)]) == 0
    assert main(["diagnose", str(tmp_path / "none.log")]) == 3
    assert "none.log: cannot read the log" in capsys.readouterr().err
