// Runs one program once in its own process, against the libraries of the installed executorch package.
//
// Flags that executor_runner has mean the same here; `--help` lists the others. The order of the steps is the
// experiment: clear CPU features, then load the libraries that choose kernels by them, then prove what was cleared,
// then load the program and run it. What happened is written as JSON to --answer_path.

#include <executorch/devtools/etdump/etdump_flatcc.h>
#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>
#include <executorch/runtime/platform/runtime.h>

#include <memory>
#include <optional>

#include "runner.h"

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

const Flags& own_flags() {
  static const Flags flags = {
      {"model_path", "the program (.pte)"},
      {"data_path", "weights that the program keeps in a file of their own (.ptd); default: none"},
      {"method_name",
          "methods to call over and over in this order, separated by commas; default: the only one, or forward"},
      {"cpu_threads", "size of the thread pool; default: the runtime's choice"},
      {"etdump_path", "where to write the trace; default: none, and no event is traced"},
      {"inputs", "files with the inputs' raw bytes, separated by commas; default: all ones"},
      {"input_file", "likewise: they are NAME-0.bin, NAME-1.bin, ..."},
      {"input_kinds", "what each input is, separated by commas: t:2x8 a tensor of these sizes, i:3 and f:0.5 a number, "
                      "b:1 true, b:0 false, n nothing; default: tensors of the declared sizes"},
      {"clear", "CPU features to switch off: fields of cpuinfo_isa with byte offsets, NAME=OFFSET,..."},
      {"detected", "fields that must be set before, likewise"},
      {"cpuinfo_size", "bytes that cpuinfo_isa must have"},
      {"kernels", "libraries of further kernels to load, separated by commas"},
      {"plain", "1: leave cpuinfo_isa alone, and prove nothing about it"},
      {"probe", "1: only tell cpuinfo_isa, byte for byte, and what the processor says of itself"},
  };
  return flags;
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

std::string tensor_json(const std::string& sizes, const std::string& order, ScalarType type) {
  return "{\"sizes\":" + sizes + ",\"dim_order\":" + order + ",\"type\":" + json(static_cast<int64_t>(type)) + "}";
}

bool is_tensor(const MethodMeta& meta, size_t index) {
  return must(meta.input_tag(index), "tell the type of input " + std::to_string(index)) == Tag::Tensor;
}

TensorInfo input_info(const MethodMeta& meta, size_t index) {
  const std::string name = "input " + std::to_string(index);
  if (!is_tensor(meta, index)) fail(name + " is not a tensor: --input_kinds must state its kind");
  return must(meta.input_tensor_meta(index), "tell the shape of " + name);
}

// What a runtime knows of a method, by the method's name; in the order of the first calls.
using Metas = std::vector<std::pair<std::string, MethodMeta>>;

Metas metas_of(Module& module, const Names& methods) {
  Metas metas;
  for (const auto& method : methods) {
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
        kind.empty() ? std::vector<SizesType>(declared.begin(), declared.end()) : parse_sizes<SizesType>(kind.substr(2), "input_kinds");
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
  if (!kinds.empty() && kinds.size() != count) fail("--input_kinds must name " + std::to_string(count) + " inputs");
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

// ---- the calls

// Methods that are called in turn.
struct Calls {
  Module& module;
  std::vector<Called>& methods;
  const Turns<std::string>& turns;
  std::optional<executorch::runtime::Result<std::vector<EValue>>> result;

  Called& method(size_t number) { return methods[turns.place(number)]; }

  void prepare(size_t) {}

  void call(size_t number) { result.emplace(module.execute(method(number).name, method(number).inputs.values())); }

  // Frees the outputs before, which is no part of a call.
  void keep(size_t number, int64_t, int64_t) { method(number).outputs = must(std::move(*result), "run the method"); }
};

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
  const Turns<std::string> turns(calls_of(module, list(flags, "method_name")));
  answer.set("method", json(joined(turns.keys)));
  answer.set("inputs", inputs_json(metas_of(module, turns.keys)));
}

void probe(const Flags& flags, Answer& answer) {
  const CpuFeatures features(flags);
  answer.set("isa", features.bytes());
  answer.set("struct_size", features.size());
}

void run(const Flags& flags, int64_t spawned, Answer& answer) {
  load_runtime(flags, answer);
  const int64_t started = now();
  const std::string trace = text(flags, "etdump_path");
  auto owned = trace.empty() ? nullptr : std::make_unique<ETDumpGen>();
  ETDumpGen* tracer = owned.get();
  Module module(text(flags, "model_path"), list(flags, "data_path"), Module::LoadMode::Mmap, std::move(owned));
  const Turns<std::string> turns(calls_of(module, list(flags, "method_name")));
  for (const auto& method : turns.keys) must(module.load_method(method), "load the method");
  const int64_t loaded = now();
  const Metas metas = metas_of(module, turns.keys);
  std::vector<Called> methods = prepared(metas, flags);
  Calls steps{module, methods, turns, {}};
  measure(steps, flags, {spawned, started, loaded}, answer, [&] {
    write_trace(tracer, trace);
    answer.set("outputs", write_outputs(methods, text(flags, "output_file")));
  });
  answer.set("method", json(joined(turns.keys)));
  answer.set("inputs", inputs_json(metas));
  answer.set("planned_bytes", json(planned_bytes(metas)));
}

void serve(const Flags& flags, int64_t spawned, Answer& answer) {
  executorch::runtime::runtime_init();
  if (number(flags, "probe", 0) != 0) return probe(flags, answer);
  if (number(flags, "describe", 0) != 0) return describe(flags, answer);
  run(flags, spawned, answer);
}

}  // namespace

int main(int count, char** words) { return answer_request(count, words, serve); }
