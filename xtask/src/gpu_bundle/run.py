"""Runs the tests and the measurements of a bundle, and writes what they say.

There are six commands, each within ten minutes: `tests` (every kernel is compiled; versions, tests,
compute-sanitizer, cuDNN's description of the device), `kernels` (every kernel against its floor,
products, launches, calls of the driver, copies), `models` (trainings, their steps and peaks, and
their longest kernels), `torch` (the same in PyTorch: eager, compiled, compiled with graphs),
`pretrained` (models of transformers, fine-tuned by lowtide and by PyTorch with peft) and `ranks`
(trainings by several devices: their bits, peaks and steps).
Without a name all of them run.

What a command finds is in results-COMMAND.json as soon as it is known; results.json and results.md
have all that is in the folder. What cannot be done is one line that says why. The exit code is 0 if
no test failed and no program broke; a machine without a device breaks nothing.
"""

import argparse
import concurrent.futures
import csv
import datetime
import importlib.util
import json
import os
import pathlib
import platform
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

from table import readable_table

HERE = pathlib.Path(__file__).resolve().parent
COMMANDS = ("tests", "kernels", "models", "torch", "pretrained", "ranks")
# Of one command, with what it needs to start and to write.
LIMIT_SECONDS = 560

# Tests run in processes beside each other, for most of the time is the processor's.
PROCESSES_MAX = 12
PARTS_MAX = 8
TESTS_OF_A_PART = 20
TESTS_SECONDS_MAX = 150

RESULT = re.compile(r"test result: \w+\. (\d+) passed; (\d+) failed")
TEST = re.compile(r"^test (\S+) \.\.\. ?(.*)")
MISSING = re.compile(r"no CUDA driver: .*[^)]")
SKIPPED = re.compile(r"skipped: ([^:]+(?:::[^:]+)*): (.*)")
# Also those of torch_figures.py: model, type, batch.
MODELS = {
    "gpt2_124m bf16": ["gpt2-124m", "--precision", "bf16", "--set", "data.samples=160"],
    "resnet50 bf16": ["resnet50", "--precision", "bf16", "--set", "data.samples=640"],
    "resnet50 f32": ["resnet50", "--set", "data.samples=640"],
    "resnet50 tf32": ["resnet50", "--tf32", "--set", "data.samples=640"],
    "unet bf16": [
        "digits-unet", "--precision", "bf16", "--set", "data.shape=[1,128,128]",
        "--set", "model.width=64", "--set", "train.batch_size=16",
    ],
}  # fmt: skip
# Kernels of a profile that are told.
LONGEST = 25
METRICS = "gpu__time_duration.sum,launch__registers_per_thread"


def parse():
    parser = argparse.ArgumentParser(prog="run.sh", description=__doc__.split("\n\n")[0])
    parser.add_argument("commands", nargs="*", metavar="COMMAND", help=", ".join(COMMANDS))
    parser.add_argument("--small", action="store_true", help="small sizes, for a pretend device")
    parser.add_argument("--quick", action="store_true", help="no sanitizers, no profiles")
    parser.add_argument("--epochs", type=int, default=10, help="of the trainings")
    parser.add_argument("--devices", type=int, help="for `ranks`; all of the machine if absent")
    parser.add_argument("--seconds", type=float, default=LIMIT_SECONDS, help="for each command")
    parser.add_argument("--out", type=pathlib.Path, default=HERE, help="folder of the results")
    options = parser.parse_args()
    wrong = [name for name in options.commands if name not in (*COMMANDS, "table")]
    if wrong:
        parser.error(f"no command {wrong[0]}: there are {', '.join(COMMANDS)} and table")
    return options


class Report:
    """What one command found so far, on disk soon after it is known."""

    def __init__(self, out, command):
        self.out, self.path = out, out / f"results-{command}.json"
        # Tests that run beside each other tell it what they find.
        self.lock = threading.Lock()
        self.data = {"command": command, "machine": machine(), "sections": {}, "lines": {}}
        self.told = {}

    def section(self, name):
        return self.data["sections"].setdefault(name, {})

    def say(self, name, line):
        # Why there is no device is a long line: it is read once.
        reason = MISSING.search(line)
        if reason and self.told.setdefault(reason[0], name) != name:
            line = line.replace(reason[0], f"no CUDA driver, see {self.told[reason[0]]}")
        self.data["lines"][name] = line
        print(f"{name}: {line}", flush=True)
        self.write()

    def grew(self):
        with self.lock:
            replace(self.path, json.dumps(self.data, indent=1) + "\n")

    def write(self):
        self.grew()
        write_table(self.out)

    def is_broken(self):
        sections = self.data["sections"].values()
        return any("broken" in section or section.get("failed") for section in sections)


