"""Compiles CUDA C with the NVRTC of a pip package, with no device and no driver.

nvrtc.py FOLDER NAME ARCHITECTURE SEED < SOURCE: prints the PTX for an architecture `compute_N`, and for
`sm_N` what the assembler says about each kernel, and how often its code accesses 16 bytes of global
memory at once and divides integers. What is wrong with the source goes to the standard error.
FOLDER is where the package was installed.

The functions are those of "NVRTC: CUDA Runtime Compilation", section "Basic Usage".
"""

import ctypes
import os
import pathlib
import re
import sys

ADDR_NO_RANDOMIZE = 0x0040000


def settle(seed):
    """Starts again with the same addresses in each run, as far as a program can see to that; or,
    with another seed than 0, goes on with drawn ones. The compiler's output depends on them."""
    libc = ctypes.CDLL(None)
    persona = libc.personality(0xFFFFFFFF) if hasattr(libc, "personality") else -1
    if seed != "0" or persona == -1 or persona & ADDR_NO_RANDOMIZE:
        return
    if libc.personality(persona | ADDR_NO_RANDOMIZE) != -1:
        os.execve(sys.executable, [sys.executable, *sys.argv], {"PYTHONHASHSEED": "0"})


def load(folder):
    libraries = pathlib.Path(folder) / "nvidia" / "cuda_nvrtc" / "lib"
    # NVRTC asks the system's loader for its builtins by name: they have to be loaded already.
    for pattern in ("libnvrtc-builtins.so*", "libnvrtc.so*"):
        path = sorted(libraries.glob(pattern))[0]
        library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    return library


WIDE = re.compile(r"\b(?:ld|st)\.global\S*\.(?:v4\.\w32|v2\.\w64)\b")
DIVISION = re.compile(r"\b(?:div|rem)\.[us]\d+\b")


def counts(ptx):
    """A line for each kernel of a file."""
    for text in ptx.split(".entry ")[1:]:
        name = text.split("(")[0].strip()
        wide, divisions = len(WIDE.findall(text)), len(DIVISION.findall(text))
        yield f"counted in '{name}': {wide} accesses of 16 bytes, {divisions} divisions"


def text_of(library, size, get, program):
    count = ctypes.c_size_t()
    check(getattr(library, size)(program, ctypes.byref(count)), size)
    buffer = ctypes.create_string_buffer(count.value)
    check(getattr(library, get)(program, buffer), get)
    return buffer.value.decode()


def check(code, call):
    if code != 0:
        sys.exit(f"{call} returned {code}")


def main():
    folder, name, architecture, seed = sys.argv[1:]
    settle(seed)
    library = load(folder)
    source = sys.stdin.buffer.read()
    program = ctypes.c_void_p()
    created = library.nvrtcCreateProgram(
        ctypes.byref(program), source, name.encode(), 0, None, None
    )
    check(created, "nvrtcCreateProgram")
    options = [f"--gpu-architecture={architecture}", "--std=c++17", "--fmad=false"]
    is_real = architecture.startswith("sm_")
    if is_real:
        options.append("--ptxas-options=-v")
    array = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
    compiled = library.nvrtcCompileProgram(program, len(options), array)
    log = text_of(library, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog", program)
    if compiled != 0:
        sys.exit(log)
    ptx = text_of(library, "nvrtcGetPTXSize", "nvrtcGetPTX", program)
    if is_real:
        print(log, *counts(ptx), sep="\n")
    else:
        sys.stderr.write(log)
        print(ptx)


main()
