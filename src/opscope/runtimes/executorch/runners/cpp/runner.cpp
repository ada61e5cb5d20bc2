// Runs one program once in its own process, against the libraries of the installed executorch package.
//
// Flags that executor_runner has mean the same here; `--help` lists the others. The order of the steps is the
// experiment: clear CPU features, then load the libraries that choose kernels by them, then prove what was cleared,
// then load the program and run it. What happened is written as JSON to --answer_path.

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <link.h>
#include <sched.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#endif
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <executorch/devtools/etdump/etdump_flatcc.h>
#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>
#include <executorch/runtime/platform/runtime.h>

// The package ships the thread pool's and cpuinfo's symbols without their headers.
namespace executorch::extension::threadpool {
class ThreadPool {
 public:
  bool _unsafe_reset_threadpool(uint32_t threads);
  size_t get_thread_count() const;
};
ThreadPool* get_threadpool();
}  // namespace executorch::extension::threadpool
extern "C" bool cpuinfo_initialize();

namespace {

using executorch::aten::ScalarType;
using executorch::aten::SizesType;
using executorch::etdump::ETDumpGen;
using executorch::extension::Module;
using executorch::extension::TensorPtr;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::MethodMeta;
using executorch::runtime::Tag;
using executorch::runtime::TensorInfo;

#if defined(__APPLE__)
const char kThreadpool[] = "@rpath/libexecutorch_threadpool.dylib";
const char kKernels[] = "@rpath/libexecutorch_kernels_optimized.dylib";
const char kBackend[] = "@rpath/libexecutorch_backend_xnnpack.dylib";
#else
const char kThreadpool[] = "libexecutorch_threadpool.so";
const char kKernels[] = "libexecutorch_kernels_optimized.so";
const char kBackend[] = "libexecutorch_backend_xnnpack.so";
#endif

// Exit codes: an answer with a result, an answer with an error, no answer because it cannot be written.
constexpr int kDone = 0, kFailed = 1, kUsage = 2, kNoRoom = 9;

// Why there is no result. Kinds: "mask" features cannot be proved off, "storage" a file cannot be written, "exit".
struct Failure {
  std::string kind;
  std::string message;
};

[[noreturn]] void fail(const std::string& message, const char* kind = "exit") {
  throw Failure{kind, message};
}

int64_t clock_now(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return int64_t{time.tv_sec} * 1000000000 + time.tv_nsec;
}

int64_t now() { return clock_now(CLOCK_MONOTONIC); }

// ---- flags

using Flags = std::map<std::string, std::string>;

const Flags kKnown = {
    {"model_path", "the program (.pte)"},
    {"data_path", "weights that the program keeps in a file of their own (.ptd); default: none"},
    {"method_name", "methods to call over and over in this order, separated by commas; default: the only one, or forward"},
    {"num_executions", "inferences to measure; default 1"},
    {"cpu_threads", "size of the thread pool; default: the runtime's choice"},
    {"etdump_path", "where to write the trace; default: none, and no event is traced"},
    {"inputs", "files with the inputs' raw bytes, separated by commas; default: all ones"},
    {"input_file", "likewise: they are NAME-0.bin, NAME-1.bin, ..."},
    {"input_kinds", "what each input is, separated by commas: t:2x8 a tensor of these sizes, i:3 and f:0.5 a number, "
                    "b:1 true, b:0 false, n nothing; default: tensors of the declared sizes"},
    {"output_file", "the outputs of the last inference go to NAME-0.bin, NAME-1.bin, ..."},
    {"warmup", "inferences before the measured ones; default 0"},
    {"clear", "CPU features to switch off: fields of cpuinfo_isa with byte offsets, NAME=OFFSET,..."},
    {"detected", "fields that must be set before, likewise"},
    {"cpuinfo_size", "bytes that cpuinfo_isa must have"},
    {"cpu_affinity", "processors to stay on, 0,1,..."},
    {"spawned_ns", "CLOCK_MONOTONIC when this process was asked for"},
    {"answer_path", "where to write the result (JSON)"},
    {"describe", "1: only tell the method's inputs"},
    {"kernels", "libraries of further kernels to load, separated by commas"},
    {"plain", "1: leave cpuinfo_isa alone, and prove nothing about it"},
    {"probe", "1: only tell cpuinfo_isa, byte for byte, and what the processor says of itself"},
    {"cpuid_leaves", "with --probe on x86-64: leaves of CPUID to tell, LEAF/SUBLEAF,..."},
};

[[noreturn]] void usage(const std::string& problem) {
  if (!problem.empty()) fprintf(stderr, "%s\n", problem.c_str());
  for (const auto& [name, meaning] : kKnown) fprintf(stderr, "  --%s=...  %s\n", name.c_str(), meaning.c_str());
  exit(problem.empty() ? kDone : kUsage);
}

// --name=value, --name value, and one dash for two, as gflags takes them.
Flags parse(int count, char** words) {
  Flags flags;
  for (int i = 1; i < count; ++i) {
    std::string word = words[i];
    const size_t dashes = word.find_first_not_of('-');
    if (dashes == std::string::npos || dashes == 0 || dashes > 2) usage("not a flag: " + word);
    word.erase(0, dashes);
    if (word == "help") usage("");
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    if (!kKnown.count(name)) usage("unknown flag: --" + name);
    if (equals == std::string::npos && i + 1 == count) usage("--" + name + " needs a value");
    flags[name] = equals == std::string::npos ? words[++i] : word.substr(equals + 1);
  }
  return flags;
}

std::string text(const Flags& flags, const char* name) {
  const auto found = flags.find(name);
  return found == flags.end() ? "" : found->second;
}

int64_t number(const std::string& digits, const std::string& name) {
  char* end = nullptr;
  const int64_t value = strtoll(digits.c_str(), &end, 10);
  if (digits.empty() || *end != '\0') usage("--" + name + " needs a number, not '" + digits + "'");
  return value;
}

int64_t number(const Flags& flags, const char* name, int64_t otherwise) {
  return flags.count(name) ? number(text(flags, name), name) : otherwise;
}

std::vector<std::string> list(const Flags& flags, const char* name) {
  std::vector<std::string> parts;
  const std::string all = text(flags, name);
  for (size_t from = 0; from < all.size();) {
    const size_t comma = std::min(all.find(',', from), all.size());
    parts.push_back(all.substr(from, comma - from));
    from = comma + 1;
  }
  return parts;
}

// ---- JSON

std::string quoted(const std::string& raw) {
  std::string out = "\"";
  for (const unsigned char c : raw) {
    char escape[8];
    if (c == '"' || c == '\\') {
      out += {'\\', static_cast<char>(c)};
    } else if (c < 0x20) {
      snprintf(escape, sizeof escape, "\\u%04x", c);
      out += escape;
    } else {
      out += static_cast<char>(c);
    }
  }
  return out + "\"";
}

std::string json(const std::string& value) { return quoted(value); }
std::string json(int64_t value) { return std::to_string(value); }

template <typename Sequence>
std::string json_array(const Sequence& values) {
  std::string out;
  for (const auto& value : values) out += (out.empty() ? "" : ",") + json(value);
  return "[" + out + "]";
}

// Members of the answer, already encoded.
class Answer {
 public:
  void set(const char* name, const std::string& encoded) { members_[name] = encoded; }

