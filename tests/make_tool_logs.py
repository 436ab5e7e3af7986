"""Make the logs in tests/compare/tool_logs with the tools themselves: `python
tests/make_tool_logs.py TOOL PROGRAM`, in which PROGRAM is the tool's own command (for MLflow, and
for Every Eval Ever, whose converter needs Inspect AI, the Python of their environment).

Each tool is installed into an environment of its own; none needs the network or a model. Versions
when these logs were made: promptfoo 0.123.1, nemo-evaluator 0.3.0, crfm-helm 0.5.16, mlflow-skinny
3.17.2, every-eval-ever 0.3.0 with inspect-ai 0.3.285. What grows with the machine is taken out
(paths in tracebacks, trajectories); everything else stays as the tool wrote it.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HERE = Path(__file__).resolve().parent / "compare" / "tool_logs"
LIMITS = {"PROMPTFOO_DISABLE_TELEMETRY": "1", "PROMPTFOO_DISABLE_UPDATE": "1"}
PROMPTFOO = """
prompts: ["Say {{number}} plus one"]
providers:
  - {id: "file://provider.js", label: first, config: {version: old}}
  - {id: "file://provider.js", label: second, config: {version: new}}
tests:
  - {vars: {number: "1"}, assert: [{type: equals, value: "2", metric: exact}]}
  - {vars: {number: "2"}, assert: [{type: equals, value: "3", metric: exact}]}
  - {vars: {number: "3"}, assert: [{type: equals, value: "4", metric: exact}]}
"""
PROVIDER = """
module.exports = class {
  constructor(options) { this.isNew = options.config.version === 'new'; }
  id() { return 'file://provider.js'; }
  async callApi(prompt, context) {
    const number = parseInt(context.vars.number);
    if (this.isNew && number === 3) return { error: 'the server is away' };
    return { output: this.isNew && number === 2 ? '7' : String(number + 1) };
  }
};
"""
SUMS = """
from nemo_evaluator.environments.custom import benchmark, scorer

def data():
    return [{"question": f"{n}+1?", "answer": str(n + 1)} for n in range(6)]

@benchmark(name="sums", dataset=data, prompt="{question}", target_field="answer")
@scorer
def judge(sample):
    said = sample.response.strip()
    return {"correct": said == str(sample.target), "extracted": said if said.isdigit() else ""}
"""
MLFLOW = """
import mlflow, pandas as pd
from mlflow.metrics import MetricValue, make_metric

def close(predictions, targets, metrics=None):
    return MetricValue(scores=[float(p == t) for p, t in zip(predictions, targets)])

mlflow.set_tracking_uri("file:runs")
asked = {"inputs": ["1+1", "2+1", "3+1"], "ground_truth": ["2", "3", "4"]}
with mlflow.start_run():
    mlflow.models.evaluate(
        data=pd.DataFrame(asked | {"outputs": ["2", "7", ""]}), predictions="outputs",
        targets="ground_truth", extra_metrics=[make_metric(eval_fn=close, greater_is_better=True)],
    )
"""


def run(folder, *command, **environment):
    """A command of a tool in a scratch folder."""
    subprocess.run(
        [*map(str, command)], cwd=folder, env=os.environ | LIMITS | environment, check=True
    )


def promptfoo(program, folder):
    """Two providers in one file, asked twice: a failed assertion and a broken call."""
    (folder / "config.yaml").write_text(PROMPTFOO)
    (folder / "provider.js").write_text(PROVIDER)
    words = ["eval", "-c", "config.yaml", "-o", "out.json", "--no-cache", "--repeat", "2"]
    try:
        run(folder, program, *words, PROMPTFOO_CONFIG_DIR=str(folder / "home"))
    except subprocess.CalledProcessError as error:  # 100: some tests failed
        if error.returncode != 100:
            raise
    content = json.loads((folder / "out.json").read_text())
    del content["metadata"], content["runtimeOptions"]
    (HERE / "promptfoo.json").write_text(json.dumps(content))


class Model(BaseHTTPRequestHandler):
    """A model that adds one but for 3 (no number), 4 (a wrong one) and 2 (it breaks off)."""

    def do_POST(self):
        asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
        number = int(re.search(r"(\d+)\+1", asked)[1])
        if number == 2:
            self.send_response(500)
            self.end_headers()
            return
        said = {3: "none", 4: "77"}.get(number, str(number + 1))
        message = {"role": "assistant", "content": said}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        answer = {"id": "x", "object": "chat.completion", "created": 0, "model": "mock"}
        body = json.dumps(answer | {"choices": [choice], "usage": {}}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def nemo(program, folder):
    """A benchmark's folder: right, wrong, unreadable and broken answers, twice each."""
    (folder / "sums.py").write_text(SUMS)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/v1/chat/completions"
    words = ["eval", "run", "--bench", "sums.py", "--model-url", address, "--model-id", "mock"]
    run(folder, program, *words, "--api-key", "x", "--repeats", "2", "-o", "out")
    server.shutdown()
    lines = (folder / "out" / "sums" / "results.jsonl").read_text().splitlines()
    kept = [json.dumps(json.loads(line) | {"trajectory": []}) for line in lines]
    (HERE / "nemo" / "sums").mkdir(parents=True, exist_ok=True)
    (HERE / "nemo" / "sums" / "results.jsonl").write_text("\n".join(kept) + "\n")


def helm(program, folder):
    """A run of multiple choice whose model repeats the last word."""
    entry = "simple_mcqa:model=simple/model1"
    words = ["--run-entries", entry, "--suite", "s", "--max-eval-instances", "4"]
    run(folder, program, *words, "--disable-cache")
    source = folder / "benchmark_output" / "runs" / "s" / "simple_mcqa:model=simple_model1"
    (HERE / "helm").mkdir(exist_ok=True)
    for name in ("per_instance_stats.json", "scenario_state.json", "run_spec.json"):
        shutil.copyfile(source / name, HERE / "helm" / name)


def mlflow(program, folder):
    """The table of `mlflow.models.evaluate`."""
    (folder / "run.py").write_text(MLFLOW)
    run(folder, program, "run.py", MLFLOW_ALLOW_FILE_STORE="true")
    table = next(folder.rglob("eval_results_table.json"))
    shutil.copyfile(table, HERE / "mlflow.json")


def every_eval(program, folder):
    """What the converter makes of logs of Inspect AI with two scorers, epochs and an error."""
    import make_inspect_logs

    for name in ("two-scorers", "two-epochs", "new"):
        (folder / name).mkdir()
        make_inspect_logs.run(folder / name, *make_inspect_logs.RUNS[name])
        from inspect_ai.log import read_eval_log, write_eval_log

        log = read_eval_log(str(next((folder / name).glob("*.eval"))))
        log.eval.model = "openai/mock"  # the converter wants a developer that it knows
        write_eval_log(log, str(folder / f"{name}.json"), format="json")
        words = ["convert", "inspect", "--log_path", f"{name}.json", "--output_dir", f"out-{name}"]
        run(folder, program, "-m", "every_eval_ever", *words)
        text = next((folder / f"out-{name}").rglob("*_samples.jsonl")).read_text()
        lines = [json.loads(line) for line in text.splitlines()]
        for line in lines:
            line["error"] = line["error"] and line["error"].partition("\n")[0]
        (HERE / f"every_eval-{name}.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    tools = {tool.__name__: tool for tool in (promptfoo, nemo, helm, mlflow, every_eval)}
    with tempfile.TemporaryDirectory() as scratch:
        tools[sys.argv[1]](Path(sys.argv[2]).absolute(), Path(scratch))
