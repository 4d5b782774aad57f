"""Runs the tests and the measurements of a bundle, and writes what they say.

Sections run one after the other, each within what is left of the time. What a section cannot do is
one line that says why, in the output and in the results. The exit code is 0 if no test failed and
no section broke; a machine without a device breaks nothing.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
LIMIT_SECONDS = 480
# Sections in the order they run: seconds that one may take.
TESTS_SECONDS = 100
TRAIN_SECONDS = 90
FIGURES_SECONDS = 90
TORCH_SECONDS = 120

RESULT = re.compile(r"test result: \w+\. (\d+) passed; (\d+) failed")
FAILED = re.compile(r"^test (\S+) \.\.\. FAILED", re.MULTILINE)
MISSING = re.compile(r"no CUDA driver: .*[^)]")
SKIPPED = re.compile(r"^skipped: ([^:]+(?:::[^:]+)*): (.*)", re.MULTILINE)


def parse():
    parser = argparse.ArgumentParser(prog="run.sh", description=__doc__.split("\n\n")[0])
    parser.add_argument("--small", action="store_true", help="small sizes, for a pretend device")
    parser.add_argument("--epochs", type=int, default=10, help="of the main job")
    parser.add_argument("--out", type=pathlib.Path, default=HERE, help="folder of the results")
    return parser.parse_args()


def run(command, seconds, **more):
    """What a command printed, and how it ended: its exit code, or a sentence."""
    if seconds < 1:
        return "", "no time was left for it"
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=seconds, **more
        )
    except subprocess.TimeoutExpired as late:
        return (late.stdout or b"").decode(errors="replace"), f"it took over {seconds:.0f} s"
    except OSError as error:
        return "", f"it does not start: {error}"
    text = done.stdout.decode(errors="replace")
    errors = done.stderr.decode(errors="replace").strip()
    sys.stderr.write(errors + "\n" if errors and done.returncode else "")
    last = errors.splitlines()[-1] if errors else ""
    return text, 0 if done.returncode == 0 else f"exit code {done.returncode}: {last}"


def machine():
    query = "name,driver_version,memory.total"
    gpu, end = run(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], 20)
    commit = HERE / "commit.txt"
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit.read_text().strip() if commit.exists() else "unknown",
        "host": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": os.cpu_count(),
        "gpu": gpu.strip().splitlines()[0] if end == 0 and gpu.strip() else "none by nvidia-smi",
    }


def tests(binary, out, seconds):
    """One test binary on the machine's own driver."""
    # One at a time: a device is taken by one test after the other anyhow.
    command = [str(binary), "--test-threads=1", "--show-output"]
    environment = dict(os.environ, LOWTIDE_TEST_DRIVER="system")
    environment["LOWTIDE_TEST_WORKSPACE"] = str(HERE / "workspace")
    text, end = run(command, seconds, env=environment)
    skips = dict(SKIPPED.findall(text))
    counts = RESULT.search(text)
    outcome = {"skipped": len(skips), "skips": skips, "failures": FAILED.findall(text)}
    if counts is None:
        outcome["broken"] = str(end)
        return outcome, f"broke: {end}"
    passed, failed = int(counts[1]) - len(skips), int(counts[2])
    outcome.update(passed=passed, failed=failed)
    if failed:
        (out / f"{binary.name}.log").write_text(text)
    line = f"{passed} passed, {failed} failed, {len(skips)} skipped"
    # Said once: why there is no device.
    why = [reason for reason in skips.values() if reason.startswith("no CUDA")]
    return outcome, line + (f" ({why[0]})" if why else "")