  std::string encode() const {
    std::string out;
    for (const auto& [name, value] : members_) out += (out.empty() ? "" : ",") + quoted(name) + ":" + value;
    return "{" + out + "}\n";
  }

 private:
  std::map<std::string, std::string> members_;
};

// ---- files

// Under another name until it is whole: a reader never meets half a file.
void write_file(const std::string& path, const void* data, size_t size) {
  const std::string part = path + ".part";
  FILE* file = fopen(part.c_str(), "wb");
  bool whole = file != nullptr && fwrite(data, 1, size, file) == size;
  int reason = whole ? 0 : errno;
  if (file != nullptr && fclose(file) != 0 && whole) whole = false, reason = errno;
  if (whole && rename(part.c_str(), path.c_str()) != 0) whole = false, reason = errno;
  if (whole) return;
  unlink(part.c_str());
  fail(path + ": cannot be written: " + strerror(reason), "storage");
}

void read_exactly(const std::string& path, uint8_t* into, size_t size) {
  FILE* file = fopen(path.c_str(), "rb");
  if (file == nullptr) fail(path + ": cannot be read: " + strerror(errno));
  const size_t got = fread(into, 1, size, file);
  const bool more = fgetc(file) != EOF;
  fclose(file);
  if (got != size || more) fail(path + ": an input of " + std::to_string(size) + " bytes is needed");
}

// ---- CPU features

struct Field {
  std::string name;
  size_t offset;
};

std::vector<Field> fields(const Flags& flags, const char* name) {
  std::vector<Field> found;
  for (const auto& pair : list(flags, name)) {
    const size_t equals = pair.find('=');
    if (equals == std::string::npos) usage(std::string("--") + name + " needs NAME=OFFSET, not '" + pair + "'");
    found.push_back({pair.substr(0, equals), static_cast<size_t>(number(pair.substr(equals + 1), name))});
  }
  return found;
}

// Size of cpuinfo_isa as the library's symbol table states it, -1 where that cannot be asked.
int64_t struct_size(void* address) {
#if defined(__GLIBC__)
  Dl_info info{};
  void* symbol = nullptr;
  if (dladdr1(address, &info, &symbol, RTLD_DL_SYMENT) != 0 && symbol != nullptr) {
    return static_cast<int64_t>(static_cast<const ElfW(Sym)*>(symbol)->st_size);
  }
#else
  (void)address;
#endif
  return -1;
}

// The runtime's cpuinfo_isa, one byte a feature.
class CpuFeatures {
 public:
  explicit CpuFeatures(const Flags& flags)
      : clear_(fields(flags, "clear")), wanted_size_(number(flags, "cpuinfo_size", -1)) {
    if (!cpuinfo_initialize()) fail("the runtime cannot read this CPU's features", "mask");
    isa_ = static_cast<uint8_t*>(dlsym(RTLD_DEFAULT, "cpuinfo_isa"));
    if (isa_ == nullptr) fail("the runtime has no cpuinfo_isa", "mask");
    size_ = struct_size(isa_);
    check(fields(flags, "detected"));
    loaded_before_ = dlopen(kBackend, RTLD_NOW | RTLD_NOLOAD) != nullptr;
  }

