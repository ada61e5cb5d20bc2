// Runs one .onnx once in its own process, against ONNX Runtime's library as the wheel has it.
//
// The wheel has no headers. The library hands out a table of functions, which is only ever added to at its end; the
// places that are used here are those of `OrtApi` in onnxruntime_c_api.h. CPU features are switched off from outside,
// before this program starts.

#include "runner.h"

namespace {

const Flags& own_flags() {
  static const Flags flags = {
      {"model_path", "the program (.onnx); its weights lie beside it, where it names them"},
      {"library", "ONNX Runtime's library; default libonnxruntime.so.1"},
      {"library_version", "version that the library has to state; default: any"},
      {"optimisation", "level of the optimisation of the graph, as the API counts them; default 99, all"},
      {"inter_op_threads", "threads that run nodes beside each other; default 1"},
      {"parallel", "1: nodes may run beside each other"},
      {"session_entries", "entries of the session's configuration, NAME=VALUE, a line each"},
      {"input_sizes", "sizes of each input, as 1x8, or - for a single number, separated by commas"},
      {"input_file", "the inputs' raw bytes are in NAME-0.bin, NAME-1.bin, ...; default: zeros"},
      {"trace_path", "where to write the profile; default: none, and nothing is traced"},
      {"graph_path", "with --trace_path: where to write the graph that ran"},
      {"given_path", "with --trace_path: where to write the graph as it was given, and, with .json behind, a profile of it"},
  };
  return flags;
}

// ---- the C API

enum Function : size_t {
  kGetErrorMessage = 2,
  kCreateEnv = 3,
  kCreateSession = 7,
  kCreateSessionOptions = 10,
  kSetOptimizedModelFilePath = 11,
  kSetSessionExecutionMode = 13,
  kEnableProfiling = 14,
  kSetSessionLogSeverityLevel = 22,
  kSetSessionGraphOptimizationLevel = 23,
  kSetIntraOpNumThreads = 24,
  kSetInterOpNumThreads = 25,
  kSessionGetInputCount = 30,
  kSessionGetOutputCount = 31,
  kSessionGetInputTypeInfo = 33,
  kSessionGetOutputTypeInfo = 34,
  kSessionGetInputName = 36,
  kSessionGetOutputName = 37,
  kCreateRunOptions = 39,
  kCreateTensorWithDataAsOrtValue = 49,
  kIsTensor = 50,
  kGetTensorMutableData = 51,
  kCastTypeInfoToTensorInfo = 55,
  kGetTensorElementType = 60,
  kGetDimensionsCount = 61,
  kGetDimensions = 62,
  kGetTensorTypeAndShape = 65,
  kCreateCpuMemoryInfo = 69,
  kGetAllocatorWithDefaultOptions = 78,
  kSessionEndProfiling = 110,
  kAddSessionConfigEntry = 130,
  kRunWithBinding = 133,
  kCreateIoBinding = 134,
  kBindInput = 136,
  kBindOutputToDevice = 138,
  kGetBoundOutputValues = 140,
  kClearBoundOutputs = 142,
  kSessionGetProfilingStartTimeNs = 146,
};

// The oldest version of the table that has all of these.
constexpr uint32_t kTable = 8;
constexpr int kErrorsAlone = 3, kNoOptimisation = 0, kAllOptimisation = 99, kParallel = 1;
constexpr int kDeviceAllocator = 0, kUsualMemory = 0;
constexpr size_t kAlignment = 64;

using Handle = void*;

// What the library exports: how to get the table, and its version.
struct ApiBase {
  const Handle* (*table)(uint32_t version);
  const char* (*version)();
};

// Bytes of an element of a type, as `TensorProto.DataType` numbers them; 0 for text and for parts of a byte.
size_t width(int type) {
  switch (type) {
    case 2: case 3: case 9: return 1;             // uint8, int8, bool
    case 4: case 5: case 10: case 16: return 2;   // uint16, int16, float16, bfloat16
    case 1: case 6: case 12: return 4;            // float32, int32, uint32
    case 7: case 11: case 13: return 8;           // int64, float64, uint64
    default: return 0;
  }
}

// Functions of the library by their places; arguments have to be of the types that C has there.
class Library {
 public:
  Library(const std::string& path, const std::string& version) {
    void* library = load_library(path.c_str());
    const auto base = reinterpret_cast<const ApiBase* (*)()>(dlsym(library, "OrtGetApiBase"));
    if (base == nullptr) fail(path + " does not export OrtGetApiBase: it is not ONNX Runtime's library");
    const std::string stated = base()->version();
    if (!version.empty() && stated != version) fail(path + " says that it is version " + stated + ", not " + version);
    table_ = base()->table(kTable);
    if (table_ == nullptr) fail("ONNX Runtime " + stated + " has no table of functions of version " + std::to_string(kTable));
  }

