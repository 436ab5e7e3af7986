"""Make the logs in tests/compare/inspect_logs with Inspect AI itself: `python
tests/make_inspect_logs.py`.

It needs `pip install inspect-ai` in an environment of its own (it was version 0.3.285), no
network and no model:
Inspect's own `mockllm/model` gives the answers. The entries with all messages are taken out of
the archives,
since they hold paths of the machine; the others stay as they were written, byte by byte.
"""

import struct
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent / "compare" / "inspect_logs"
RIGHT = [str(number + 1) for number in range(6)]
RUNS = {  # name → answers, epochs, ids of samples whose run breaks off, scorers
    "old": (RIGHT, 1, (), ("match",)),
    "new": (["1", "2", "none", "4", "9", "6"], 1, ("q5",), ("match",)),
    "two-scorers": (RIGHT, 1, (), ("match", "includes")),
    "two-epochs": ([*RIGHT, "1", "2", "7", "4", "5", "6"], 2, (), ("match",)),
}


def run(folder, answers, epochs, broken, scorers):
    """One log of six sums, made by Inspect."""
    import inspect_ai.model._model as tokens
    from inspect_ai import Task
    from inspect_ai import eval as evaluate
    from inspect_ai.dataset import Sample
    from inspect_ai.model import ModelOutput, get_model
    from inspect_ai.scorer import includes, match
    from inspect_ai.solver import generate, solver

    tokens.count_text_tokens = lambda text: len(text) // 4 + 1  # its own asks the network

    @solver
    def breaks_off():
        async def solve(state, generate):
            if state.sample_id in broken:
                raise RuntimeError("no answer from the server")
            return state

        return solve

    samples = [
        Sample(id=f"q{n}", input=f"{n}+1?", target=str(n + 1), metadata={"odd": n % 2})
        for n in range(6)
    ]
    judges = {"match": match(numeric=True), "includes": includes()}
    outputs = [ModelOutput.from_content("mockllm/model", answer) for answer in answers]
    task = Task(
        dataset=samples,
        solver=[generate(), breaks_off()],
        scorer=[judges[name] for name in scorers],
        name="sums",
        version=3,
    )
    evaluate(
        task,
        model=get_model("mockllm/model", custom_outputs=outputs),
        log_dir=str(folder),
        log_format="eval",
        epochs=epochs,
        fail_on_error=False,
        display="none",
        max_samples=1,
        max_connections=1,
    )


def without_messages(source, target):
    """Copy an archive but for samples/*, the packed bytes as they are."""
    with zipfile.ZipFile(source) as archive:
        infos = [info for info in archive.infolist() if not info.filename.startswith("samples/")]
    data, out, directory = source.read_bytes(), bytearray(), bytearray()
    for info in infos:
        start = info.header_offset
        name, extra = struct.unpack("<HH", data[start + 26 : start + 30])
        place = start + 30 + name + extra
        sizes = struct.pack("<LLL", info.CRC, info.compress_size, info.file_size)
        fields = struct.pack("<HHHHH", 63, 0, info.compress_type, 0, 33) + sizes
        title = info.filename.encode()
        directory += b"PK\x01\x02" + struct.pack("<H", 63) + fields
        directory += struct.pack("<HHHHHLL", len(title), 0, 0, 0, 0, 0, len(out)) + title
        out += b"PK\x03\x04" + fields + struct.pack("<HH", len(title), 0) + title
        out += data[place : place + info.compress_size]
    end = struct.pack(
        "<4sHHHHLLH", b"PK\x05\x06", 0, 0, len(infos), len(infos), len(directory), len(out), 0
    )
    target.write_bytes(bytes(out + directory + end))


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    for name, settings in RUNS.items():
        with tempfile.TemporaryDirectory() as folder:
            run(Path(folder), *settings)
            without_messages(next(Path(folder).glob("*.eval")), HERE / f"{name}.eval")