  void clear() {
    for (const auto& field : clear_) isa_[field.offset] = 0;
  }

  // Reads back, after the backend has been loaded, what it saw.
  void prove(void* backend) const {
    if (loaded_before_) refuse("the XNNPACK backend was loaded before features were cleared: it has already chosen");
    for (const auto& field : clear_) {
      if (isa_[field.offset] != 0) refuse("a feature was switched on again while the runtime was loaded: " + field.name);
    }
    if (dlsym(backend, "cpuinfo_isa") != isa_ || dlsym(RTLD_DEFAULT, "cpuinfo_isa") != isa_) {
      refuse("the XNNPACK backend does not read the cpuinfo_isa that was cleared");
    }
  }

  // Every byte, as many as the symbol table or else --cpuinfo_size says.
  std::string bytes() const {
    const int64_t size = size_ < 0 ? wanted_size_ : size_;
    return json_array(std::vector<int64_t>(isa_, isa_ + std::max<int64_t>(size, 0)));
  }

  std::string size() const { return size_ < 0 ? "null" : std::to_string(size_); }

  std::string proof() const {
    std::vector<std::string> names;
    for (const auto& field : clear_) names.push_back(field.name);
    return "{\"cleared\":" + json_array(names) +
        ",\"backend_loaded_before\":false,\"same_symbol\":true,\"struct_size\":" + size() + "}";
  }

 private:
  [[noreturn]] static void refuse(const std::string& why) { fail(why, "mask"); }

  // Offsets count only when the struct has the known size and the known fields are where they should be.
  void check(const std::vector<Field>& detected) const {
    if (!clear_.empty() && wanted_size_ < 0) refuse("--clear needs --cpuinfo_size");
    if (size_ >= 0 && wanted_size_ >= 0 && size_ != wanted_size_) {
      refuse("cpuinfo_isa is " + std::to_string(size_) + " bytes, " + std::to_string(wanted_size_) + " are known");
    }
    for (const auto& field : detected) {
      if (at(field) != 1) refuse("cpuinfo_isa has another layout than the known one: " + field.name + " is not set");
    }
    for (const auto& field : clear_) {
      if (at(field) > 1) refuse("cpuinfo_isa has another layout than the known one: " + field.name + " is no flag");
    }
  }

  uint8_t at(const Field& field) const {
    if (wanted_size_ < 0 || field.offset >= static_cast<size_t>(wanted_size_)) {
      refuse(field.name + " stands outside of cpuinfo_isa");
    }
    return isa_[field.offset];
  }

  std::vector<Field> clear_;
  int64_t wanted_size_;
  int64_t size_ = -1;
  uint8_t* isa_ = nullptr;
  bool loaded_before_ = false;
};

// What the processor says of itself, as opscope.run.cpu_reading describes it. opscope judges it, not this program.
#if defined(__x86_64__)
std::vector<int64_t> cpuid_row(uint32_t leaf, uint32_t subleaf) {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  __cpuid_count(leaf, subleaf, eax, ebx, ecx, edx);
  return {leaf, subleaf, eax, ebx, ecx, edx};
}

std::string xcr0() {
  constexpr uint32_t kOsxsave = 1u << 27;
  if ((static_cast<uint32_t>(cpuid_row(1, 0)[4]) & kOsxsave) == 0) return "null";
  uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return std::to_string((uint64_t{high} << 32) | low);
}

std::string processor(const Flags& flags) {
  const int64_t last = cpuid_row(0, 0)[2], last_extended = cpuid_row(0x80000000u, 0)[2];
  std::string rows;
  for (const auto& pair : list(flags, "cpuid_leaves")) {
    const size_t slash = std::min(pair.find('/'), pair.size());
    const int64_t leaf = number(pair.substr(0, slash), "cpuid_leaves");
    // As cpuinfo does: it asks for leaf 0x24 of every processor that has leaf 7.
    const int64_t needed = leaf == 0x24 ? 7 : leaf;
    if (needed > (leaf < 0x80000000 ? last : last_extended)) continue;
    const int64_t subleaf = number(pair.substr(std::min(slash + 1, pair.size())), "cpuid_leaves");
    rows += (rows.empty() ? "" : ",") + json_array(cpuid_row(leaf, subleaf));
  }
  return "{\"cpuid\":[" + rows + "],\"xcr0\":" + xcr0() + "}";
}
#elif defined(__aarch64__) && defined(__linux__)
// Implementer, variant and part of every core that /proc/cpuinfo names, as in MIDR_EL1.
std::set<int64_t> midrs() {
  const std::map<std::string, int> shifts = {{"CPU implementer", 24}, {"CPU variant", 20}, {"CPU part", 4}};
  std::set<int64_t> found;
  std::ifstream cpuinfo("/proc/cpuinfo");
  int64_t midr = 0;
  for (std::string line; std::getline(cpuinfo, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || colon == 0) continue;
    const auto shift = shifts.find(line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1));
    if (shift == shifts.end()) continue;
    if (shift->second == 24 && midr != 0) found.insert(std::exchange(midr, 0));
    midr |= static_cast<int64_t>(strtoull(line.c_str() + colon + 1, nullptr, 0)) << shift->second;
  }
  if (midr != 0) found.insert(midr);
  return found;
}