  template <typename... Arguments>
  void call(Function function, Arguments... arguments) const {
    check(at<Handle (*)(Arguments...)>(function)(arguments...));
  }

  template <typename... Arguments>
  Handle made(Function function, Arguments... arguments) const {
    Handle result = nullptr;
    call(function, arguments..., &result);
    return result;
  }

  template <typename Type>
  Type at(Function function) const {
    return reinterpret_cast<Type>(table_[function]);
  }

  void check(Handle status) const {
    if (status == nullptr) return;
    fail(std::string("ONNX Runtime: ") + at<const char* (*)(Handle)>(kGetErrorMessage)(status));
  }

 private:
  const Handle* table_;
};

// A tensor as it is declared or was left.
struct Description {
  int type;
  std::vector<int64_t> sizes;  // -1 for one that is open

  size_t bytes(const std::string& of) const {
    size_t count = width(type);
    if (count == 0) fail(of + " is of type " + std::to_string(type) + " of ONNX, which cannot be given or read");
    for (const int64_t size : sizes) count *= static_cast<size_t>(size);
    return count;
  }
};

Description described(const Library& library, Handle tensor) {
  Description found{};
  size_t rank = 0;
  library.call(kGetTensorElementType, tensor, &found.type);
  library.call(kGetDimensionsCount, tensor, &rank);
  found.sizes.resize(rank);
  library.call(kGetDimensions, tensor, found.sizes.data(), rank);
  return found;
}

struct Runtime {
  const Library& library;
  Handle environment, allocator, memory;

  explicit Runtime(const Library& own)
      : library(own), environment(own.made(kCreateEnv, kErrorsAlone, "opscope")),
        allocator(own.made(kGetAllocatorWithDefaultOptions)),
        memory(own.made(kCreateCpuMemoryInfo, kDeviceAllocator, kUsualMemory)) {}
};

void add_entry(const Library& library, Handle options, const std::string& name, const std::string& value) {
  library.call(kAddSessionConfigEntry, options, name.c_str(), value.c_str());
}

Handle session_options(const Library& library, const Flags& flags) {
  const Handle options = library.made(kCreateSessionOptions);
  library.call(kSetIntraOpNumThreads, options, static_cast<int>(number(flags, "cpu_threads", 1)));
  library.call(kSetInterOpNumThreads, options, static_cast<int>(number(flags, "inter_op_threads", 1)));
  if (number(flags, "parallel", 0) != 0) library.call(kSetSessionExecutionMode, options, kParallel);
  const int64_t level = number(flags, "optimisation", kAllOptimisation);
  library.call(kSetSessionGraphOptimizationLevel, options, static_cast<int>(level));
  library.call(kSetSessionLogSeverityLevel, options, kErrorsAlone);
  for (const auto& line : list(flags, "session_entries", '\n')) {
    const size_t equals = std::min(line.find('='), line.size());
    add_entry(library, options, line.substr(0, equals), line.substr(std::min(equals + 1, line.size())));
  }
  return options;
}

// The session also writes the graph that it runs, without large weights.
void save_graph(const Library& library, Handle options, const std::string& path) {
  library.call(kSetOptimizedModelFilePath, options, path.c_str());
  add_entry(library, options, "session.optimized_model_external_initializers_file_name", path + ".weights");
}

class Session {
 public:
  Session(const Runtime& runtime, const std::string& path, Handle options)
      : runtime_(runtime), library_(runtime.library),
        session_(library_.made(kCreateSession, runtime.environment, path.c_str(), options)),
        binding_(library_.made(kCreateIoBinding, session_)), run_options_(library_.made(kCreateRunOptions)),
        run_(library_.at<Handle (*)(Handle, Handle, Handle)>(kRunWithBinding)),
        inputs_(names(kSessionGetInputCount, kSessionGetInputName)),
        outputs_(names(kSessionGetOutputCount, kSessionGetOutputName)) {}