def replace(path, text):
    fresh = path.with_name(path.name + ".fresh")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)


def write_table(out):
    found = [out / f"results-{command}.json" for command in COMMANDS]
    results = {}
    for path in found:
        if path.exists():
            data = json.loads(path.read_text(encoding="utf-8"))
            results[data["command"]] = data
    replace(out / "results.json", json.dumps(results, indent=1) + "\n")
    replace(out / "results.md", readable_table(results))


def stream(command, seconds, on_line, on_error_text=lambda text: None, **more):
    """Gives each line that a program prints to `on_line` when it comes, and what it said of errors
    to `on_error_text`; how it ended: 0, or a sentence. A program that takes too long is ended, and
    so is all that it started."""
    if seconds < 1:
        return "no time was left for it"
    with tempfile.TemporaryFile() as errors:
        try:
            started = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, start_new_session=True, **more
            )
        except OSError as error:
            return f"it does not start: {error}"
        end, lines = time.monotonic() + seconds, queue.Queue()

        def read():
            for line in started.stdout:
                lines.put(line.decode(errors="replace").rstrip("\n"))
            lines.put(None)

        threading.Thread(target=read, daemon=True).start()
        is_late = False
        try:
            while True:
                line = lines.get(timeout=max(0.0, end - time.monotonic()))
                if line is None:
                    break
                on_line(line)
            started.wait(timeout=max(1.0, end - time.monotonic()))
        except (queue.Empty, subprocess.TimeoutExpired):
            is_late = True
        finally:
            if started.poll() is None:
                os.killpg(started.pid, signal.SIGKILL)
                started.wait()
        errors.seek(0)
        said = errors.read().decode(errors="replace").strip()
        on_error_text(said)
    if is_late:
        return f"it took over {seconds:.0f} s"
    sys.stderr.write(said + "\n" if said and started.returncode else "")
    last = said.splitlines()[-1] if said else ""
    return 0 if started.returncode == 0 else f"exit code {started.returncode}: {last}"


def output_of(command, seconds):
    lines = []
    end = stream(command, seconds, lines.append)
    return "\n".join(lines), end


def machine():
    query = "name,driver_version,memory.total"
    gpu, end = output_of(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], 20)
    commit = HERE / "commit.txt"
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit.read_text().strip() if commit.exists() else "unknown",
        "host": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": os.cpu_count(),
        "gpu": gpu.strip().splitlines()[0] if end == 0 and gpu.strip() else "none by nvidia-smi",
        "python": sys.executable,
    }


def libraries():
    """Where this interpreter's packages have NVIDIA's libraries."""
    import site

    packages = [*site.getsitepackages(), site.getusersitepackages()]
    folders = [path for home in packages for path in pathlib.Path(home).glob("nvidia/*/lib")]
    return [str(folder) for folder in sorted(folders)]


def figures(report, name, command, seconds):
    """What a program prints as lines of JSON, kept as they come."""
    section = report.section(name)
    lines = section.setdefault("figures", [])

    def on_line(line):
        if line.startswith("{"):
            lines.append(json.loads(line))
            report.grew()

    end = stream(command, seconds, on_line)
    if end == 0 and not lines:
        end = "it printed no line of JSON"
    count = sum("value" in line for line in lines)
    refusals = [f"{line['name']}: {line['refused']}" for line in lines if "refused" in line]
    line = f"{count} figures" + "".join(f"; {refusal}" for refusal in refusals[:4])
    if len(refusals) > 4:
        line += f"; and {len(refusals) - 4} more refusals"
    if end != 0:
        section["broken"] = end
        line = f"broke: {end}; {line}"
    report.say(name, line)