std::string processor(const Flags&) {
  return "{\"hwcaps\":[" + std::to_string(getauxval(AT_HWCAP)) + "," + std::to_string(getauxval(AT_HWCAP2)) +
      "],\"midrs\":" + json_array(midrs()) + "}";
}
#else
std::string processor(const Flags&) { return "{}"; }
#endif

void* load_library(const char* name) {
  void* library = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) fail(dlerror());
  return library;
}

// ---- the program

void must(Error error, const std::string& what) {
  if (error == Error::Ok) return;
  char code[16];
  snprintf(code, sizeof code, "0x%x", static_cast<unsigned>(error));
  fail("the runtime cannot " + what + ": " + executorch::runtime::to_string(error) + " (" + code + ")");
}

template <typename Value>
Value must(executorch::runtime::Result<Value> result, const std::string& what) {
  must(result.error(), what);
  return std::move(result.get());
}

using Names = std::vector<std::string>;

// The methods to call, in this order over and over.
Names calls_of(Module& module, const Names& wanted) {
  const auto unordered = must(module.method_names(), "read the program");
  const std::set<std::string> names(unordered.begin(), unordered.end());
  if (wanted.empty()) {
    if (names.size() == 1) return {*names.begin()};
    return calls_of(module, {"forward"});
  }
  for (const auto& method : wanted) {
    if (names.count(method)) continue;
    std::string known;
    for (const auto& name : names) known += (known.empty() ? "" : ", ") + name;
    fail("the program has no method '" + method + "'; it has: " + known);
  }
  return wanted;
}

// Each name once, in the order in which it comes first.
Names distinct(const Names& names) {
  Names found;
  for (const auto& name : names) {
    if (std::find(found.begin(), found.end(), name) == found.end()) found.push_back(name);
  }
  return found;
}

std::string joined(const Names& parts) {
  std::string out;
  for (const auto& part : parts) out += (out.empty() ? "" : ",") + part;
  return out;
}

std::string tensor_json(const std::string& sizes, const std::string& order, ScalarType type) {
  return "{\"sizes\":" + sizes + ",\"dim_order\":" + order + ",\"type\":" + json(static_cast<int64_t>(type)) + "}";
}

bool is_tensor(const MethodMeta& meta, size_t index) {
  return must(meta.input_tag(index), "tell the type of input " + std::to_string(index)) == Tag::Tensor;
}

TensorInfo input_info(const MethodMeta& meta, size_t index) {
  const std::string name = "input " + std::to_string(index);
  if (!is_tensor(meta, index)) fail(name + " is no tensor: --input_kinds has to say what it is");
  return must(meta.input_tensor_meta(index), "tell the shape of " + name);
}

// What a runtime knows of a method, by the method's name; in the order of the first calls.
using Metas = std::vector<std::pair<std::string, MethodMeta>>;

Metas metas_of(Module& module, const Names& calls) {
  Metas metas;
  for (const auto& method : distinct(calls)) {
    metas.emplace_back(method, must(module.method_meta(method), "describe the method"));
  }
  return metas;
}

std::string inputs_json(const Metas& metas) {
  Names out;
  for (const auto& [name, meta] : metas) {
    for (size_t i = 0; i < meta.num_inputs(); ++i) {
      if (!is_tensor(meta, i)) {
        out.push_back("null");
        continue;
      }
      const TensorInfo info = input_info(meta, i);
      out.push_back(tensor_json(json_array(info.sizes()), json_array(info.dim_order()), info.scalar_type()));
    }
  }
  return "[" + joined(out) + "]";
}

// Memory of one input: aligned like a vector register, with room behind for kernels that read past the end.
using Buffer = std::unique_ptr<uint8_t, decltype(&free)>;

Buffer buffer(size_t size) {
  constexpr size_t kAlignment = 64, kBehind = 128;
  const size_t whole = (size + kBehind + kAlignment - 1) / kAlignment * kAlignment;
  Buffer memory(static_cast<uint8_t*>(aligned_alloc(kAlignment, whole)), &free);
  if (!memory) fail("no memory for an input of " + std::to_string(size) + " bytes");
  memset(memory.get(), 0, whole);
  return memory;
}

template <typename Number>
void fill(uint8_t* memory, size_t bytes, Number one) {
  for (size_t i = 0; i + sizeof one <= bytes; i += sizeof one) memcpy(memory + i, &one, sizeof one);
}

