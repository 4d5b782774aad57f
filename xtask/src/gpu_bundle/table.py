"""The results of a bundle as a page of Markdown."""


def values(results, command, name):
    section = results.get(command, {}).get("sections", {}).get(name, {})
    return {f["name"]: f for f in section.get("figures", []) if "value" in f}


def readable(value, unit):
    if unit == "seconds":
        return f"{value * 1e3:.3f} ms" if value >= 1e-4 else f"{value * 1e6:.3f} µs"
    scale, prefix = (1e12, "T") if value >= 1e12 else (1e9, "G") if value >= 1e9 else (1e6, "M")
    return f"{value / scale:.2f} {prefix}{'B' if unit.startswith('bytes') else unit[:4]}" + (
        "/s" if unit.endswith("/s") else ""
    )


def ours_and_torch(results):
    """Figures by name, of lowtide and of PyTorch."""
    ours = values(results, "tests", "compile")
    for name in ("versions", "copies", "memory_calls", "launches", "products", "convolutions"):
        ours.update(values(results, "kernels", name))
    for name, section in results.get("models", {}).get("sections", {}).items():
        name = name.replace(" ", "_")
        if "measured_peak_bytes" in section:
            ours[f"{name}_peak"] = {"value": section["measured_peak_bytes"], "unit": "bytes"}
        if "step_seconds" in section:
            ours[f"{name}_step"] = {"value": section["step_seconds"], "unit": "seconds"}
    ours.update(values(results, "pretrained", "lowtide"))
    return ours, values(results, "torch", "torch") | values(results, "pretrained", "torch")


def readable_table(results):
    lines = ["# lowtide on a device, beside PyTorch", ""]
    for command, data in results.items():
        about = data["machine"]
        head = f"{about['gpu']}; {about['date']}, commit {about['commit']}, {about['host']}"
        lines += [f"## {command}", "", head + ".", "", "| section | outcome |", "| --- | --- |"]
        lines += [f"| {name} | {line} |" for name, line in data["lines"].items()]
        lines.append("")
    ours, torch = ours_and_torch(results)
    names = list(dict.fromkeys([*ours, *torch]))
    if names:
        lines += ["## Figures", "", "| figure | lowtide | PyTorch |", "| --- | ---: | ---: |"]
    for name in names:
        both = [side.get(name) for side in (ours, torch)]
        cells = [readable(f["value"], f["unit"]) if f else "" for f in both]
        lines.append(f"| {name} | {cells[0]} | {cells[1]} |")
    kernels = values(results, "kernels", "kernels")
    if kernels:
        lines += ["", "## Kernels", "", "| kernel, type, elements | time | floor | of it |"]
        lines.append("| --- | ---: | ---: | ---: |")
    for name, f in kernels.items():
        part = f"{100 * f['floor'] / f['value']:.0f} %" if f.get("floor") and f["value"] else ""
        times = [readable(f[key], "seconds") for key in ("value", "floor")]
        lines.append(f"| {name} | {times[0]} | {times[1]} | {part} |")
    for name, section in results.get("models", {}).get("sections", {}).items():
        if not section.get("longest"):
            continue
        lines += ["", f"## Longest kernels: {name}", ""]
        lines += ["| kernel | launches | ns | registers |", "| --- | ---: | ---: | ---: |"]
        for f in section["longest"]:
            lines.append(f"| {f['kernel']} | {f['launches']} | {f['time']:.0f} | {f['registers']} |")
    texts = [
        f
        for data in results.values()
        for section in data["sections"].values()
        for f in section.get("figures", [])
        if "text" in f
    ]
    texts = list(dict.fromkeys(f"- {f['name']}: {f['text']}" for f in texts))
    lines += ["", *texts]
    return "\n".join(lines).rstrip() + "\n"