class Tests:
    """What a test binary says on the machine's own driver, in parts that run beside each other."""

    def __init__(self, report, binary, left):
        self.report, self.binary, self.left = report, binary, left
        self.log, self.lock = [], threading.Lock()
        self.section = report.section(f"tests {binary.name}")
        self.section.update(passed=0, failed=0, skipped=0, skips={}, failures=[])

    def parts(self):
        """The names of its tests, dealt out to processes; one that lists none is run as it is."""
        lines, _ = output_of([str(self.binary), "--list", "--format", "terse"], min(20, self.left()))
        names = [line[: -len(": test")] for line in lines.splitlines() if line.endswith(": test")]
        count = max(1, min(PARTS_MAX, len(names) // TESTS_OF_A_PART))
        return [names[part::count] for part in range(count)]

    def run(self, names):
        """Runs the tests of these names, or all. The one that ends its process has failed, and the
        others are run without it."""
        log, counts, now, ended = [], None, None, set()

        def on_line(line):
            nonlocal counts, now
            log.append(line)
            skip, begun = SKIPPED.search(line), TEST.match(line)
            now = begun[1] if begun else now
            word = line.split()[-1] if line else ""
            counts = RESULT.search(line) or counts
            with self.lock:
                if skip:
                    self.section["skips"][skip[1]] = skip[2]
                elif now and word in ("ok", "FAILED"):
                    self.ended(now, word)
                    ended.add(now)
                    now = None

        environment = dict(os.environ, LOWTIDE_TEST_DRIVER="system")
        environment["LOWTIDE_TEST_WORKSPACE"] = str(HERE / "workspace")
        # One at a time in a process: a device is taken by one test after the other anyhow.
        command = [str(self.binary), "--test-threads=1", "--nocapture"]
        command += ["--exact", *names] if names else []
        seconds = min(TESTS_SECONDS_MAX, self.left())
        end = stream(command, seconds, on_line, env=environment)
        with self.lock:
            self.log += log
            if counts is None and names and now and "took over" not in str(end):
                self.ended(now, "FAILED")
                ended.add(now)
            elif counts is None:
                self.section["broken"] = f"{end}" + (f", in {now}" if now else "")
            elif not names:
                self.section["passed"] = int(counts[1]) - len(self.section["skips"])
                self.section["failed"] = int(counts[2])
        rest = [name for name in names if name not in ended]
        if counts is None and ended and rest and "broken" not in self.section:
            self.run(rest)

    def ended(self, name, word):
        section = self.section
        section["last"] = name
        if word == "FAILED":
            section["failures"].append(name)
            section["failed"] += 1
        elif name not in section["skips"] and name.split("::")[-1] not in section["skips"]:
            section["passed"] += 1
        self.report.grew()

    def run_again(self):
        """Each that failed, in a process of its own: a kernel that reads where it must not fails
        all tests after it, and a device without free memory those beside it."""
        section = self.section
        if self.left() < 1:
            return
        failures, section["failures"], section["failed"] = section["failures"], [], 0
        for name in failures:
            self.run([name])
        alone = sorted(set(failures) - set(section["failures"]))
        if alone:
            section["failed_beside_others"] = alone

    def tell(self):
        section, name = self.section, self.binary.name
        section["skipped"] = len(section["skips"])
        passed, failed, skipped = (section[key] for key in ("passed", "failed", "skipped"))
        line = f"{passed} passed, {failed} failed, {skipped} skipped"
        if "broken" in section:
            line = f"broke: {section['broken']}" + (f"; {line}" if passed + failed else "")
        if section.get("failed_beside_others"):
            line += f"; {len(section['failed_beside_others'])} failed beside others only"
        if failed or "broken" in section or "failed_beside_others" in section:
            (self.report.out / f"{name}.log").write_text("\n".join(self.log[-20000:]) + "\n")
        # Said once: why there is no device.
        why = [reason for reason in section["skips"].values() if reason.startswith("no CUDA")]
        self.report.say(f"tests {name}", line + (f" ({why[0]})" if why else ""))


def sanitizer(report, tool, seconds):
    """The tests of tensors, those that are quick, under one tool of compute-sanitizer."""
    name = f"sanitizer {tool}"
    section = report.section(name)
    program = shutil.which("compute-sanitizer")
    if program is None:
        section["refused"] = "no compute-sanitizer on the PATH"
        return report.say(name, f"skipped: {section['refused']}")
    errors = []

    def on_line(line):
        if line.startswith("=========") and " SUMMARY: " in line:
            section["summary"] = line.strip("= ")
        elif line.startswith("========= ") and len(errors) < 50:
            errors.append(line)

    environment = dict(os.environ, LOWTIDE_TEST_DRIVER="system")
    environment["LOWTIDE_TEST_WORKSPACE"] = str(HERE / "workspace")
    command = [program, "--tool", tool, "--error-exitcode", "9", "--print-limit", "20"]
    # How many parameters a kernel has is asked of the driver until it refuses.
    command += ["--report-api-errors", "no"] if tool == "memcheck" else []
    command += [str(HERE / "tests/tensor-cuda"), "--test-threads=1", "reduce", "conv2d", "random"]
    end = stream(command, seconds, on_line, env=environment)
    section.update(end=str(end), lines=errors)
    if end != 0 and "exit code 9" in str(end):
        section["broken"] = section.get("summary", end)
    report.say(name, section.get("summary", f"no summary: {end}"))


def versions(report, left):
    figures(report, "versions", [str(HERE / "bin/gpu_figures"), "versions"], min(90, left()))
    for tool in ("compute-sanitizer", "ncu", "nvcc"):
        path = shutil.which(tool)
        text, end = output_of([tool, "--version"], 20) if path else ("", "")
        last = text.strip().splitlines()[-1] if text.strip() else str(end)
        report.say(tool, f"{last} ({path})" if path else "not on the PATH")
    has_torch = importlib.util.find_spec("torch") is not None
    if has_torch:
        import importlib.metadata as metadata

        report.say("python", f"{sys.executable} with torch {metadata.version('torch')}")
    else:
        report.say("python", f"{sys.executable} has no torch")


def run_tests(report, options, left):
    program = str(HERE / "bin/gpu_figures")
    # Once, on all cores: tests would each wait for the kernels that they use.
    figures(report, "compile", [program, "compile"], min(180, left()))
    versions(report, left)
    binaries = [path for path in sorted((HERE / "tests").iterdir()) if os.access(path, os.X_OK)]
    of_binaries = [Tests(report, path, left) for path in binaries]
    started = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(min(PROCESSES_MAX, os.cpu_count() or 1)) as pool:
        runs = [pool.submit(of.run, names) for of in of_binaries for names in of.parts()]
    seconds = time.monotonic() - started
    for run in runs:
        run.result()
    for of in of_binaries:
        of.run_again()
        of.tell()
    report.data["tests_seconds"] = seconds
    report.say("tests", f"{seconds:.0f} s, each once")
    for tool in () if options.quick else ("memcheck", "racecheck"):
        sanitizer(report, tool, min(60, left()))
    command = [sys.executable, str(HERE / "cudnn_device.py")]
    figures(report, "cudnn", command, min(40, left()))


def run_kernels(report, options, left):
    small = ["--small"] if options.small else []
    program = str(HERE / "bin/gpu_figures")
    sections = ("versions", "copies", "memory_calls", "launches", "products", "convolutions", "kernels")
    for section in sections:
        figures(report, section, [program, *small, section], left())


def train(report, name, arguments, seconds):
    """A training by the command, on the device."""
    section = report.section(name)
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "run"
        command = [str(HERE / "bin/lowtide"), "train", "--device", "cuda", *arguments]
        notes = []
        end = stream([*command, "--out", str(out)], seconds, lambda line: None, notes.append)
        section["notes"] = [line for line in notes[0].splitlines() if ": note: " in line] if notes else []
        if end != 0:
            section["refused"] = end
            return report.say(name, f"refused: {end}")
        summary = json.loads((out / "summary.json").read_text())
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    # The first epoch loads kernels; whole batches alone are compared, and no evaluation.
    steps = [line for line in lines if "batch" in line and line["epoch"] > 1]
    steps = [line for line in steps if line["batch"] == summary["batch_size"]] or steps
    times = sorted(line["seconds"] for line in steps)
    if times:
        summary["step_seconds"] = times[len(times) // 2]
    section.update(summary)
    predicted, measured = summary["predicted_peak_bytes"], summary["measured_peak_bytes"]
    same = "the" if predicted == measured else "NOT the"
    if predicted != measured:
        section["broken"] = "the peak is not the predicted one"
    step = f", a step in {1e3 * summary['step_seconds']:.2f} ms" if times else ""
    report.say(name, f"peak {measured} bytes, {same} predicted one{step}")


def device_count():
    listed, end = output_of(["nvidia-smi", "-L"], 20)
    return sum(line.startswith("GPU ") for line in listed.splitlines()) if end == 0 else 0


def run_ranks(report, options, left):
    """By leaves every number of ranks has the bits of one, whatever they divide."""
    count = options.devices or device_count()
    if count < 2:
        return report.say("ranks", f"skipped: several devices are needed, here are {count}")
    exact = ["--epochs", "2", "--set", "train.leaf=32"]
    train(report, "1 rank", exact, min(100, left()))
    expected = report.section("1 rank").get("final_state_hash")
    numbers = [number for number in (2, 4, 8) if number <= count]
    for number in numbers:
        for zero in range(4):
            name = f"{number} ranks, zero {zero}"
            divided = ["--ranks", str(number), "--zero", str(zero)]
            train(report, name, [*exact, *divided], min(60, left()))
            section = report.section(name)
            if section.get("final_state_hash", expected) != expected:
                section["broken"] = "the bits are not those of one rank"
                report.say(name, f"broke: {section['broken']}")
            # Such as that tensors go through the host.
            for note in section["notes"]:
                report.say(f"{name}, note", note)
    name, arguments = "gpt2_124m bf16", [*MODELS["gpt2_124m bf16"], "--epochs", "2"]
    for number in () if options.small else (1, *numbers):
        ranks = ["--ranks", str(number)] if number > 1 else []
        train(report, f"{name}, {number} ranks", [*arguments, *ranks], min(90, left()))
    for way, flag in (("stages", "--pipeline"), ("shares", "--tensor-parallel")):
        for number in () if options.small else numbers:
            divided = ["--ranks", str(number), flag]
            train(report, f"{name}, {number} {way}", [*arguments, *divided], min(90, left()))


def profile(report, name, arguments, seconds):
    """The kernels of a training that take longest, by Nsight Compute."""
    name = f"ncu {name}"
    section = report.section(name)
    program = shutil.which("ncu")
    if program is None:
        section["refused"] = "no ncu on the PATH"
        return report.say(name, f"skipped: {section['refused']}")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        command = [program, "--csv", "--page", "raw", "--metrics", METRICS, "--clock-control", "none"]
        command += ["--launch-skip", "1000", "--launch-count", "1000", str(HERE / "bin/lowtide")]
        command += ["train", "--device", "cuda", *arguments, "--out", f"{folder}/run"]
        end = stream(command, seconds, lambda line: rows.append(line) if line[:1] == '"' else None)
    sums = {}
    for row in csv.DictReader(rows):
        try:
            taken = float(row["gpu__time_duration.sum"].replace(",", ""))
        except (KeyError, TypeError, ValueError):
            continue  # The row of units.
        kernel = sums.setdefault(row.get("Kernel Name", "?"), {"launches": 0, "time": 0.0})
        kernel["launches"] += 1
        kernel["time"] += taken
        kernel["registers"] = row.get("launch__registers_per_thread")
    longest = sorted(sums.items(), key=lambda item: -item[1]["time"])[:LONGEST]
    section.update(end=str(end), longest=[{"kernel": name, **about} for name, about in longest])
    if not longest:
        return report.say(name, f"no kernel was measured: {end}")
    report.say(name, f"{len(sums)} kernels, the longest {longest[0][0]}")


def run_models(report, options, left):
    epochs = str(2 if options.small else options.epochs)
    train(report, "train", ["--epochs", epochs], min(150, left()))
    train(report, "train in 5 MiB", ["--epochs", epochs, "--budget", "5MiB"], min(150, left()))
    for name, arguments in () if options.small else MODELS.items():
        train(report, name, [*arguments, "--epochs", "2"], min(150, left()))
    if options.quick:
        return
    for name, arguments in () if options.small else MODELS.items():
        profile(report, name, [*arguments, "--epochs", "1"], min(60, left()))
    profile(report, "train", ["--epochs", "20"], min(60, left()))


def run_torch(report, options, left):
    small = ["--small"] if options.small else []
    figures(report, "torch", [sys.executable, str(HERE / "torch_figures.py"), *small], left())


def run_pretrained(report, options, left):
    small = ["--small"] if options.small else []
    script, lowtide = str(HERE / "pretrained_figures.py"), str(HERE / "bin/lowtide")
    with tempfile.TemporaryDirectory() as folder:
        for name, program in (("lowtide", lowtide), ("torch", "torch")):
            command = [sys.executable, script, program, folder, *small]
            figures(report, name, command, min(270, left()))


def main():
    options = parse()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.commands == ["table"]:
        write_table(options.out)
        return 0
    if "LOWTIDE_CUDA_LIBS" not in os.environ and libraries():
        os.environ["LOWTIDE_CUDA_LIBS"] = os.pathsep.join(libraries())
    is_broken = False
    for command in options.commands or COMMANDS:
        end = time.monotonic() + options.seconds
        report = Report(options.out, command)
        report.say("machine", report.data["machine"]["gpu"])
        run = globals()[f"run_{command}"]
        run(report, options, lambda: end - time.monotonic())
        report.write()
        is_broken |= report.is_broken()
    print(f"written: {options.out / 'results.json'}, {options.out / 'results.md'}")
    return 1 if is_broken else 0


if __name__ == "__main__":
    sys.exit(main())