void fill_with_ones(uint8_t* memory, size_t bytes, ScalarType type) {
  switch (type) {
    case ScalarType::Float: return fill(memory, bytes, 1.0F);
    case ScalarType::Double: return fill(memory, bytes, 1.0);
    case ScalarType::Half: return fill(memory, bytes, uint16_t{0x3c00});
    case ScalarType::BFloat16: return fill(memory, bytes, uint16_t{0x3f80});
    case ScalarType::Long: return fill(memory, bytes, int64_t{1});
    case ScalarType::Int: return fill(memory, bytes, int32_t{1});
    case ScalarType::Short: return fill(memory, bytes, int16_t{1});
    case ScalarType::Byte:
    case ScalarType::Char:
    case ScalarType::Bool: return fill(memory, bytes, uint8_t{1});
    default: fail("inputs of number type " + std::to_string(static_cast<int>(type)) + " need a file");
  }
}

std::string numbered(const std::string& base, size_t index) { return base + "-" + std::to_string(index) + ".bin"; }

// One file for each input, or none at all.
std::vector<std::string> input_files(const Flags& flags, size_t count) {
  std::vector<std::string> files = list(flags, "inputs");
  const std::string base = text(flags, "input_file");
  for (size_t i = 0; !base.empty() && i < count; ++i) files.push_back(numbered(base, i));
  if (!files.empty() && files.size() != count) {
    fail("the method takes " + std::to_string(count) + " inputs, " + std::to_string(files.size()) + " are given");
  }
  return files;
}

std::vector<SizesType> sizes_of(const std::string& text) {
  std::vector<SizesType> sizes;
  for (size_t from = 0; from < text.size();) {
    const size_t x = std::min(text.find('x', from), text.size());
    sizes.push_back(static_cast<SizesType>(number(text.substr(from, x - from), "input_kinds")));
    from = x + 1;
  }
  return sizes;
}

// The inputs of a method: tensors in files or all ones, and what --input_kinds says.
class Inputs {
 public:
  // Takes files and kinds from `first` on, one for each input; none when there are none.
  Inputs(const MethodMeta& meta, const Names& files, const Names& kinds, size_t first) {
    for (size_t i = 0; i < meta.num_inputs(); ++i) {
      const std::string file = files.empty() ? "" : files[first + i];
      const std::string kind = kinds.empty() ? "" : kinds[first + i];
      if (kind.empty() || kind[0] == 't') {
        add(input_info(meta, i), kind, file);
      } else {
        values_.push_back(plain(kind));
      }
    }
  }

  const std::vector<EValue>& values() const { return values_; }

 private:
  static EValue plain(const std::string& kind) {
    const std::string value = kind.substr(std::min<size_t>(2, kind.size()));
    switch (kind[0]) {
      case 'i': return EValue(number(value, "input_kinds"));
      case 'b': return EValue(number(value, "input_kinds") != 0);
      case 'f': return EValue(strtod(value.c_str(), nullptr));
      case 'n': return EValue();
      default: usage("--input_kinds does not know '" + kind + "'");
    }
  }

  void add(const TensorInfo& info, const std::string& kind, const std::string& file) {
    const auto declared = info.sizes();
    const auto sizes =
        kind.empty() ? std::vector<SizesType>(declared.begin(), declared.end()) : sizes_of(kind.substr(2));
    size_t bytes = executorch::runtime::elementSize(info.scalar_type());
    for (const SizesType size : sizes) bytes *= static_cast<size_t>(size);
    memory_.push_back(buffer(bytes));
    uint8_t* data = memory_.back().get();
    if (file.empty()) {
      fill_with_ones(data, bytes, info.scalar_type());
    } else {
      read_exactly(file, data, bytes);
    }
    const auto order = info.dim_order();
    tensors_.push_back(executorch::extension::make_tensor_ptr(
        sizes, data, {order.begin(), order.end()}, {}, info.scalar_type()));
    values_.emplace_back(tensors_.back());
  }

  std::vector<Buffer> memory_;
  std::vector<TensorPtr> tensors_;
  std::vector<EValue> values_;
};

int64_t planned_bytes(const Metas& metas) {
  int64_t total = 0;
  for (const auto& [name, meta] : metas) {
    for (size_t i = 0; i < meta.num_memory_planned_buffers(); ++i) {
      total += must(meta.memory_planned_buffer_size(i), "tell its planned memory");
    }
  }
  return total;
}

// One method that is called: its inputs, and the outputs of its last call.
struct Called {
  std::string name;
  Inputs inputs;
  std::vector<EValue> outputs;
};

std::vector<Called> prepared(const Metas& metas, const Flags& flags) {
  size_t count = 0;
  for (const auto& [name, meta] : metas) count += meta.num_inputs();
  const auto files = input_files(flags, count);
  const auto kinds = list(flags, "input_kinds");
  if (!kinds.empty() && kinds.size() != count) fail("--input_kinds has to name " + std::to_string(count) + " inputs");
  std::vector<Called> methods;
  size_t first = 0;
  for (const auto& [name, meta] : metas) {
    methods.push_back({name, Inputs(meta, files, kinds, first), {}});
    first += meta.num_inputs();
  }
  return methods;
}

std::string write_outputs(const std::vector<Called>& methods, const std::string& base) {
  Names out;
  for (const auto& method : methods) {
    for (const auto& value : method.outputs) {
      if (!value.isTensor()) continue;
      const auto tensor = value.toTensor();
      if (!base.empty()) write_file(numbered(base, out.size()), tensor.const_data_ptr(), tensor.nbytes());
      out.push_back(tensor_json(json_array(tensor.sizes()), json_array(tensor.dim_order()), tensor.scalar_type()));
    }
  }
  return "[" + joined(out) + "]";
}

