// The compiler that goes with the driver, NVRTC. It compiles nothing: the code of a program is the
// image beside the driver, which has to be of just that source, behind a line that says what it is
// for.

#include <cstdio>
#include <cstring>

#include "state.h"

namespace pretend {

namespace {

enum Result : int {
  COMPILED = 0,
  INVALID_INPUT = 3,
  INVALID_PROGRAM = 4,
  INVALID_OPTION = 5,
  COMPILATION = 6,
};

// FNV-1a of 64 bits, as `cargo xtask kernels` writes it into the first line of each file of PTX.
std::string hash(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (unsigned char byte : text) hash = (hash ^ byte) * 0x100000001b3;
  char digits[17];
  snprintf(digits, sizeof digits, "%016lx", hash);
  return digits;
}

Program* program_of(State& s, uint64_t name) {
  auto found = s.programs.find(name);
  return found == s.programs.end() ? nullptr : &found->second;
}

int compile(Program& program, const std::string& architecture) {
  std::string ptx;
  if (!read_beside(program.name + ".ptx", ptx)) {
    program.log = program.name + ".cu(1): error: nobody compiled this before";
    return COMPILATION;
  }
  if (ptx.rfind("// source " + hash(program.source) + "\n", 0) != 0) {
    program.log = program.name + ".cu(1): error: the image is of another source";
    return COMPILATION;
  }
  program.code = CODE_MARK + architecture + "\n" + ptx;
  return COMPILED;
}

int copy_out(const std::string& text, char* to) {
  memcpy(to, text.c_str(), text.size() + 1);
  return COMPILED;
}

}  // namespace

}  // namespace pretend

using namespace pretend;

#define NEEDS_PROGRAM(name)                  \
  Program* program = program_of(s, name);    \
  if (program == nullptr) return INVALID_PROGRAM

ENTRY nvrtcVersion(int* major, int* minor) {
  ENTER_LIBRARY("nvrtcVersion");
  *major = 12;
  *minor = 0;
  return COMPILED;
}

ENTRY nvrtcGetNumSupportedArchs(int* count) {
  ENTER_LIBRARY("nvrtcGetNumSupportedArchs");
  *count = 2;
  return COMPILED;
}

ENTRY nvrtcGetSupportedArchs(int* architectures) {
  ENTER_LIBRARY("nvrtcGetSupportedArchs");
  architectures[0] = 80;
  architectures[1] = 90;
  return COMPILED;
}

ENTRY nvrtcCreateProgram(uint64_t* name_of, const char* source, const char* name, int headers,
                         const char* const*, const char* const*) {
  ENTER_LIBRARY("nvrtcCreateProgram");
  if (headers != 0) return INVALID_INPUT;
  Program program;
  program.name = name;
  program.source = source;
  *name_of = s.next_name++;
  s.programs[*name_of] = program;
  return COMPILED;
}

ENTRY nvrtcDestroyProgram(uint64_t* name) {
  ENTER_LIBRARY("nvrtcDestroyProgram");
  if (s.programs.erase(*name) == 0) return INVALID_PROGRAM;
  *name = 0;
  return COMPILED;
}

ENTRY nvrtcCompileProgram(uint64_t name, int count, const char* const* options) {
  ENTER_LIBRARY("nvrtcCompileProgram");
  NEEDS_PROGRAM(name);
  const std::string mark = "--gpu-architecture=";
  std::string architecture;
  for (int i = 0; i < count; i++) {
    std::string option(options[i]);
    if (option.rfind(mark, 0) == 0) {
      architecture = option.substr(mark.size());
    } else if (option != "--std=c++17" && option != "--fmad=false") {
      program->log = "nvrtc: error: unrecognized option " + option + " found";
      return INVALID_OPTION;
    }
  }
  return compile(*program, architecture);
}

ENTRY nvrtcGetProgramLogSize(uint64_t name, size_t* size_bytes) {
  ENTER_LIBRARY("nvrtcGetProgramLogSize");
  NEEDS_PROGRAM(name);
  *size_bytes = program->log.size() + 1;
  return COMPILED;
}

ENTRY nvrtcGetProgramLog(uint64_t name, char* log) {
  ENTER_LIBRARY("nvrtcGetProgramLog");
  NEEDS_PROGRAM(name);
  return copy_out(program->log, log);
}

ENTRY nvrtcGetCUBINSize(uint64_t name, size_t* size_bytes) {
  ENTER_LIBRARY("nvrtcGetCUBINSize");
  NEEDS_PROGRAM(name);
  *size_bytes = program->code.size() + 1;
  return COMPILED;
}

ENTRY nvrtcGetCUBIN(uint64_t name, char* code) {
  ENTER_LIBRARY("nvrtcGetCUBIN");
  NEEDS_PROGRAM(name);
  return copy_out(program->code, code);
}