  const Names& inputs() const { return inputs_; }

  // What the model says of an input or an output; false for one that is no tensor.
  bool declared(Function side, size_t at, Description& into) const {
    const Handle info = library_.made(side, session_, at);
    const Handle tensor = library_.made(kCastTypeInfoToTensorInfo, info);
    if (tensor != nullptr) into = described(library_, tensor);
    return tensor != nullptr;
  }

  void bind(const std::vector<Handle>& values) const {
    for (size_t i = 0; i < inputs_.size(); ++i) library_.call(kBindInput, binding_, inputs_[i].c_str(), values[i]);
    bind_outputs();
  }

  void bind_outputs() const {
    library_.at<void (*)(Handle)>(kClearBoundOutputs)(binding_);
    for (const auto& name : outputs_) library_.call(kBindOutputToDevice, binding_, name.c_str(), runtime_.memory);
  }

  Handle run() const { return run_(session_, run_options_, binding_); }

  std::vector<Handle> values() const {
    Handle* left = nullptr;
    size_t count = 0;
    library_.call(kGetBoundOutputValues, binding_, runtime_.allocator, &left, &count);
    std::vector<Handle> found;
    for (size_t i = 0; i < count; ++i) found.push_back(left[i]);
    return found;
  }

  bool is_tensor(Handle value) const {
    int found = 0;
    library_.call(kIsTensor, value, &found);
    return found != 0;
  }

  // Whether an output has other dimensions than the model says, which the session refuses to fill again.
  bool misdeclared() const {
    const std::vector<Handle> left = values();
    for (size_t i = 0; i < left.size(); ++i) {
      Description said{};
      if (!is_tensor(left[i]) || !declared(kSessionGetOutputTypeInfo, i, said) || said.sizes.empty()) continue;
      if (described(library_, library_.made(kGetTensorTypeAndShape, left[i])).sizes.size() != said.sizes.size()) return true;
    }
    return false;
  }

  // Moves the profile to a place; the moment of the process's clock from which its times count.
  int64_t end_profile(const std::string& path) const {
    uint64_t began = 0;
    library_.call(kSessionGetProfilingStartTimeNs, session_, &began);
    char* written = nullptr;
    library_.call(kSessionEndProfiling, session_, runtime_.allocator, &written);
    if (rename(written, path.c_str()) != 0) fail(path + ": cannot be written: " + strerror(errno), "storage");
    return static_cast<int64_t>(began);
  }

 private:
  Names names(Function counted, Function named) const {
    size_t count = 0;
    library_.call(counted, session_, &count);
    Names found;
    for (size_t i = 0; i < count; ++i) {
      char* name = nullptr;
      library_.call(named, session_, i, runtime_.allocator, &name);
      found.push_back(name);
    }
    return found;
  }

  const Runtime& runtime_;
  const Library& library_;
  Handle session_, binding_, run_options_;
  Handle (*run_)(Handle, Handle, Handle);
  Names inputs_, outputs_;
};

// ---- the calls

// Tensors of the sizes that are asked for, filled; their memory is never given back.
std::vector<Handle> input_values(const Runtime& runtime, const Session& session, const Flags& flags) {
  const Names words = list(flags, "input_sizes");
  const std::string base = text(flags, "input_file");
  std::vector<Handle> values;
  for (size_t i = 0; i < session.inputs().size(); ++i) {
    const std::string name = "input " + session.inputs()[i];
    Description asked{};
    if (!session.declared(kSessionGetInputTypeInfo, i, asked)) fail(name + " is not a tensor");
    if (i < words.size()) asked.sizes = parse_sizes<int64_t>(words[i], "input_sizes");
    for (const int64_t size : asked.sizes) {
      if (size < 0) fail(name + " has a dynamic size: give --input_sizes");
    }
    const size_t bytes = asked.bytes(name);
    // Kernels take other ways by the alignment of their data.
    auto* data = static_cast<uint8_t*>(aligned_alloc(kAlignment, (bytes / kAlignment + 1) * kAlignment));
    if (data == nullptr) fail(name + ": out of memory");
    memset(data, 0, bytes);
    if (!base.empty()) read_exactly(numbered(base, i), data, bytes);
    values.push_back(runtime.library.made(kCreateTensorWithDataAsOrtValue, runtime.memory, static_cast<void*>(data), bytes,
        asked.sizes.data(), asked.sizes.size(), asked.type));
  }
  return values;
}

struct Calls {
  const Library& library;
  const Session& session;
  bool misdeclared = false;
  Handle status = nullptr;