void write_trace(ETDumpGen* tracer, const std::string& path) {
  if (tracer == nullptr) return;
  const auto dump = tracer->get_etdump_data();
  if (dump.buf == nullptr || dump.size == 0) fail("the runtime traced nothing");
  const std::unique_ptr<void, decltype(&free)> owner(dump.buf, &free);
  write_file(path, dump.buf, dump.size);
}

// ---- the process

// Of this program alone: what getrusage says on Linux begins with the memory of the process that started this one.
int64_t peak_memory() {
#if defined(__linux__)
  int64_t kib = -1;
  char line[256];
  FILE* status = fopen("/proc/self/status", "r");
  while (status != nullptr && fgets(line, sizeof line, status) != nullptr) {
    if (sscanf(line, "VmHWM: %ld kB", &kib) == 1) break;
  }
  if (status != nullptr) fclose(status);
  if (kib >= 0) return kib * 1024;
#endif
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
#if defined(__APPLE__)
  return usage.ru_maxrss;
#else
  return int64_t{usage.ru_maxrss} * 1024;
#endif
}

void stay_on(const std::vector<std::string>& processors) {
  if (processors.empty()) return;
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const auto& processor : processors) CPU_SET(number(processor, "cpu_affinity"), &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) fail(std::string("the processors cannot be used: ") + strerror(errno));
#else
  fail("this system cannot keep a process on given processors");
#endif
}

void prepare_process() {
#if defined(__linux__)
  // An orphan would disturb the next measurement.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
  // A file that may not grow is an error of the write, not a crash.
  signal(SIGXFSZ, SIG_IGN);
}

// ---- what the system gave and took, as opscope.machine.off_cpu and opscope.machine.usage tell it of Python

// Second column of a thread's schedstat: how long it was ready and waited for a CPU. False where it cannot be read.
bool run_delay(int file, int64_t& waited) {
  char line[64];
  const ssize_t got = pread(file, line, sizeof line - 1, 0);
  if (got <= 0) return false;
  line[got] = '\0';
  long long ran = 0, delayed = 0;
  if (sscanf(line, "%lld %lld", &ran, &delayed) != 2) return false;
  waited = delayed;
  return true;
}

// The schedstat of all threads of this process, open.
std::vector<int> open_schedstats() {
  std::vector<int> files;
  DIR* tasks = opendir("/proc/self/task");
  while (const dirent* task = tasks == nullptr ? nullptr : readdir(tasks)) {
    if (task->d_name[0] == '.') continue;
    const int file = open((std::string("/proc/self/task/") + task->d_name + "/schedstat").c_str(), O_RDONLY | O_CLOEXEC);
    if (file >= 0) files.push_back(file);
  }
  if (tasks != nullptr) closedir(tasks);
  return files;
}

// How long calls were kept off the CPU: with one thread the calls less the thread's CPU time, else the longest that one
// thread waited for a CPU. A reading is a system call, so short calls share one; it belongs to the longest of them.
class OffCpuMeter {
 public:
  explicit OffCpuMeter(int64_t threads) : alone_(threads == 1) {
    if (!alone_) files_ = open_schedstats();
    int64_t waited = 0;
    for (const int file : files_) readable_ = run_delay(file, waited) && readable_;
    known_ = alone_ || (readable_ && !files_.empty());
    int64_t least = INT64_MAX;
    for (int i = 0; known_ && i < 5; ++i) {
      const int64_t began = now();
      read(opened_);
      least = std::min(least, now() - began);
    }
    rest_ = 2 * 200 * least;  // at most half a percent of the calls for both readings
  }

  ~OffCpuMeter() {
    for (const int file : files_) close(file);
  }

  bool known() const { return known_; }

  // Begins to watch; the moment from which on the calls since then may be closed.
  int64_t begin(const std::vector<int64_t>& durations) {
    if (!known_) return INT64_MAX;
    first_ = durations.size();
    read(opened_);
    return now() + rest_;
  }

  void end(const std::vector<int64_t>& durations) {
    if (!known_ || first_ >= durations.size()) return;
    read(closed_);
    off_cpu_.resize(durations.size(), 0);
    const auto from = durations.begin() + first_;
    int64_t lost = 0;
    if (alone_) {
      for (auto one = from; one != durations.end(); ++one) lost += *one;
      lost -= closed_[0] - opened_[0];
    } else {
      for (size_t i = 0; i < closed_.size(); ++i) lost = std::max(lost, closed_[i] - opened_[i]);
    }
    const auto longest = std::max_element(from, durations.end());
    off_cpu_[longest - durations.begin()] = std::max<int64_t>(0, std::min(lost, *longest));
  }

  const std::vector<int64_t>& off_cpu() const { return off_cpu_; }

 private:
  void read(std::vector<int64_t>& into) const {
    into.resize(alone_ ? 1 : files_.size());
    if (alone_) into[0] = clock_now(CLOCK_THREAD_CPUTIME_ID);
    for (size_t i = 0; i < files_.size(); ++i) run_delay(files_[i], into[i]);
  }