def train(epochs, seconds):
    """The main job by the command, on the device."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "run"
        command = [str(HERE / "bin/lowtide"), "train", "--device", "cuda"]
        text, end = run(command + ["--epochs", str(epochs), "--out", str(out)], seconds)
        if end != 0:
            return {"refused": end}, f"refused: {end}"
        summary = json.loads((out / "summary.json").read_text())
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    # The first epoch loads kernels; whole batches alone are compared.
    steps = [line for line in lines if "seconds" in line and line["epoch"] > 1]
    steps = [line for line in steps if line["batch"] == summary["batch_size"]] or steps
    times = sorted(line["seconds"] for line in steps)
    if times:
        summary["step_seconds"] = times[len(times) // 2]
    predicted, measured = summary["predicted_peak_bytes"], summary["measured_peak_bytes"]
    same = "the" if predicted == measured else "NOT the"
    line = f"{len(lines)} lines of metrics, measured peak {measured} bytes, {same} predicted one"
    return summary, line


def figures(command, seconds):
    """What a program prints as lines of JSON."""
    text, end = run(command, seconds)
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    outcome = {"figures": lines}
    if end == 0 and not lines:
        end = "it printed no line of JSON"
    if end != 0:
        outcome["broken"] = end
        return outcome, f"broke: {end}"
    refusals = [f"{line['name']}: {line['refused']}" for line in lines if "refused" in line]
    count = sum("value" in line for line in lines)
    return outcome, f"{count} figures" + "".join(f"; {refusal}" for refusal in refusals)


def values(section):
    return {f["name"]: (f["value"], f["unit"]) for f in section["figures"] if "value" in f}


def readable(value, unit):
    if unit == "seconds":
        return f"{value * 1e3:.3f} ms" if value >= 1e-4 else f"{value * 1e6:.3f} µs"
    scale, prefix = (1e12, "T") if value >= 1e12 else (1e9, "G") if value >= 1e9 else (1e6, "M")
    return f"{value / scale:.2f} {prefix}{'B' if unit.startswith('bytes') else unit[:4]}" + (
        "/s" if unit.endswith("/s") else ""
    )


def table(results):
    """The results for people."""
    about = results["machine"]
    lines = ["# lowtide on a device, beside PyTorch", "", f"GPU: {about['gpu']}.", ""]
    lines += [f"{about['date']}, commit {about['commit']}, {about['host']}.", ""]
    lines += ["| section | outcome |", "| --- | --- |"]
    lines += [f"| {name} | {line} |" for name, line in results["lines"].items()]
    ours, torch = values(results["figures"]), values(results["torch"])
    trained = results["train"]
    if "measured_peak_bytes" in trained:
        ours["train_peak"] = (trained["measured_peak_bytes"], "bytes")
    if "step_seconds" in trained:
        ours["train_step"] = (trained["step_seconds"], "seconds")
    names = list(dict.fromkeys([*ours, *torch]))
    if names:
        lines += ["", "| figure | lowtide | PyTorch |", "| --- | ---: | ---: |"]
    for name in names:
        both = [readable(*side[name]) if name in side else "" for side in (ours, torch)]
        lines.append(f"| {name} | {both[0]} | {both[1]} |")
    texts = [f for s in ("figures", "torch") for f in results[s]["figures"] if "text" in f]
    lines += ["", *(f"- {f['name']}: {f['text']}" for f in texts)]
    return "\n".join(lines).rstrip() + "\n"


def main():
    options = parse()
    end = time.monotonic() + LIMIT_SECONDS
    left = lambda most: min(most, end - time.monotonic())
    options.out.mkdir(parents=True, exist_ok=True)
    results = {"machine": machine(), "tests": {}, "lines": {}}
    told = {}

    def say(name, line):
        # Why there is no device is a long line: it is read once.
        reason = MISSING.search(line)
        if reason and told.setdefault(reason[0], name) != name:
            line = line.replace(reason[0], f"no CUDA driver, see {told[reason[0]]}")
        results["lines"][name] = line
        print(f"{name}: {line}", flush=True)

    say("machine", results["machine"]["gpu"])
    for binary in sorted((HERE / "tests").iterdir()):
        if os.access(binary, os.X_OK):
            outcome, line = tests(binary, options.out, left(TESTS_SECONDS))
            results["tests"][binary.name] = outcome
            say(f"tests {binary.name}", line)
    epochs = 2 if options.small else options.epochs
    results["train"], line = train(epochs, left(TRAIN_SECONDS))
    say("train", line)
    sizes = ["64", "4"] if options.small else []
    ours = [str(HERE / "bin/gpu_figures"), *sizes]
    results["figures"], line = figures(ours, left(FIGURES_SECONDS))
    say("figures", line)
    torch = [sys.executable, str(HERE / "torch_figures.py"), *sizes]
    results["torch"], line = figures(torch, left(TORCH_SECONDS))
    say("torch", line)

    (options.out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    (options.out / "results.md").write_text(table(results), encoding="utf-8")
    print(f"written: {options.out / 'results.json'}, {options.out / 'results.md'}")
    sections = [*results["tests"].values(), results["figures"], results["torch"]]
    is_broken = any("broken" in section or section.get("failed") for section in sections)
    return 1 if is_broken else 0


sys.exit(main())