  void prepare(size_t) {
    if (misdeclared) session.bind_outputs();
  }

  void call(size_t) { status = session.run(); }

  void keep(size_t number, int64_t, int64_t) {
    library.check(status);
    if (number == 0) misdeclared = session.misdeclared();
  }
};

// Every output with its type and sizes; its bytes go to a file of its own.
std::string write_outputs(const Library& library, const Session& session, const std::string& base) {
  Names told;
  for (const Handle value : session.values()) {
    const std::string name = "output " + std::to_string(told.size());
    if (!session.is_tensor(value)) fail(name + " is not a tensor");
    const Description left = described(library, library.made(kGetTensorTypeAndShape, value));
    const size_t bytes = left.bytes(name);
    if (!base.empty()) write_file(numbered(base, told.size()), library.made(kGetTensorMutableData, value), bytes);
    told.push_back("{\"type\":" + json(int64_t{left.type}) + ",\"sizes\":" + json_array(left.sizes) + "}");
  }
  return "[" + joined(told) + "]";
}

// The graph that ran: a second session, behind all that is measured, writes it.
void write_graph(const Runtime& runtime, const Flags& flags) {
  const std::string path = text(flags, "graph_path");
  if (path.empty()) return;
  const Handle options = session_options(runtime.library, flags);
  save_graph(runtime.library, options, path);
  Session(runtime, text(flags, "model_path"), options);
}

// The graph as it was given, with a profile for the shapes of its tensors: a session that changes nothing runs once.
// Kernels do not pack their weights for it, since a profile leaves packed ones out. A model that needs a pass of the
// optimiser to run at all has none.
void write_given(const Runtime& runtime, const Flags& flags, const std::vector<Handle>& inputs) {
  const std::string path = text(flags, "given_path");
  if (path.empty()) return;
  const Library& library = runtime.library;
  try {
    Flags plain = flags;
    plain["optimisation"] = std::to_string(kNoOptimisation);
    plain["parallel"] = "0";
    const Handle options = session_options(library, plain);
    add_entry(library, options, "session.disable_prepacking", "1");
    save_graph(library, options, path);
    library.call(kEnableProfiling, options, path.c_str());
    const Session session(runtime, text(flags, "model_path"), options);
    session.bind(inputs);
    library.check(session.run());
    session.end_profile(path + ".json");
  } catch (const Failure& failure) {
    if (failure.kind != "exit") throw;
    unlink(path.c_str());
  }
}

void run(const Flags& flags, const Runtime& runtime, int64_t spawned, Answer& answer) {
  const int64_t started = now();
  const std::string trace = text(flags, "trace_path");
  const Handle options = session_options(runtime.library, flags);
  if (!trace.empty()) runtime.library.call(kEnableProfiling, options, trace.c_str());
  const Session session(runtime, text(flags, "model_path"), options);
  answer.set("inputs", json_array(session.inputs()));
  const int64_t loaded = now();
  if (number(flags, "describe", 0) != 0) return;
  const std::vector<Handle> inputs = input_values(runtime, session, flags);
  session.bind(inputs);
  Calls calls{runtime.library, session};
  measure(calls, flags, {spawned, started, loaded}, answer, [&] {
    if (!trace.empty()) {
      answer.set("profile_start_ns", json(session.end_profile(trace)));
      write_graph(runtime, flags);
      write_given(runtime, flags, inputs);
    }
    answer.set("outputs", write_outputs(runtime.library, session, text(flags, "output_file")));
  });
}

void serve(const Flags& flags, int64_t spawned, Answer& answer) {
  if (number(flags, "probe", 0) != 0) return;
  // Telemetry would have a thread of its own beside what is measured, and tell of the user's model.
  setenv("ORT_DISABLE_TELEMETRY", "1", 1);
  const std::string path = text(flags, "library");
  const Library library(path.empty() ? "libonnxruntime.so.1" : path, text(flags, "library_version"));
  run(flags, Runtime(library), spawned, answer);
}

}  // namespace

int main(int count, char** words) { return answer_request(count, words, serve); }