  const bool alone_;
  bool known_ = false, readable_ = true;
  std::vector<int> files_;
  std::vector<int64_t> opened_, closed_, off_cpu_;
  size_t first_ = 0;
  int64_t rest_ = 0;
};

// Counters of this process and of its CPUs at one moment; -1 for what the system does not tell.
struct Usage {
  int64_t wall = now(), cpu = clock_now(CLOCK_PROCESS_CPUTIME_ID), thread_cpu = clock_now(CLOCK_THREAD_CPUTIME_ID);
  int64_t run_delay = -1, cpus = -1, busy = -1, steal = -1;
  double megahertz = -1;
  rusage own{};

  Usage() {
    getrusage(RUSAGE_SELF, &own);
#if defined(__linux__)
    for (const int file : open_schedstats()) {
      int64_t waited = 0;
      if (::run_delay(file, waited)) run_delay = std::max<int64_t>(run_delay, 0) + waited;
      close(file);
    }
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) read_cpus(set);
#endif
  }

 private:
#if defined(__linux__)
  void read_cpus(const cpu_set_t& set) {
    cpus = CPU_COUNT(&set);
    const int64_t unit = 1000000000 / sysconf(_SC_CLK_TCK);
    int64_t listed = 0, worked = 0, stolen = 0;
    std::ifstream stat("/proc/stat");
    for (std::string line; std::getline(stat, line);) {
      int number = 0;
      long long user = 0, nice = 0, kernel = 0, idle = 0, wait = 0, irq = 0, soft = 0, steals = 0;
      const int got = sscanf(line.c_str(), "cpu%d %lld %lld %lld %lld %lld %lld %lld %lld", &number, &user, &nice,
          &kernel, &idle, &wait, &irq, &soft, &steals);
      if (got != 9 || number >= CPU_SETSIZE || !CPU_ISSET(number, &set)) continue;
      ++listed;
      worked += user + nice + kernel + irq + soft;
      stolen += steals;
      std::ifstream file("/sys/devices/system/cpu/cpu" + std::to_string(number) + "/cpufreq/scaling_cur_freq");
      int64_t kilohertz = 0;
      if (file >> kilohertz) megahertz = std::max(megahertz, kilohertz / 1000.0);
    }
    if (listed == cpus) busy = worked * unit, steal = stolen * unit;
  }
#endif
};

std::string difference(int64_t before, int64_t after) {
  return before < 0 || after < 0 ? "null" : json(std::max<int64_t>(after - before, 0));
}

std::string usage_json(const Usage& before, const Usage& after) {
  std::string clocks;
  for (const double clock : {before.megahertz, after.megahertz}) {
    if (clock >= 0) clocks += (clocks.empty() ? "" : ",") + std::to_string(clock);
  }
  return "{\"wall_ns\":" + json(after.wall - before.wall) + ",\"cpu_ns\":" + json(after.cpu - before.cpu) +
      ",\"involuntary_switches\":" + json(int64_t{after.own.ru_nivcsw - before.own.ru_nivcsw}) +
      ",\"voluntary_switches\":" + json(int64_t{after.own.ru_nvcsw - before.own.ru_nvcsw}) +
      ",\"minor_faults\":" + json(int64_t{after.own.ru_minflt - before.own.ru_minflt}) +
      ",\"major_faults\":" + json(int64_t{after.own.ru_majflt - before.own.ru_majflt}) +
      ",\"thread_cpu_ns\":" + json(after.thread_cpu - before.thread_cpu) +
      ",\"run_delay_ns\":" + difference(before.run_delay, after.run_delay) +
      ",\"cpus\":" + (after.cpus < 0 ? "null" : json(after.cpus)) +
      ",\"busy_ns\":" + difference(before.busy, after.busy) + ",\"steal_ns\":" + difference(before.steal, after.steal) +
      ",\"frequency_mhz\":[" + clocks + "]}";
}

// ---- the calls

// Calls methods in their order, `count` times more than there are durations already.
void infer(Module& module, std::vector<Called>& methods, const std::vector<size_t>& order, int64_t count,
    OffCpuMeter& meter, std::vector<int64_t>& durations) {
  const size_t end = durations.size() + count;
  durations.reserve(end);
  int64_t due = meter.begin(durations);
  while (durations.size() < end) {
    Called& method = methods[order[durations.size() % order.size()]];
    const int64_t before = now();
    auto result = module.execute(method.name, method.inputs.values());
    const int64_t after = now();
    durations.push_back(after - before);
    const bool read = after >= due;
    if (read) meter.end(durations);
    method.outputs = must(std::move(result), "run the method");  // frees the outputs before, which is no part of a call
    if (read) due = meter.begin(durations);
  }
  meter.end(durations);
}

// For each call the number of its method.
std::vector<size_t> order_of(const Names& calls, const std::vector<Called>& methods) {
  std::vector<size_t> order;
  for (const auto& call : calls) {
    size_t at = 0;
    while (methods[at].name != call) ++at;
    order.push_back(at);
  }
  return order;
}

// Loads what chooses kernels, with the features switched off, and leaves the proof in the answer.
void load_runtime(const Flags& flags, Answer& answer) {
  if (number(flags, "plain", 0) != 0) {
    load_library(kKernels);
    load_library(kBackend);
  } else {
    CpuFeatures features(flags);
    features.clear();
    load_library(kKernels);
    features.prove(load_library(kBackend));
    answer.set("mask", features.proof());
  }
  for (const auto& library : list(flags, "kernels")) load_library(library.c_str());
  auto* pool = executorch::extension::threadpool::get_threadpool();
  const int64_t threads = number(flags, "cpu_threads", -1);
  if (threads > 0) pool->_unsafe_reset_threadpool(static_cast<uint32_t>(threads));
  answer.set("threads", json(static_cast<int64_t>(pool->get_thread_count())));
}

void describe(const Flags& flags, Answer& answer) {
  Module module(text(flags, "model_path"), Module::LoadMode::Mmap);
  const Names calls = calls_of(module, list(flags, "method_name"));
  answer.set("method", json(joined(distinct(calls))));
  answer.set("inputs", inputs_json(metas_of(module, calls)));
}

void probe(const Flags& flags, Answer& answer) {
  const CpuFeatures features(flags);
  answer.set("features", "{\"isa\":" + features.bytes() + ",\"struct_size\":" + features.size() +
      ",\"processor\":" + processor(flags) + "}");
}

void run(const Flags& flags, int64_t spawned, Answer& answer) {
  load_runtime(flags, answer);
  const int64_t started = now();
  const std::string trace = text(flags, "etdump_path");
  auto owned = trace.empty() ? nullptr : std::make_unique<ETDumpGen>();
  ETDumpGen* tracer = owned.get();
  Module module(text(flags, "model_path"), list(flags, "data_path"), Module::LoadMode::Mmap, std::move(owned));
  const Names calls = calls_of(module, list(flags, "method_name"));
  for (const auto& method : distinct(calls)) must(module.load_method(method), "load the method");
  const int64_t loaded = now();
  const Metas metas = metas_of(module, calls);
  std::vector<Called> methods = prepared(metas, flags);
  const std::vector<size_t> order = order_of(calls, methods);
  OffCpuMeter meter(number(flags, "cpu_threads", -1));
  std::vector<int64_t> durations;
  infer(module, methods, order, number(flags, "warmup", 0), meter, durations);
  const size_t first = durations.size();
  const Usage began;
  infer(module, methods, order, number(flags, "num_executions", 1), meter, durations);
  const Usage ended;
  const std::vector<int64_t> warmup(durations.begin(), durations.begin() + first);
  const std::vector<int64_t> wall(durations.begin() + first, durations.end());
  const int64_t measured = now();
  answer.set("peak_rss_bytes", json(peak_memory()));
  write_trace(tracer, trace);
  answer.set("outputs", write_outputs(methods, text(flags, "output_file")));
  answer.set("write_ns", json(now() - measured));
  answer.set("method", json(joined(distinct(calls))));
  answer.set("inputs", inputs_json(metas));
  answer.set("planned_bytes", json(planned_bytes(metas)));
  answer.set("start_ns", json(started - spawned));
  answer.set("load_ns", json(loaded - started));
  answer.set("warmup_ns", json_array(warmup));
  answer.set("wall_ns", json_array(wall));
  answer.set("off_cpu_ns", meter.known() ? json_array(meter.off_cpu()) : "null");
  answer.set("usage", usage_json(began, ended));
  int64_t total = 0;
  for (const int64_t duration : wall) total += duration;
  printf("Model executed successfully %zu time(s) in %f ms.\n", wall.size(), static_cast<double>(total) / 1e6);
}

void serve(const Flags& flags, int64_t began, Answer& answer) {
  prepare_process();
  stay_on(list(flags, "cpu_affinity"));
  executorch::runtime::runtime_init();
  if (number(flags, "probe", 0) != 0) return probe(flags, answer);
  if (number(flags, "describe", 0) != 0) return describe(flags, answer);
  run(flags, number(flags, "spawned_ns", began), answer);
}

int report(const Answer& answer, const std::string& path, int code) {
  if (path.empty()) return code;
  try {
    const std::string encoded = answer.encode();
    write_file(path, encoded.data(), encoded.size());
  } catch (const Failure& failure) {
    fprintf(stderr, "%s\n", failure.message.c_str());
    return kNoRoom;
  }
  return code;
}

}  // namespace

int main(int count, char** words) {
  const int64_t began = now();
  const Flags flags = parse(count, words);
  if (text(flags, "model_path").empty() && number(flags, "probe", 0) == 0) usage("--model_path is missing");
  Answer answer;
  int code = kDone;
  try {
    serve(flags, began, answer);
  } catch (const Failure& failure) {
    fprintf(stderr, "%s\n", failure.message.c_str());
    answer.set("error", json(failure.message));
    answer.set("kind", json(failure.kind));
    code = kFailed;
  }
  code = report(answer, text(flags, "answer_path"), code);
  fflush(nullptr);
  // Taking the runtime apart would only cost time.
  _exit(code);
}
